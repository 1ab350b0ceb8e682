/* SPDX-License-Identifier: BSD-3-Clause */
/* While the others wait in tess_recover, a lost rank is replaced, or they go on without it: each time with a server of
 * its own, so that nothing that the old group said is left. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/say.h"
#include "launch_internal.h"
#include "tools/support/progress.h"

#define HOUR_NS (3600 * 1000000000ll)
enum { HOW = 512 /* bytes of a rank's last word */ };

/* A rank that has ended well will not come back: the work is done, or was never shared. */
static int anyone_done(const launch *l) {
    for (int32_t r = 0; r < l->options->ranks; r++)
        if (l->ranks[r].started && !l->ranks[r].pid && !l->ranks[r].failed && !l->ranks[r].left)
            return 1;
    return 0;
}

/* One that came in another's place and ended by itself because a third was lost before the group was whole. */
static int broke_off(const launch *l, int32_t r) {
    const launch_rank *rank = &l->ranks[r];
    int joined = launch_server_joined(l, r);
    if (!rank->generation || !joined || rank->generation < l->recovery.generation)
        return rank->generation && !joined;
    int32_t lost = launch_server_culprit(l);
    return lost >= 0 && lost != r && !launch_server_ready(l) && (l->ranks[lost].pid || l->ranks[lost].signal);
}

/* Returns 1 if the remaining ranks can continue at all. */
static int may_go_on(launch *l, int32_t r) {
    launch_recovery *a = &l->recovery;
    if (!l->server || launch_several_hosts(l) || l->stop_ns || l->interrupted || anyone_done(l))
        return 0;
    launch_server_catch_up(l); /* reads what the rank told the server before it ended */
    if (launch_server_closing(l) || (!l->ranks[r].signal && !broke_off(l, r)))
        return 0;
    if (launch_server_fits(l, &a->fits)) {
        a->attempts = 0;
        a->whole = a->generation;
    } else if (!a->generation || a->attempts == LAUNCH_MOST_ATTEMPTS * l->options->ranks)
        return 0;
    int64_t *slot = &a->recent_ns[a->generation % LAUNCH_RECOVERIES_PER_HOUR], now_ns = tool_now_ns();
    if (a->generation >= LAUNCH_RECOVERIES_PER_HOUR && now_ns - *slot < HOUR_NS) {
        tool_say(SAY_ERROR, "%d ranks were lost within an hour: given up", LAUNCH_RECOVERIES_PER_HOUR);
        return 0;
    }
    *slot = now_ns;
    a->attempts++;
    return 1;
}

/* One that has not yet come to the group that forms needs no other group. */
static int needs_new_group(const launch *l, int32_t r) {
    return !l->recovery.generation || launch_server_ready(l) || launch_server_joined(l, r);
}

static int recovers(const launch *l) {
    return l->server && !launch_several_hosts(l) && (l->recovery.generation || launch_server_ready(l));
}

void launch_end_silent(launch *l) {
    for (int32_t r = 0; recovers(l) && !l->stop_ns && r < l->options->ranks; r++) {
        launch_rank *rank = &l->ranks[r];
        if (!rank->pid || rank->silent || !launch_server_silent(l, r))
            continue;
        rank->silent = 1;
        kill(-rank->pid, SIGKILL);
    }
}

static void say_how(const launch *l, int32_t r, char *out, size_t n) {
    const launch_rank *rank = &l->ranks[r];
    char why[HOW];
    if (rank->silent)
        snprintf(out, n, "gave no sign of life and was ended");
    else if (launch_server_last_word(l, r, why, sizeof why))
        snprintf(out, n, "ended itself (%.500s)", why);
    else
        snprintf(out, n, "was killed by signal %d (%s)", rank->signal, strsignal(rank->signal));
}

static int replace(launch *l, int32_t r, const char *why) {
    launch_recovery *a = &l->recovery;
    char how[HOW + 32];
    say_how(l, r, how, sizeof how); /* of the server that knows */
    if (needs_new_group(l, r)) {
        launch_server_ended(l, r, 0, why);
        a->generation++;
        if (launch_server_renew(l) != 0)
            return 0;
    }
    if (l->ranks[r].signal) {
        a->replaced++;
        tool_say(SAY_WARNING, "rank %d %s: another process takes its place (recovery %d)", (int)r, how,
                 (int)a->generation);
    }
    launch_output_end(l, r);
    return launch_start_again(l, r) == 0;
}

/* ---- fewer -------------------------------------------------------------------------------------------- */

static int32_t member(const launch *l, int32_t i) {
    return l->recovery.members ? l->recovery.members[i] : i;
}

/* True if the rank runs and was in a group that had images. */
static int holds_images(const launch *l, int32_t r) {
    return l->ranks[r].pid && !l->ranks[r].left && l->ranks[r].generation <= l->recovery.whole;
}

/* The others that keep copies of what member i has, or whose copies it keeps, all stay; of its replicas one. */
static int can_be_spared(const launch *l, const char *stays, int32_t i) {
    int32_t stride = l->recovery.fits.stride, stay = 0, go = 0;
    for (int32_t k = 0; stride > 0 && k < l->recovery.n_members; k++)
        if (k != i && k % stride == i % stride)
            *(stays[k] ? &stay : &go) += 1;
    return l->recovery.fits.replicas ? stay > 0 : stay > 0 && !go;
}

/* Chooses so many of those that are left. `stays`: which, in the members' order. */
static int choose(const launch *l, int32_t n, char *stays) {
    int32_t left = 0;
    for (int32_t i = 0; i < l->recovery.n_members; i++)
        left += stays[i] = (char)holds_images(l, member(l, i));
    for (int32_t i = l->recovery.n_members; i-- > 0 && left > n;)
        if (stays[i] && can_be_spared(l, stays, i)) {
            stays[i] = 0;
            left--;
        }
    return left == n;
}

/* The most that fit. 0: none. */
static int32_t find_fewer(const launch *l, char *stays) {
    const launch_fits *fits = &l->recovery.fits;
    for (int32_t i = 0; i < fits->n; i++)
        if (fits->ranks[i] >= l->options->least && choose(l, fits->ranks[i], stays))
            return fits->ranks[i];
    return 0;
}

static void let_go(launch *l, int32_t r) {
    l->ranks[r].left = 1;
    if (!l->ranks[r].pid)
        return;
    tool_say(SAY_WARNING, "rank %d is not needed for the smaller group: it is ended", (int)r);
    kill(-l->ranks[r].pid, SIGKILL);
}

static int form(launch *l, int32_t n, const char *stays) {
    launch_recovery *a = &l->recovery;
    int32_t *members = calloc((size_t)n, sizeof *members), at = 0;
    if (!members)
        return 0;
    for (int32_t i = 0; i < a->n_members; i++)
        if (stays[i])
            members[at++] = member(l, i);
        else
            let_go(l, member(l, i));
    free(a->members);
    a->members = members;
    a->n_members = n;
    a->generation++;
    return launch_server_renew(l) == 0;
}

static int go_on_with_fewer(launch *l, int32_t r, const char *why) {
    launch_recovery *a = &l->recovery;
    char how[HOW + 32], *stays = l->options->least ? calloc((size_t)a->n_members, 1) : NULL;
    int32_t n = stays ? find_fewer(l, stays) : 0;
    say_how(l, r, how, sizeof how);
    if (n) {
        launch_server_ended(l, r, 0, why);
        tool_say(SAY_WARNING, "rank %d %s, and nobody takes its place: %d of %d ranks %s on (recovery %d)", (int)r, how,
                 (int)n, (int)a->n_members, n == 1 ? "goes" : "go", (int)a->generation + 1);
        n = form(l, n, stays);
    } else if (stays)
        tool_say(SAY_ERROR, "rank %d %s, and no smaller group of %d rank%s or more can go on", (int)r, how,
                 (int)l->options->least, l->options->least == 1 ? "" : "s");
    free(stays);
    return n != 0;
}

/* ---- */

int launch_survives(launch *l, int32_t r, const char *why) {
    launch_recovery *a = &l->recovery;
    if (!may_go_on(l, r))
        return 0;
    int again = !l->ranks[r].signal; /* it replaced a lost rank and ended itself */
    if (!a->members && (again || a->replaced < l->options->replacements))
        return replace(l, r, why);
    return go_on_with_fewer(l, r, why);
}

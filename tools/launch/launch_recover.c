/* SPDX-License-Identifier: BSD-3-Clause */
/* A lost rank is replaced while the others wait for it in tess_recover: each time with a server of its own, so that
 * nothing that the old group said is left. */
#include <string.h>

#include "core/base/log.h"
#include "core/control/wire.h"
#include "launch_internal.h"

#define HOUR_NS (3600 * 1000000000ll)

/* A rank that has ended well will not come back: the work is done, or was never shared. */
static int anyone_done(const launch *l) {
    for (int32_t r = 0; r < l->options->ranks; r++)
        if (l->ranks[r].started && !l->ranks[r].pid && !l->ranks[r].failed)
            return 1;
    return 0;
}

/* One that came in another's place and ended by itself because a third was lost before the group was whole. */
static int broke_off(const launch *l, int32_t r) {
    const launch_rank *rank = &l->ranks[r];
    int joined = tess__kv_server_joined(l->server, l->options->first_rank + r);
    if (!rank->generation || !joined || rank->generation < l->recovery.generation)
        return rank->generation && !joined;
    int32_t lost = tess__kv_server_culprit(l->server) - l->options->first_rank;
    return lost >= 0 && lost != r && !tess__kv_server_ready(l->server) && (l->ranks[lost].pid || l->ranks[lost].signal);
}

static int may_replace(launch *l, int32_t r) {
    launch_recovery *a = &l->recovery;
    if (!l->server || launch_several_hosts(l) || l->stop_ns || l->interrupted || anyone_done(l) ||
        (!l->ranks[r].signal && !broke_off(l, r)))
        return 0;
    if (tess__kv_server_ready(l->server))
        a->attempts = 0;
    else if (!a->generation || a->attempts == LAUNCH_MOST_ATTEMPTS)
        return 0;
    int64_t *slot = &a->recent_ns[a->generation % LAUNCH_RECOVERIES_PER_HOUR], now_ns = tess__now_ns();
    if (a->generation >= LAUNCH_RECOVERIES_PER_HOUR && now_ns - *slot < HOUR_NS) {
        tess__log(TESS_LOG_ERROR, "%d ranks were lost within an hour: given up", LAUNCH_RECOVERIES_PER_HOUR);
        return 0;
    }
    *slot = now_ns;
    return 1;
}

/* One that has not yet come to the group that forms needs no other group. */
static int needs_new_group(const launch *l, int32_t r) {
    return !l->recovery.generation || tess__kv_server_ready(l->server) ||
           tess__kv_server_joined(l->server, l->options->first_rank + r);
}

int launch_replace(launch *l, int32_t r, const char *why) {
    if (!may_replace(l, r))
        return 0;
    l->recovery.attempts++;
    if (needs_new_group(l, r)) {
        tess__kv_server_rank_ended(l->server, l->options->first_rank + r, 0, why);
        l->recovery.generation++;
        if (launch_server_renew(l) != 0)
            return 0;
    }
    const launch_rank *rank = &l->ranks[r];
    if (rank->signal)
        tess__log(TESS_LOG_WARNING,
                  "rank %d was killed by signal %d (%s): another process takes its place (recovery %d)", (int)r,
                  rank->signal, strsignal(rank->signal), (int)l->recovery.generation);
    launch_output_end(l, r);
    return launch_start_again(l, r) == 0;
}

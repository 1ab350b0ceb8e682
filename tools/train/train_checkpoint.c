/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints of a training run: where it resumes, what it saves and when, and what a signal asks for. Data, schedule
 * and random numbers depend on step and seed only, so the step is enough to resume them. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/support/say.h"
#include "tools/support/options.h"
#include <tessera/tessera.h>
#include "core/checkpoint/saved.h"
#include "core/checkpoint/store.h"
#include "core/layout/setup.h"
#include "tools/support/settings.h"
#include "train.h"

typedef struct {
    char text[TESS_CHECKPOINT_BYTES];
} run_identity;

/* Adds config.json for `ckpt export` if it fits. */
static void identify(const train_run *r, run_identity *out) {
    memset(out, 0, sizeof *out);
    char identity[TRAIN_IDENTITY_BYTES], best[TRAIN_BEST_BYTES];
    train_identity_saved(r, identity);
    train_best_words(r, best);
    size_t used = (size_t)snprintf(out->text, sizeof out->text, "%s%s", identity, best);
    if (r->hf_config && strlen(r->hf_config) + used + sizeof " config=" <= sizeof out->text)
        snprintf(out->text + used, sizeof out->text - used, " config=%s", r->hf_config);
}

/* ---- going on ---------------------------------------------------------------------------------------- */
tess_status train_resume_load(train_run *r) {
    run_identity was = { "" };
    tess_checkpoint_load_options o = {
        .struct_size = sizeof o, .path = r->s.resume, .common = was.text, .common_bytes = sizeof was.text - 1
    };
    o.base = (const char *const *)r->base;
    tess_checkpoint_info info = { .struct_size = sizeof info };
    tess_status status = tess_checkpoint_load(r->t, &o, &info);
    if (status == TESS_E_DATA && r->rank != 0)
        return tess_fail(status, "%s", ""); /* rank 0 prints the message */
    if (status != TESS_OK)
        return status;
    train_identity_compare(r, was.text);
    train_best_take(r, was.text);
    r->steps_done = r->first_step = r->group_step = info.step;
    if (r->rank == 0 && !r->s.quiet)
        tool_say(SAY_INFO, "going on after step %" PRIu64 " of %" PRIu64, info.step, r->task.steps);
    return TESS_OK;
}

/* Reads the manifest from which a run will most likely resume. Returns 0 if there is none. */
static int peek(const char *resume, tess__manifest *out) {
    char path[PATH_MAX];
    uint64_t *steps = NULL, n = 0;
    const tess__disk *d = &tess__disk_real;
    int found = 0;
    if (tess__is_checkpoint(d, resume))
        return tess__saved_manifest(d, resume, out) == TESS_OK;
    if (tess__store_line(d, resume, &steps, &n) != TESS_OK)
        return 0;
    while (!found && n)
        found = tess__step_dir(resume, steps[--n], path) == TESS_OK && tess__saved_manifest(d, path, out) == TESS_OK;
    free(steps);
    return found;
}

static int has_saved(const char *dir) {
    uint64_t *steps = NULL, n = 0;
    tess_status status = tess__store_list(&tess__disk_real, dir, &steps, &n);
    free(steps);
    return status == TESS_OK && n;
}

tess_status train_restart_resume(train_settings *s) {
    int begun;
    TRY(train_restart_begun(&begun));
    if (begun && s->save && has_saved(s->save))
        s->resume = s->save;
    return TESS_OK;
}

static tess_status set_number(const char *key, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    return tool_settings_set(key, text);
}

/* Returns the microbatches of a step on the first life's ranks. */
static uint64_t microbatches_of(const train_settings *s, uint64_t first) {
    tess__manifest m;
    uint64_t all = first * (uint64_t)s->accum;
    int own = train_restarts() && s->resume == s->save; /* an earlier life of this run saved the checkpoint */
    if (!train_resumes_checkpoint(s) || !peek(s->resume, &m))
        return all; /* loading reports the error */
    if (own || m.ranks != first)
        all = m.microbatches;
    tess__manifest_free(&m);
    return all;
}

enum { LIST_BYTES = 120 };
/* "1, 2, 4 or 8": the numbers of ranks that can share so many microbatches. */
static void sharing_ranks(uint64_t all, int deterministic, char out[LIST_BYTES]) {
    uint64_t last = 0, accum;
    int each = 0;
    size_t n = 0;
    for (uint64_t w = 1; w <= all && n + 30 < LIST_BYTES; w++) {
        if (!tess__divide_microbatches(all, w, deterministic, &each, &accum))
            continue;
        if (last)
            n += (size_t)snprintf(out + n, LIST_BYTES - n, "%s%" PRIu64, n ? ", " : "", last);
        last = w;
    }
    snprintf(out + n, LIST_BYTES - n, "%s%" PRIu64 " rank%s", n ? " or " : "", last, all == 1 ? "" : "s");
}

static tess_status fail_to_divide(const train_settings *s, uint64_t all, int32_t ranks) {
    const char *how = s->deterministic ? "with the same bits" : "evenly";
    char take[LIST_BYTES];
    sharing_ranks(all, s->deterministic != 0, take);
    if (train_restarts())
        return tess_fail(TESS_E_INVALID,
                         "a restart keeps the %" PRIu64 " microbatches of a step, which %d ranks cannot share %s: "
                         "it takes %s",
                         all, (int)ranks, how, take);
    return tess_fail(TESS_E_INVALID,
                     "--resume %s: its steps have %" PRIu64 " microbatches, which %d ranks cannot share %s: take %s",
                     s->resume, all, (int)ranks, how, take);
}

tess_status train_resume_adapt(train_settings *s, int32_t ranks) {
    uint64_t w = (uint64_t)ranks, accum = 0;
    uint64_t all = microbatches_of(s, (uint64_t)train_first_ranks(ranks));
    if (all == w * (uint64_t)s->accum)
        return TESS_OK;
    int sync_each = (int)s->sync_each;
    if (!tess__divide_microbatches(all, w, s->deterministic != 0, &sync_each, &accum))
        return s->deterministic || train_restarts() ? fail_to_divide(s, all, ranks) : TESS_OK;
    tool_say(SAY_INFO, "accum is %" PRIu64 ": a step keeps its %" PRIu64 " microbatches on %d rank%s", accum, all,
             (int)ranks, ranks == 1 ? "" : "s");
    s->accum = (int64_t)accum;
    TRY(set_number("accum", s->accum));
    if (sync_each == (int)s->sync_each)
        return TESS_OK;
    s->sync_each = sync_each;
    return tool_settings_set("sync", sync_each ? "each" : "end");
}

/* ---- saving ------------------------------------------------------------------------------------------ */
static volatile sig_atomic_t asked_to_end;

static void on_signal(int signal) {
    asked_to_end = signal;
}

static tess_status check_folder(const train_run *r) {
    struct stat st;
    if (mkdir(r->s.save, 0777) != 0 && (errno != EEXIST || stat(r->s.save, &st) != 0 || !S_ISDIR(st.st_mode)))
        return tess_fail(TESS_E_DATA, "--save %s: cannot be made a directory: %s", r->s.save, strerror(errno));
    if (access(r->s.save, W_OK | X_OK) != 0)
        return tess_fail(TESS_E_DATA, "--save %s: cannot be written: %s", r->s.save, strerror(errno));
    return TESS_OK;
}

/* Rejects a directory that is unusable, or whose checkpoints the run would ignore, before training. A process that
 * replaces a lost rank skips this, because the others have done it. */
static tess_status take_folder(const train_run *r) {
    tess_checkpoint_options o = { .struct_size = sizeof o, .flags = TESS_CHECKPOINT_PREPARE, .dir = r->s.save };
    o.base = (const char *const *)r->base;
    tess_status status = r->joins ? TESS_OK : tess_checkpoint_save(r->t, &o);
    return status == TESS_E_DATA && r->rank != 0 ? tess_fail(status, "%s", "") : status; /* rank 0 prints the message */
}

tess_status train_save_open(train_run *r) {
    struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    if (!r->s.save)
        return TESS_OK;
    TRY(train_agree(r, r->rank == 0 ? check_folder(r) : TESS_OK));
    TRY(take_folder(r));
    train_lives_begin();
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    return TESS_OK;
}

int train_asked_to_end(const train_run *r) {
    return r->s.save ? asked_to_end : 0;
}

/* A failure of the disk does not end the run, because earlier checkpoints remain. */
static tess_status note_outcome(train_run *r, tess_status status) {
    r->save_failed = status;
    if (status != TESS_E_DATA)
        return status;
    if (r->rank == 0)
        tool_say(SAY_WARNING, "no checkpoint: %s; training goes on", tess_last_error());
    return TESS_OK;
}

static tess_status finish_save(train_run *r) {
    tess_checkpoint_info info = { .struct_size = sizeof info };
    if (!r->saving)
        return TESS_OK;
    r->saving = 0;
    tess_status status = tess_checkpoint_wait(r->t, &info);
    if (status == TESS_OK)
        train_output_checkpoint(r, &info);
    return note_outcome(r, status);
}

tess_status train_save(train_run *r) {
    run_identity identity;
    identify(r, &identity);
    tess_checkpoint_options o = { .struct_size = sizeof o,
                                  .dir = r->s.save,
                                  .keep = r->s.keep,
                                  .common = identity.text,
                                  .common_bytes = strlen(identity.text),
                                  .score = train_best_score(r),
                                  .base = (const char *const *)r->base };
    TRY(finish_save(r)); /* ends the previous save */
    tess_status status = tess_checkpoint_save(r->t, &o);
    r->saving = status == TESS_OK;
    return note_outcome(r, status);
}

tess_status train_save_finish(train_run *r) {
    return finish_save(r);
}

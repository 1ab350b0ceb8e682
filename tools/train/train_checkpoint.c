/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints of a training run: where it goes on, what it saves and when, and what a signal asks for. Data, schedule
 * and random numbers are functions of the step and the seed, so that the step is their place. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/log.h"
#include "core/base/options.h"
#include <tessera/tessera.h>
#include "core/checkpoint/saved.h"
#include "core/checkpoint/store.h"
#include "core/plan/setup.h"
#include "tools/support/settings.h"
#include "train.h"

/* ---- what a run must have in common with the one that it goes on with -------------------------------- */
typedef struct {
    char text[TESS_CHECKPOINT_BYTES];
} run_identity;

static void identify(const train_run *r, run_identity *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->text, sizeof out->text,
             "model=%s seed=%" PRIu64 " batch=%" PRId64 " microbatches=%" PRId64 " steps=%" PRIu64 " deterministic=%d",
             r->s.model, r->s.seed, r->s.batch, (int64_t)r->ranks * r->s.accum, r->task.steps, r->s.deterministic);
    size_t used = strlen(out->text);
    if (r->hf_config && strlen(r->hf_config) + used + sizeof " config=" <= sizeof out->text)
        snprintf(out->text + used, sizeof out->text - used, " config=%s", r->hf_config); /* for ckpt export */
}

/* A word that differs: the run goes on, but not to the bits of an unbroken one. Of microbatches loading says it. */
static void compare_identity(const train_run *r, char *saved) {
    run_identity mine;
    char *at_saved = NULL, *at_mine = NULL;
    identify(r, &mine);
    const char *was = strtok_r(saved, " ", &at_saved), *is = strtok_r(mine.text, " ", &at_mine);
    for (; was && is && r->rank == 0; was = strtok_r(NULL, " ", &at_saved), is = strtok_r(NULL, " ", &at_mine))
        if (strcmp(was, is) != 0 && strncmp(is, "steps=", 6) != 0 && strncmp(is, "microbatches=", 13) != 0)
            tess__log(TESS_LOG_WARNING, "--resume: this run has %s, the one that saved had %s: other bits from here on",
                      is, was);
}

/* ---- going on ---------------------------------------------------------------------------------------- */
tess_status train_resume_load(train_run *r) {
    run_identity was = { "" };
    tess_checkpoint_load_options o = {
        .struct_size = sizeof o, .path = r->s.resume, .common = was.text, .common_bytes = sizeof was.text - 1
    };
    tess_checkpoint_info info = { .struct_size = sizeof info };
    tess_status status = tess_checkpoint_load(r->t, &o, &info);
    if (status == TESS_E_DATA && r->rank != 0)
        return tess_fail(status, "%s", ""); /* rank 0 says it */
    if (status != TESS_OK)
        return status;
    compare_identity(r, was.text);
    r->steps_done = r->first_step = r->group_step = info.step;
    if (r->rank == 0 && !r->s.quiet)
        tess__log(TESS_LOG_INFO, "going on after step %" PRIu64 " of %" PRIu64, info.step, r->task.steps);
    return TESS_OK;
}

/* The manifest that a run will most likely go on from; 0 when there is none to read. */
static int peek(const char *resume, tess__manifest *out) {
    char path[PATH_MAX];
    uint64_t *steps = NULL, n = 0;
    const tess__disk *d = &tess__disk_real;
    int found = 0;
    if (tess__is_checkpoint(d, resume))
        return tess__saved_manifest(d, resume, out) == TESS_OK;
    if (tess__store_list(d, resume, &steps, &n) != TESS_OK)
        return 0;
    while (!found && n)
        found = tess__step_dir(resume, steps[--n], path) == TESS_OK && tess__saved_manifest(d, path, out) == TESS_OK;
    free(steps);
    return found;
}

static tess_status set_number(const char *key, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    return tool_settings_set(key, text);
}

tess_status train_resume_adapt(train_settings *s, int32_t ranks) {
    tess__manifest m;
    if (!train_resumes_checkpoint(s) || !peek(s->resume, &m))
        return TESS_OK; /* loading says what is wrong */
    uint64_t all = m.microbatches, was = m.ranks, w = (uint64_t)ranks;
    tess__manifest_free(&m);
    if (was == w || all == w * (uint64_t)s->accum)
        return TESS_OK;
    uint64_t accum = 0;
    int sync_each = (int)s->sync_each;
    if (!tess__divide_microbatches(all, w, s->deterministic != 0, &sync_each, &accum)) {
        if (!s->deterministic)
            return TESS_OK;
        return tess_fail(TESS_E_INVALID,
                         "--resume %s: its steps have %" PRIu64 " microbatches, which %d ranks do not divide into "
                         "aligned subtrees: take %" PRIu64 " ranks, or another divisor with a power of two",
                         s->resume, all, (int)ranks, was);
    }
    tess__log(TESS_LOG_INFO, "accum is %" PRIu64 ": a step keeps its %" PRIu64 " microbatches on %d rank%s", accum, all,
              (int)ranks, ranks == 1 ? "" : "s");
    s->accum = (int64_t)accum;
    tess_status status = set_number("accum", s->accum);
    if (status != TESS_OK || sync_each == (int)s->sync_each)
        return status;
    s->sync_each = sync_each;
    return tool_settings_set("sync", sync_each ? "each" : "end");
}

/* ---- saving ------------------------------------------------------------------------------------------ */
static volatile sig_atomic_t asked_to_end;

static void on_signal(int signal) {
    asked_to_end = signal;
}

/* Removes the remains of earlier runs, and finds a directory that cannot be used before training. */
static tess_status try_store(const train_run *r) {
    tess__store store;
    struct stat st;
    if (mkdir(r->s.save, 0777) != 0 && (errno != EEXIST || stat(r->s.save, &st) != 0 || !S_ISDIR(st.st_mode)))
        return tess_fail(TESS_E_DATA, "--save %s: cannot be made a directory: %s", r->s.save, strerror(errno));
    if (access(r->s.save, W_OK | X_OK) != 0)
        return tess_fail(TESS_E_DATA, "--save %s: cannot be written: %s", r->s.save, strerror(errno));
    tess_status status = tess__store_open(&tess__disk_real, r->s.save, &store);
    if (status == TESS_OK)
        tess__store_close(&store);
    return status;
}

tess_status train_save_open(train_run *r) {
    struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    if (!r->s.save)
        return TESS_OK;
    tess_status status = train_agree(r, r->rank == 0 ? try_store(r) : TESS_OK);
    if (status != TESS_OK)
        return status;
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    return TESS_OK;
}

int train_asked_to_end(const train_run *r) {
    return r->s.save ? asked_to_end : 0;
}

/* The disk's refusals do not end the run: the checkpoints before stand. */
static tess_status note_outcome(train_run *r, tess_status status) {
    r->save_failed = status;
    if (status != TESS_E_DATA)
        return status;
    if (r->rank == 0)
        tess__log(TESS_LOG_WARNING, "no checkpoint: %s; training goes on", tess_last_error());
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
                                  .common_bytes = strlen(identity.text) };
    tess_status status = finish_save(r); /* of the one before */
    if (status != TESS_OK)
        return status;
    status = tess_checkpoint_save(r->t, &o);
    r->saving = status == TESS_OK;
    return note_outcome(r, status);
}

tess_status train_save_finish(train_run *r) {
    return finish_save(r);
}

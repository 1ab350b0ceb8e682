/* SPDX-License-Identifier: BSD-3-Clause */
/* One rank's run: opens the engine, declares and shards the model, trains, evaluates, saves, closes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/command_line.h"
#include "tools/support/say.h"
#include "tools/plan/hf_config.h"
#include "tools/plan/model_run.h"
#include "tools/support/world.h"
#include "tools/support/hf_names.h"
#include <tessera/inspect.h>
#include "hf_weights.h"
#include "train_lora.h"

/* ---- evaluation -------------------------------------------------------------------------------- */
static tess_status evaluate(train_run *r) {
    if (r->task.eval_batches == 0)
        return TESS_OK;
    TRY(train_evaluate(r, &r->eval_loss, &r->accuracy));
    train_output_eval(r, r->eval_loss, r->accuracy);
    train_watch_eval(r, r->eval_loss, r->accuracy);
    train_best_note(r);
    return TESS_OK;
}

/* ---- steps -------------------------------------------------------------------------------------- */
/* True if this step is followed by an evaluation, a mirror image or a checkpoint. All ranks agree. */
static int is_kept(const train_run *r, uint64_t done) {
    return (r->task.eval_every && done % r->task.eval_every == 0) || (r->mirror && done % (uint64_t)r->mirror == 0) ||
           (r->s.save && r->s.save_every && done % r->s.save_every == 0);
}

static int evaluates(const train_run *r, uint64_t done) {
    return !r->s.replay && (done == r->task.steps || (r->task.eval_every && done % r->task.eval_every == 0));
}

/* Call it after the step's evaluation, if there is one. */
static int saves(const train_run *r, uint64_t done) {
    int is_end = done == r->task.steps || r->interrupted || train_best_stops(r);
    return r->s.save &&
           (is_end || (r->s.save_every && done % r->s.save_every == 0) || (r->s.keep_best && train_best_is_now(r)));
}

/* A replay keeps the schedule of the whole run and ends early. */
static uint64_t last_step(const train_run *r) {
    return r->s.replay && r->s.replay < r->task.steps ? r->s.replay : r->task.steps;
}

static tess_status train_loop(train_run *r) {
    if (!r->s.replay && (r->steps_done >= r->task.steps || train_best_stops(r)))
        TRY(evaluate(r));
    while (r->steps_done < last_step(r) && !r->interrupted && !train_best_stops(r)) {
        TRY(train_ledger_begin(r));
        TRY(train_step(r));
        uint64_t done = r->steps_done;
        if (done == last_step(r) || r->interrupted || is_kept(r, done))
            TRY(train_step_settle(r));
        TRY(train_ledger_end(r));
        if (evaluates(r, done))
            TRY(evaluate(r));
        if (saves(r, done))
            TRY(train_save(r));
    }
    if (train_best_stops(r))
        train_output_patience(r);
    return train_save_finish(r);
}

/* ---- setting up -------------------------------------------------------------------------------- */
/* Makes the model with the config.json that an export or a checkpoint will have. */
static tess_status make_model(train_run *r) {
    TRY(model_run_make(&r->s, 0, &r->model_options, &r->m));
    if (!hf_knows(r->s.model))
        return TESS_OK;
    return hf_config_make(r->m, r->s.folder ? r->s.folder : r->s.config, &r->hf_config);
}

static tess_status make_batch(train_run *r) {
    r->batch = aligned_alloc(64, ops_align(r->m->desc.input_bytes));
    r->result = aligned_alloc(64, ops_align(r->m->desc.result_bytes));
    if (!r->batch || !r->result)
        return tess_fail(TESS_E_NOMEM, "no memory for a batch of %llu bytes",
                         (unsigned long long)r->m->desc.input_bytes);
    memset(r->batch, 0, r->m->desc.input_bytes);
    memset(r->result, 0, r->m->desc.result_bytes); /* a run without steps reports zeros */
    return TESS_OK;
}

static int32_t mirror_of(const train_run *r) {
    tess_info info = { .struct_size = sizeof info };
    return tess_info_get(r->t, &info) == TESS_OK ? info.mirror : 0;
}

static tess_status open_engine(train_run *r) {
    tess_status status = model_run_open(&r->s, 0, &r->planner, &r->model_options, &r->m, &r->t);
    if (!r->t)
        return status;
    r->rank = tess_rank(r->t);
    r->ranks = tess_ranks(r->t);
    r->joins = train_joins(r);
    r->mirror = mirror_of(r);
    r->optimizer = (tess_optimizer_options){ .struct_size = sizeof r->optimizer,
                                             .beta1 = (float)r->s.beta1,
                                             .beta2 = (float)r->s.beta2,
                                             .eps = (float)r->s.eps,
                                             .momentum = (float)r->s.momentum,
                                             .clip_norm = (float)r->s.clip };
    return status == TESS_OK ? train_agree(r, model_start(r->t, r->m)) : status;
}

static tess_status shard_from_folder(train_run *r, const char *dir) {
    hf_weights *folder = NULL;
    tess_status status = train_agree(r, hf_weights_open(dir, r->m, &folder));
    if (status == TESS_OK)
        status = r->s.lora ? train_lora_shard(r, hf_weights_fill, folder) : tess_shard(r->t, hf_weights_fill, folder);
    hf_weights_close(folder);
    return status;
}

static tess_status shard(train_run *r) {
    void *resume = NULL;
    TRY(model_declare(r->t, r->m));
    if (r->s.lora && r->s.folder)
        TRY(train_agree(r, hf_weights_files(r->s.folder, &r->base)));
    if (r->joins) /* another rank sends its shard */
        return tess_shard(r->t, NULL, NULL);
    if (train_resumes_checkpoint(&r->s)) {
        TRY(r->base ? shard_from_folder(r, r->s.folder) : tess_shard(r->t, NULL, NULL));
        return train_resume_load(r);
    }
    if (r->s.lora && r->s.resume)
        return tess_fail(TESS_E_DATA, "%s: no checkpoint; a folder of adapters is given with --lora DIR", r->s.resume);
    if (r->s.lora && !r->s.folder)
        return train_lora_shard(r, model_fill, r->m);
    if (hf_knows(r->s.model) && (r->s.resume || r->s.folder))
        return shard_from_folder(r, r->s.resume ? r->s.resume : r->s.folder);
    if (!r->s.resume)
        return tess_shard(r->t, model_fill, r->m);
    tess_status status = train_agree(r, train_resume_open(r, r->s.resume, &resume));
    if (status == TESS_OK)
        status = tess_shard(r->t, train_resume_fill, resume);
    train_resume_close(resume);
    return status;
}

static tess_status open_task(train_run *r) {
    TRY(r->ops->open(r));
    if (r->s.eval_every)
        r->task.eval_every = r->s.eval_every;
    train_schedule_make(r);
    return train_sample_check(r);
}

/* Trains from the current step to the end and recovers from lost ranks. */
static tess_status train_to_end(train_run *r) {
    TRY(train_loop(r));
    if (r->interrupted || r->s.replay)
        return TESS_OK;
    if (r->ops->finish)
        TRY(r->ops->finish(r));
    if (r->s.export_to)
        TRY(r->s.lora && !r->s.merge ? train_lora_export(r) : train_export(r));
    TRY(train_digest(r));
    TRY(train_spans_finish(r));
    return train_ranks(r);
}

/* The ledger's words also say where a batch has its samples, so that bisect can name one: first byte, bytes of a
 * sample, bytes of a value. */
static tess_status name_run(train_run *r) {
    char words[sizeof r->identity + 80];
    int n = snprintf(words, sizeof words, "%s", r->identity);
    if (r->task.sample_bytes)
        snprintf(words + n, sizeof words - (size_t)n, " samples=%zu/%llu/%u", sizeof(model_batch),
                 (unsigned long long)r->task.sample_bytes, r->task.value_bytes);
    return tess_proof_words(r->t, words);
}

/* Runs all that precedes the first step. Ranks agree after each part that may fail on one of them alone. */
static tess_status begin(train_run *r) {
    tool_world world = { .ranks = 1 };
    TRY(train_restart_resume(&r->s));
    TRY(tool_world_read(&world));
    TRY(train_resume_adapt(&r->s, world.ranks));
    TRY(make_model(r));
    TRY(make_batch(r));
    TRY(open_engine(r));
    TRY(train_agree(r, train_output_open(r)));
    TRY(train_agree(r, open_task(r)));
    TRY(train_identity_agree(r));
    TRY(name_run(r));
    TRY(train_agree(r, train_watch_open(r)));
    TRY(shard(r));
    TRY(train_feed_open(r));
    r->is_late = r->feed != NULL;
    TRY(train_save_open(r));
    train_lives_open(r);
    train_output_start(r);
    if (!r->joins)
        train_watch_begin(r);
    return train_spans_start(r);
}

static tess_status recover_and_go_on(train_run *r) {
    TRY(train_recover(r));
    return train_to_end(r);
}

static tess_status run(train_run *r) {
    TRY(begin(r));
    tess_status status = recover_and_go_on(r);
    while (status == TESS_E_LOST)
        status = recover_and_go_on(r);
    if (status != TESS_OK || r->interrupted || r->s.replay)
        return status;
    if (r->rank == 0)
        TRY(train_output_finish(r));
    return train_watch_finish(r);
}

/* The plan prints no warnings, because rank 0 repeats them. */
tess_status train_plan(const train_settings *settings, int32_t ranks) {
    tess *t = NULL;
    model *m = NULL;
    int32_t least = tool_say_at_most(SAY_ERROR);
    tess_status status = model_run_plan(settings, ranks, &t, &m);
    tool_say_at_most(least);
    tess_close(t);
    model_destroy(m);
    return status;
}

/* Models that are not listed train on tokens. */
static const train_task_ops *task_of(const char *name) {
    static const struct {
        const char *name;
        const train_task_ops *ops;
    } tasks[] = {
        { "mnist", &train_mnist }, { "gpt", &train_gpt }, { "convbn", &train_convbn }, { "linear", &train_linear }
    };
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++)
        if (strcmp(tasks[i].name, name) == 0)
            return tasks[i].ops;
    return &train_lm;
}

int train_rank(const train_settings *settings) {
    train_run r = { .s = *settings,
                    .ops = task_of(settings->model),
                    .loss = NAN,
                    .accuracy = NAN,
                    .eval_loss = NAN,
                    .watch = { .board = { .file = -1 } } };
    tess_status status = run(&r);
    int code = tess_exit_code(status);
    train_output_close(&r);
    train_lives_close(&r);
    train_ledger_drop(&r);
    train_spans_close(&r);
    train_watch_close(&r);
    int others_say_it = status == TESS_E_NOT_FINITE && r.rank != 0;  /* rank 0 has the failure too, or learns of it */
    if (status != TESS_OK && !others_say_it && tess_last_error()[0]) /* "" if another rank prints the message */
        code = tool_report(status);
    if (code == TOOL_OK)
        code = r.interrupted ? 128 + r.interrupted : tess_exit_code(r.save_failed);
    train_feed_close(&r);
    r.ops->close(&r);
    tess_status closed = tess_close(r.t);
    if (status == TESS_OK && closed != TESS_OK)
        code = tool_report(closed);
    model_destroy(r.m);
    free(r.batch);
    free(r.result);
    hf_weights_forget(r.base);
    free(r.hf_config);
    return code;
}

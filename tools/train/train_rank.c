/* SPDX-License-Identifier: BSD-3-Clause */
/* One rank's run: opens the engine, declares and shards the model, trains, evaluates, saves, closes. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/alloc_count.h"
#include "tools/support/command_line.h"
#include "core/control/control.h"
#include "core/base/log.h"
#include "tools/plan/hf_config.h"
#include "tools/plan/model_run.h"
#include "tools/support/hf_names.h"
#include <tessera/tessera.h>
#include "hf_weights.h"
#include "train.h"

/* ---- evaluation -------------------------------------------------------------------------------- */
static tess_status evaluate(train_run *r) {
    if (r->task.eval_batches == 0)
        return TESS_OK;
    tess_status status = train_evaluate(r, &r->eval_loss, &r->accuracy);
    if (status == TESS_OK)
        train_output_eval(r, r->eval_loss, r->accuracy);
    if (status == TESS_OK)
        train_watch_eval(r, r->eval_loss);
    return status;
}

/* ---- a step ------------------------------------------------------------------------------------ */
static void add_loss(const train_run *r, double *loss) {
    *loss += r->result->loss / (double)r->result->count / (double)r->s.accum;
}

/* The step goes along with the last microbatch: without clipping each unit then steps as its gradient arrives. A late
 * result is the microbatch's before: of the first, the last one's of the step before. */
static tess_status run_microbatches(train_run *r, double *loss) {
    int32_t accum = (int32_t)r->s.accum;
    tess_status status = TESS_OK;
    for (int32_t k = 0; k < accum && status == TESS_OK; k++) {
        train_feed_next(r, r->steps_done, k);
        tess_run_options run = { .struct_size = sizeof run, .kind = TESS_PASS_TRAIN, .batch = r->batch };
        run.result = r->result;
        run.microbatch = tool_sampler_slot(&r->task.sampler, r->rank, k);
        run.step = k == accum - 1 ? &r->optimizer : NULL;
        double began = tool_seconds();
        status = r->is_late ? model_run_late(r->t, r->m, &run) : model_run(r->t, r->m, &run);
        r->run_seconds += tool_seconds() - began;
        if (status == TESS_OK && r->is_late && k == 0 && r->late.started)
            add_loss(r, &r->late.loss);
        if (status == TESS_OK && (!r->is_late || k > 0))
            add_loss(r, loss);
    }
    return status;
}

/* steps_done has grown by it. */
static tess_status step_is_over(train_run *r, const train_step_times *of, double loss) {
    double now = tool_seconds(), took = now - (r->over > of->started ? r->over : of->started);
    r->over = now;
    r->seconds += took;
    r->loss = loss;
    train_lives_step(r);
    train_watch_step(r, of->rate, took, train_output_shows(r));
    train_output_step(r, of->rate, took);
    return train_spans_step(r, of->run_seconds, took);
}

/* The loss of a step comes while the device works on the next one. `r->result` is then of the earlier one. */
static tess_status settle_late(train_run *r) {
    train_step_times of = r->late;
    if (!of.started)
        return TESS_OK;
    r->late.started = 0;
    return step_is_over(r, &of, of.loss);
}

/* Before anything but the next step. */
static tess_status settle(train_run *r) {
    tess_status status = r->late.started ? tess_run_wait(r->t) : TESS_OK;
    if (status == TESS_OK && r->late.started)
        add_loss(r, &r->late.loss);
    return status == TESS_OK ? settle_late(r) : status;
}

static tess_status train_step(train_run *r) {
    double loss = 0, ran = r->run_seconds;
    train_step_times of = { .rate = r->ops->rate(r, r->steps_done), .started = tool_seconds() };
    r->optimizer.lr = (float)of.rate;
    if (r->steps_done > r->group_step)
        tool_alloc_window_begin();
    tess_status status = run_microbatches(r, &loss);
    double shared[2] = { loss, train_asked_to_end(r) }; /* what one rank is asked, all do */
    if (status == TESS_OK)
        status = tess_all_reduce(r->t, shared, 2, TESS_F64, TESS_AVG);
    tool_alloc_window_end();
    if (status == TESS_OK)
        status = settle_late(r);
    if (status != TESS_OK)
        return status;
    if (shared[1] > 0)
        r->interrupted = train_asked_to_end(r) ? train_asked_to_end(r) : SIGTERM;
    of.run_seconds = r->run_seconds - ran;
    r->steps_done++;
    of.loss = loss;
    if (!r->is_late)
        return step_is_over(r, &of, shared[0]);
    r->late = of;
    return TESS_OK;
}

/* Something looks at the run between this step and the next. */
static int is_watched(const train_run *r, uint64_t done) {
    return r->ledger.points || (r->task.eval_every && done % r->task.eval_every == 0) ||
           (r->s.save && r->s.save_every && done % r->s.save_every == 0);
}

static tess_status train_loop(train_run *r) {
    tess_status status = TESS_OK;
    if (r->steps_done >= r->task.steps)
        status = evaluate(r);
    while (status == TESS_OK && r->steps_done < r->task.steps && !r->interrupted) {
        status = train_ledger_begin(r);
        if (status == TESS_OK)
            status = train_step(r);
        uint64_t done = r->steps_done;
        int last = done == r->task.steps;
        if (status == TESS_OK && (last || r->interrupted || is_watched(r, done)))
            status = settle(r);
        if (status == TESS_OK)
            status = train_ledger_end(r);
        if (status == TESS_OK && (last || (r->task.eval_every && done % r->task.eval_every == 0)))
            status = evaluate(r);
        if (status == TESS_OK && r->s.save &&
            (last || r->interrupted || (r->s.save_every && done % r->s.save_every == 0)))
            status = train_save(r);
    }
    return status == TESS_OK ? train_save_finish(r) : status;
}

/* ---- setting up -------------------------------------------------------------------------------- */
/* config.json, as an export or a checkpoint will have it. */
static tess_status make_model(train_run *r) {
    tess_status status = model_run_make(&r->s, 0, &r->model_options, &r->m);
    if (status != TESS_OK || !hf_knows(r->s.model))
        return status;
    return hf_config_make(r->m, r->s.folder ? r->s.folder : r->s.config, &r->hf_config);
}

static tess_status make_batch(train_run *r) {
    r->batch = aligned_alloc(64, ops_align(r->m->desc.input_bytes));
    r->result = aligned_alloc(64, ops_align(r->m->desc.result_bytes));
    if (!r->batch || !r->result)
        return tess_fail(TESS_E_NOMEM, "no memory for a batch of %llu bytes",
                         (unsigned long long)r->m->desc.input_bytes);
    memset(r->batch, 0, r->m->desc.input_bytes);
    memset(r->result, 0, r->m->desc.result_bytes); /* of no step, it says nothing */
    return TESS_OK;
}

static tess_status open_engine(train_run *r) {
    tess_status status = model_run_open(&r->s, 0, &r->planner, &r->model_options, &r->m, &r->t);
    if (!r->t)
        return status;
    r->rank = tess_rank(r->t);
    r->ranks = tess_ranks(r->t);
    r->joins = train_joins(r);
    r->groups[0] = (tess_optimizer_group){ (float)r->s.weight_decay, 1 };
    r->groups[1] = (tess_optimizer_group){ 0, 1 }; /* biases and normalisations do not decay */
    r->optimizer = (tess_optimizer_options){ .struct_size = sizeof r->optimizer,
                                             .beta2 = (float)r->s.beta2,
                                             .momentum = (float)r->s.momentum,
                                             .clip_norm = (float)r->s.clip,
                                             .groups = r->groups,
                                             .n_groups = r->m && r->m->t->optimizer_groups > 1 ? 2 : 1 };
    return status == TESS_OK ? train_agree(r, model_start(r->t, r->m)) : status;
}

static tess_status shard_from_folder(train_run *r, const char *dir) {
    hf_weights *folder = NULL;
    tess_status status = train_agree(r, hf_weights_open(dir, r->m, &folder));
    if (status == TESS_OK)
        status = tess_shard(r->t, hf_weights_fill, folder);
    hf_weights_close(folder);
    return status;
}

static tess_status shard(train_run *r) {
    void *resume = NULL;
    tess_status status = model_declare(r->t, r->m);
    if (status != TESS_OK)
        return status;
    if (r->joins) /* its shard comes from another rank */
        return tess_shard(r->t, NULL, NULL);
    if (train_resumes_checkpoint(&r->s)) {
        status = tess_shard(r->t, NULL, NULL);
        return status == TESS_OK ? train_resume_load(r) : status;
    }
    if (hf_knows(r->s.model) && (r->s.resume || r->s.folder))
        return shard_from_folder(r, r->s.resume ? r->s.resume : r->s.folder);
    if (!r->s.resume)
        return tess_shard(r->t, model_fill, r->m);
    status = train_agree(r, train_resume_open(r, r->s.resume, &resume));
    if (status == TESS_OK)
        status = tess_shard(r->t, train_resume_fill, resume);
    train_resume_close(resume);
    return status;
}

static tess_status open_task(train_run *r) {
    tess_status status = r->ops->open(r);
    return status == TESS_OK ? train_sample_check(r) : status;
}

/* From wherever the run is to its end. */
static tess_status train_to_end(train_run *r) {
    tess_status status = train_loop(r);
    if (status != TESS_OK || r->interrupted)
        return status;
    if (r->ops->finish)
        status = r->ops->finish(r);
    if (status == TESS_OK && r->s.export_to)
        status = train_export(r);
    if (status == TESS_OK)
        status = train_digest(r);
    if (status == TESS_OK)
        status = train_spans_finish(r);
    return status == TESS_OK ? train_ranks(r) : status;
}

static tess_status run(train_run *r) {
    tess__world world = { .nranks = 1 };
    tess_status status = train_restart_resume(&r->s);
    if (status == TESS_OK)
        status = tess__world_from_env(&world);
    if (status == TESS_OK)
        status = train_resume_adapt(&r->s, world.nranks);
    if (status == TESS_OK)
        status = make_model(r);
    if (status == TESS_OK)
        status = make_batch(r);
    if (status == TESS_OK)
        status = open_engine(r);
    if (status != TESS_OK)
        return status;
    status = train_agree(r, train_output_open(r));
    if (status == TESS_OK)
        status = train_agree(r, open_task(r));
    if (status == TESS_OK)
        status = train_agree(r, train_watch_open(r));
    if (status == TESS_OK)
        status = shard(r);
    if (status == TESS_OK)
        status = train_feed_open(r);
    r->is_late = r->feed && r->ranks == 1; /* else the ranks' losses are added up in each step */
    if (status == TESS_OK)
        status = train_save_open(r);
    train_lives_open(r);
    if (status != TESS_OK)
        return status;
    train_output_start(r);
    status = train_spans_start(r);
    if (status == TESS_OK)
        status = train_recover(r);
    if (status == TESS_OK)
        status = train_to_end(r);
    while (status == TESS_E_LOST && (status = train_recover(r)) == TESS_OK)
        status = train_to_end(r);
    if (status != TESS_OK || r->interrupted)
        return status;
    if (r->rank == 0)
        status = train_output_finish(r);
    return status == TESS_OK ? train_watch_finish(r) : status;
}

/* Warnings are left to the ranks, of which the first repeats them. */
tess_status train_plan(const train_settings *settings, int32_t ranks) {
    tess *t = NULL;
    model *m = NULL;
    int32_t least = tess__log_set_least(TESS_LOG_ERROR);
    tess_status status = model_run_plan(settings, ranks, &t, &m);
    tess__log_set_least(least);
    tess_close(t);
    model_destroy(m);
    return status;
}

/* In the order of train_models. */
static const train_task_ops *task_of(const char *name) {
    static const train_task_ops *const tasks[] = { &train_mnist, &train_gpt,    &train_lm,
                                                   &train_lm,    &train_convbn, &train_linear };
    size_t i = 0;
    while (strcmp(train_models[i], name) != 0)
        i++;
    return tasks[i];
}

int train_rank(const train_settings *settings) {
    train_run r = { .s = *settings, .ops = task_of(settings->model), .loss = NAN, .accuracy = NAN, .eval_loss = NAN };
    tess_status status = run(&r);
    int code = tess_exit_code(status);
    train_output_close(&r);
    train_lives_close(&r);
    train_ledger_drop(&r);
    train_spans_close(&r);
    train_watch_close(&r);
    if (status != TESS_OK && tess_last_error()[0]) /* "" when another rank says it */
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
    free(r.hf_config);
    return code;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* One rank's run: opens the engine, declares and shards the model, trains, evaluates, saves, closes. */
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/support/alloc_count.h"
#include "tools/support/command_line.h"
#include "core/control/control.h"
#include "core/base/log.h"
#include "core/base/options.h"
#include "tools/plan/plan.h"
#include "tools/support/hf_names.h"
#include <tessera/tessera.h>
#include "hf_config.h"
#include "hf_weights.h"
#include "train.h"
#include "tools/support/settings.h"

enum { MOST_CONTEXT = 1024 /* of a folder's model, unless the context is set */ };

/* ---- agreement --------------------------------------------------------------------------------- */
tess_status train_agree(train_run *r, tess_status mine) {
    int first = r->rank;
    tess_status status = tess_agree(r->t, mine);
    if (status != TESS_OK && r->ranks > 1) /* "rank 2: …" is left to rank 2 to say */
        sscanf(tess_last_error(), "rank %d:", &first);
    return first == r->rank ? status : tess_fail(status, "%s", "");
}

/* ---- evaluation -------------------------------------------------------------------------------- */
tess_status train_evaluate(train_run *r, double *loss, double *accuracy) {
    double sums[3] = { 0 }; /* loss, correct, count */
    uint64_t rounds = (r->task.eval_batches + (uint64_t)r->ranks - 1) / (uint64_t)r->ranks;
    for (uint64_t i = 0; i < rounds; i++) {
        r->ops->fill_eval(r, i * (uint64_t)r->ranks + (uint64_t)r->rank, r->batch);
        tess_run_options run = { .struct_size = sizeof run, .kind = TESS_PASS_EVAL, .batch = r->batch };
        run.result = r->result;
        tess_status status = model_run(r->t, r->m, &run);
        if (status != TESS_OK)
            return status;
        sums[0] += r->result->loss;
        sums[1] += (double)r->result->correct;
        sums[2] += (double)r->result->count;
    }
    tess_status status = tess_all_reduce(r->t, sums, 3, TESS_F64, TESS_SUM);
    if (status != TESS_OK)
        return status;
    *loss = sums[0] / sums[2];
    *accuracy = sums[1] / sums[2];
    return TESS_OK;
}

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
/* The step goes along with the last microbatch: without clipping each unit then steps as its gradient arrives. */
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
        status = model_run(r->t, r->m, &run);
        r->run_seconds += tool_seconds() - began;
        if (status == TESS_OK)
            *loss += r->result->loss / (double)r->result->count / accum;
    }
    return status;
}

static tess_status train_step(train_run *r) {
    double loss = 0, rate = r->ops->rate(r, r->steps_done), started = tool_seconds(), ran = r->run_seconds;
    r->optimizer.lr = (float)rate;
    if (r->steps_done > r->first_step)
        tool_alloc_window_begin();
    tess_status status = run_microbatches(r, &loss);
    double shared[2] = { loss, train_asked_to_end(r) }; /* what one rank is asked, all do */
    if (status == TESS_OK)
        status = tess_all_reduce(r->t, shared, 2, TESS_F64, TESS_AVG);
    tool_alloc_window_end();
    if (status != TESS_OK)
        return status;
    loss = shared[0];
    if (shared[1] > 0)
        r->interrupted = train_asked_to_end(r) ? train_asked_to_end(r) : SIGTERM;
    double took = tool_seconds() - started;
    r->seconds += took;
    r->steps_done++;
    r->loss = loss;
    train_lives_step(r);
    train_watch_step(r, rate, took);
    train_output_step(r, rate);
    return train_spans_step(r, r->run_seconds - ran, took);
}

static tess_status train_loop(train_run *r) {
    tess_status status = TESS_OK;
    if (r->steps_done >= r->task.steps)
        status = evaluate(r);
    while (status == TESS_OK && r->steps_done < r->task.steps && !r->interrupted) {
        status = train_ledger_begin(r);
        if (status == TESS_OK)
            status = train_step(r);
        if (status == TESS_OK)
            status = train_ledger_end(r);
        uint64_t done = r->steps_done;
        int last = done == r->task.steps;
        if (status == TESS_OK && (last || (r->task.eval_every && done % r->task.eval_every == 0)))
            status = evaluate(r);
        if (status == TESS_OK && r->s.save &&
            (last || r->interrupted || (r->s.save_every && done % r->s.save_every == 0)))
            status = train_save(r);
    }
    return status == TESS_OK ? train_save_finish(r) : status;
}

/* ---- setting up -------------------------------------------------------------------------------- */
/* A rank's share of the cores, unless it is told or must not depend on the machine. The engine is told, and compares it
 * over the ranks. `local`: ranks on this host; 0: as the environment says. */
static tess_status choose_threads(const train_settings *s, int32_t local, int32_t *out) {
    tess__world world = { .nranks = 1 };
    cpu_set_t cores;
    tess_status status = local ? TESS_OK : tess__world_from_env(&world);
    if (status != TESS_OK)
        return status;
    if (!local)
        local = world.local_nranks ? world.local_nranks : world.nranks;
    long share = sysconf(_SC_NPROCESSORS_ONLN) / (local > 0 ? local : 1);
    if (sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) < share)
        share = CPU_COUNT(&cores); /* bound by the launcher */
    if (s->threads || s->deterministic)
        share = s->threads ? s->threads : 1;
    *out = share < 1 ? 1 : share > 1024 ? 1024 : (int32_t)share;
    return TESS_OK;
}

/* A Hugging Face folder's shapes, and unless it is set a context that the model is made for. */
static tess_status apply_config(const train_settings *s, model_options *o) {
    int32_t positions = 0;
    tess_status status = hf_config_read(s->folder ? s->folder : s->config, s->model, o, &positions);
    if (o->context == 0)
        o->context = positions < MOST_CONTEXT ? positions : MOST_CONTEXT;
    return status;
}

static tess_status make_model(train_run *r, int32_t local) {
    const train_settings *s = &r->s;
    int32_t threads = 1;
    tess_status status = choose_threads(s, local, &threads);
    if (status != TESS_OK)
        return status;
    model_options o = { .batch = (int32_t)s->batch,
                        .layers = (int32_t)s->layers,
                        .heads = (int32_t)s->heads,
                        .width = (int32_t)s->width,
                        .context = (int32_t)s->context,
                        .image_size = (int32_t)s->image_size,
                        .hidden = (int32_t)s->hidden,
                        .threads = threads,
                        .seed = s->seed,
                        .isa = s->isa };
    o.frozen = s->freeze;
    if (s->folder || s->config)
        status = apply_config(s, &o);
    r->model_options = o;
    if (status == TESS_OK)
        status = model_create(s->model, &o, &r->m);
    if (status != TESS_OK || !hf_knows(s->model))
        return status;
    return hf_config_make(r->m, s->folder ? s->folder : s->config, &r->hf_config);
}

static tess_status make_batch(train_run *r) {
    r->batch = aligned_alloc(64, ops_align(r->m->desc.input_bytes));
    r->result = aligned_alloc(64, ops_align(r->m->desc.result_bytes));
    if (!r->batch || !r->result)
        return tess_fail(TESS_E_NOMEM, "no memory for a batch of %llu bytes",
                         (unsigned long long)r->m->desc.input_bytes);
    memset(r->batch, 0, r->m->desc.input_bytes);
    return TESS_OK;
}

/* A batch has the same bytes in any precision and on any device, so the model is first made without knowing them, to
 * open the engine. */
static tess_status take_precision_and_device(train_run *r) {
    tess_info info = { .struct_size = sizeof info };
    tess_status status = tess_info_get(r->t, &info);
    if (status != TESS_OK)
        return status;
    int is_cuda = info.memory == TESS_MEM_CUDA;
    status = model_precision(r->t, r->m, &r->model_options.precision);
    if (status != TESS_OK || (r->model_options.precision == r->m->options.precision && !is_cuda))
        return status;
    model_destroy(r->m);
    r->m = NULL;
    r->model_options.operators = is_cuda ? "cuda" : NULL;
    return model_create(r->s.model, &r->model_options, &r->m);
}

/* 0: the host's alone. */
static uint32_t readable_memory(void) {
#ifdef TESSERA_HAVE_CUDA
    const char *device = tess__option_text("device");
    if (device && strcmp(device, "cpu") != 0)
        return 1u << TESS_MEM_HOST | 1u << TESS_MEM_PINNED | 1u << TESS_MEM_CUDA;
#endif
    return 0;
}

/* What plans the run with other options, for advice when it does not fit. */
static tess_status open_changed(void *settings, int32_t ranks, tess **t, void **state) {
    model *m = NULL;
    tess_status status = train_plan_open(settings, ranks, t, &m);
    *state = m;
    return status;
}

static void close_changed(tess *t, void *state) {
    tess_close(t);
    model_destroy(state);
}

static tool_planner planner_of(train_run *r) {
    return (tool_planner){ .open = open_changed,
                           .close = close_changed,
                           .user = &r->s,
                           .of = r->s.clip > 0 ? TESS_LEDGER_STEP_CLIPPED : TESS_LEDGER_STEP,
                           .is_model = 1 };
}

/* `plan_ranks`: 0, or for how many ranks to plan only. */
static tess_status open_engine(train_run *r, int32_t plan_ranks) {
    r->planner = planner_of(r);
    tess_options o = { .struct_size = sizeof o,
                       .pointer_mem = readable_memory(),
                       .plan_only = plan_ranks != 0,
                       .ranks = plan_ranks,
                       .optimizer = r->s.optimizer,
                       .momentum = (float)r->s.momentum,
                       .accum = (int32_t)r->s.accum,
                       .threads = r->model_options.threads,
                       .plan_alternative = tool_plan_alternative,
                       .plan_user = &r->planner,
                       .input_bytes = r->m->desc.input_bytes,
                       .checkpoint = r->s.save != NULL };
    tool_settings_give(&o);
    tess_status status = tess_open(&o, &r->t);
    if (status != TESS_OK)
        return status;
    r->rank = tess_rank(r->t);
    r->ranks = r->planner.ranks = tess_ranks(r->t);
    r->groups[0] = (tess_optimizer_group){ (float)r->s.weight_decay, 1 };
    r->groups[1] = (tess_optimizer_group){ 0, 1 }; /* biases and normalisations do not decay */
    r->optimizer = (tess_optimizer_options){ .struct_size = sizeof r->optimizer,
                                             .beta2 = (float)r->s.beta2,
                                             .momentum = (float)r->s.momentum,
                                             .clip_norm = (float)r->s.clip,
                                             .groups = r->groups,
                                             .n_groups = r->m->t->optimizer_groups > 1 ? 2 : 1 };
    status = take_precision_and_device(r);
    return status == TESS_OK && !plan_ranks ? model_start(r->t, r->m) : status;
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

static tess_status run(train_run *r) {
    tess__world world = { .nranks = 1 };
    train_restart_resume(&r->s);
    tess_status status = tess__world_from_env(&world);
    if (status == TESS_OK)
        status = train_resume_adapt(&r->s, world.nranks);
    if (status == TESS_OK)
        status = make_model(r, 0);
    if (status == TESS_OK)
        status = make_batch(r);
    if (status == TESS_OK)
        status = open_engine(r, 0);
    if (status != TESS_OK)
        return status;
    status = train_agree(r, train_output_open(r));
    if (status == TESS_OK)
        status = train_agree(r, r->ops->open(r));
    if (status == TESS_OK)
        status = train_agree(r, train_watch_open(r));
    if (status == TESS_OK)
        status = shard(r);
    if (status == TESS_OK)
        status = train_feed_open(r);
    if (status == TESS_OK)
        status = train_save_open(r);
    train_lives_open(r);
    if (status != TESS_OK)
        return status;
    train_output_start(r);
    status = train_spans_start(r);
    if (status == TESS_OK)
        status = train_loop(r);
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
    if (status == TESS_OK)
        status = train_ranks(r);
    if (status == TESS_OK && r->rank == 0)
        status = train_output_finish(r);
    if (status == TESS_OK)
        status = train_watch_finish(r);
    return status;
}

tess_status train_plan_open(const train_settings *settings, int32_t ranks, tess **t, model **m) {
    train_run r = { .s = *settings };
    tess_status status = make_model(&r, ranks);
    if (status == TESS_OK)
        status = open_engine(&r, ranks);
    if (status == TESS_OK)
        status = model_declare(r.t, r.m);
    if (status == TESS_OK)
        status = tess_shard(r.t, NULL, NULL);
    free(r.hf_config);
    if (status == TESS_E_PLANNED || status == TESS_E_BUDGET) {
        *t = r.t;
        *m = r.m;
        return status == TESS_E_PLANNED ? TESS_OK : status;
    }
    tess_close(r.t);
    model_destroy(r.m);
    return status;
}

/* Warnings are left to the ranks, of which the first repeats them. */
tess_status train_plan(const train_settings *settings, int32_t ranks) {
    tess *t = NULL;
    model *m = NULL;
    int32_t least = tess__log_set_least(TESS_LOG_ERROR);
    tess_status status = train_plan_open(settings, ranks, &t, &m);
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
        code = status == TESS_E_BUDGET && r.rank == 0 ? plan_refuse(settings->model, r.ranks, status)
                                                      : tool_report(status);
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

/* SPDX-License-Identifier: BSD-3-Clause */
#include "model_run.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "tools/support/world.h"
#include "tools/support/options.h"
#include "hf_config.h"
#include "lora_settings.h"
#include "tools/support/mesh.h"
#include "tools/support/settings.h"
#include "tools/support/say.h"
#include <tessera/gpu.h>

enum { MOST_CONTEXT = 1024 /* limits the default context of a folder's model */ };

/* ---- the model --------------------------------------------------------------------------------- */
/* A rank's share of the cores, unless it is told or must not depend on the machine. The engine is told, and compares it
 * over the ranks. `local`: ranks on this host; 0: as the environment says. */
static tess_status choose_threads(const train_settings *s, int32_t local, int32_t *out) {
    tool_world world = { .ranks = 1 };
    cpu_set_t cores;
    TRY(local ? TESS_OK : tool_world_read(&world));
    if (!local)
        local = world.local_ranks ? world.local_ranks : world.ranks;
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

tess_status model_run_make(const train_settings *s, int32_t local, model_options *out, model **m) {
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
    o.groups = s->groups_text;
    o.half_units = s->half_units;
    o.head_rows = (int32_t)s->head_rows;
    o.attention_products = s->attention_products;
    o.packs = s->pack;
    if (s->folder || s->config)
        status = apply_config(s, &o);
    if (status == TESS_OK)
        status = lora_settings_read(s, &o.lora);
    *out = o;
    return status == TESS_OK ? model_create(s->model, &o, m) : status;
}

/* ---- the engine -------------------------------------------------------------------------------- */
/* A batch has the same bytes in any precision and on any device, so the model is first made without knowing them, to
 * open the engine. */
static tess_status take_precision_and_device(const train_settings *s, model_options *o, model **m, tess *t) {
    tess_info info = { .struct_size = sizeof info };
    tess_status status = tess_info_get(t, &info);
    if (status != TESS_OK)
        return status;
    int is_cuda = info.memory == TESS_MEM_CUDA;
    if (s->cudnn_attention && !is_cuda)
        return tess_fail(TESS_E_UNSUPPORTED, "attention=cudnn: the device is no GPU: TESSERA_ATTENTION=own");
    o->cudnn_attention = s->cudnn_attention;
    status = model_precision(t, *m, o);
    int same = o->precision == (*m)->options.precision && o->products == (*m)->options.products;
    if (status != TESS_OK || (same && !is_cuda))
        return status;
    model_destroy(*m);
    *m = NULL;
    o->operators = is_cuda ? "cuda" : NULL;
    return model_create(s->model, o, m);
}

/* 0: the host's alone. */
static uint32_t readable_memory(void) {
#ifdef TESSERA_HAVE_CUDA
    const char *device = tool_option_text("device");
    if (device && strcmp(device, "cpu") != 0)
        return 1u << TESS_MEM_HOST | 1u << TESS_MEM_PINNED | 1u << TESS_MEM_CUDA;
#endif
    return 0;
}

/* Plans the run with other options, for advice when it does not fit. */
static tess_status open_changed(void *settings, int32_t ranks, tess **t, void **state) {
    model *m = NULL;
    tess_status status = model_run_plan(settings, ranks, t, &m);
    *state = m;
    return status;
}

static void close_changed(tess *t, void *state) {
    tess_close(t);
    model_destroy(state);
}

static tool_planner planner_of(const train_settings *s) {
    return (tool_planner){ .open = open_changed,
                           .close = close_changed,
                           .user = (void *)s,
                           .of = s->clip > 0 ? TESS_LEDGER_STEP_CLIPPED : TESS_LEDGER_STEP,
                           .is_model = 1 };
}

/* A run steps in its last microbatch's pass, and clips in every step or in none. Adapters are saved without the files
 * that their base came from. */
static uint32_t promises_of(const train_settings *s) {
    const uint32_t always = TESS_OPTIONS_LOSS_SCALE | (s->lora && s->folder ? TESS_OPTIONS_BASE_APART : 0);
    if (s->steps_apart)
        return always;
    return always | TESS_OPTIONS_LATE | TESS_OPTIONS_REPEAT | TESS_OPTIONS_STEP_IN_PASS |
           (s->clip > 0 ? 0 : TESS_OPTIONS_NO_CLIP);
}

tess_status model_run_open(const train_settings *s, int32_t plan_ranks, tool_planner *planner, model_options *how,
                           model **m, tess **t) {
    *planner = planner_of(s);
    tess_options o = { .struct_size = sizeof o,
                       .pointer_mem = readable_memory(),
                       .plan_only = plan_ranks != 0,
                       .flags = promises_of(s),
                       .ranks = plan_ranks,
                       .optimizer = s->optimizer,
                       .momentum = (float)s->momentum,
                       .accum = (int32_t)s->accum,
                       .threads = how->threads,
                       .plan_alternative = tool_plan_alternative,
                       .plan_user = planner,
                       .input_bytes = (*m)->desc.input_bytes,
                       .checkpoint = s->save != NULL,
                       .recover = 1,
                       .group = plan_ranks ? tool_mesh_group(plan_ranks) : NULL };
    tool_settings_give(&o);
    TRY(tess_open(&o, t));
    planner->ranks = tess_ranks(*t);
    return take_precision_and_device(s, how, m, *t);
}

tess_status model_run_plan(const train_settings *s, int32_t ranks, tess **t, model **m) {
    tool_planner planner;
    model_options how = { 0 };
    model *made = NULL;
    tess *engine = NULL;
    tess_status status = model_run_make(s, ranks, &how, &made);
    if (status == TESS_OK)
        status = model_run_open(s, ranks, &planner, &how, &made, &engine);
    if (status == TESS_OK)
        status = model_declare(engine, made);
    if (status == TESS_OK)
        status = tess_shard(engine, NULL, NULL);
    if (status == TESS_E_PLANNED || status == TESS_E_BUDGET) {
        *t = engine;
        *m = made;
        return status == TESS_E_PLANNED ? TESS_OK : status;
    }
    tess_close(engine);
    model_destroy(made);
    return status;
}

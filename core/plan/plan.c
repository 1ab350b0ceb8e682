/* SPDX-License-Identifier: BSD-3-Clause */
#include "plan.h"

#include "activations.h"
#include "base/log.h"
#include "base/status.h"
#include "layout/wrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t pass_kind(int program) {
    static const uint32_t kinds[] = { TESS_PASS_TRAIN, TESS_PASS_TRAIN | TESS_PASS_NO_SYNC,
                                      TESS_PASS_EVAL,  TESS_PASS_TRAIN,
                                      TESS__PASS_STEP, TESS__PASS_NORM,
                                      TESS__PASS_CLIP, TESS__PASS_FULL };
    return kinds[program];
}

/* Programs that this run can never enter are left empty. */
static int is_wanted(const tess__plan *p, int program) {
    int at_end = p->setup.accum > 1 && !p->setup.sync_each;
    if (tess__steps_by_unit(&p->model, &p->setup) && (program == TESS__P_TRAIN || program == TESS__P_CLIP))
        return 0;
    if (tess__steps_in_pass(&p->model, &p->setup) && (program == TESS__P_STEP || program == TESS__P_NORM))
        return 0;
    if (p->setup.norm_first && (program == TESS__P_FUSED || program == TESS__P_STEP))
        return 0;
    if (program == TESS__P_NO_SYNC)
        return at_end;
    if (program == TESS__P_FUSED)
        return p->model.n_blocks > 0 && p->setup.accum == 1 && p->setup.optimizer;
    if (program == TESS__P_STEP || program == TESS__P_CLIP)
        return p->setup.optimizer != 0;
    return 1;
}

/* Notes where the training pass leaves its gradients, because the programs after it find them there. */
static void note_gradients(tess__plan *p) {
    const tess__program *train = &p->programs[TESS__P_TRAIN];
    for (int32_t i = 0; i < train->n_buffers; i++)
        if (train->buffers[i].role == TESS__SHARD_GRAD)
            p->layout.groups[train->buffers[i].index].grad_offset = train->buffers[i].offset;
}

static tess_status compile_programs(tess__plan *p, int lend) {
    tess_status s = TESS_OK;
    int how = tess__steps_by_unit(&p->model, &p->setup) ? TESS__GRAD_PASSES : TESS__GRAD_STAYS;
    for (int32_t g = 0; g < p->layout.n_groups; g++)
        p->layout.groups[g].grad_moves = lend && tess__grad_moves(&p->setup, &p->model, &p->layout.groups[g]) ? how : 0;
    for (int i = 0; !s && i < TESS__N_PROGRAMS; i++) {
        if (!is_wanted(p, i))
            continue;
        if (i < TESS__P_STEP)
            s = tess__compile_pass(&p->compiler, pass_kind(i), NULL, i == TESS__P_FUSED, &p->programs[i]);
        else
            s = tess__compile_other(&p->compiler, pass_kind(i), &p->programs[i]);
        if (i == TESS__P_TRAIN)
            note_gradients(p);
    }
    return s ? s : tess__resident(&p->setup, &p->layout, 1, &p->resident);
}

uint64_t tess__planned_arena(const tess__plan *p, uint32_t domain, uint32_t arena) {
    if (arena == TESS__RESIDENT)
        return p->resident.step_bytes[domain];
    if (arena == TESS__PAGEABLE)
        return domain == TESS_DOMAIN_HOST ? p->resident.pageable_bytes : 0;
    uint64_t most = 0;
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        if (p->programs[i].step_bytes[domain] > most)
            most = p->programs[i].step_bytes[domain];
    return most;
}

uint64_t tess__planned_bytes(const tess__plan *p, uint32_t domain) {
    uint64_t total = 0;
    for (uint32_t a = TESS__RESIDENT; a <= TESS__PAGEABLE; a++)
        total += tess__round_up(tess__planned_arena(p, domain, a), p->setup.granularity);
    for (int32_t i = 0; domain == TESS_DOMAIN_DEVICE && i < p->n_user; i++)
        total += tess__round_up(p->user_bytes[i], p->setup.granularity);
    return total;
}

/* Tells whether gradients, which keep their place until the step, leave no room below them to a program that runs
 * meanwhile, such as an evaluation. */
static int gradients_are_in_the_way(const tess__plan *p) {
    uint64_t trains = 0, most = tess__planned_arena(p, TESS_DOMAIN_DEVICE, TESS__STEP);
    for (int i = TESS__P_TRAIN; i < TESS__N_PROGRAMS; i++)
        if ((p->programs[i].kind & 15) == TESS_PASS_TRAIN && p->programs[i].step_bytes[TESS_DOMAIN_DEVICE] > trains)
            trains = p->programs[i].step_bytes[TESS_DOMAIN_DEVICE];
    return most > trains;
}

static tess_status compile_lending(tess__plan *p) {
    tess_status s = compile_programs(p, 1);
    if (s || !gradients_are_in_the_way(p))
        return s;
    uint64_t lent = tess__planned_bytes(p, TESS_DOMAIN_DEVICE);
    s = compile_programs(p, 0);
    return s || tess__planned_bytes(p, TESS_DOMAIN_DEVICE) < lent ? s : compile_programs(p, 1);
}

/* Matrices that are on their way beside others take memory, which passes have left; where they have not, they go in
 * turn. */
static tess_status compile_all(tess__plan *p) {
    p->compiler.in_turn = TESS__IN_TURN_ALWAYS;
    TRY(compile_lending(p));
    uint64_t least = tess__planned_bytes(p, TESS_DOMAIN_DEVICE), bytes = UINT64_MAX;
    if (!p->layout.n_matrices || p->setup.prefetch == 0)
        return TESS_OK;
    for (int32_t how = TESS__IN_TURN_NEVER; how <= TESS__IN_TURN_ALWAYS && bytes > least; how++) {
        p->compiler.in_turn = how;
        TRY(compile_lending(p));
        bytes = tess__planned_bytes(p, TESS_DOMAIN_DEVICE);
    }
    return TESS_OK;
}

const tess__program *tess__plan_fullest(const tess__plan *p, uint32_t domain) {
    const tess__program *fullest = &p->programs[0];
    for (int i = 1; i < TESS__N_PROGRAMS; i++)
        if (p->programs[i].live_peak_bytes[domain] > fullest->live_peak_bytes[domain])
            fullest = &p->programs[i];
    return fullest;
}

static void list_categories(const tess__plan *p, uint32_t domain, char *out, size_t n) {
    uint64_t bytes[16];
    size_t at = 0;
    out[0] = 0;
    memcpy(bytes, tess__plan_fullest(p, domain)->category_bytes[domain], sizeof bytes);
    for (int32_t i = 0; domain == TESS_DOMAIN_DEVICE && i < p->n_user; i++)
        bytes[TESS_CAT_ACTIVATION] += p->user_bytes[i];
    for (uint32_t c = 1; c < 16; c++)
        if (bytes[c] && at < n)
            at += (size_t)snprintf(out + at, n - at, "%s%s %llu", at ? ", " : "", tess__category_name(c),
                                   (unsigned long long)bytes[c]);
}

static tess_status over_budget(const tess__plan *p, uint32_t domain, uint64_t need, uint64_t budget) {
    static const char *const name[] = { "", "device memory", "host memory", "disk" };
    static const char *const variable[] = { "", "DEVICE", "HOST", "DISK" };
    char categories[512];
    list_categories(p, domain, categories, sizeof categories);
    return tess__fail(
        TESS_E_BUDGET,
        "a step needs %llu bytes of %s per rank and TESSERA_%s_MEMORY allows %llu; at its peak, in bytes: %s",
        (unsigned long long)need, name[domain], variable[domain], (unsigned long long)budget, categories);
}

tess_status tess__plan_check_budget(const tess__plan *p) {
    const uint64_t budget[TESS__DOMAINS] = { 0, p->setup.env.device_budget_bytes, p->setup.env.host_budget_bytes,
                                             p->setup.disk_budget_bytes };
    for (uint32_t d = 1; d < TESS__DOMAINS; d++) {
        uint64_t need = tess__planned_bytes(p, d);
        if (budget[d] && need > budget[d])
            return over_budget(p, d, need, budget[d]);
    }
    return TESS_OK;
}

/* Lowers how many units are gathered ahead when that makes the plan fit, unless the user chose it. */
static tess_status fit_prefetch(tess__plan *p) {
    tess_status s = tess__plan_check_budget(p);
    if (!s || p->setup.prefetch_fixed || p->setup.prefetch == 0)
        return s;
    p->setup.prefetch = 0;
    if (compile_all(p) || tess__plan_check_budget(p)) {
        p->setup.prefetch = 1; /* it does not help, so messages speak of the usual plan */
        if ((s = compile_all(p)))
            return s;
        return tess__plan_check_budget(p);
    }
    tess__log(TESS_LOG_INFO, "no unit is gathered ahead, so that the step fits its memory");
    return TESS_OK;
}

static tess_status check_blocks(const tess__plan *p) {
    if (p->model.n_scopes == 0)
        return tess__fail(TESS_E_INVALID, "no scope is declared, so no program can be compiled");
    for (int32_t i = 0; i + 1 < p->model.n_blocks; i++)
        if (!p->model.blocks[i].options.output_bytes)
            return tess__fail(TESS_E_INVALID, "block \"%s\" hands nothing on: output_bytes is 0",
                              p->model.blocks[i].options.name);
    return TESS_OK;
}

/* The most collectives that are in flight at any time: gathers of the scope entered and of those looked ahead to, a
 * unit's reductions, and a small one of the program's own. */
static uint32_t most_in_flight(const tess__plan *p) {
    int32_t gathers = 0, reductions = 0;
    for (int32_t k = 0; k < p->model.n_scopes; k++) {
        int32_t n = 0;
        for (int32_t i = 0; i < p->compiler.n_scope_units[k]; i++)
            n += p->layout.units[p->compiler.scope_units[k][i]].n_groups;
        gathers = n > gathers ? n : gathers;
    }
    for (int32_t u = 0; u < p->layout.n_units; u++)
        if (p->layout.units[u].n_groups > reductions)
            reductions = p->layout.units[u].n_groups;
    return (uint32_t)((p->setup.prefetch + 1) * gathers + reductions * (p->layout.n_matrices ? 5 : 1) + 1);
}

static void forget_programs(tess__plan *p) {
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        tess__program_free(&p->programs[i]);
    tess__program_free(&p->resident);
    tess__compiler_free(&p->compiler);
    tess__layout_free(&p->layout);
}

static tess_status compile_plan(tess__plan *p) {
    TRY(tess__compiler_create(&p->compiler, &p->setup, &p->model, &p->layout));
    p->setup.env.in_flight = most_in_flight(p);
    return compile_all(p);
}

/* Lays out and compiles one candidate of a wrap policy that tries several, and forgets it again. */
static tess_status plan_candidate(void *user, const int32_t *unit, int32_t n_units, tess_plan_result *out) {
    tess__plan *p = user;
    TRY(tess__layout_build(&p->model, &p->setup, unit, n_units, &p->layout));
    tess_status s = compile_plan(p);
    if (!s) {
        out->peak_device_bytes = tess__planned_bytes(p, TESS_DOMAIN_DEVICE);
        out->peak_host_bytes = tess__planned_bytes(p, TESS_DOMAIN_HOST);
        out->step_ns = -1;
    }
    forget_programs(p);
    return s;
}

static tess_status wrap_and_lay_out(tess__plan *p) {
    int32_t n_units = 0, *unit = calloc((size_t)p->model.n_params + 1, sizeof *unit);
    if (!unit)
        return tess__fail(TESS_E_NOMEM, "no memory for the units of %d parameters", p->model.n_params);
    tess_status s = tess__wrap_apply_planned(&p->model, p->wrap.ops, p->wrap.ctx, p->wrap.text, &p->setup.env,
                                             plan_candidate, p, unit, &n_units);
    if (!s)
        s = tess__layout_build(&p->model, &p->setup, unit, n_units, &p->layout);
    free(unit);
    return s;
}

/* Compiles again, for the same layout. */
static tess_status compile_anew(tess__plan *p, uint64_t bytes[3]) {
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        tess__program_free(&p->programs[i]);
    tess__program_free(&p->resident);
    TRY(tess__layout_place(&p->layout, &p->model, &p->setup));
    TRY(compile_all(p));
    bytes[TESS_DOMAIN_DEVICE] = tess__planned_bytes(p, TESS_DOMAIN_DEVICE);
    bytes[TESS_DOMAIN_HOST] = tess__planned_bytes(p, TESS_DOMAIN_HOST);
    return TESS_OK;
}

/* A library of the program's own computes on the ranks' cores, which also carry out a gather within a host: then
 * nothing overlaps, so a unit that is whole ahead of its use costs memory and saves no time. */
static void gather_late(tess__plan *p) {
    const tess_plan_env *e = &p->setup.env;
    if (p->holds && !p->setup.prefetch_fixed && e->mem == TESS_MEM_HOST && e->ranks_per_host == e->nranks &&
        p->setup.offload_name && strcmp(p->setup.offload_name, "none") == 0)
        p->setup.prefetch = 0;
}

tess_status tess__plan_remake(tess__plan *p) {
    gather_late(p);
    TRY(tess__activations_resolve(p));
    TRY(wrap_and_lay_out(p));
    TRY(compile_plan(p));
    if (tess__activations_are_auto(p))
        TRY(tess__activations_choose(p, compile_anew));
    return fit_prefetch(p);
}

tess_status tess__plan_recompile(tess__plan *p) {
    return compile_all(p);
}

tess_status tess__plan_make(tess__plan *p) {
    TRY(check_blocks(p));
    TRY(tess__model_finish(&p->model));
    return tess__plan_remake(p);
}

/* ---- another plan of the same declarations ---- */

tess_status tess__plan_try(const tess__plan *of, tess__plan *out) {
    size_t n = (size_t)of->model.n_params;
    tess__param *params = malloc((n + 1) * sizeof *params);
    if (!params)
        return tess__fail(TESS_E_NOMEM, "no memory to plan an alternative");
    *out = (tess__plan){ .setup = of->setup, .model = of->model, .wrap = of->wrap, .n_user = of->n_user };
    out->setup.modes = NULL;
    memcpy(out->user_bytes, of->user_bytes, sizeof out->user_bytes);
    if (n)
        memcpy(params, of->model.params, n * sizeof *params);
    out->model.params = params; /* the layout writes into them */
    return TESS_OK;
}

void tess__plan_drop(tess__plan *p) {
    forget_programs(p);
    free(p->modes);
    free(p->activations_text);
    free(p->model.params);
    p->model.params = NULL;
}

void tess__plan_free(tess__plan *p) {
    forget_programs(p);
    free(p->modes);
    free(p->activations_text);
    tess__model_free(&p->model);
}

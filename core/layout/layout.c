/* SPDX-License-Identifier: BSD-3-Clause */
#include "dtypes.h"
#include "matrices.h"

#include "kit/norm_limbs.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* ---- where things rest ---- */

typedef struct {
    tess_region *regions;
    tess_placement *placements;
    uint32_t n;
} question;

static void add_question(question *q, const tess__layout *l, int32_t group, uint32_t region, uint32_t index,
                         uint32_t dtype) {
    const tess__group *g = &l->groups[group];
    uint64_t elems = g->shard_elems;
    if (region == TESS_REGION_STATE)
        elems = tess__values_of(elems, g->step.state[index].every);
    q->placements[q->n] = (tess_placement){ .struct_size = sizeof(tess_placement) };
    q->regions[q->n++] = (tess_region){ .struct_size = sizeof(tess_region),
                                        .region = region,
                                        .dtype = dtype,
                                        .index = index,
                                        .unit = g->unit,
                                        .group = group,
                                        .elems = elems,
                                        .bytes = elems * tess_dtype_bytes(dtype) };
}

/* Counts the gradient that the step reads, and partial sums of microbatches. */
static int32_t count_gradients(const tess__setup *s) {
    return s->sync_each ? tess__sum_levels(s) : 1;
}

static void ask_group(question *q, const tess__layout *l, const tess__setup *s, int32_t group) {
    const tess__group *g = &l->groups[group];
    add_question(q, l, group, TESS_REGION_MASTER, 0, g->master);
    if (g->low_copy)
        add_question(q, l, group, TESS_REGION_MASTER, 1, g->compute);
    for (int32_t k = 0; g->trainable && k < count_gradients(s); k++)
        add_question(q, l, group, TESS_REGION_GRAD, (uint32_t)k, TESS_F32);
    for (int32_t k = 0; k < (int32_t)g->step.n_states; k++)
        add_question(q, l, group, TESS_REGION_STATE, (uint32_t)k, g->step.state[k].dtype);
}

/* A store is for optimizer states, which are fetched for their step; for shards of parameters, for their gather too;
 * and for sharded gradients, which go there behind their sum. The device's memory is the host's. */
static tess_status check_store(const tess__setup *s, const tess_region *r, const tess_placement *p) {
    if (!TESS_CAN(tess_offload_ops, s->offload, store_close))
        return tess__fail(TESS_E_UNSUPPORTED, "offload %s rests a region of unit %d in a store, and offers none",
                          s->offload_name, r->unit);
    if (r->region == TESS_REGION_ACTIVATION)
        return tess__fail(TESS_E_UNSUPPORTED,
                          "offload %s rests activations in a store, which takes parameters, gradients and optimizer "
                          "states alone",
                          s->offload_name);
    if (!tess__one_memory(s))
        return tess__fail(TESS_E_UNSUPPORTED,
                          "offload %s: what rests in a store comes to host memory, which this device does not step in: "
                          "TESSERA_OFFLOAD=cpu, or TESSERA_DEVICE=cpu",
                          s->offload_name);
    if (p->align & (p->align - 1) || p->align > TESS__STORE_ALIGN_MOST)
        return tess__fail(TESS_E_UNSUPPORTED, "offload %s: a store's align is %llu, expected a power of two up to %d",
                          s->offload_name, (unsigned long long)p->align, TESS__STORE_ALIGN_MOST);
    return TESS_OK;
}

/* Regions of one kind in one group rest together, and are locked in memory together. */
static tess_status take_answer(tess__layout *l, const tess__model *m, const tess__setup *s, const tess_region *r,
                               const tess_placement *p) {
    int stored = p->rest == TESS_REST_STORE;
    if (p->rest < TESS_REST_DEVICE || p->rest > TESS_REST_STORE)
        return tess__fail(TESS_E_UNSUPPORTED,
                          "the offload plugin rests a region of unit %d in %u, expected %d (the device), %d (the host) "
                          "or %d (its store)",
                          r->unit, p->rest, TESS_REST_DEVICE, TESS_REST_HOST, TESS_REST_STORE);
    if (stored)
        TRY(check_store(s, r, p));
    if (r->region == TESS_REGION_ACTIVATION) { /* the user decided that activations go to the host */
        l->activation_rest.domain = TESS_DOMAIN_HOST;
        l->activation_rest.pageable = p->rest == TESS_REST_HOST && p->pinned_bytes < r->bytes;
        return TESS_OK;
    }
    tess__group *g = &l->groups[r->group];
    tess__rest *rest = r->region == TESS_REGION_MASTER ? &g->param_rest
                       : r->region == TESS_REGION_GRAD ? &g->grad_rest
                                                       : &g->state_rest;
    uint32_t domain = p->rest == TESS_REST_DEVICE ? TESS_DOMAIN_DEVICE : TESS_DOMAIN_HOST;
    if (stored && r->region == TESS_REGION_GRAD && tess__steps_by_unit(m, s)) {
        l->store_bytes += p->host_bytes; /* its step follows at once, so it never rests */
        return TESS_OK;
    }
    if (r->region == TESS_REGION_MASTER && r->index && rest->stored &&
        stored) { /* a shard from a store is cast as it comes */
        g->low_copy = 0;
        return TESS_OK;
    }
    if (r->index && (rest->domain != domain || rest->stored != stored))
        return tess__fail(TESS_E_UNSUPPORTED,
                          "the offload plugin parts what belongs together: regions of unit %d rest in two places",
                          r->unit);
    rest->domain = domain;
    rest->stored = stored;
    rest->pageable |= !stored && domain == TESS_DOMAIN_HOST && p->pinned_bytes < r->bytes;
    if (stored) {
        l->store_align = p->align > l->store_align ? p->align : l->store_align;
        l->store_bytes += p->host_bytes;
    }
    return TESS_OK;
}

/* The last block never saves selectively, because its backward comes at once. */
int tess__saves_selectively(const tess__model *m, const tess__setup *s, int32_t block) {
    const tess_block_options *o = &m->blocks[block].options;
    return tess__activations_of(s, block) == TESS__ACTIVATIONS_SELECTIVE && block < m->n_blocks - 1 &&
           o->selective_saved_bytes && !(o->flags & TESS_BLOCK_KEEP);
}

int tess__steps_in_pass(const tess__model *m, const tess__setup *s) {
    return s->step_in_pass && m->n_blocks > 0 && s->accum == 1 && s->optimizer;
}

int tess__steps_by_unit(const tess__model *m, const tess__setup *s) {
    return s->no_clip && tess__steps_in_pass(m, s);
}

uint64_t tess__state_bytes(const tess__group *g, int32_t k) {
    return tess__values_of(g->shard_elems, g->step.state[k].every) * tess_dtype_bytes(g->step.state[k].dtype);
}

uint64_t tess__states_of(const tess__group *g, uint64_t elems) {
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < g->step.n_states; k++)
        bytes += tess__values_of(elems, g->step.state[k].every) * tess_dtype_bytes(g->step.state[k].dtype);
    return bytes;
}

uint64_t tess__shard_grad_bytes(const tess__group *g) {
    return g->shard_elems * tess_dtype_bytes(g->grad_shard);
}

int tess__grad_in_place(const tess__model *m, int32_t block) {
    return block > 0 && block < m->n_blocks - 1 && m->blocks[block].options.flags & TESS_BLOCK_GRAD_IN_PLACE &&
           m->blocks[block].options.output_bytes == m->blocks[block - 1].options.output_bytes;
}

int32_t tess__grad_place(const tess__model *m, int32_t of) {
    while (tess__grad_in_place(m, of + 1))
        of++;
    return of;
}

/* All activations are one region: they lie in one arena. */
static void ask_activations(question *q, const tess__model *m, const tess__setup *s) {
    uint64_t bytes = 0;
    for (int32_t i = 0; i < m->n_blocks; i++)
        for (int output = 0; output < 2; output++)
            bytes += tess__round_up(tess__offloaded_bytes(m, s, i, output), s->align);
    if (!bytes)
        return;
    q->placements[q->n] = (tess_placement){ .struct_size = sizeof(tess_placement) };
    q->regions[q->n++] = (tess_region){ .struct_size = sizeof(tess_region),
                                        .region = TESS_REGION_ACTIVATION,
                                        .dtype = TESS_U8,
                                        .unit = -1,
                                        .group = -1,
                                        .elems = bytes,
                                        .bytes = bytes };
}

static int steps_on_device(const tess__setup *s) {
    tess_error e = { .struct_size = sizeof e };
    return TESS_CAN(tess_optimizer_ops, s->step, device_close) &&
           s->step->device_open(s->step_ctx, s->env.mem, NULL, NULL, &e) == TESS_OK;
}

/* Unless the plugin has a step for the device, its own reaches the host's memory alone. */
static tess_status check_step(const tess__layout *l, const tess__setup *s, const tess__group *g) {
    int on_host =
        tess__one_memory(s) || (g->param_rest.domain == TESS_DOMAIN_HOST && g->grad_rest.domain == TESS_DOMAIN_HOST &&
                                (!g->step.n_states || g->state_rest.domain == TESS_DOMAIN_HOST));
    if (!g->step.grain || g->step.kernel || !s->step)
        return TESS_OK;
    if (g->step.grain == TESS_GRAIN_MATRIX && !tess__one_memory(s))
        return tess__fail(TESS_E_UNSUPPORTED,
                          "optimizer %s steps whole matrices in host memory, which the collectives of this device do "
                          "not reach: TESSERA_DEVICE=cpu",
                          s->step_name);
    if (on_host || steps_on_device(s))
        return TESS_OK;
    return tess__fail(TESS_E_UNSUPPORTED,
                      "optimizer %s steps in host memory, and unit %s does not rest there: "
                      "TESSERA_OFFLOAD=cpu",
                      s->step_name, l->units[g->unit].name);
}

tess_status tess__layout_place(tess__layout *l, const tess__model *m, const tess__setup *s) {
    question q = { 0 };
    size_t most = (size_t)l->n_groups * (size_t)(2 + count_gradients(s) + TESS__MAX_STATES) + 2;
    tess_error e = { .struct_size = sizeof e };
    tess_status status = TESS_OK;
    q.regions = calloc(most, sizeof *q.regions);
    q.placements = calloc(most, sizeof *q.placements);
    if (!q.regions || !q.placements)
        status = tess__fail(TESS_E_NOMEM, "no memory to place %d groups", l->n_groups);
    l->activation_rest = (tess__rest){ 0 };
    l->store_align = l->store_bytes = 0;
    for (int32_t g = 0; !status && g < l->n_groups; g++) {
        tess__group *of = &l->groups[g];
        of->param_rest = of->grad_rest = of->state_rest = (tess__rest){ .domain = TESS_DOMAIN_DEVICE };
        ask_group(&q, l, s, g);
    }
    if (!status)
        ask_activations(&q, m, s);
    if (!status && q.n && (status = s->offload->place(s->offload_ctx, &s->env, q.regions, q.n, q.placements, &e)))
        status = tess__fail(status, "offload plugin: %s", e.message);
    for (uint32_t i = 0; !status && i < q.n; i++)
        status = take_answer(l, m, s, &q.regions[i], &q.placements[i]);
    if (l->store_align)
        l->store_align = tess__round_up(l->store_align, s->align);
    else
        l->store_bytes = 0;
    for (int32_t g = 0; !status && g < l->n_groups; g++)
        status = check_step(l, s, &l->groups[g]);
    free(q.regions);
    free(q.placements);
    return status;
}

/* ---- how the optimizer steps ---- */

/* Takes what all groups have in common: one kernel, and the name of each state. */
static tess_status join_step(tess__layout *l, const tess__setup *s, const tess__param *p,
                             const tess_precision_choice *c, const tess_grain *g) {
    if (g->grain && !g->kernel && s->step && c->master != TESS_F32)
        return tess__fail(TESS_E_UNSUPPORTED, "parameter \"%s\": optimizer %s steps fp32, and the master is %s",
                          p->name, s->step_name, tess_dtype_name(c->master));
    if (g->kernel && l->kernel && g->kernel != l->kernel)
        return tess__grain_refused(s, p, "names another kernel than for the parameters before");
    for (int32_t k = 0; k < l->n_states && k < (int32_t)g->n_states && k < TESS__MAX_STATES; k++)
        if (strcmp(l->state[k].name, g->state[k].name) != 0)
            return tess__grain_refused(s, p, "names another state than for the parameters before");
    for (; l->n_states < (int32_t)g->n_states; l->n_states++)
        l->state[l->n_states] = g->state[l->n_states];
    l->kernel = g->kernel ? g->kernel : l->kernel;
    return TESS_OK;
}

static int same_group(const tess__group *g, const tess_precision_choice *c, const tess_grain *step, int trainable) {
    return g->trainable == trainable && g->master == c->master && g->compute == c->compute && g->gather == c->gather &&
           g->draws == tess__draws_of(c) &&
           (!trainable || (g->grad_local == c->grad_local && g->grad_wire == c->grad_wire &&
                           memcmp(&g->step, step, sizeof *step) == 0));
}

/* Tells whether the group gets a copy in the dtype that is gathered. Blocks are made of masters. */
static int wants_copy(const tess__setup *s, const tess_precision_choice *c, int trainable) {
    return s->low_copy && trainable && c->master == TESS_F32 && (c->gather == TESS_BF16 || c->gather == TESS_F16);
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    return b ? common_divisor(b, a % b) : a;
}

/* The least number of elements that parts neither blocks of 8 bits nor the optimizer's blocks or rows. */
static uint64_t pad_of(const tess_precision_choice *c, const tess_grain *step, int trainable) {
    int blocks = tess_dtype_is_blocks(c->gather) || (trainable && tess_dtype_is_blocks(c->grad_wire));
    uint64_t pad = blocks ? TESS_Q8_BLOCK : TESS__PAD_ELEMS;
    return step->block ? pad / common_divisor(pad, step->block) * step->block : pad;
}

/* Finds the parameter's group in its unit, which is the last one under construction. */
static tess_status join_group(tess__layout *l, const tess__setup *s, tess__param *p, int32_t unit, int32_t *group) {
    tess_precision_choice c;
    tess_grain step = { .grain = 0 };
    TRY(tess__param_dtypes(s, p, &c));
    int trainable = !(p->flags & TESS_FROZEN);
    if (trainable)
        TRY(tess__param_step(s, p, &step));
    TRY(join_step(l, s, p, &c, &step));
    p->rows = step.rows, p->cols = step.cols, p->scratch_bytes = step.scratch_bytes;
    step.rows = step.cols = step.scratch_bytes = 0; /* so that matrices of all shapes share a buffer */
    tess__unit *u = &l->units[unit];
    for (int32_t g = u->first_group; g < l->n_groups; g++)
        if (same_group(&l->groups[g], &c, &step, trainable)) {
            *group = g;
            return TESS_OK;
        }
    *group = l->n_groups++;
    u->n_groups++;
    u->trainable |= trainable;
    l->groups[*group] = (tess__group){ .unit = unit,
                                       .trainable = trainable,
                                       .master = c.master,
                                       .compute = c.compute,
                                       .gather = c.gather,
                                       .draws = tess__draws_of(&c),
                                       .pad = pad_of(&c, &step, trainable),
                                       .step = step,
                                       .low_copy = wants_copy(s, &c, trainable),
                                       .grad_local = c.grad_local,
                                       .grad_wire = c.grad_wire };
    return TESS_OK;
}

static void add_to_group(tess__layout *l, tess__param *p) {
    tess__group *g = &l->groups[p->group];
    p->offset = tess__round_up(g->used_elems, g->pad);
    g->used_elems = p->offset + p->elems;
    g->n_params++;
    l->param_elems += p->elems;
    if (p->elems > l->chunk_elems)
        l->chunk_elems = p->elems < TESS__CHUNK_ELEMS ? p->elems : TESS__CHUNK_ELEMS;
}

/* Places the rest: aliases share all with their target, and buffers lie one behind the other, outside every unit. */
static void place_others(tess__model *m, const tess__setup *s, tess__layout *l) {
    for (int32_t i = 0; i < m->n_params; i++) {
        tess__param *p = &m->params[i];
        if (p->flags & TESS_BUFFER && p->tied_to == i) {
            p->offset = l->buffer_bytes;
            l->buffer_bytes += tess__round_up(p->elems * tess_dtype_bytes(p->dtype), s->align);
        }
    }
    for (int32_t i = 0; i < m->n_params; i++) {
        const tess__param *of = &m->params[m->params[i].tied_to];
        m->params[i].unit = of->unit;
        m->params[i].group = of->group;
        m->params[i].offset = of->offset;
    }
}

static void measure_group(const tess__setup *s, tess__group *g) {
    uint64_t s_ranks = (uint64_t)s->shard_ranks;
    g->shard_elems = tess__round_up((g->used_elems + s_ranks - 1) / s_ranks, g->pad);
    g->flat_elems = g->shard_elems * s_ranks;
}

/* Tells whether the sharded gradient is a single leaf, as on one rank. It was rounded to the wire's dtype, which
 * holds it exactly. The engine alone reads it, by kernels of the host. */
static int shard_is_leaf(const tess__model *m, const tess__setup *s, const tess__group *g) {
    int on_device = g->param_rest.domain == TESS_DOMAIN_DEVICE && g->grad_rest.domain == TESS_DOMAIN_DEVICE &&
                    g->state_rest.domain == TESS_DOMAIN_DEVICE;
    return g->trainable && s->nranks == 1 && g->grad_wire == TESS_BF16 && g->grad_local == TESS_F32 &&
           g->master == TESS_F32 && on_device && tess__one_memory(s) && tess__steps_in_pass(m, s);
}

static void finish_group(const tess__model *m, const tess__setup *s, tess__group *g) {
    g->grad_shard = shard_is_leaf(m, s, g) ? g->grad_wire : TESS_F32;
    g->in_place =
        s->shard_ranks == 1 && (g->master == g->gather || g->low_copy) && g->param_rest.domain == TESS_DOMAIN_DEVICE;
    g->grad_in_place = g->trainable && s->shard_ranks == 1 && s->accum == 1 && g->grad_local == g->grad_wire &&
                       g->grad_local == TESS_F32 && g->grad_rest.domain == TESS_DOMAIN_DEVICE;
}

/* ---- names of units, for messages ---- */

/* The common prefix of the scopes of a unit's parameters. */
typedef struct {
    const char *text;
    size_t length;
    int32_t storages, aliases, last;
} common_name;

static int part_ends(const char *name, size_t length, size_t at) {
    return at == length || name[at] == '.';
}

static void narrow_name(common_name *c, const char *scope) {
    size_t same = 0, n = strlen(scope);
    while (same < c->length && same < n && c->text[same] == scope[same])
        same++;
    while (same > 0 && !(part_ends(c->text, c->length, same) && part_ends(scope, n, same)))
        same--;
    c->length = same;
}

static void join_param(common_name *c, const tess__model *m, int32_t i) {
    const tess__param *p = &m->params[i];
    if (p->tied_to != i) {
        c->aliases++;
    } else {
        c->storages++;
        c->last = i;
    }
    const char *scope = m->scopes[p->scope].name;
    if (c->text)
        narrow_name(c, scope);
    else
        c->text = scope, c->length = strlen(scope);
}

/* Names a unit by its tied parameter, else by the module that its scopes share. */
static char *unit_name(const tess__model *m, const common_name *c) {
    if (c->storages == 1 && c->aliases)
        return strdup(m->params[c->last].name);
    return c->text && c->length ? strndup(c->text, c->length) : strdup("root");
}

static tess_status name_units(const tess__model *m, const int32_t *unit_of_param, tess__layout *l) {
    common_name *c = calloc((size_t)l->n_units + 1, sizeof *c);
    int ok = c != NULL;
    for (int32_t i = 0; ok && i < m->n_params; i++)
        if (unit_of_param[i] >= 0)
            join_param(&c[unit_of_param[i]], m, i);
    for (int32_t u = 0; ok && u < l->n_units; u++)
        ok = (l->units[u].name = unit_name(m, &c[u])) != NULL;
    free(c);
    return ok ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory for the names of %d units", l->n_units);
}

/* ---- the whole ---- */

/* Lists the parameters that hold storage and have a key, ascending by key, else in declaration order; first[key] is
 * where its run starts. `first` has n_keys + 1 zeroes. */
static int32_t sort_params(const tess__model *m, const int32_t *key, int32_t n_keys, int32_t *first, int32_t *out) {
    for (int32_t i = 0; i < m->n_params; i++)
        if (m->params[i].tied_to == i && key[i] >= 0)
            first[key[i] + 1]++;
    for (int32_t k = 0; k < n_keys; k++)
        first[k + 1] += first[k];
    int32_t n = first[n_keys];
    for (int32_t i = m->n_params; i-- > 0;)
        if (m->params[i].tied_to == i && key[i] >= 0)
            out[--first[key[i] + 1]] = i;
    for (int32_t k = 0; k < n_keys; k++)
        first[k] = first[k + 1];
    first[n_keys] = n;
    return n;
}

static tess_status form_groups(tess__model *m, const tess__setup *s, tess__layout *l, const int32_t *first,
                               const int32_t *by_unit) {
    for (int32_t u = 0; u < l->n_units; u++) {
        l->units[u].first_group = l->n_groups;
        for (int32_t i = first[u]; i < first[u + 1]; i++) {
            tess__param *p = &m->params[by_unit[i]];
            TRY(join_group(l, s, p, u, &p->group));
            add_to_group(l, p);
        }
    }
    return TESS_OK;
}

/* Measures the results of a pass. The host must not wait in the middle of one, so its values come by copies that go
 * on beside. */
static void measure_results(const tess__model *m, const tess__setup *s, tess__layout *l) {
    l->passes = 1;
    if (!tess__has_streams(s->device, s->env.mem))
        return;
    if (s->late && m->n_blocks) {
        l->passes = TESS__PASSES;
        l->batch_bytes = s->input_bytes;
        l->values_bytes = s->nranks > 1 ? TESS__VALUES_BYTES : 0;
        if (tess__may_record(s) && s->optimizer)
            l->prepared_bytes =
                (uint64_t)l->n_order * TESS_PREPARED_BYTES; /* segments are never more than parameters */
    }
    l->result_bytes = m->n_blocks ? m->blocks[m->n_blocks - 1].options.output_bytes : 0;
    l->norm_result_bytes = s->optimizer ? (TESS__NORM_LIMBS + 1) * sizeof(int64_t) : 0; /* and what a step notes */
}

tess_status tess__layout_build(tess__model *m, const tess__setup *s, const int32_t *unit_of_param, int32_t n_units,
                               tess__layout *out) {
    tess__layout l = { .n_units = n_units };
    size_t n = (size_t)m->n_params + 1, keys = (size_t)(n_units > m->n_params ? n_units : m->n_params) + 2;
    int32_t *first = calloc(keys, sizeof *first), *sorted = calloc(n, sizeof *sorted),
            *group = calloc(n, sizeof *group);
    tess_status status = TESS_OK;
    l.units = calloc((size_t)n_units + 1, sizeof *l.units);
    l.groups = calloc(n, sizeof *l.groups); /* never more groups than parameters */
    l.order = calloc(n, sizeof *l.order);
    if (!first || !sorted || !group || !l.units || !l.groups || !l.order) {
        status = tess__fail(TESS_E_NOMEM, "no memory for the layout of %d parameters", m->n_params);
        goto err_free;
    }
    for (int32_t i = 0; i < m->n_params; i++)
        m->params[i].unit = unit_of_param[i], m->params[i].group = -1;
    if ((status = name_units(m, unit_of_param, &l)))
        goto err_free;
    sort_params(m, unit_of_param, n_units, first, sorted);
    if ((status = form_groups(m, s, &l, first, sorted)))
        goto err_free;
    for (int32_t i = 0; i < m->n_params; i++)
        group[i] = m->params[i].group;
    memset(first, 0, keys * sizeof *first);
    l.n_order = sort_params(m, group, l.n_groups, first, l.order);
    for (int32_t g = 0; g < l.n_groups; g++) {
        l.groups[g].first_param = first[g];
        measure_group(s, &l.groups[g]);
    }
    if ((status = tess__matrices_list(m, s->shard_ranks, &l)) || (status = tess__layout_place(&l, m, s)))
        goto err_free;
    for (int32_t g = 0; g < l.n_groups; g++)
        finish_group(m, s, &l.groups[g]);
    place_others(m, s, &l);
    measure_results(m, s, &l);
    *out = l;
    l = (tess__layout){ 0 };
err_free:
    tess__layout_free(&l);
    free(first);
    free(sorted);
    free(group);
    return status;
}

void tess__layout_free(tess__layout *l) {
    for (int32_t u = 0; l->units && u < l->n_units; u++)
        free(l->units[u].name);
    free(l->units);
    free(l->groups);
    free(l->order);
    free(l->matrices);
    *l = (tess__layout){ 0 };
}

tess__piece tess__layout_piece(const tess__layout *l, const tess__param *p, int32_t shard_rank) {
    const tess__group *g = &l->groups[p->group];
    uint64_t begin = (uint64_t)shard_rank * g->shard_elems, end = begin + g->shard_elems;
    uint64_t from = p->offset > begin ? p->offset : begin;
    uint64_t to = p->offset + p->elems < end ? p->offset + p->elems : end;
    if (from >= to)
        return (tess__piece){ 0 };
    return (tess__piece){ .in_param = from - p->offset, .in_shard = from - begin, .elems = to - from };
}

tess__span_elems tess__replica_part(const tess__group *g, int32_t replica, int32_t replicas) {
    uint64_t pads = g->shard_elems / g->pad, k = (uint64_t)replica, n = (uint64_t)replicas;
    uint64_t first = pads * k / n, end = pads * (k + 1) / n;
    return (tess__span_elems){ .first = first * g->pad, .elems = (end - first) * g->pad };
}

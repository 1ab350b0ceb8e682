/* SPDX-License-Identifier: BSD-3-Clause */
/* A line's key says what a tensor is, and not which instruction made it, so that two programs can be compared: the
 * stage, its microbatch of the step, and the name. A digest is by place: parts of a shard add up to the whole. */
#include "detail.h"

#include "base/hash.h"
#include "base/status.h"
#include "checkpoint/json_text.h"
#include "kernels/digest.h"
#include "readers/ledger.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *stage, *what, *name, *unit;
    const char *text;    /* of the instruction */
    int32_t microbatch;  /* of this rank; -1: of the whole step */
    int alone;           /* each rank has its own */
    uint32_t dtype, mem; /* blocks have no elements of their own, and are left out */
    uint64_t first, elems;
    const char *at;
} tensor;

enum { KEY = 512 };

static int is_here(const tess *t) {
    return t->settings.detail && t->step.steps_done + 1 == t->settings.detail_step;
}

/* ---- lines ----------------------------------------------------------------------------------------- */

/* A microbatch's number in the order in which sums add them, over all ranks: others may share them out otherwise. */
static int32_t number_of(const tess *t, int32_t microbatch) {
    const tess__setup *s = &t->plan.setup;
    return s->sync_each ? microbatch * s->nranks + t->comms.world.rank : t->comms.world.rank * s->accum + microbatch;
}

static void make_key(const tess *t, const tess__detail *d, const tensor *x, char *out) {
    int at = snprintf(out, KEY, "%s %s of %s", x->stage, x->what, x->name);
    if (x->microbatch >= 0 && x->alone)
        at += snprintf(out + at, (size_t)(KEY - at), " @%d%s", number_of(t, x->microbatch), d->backward ? " b" : "");
    else if (x->microbatch >= 0)
        at += snprintf(out + at, (size_t)(KEY - at), " @%d of %d%s", x->microbatch, t->plan.setup.accum,
                       d->backward ? " b" : "");
    else if (x->alone)
        snprintf(out + at, (size_t)(KEY - at), " @rank %d", t->comms.world.rank);
}

static int on_host(uint32_t mem) {
    return mem == TESS_MEM_HOST || mem == TESS_MEM_PINNED;
}

/* Calls `fn` with pieces that the host can read. */
static tess_status each_piece(tess *t, tess__detail *d, const tensor *x,
                              void (*fn)(void *, const char *, uint64_t first, uint64_t n), void *user) {
    uint64_t bytes = tess_dtype_bytes(x->dtype), most = TESS__PROOF_CHUNK / bytes;
    if (on_host(x->mem)) {
        fn(user, x->at, x->first, x->elems);
        return TESS_OK;
    }
    if (!d->chunk && !(d->chunk = malloc(TESS__PROOF_CHUNK)))
        return tess__fail(TESS_E_NOMEM, "no memory for digests in detail");
    for (uint64_t done = 0; done < x->elems; done += most) {
        uint64_t some = x->elems - done < most ? x->elems - done : most;
        TRY(tess__copy_now(t, d->chunk, TESS_MEM_HOST, x->at + done * bytes, x->mem, some * bytes));
        fn(user, d->chunk, x->first + done, some);
    }
    return TESS_OK;
}

typedef struct {
    uint64_t sum, seed;
    uint32_t bytes;
    FILE *to;
} reading;

static void digest_piece(void *user, const char *at, uint64_t first, uint64_t n) {
    reading *r = user;
    r->sum += tess__digest(at, r->bytes, first, n, r->seed);
}

static void write_piece(void *user, const char *at, uint64_t first, uint64_t n) {
    (void)first;
    reading *r = user;
    fwrite(at, r->bytes, n, r->to);
}

static void put_text(FILE *f, const char *key, const char *value) {
    fprintf(f, ",\"%s\":", key);
    tess__json_text(f, value);
}

static void put_line(const tess *t, FILE *f, const tess__detail *d, const tensor *x, const char *key, uint64_t sum) {
    fprintf(f, "{\"n\":%" PRIu64 ",\"rank\":%d,\"microbatch\":%d", d->n, t->comms.world.rank, x->microbatch);
    put_text(f, "key", key);
    put_text(f, "pass", tess__pass_name(t->pass.program ? t->pass.program->kind : TESS_PASS_TRAIN));
    put_text(f, "instruction", x->text);
    put_text(f, "stage", x->stage);
    put_text(f, "unit", x->unit);
    put_text(f, "what", x->what);
    put_text(f, "tensor", x->name);
    put_text(f, "dtype", tess_dtype_name(x->dtype));
    fprintf(f, ",\"bytes\":%u,\"first\":%" PRIu64 ",\"elems\":%" PRIu64 ",\"digest\":\"%016" PRIx64 "\"}\n",
            tess_dtype_bytes(x->dtype), x->first, x->elems, sum);
}

/* A key names one tensor of a microbatch, a name all that is of it. */
static int is_wanted(const char *wanted, const char *key, const tensor *x) {
    return strcmp(key, wanted) == 0 || strcmp(x->name, wanted) == 0;
}

static tess_status put(tess *t, tess__detail *d, tensor x) {
    char key[KEY];
    if (!x.elems || !x.at || tess_dtype_is_blocks(x.dtype))
        return TESS_OK;
    make_key(t, d, &x, key);
    reading r = { .bytes = tess_dtype_bytes(x.dtype), .seed = tess__hash_text(TESS__HASH_START, x.name) };
    TRY(each_piece(t, d, &x, digest_piece, &r));
    put_line(t, d->lines, d, &x, key, r.sum);
    if (d->values && is_wanted(t->settings.detail_values, key, &x)) {
        r.to = d->values;
        put_line(t, d->values, d, &x, key, r.sum);
        TRY(each_piece(t, d, &x, write_piece, &r));
    }
    if (ferror(d->lines) || (d->values && ferror(d->values)))
        return tess__fail(TESS_E_DATA, "TESSERA_DETAIL=%s: %s", t->settings.detail, strerror(errno));
    return TESS_OK;
}

/* ---- tensors of a group ---------------------------------------------------------------------------- */

/* The scope that declared it, as in the ledger. */
static const char *unit_name(const tess *t, const tess__param *p) {
    return t->plan.model.scopes[p->scope].name;
}

/* This rank's part of each parameter in a shard; one value stands for `every` elements. */
static tess_status put_shard(tess *t, tess__detail *d, int32_t g, tensor x, uint64_t every) {
    const tess__group *group = &t->plan.layout.groups[g];
    const char *shard = x.at;
    for (int32_t k = 0; k < group->n_params; k++) {
        const tess__param *p = &t->plan.model.params[t->plan.layout.order[group->first_param + k]];
        tess__piece piece = tess__layout_piece(&t->plan.layout, p, t->comms.shard_rank);
        x.unit = unit_name(t, p);
        x.name = p->name;
        x.first = piece.in_param / every;
        x.elems = tess__values_of(piece.elems, (uint32_t)every);
        x.at = shard + piece.in_shard / every * tess_dtype_bytes(x.dtype);
        TRY(put(t, d, x));
    }
    return TESS_OK;
}

/* Each parameter, or its gradient, in an unsharded buffer. */
static tess_status put_full(tess *t, tess__detail *d, int32_t g, tensor x) {
    const tess__group *group = &t->plan.layout.groups[g];
    const char *all = x.at;
    for (int32_t k = 0; k < group->n_params; k++) {
        const tess__param *p = &t->plan.model.params[t->plan.layout.order[group->first_param + k]];
        x.unit = unit_name(t, p);
        x.name = p->name;
        x.elems = p->elems;
        x.at = all + p->offset * tess_dtype_bytes(x.dtype);
        TRY(put(t, d, x));
    }
    return TESS_OK;
}

/* In a step, states of a store, and parameters, are in the memory in which they are stepped. */
static tess_status put_states(tess *t, tess__detail *d, int32_t g, int stepped, tensor x) {
    const tess__group *group = &t->plan.layout.groups[g];
    int staged = stepped && group->state_rest.stored;
    x.mem = staged ? TESS_MEM_HOST : tess__rest_mem(t, &group->state_rest);
    for (uint32_t s = 0; s < group->step.n_states; s++) {
        const tess_state *state = &group->step.state[s];
        x.what = t->plan.layout.state[s].name;
        x.dtype = state->dtype;
        x.at = tess__address_of(t, (staged ? TESS__STAGED0 : TESS__STATE0) + (int)s, g);
        TRY(put_shard(t, d, g, x, state->every ? state->every : 1));
    }
    return TESS_OK;
}

/* Parameters, copies and states, as they rest between steps, or as a step has just left them. */
static tess_status put_rest(tess *t, tess__detail *d, int32_t g, int stepped, tensor x) {
    const tess__group *group = &t->plan.layout.groups[g];
    x.microbatch = -1;
    TRY(put_states(t, d, g, stepped, x));
    x.what = "parameter";
    x.dtype = group->master;
    int staged = stepped && group->param_rest.stored;
    x.mem = staged ? TESS_MEM_HOST : tess__rest_mem(t, &group->param_rest);
    x.at = staged ? tess__master_address(&t->memory, g) : tess__address_of(t, TESS__MASTER, g);
    TRY(put_shard(t, d, g, x, 1));
    if (!group->low_copy)
        return TESS_OK;
    x.what = "low-precision copy";
    x.dtype = group->compute;
    x.at = tess__address_of(t, TESS__LOW_COPY, g);
    return put_shard(t, d, g, x, 1);
}

static tess_status put_gathered(tess *t, tess__detail *d, int32_t g, tensor x) {
    x.stage = "gather";
    x.what = "parameter";
    x.alone = 1;
    x.dtype = t->plan.layout.groups[g].compute;
    x.at = tess__address_of(t, TESS__FULL, g);
    return put_full(t, d, g, x);
}

static int ends_in_part(const tess *t, int32_t g) {
    return t->memory.booked[TESS__PART][g];
}

/* The gradient as the optimizer reads it, or a part on its way there. */
static tess_status put_sum(tess *t, tess__detail *d, int32_t g, int is_whole, tensor x) {
    const tess__group *group = &t->plan.layout.groups[g];
    x.stage = is_whole ? "sum" : "part of the sum";
    x.what = "gradient";
    x.microbatch = is_whole ? -1 : x.microbatch;
    x.dtype = is_whole ? group->grad_shard : TESS_F32;
    x.mem = group->grad_rest.stored ? TESS_MEM_HOST : tess__rest_mem(t, &group->grad_rest);
    x.at = is_whole ? tess__grad_address(&t->memory, g) : tess__reduce_target(t, g);
    if (!is_whole && ends_in_part(t, g) && !tess__one_memory(&t->plan.setup))
        x.mem = t->plan.setup.env.mem;
    return put_shard(t, d, g, x, 1);
}

/* The instruction that leaves a group's gradient summed over all ranks. Others sum over some, or leave blocks. */
static uint8_t last_of_sum(const tess *t, int32_t g) {
    const tess__setup *s = &t->plan.setup;
    int blocks = tess_dtype_is_blocks(t->plan.layout.groups[g].grad_wire) && s->nranks > 1;
    if (s->replicas > 1)
        return blocks ? TESS__WIDEN_SUM : TESS__REPLICATE_WAIT;
    return blocks ? TESS__SUM_ARRIVED : TESS__REDUCE_WAIT;
}

static tess_status put_reduced(tess *t, tess__detail *d, const tess__instr *in, tensor x) {
    if (in->op != last_of_sum(t, in->index))
        return TESS_OK;
    return put_sum(t, d, in->index, !ends_in_part(t, in->index), x);
}

/* ---- instructions ---------------------------------------------------------------------------------- */

static tess_status put_norm(tess *t, tess__detail *d, tensor x) {
    x.stage = "norm";
    x.what = "norm";
    x.name = "all gradients";
    x.microbatch = -1;
    x.alone = 1;
    x.dtype = TESS_F64;
    x.mem = TESS_MEM_HOST;
    x.elems = 1;
    x.at = (const char *)&t->step.norm;
    return t->step.norm_limbs ? TESS_OK : put(t, d, x);
}

static tess_status put_input(tess *t, tess__detail *d, tensor x) {
    uint64_t bytes = t->plan.setup.input_bytes;
    x.stage = "input";
    x.what = "value";
    x.name = "the batch";
    x.alone = 1;
    x.dtype = bytes % 4 ? TESS_U8 : TESS_I32;
    x.elems = bytes / tess_dtype_bytes(x.dtype);
    x.at = tess__address_of(t, TESS__INPUT, 0);
    return put(t, d, x);
}

static tess_status put_wire(tess *t, tess__detail *d, int32_t g, tensor x) {
    const tess__group *group = &t->plan.layout.groups[g];
    x.stage = "cast";
    x.what = "gradient";
    x.alone = 1;
    x.dtype = group->grad_wire;
    x.at = tess__address_of(t, group->grad_shard == TESS_F32 ? TESS__WIRE : TESS__SHARD_GRAD, g);
    return tess_dtype_is_blocks(group->grad_wire) ? TESS_OK : put_full(t, d, g, x);
}

static tess_status put_step(tess *t, tess__detail *d, const tess__instr *in, tensor x) {
    x.stage = "step";
    if (in->flags & TESS__ASYNC)
        TRY(tess__work_wait(t, in));
    return put_rest(t, d, in->index, 1, x);
}

static tess_status put_instr(tess *t, tess__detail *d, const tess__instr *in, tensor x) {
    switch (in->op) {
    case TESS__INPUT_COPY: return put_input(t, d, x);
    case TESS__GATHER_WAIT:
        return tess_dtype_is_blocks(t->plan.layout.groups[in->index].gather) ? TESS_OK
                                                                             : put_gathered(t, d, in->index, x);
    case TESS__WIDEN: return put_gathered(t, d, in->index, x);
    case TESS__CAST_WIRE: return put_wire(t, d, in->index, x);
    case TESS__REDUCE_WAIT:
    case TESS__SUM_ARRIVED:
    case TESS__REPLICATE_WAIT:
    case TESS__WIDEN_SUM: return put_reduced(t, d, in, x);
    case TESS__SUM_SHARD:
        if (in->flags & TESS__ASYNC)
            TRY(tess__work_wait(t, in));
        return t->pass.microbatch < t->plan.setup.accum - 1 ? TESS_OK : put_sum(t, d, in->index, 1, x);
    case TESS__NORM_FINISH: return put_norm(t, d, x);
    case TESS__OPTIMIZE:
    case TESS__UPDATE_APPLY: return t->step.skips ? TESS_OK : put_step(t, d, in, x);
    default: return TESS_OK;
    }
}

static tensor tensor_of(const tess *t, const char *text) {
    return (tensor){ .text = text, .unit = "", .microbatch = t->pass.microbatch, .mem = t->plan.setup.env.mem };
}

tess_status tess__detail_instr(tess *t, tess__detail *d, const tess__instr *in) {
    char text[256];
    if (!d->lines || !is_here(t) || in->op == TESS__ALLOC || in->op == TESS__FREE)
        return TESS_OK;
    d->n++;
    TRY(tess__streams_sync(&t->streams));
    tess__program_text(t->pass.program, &t->plan.model, &t->plan.layout, (int32_t)(in - t->pass.program->instrs), text,
                       sizeof text);
    return put_instr(t, d, in, tensor_of(t, text));
}

/* ---- events ---------------------------------------------------------------------------------------- */

static int is_backward(const tess__event *e) {
    return e->type == TESS__BACKWARD_BEGIN || e->type == TESS__BACKWARD_END;
}

/* Forward's output, which the last block's backward may write. */
static tess_status put_output(tess *t, tess__detail *d, const tess__event *e, tensor x) {
    int32_t i = t->plan.model.scopes[e->scope].block;
    if (t->plan.model.n_blocks == 0 || !t->memory.booked[TESS__OUTPUT][i])
        return TESS_OK;
    int late = (t->pass.kind & 15) == TESS_PASS_TRAIN && tess__result_is_late(&t->plan.model, i);
    if (late ? e->type != TESS__BACKWARD_END : is_backward(e))
        return TESS_OK;
    x.what = "output";
    x.dtype = tess__scope_dtype(t, e->scope);
    x.elems = t->plan.model.blocks[i].options.output_bytes / tess_dtype_bytes(x.dtype);
    x.at = tess__address_of(t, TESS__OUTPUT, i);
    return put(t, d, x);
}

static tess_status put_input_gradient(tess *t, tess__detail *d, const tess__event *e, tensor x) {
    int32_t i = t->plan.model.scopes[e->scope].block, place;
    if (t->plan.model.n_blocks == 0 || i == 0)
        return TESS_OK;
    place = tess__grad_place(&t->plan.model, i - 1);
    if (!t->memory.booked[TESS__OUTPUT_GRAD][place])
        return TESS_OK;
    x.what = "gradient of the input";
    x.dtype = tess__scope_dtype(t, e->scope);
    x.elems = t->plan.model.blocks[i - 1].options.output_bytes / tess_dtype_bytes(x.dtype);
    x.at = tess__address_of(t, TESS__OUTPUT_GRAD, place);
    return put(t, d, x);
}

/* The scope's own gradients, as its kernels left them. One in place has all microbatches so far. */
static tess_status put_gradients(tess *t, tess__detail *d, const tess__event *e, tensor x) {
    const tess__scope *s = &t->plan.model.scopes[e->scope];
    x.what = "gradient";
    for (int32_t i = 0; i < s->n_params; i++) {
        const tess__param *p = &t->plan.model.params[s->params[i]];
        if (p->flags & (TESS_BUFFER | TESS_FROZEN))
            continue;
        const tess__group *g = &t->plan.layout.groups[p->group];
        if (g->grad_in_place && t->plan.setup.accum > 1)
            continue;
        x.name = p->name;
        x.dtype = g->grad_local;
        x.elems = p->elems;
        x.at = (const char *)tess__address_of(t, g->grad_in_place ? TESS__SHARD_GRAD : TESS__GRAD, p->group) +
               p->offset * tess_dtype_bytes(g->grad_local);
        TRY(put(t, d, x));
    }
    return TESS_OK;
}

tess_status tess__detail_event(tess *t, tess__detail *d, const tess__event *e) {
    char text[256];
    if (!d->lines || !is_here(t))
        return TESS_OK;
    d->n++;
    int backward = is_backward(e);
    d->backward |= backward;
    TRY(tess__streams_sync(&t->streams));
    tess__event_text(t, e, text, sizeof text);
    tensor x = tensor_of(t, text);
    x.stage = backward ? "backward" : e->type == TESS__RECOMPUTE_BEGIN ? "recomputation" : "forward";
    x.unit = x.name = t->plan.model.scopes[e->scope].name;
    x.alone = 1;
    TRY(put_output(t, d, e, x));
    if (!backward)
        return TESS_OK;
    TRY(put_input_gradient(t, d, e, x));
    return put_gradients(t, d, e, x);
}

/* ---- its life -------------------------------------------------------------------------------------- */

static tess_status open_file(const tess *t, const char *name, FILE **out) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s-%d", t->settings.detail, name, t->comms.world.rank);
    *out = fopen(path, "ae");
    return *out ? TESS_OK : tess__fail(TESS_E_DATA, "TESSERA_DETAIL: %s: %s", path, strerror(errno));
}

static tess_status put_buffers(tess *t, tess__detail *d, tensor x) {
    x.what = "running statistics";
    x.alone = 1;
    x.at = tess__address_of(t, TESS__BUFFERS, 0);
    const char *all = x.at;
    for (int32_t i = 0; i < t->plan.model.n_params; i++) {
        const tess__param *p = &t->plan.model.params[i];
        if (!(p->flags & TESS_BUFFER) || p->tied_to != i)
            continue;
        x.unit = unit_name(t, p);
        x.name = p->name;
        x.dtype = p->dtype;
        x.elems = p->elems;
        x.at = all + p->offset;
        TRY(put(t, d, x));
    }
    return TESS_OK;
}

static tess_status begin_step(tess *t, tess__detail *d) {
    if (!d->lines)
        TRY(open_file(t, "lines", &d->lines));
    if (!d->values && t->settings.detail_values)
        TRY(open_file(t, "values", &d->values));
    TRY(tess__streams_sync(&t->streams));
    tensor x = tensor_of(t, "what rests before the step");
    x.stage = "before the step";
    x.microbatch = -1;
    for (int32_t g = 0; g < t->plan.layout.n_groups; g++)
        TRY(put_rest(t, d, g, 0, x));
    return put_buffers(t, d, x);
}

tess_status tess__detail_pass(tess *t, tess__detail *d, uint32_t pass_kind) {
    d->backward = 0;
    if (!is_here(t) || (pass_kind & 15) != TESS_PASS_TRAIN || t->pass.microbatch)
        return TESS_OK;
    return begin_step(t, d);
}

void tess__detail_end(tess__detail *d) {
    if (d->lines)
        fclose(d->lines);
    if (d->values)
        fclose(d->values);
    free(d->chunk);
    *d = (tess__detail){ .lines = NULL };
}

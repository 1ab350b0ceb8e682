/* SPDX-License-Identifier: BSD-3-Clause */
/* Low-rank adapters beside a decoder's products on a device: y = W x + scale · B (A x), as decoder_lora.c has them on
 * the CPU. A frozen W that is stored in another dtype is widened before each product that reads it, one matrix at a
 * time. The scratch of a product begins with that matrix and with rows as wide as the rank. */
#include "device.h"

static uint64_t most_of(uint64_t a, uint64_t b, uint64_t c) {
    return device_most(device_most(a, b), c);
}

/* Returns the elements of a layer's largest matrix. */
static uint64_t largest(const decoder *d) {
    uint64_t wide = most_of((uint64_t)d->hidden, (uint64_t)d->q_width, (uint64_t)d->kv_width);
    int is_one = !decoder_has(d, DECODER_K_W);
    return (uint64_t)d->width * (is_one ? device_most(wide, (uint64_t)d->qkv_width) : wide);
}

static uint64_t wide_bytes(const decoder *d) {
    return decoder_widens(d, d->m->options.lora.matrices) ? ops_align(largest(d) * d->elem) : 0;
}

static void *rank_rows(const decoder_chunk *c) {
    return c->z.inner + wide_bytes(c->d);
}

uint64_t device_lora_bytes(const decoder *d) {
    return d->m->options.lora.rank ? wide_bytes(d) + decoder_bytes(d, d->rows, d->m->options.lora.rank) : 0;
}

void *device_workspace(const decoder_chunk *c) {
    return c->z.inner + device_lora_bytes(c->d);
}

tess_status device_widen(const decoder *d, uint32_t kind, const void *from, const int32_t *ids, uint64_t rows,
                         uint64_t width, void *out) {
    ops_stored s = { .kind = kind, .from = from, .ids = ids, .y = out, .rows = rows, .width = width };
    return device_of(d->m)->t->widen_stored(d->m->o, &s);
}

tess_status device_matrix(const decoder_chunk *c, int place, int64_t outputs, int64_t inputs, const void **out) {
    uint32_t kind = c->d->m->options.lora.matrices;
    *out = decoder_weight(c, place);
    if (!decoder_widens(c->d, kind))
        return TESS_OK;
    const void *from = *out;
    *out = c->z.inner;
    return device_widen(c->d, kind, from, NULL, (uint64_t)outputs, (uint64_t)inputs, c->z.inner);
}

/* ---- adapters ---------------------------------------------------------------------------------------- */
static const void *adapter_of(const decoder_chunk *c, int place, int which) {
    return c->call->params[c->d->adapter[place] - c->l->first + which];
}

static tess_status multiply(const decoder_chunk *c, ops_factors f) {
    return device_of(c->d->m)->t->product(c->d->m->o, &f, device_workspace(c));
}

/* scale · A x */
static tess_status down(const decoder_chunk *c, const device_adapted *a) {
    return multiply(c, (ops_factors){ .rows = a->rows,
                                      .columns = c->d->m->options.lora.rank,
                                      .depth = a->inputs,
                                      .a = a->x,
                                      .b = adapter_of(c, a->place, 0),
                                      .turn_b = 1,
                                      .y = rank_rows(c),
                                      .times = c->d->adapter_scale });
}

/* scale · dy B */
static tess_status back(const decoder_chunk *c, const device_adapted *a) {
    return multiply(c, (ops_factors){ .rows = a->rows,
                                      .columns = c->d->m->options.lora.rank,
                                      .depth = a->outputs,
                                      .a = a->y,
                                      .a_pitch = a->pitch,
                                      .b = adapter_of(c, a->place, 1),
                                      .y = rank_rows(c),
                                      .times = c->d->adapter_scale });
}

tess_status device_adapt(const decoder_chunk *c, const device_adapted *a) {
    if (!device_adapts(c->d, a->place))
        return TESS_OK;
    OPS_TRY(down(c, a));
    return multiply(c, (ops_factors){ .rows = a->rows,
                                      .columns = a->outputs,
                                      .depth = c->d->m->options.lora.rank,
                                      .a = rank_rows(c),
                                      .b = adapter_of(c, a->place, 1),
                                      .turn_b = 1,
                                      .y = (void *)(uintptr_t)a->y,
                                      .y_pitch = a->pitch,
                                      .add = 1 });
}

tess_status device_adapt_input(const decoder_chunk *c, const device_adapted *a) {
    if (!device_adapts(c->d, a->place))
        return TESS_OK;
    OPS_TRY(back(c, a));
    return multiply(c, (ops_factors){ .rows = a->rows,
                                      .columns = a->inputs,
                                      .depth = c->d->m->options.lora.rank,
                                      .a = rank_rows(c),
                                      .b = adapter_of(c, a->place, 0),
                                      .y = (void *)(uintptr_t)a->x,
                                      .add = 1 });
}

static tess_status add_gradient(const decoder_chunk *c, const device_adapted *a, int which, ops_factors f) {
    f.y = c->call->grads[c->d->adapter[a->place] - c->l->first + which];
    f.depth = a->rows, f.turn_a = f.wide = 1, f.add = !c->d->m->stores_grads;
    return f.y ? multiply(c, f) : TESS_OK;
}

tess_status device_adapt_weights(const decoder_chunk *c, const device_adapted *a) {
    int64_t rank = c->d->m->options.lora.rank;
    if (!device_adapts(c->d, a->place))
        return TESS_OK;
    OPS_TRY(down(c, a));
    OPS_TRY(add_gradient(
        c, a, 1,
        (ops_factors){ .rows = a->outputs, .columns = rank, .a = a->y, .a_pitch = a->pitch, .b = rank_rows(c) }));
    OPS_TRY(back(c, a));
    return add_gradient(c, a, 0, (ops_factors){ .rows = rank, .columns = a->inputs, .a = rank_rows(c), .b = a->x });
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Products in fp8 on a device. Codes of both factors are made first, as their rows have to lie: with the sum's index
 * last. Matrices that share an input have one scale, as on the CPU, and lie behind each other as codes. So they are
 * one product, wherever the engine has put them. Codes are scratch. The gradient of a result is read once: its codes
 * are made in both orders for the input's gradient, and the turned ones stay for that of the matrices. */
#include "device.h"

typedef struct { /* parts of scratch; b comes last, because its size is another for each product */
    char *a, *turned, *b;
    float *inverse; /* of a's scale, then of b's */
    char *parts, *workspace;
} rooms;

static rooms rooms_of(const decoder_chunk *c, char *at, uint64_t a_bytes, uint64_t turned_bytes, uint64_t b_bytes) {
    rooms z;
    z.a = decoder_cut(&at, a_bytes), z.turned = decoder_cut(&at, turned_bytes);
    z.inverse = decoder_cut(&at, 2 * sizeof(float));
    z.parts = decoder_cut(&at, device_of(c->d->m)->t->fp8_need());
    z.b = decoder_cut(&at, b_bytes);
    z.workspace = at;
    return z;
}

/* Sums over columns may run between the two products of backward, and use the first bytes of scratch. */
static rooms backward_rooms(const decoder_chunk *c, uint64_t dy, uint64_t b_bytes) {
    return rooms_of(c, c->z.inner, device_most(dy, device_of(c->d->m)->columns_bytes), dy, b_bytes);
}

uint64_t device_fp8_bytes(const decoder *d, int place, int64_t inputs, int64_t outputs) {
    const decoder_chunk c = { .d = d };
    uint64_t rows = (uint64_t)d->rows, x = rows * (uint64_t)inputs, w = (uint64_t)inputs * (uint64_t)outputs;
    if (!decoder_in_fp8(d, place, d->rows))
        return 0;
    uint64_t forward = (uint64_t)(uintptr_t)rooms_of(&c, NULL, x, 0, w).workspace;
    uint64_t backward = (uint64_t)(uintptr_t)backward_rooms(&c, rows * (uint64_t)outputs, device_most(x, w)).workspace;
    return device_most(forward, backward);
}

int device_in_fp8(const decoder_chunk *c, const device_beside *of) {
    return decoder_in_fp8(c->d, of->place[0], (int64_t)device_rows_of(c->d->m, c->call).rows);
}

fp8_found device_found(const decoder_chunk *c, const device_beside *of, int which, int backward) {
    const device_decoder *g = device_of(c->d->m);
    uint64_t all = backward ? g->inner.backward_bytes : g->inner.forward_bytes;
    int wants = g->found_bytes && device_in_fp8(c, of);
    return (fp8_found){ .at = wants ? c->z.inner + all - (uint64_t)(1 + which) * g->found_bytes : NULL };
}

static ops_fp8_factor rows_factor(const void *x, int64_t rows, int64_t width, int32_t e5m2, const fp8_found *found) {
    ops_fp8_factor f = { .from = { x }, .rows = { (uint64_t)rows }, .width = (uint64_t)width, .n = 1, .e5m2 = e5m2 };
    f.found = found;
    return f;
}
static ops_fp8_factor matrices_factor(const decoder_chunk *c, const device_beside *of) {
    ops_fp8_factor f = { .width = (uint64_t)of->inputs, .n = of->n };
    for (int32_t i = 0; i < of->n; i++)
        f.from[i] = decoder_weight(c, of->place[i]), f.rows[i] = (uint64_t)of->width[i];
    return f;
}

static tess_status make_codes(const decoder_chunk *c, ops_fp8_factor a, ops_fp8_factor b, const rooms *z) {
    const ops_fp8_factor both[] = { a, b };
    return device_of(c->d->m)->t->fp8_codes(c->d->m->o, both, z->parts);
}

static tess_status multiply(const decoder_chunk *c, ops_factors f, const rooms *z) {
    f.turn_b = 1, f.a_inverse = z->inverse, f.b_inverse = z->inverse + 1;
    return device_of(c->d->m)->t->product(c->d->m->o, &f, z->workspace);
}

tess_status device_product_fp8(const decoder_chunk *c, const device_beside *of, int is_one, const void *x, void *y,
                               const ops_factors *with, const fp8_found *found) {
    int64_t rows = (int64_t)device_rows_of(c->d->m, c->call).rows;
    ops_fp8_factor a = rows_factor(x, rows, of->inputs, 0, found), b = matrices_factor(c, of);
    rooms z = rooms_of(c, c->z.inner, (uint64_t)(rows * of->inputs), 0, (uint64_t)(of->inputs * of->all));
    a.to = z.a, a.inverse = z.inverse, b.to = z.b, b.inverse = z.inverse + 1;
    OPS_TRY(make_codes(c, a, b, &z));
    for (int64_t i = 0, at = 0; i < (is_one ? 1 : of->n); at += of->width[i++]) {
        ops_factors f = *with;
        f.rows = rows, f.columns = is_one ? of->all : of->width[i], f.depth = of->inputs;
        f.a = z.a, f.b = z.b + at * of->inputs, f.y = decoder_at(c->d, y, at), f.y_pitch = of->all;
        f.bias = decoder_weight(c, of->bias[i]);
        OPS_TRY(multiply(c, f, &z));
    }
    return TESS_OK;
}

static int wants_gradient(const decoder_chunk *c, const device_beside *of) {
    for (int32_t i = 0; i < of->n; i++)
        if (decoder_grad(c, of->place[i]))
            return 1;
    return 0;
}

tess_status device_input_gradient_fp8(const decoder_chunk *c, const device_beside *of, const void *dy, void *dx,
                                      const ops_factors *with, const fp8_found *found) {
    ops_factors f = *with;
    ops_fp8_factor a = rows_factor(dy, c->rows, of->all, 1, found), b = matrices_factor(c, of);
    rooms z = backward_rooms(c, (uint64_t)(c->rows * of->all), (uint64_t)(of->inputs * of->all));
    a.to = z.a, a.turned = wants_gradient(c, of) ? z.turned : NULL, a.inverse = z.inverse;
    b.turned = z.b, b.inverse = z.inverse + 1;
    OPS_TRY(make_codes(c, a, b, &z));
    f.rows = c->rows, f.columns = of->inputs, f.depth = of->all, f.a = z.a, f.b = z.b, f.y = dx, f.a_e5m2 = 1;
    return multiply(c, f, &z);
}

tess_status device_weight_gradient_fp8(const decoder_chunk *c, const device_beside *of, const void *x,
                                       const fp8_found *found) {
    device_beside few = device_as_few(c->d, of, (const void *const *)c->call->grads, sizeof(float));
    ops_fp8_factor b = rows_factor(x, c->rows, of->inputs, 0, found), none = { .n = 0 };
    rooms z = backward_rooms(c, (uint64_t)(c->rows * of->all), (uint64_t)(c->rows * of->inputs));
    if (!wants_gradient(c, of))
        return TESS_OK;
    b.turned = z.b, b.inverse = z.inverse + 1;
    OPS_TRY(make_codes(c, b, none, &z));
    for (int64_t i = 0, at = 0; i < few.n; at += few.width[i++]) {
        ops_factors f = { .rows = few.width[i], .columns = of->inputs, .depth = c->rows, .b = z.b, .wide = 1 };
        f.a = z.turned + at * c->rows, f.y = decoder_grad(c, few.place[i]), f.add = !c->d->m->stores_grads;
        f.a_e5m2 = 1;
        OPS_TRY(f.y ? multiply(c, f, &z) : TESS_OK);
    }
    return TESS_OK;
}

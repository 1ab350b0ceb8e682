/* SPDX-License-Identifier: BSD-3-Clause */
/* Products in fp8 on a device. Each makes codes of both its factors first, as its rows have to lie: with the sum's
 * index last. Matrices that share an input have one scale, as on the CPU, and lie behind each other as codes. So they
 * are one product, wherever the engine has put them. Codes are scratch and live for one product. */
#include "device.h"

typedef struct { /* parts of scratch */
    char *a, *b;
    float *inverse; /* of a's scale, then of b's */
    char *parts, *workspace;
} rooms;

static rooms rooms_of(const decoder_chunk *c, uint64_t a_elems, uint64_t b_elems) {
    char *at = c->z.inner;
    rooms z;
    z.a = decoder_cut(&at, a_elems), z.b = decoder_cut(&at, b_elems);
    z.inverse = decoder_cut(&at, 2 * sizeof(float));
    z.parts = decoder_cut(&at, device_of(c->d->m)->t->fp8_need());
    z.workspace = at;
    return z;
}

uint64_t device_fp8_bytes(const decoder *d, int place, int64_t inputs, int64_t outputs) {
    uint64_t rows = (uint64_t)d->rows, x = rows * (uint64_t)inputs, w = (uint64_t)inputs * (uint64_t)outputs;
    uint64_t dy = rows * (uint64_t)outputs, pair = device_most(x + w, device_most(x + dy, w + dy));
    if (!decoder_in_fp8(d, place, d->rows))
        return 0;
    return pair + ops_align(2 * sizeof(float)) + ops_align(device_of(d->m)->t->fp8_need());
}

int device_in_fp8(const decoder_chunk *c, const device_beside *of) {
    return decoder_in_fp8(c->d, of->place[0], (int64_t)device_rows_of(c->d->m, c->call).rows);
}

static ops_fp8_factor rows_factor(const void *x, int64_t rows, int64_t width, int32_t turn, int32_t e5m2) {
    ops_fp8_factor f = { .from = { x }, .rows = { (uint64_t)rows }, .width = (uint64_t)width };
    f.n = 1, f.turn = turn, f.e5m2 = e5m2;
    return f;
}
static ops_fp8_factor matrices_factor(const decoder_chunk *c, const device_beside *of, int32_t turn) {
    ops_fp8_factor f = { .width = (uint64_t)of->inputs, .n = of->n, .turn = turn };
    for (int32_t i = 0; i < of->n; i++)
        f.from[i] = decoder_weight(c, of->place[i]), f.rows[i] = (uint64_t)of->width[i];
    return f;
}

static uint64_t elems_of(const ops_fp8_factor *f) {
    uint64_t rows = 0;
    for (int32_t i = 0; i < f->n; i++)
        rows += f->rows[i];
    return rows * f->width;
}

/* Makes the codes of both factors, and gives where they lie. */
static tess_status make_codes(const decoder_chunk *c, ops_fp8_factor a, ops_fp8_factor b, rooms *z) {
    *z = rooms_of(c, elems_of(&a), elems_of(&b));
    a.to = z->a, a.inverse = z->inverse;
    b.to = z->b, b.inverse = z->inverse + 1;
    const ops_fp8_factor both[] = { a, b };
    return device_of(c->d->m)->t->fp8_codes(c->d->m->o, both, z->parts);
}

static tess_status multiply(const decoder_chunk *c, ops_factors f, const rooms *z) {
    f.turn_b = 1, f.a_inverse = z->inverse, f.b_inverse = z->inverse + 1;
    return device_of(c->d->m)->t->product(c->d->m->o, &f, z->workspace);
}

tess_status device_product_fp8(const decoder_chunk *c, const device_beside *of, int is_one, const void *x, void *y,
                               const ops_factors *with) {
    int64_t rows = (int64_t)device_rows_of(c->d->m, c->call).rows;
    rooms z;
    OPS_TRY(make_codes(c, rows_factor(x, rows, of->inputs, 0, 0), matrices_factor(c, of, 0), &z));
    for (int64_t i = 0, at = 0; i < (is_one ? 1 : of->n); at += of->width[i++]) {
        ops_factors f = *with;
        f.rows = rows, f.columns = is_one ? of->all : of->width[i], f.depth = of->inputs;
        f.a = z.a, f.b = z.b + at * of->inputs, f.y = decoder_at(c->d, y, at), f.y_pitch = of->all;
        f.bias = decoder_weight(c, of->bias[i]);
        OPS_TRY(multiply(c, f, &z));
    }
    return TESS_OK;
}

tess_status device_input_gradient_fp8(const decoder_chunk *c, const device_beside *of, const void *dy, void *dx,
                                      const ops_factors *with) {
    ops_factors f = *with;
    rooms z;
    OPS_TRY(make_codes(c, rows_factor(dy, c->rows, of->all, 0, 1), matrices_factor(c, of, 1), &z));
    f.rows = c->rows, f.columns = of->inputs, f.depth = of->all, f.a = z.a, f.b = z.b, f.y = dx, f.a_e5m2 = 1;
    return multiply(c, f, &z);
}

tess_status device_weight_gradient_fp8(const decoder_chunk *c, const device_beside *of, const void *x, const void *dy) {
    device_beside few = device_as_few(c->d, of, (const void *const *)c->call->grads, sizeof(float));
    int wants = 0;
    rooms z;
    for (int32_t i = 0; i < of->n; i++)
        wants |= decoder_grad(c, of->place[i]) != NULL;
    if (!wants)
        return TESS_OK;
    OPS_TRY(make_codes(c, rows_factor(dy, c->rows, of->all, 1, 1), rows_factor(x, c->rows, of->inputs, 1, 0), &z));
    for (int64_t i = 0, at = 0; i < few.n; at += few.width[i++]) {
        ops_factors f = { .rows = few.width[i], .columns = of->inputs, .depth = c->rows, .b = z.b, .wide = 1 };
        f.a = z.a + at * c->rows, f.y = decoder_grad(c, few.place[i]), f.add = !c->d->m->stores_grads, f.a_e5m2 = 1;
        OPS_TRY(f.y ? multiply(c, f, &z) : TESS_OK);
    }
    return TESS_OK;
}

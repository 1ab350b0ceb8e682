/* SPDX-License-Identifier: BSD-3-Clause */
/* Makes the products of a decoder on the CPU for a given number of rows. */
#include "decoder.h"
#include <tessera/tessera.h>

static tess_status make_matmul(const decoder *d, const ops_matmul_shape *s, ops_matmul **out, uint64_t *most) {
    uint64_t bytes;
    OPS_TRY(d->o->t->matmul_create((ops *)(uintptr_t)d->o, s, out, &bytes));
    *most = bytes > *most ? bytes : *most;
    return TESS_OK;
}

typedef struct {
    const decoder *d;
    int64_t rows;
    int trains;
} maker;

/* Gives products in fp8 room for two of x, w and dy. */
static void add_rounded(const maker *of, decoder_linear *l) {
    uint64_t x = decoder_bytes(of->d, l->rows, l->inputs), w = decoder_bytes(of->d, l->inputs, l->outputs),
             dy = decoder_bytes(of->d, l->rows, l->outputs);
    uint64_t least = x < w ? x : w;
    least = least < dy ? least : dy;
    l->fp8_at = ops_align(l->forward_bytes > l->backward_bytes ? l->forward_bytes : l->backward_bytes);
    l->forward_bytes = l->fp8_at + x + w;
    l->backward_bytes = of->trains ? l->fp8_at + x + w + dy - least : 0;
}

/* `residual`: forward adds to y. `place`: index of the matrix, -1: none; that of the product's bias is the next. */
static tess_status make_products(const maker *of, int64_t inputs, int64_t outputs, int residual, int place,
                                 uint32_t result, decoder_linear *l) {
    const decoder *d = of->d;
    ops_matmul_shape y = { .rows = of->rows, .depth = inputs, .columns = outputs, .turn_b = 1 };
    ops_matmul_shape dx = { .rows = of->rows, .depth = outputs, .columns = inputs };
    ops_matmul_shape dw = { .rows = outputs, .depth = of->rows, .columns = inputs, .turn_a = 1 };
    l->rows = of->rows, l->inputs = inputs, l->outputs = outputs, l->fp8 = decoder_in_fp8(d, place, of->rows);
    y.factor = dx.factor = dw.factor = dx.result = d->dtype;
    y.result = result;
    y.bias = place >= 0 && decoder_has(d, place + 1);
    dw.result = TESS_F32;
    if (of->trains || !residual || d->after_norms)
        OPS_TRY(make_matmul(d, &y, &l->forward, &l->forward_bytes));
    y.add = 1;
    if (residual && !d->after_norms)
        OPS_TRY(make_matmul(d, &y, &l->forward_add, &l->forward_bytes));
    if (!of->trains)
        return TESS_OK;
    OPS_TRY(make_matmul(d, &dx, &l->dx, &l->backward_bytes));
    OPS_TRY(make_matmul(d, &dw, &l->dw, &l->backward_bytes));
    dx.add = dw.add = 1;
    OPS_TRY(make_matmul(d, &dw, &l->dw_add, &l->backward_bytes));
    return d->behind && !residual ? make_matmul(d, &dx, &l->dx_add, &l->backward_bytes) : TESS_OK;
}

static tess_status make_linear(const maker *of, int64_t inputs, int64_t outputs, int residual, int place,
                               uint32_t result, decoder_linear *l) {
    OPS_TRY(make_products(of, inputs, outputs, residual, place, result, l));
    if (l->fp8)
        add_rounded(of, l);
    return TESS_OK;
}

tess_status decoder_linears_create(const decoder *d, int64_t rows, int64_t head_rows, int trains, decoder_linears *p) {
    const maker layer = { d, rows, trains }, head = { d, head_rows, trains };
    int64_t c = d->width;
    OPS_TRY(make_linear(&layer, c, d->behind ? d->q_width : d->qkv_width, 0, DECODER_Q_W, d->dtype, &p->q));
    if (d->behind) {
        OPS_TRY(make_linear(&layer, c, d->kv_width, 0, DECODER_K_W, d->dtype, &p->k));
        OPS_TRY(make_linear(&layer, c, d->kv_width, 0, DECODER_V_W, d->dtype, &p->v));
    }
    OPS_TRY(make_linear(&layer, d->q_width, c, 1, DECODER_O_W, d->dtype, &p->out));
    OPS_TRY(make_linear(&layer, c, d->hidden, 0, DECODER_UP_W, d->dtype, &p->up));
    OPS_TRY(make_linear(&layer, d->hidden, c, 1, DECODER_DOWN_W, d->dtype, &p->down));
    OPS_TRY(make_linear(&head, c, d->vocabulary, 0, -1, TESS_F32, &p->head));
    return decoder_lora_linears(d, rows, head_rows, trains, p);
}

enum { LINEARS = sizeof(decoder_linears) / sizeof(decoder_linear) };

void decoder_linears_destroy(const decoder *d, const decoder_linears *p) {
    const decoder_linear *all = &p->q;
    for (int i = 0; i < LINEARS; i++) {
        ops_matmul *parts[] = {
            all[i].forward, all[i].forward_add, all[i].dx, all[i].dx_add, all[i].dw, all[i].dw_add
        };
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            d->o->t->matmul_destroy(parts[k]);
    }
}

uint64_t decoder_linears_forward_bytes(const decoder_linears *p) {
    const decoder_linear *all = &p->q;
    uint64_t most = 0;
    for (int i = 0; i < LINEARS; i++)
        most = all[i].forward_bytes > most ? all[i].forward_bytes : most;
    return most;
}

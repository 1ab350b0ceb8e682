/* SPDX-License-Identifier: BSD-3-Clause */
/* Low-rank adapters (Hu et al. 2021) beside a decoder's products on the CPU: y = W x + scale · B (A x). W is frozen
 * and has no gradient. So it may be stored in another dtype or in blocks, and a product widens it in its scratch. A
 * product's scratch holds its operators' scratch, then a widened matrix, then rows as wide as the rank. */
#include "decoder_rows.h"
#include "tools/models/parallel.h"
#include <tessera/tessera.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- targets ----------------------------------------------------------------------------------------- */
static int is_product(const decoder_param *p) {
    return p->columns != DECODER_NONE;
}

/* A module's name is its parameter's without ".weight". As in peft, a target is the name or its last parts. */
static int is_target(const char *leaf, const char *target, size_t n) {
    size_t module = strlen(leaf) - strlen(".weight");
    if (n > module || strncmp(leaf + module - n, target, n) != 0)
        return 0;
    return n == module || leaf[module - n - 1] == '.';
}

static int mark_targets(decoder *d, const char *target, size_t n) {
    int all = n == strlen("all-linear") && strncmp(target, "all-linear", n) == 0, found = 0;
    for (int32_t i = 0; i < d->family->n_params; i++) {
        const decoder_param *p = &d->family->params[i];
        if (!is_product(p) || !(all || is_target(p->leaf, target, n)))
            continue;
        d->adapter[p->place] = 0;
        found = 1;
    }
    return found;
}

static tess_status refuse_target(const decoder *d, const char *target, size_t n) {
    char names[200] = "";
    for (int32_t i = 0; i < d->family->n_params; i++) {
        const decoder_param *p = &d->family->params[i];
        size_t at = strlen(names);
        if (is_product(p))
            snprintf(names + at, sizeof names - at, "%s%.*s", at ? ", " : "", (int)(strlen(p->leaf) - 7), p->leaf);
    }
    return tess_fail(TESS_E_INVALID, "lora: %s has no product \"%.*s\"; it has %s (or all-linear)", d->m->t->name,
                     (int)n, target, names);
}

/* Numbers each half's parameters and then its adapters. The numbers are the same whether blocks are halves or
 * layers. */
static int32_t number_params(decoder *d) {
    int32_t n = 0, adapters = 0;
    for (int half = DECODER_ATTENTION; half <= DECODER_FEED; half++) {
        for (int32_t i = 0; i < d->family->n_params; i++)
            if (decoder_is_in(&d->family->params[i], half))
                d->at[d->family->params[i].place] = n++;
        for (int32_t i = 0; i < d->family->n_params; i++) {
            const decoder_param *p = &d->family->params[i];
            if (!decoder_is_in(p, half) || d->adapter[p->place] < 0)
                continue;
            d->adapter[p->place] = n;
            n += 2;
            adapters++;
        }
    }
    return adapters;
}

tess_status decoder_lora_find(decoder *d) {
    const model_lora *o = &d->m->options.lora;
    for (int32_t i = 0; i < DECODER_PLACES; i++)
        d->adapter[i] = -1;
    if (!o->rank)
        return TESS_OK;
    for (const char *p = o->targets; *p;) {
        size_t n = strcspn(p, ",");
        if (!mark_targets(d, p, n))
            return refuse_target(d, p, n);
        p += n + (p[n] == ',');
    }
    d->table = stored_dtype(o->tables) == d->dtype ? STORED_F32 : o->tables;
    d->adapter_scale = o->alpha / (o->rooted ? sqrtf((float)o->rank) : (float)o->rank);
    return number_params(d) ? TESS_OK : tess_fail(TESS_E_INVALID, "lora: no targets are given");
}

/* ---- parameters -------------------------------------------------------------------------------------- */
static tess_status add(model *m, const char *layer, const char *leaf, const char *which, int64_t rows, int64_t columns,
                       uint32_t init, float scale) {
    char name[MODEL_NAME];
    snprintf(name, sizeof name, "%s.%.*s.%s.weight", layer, (int)(strlen(leaf) - 7), leaf, which);
    OPS_TRY(model__add_param(m, name, (const int64_t[MODEL_DIMS]){ rows, columns }, init, scale));
    m->desc.params[m->desc.n_params - 1].is_adapter = 1;
    return TESS_OK;
}

/* Initial values are peft's: A uniform within 1/sqrt(inputs), B zero. */
tess_status decoder_lora_params(model *m, const char *layer, int half) {
    const decoder *d = m->own;
    const int64_t sizes[DECODER_SIZES] = { 0, d->width, d->q_width, d->kv_width, d->qkv_width, d->hidden };
    int32_t rank = m->options.lora.rank;
    for (int32_t i = 0; i < d->family->n_params; i++) {
        const decoder_param *p = &d->family->params[i];
        if (d->adapter[p->place] < 0 || !decoder_is_in(p, half))
            continue;
        int64_t outputs = sizes[p->rows], inputs = sizes[p->columns];
        OPS_TRY(add(m, layer, p->leaf, "lora_A", rank, inputs, MODEL_UNIFORM, (float)(1 / sqrt((double)inputs))));
        OPS_TRY(add(m, layer, p->leaf, "lora_B", outputs, rank, MODEL_CONSTANT, 0));
    }
    return TESS_OK;
}

/* ---- products ---------------------------------------------------------------------------------------- */
typedef struct {
    const decoder *d;
    int64_t rows;
    uint64_t most; /* the most scratch that one needs */
} maker;

static tess_status make(maker *of, ops_matmul_shape s, ops_matmul **out) {
    uint64_t bytes;
    OPS_TRY(of->d->o->t->matmul_create((ops *)(uintptr_t)of->d->o, &s, out, &bytes));
    of->most = bytes > of->most ? bytes : of->most;
    return TESS_OK;
}

/* Makes one of an adapter's two products: `last` adds to the product's result, the first adds to the gradient of its
 * input. */
static tess_status make_adapter(maker *of, int64_t inputs, int64_t outputs, int last, int trains, decoder_linear *l) {
    uint32_t dtype = of->d->dtype;
    ops_matmul_shape y = { .rows = of->rows, .depth = inputs, .columns = outputs, .turn_b = 1 };
    ops_matmul_shape dx = { .rows = of->rows, .depth = outputs, .columns = inputs };
    ops_matmul_shape dw = { .rows = outputs, .depth = of->rows, .columns = inputs, .turn_a = 1 };
    y.factor = dx.factor = dw.factor = y.result = dx.result = dtype;
    dw.result = TESS_F32;
    y.add = last;
    dx.add = !last;
    OPS_TRY(make(of, y, last ? &l->forward_add : &l->forward));
    if (!trains)
        return TESS_OK;
    OPS_TRY(make(of, dx, last ? &l->dx : &l->dx_add));
    OPS_TRY(make(of, dw, &l->dw));
    dw.add = 1;
    return make(of, dw, &l->dw_add);
}

typedef struct { /* one product of decoder_linears, in that order */
    int64_t rows, inputs, outputs;
    int places[2]; /* indices of its matrices; -1: none */
} product;

static void products_of(const decoder *d, int64_t rows, int64_t head_rows, product out[DECODER_LINEARS]) {
    int64_t c = d->width;
    const product all[DECODER_LINEARS] = {
        { rows, c, d->behind ? d->q_width : d->qkv_width, { DECODER_Q_W, -1 } },
        { rows, c, d->kv_width, { DECODER_K_W, -1 } },
        { rows, c, d->kv_width, { DECODER_V_W, -1 } },
        { rows, d->q_width, c, { DECODER_O_W, -1 } },
        { rows, c, d->hidden, { DECODER_UP_W, DECODER_GATE_W } },
        { rows, d->hidden, c, { DECODER_DOWN_W, -1 } },
        { head_rows, c, d->vocabulary, { -1, -1 } },
    };
    memcpy(out, all, sizeof all);
}

static int has_adapter(const decoder *d, const product *p) {
    return (p->places[0] >= 0 && d->adapter[p->places[0]] >= 0) || (p->places[1] >= 0 && d->adapter[p->places[1]] >= 0);
}

static tess_status add_room(const decoder *d, const product *p, int trains, decoder_linears *all, int i) {
    decoder_linear *l = &(&all->q)[i];
    const model_lora *o = &d->m->options.lora;
    maker of = { d, p->rows, l->forward_bytes > l->backward_bytes ? l->forward_bytes : l->backward_bytes };
    int adapts = has_adapter(d, p), widens = decoder_widens(d, i == DECODER_LINEARS - 1 ? o->tables : o->matrices);
    if (adapts) {
        OPS_TRY(make_adapter(&of, p->inputs, o->rank, 0, trains, &all->down_to[i]));
        OPS_TRY(make_adapter(&of, o->rank, p->outputs, 1, trains, &all->up_from[i]));
    }
    if (!adapts && !widens)
        return TESS_OK;
    l->wide_at = ops_align(of.most);
    l->rows_at = l->wide_at + (widens ? decoder_bytes(d, p->inputs, p->outputs) : 0);
    l->forward_bytes = l->rows_at + (adapts ? decoder_bytes(d, p->rows, o->rank) : 0);
    l->backward_bytes = trains ? l->forward_bytes : 0;
    return TESS_OK;
}

tess_status decoder_lora_linears(const decoder *d, int64_t rows, int64_t head_rows, int trains, decoder_linears *all) {
    product of[DECODER_LINEARS];
    products_of(d, rows, head_rows, of);
    for (int i = 0; d->m->options.lora.rank && i < DECODER_LINEARS; i++)
        if ((&all->q)[i].forward || (&all->q)[i].forward_add)
            OPS_TRY(add_room(d, &of[i], trains, all, i));
    return TESS_OK;
}

/* ---- widening ---------------------------------------------------------------------------------------- */
const void *decoder_matrix(const decoder_chunk *c, const decoder_linear *l, int place, char *scratch) {
    const decoder *d = c->d;
    const void *w = decoder_weight(c, place);
    if (!decoder_widens(d, d->m->options.lora.matrices))
        return w;
    product of[DECODER_LINEARS];
    products_of(d, 0, 0, of);
    const product *p = &of[l - &c->p->q];
    stored_widen(d->o, d->m->options.lora.matrices, w, p->inputs * p->outputs, d->dtype, scratch + l->wide_at);
    return scratch + l->wide_at;
}

const void *decoder_table(const decoder *d, const decoder_linear *l, const void *table, char *scratch) {
    if (!decoder_widens(d, d->m->options.lora.tables))
        return table;
    stored_widen(d->o, d->table, table, d->vocabulary * d->width, d->dtype, scratch + l->wide_at);
    return scratch + l->wide_at;
}

/* ---- adapters ---------------------------------------------------------------------------------------- */
typedef struct {
    const decoder_chunk *c;
    const decoder_linear *a, *b; /* null: no adapter */
    int32_t at;                  /* index of A among the call's parameters; B follows it */
    char *scratch;
    void *rows; /* rows as wide as the rank */
} adapter;

static adapter adapter_of(const decoder_chunk *c, const decoder_linear *l, int place, char *scratch) {
    int64_t i = l - &c->p->q;
    if (place < 0 || c->d->adapter[place] < 0)
        return (adapter){ .a = NULL };
    return (adapter){ c,       &c->p->down_to[i],   &c->p->up_from[i], c->d->adapter[place] - c->l->first,
                      scratch, scratch + l->rows_at };
}

static tess_status multiply(const adapter *a, ops_matmul *m, const void *x, const void *y, void *out) {
    return a->c->d->o->t->matmul(m, x, y, NULL, out, a->scratch);
}

typedef struct {
    const decoder *d;
    void *x;
    float by;
} scaling;

OPS_CLONES static void scale_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const scaling *s = arg;
    (void)thread;
    for (int64_t i = first; i < last; i += LANES)
        rows_put(s->d, rows_at(s->d, s->x, i, last - i) * s->by, s->x, i, last - i);
}

static void scale(const decoder *d, void *x, int64_t elems, float by) {
    scaling s = { d, x, by };
    ops_parallel(d->o, elems, 4096, scale_range, &s);
}

/* The scale is applied to the narrow rows, because they have the fewest elements. */
static tess_status scaled(const adapter *a, ops_matmul *m, const void *x, const void *w) {
    OPS_TRY(multiply(a, m, x, w, a->rows));
    scale(a->c->d, a->rows, a->c->rows * a->c->d->m->options.lora.rank, a->c->d->adapter_scale);
    return TESS_OK;
}

static tess_status add_gradient(const adapter *a, const decoder_linear *l, int32_t at, const void *dy, const void *x) {
    float *dw = a->c->call->grads[at];
    return dw ? multiply(a, decoder_stores(a->c->d, a->c->first) ? l->dw : l->dw_add, dy, x, dw) : TESS_OK;
}

tess_status decoder_adapt(const decoder_chunk *c, const decoder_linear *l, int place, const void *x, void *y,
                          char *scratch) {
    adapter a = adapter_of(c, l, place, scratch);
    if (!a.a)
        return TESS_OK;
    OPS_TRY(scaled(&a, a.a->forward, x, c->call->params[a.at]));
    return multiply(&a, a.b->forward_add, a.rows, c->call->params[a.at + 1], y);
}

tess_status decoder_adapt_weights(const decoder_chunk *c, const decoder_linear *l, int place, const void *x,
                                  const void *dy, char *scratch) {
    adapter a = adapter_of(c, l, place, scratch);
    if (!a.a)
        return TESS_OK;
    OPS_TRY(scaled(&a, a.a->forward, x, c->call->params[a.at]));
    OPS_TRY(add_gradient(&a, a.b, a.at + 1, dy, a.rows));
    OPS_TRY(scaled(&a, a.b->dx, dy, c->call->params[a.at + 1]));
    return add_gradient(&a, a.a, a.at, a.rows, x);
}

tess_status decoder_adapt_input(const decoder_chunk *c, const decoder_linear *l, int place, const void *dy, void *dx,
                                char *scratch) {
    adapter a = adapter_of(c, l, place, scratch);
    if (!a.a)
        return TESS_OK;
    OPS_TRY(scaled(&a, a.b->dx, dy, c->call->params[a.at + 1]));
    return multiply(&a, a.a->dx_add, a.rows, c->call->params[a.at], dx);
}

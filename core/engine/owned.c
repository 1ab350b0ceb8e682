/* SPDX-License-Identifier: BSD-3-Clause */
/* Where a rank's part of a parameter, gradient or optimizer state lies, and how the host reads and writes it. */
#include "scaler.h"
#include "values.h"

#include "kernels/kernels.h"

static int role_of(uint32_t of) {
    return of == TESS_OF_PARAM  ? TESS__MASTER
           : of == TESS_OF_GRAD ? TESS__SHARD_GRAD
                                : TESS__STATE0 + (int)(of - TESS_OF_MOMENT1);
}

static uint32_t dtype_of(const tess *t, uint32_t of, const tess__param *p) {
    if (p->flags & TESS_BUFFER)
        return p->dtype;
    const tess__group *g = &t->plan.layout.groups[p->group];
    return of >= TESS_OF_MOMENT1 ? g->step.state[of - TESS_OF_MOMENT1].dtype
           : of == TESS_OF_PARAM ? g->master
                                 : TESS_F32;
}

/* The elements of the parameter for which there is one value. */
static uint32_t every_of(const tess *t, uint32_t of, const tess__param *p) {
    uint32_t every = of >= TESS_OF_MOMENT1 ? t->plan.layout.groups[p->group].step.state[of - TESS_OF_MOMENT1].every : 1;
    return every ? every : 1; /* 0: there is no such state */
}

/* Says in which kind of memory this rank's part of a parameter lies. */
static uint32_t mem_of(const tess *t, uint32_t of, const tess__param *p) {
    if (p->flags & TESS_BUFFER)
        return t->plan.setup.env.mem;
    const tess__group *g = &t->plan.layout.groups[p->group];
    return tess__rest_mem(t, of == TESS_OF_PARAM  ? &g->param_rest
                             : of == TESS_OF_GRAD ? &g->grad_rest
                                                  : &g->state_rest);
}

float tess__value_scale(const tess *t, uint32_t of) {
    return of == TESS_OF_GRAD && t->scaler.now.scale > 0 ? tess__unscale(t) : 0;
}

tess__value tess__value_owned(const tess *t, uint32_t of, const tess__param *p, const tess__piece *piece) {
    tess__value v = { .mem = mem_of(t, of, p), .dtype = dtype_of(t, of, p), .scale = tess__value_scale(t, of) };
    if (p->flags & TESS_BUFFER)
        v.at = (char *)tess__address_of(t, TESS__BUFFERS, 0) + p->offset;
    else
        v.at = (char *)tess__address_of(t, role_of(of), p->group) +
               piece->in_shard / every_of(t, of, p) * tess_dtype_bytes(v.dtype);
    return v;
}

tess__owned tess__owned_at(const tess *t, uint32_t of, int32_t param) {
    const tess__param *p = &t->plan.model.params[param];
    tess__piece piece = { .elems = p->elems };
    if (!(p->flags & TESS_BUFFER))
        piece = tess__layout_piece(&t->plan.layout, p, t->comms.shard_rank);
    tess__value v = tess__value_owned(t, of, p, &piece);
    uint32_t every = every_of(t, of, p);
    piece = (tess__piece){ piece.in_param / every, piece.in_shard / every, tess__values_of(piece.elems, every) };
    return (tess__owned){ .piece = piece, .at = v.at, .mem = v.mem, .dtype = v.dtype };
}

/* Host code gets f32, but f64 and opaque bytes as they are. */
static uint32_t wide_dtype(const tess__value *v) {
    return v->dtype == TESS_F64 || v->dtype == TESS_U8 ? v->dtype : TESS_F32;
}

int tess__value_direct(const tess__value *v) {
    return (v->mem == TESS_MEM_HOST || v->mem == TESS_MEM_PINNED) && v->dtype == wide_dtype(v) && v->scale == 0;
}

static void scale_floats(float *x, uint64_t n, float scale) {
    for (uint64_t i = 0; scale != 0 && i < n; i++)
        x[i] *= scale;
}

tess_status tess__value_load(tess *t, const tess__value *v, uint64_t first, uint64_t n, void *raw, void *wide) {
    uint32_t bytes = tess_dtype_bytes(v->dtype);
    TRY(tess__copy_now(t, raw, TESS_MEM_HOST, v->at + first * bytes, v->mem, n * bytes));
    tess__cast_find(v->dtype, wide_dtype(v), 0)(raw, wide, n);
    scale_floats(wide, n, v->scale);
    return TESS_OK;
}

tess_status tess__value_store(tess *t, const tess__value *v, uint64_t first, uint64_t n, void *raw, const void *wide) {
    uint32_t bytes = tess_dtype_bytes(v->dtype);
    tess__cast_find(wide_dtype(v), v->dtype, 0)(wide, raw, n);
    scale_floats(raw, n, v->scale == 0 ? 0 : 1 / v->scale); /* of gradients, which are fp32 */
    return tess__copy_now(t, v->at + first * bytes, v->mem, raw, TESS_MEM_HOST, n * bytes);
}

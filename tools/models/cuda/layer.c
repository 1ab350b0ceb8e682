/* SPDX-License-Identifier: BSD-3-Clause */
/* The operators of a decoder's layer (layer_ops.h). */
#include "cudnn_attention.h"
#include "tools/models/stored.h"
#include <tessera/tessera.h>

#include <math.h>
#include <string.h>

_Static_assert((int)OPS_ROTATE_MOST == (int)OPS_ROTATION_MOST, "pairs of a head");
_Static_assert((int)OPS_STORED_NF4 == (int)STORED_NF4 && (int)OPS_STORED_BLOCK == (int)STORED_BLOCK, "stored.h");

/* ---- products ---------------------------------------------------------------------------------- */
static uint64_t product_need(int64_t rows, int64_t columns, int64_t depth) {
    return ops_cuda_workspace(rows, columns, depth, 1);
}

/* Returns where `blocks` blocks of a kernel leave the largest magnitudes that they write. */
static uint32_t *found_at(fp8_found *f, uint64_t blocks) {
    if (!f)
        return NULL;
    f->n = f->at ? (uint32_t)blocks : 0;
    return blocks ? f->at : NULL;
}

/* Applies bias and GELU to a product in y. */
static tess_status add_bias(const cuda_ops *c, const ops_factors *f) {
    uint64_t elems = (uint64_t)f->rows * (uint64_t)f->columns;
    uint32_t *found = found_at(f->found, ops_blocks_eights(elems));
    int32_t vector = ((uintptr_t)f->bias | (uintptr_t)f->before | (uintptr_t)f->y) % 16 == 0;
    return OPS_LAUNCH(c, bias, ops_blocks_eights(elems), .x = f->y, .bias = f->bias, .before = f->before, .y = f->y,
                      .elems = elems, .width = (uint64_t)f->columns, .half = ops_halves(&c->base), .gelu = f->gelu,
                      .vector = vector, .found = { { found, NULL } });
}

/* Applies bias to a product whose rows have gaps. */
static tess_status add_pitched_bias(const cuda_ops *c, const ops_factors *f) {
    return OPS_LAUNCH(c, bias, ops_blocks_eights((uint64_t)(f->rows * f->columns)), .x = f->y, .bias = f->bias,
                      .y = f->y, .elems = (uint64_t)(f->rows * f->columns), .width = (uint64_t)f->columns,
                      .pitch = (uint64_t)f->y_pitch, .half = ops_halves(&c->base));
}

static tess_status gelu_slopes(const cuda_ops *c, const void *x, const void *dy, void *dx, void *y, uint64_t elems,
                               ops_found found) {
    return OPS_LAUNCH(c, gelu_slopes, ops_blocks_eights(elems), .x = x, .dy = dy, .dx = dx, .y = y, .elems = elems,
                      .half = ops_halves(&c->base), .found = found);
}
/* The way back through GELU behind a product that wrote the gradient in y. */
static tess_status back_through(const cuda_ops *c, const ops_factors *f) {
    uint64_t elems = (uint64_t)f->rows * (uint64_t)f->columns, blocks = ops_blocks_eights(elems);
    const ops_found found = { { found_at(f->found, blocks), found_at(f->found_again, blocks) } };
    return gelu_slopes(c, f->through, f->y, f->y, f->again, elems, found);
}
static tess_status layer_gelu(ops *o, const void *x, void *y, uint64_t elems) {
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), bias, ops_blocks_eights(elems), .x = x, .y = y, .elems = elems,
                                      .width = elems, .half = ops_halves(o), .gelu = 1, .vector = 1));
}
static tess_status layer_gelu_backward(ops *o, const void *x, const void *dy, void *dx, void *y, uint64_t elems) {
    const ops_found none = { { NULL } };
    OPS_INSIDE(cuda_of(o), gelu_slopes(cuda_of(o), x, dy, dx, y, elems, none));
}

/* Launches GELU's backward, or bias and GELU, behind a product in fp8. */
static tess_status follow_fp8(const cuda_ops *c, const ops_factors *f) {
    if (f->through)
        return back_through(c, f);
    if (!f->bias)
        return TESS_OK;
    return f->y_pitch && f->y_pitch != f->columns ? add_pitched_bias(c, f) : add_bias(c, f);
}

/* ---- factors in fp8 ---------------------------------------------------------------------------- */
enum { FP8_ROOM = 2 * OPS_FP8_PARTS * sizeof(uint32_t) };
_Static_assert((int)OPS_FP8_MOST == (int)OPS_FP8_PIECES, "matrices of a factor");
static uint64_t fp8_need(void) {
    return FP8_ROOM;
}
static uint64_t fp8_found_need(uint64_t rows, uint64_t width) {
    uint64_t blocks = ops_blocks_threads(rows * ((width + 7) / 8));
    return ops_align((rows > blocks ? rows : blocks) * sizeof(uint32_t)); /* a normalisation's have a row or more */
}
/* Few numbers of a writer's blocks are read where the scale is needed; more are first sought through. */
static void seek_or_take(const ops_fp8_factor *from, ops_cuda_fp8 *f) {
    const fp8_found *found = from->found;
    uint64_t blocks = from->n ? ops_blocks_eights(f->all * f->width) : 0;
    if (found && found->n)
        f->found = found->at, f->n_found = found->n, blocks = (found->n + OPS_BLOCK - 1) / OPS_BLOCK;
    f->n_parts = f->seekers = blocks < OPS_FP8_PARTS ? (uint32_t)blocks : OPS_FP8_PARTS;
    if (f->n_found && f->n_found <= OPS_FP8_FEW)
        f->parts = found->at, f->n_parts = f->n_found, f->seekers = 0;
}
static ops_cuda_fp8 fp8_args(const ops_fp8_factor *from, uint32_t *parts) {
    ops_cuda_fp8 f = { .width = from->width, .to = from->to, .turned = from->turned, .inverse = from->inverse };
    f.parts = parts, f.e5m2 = from->e5m2;
    for (int32_t i = 0; i < from->n; i++) {
        uint64_t tiles = (from->rows[i] + OPS_FP8_TILE - 1) / OPS_FP8_TILE;
        f.from[i] = from->from[i], f.rows[i] = from->rows[i], f.all += from->rows[i];
        f.blocks += (uint32_t)(tiles * ((from->width + OPS_FP8_TILE - 1) / OPS_FP8_TILE));
    }
    seek_or_take(from, &f);
    return f;
}
static tess_status fp8_codes(const cuda_ops *c, const ops_fp8_factor both[2], uint32_t *parts) {
    const ops_args_fp8_most a = { { fp8_args(&both[0], parts), fp8_args(&both[1], parts + OPS_FP8_PARTS) } };
    OPS_TRY(ops_cuda_launch(c, OPS_KERNEL_fp8_most, &a, a.of[0].seekers + a.of[1].seekers));
    return ops_cuda_launch(c, OPS_KERNEL_fp8_codes, &a, a.of[0].blocks + a.of[1].blocks);
}
static tess_status layer_fp8_codes(ops *o, const ops_fp8_factor both[2], void *scratch) {
    OPS_INSIDE(cuda_of(o), fp8_codes(cuda_of(o), both, scratch));
}

static tess_status product(const cuda_ops *c, const ops_factors *f, void *workspace) {
    const ops_epilogue e = { f->bias, f->before, f->gelu };
    int done;
    ops_product p = { .rows = f->rows, .columns = f->columns, .depth = f->depth, .a = f->a, .b = f->b, .c = f->y };
    p.a_turned = f->turn_a, p.a_pitch = f->a_pitch ? f->a_pitch : f->turn_a ? f->rows : f->depth;
    p.b_turned = f->turn_b, p.b_pitch = f->turn_b ? f->depth : f->columns;
    p.c_pitch = f->y_pitch ? f->y_pitch : f->columns, p.alpha = f->times > 0 ? f->times : 1, p.beta = f->add ? 1 : 0;
    p.halves = ops_halves(&c->base), p.half_c = ops_halves(&c->base) && !f->wide;
    if (f->a_inverse) {
        p.a_inverse = f->a_inverse, p.b_inverse = f->b_inverse, p.a_e5m2 = f->a_e5m2;
        OPS_TRY(ops_cuda_product_fp8(c, &p, workspace));
        return follow_fp8(c, f);
    }
    if (!f->bias) {
        OPS_TRY(ops_cuda_product(c, &p, workspace));
        return f->through ? back_through(c, f) : TESS_OK;
    }
    if (p.c_pitch != f->columns) {
        OPS_TRY(ops_cuda_product(c, &p, workspace));
        return add_pitched_bias(c, f);
    }
    OPS_TRY(ops_cuda_product_with(c, &p, &e, workspace, &done));
    if (done)
        return TESS_OK;
    OPS_TRY(ops_cuda_product(c, &p, workspace));
    return add_bias(c, f);
}
static tess_status layer_product(ops *o, const ops_factors *f, void *workspace) {
    OPS_INSIDE(cuda_of(o), product(cuda_of(o), f, workspace));
}

/* ---- frozen matrices ----------------------------------------------------------------------------- */
static tess_status widen_stored(const cuda_ops *c, const ops_stored *s) {
    uint64_t elems = s->rows * s->width;
    uintptr_t odd = (uintptr_t)s->y % 16 | (uintptr_t)s->from % (stored_in_blocks(s->kind) ? 4 : 16);
    return OPS_LAUNCH(c, stored, ops_blocks_eights(elems), .from = s->from, .ids = s->ids, .y = s->y, .elems = elems,
                      .width = s->width, .kind = s->kind, .half = ops_halves(&c->base),
                      .vector = ops_is_vector(s->width) && !odd);
}
static tess_status layer_widen_stored(ops *o, const ops_stored *s) {
    OPS_INSIDE(cuda_of(o), widen_stored(cuda_of(o), s));
}

/* ---- rows -------------------------------------------------------------------------------------- */
static ops_cuda_mask mask_of(const ops_rows *of, const ops_dropout *d) {
    ops_cuda_mask m = { .time = of->time, .width = of->width };
    if (d)
        m.seed = d->seed, m.step = d->step, m.first_sample = d->first_sample, m.layer = d->layer, m.rate = d->rate;
    return m;
}

/* Returns how many rows a block keeps. 0: rows are too long, so the kernel that reads them several times runs. */
static uint32_t tile_rows_of(const ops *o, uint64_t width, uint64_t arrays) {
    return ops_is_vector(width) ? ops_tile_rows(width, arrays * (ops_halves(o) ? sizeof(uint16_t) : sizeof(float))) : 0;
}
static uint64_t row_blocks(uint64_t rows, uint32_t tile_rows) {
    return tile_rows ? (rows + tile_rows - 1) / tile_rows : ops_blocks_rows(rows);
}

static tess_status layer_norm(ops *o, const ops_norm *n) {
    ops_args_norm a = { .x = n->x, .add = n->add, .add_bias = n->add_bias, .next_bias = n->next_bias, .w = n->w };
    a.b = n->b, a.sum = n->sum, a.next = n->next, a.y = n->y, a.stats = n->stats, a.rows = n->of.rows;
    a.width = n->of.width, a.mask = mask_of(&n->of, n->drop), a.half = ops_halves(o);
    a.eps = n->eps > 0 ? n->eps : 1e-5, a.about_zero = n->about_zero, a.one_more = n->one_more;
    a.tile_rows = tile_rows_of(o, a.width, 1);
    a.found.of[0] = found_at(n->found, a.tile_rows ? row_blocks(a.rows, a.tile_rows) : 0);
    OPS_INSIDE(cuda_of(o), ops_cuda_launch(cuda_of(o), a.tile_rows ? OPS_KERNEL_norm_tile : OPS_KERNEL_norm, &a,
                                           row_blocks(a.rows, a.tile_rows)));
}

static ops_args_norm_slopes slopes_args(const ops *o, const ops_norm_backward *n) {
    ops_args_norm_slopes a = { .x = n->x, .w = n->w, .b = n->b, .dy = n->dy, .add = n->add, .stats = n->stats };
    a.dx = n->dx, a.masked = n->masked, a.normal = n->normal, a.rows = n->of.rows, a.width = n->of.width;
    a.mask = mask_of(&n->of, n->drop), a.half = ops_halves(o), a.about_zero = n->about_zero;
    a.one_more = n->one_more;
    a.tile_rows = tile_rows_of(o, a.width, 2);
    a.found.of[0] = found_at(n->found, a.tile_rows ? row_blocks(a.rows, a.tile_rows) : 0);
    a.found.of[1] = found_at(n->found_normal, a.tile_rows ? row_blocks(a.rows, a.tile_rows) : 0);
    return a;
}
static tess_status norm_slopes(const cuda_ops *c, const ops_args_norm_slopes *a) {
    return ops_cuda_launch(c, a->tile_rows ? OPS_KERNEL_norm_slopes_tile : OPS_KERNEL_norm_slopes, a,
                           row_blocks(a->rows, a->tile_rows));
}
static tess_status layer_norm_backward(ops *o, const ops_norm_backward *n) {
    ops_args_norm_slopes a = slopes_args(o, n);
    OPS_INSIDE(cuda_of(o), norm_slopes(cuda_of(o), &a));
}

static tess_status layer_mask(ops *o, const ops_rows *of, const ops_dropout *d, const void *x, void *y,
                              const void **out) {
    uint64_t elems = of->rows * of->width;
    *out = x;
    if (!(d->rate > 0))
        return TESS_OK;
    *out = y;
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), mask, ops_blocks_eights(elems), .x = x, .y = y, .elems = elems,
                                      .mask = mask_of(of, d), .half = ops_halves(o)));
}

/* ---- rotary positions and SwiGLU ---------------------------------------------------------------------- */
static tess_status rotate(const cuda_ops *c, const ops_rotation *n) {
    uint64_t groups = ((uint64_t)n->heads + OPS_ROTATE_HEADS - 1) / OPS_ROTATE_HEADS;
    ops_args_rotate a = { .x = n->x, .rows = n->of.rows, .time = n->of.time, .pitch = n->of.width };
    a.first = n->first, a.heads = (uint32_t)n->heads, a.pairs = (uint32_t)n->pairs, a.back = (uint32_t)n->back;
    a.half = ops_halves(&c->base), a.table = n->first ? NULL : n->table, a.scale = n->scale > 0 ? n->scale : 1;
    memcpy(a.turns, n->turns, (size_t)n->pairs * sizeof *a.turns);
    return ops_cuda_launch(c, OPS_KERNEL_rotate, &a, ops_blocks_threads(n->of.rows * groups * ((a.pairs + 7) / 8)));
}
static tess_status layer_rotate(ops *o, const ops_rotation *n) {
    if (n->pairs > OPS_ROTATE_MOST)
        return tess_fail(TESS_E_UNSUPPORTED, "operators cuda: heads of %d elements with rotary positions, at most %d",
                         2 * n->pairs, 2 * OPS_ROTATE_MOST);
    OPS_INSIDE(cuda_of(o), rotate(cuda_of(o), n));
}

static uint64_t blocks_of_rows(uint64_t rows, uint64_t width) {
    return ops_blocks_threads(rows * ((width + 7) / 8));
}
static tess_status layer_swiglu(ops *o, const void *x, void *y, uint64_t rows, uint64_t width, int32_t gelu,
                                fp8_found *found) {
    const ops_found of = { { found_at(found, blocks_of_rows(rows, width)), NULL } };
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), swiglu, blocks_of_rows(rows, width), .x = x, .y = y, .rows = rows,
                                      .width = width, .half = ops_halves(o), .gelu = gelu, .found = of));
}
static tess_status layer_swiglu_backward(ops *o, const void *x, const void *dy, void *dx, void *y, uint64_t rows,
                                         uint64_t width, int32_t gelu, fp8_found *found, fp8_found *found_again) {
    uint64_t blocks = blocks_of_rows(rows, width);
    const ops_found of = { { found_at(found, blocks), found_at(found_again, blocks) } };
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), swiglu_slopes, blocks, .x = x, .dy = dy, .dx = dx, .y = y,
                                      .rows = rows, .width = width, .half = ops_halves(o), .gelu = gelu, .found = of));
}

/* ---- sums over columns --------------------------------------------------------------------------- */
static uint64_t row_chunks(uint64_t rows) {
    return (rows + OPS_JOB_ROWS - 1) / OPS_JOB_ROWS;
}
static uint64_t columns_need(uint64_t rows, uint64_t sums) {
    return ops_align(row_chunks(rows) * sums * sizeof(double));
}

static void add_job(ops_args_columns *a, const ops_columns *j) {
    uint32_t width = (uint32_t)j->width, group = j->group ? (uint32_t)j->group : 1;
    if (!j->dw && !j->db)
        return;
    ops_cuda_columns *to = &a->jobs[a->n_jobs++];
    *to = (ops_cuda_columns){ j->x, j->dy, j->stats, j->dw, j->db, width, a->blocks, a->n_sums, group, 0, 0 };
    to->pitch = j->pitch ? j->pitch : group * j->width, to->x_pitch = j->x_pitch ? j->x_pitch : group * j->width;
    a->blocks += (width + OPS_JOB_COLUMNS - 1) / OPS_JOB_COLUMNS;
    a->n_sums += j->dw ? 2 * width : width;
}

static ops_args_columns columns_args(const ops *o, const ops_columns *columns, int32_t n, uint64_t rows, int32_t add,
                                     void *scratch) {
    ops_args_columns a = { .sums = scratch, .rows = rows, .half = ops_halves(o), .add = add };
    for (int32_t i = 0; i < n; i++)
        add_job(&a, &columns[i]);
    return a;
}
static uint64_t column_blocks(const ops_args_columns *a) {
    return a->blocks * row_chunks(a->rows);
}
static tess_status column_sums(const cuda_ops *c, const ops_args_columns *a) {
    return ops_cuda_launch(c, OPS_KERNEL_columns, a, column_blocks(a));
}
static tess_status layer_columns(ops *o, const ops_columns *columns, int32_t n, uint64_t rows, int32_t add,
                                 void *scratch) {
    ops_args_columns a = columns_args(o, columns, n, rows, add, scratch);
    OPS_INSIDE(cuda_of(o), column_sums(cuda_of(o), &a));
}

/* ---- heads of queries and keys --------------------------------------------------------------------- */
static ops_args_head_norm heads_args(const ops *o, const ops_head_norm *n) {
    ops_args_head_norm a = { .x = n->x, .kept = n->kept, .query_w = n->query_w, .key_w = n->key_w, .stats = n->stats };
    a.rows = n->of.rows, a.pitch = n->of.width, a.heads = (uint32_t)n->heads, a.kv_heads = (uint32_t)n->kv_heads;
    a.size = (uint32_t)n->size, a.half = ops_halves(o), a.one_more = n->one_more, a.eps = n->eps > 0 ? n->eps : 1e-5;
    return a;
}
static uint64_t head_blocks(const ops_args_head_norm *a) {
    return ops_blocks_rows(a->rows * (a->heads + a->kv_heads));
}
static tess_status layer_head_norm(ops *o, const ops_head_norm *n) {
    ops_args_head_norm a = heads_args(o, n);
    OPS_INSIDE(cuda_of(o), ops_cuda_launch(cuda_of(o), OPS_KERNEL_head_norm, &a, head_blocks(&a)));
}

/* These sums read the gradients of the normalised heads, so they precede head_norm_slopes, which overwrites them. */
static tess_status head_gains(const cuda_ops *c, const ops_head_norm *n, int is_key, float *dw, int32_t add,
                              void *scratch) {
    uint64_t heads = (uint64_t)(is_key ? n->kv_heads : n->heads), before = is_key ? (uint64_t)n->heads : 0;
    uint64_t size = (uint64_t)n->size, elem = ops_halves(&c->base) ? sizeof(uint16_t) : sizeof(float);
    ops_columns of = { .dw = dw, .width = size, .group = heads, .pitch = n->of.width };
    of.x_pitch = (uint64_t)(n->heads + n->kv_heads) * size;
    of.x = (char *)n->kept + before * size * elem, of.dy = (char *)n->x + before * size * elem;
    of.stats = n->stats + 2 * n->of.rows * before;
    ops_args_columns a = columns_args(&c->base, &of, 1, n->of.rows * heads, add, scratch);
    return dw ? column_sums(c, &a) : TESS_OK;
}
static tess_status head_norm_backward(const cuda_ops *c, const ops_head_norm *n, float *query_dw, float *key_dw,
                                      int32_t add, void *scratch) {
    ops_args_head_norm a = heads_args(&c->base, n);
    OPS_TRY(head_gains(c, n, 0, query_dw, add, scratch));
    OPS_TRY(head_gains(c, n, 1, key_dw, add, scratch));
    return ops_cuda_launch(c, OPS_KERNEL_head_norm_slopes, &a, head_blocks(&a));
}
static tess_status layer_head_norm_backward(ops *o, const ops_head_norm *n, float *query_dw, float *key_dw, int32_t add,
                                            void *scratch) {
    OPS_INSIDE(cuda_of(o), head_norm_backward(cuda_of(o), n, query_dw, key_dw, add, scratch));
}

static tess_status norm_slopes_columns(const cuda_ops *c, const ops_args_norm_slopes_columns *a) {
    if (a->norm.tile_rows)
        return ops_cuda_launch(c, OPS_KERNEL_norm_slopes_columns, a,
                               a->first + row_blocks(a->norm.rows, a->norm.tile_rows));
    OPS_TRY(norm_slopes(c, &a->norm));
    return column_sums(c, &a->columns);
}
static tess_status layer_norm_backward_columns(ops *o, const ops_norm_backward *norm, const ops_columns *columns,
                                               int32_t n, int32_t add, void *scratch) {
    ops_args_norm_slopes_columns a = { columns_args(o, columns, n, norm->of.rows, add, scratch), slopes_args(o, norm),
                                       0 };
    a.first = (uint32_t)column_blocks(&a.columns);
    OPS_INSIDE(cuda_of(o), norm_slopes_columns(cuda_of(o), &a));
}

/* ---- attention --------------------------------------------------------------------------------- */
static int is_cudnn(const ops *o, const ops_attention_shape *s) {
    return o->cudnn_attention && !s->grows;
}
static int is_fused(const ops *o, const ops_attention_shape *s) {
    return ops_halves(o) && s->size <= ATTEND_MOST && !s->packs && !is_cudnn(o, s);
}
static int32_t kv_heads(const ops_attention_shape *s) {
    return s->kv_heads ? s->kv_heads : s->heads;
}
/* Returns the smallest kernel that a head fits into. All forward kernels have the same distance to their backward
 * kernels. */
static int forward_kernel(const ops_attention_shape *s) {
    return s->size <= 16   ? OPS_KERNEL_attend_16
           : s->size <= 32 ? OPS_KERNEL_attend_32
           : s->size <= 64 ? OPS_KERNEL_attend_64
           : s->size <= 96 ? OPS_KERNEL_attend_96
                           : OPS_KERNEL_attend_128;
}

/* Backward in five products (attend_five.h), where a kernel has it, or seven: docs/benchmarks/gpu.md. The shape decides
 * what is planned. Where the GPU has too little shared memory, they are seven, and the room for sums is left alone. */
static int plans_five(const ops *o, const ops_attention_shape *s) {
    return o->attention_products != 7 && ((s->size > 32 && s->size <= 64) || s->size > 96);
}
static int five_kernel(const ops_attention_shape *s) {
    return s->size <= 64 ? OPS_KERNEL_attend_five_64 : OPS_KERNEL_attend_five_128;
}
static int has_five(const cuda_ops *c, const ops_attention_shape *s) {
    return plans_five(&c->base, s) && ops_cuda_has_shared(c, five_kernel(s));
}
/* Return the bytes of attend_sums' results, of the sums of queries, and of the counts between blocks. */
static uint64_t queries_of(const ops_attention_shape *s) {
    return (uint64_t)s->batch * (uint64_t)s->heads;
}
static uint64_t rows_bytes(const ops_attention_shape *s) {
    return ops_align(queries_of(s) * (uint64_t)s->time * 2 * sizeof(float));
}
static uint64_t sums_bytes(const ops_attention_shape *s) {
    return ops_align(attend_five_sums(queries_of(s), (uint64_t)s->time, s->size) * sizeof(float));
}
static uint64_t turns_bytes(const ops_attention_shape *s) {
    return ops_align(attend_five_turns(queries_of(s), (uint64_t)s->time) * sizeof(uint32_t));
}
/* Returns how many heads of keys are at work together: their sums fit in a third of an H100's second cache. */
static uint32_t heads_together(const ops_attention_shape *s) {
    uint64_t share = (uint64_t)(s->heads / kv_heads(s)), one = attend_five_sums(share, (uint64_t)s->time, s->size);
    uint64_t heads = (UINT64_C(16) << 20) / (one * sizeof(float));
    return heads ? (uint32_t)heads : 1;
}

static void layer_attention_need(const ops *o, const ops_attention_shape *s, ops_scratch *need) {
    *need = (ops_scratch){ 0, rows_bytes(s) + (plans_five(o, s) ? sums_bytes(s) + turns_bytes(s) : 0) };
    if (is_cudnn(o, s))
        ops_cudnn_attention_need(s, need);
    else if (!is_fused(o, s))
        ops_cuda_attention_need(o, s, need);
}

static tess_status attend(const cuda_ops *c, const ops_attention_shape *s, const void *qkv, void *y, float *lse) {
    ops_args_attend a = { .qkv = qkv, .y = y, .lse = lse, .batch = s->batch, .time = s->time };
    a.heads = s->heads, a.kv_heads = kv_heads(s), a.size = s->size, a.vector = s->size % 8 == 0;
    a.sight = attend_sight_of(s->window, ops_cuda_attention_scale(s), s->cap);
    return ops_cuda_launch(c, forward_kernel(s), &a,
                           (uint64_t)s->batch * (uint64_t)s->heads * attend_query_tiles(s->time, s->size));
}

/* A table can be used only if a head fills its kernel. Then one thread holds both halves of each pair when it writes
 * the gradient. */
static uint64_t layer_rotation_need(const ops *o, const ops_attention_shape *s) {
    int fills = s->size == 16 || s->size == 32 || s->size == 64 || s->size == 96 || s->size == 128;
    return is_fused(o, s) && fills ? ops_align((uint64_t)s->time * (uint64_t)s->size * sizeof(float)) : 0;
}

static tess_status attend_backward(const cuda_ops *c, const ops_attention_shape *s, const void *qkv, const void *y,
                                   const float *lse, const void *dy, void *dqkv, const float *table, float *rows) {
    uint64_t batch = (uint64_t)s->batch, heads = (uint64_t)s->heads, time = (uint64_t)s->time;
    ops_args_attend_backward a = { .qkv = qkv, .dy = dy, .rows = rows, .table = table, .dqkv = dqkv };
    a.batch = s->batch, a.time = s->time, a.heads = s->heads, a.kv_heads = kv_heads(s), a.size = s->size;
    a.vector = s->size % 8 == 0, a.sight = attend_sight_of(s->window, ops_cuda_attention_scale(s), s->cap);
    int five = has_five(c, s);
    if (five) {
        a.sums = (float *)((char *)rows + rows_bytes(s)), a.turns = (uint32_t *)((char *)a.sums + sums_bytes(s));
        a.group = heads_together(s);
    }
    OPS_TRY(OPS_LAUNCH(c, attend_sums, ops_blocks_rows(batch * heads * time), .y = y, .dy = dy, .lse = lse,
                       .rows = rows, .batch = batch, .time = time, .heads = heads, .size = (uint64_t)s->size,
                       .turns = a.turns, .n_turns = five ? attend_five_turns(batch * heads, time) : 0));
    if (five)
        return ops_cuda_launch(c, five_kernel(s), &a, batch * (uint64_t)kv_heads(s) * attend_five_tiles(s->time));
    return ops_cuda_launch(
        c, forward_kernel(s) + 1, &a,
        batch * (heads * attend_query_tiles(s->time, s->size) + (uint64_t)kv_heads(s) * attend_key_tiles(s->time)));
}

static tess_status layer_attention(ops *o, const ops_attention_shape *s, const void *qkv, void *y, float *lse,
                                   void *scratch) {
    if (is_cudnn(o, s))
        OPS_INSIDE(cuda_of(o), ops_cudnn_attention(cuda_of(o), s, qkv, y, lse, scratch));
    if (is_fused(o, s))
        OPS_INSIDE(cuda_of(o), attend(cuda_of(o), s, qkv, y, lse));
    OPS_INSIDE(cuda_of(o), ops_cuda_attention(cuda_of(o), s, qkv, y, lse, scratch));
}

static tess_status attention_backward(const cuda_ops *c, const ops_attention_shape *s, const void *qkv, const void *y,
                                      const float *lse, const void *dy, void *dqkv, const ops_rotation *back,
                                      void *scratch) {
    const float *table = back && layer_rotation_need(&c->base, s) ? back->table : NULL;
    OPS_TRY(c->base.cudnn_attention ? ops_cudnn_attention_backward(cuda_of(&c->base), s, qkv, y, lse, dy, dqkv, scratch)
            : is_fused(&c->base, s) ? attend_backward(c, s, qkv, y, lse, dy, dqkv, table, scratch)
                                    : ops_cuda_attention_backward(c, s, qkv, y, lse, dy, dqkv, scratch));
    return back && !table ? rotate(c, back) : TESS_OK;
}
static tess_status layer_attention_backward(ops *o, const ops_attention_shape *s, const void *qkv, const void *y,
                                            const float *lse, const void *dy, void *dqkv, const ops_rotation *back,
                                            void *scratch) {
    OPS_INSIDE(cuda_of(o), attention_backward(cuda_of(o), s, qkv, y, lse, dy, dqkv, back, scratch));
}

/* ---- embedding, tokens and cap ---------------------------------------------------------------------- */
static tess_status layer_embed(ops *o, const ops_rows *of, const int32_t *ids, const void *table, const int32_t *places,
                               const void *position, float scale, const ops_dropout *d, void *y) {
    uint64_t elems = of->rows * of->width;
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), embed, ops_blocks_eights(elems), .ids = ids, .table = table,
                                      .places = places, .position = position, .y = y, .elems = elems,
                                      .mask = mask_of(of, d), .scale = scale > 0 ? scale : 1, .half = ops_halves(o)));
}

static uint64_t embed_backward_need(uint64_t rows) {
    return ops_align(2 * rows * sizeof(int32_t));
}

static tess_status embed_backward(const cuda_ops *c, const ops_rows *of, const int32_t *ids, const void *dy,
                                  float scale, float *dtable, float *dposition, int32_t add, int32_t *scratch) {
    int32_t *order = scratch, *sorted = scratch + of->rows;
    if (of->rows > INT32_MAX)
        return tess_fail(TESS_E_UNSUPPORTED, "operators cuda: an embedding of %llu positions, at most %d are possible",
                         (unsigned long long)of->rows, INT32_MAX);
    OPS_TRY(OPS_LAUNCH(c, sort_ids, (of->rows + OPS_SORT_ROWS - 1) / OPS_SORT_ROWS, .ids = ids, .order = order,
                       .sorted = sorted, .rows = (uint32_t)of->rows));
    uint64_t threads = of->width / ops_columns_of_thread(of->width);
    return OPS_LAUNCH(c, embed_slopes, ops_blocks_threads((of->rows + of->time) * threads), .order = order,
                      .sorted = sorted, .dy = dy, .dtable = dtable, .dposition = dposition, .rows = of->rows,
                      .time = of->time, .width = of->width, .scale = scale > 0 ? scale : 1,
                      .half = ops_halves(&c->base), .add_position = add);
}
static tess_status layer_embed_backward(ops *o, const ops_rows *of, const int32_t *ids, const void *dy, float scale,
                                        float *dtable, float *dposition, int32_t add, void *scratch) {
    OPS_INSIDE(cuda_of(o), embed_backward(cuda_of(o), of, ids, dy, scale, dtable, dposition, add, scratch));
}

static tess_status layer_tokens(ops *o, const int32_t *tokens, uint64_t samples, uint64_t time, uint64_t stride,
                                int32_t ignored, int32_t marks, int32_t *out) {
    OPS_INSIDE(cuda_of(o),
               OPS_LAUNCH(cuda_of(o), tokens, ops_blocks_each(samples * time), .tokens = tokens, .out = out,
                          .elems = samples * time, .time = time, .stride = stride, .ignored = ignored, .marks = marks));
}

static tess_status layer_places(ops *o, const int32_t *tokens, uint64_t samples, uint64_t time, uint64_t stride,
                                int32_t begins, int32_t *out) {
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), places, ops_blocks_each(samples * time), .tokens = tokens, .out = out,
                                      .elems = samples * time, .time = time, .stride = stride, .begins = begins));
}

static tess_status layer_cap(ops *o, float *x, uint64_t elems, float cap) {
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), cap, ops_blocks_eights(elems), .x = x, .elems = elems, .cap = cap));
}

/* ---- the loss ------------------------------------------------------------------------------------ */
static ops_args_loss loss_args(const ops *o, const ops_row_loss *l) {
    ops_args_loss a = { .logits = l->logits, .labels = l->labels, .slopes = l->slopes, .half = ops_halves(o) };
    a.losses = (ops_cuda_row_loss *)l->losses + l->first;
    a.rows = l->count, a.all = l->rows, a.classes = l->classes, a.pitch = l->pitch, a.mean = l->mean;
    a.scale = l->scale > 0 ? l->scale : 1, a.cap = l->cap, a.over_cap = l->cap > 0 ? 1 / l->cap : 0;
    a.divisor = l->divisor, a.tile_rows = ops_tile_rows(l->classes, sizeof(float));
    return a;
}

static tess_status loss(const cuda_ops *c, const ops_row_loss *l) {
    ops_args_loss a = loss_args(&c->base, l);
    uint64_t rows = l->slopes ? l->rows : l->count;
    if (!a.tile_rows)
        return ops_cuda_launch(c, OPS_KERNEL_loss_rows, &a, rows);
    return ops_cuda_launch(c, OPS_KERNEL_loss_tile, &a, (rows + a.tile_rows - 1) / a.tile_rows);
}
static tess_status layer_loss(ops *o, const ops_row_loss *l) {
    OPS_INSIDE(cuda_of(o), loss(cuda_of(o), l));
}

static tess_status layer_loss_sum(ops *o, const void *losses, uint64_t rows, const int32_t *labels,
                                  const double *divisor, ops_loss *out) {
    OPS_INSIDE(cuda_of(o), OPS_LAUNCH(cuda_of(o), loss_sum, 1, .losses = losses, .out = (ops_cuda_loss *)out,
                                      .rows = rows, .labels = labels, .divisor = divisor));
}

const ops_layer_table ops_cuda_layer = {
    .product_need = product_need,
    .product = layer_product,
    .fp8_need = fp8_need,
    .fp8_found_need = fp8_found_need,
    .fp8_codes = layer_fp8_codes,
    .norm = layer_norm,
    .norm_backward = layer_norm_backward,
    .mask = layer_mask,
    .gelu = layer_gelu,
    .gelu_backward = layer_gelu_backward,
    .widen_stored = layer_widen_stored,
    .columns_need = columns_need,
    .columns = layer_columns,
    .norm_backward_columns = layer_norm_backward_columns,
    .rotate = layer_rotate,
    .head_norm = layer_head_norm,
    .head_norm_backward = layer_head_norm_backward,
    .swiglu = layer_swiglu,
    .swiglu_backward = layer_swiglu_backward,
    .attention_check = ops_cudnn_attention_check,
    .attention_need = layer_attention_need,
    .attention = layer_attention,
    .attention_backward = layer_attention_backward,
    .rotation_need = layer_rotation_need,
    .embed = layer_embed,
    .embed_backward_need = embed_backward_need,
    .embed_backward = layer_embed_backward,
    .tokens = layer_tokens,
    .places = layer_places,
    .cap = layer_cap,
    .loss = layer_loss,
    .loss_sum = layer_loss_sum,
};

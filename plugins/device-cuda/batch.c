/* SPDX-License-Identifier: BSD-3-Clause */
#include "batch.h"

#include <string.h>

CUresult cuda_launch(const cuda_place *p, int kernel, const void *args, uint64_t blocks, unsigned threads) {
    void *params[] = { (void *)(uintptr_t)args };
    return p->device->cu->cuLaunchKernel(p->device->functions[kernel], (unsigned)blocks, 1, 1, threads, 1, 1, 0,
                                         p->stream, params, NULL);
}

int cuda_aligned(const void *at, uint32_t dtype) {
    return (uintptr_t)at % (tess_dtype_bytes(dtype) == 2 ? 8 : 16) == 0;
}

/* ---- blocks: each piece has some of its own, in proportion to its items ------------------------------ */

static uint32_t share_of_blocks(const cuda_batch *b, uint32_t k, uint64_t all, unsigned threads) {
    uint64_t most = b->place.most_blocks * (CUDA_THREADS / threads);
    uint64_t needed = (b->items[k] + threads - 1) / threads, fair = most * b->items[k] / all + 1;
    return (uint32_t)(needed < fair ? needed : fair);
}

static uint64_t all_items(const cuda_batch *b) {
    uint64_t all = 0;
    for (uint32_t k = 0; k < b->n; k++)
        all += b->items[k];
    return all;
}

static CUresult launch_steps(cuda_batch *b) {
    cuda_steps_args *a = &b->of.steps;
    uint32_t blocks = 0;
    uint64_t all = all_items(b);
    for (uint32_t k = 0; k < b->n; k++) {
        a->pieces[k].first_block = blocks;
        blocks += share_of_blocks(b, k, all, CUDA_THREADS);
    }
    a->n_pieces = b->n, a->n_blocks = blocks;
    CUresult r = cuda_launch(&b->place, b->kernel, a, blocks, CUDA_THREADS);
    memset(a->pieces, 0, b->n * sizeof *a->pieces); /* so a smaller launch later names no memory of this one */
    return r;
}

static CUresult launch_squares(cuda_batch *b) {
    cuda_squares_args *a = &b->of.squares;
    cuda_carry_args carry = { .items = 1, .limbs = a->limbs };
    uint32_t blocks = 0;
    uint64_t all = all_items(b);
    for (uint32_t k = 0; k < b->n; k++) {
        a->pieces[k].first_block = blocks;
        blocks += share_of_blocks(b, k, all, CUDA_COLUMNS);
    }
    a->n_pieces = b->n, a->n_blocks = blocks;
    CUresult r = cuda_launch(&b->place, b->kernel, a, blocks, CUDA_COLUMNS);
    memset(a->pieces, 0, b->n * sizeof *a->pieces);
    return r ? r : cuda_launch(&b->place, N_tess_cuda_carry, &carry, 1, CUDA_THREADS);
}

CUresult cuda_batch_flush(tess_device *d) {
    cuda_batch *b = d->batch;
    CUresult r = CUDA_SUCCESS;
    if (b->n)
        r = b->kernel == N_tess_cuda_square_sum ? launch_squares(b) : launch_steps(b);
    b->n = 0;
    return r;
}

/* The held batch is of this kernel on this stream, over memory of the same kind, and has room; otherwise it is
 * launched. */
static CUresult make_room(const cuda_place *p, int kernel, uint32_t most) {
    cuda_batch *b = p->device->batch;
    CUresult r = CUDA_SUCCESS;
    if (b->n &&
        (b->kernel != kernel || b->place.stream != p->stream || b->place.most_blocks != p->most_blocks || b->n == most))
        r = cuda_batch_flush(p->device);
    b->place = *p;
    b->kernel = kernel;
    return r;
}

/* ---- the optimizer: neighbouring segments with the same settings are one piece ------------------------ */

static int step_kernel(const tess_kernel *k) {
    int wide = k->out_dtype == TESS_F64;
    switch (k->optimizer->optimizer) {
    case TESS_OPT_ADAM: return wide ? N_tess_cuda_adam_f64 : N_tess_cuda_adam_f32;
    case TESS_OPT_ADAMW: return wide ? N_tess_cuda_adamw_f64 : N_tess_cuda_adamw_f32;
    case TESS_OPT_ADADELTA: return wide ? N_tess_cuda_adadelta_f64 : N_tess_cuda_adadelta_f32;
    default:
        if (k->state[0])
            return wide ? N_tess_cuda_sgd_momentum_f64 : N_tess_cuda_sgd_momentum_f32;
        return wide ? N_tess_cuda_sgd_f64 : N_tess_cuda_sgd_f32;
    }
}

static int continues_segment(const tess_segment *a, const tess_segment *b) {
    return a->first + a->elems == b->first && a->lr == b->lr && a->weight_decay == b->weight_decay &&
           a->momentum == b->momentum;
}

/* The number of these constants; CUDA_SETS: no room. */
static uint32_t set_of(cuda_steps_args *a, const tess_step_constants *c) {
    uint32_t i = 0;
    while (i < a->n_sets && memcmp(&a->sets[i], c, sizeof *c) != 0)
        i++;
    if (i < CUDA_SETS && i == a->n_sets)
        a->sets[a->n_sets++] = *c;
    return i;
}

/* A set for the piece: of those that the device has, or among the launch's own. */
static uint32_t choose_set(cuda_steps_args *a, const char *prepared, const tess_step_constants *c) {
    return a->prepared ? (uint32_t)((prepared - a->prepared) / TESS_PREPARED_BYTES) : set_of(a, c);
}

static uint32_t begin_sets(cuda_steps_args *a, const char *prepared, const tess_step_constants *c) {
    a->n_sets = 0;
    a->prepared = prepared;
    return choose_set(a, prepared, c);
}

static CUresult add_step(const cuda_place *p, cuda_step_piece *piece, int kernel, const tess_step_constants *c,
                         const char *prepared, const float *clip) {
    cuda_batch *b = p->device->batch;
    cuda_steps_args *a = &b->of.steps;
    CUresult r = b->n && (a->clip != clip || !a->prepared != !prepared) ? cuda_batch_flush(p->device) : CUDA_SUCCESS;
    r = r ? r : make_room(p, kernel, CUDA_PIECES);
    a->clip = clip;
    piece->set = b->n ? choose_set(a, prepared, c) : begin_sets(a, prepared, c);
    if (r == CUDA_SUCCESS && !prepared && piece->set == CUDA_SETS) {
        r = cuda_batch_flush(p->device);
        piece->set = begin_sets(a, prepared, c);
    }
    if (r)
        return r; /* what was held is gone; nothing is left for a later launch */
    b->items[b->n] = cuda_step_items(piece);
    a->pieces[b->n++] = *piece;
    return CUDA_SUCCESS;
}

CUresult cuda_optimizer(const cuda_place *p, const tess_kernel *k) {
    const tess_optimizer *o = k->optimizer;
    cuda_step_piece piece = { .grad = k->in ? k->in[0] : NULL,
                              .master = k->out,
                              .state0 = k->state[0],
                              .state1 = k->state[1],
                              .low = k->out2,
                              .grad_dtype = k->in_dtype,
                              .not_finite = TESS_HAS(tess_optimizer, o, not_finite) ? o->not_finite : NULL };
    piece.vector = cuda_aligned(piece.grad, k->in_dtype) && cuda_aligned(k->out, k->out_dtype) &&
                   cuda_aligned(k->state[0], k->out_dtype) && cuda_aligned(k->state[1], k->out_dtype) &&
                   cuda_aligned(k->out2, TESS_BF16);
    const float *clip = o->clip;
    const char *prepared = o->prepared;
    CUresult r = CUDA_SUCCESS;
    for (uint32_t i = 0, next; k->elems && i < o->n_segments && r == CUDA_SUCCESS; i = next) {
        const tess_segment *s = TESS_AT(o->segments, i), *last = s;
        tess_step_constants c;
        for (next = i + 1; !prepared && next < o->n_segments && continues_segment(last, TESS_AT(o->segments, next));
             next++)
            last = TESS_AT(o->segments, next);
        piece.first = s->first;
        piece.end = last->first + last->elems;
        tess_step_prepare(o, s, &c);
        if (piece.first < piece.end)
            r = add_step(p, &piece, step_kernel(k), &c, prepared ? prepared + i * (uint64_t)TESS_PREPARED_BYTES : NULL,
                         clip);
    }
    return r || k->flags & TESS_KERNEL_MORE ? r : cuda_batch_flush(p->device);
}

/* ---- sums of squares --------------------------------------------------------------------------------- */

CUresult cuda_square_sum(const cuda_place *p, const tess_kernel *k) {
    cuda_batch *b = p->device->batch;
    cuda_squares_args *a = &b->of.squares;
    float scale = k->scale == 0 ? 1.0f : (float)k->scale;
    CUresult r = CUDA_SUCCESS;
    if (b->n && (!(k->flags & TESS_KERNEL_ADD) || b->kernel != N_tess_cuda_square_sum || a->limbs != k->out ||
                 a->scale != scale))
        r = cuda_batch_flush(p->device);
    if (r == CUDA_SUCCESS && !(k->flags & TESS_KERNEL_ADD))
        r = p->device->cu->cuMemsetD8Async((CUdeviceptr)(uintptr_t)k->out, 0, TESS__NORM_LIMBS * sizeof(int64_t),
                                           p->stream);
    r = r ? r : make_room(p, N_tess_cuda_square_sum, CUDA_SQUARE_PIECES);
    if (r == CUDA_SUCCESS && k->elems) {
        a->limbs = k->out;
        a->scale = scale;
        b->items[b->n] = (k->elems + CUDA_LANES - 1) / CUDA_LANES;
        a->pieces[b->n++] = (cuda_square_piece){ .in = k->in[0],
                                                 .elems = k->elems,
                                                 .in_dtype = k->in_dtype,
                                                 .vector = (uint32_t)cuda_aligned(k->in[0], k->in_dtype) };
    }
    return r || k->flags & TESS_KERNEL_MORE ? r : cuda_batch_flush(p->device);
}

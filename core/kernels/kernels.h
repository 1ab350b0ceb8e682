/* SPDX-License-Identifier: BSD-3-Clause */
/* The cpu device's elementwise kernels (tess_kernel in plugin.h), on plain memory. All give the same bits for any
 * number of threads and any instruction set. docs/kernels.md has them to the last bit; here is what they take:
 *
 * CAST: in[0] → out, among f16, bf16, f32, f64; equal dtypes are copied. From f32 to blocks, from them to f32, bf16,
 * f16.
 * scale: 0 or 1. With `rounding`, from f32 to blocks alone: each element by a draw.
 *
 * TREE_SUM: r = T(in[0 … n_in-1]); TESS_KERNEL_ADD: r = out + r; then out = r * scale, where 0 means 1. Sums are f32
 * (f64 of f64, wrapping of i32 and i64); out has the sum's dtype, or is bf16, f16 or blocks, rounded once.
 * TESS_KERNEL_Q8 and _Q8E4M3: each sum of two is rounded to blocks. TESS_KERNEL_CHAIN: in[0 … n_in-2] have the sum's
 * dtype, in[n_in-1] has in_dtype, and r = in[0] + (in[1] + (… + in[n_in-1])): one push of the incremental tree
 * (kernel_tree_sum.c). out may be an input of its own dtype.
 *
 * SCALE: out = in[0] * scale (null in: out in place), f32 or f64; scale rounded once to the dtype; 0 is 0.
 *
 * SQUARE_SUM: in[0] f32, bf16 or f16 → out: TESS__NORM_LIMBS int64 limbs (norm.h), normalised; TESS_KERNEL_ADD adds to
 * them. scale (0 means 1) multiplies the element first.
 *
 * OPTIMIZER: in[0] the gradient (in_dtype f32, bf16, f16; f64 for f64), out the master (out_dtype f32 or f64), out2
 * null or the bf16 copy of the new master. state: sgd momentum, or null when every segment's momentum is 0; adam and
 * adamw first and second moment; adadelta square average, delta average. grad_scale is taken literally: 0 is 0. */
#ifndef TESS_KERNELS_H
#define TESS_KERNELS_H
#include "base/pool.h"

/** [pure] What a kernel needs from its caller: nothing but, maybe, its being supported. */
tess_status tess__kernel_need(const tess_kernel *, tess_need *out);
/** Checks the kernel, then runs it on the caller and the pool. A message names what is wrong. */
tess_status tess__kernel_run(const tess_kernel *, tess__pool *, tess_error *);

/** Whether a cast rounds by draws; an older caller's kernel has no word of it. */
static inline int tess__kernel_draws(const tess_kernel *k) {
    return k->kernel == TESS_K_CAST && k->struct_size >= sizeof *k && k->rounding;
}

/* The parts, after checking. */
void tess__kernel_cast(const tess_kernel *, tess__pool *);
void tess__kernel_tree_sum(const tess_kernel *, tess__pool *);
void tess__kernel_scale(const tess_kernel *, tess__pool *);
void tess__kernel_square_sum(const tess_kernel *, tess__pool *);
void tess__kernel_optimizer(const tess_kernel *, tess__pool *);

/** Tells whether no element is NaN or infinite; elements of an integer dtype never are. Any thread. */
int tess__all_finite(const void *values, uint32_t dtype, uint64_t elems);

/** Casts a run of elements on this thread, in this thread's floating-point mode. */
typedef void (*tess__cast_fn)(const void *src, void *dst, uint64_t elems);
/** Null when there is no such cast. `stream`: for runs much larger than the caches. */
tess__cast_fn tess__cast_find(uint32_t from, uint32_t to, int stream);

/** Those of which one side has blocks of 8 bits: a run begins at one. */
tess__cast_fn tess__cast_find_blocks(uint32_t from, uint32_t to, int stream);
/** CAST to blocks with `rounding`. */
void tess__kernel_draw(const tess_kernel *, tess__pool *);

enum { TESS__KERNEL_LEAST_ELEMS = 32768 }; /* per thread: below it, waking a worker costs more than it saves */
#endif

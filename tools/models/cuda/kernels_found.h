/* SPDX-License-Identifier: BSD-3-Clause */
/* Kernels that write a factor of a product in fp8 also find its largest magnitude, so that nothing reads the tensor for
 * that alone. Each block leaves that of its own elements. A maximum has no order, so its bits are those of a search. */
#ifndef TESS_MODELS_CUDA_KERNELS_FOUND_H
#define TESS_MODELS_CUDA_KERNELS_FOUND_H
#include "half.h"
#include "kernel_body.h"
#include "tools/models/fp8_formulas.h"

/* The last two phases of such a kernel. They are left out if neither tensor's is wanted. */
enum { OPS_FOUND_PHASES = 2 };
typedef struct {
    uint32_t *of[2]; /* of two tensors, one number for each block; null: not wanted */
} ops_found;

TESS_FN uint32_t ops_fp8_larger(uint32_t most, const float *v) {
    for (int k = 0; k < 8; k++) {
        uint32_t size = fp8_size(tess_f32_bits(v[k]));
        most = size > most ? size : most;
    }
    return most;
}
/* The same of eight elements as they are stored in 16 bits. Those that do not exist have to be 0. */
TESS_FN uint32_t ops_found_larger(uint32_t most, const float *v) {
    float stored[8];
    for (int k = 0; k < 8; k += 2) {
        uint32_t pair = ops_pair_of(v[k], v[k + 1]);
        stored[k] = ops_low(pair), stored[k + 1] = ops_high(pair);
    }
    return ops_fp8_larger(most, stored);
}

/* Sixteen threads each take the largest of sixteen; ops_fp8_of_room takes that of theirs. */
TESS_FN void ops_fp8_gather(double *room, uint32_t thread) {
    for (uint32_t k = 1; thread < 16 && k < 16; k++)
        room[thread * 16] = room[thread * 16 + k] > room[thread * 16] ? room[thread * 16 + k] : room[thread * 16];
}
TESS_FN uint32_t ops_fp8_of_room(const double *room) {
    double most = 0;
    for (int k = 0; k < 16; k++)
        most = room[16 * k] > most ? room[16 * k] : most;
    return (uint32_t)most;
}

/* The first 2 * OPS_BLOCK doubles of the room keep a thread's finds, so that they take no registers. */
TESS_FN void ops_found_begin(const ops_found *f, uint32_t thread, double *room) {
    for (uint32_t k = 0; k < 2; k++)
        if (f->of[k])
            room[k * OPS_BLOCK + thread] = 0;
}
/* Eight elements of the first tensor or the second. */
TESS_FN void ops_found_add(const ops_found *f, uint32_t k, uint32_t thread, const float *v, double *room) {
    double *most = room + k * OPS_BLOCK + thread;
    if (f->of[k])
        *most = (double)ops_found_larger((uint32_t)*most, v);
}
/* `phase` of the last two. */
TESS_FN void ops_found_end(const ops_found *f, uint32_t block, uint32_t thread, int phase, double *room) {
    for (int k = 0; k < 2; k++) {
        if (f->of[k] && phase == 0)
            ops_fp8_gather(room + k * OPS_BLOCK, thread);
        else if (f->of[k] && thread == 0)
            f->of[k][block] = ops_fp8_of_room(room + k * OPS_BLOCK);
    }
}
#endif

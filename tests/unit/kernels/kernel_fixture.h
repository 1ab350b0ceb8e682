/* SPDX-License-Identifier: BSD-3-Clause */
/* What the kernel tests share: running a kernel, a small generator, and a loop over instruction sets. */
#ifndef TESS_KERNEL_FIXTURE_H
#define TESS_KERNEL_FIXTURE_H
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "kit/formulas.h"
#include "core/kernels/isa.h"
#include "core/kernels/kernels.h"

static inline uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static inline float random_unit(uint64_t *state) { /* in [-1, 1) */
    return (float)(int32_t)(next_random(state) >> 32) * 0x1p-31f;
}
/* Sizes over many magnitudes, so that the order of a sum shows in its bits. */
static inline float random_wide(uint64_t *state) {
    return ldexpf(random_unit(state), (int)(next_random(state) % 24) - 12);
}

static inline void run_kernel(const tess_kernel *k, tess__pool *pool) {
    tess_error error = { .struct_size = sizeof error };
    tess_status status = tess__kernel_run(k, pool, &error);
    if (status != TESS_OK)
        fail_msg("kernel %u: %d: %s", k->kernel, status, error.message);
}

static inline tess_status try_kernel(const tess_kernel *k, tess_error *error) {
    memset(error, 0, sizeof *error);
    error->struct_size = sizeof *error;
    return tess__kernel_run(k, NULL, error);
}

/* for_each_isa: runs the statement that follows once per instruction set this machine has. */
#define for_each_isa(isa) for (int isa = TESS_ISA_C; isa <= TESS_ISA_AVX512_BF16 && tess__isa_limit(isa) == isa; isa++)
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Instructions of sm_80 that CUDA C++ does not offer. tests/emulation has host versions of each. */
#ifndef TESS_MODELS_CUDA_PTX_H
#define TESS_MODELS_CUDA_PTX_H
#include "kit/formulas.h"

#if defined(OPS_HALF_F16)
#define PTX_HALF "f16"
#else
#define PTX_HALF "bf16"
#endif

TESS_FN uint32_t ptx_pair(float low, float high) {
    uint32_t pair;
    asm("cvt.rn." PTX_HALF "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
TESS_FN uint16_t ptx_f16_of(float x) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
TESS_FN float ptx_of_f16(uint16_t h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}

TESS_FN float ptx_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

TESS_FN float ptx_over(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Loads four 8 × 8 matrices; lanes 8 · i to 8 · i + 7 give the addresses of the rows of matrix i. */
#define PTX_READ(name, turned)                                                                                         \
    TESS_FN void name(uint32_t *r, const uint16_t *row) {                                                              \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" turned ".shared.b16 {%0, %1, %2, %3}, [%4];"                      \
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                                  \
                     : "r"((uint32_t)__cvta_generic_to_shared(row)));                                                  \
    }
PTX_READ(ptx_read, "")
PTX_READ(ptx_read_turned, ".trans")

/* c += a · b; each lane holds its fragments */
TESS_FN void ptx_multiply(float *c, const uint32_t *a, const uint32_t *b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." PTX_HALF "." PTX_HALF
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Starts a copy of 16 bytes to shared memory: `bytes` from memory, then zeros. */
TESS_FN void ptx_copy(uint16_t *to, const uint16_t *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(bytes)
                 : "memory");
}
/* The same of 8 bytes. */
TESS_FN void ptx_copy_pair(float *to, const float *from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(bytes)
                 : "memory");
}
/* Reads a count past the multiprocessor's cache. Later reads see what was written before ptx_release of that count. */
TESS_FN uint32_t ptx_acquire(const uint32_t *at) {
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}
/* Adds one to a count. */
TESS_FN void ptx_release(uint32_t *at) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(at) : "memory");
}
TESS_FN void ptx_pause(void) {
    asm volatile("nanosleep.u32 32;");
}
TESS_FN void ptx_wait_all(void) {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
#endif

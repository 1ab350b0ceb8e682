/* SPDX-License-Identifier: BSD-3-Clause */
/* The instruction set the elementwise kernels use. Every path gives the same bits, so this is a matter of speed alone.
 */
#ifndef TESS_ISA_H
#define TESS_ISA_H

enum { TESS_ISA_C = 1, TESS_ISA_AVX2, TESS_ISA_AVX512, TESS_ISA_AVX512_BF16 };

/** The best this machine has, or what tess__isa_limit set. */
int tess__isa(void);
/** For tests and benchmarks: nothing above `isa` from now on; 0 lifts the limit. Returns what is then used. */
int tess__isa_limit(int isa);
const char *tess__isa_name(int isa);

#if defined(__x86_64__)
#define TESS_HAVE_X86 1
#define TESS_TARGET_AVX2 __attribute__((target("avx2,fma,f16c,bmi,bmi2")))
#if defined(__clang__)
#define TESS_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi,bmi2")))
#else
#define TESS_TARGET_AVX512                                                                                             \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi,bmi2,prefer-vector-width=512")))
#endif
#define TESS_TARGET_AVX512_BF16                                                                                        \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c,bmi,bmi2")))
#endif
/* A body written once in C and compiled for each instruction set by being inlined into a function of that target. */
#define TESS_BODY static inline __attribute__((always_inline))
#endif

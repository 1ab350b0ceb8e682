/* SPDX-License-Identifier: BSD-3-Clause */
#include "isa.h"

static int limit;

static int detect_isa(void) {
#if defined(TESS_HAVE_X86)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return TESS_ISA_C;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return TESS_ISA_AVX2;
    return __builtin_cpu_supports("avx512bf16") ? TESS_ISA_AVX512_BF16 : TESS_ISA_AVX512;
#else
    return TESS_ISA_C;
#endif
}

int tess__isa(void) {
    static int found;
    int isa = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (!isa) {
        isa = detect_isa();
        __atomic_store_n(&found, isa, __ATOMIC_RELAXED);
    }
    int most = __atomic_load_n(&limit, __ATOMIC_RELAXED);
    return most && most < isa ? most : isa;
}

int tess__isa_limit(int isa) {
    __atomic_store_n(&limit, isa, __ATOMIC_RELAXED);
    return tess__isa();
}

const char *tess__isa_name(int isa) {
    static const char *const names[] = { "none", "c", "avx2", "avx512", "avx512_bf16" };
    return isa > 0 && isa <= TESS_ISA_AVX512_BF16 ? names[isa] : names[0];
}

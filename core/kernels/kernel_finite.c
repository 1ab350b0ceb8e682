/* SPDX-License-Identifier: BSD-3-Clause */
/* Whether all of an array is finite. An element is not when all bits of its exponent are set: one more in that field
 * then reaches the sign's place. */
#include "kernels.h"

#include <tessera/plugin_helpers.h>

#include "isa.h"

#define FINITE(name, word, sign, step)                                                                                 \
    TESS_BODY word name##_body(const void *values, uint64_t elems) {                                                   \
        const word *x = values;                                                                                        \
        word over = 0;                                                                                                 \
        for (uint64_t i = 0; i < elems; i++)                                                                           \
            over |= (word)((word)(x[i] & (word) ~(sign)) + (step));                                                    \
        return over & (sign);                                                                                          \
    }                                                                                                                  \
    static int name##_c(const void *x, uint64_t elems) {                                                               \
        return !name##_body(x, elems);                                                                                 \
    }                                                                                                                  \
    FINITE_WIDE(name)
#if defined(TESS_HAVE_X86)
#define FINITE_WIDE(name)                                                                                              \
    TESS_TARGET_AVX2 static int name##_avx2(const void *x, uint64_t elems) {                                           \
        return !name##_body(x, elems);                                                                                 \
    }                                                                                                                  \
    TESS_TARGET_AVX512 static int name##_avx512(const void *x, uint64_t elems) {                                       \
        return !name##_body(x, elems);                                                                                 \
    }
#define PATHS(name)                                                                                                    \
    { name##_c, name##_avx2, name##_avx512 }
#else
#define FINITE_WIDE(name)
#define PATHS(name)                                                                                                    \
    { name##_c, name##_c, name##_c }
#endif

FINITE(finite_f32, uint32_t, UINT32_C(1) << 31, UINT32_C(1) << 23)
FINITE(finite_f64, uint64_t, UINT64_C(1) << 63, UINT64_C(1) << 52)
FINITE(finite_bf16, uint16_t, UINT16_C(1) << 15, UINT16_C(1) << 7)
FINITE(finite_f16, uint16_t, UINT16_C(1) << 15, UINT16_C(1) << 10)

int tess__all_finite(const void *values, uint32_t dtype, uint64_t elems) {
    static const struct {
        uint32_t dtype;
        int (*paths[3])(const void *, uint64_t);
    } by_dtype[] = { { TESS_F32, PATHS(finite_f32) },
                     { TESS_F64, PATHS(finite_f64) },
                     { TESS_BF16, PATHS(finite_bf16) },
                     { TESS_F16, PATHS(finite_f16) } };
    int isa = tess__isa(), path = isa >= TESS_ISA_AVX512 ? 2 : isa == TESS_ISA_AVX2 ? 1 : 0;
    for (size_t i = 0; i < sizeof by_dtype / sizeof by_dtype[0]; i++)
        if (by_dtype[i].dtype == dtype)
            return by_dtype[i].paths[path](values, elems);
    return 1;
}

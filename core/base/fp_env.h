/* SPDX-License-Identifier: BSD-3-Clause */
/* The floating-point mode of every thread that computes: round to nearest, denormals kept, exceptions masked. A program
 * may run with flush-to-zero; the same step must give the same bits there, so each entry sets the mode and each exit
 * puts back what was found. */
#ifndef TESS_FP_ENV_H
#define TESS_FP_ENV_H
#include <fenv.h>
#include <stdint.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#if defined(__SSE2__)
typedef struct {
    uint32_t mxcsr;
} tess__fp;
static inline tess__fp tess__fp_enter(void) {
    tess__fp old = { _mm_getcsr() };
    if ((old.mxcsr & 0xffc0u) != 0x1f80u)
        _mm_setcsr(0x1f80u);
    return old;
}
static inline void tess__fp_leave(tess__fp old) {
    if ((old.mxcsr & 0xffc0u) != 0x1f80u)
        _mm_setcsr(old.mxcsr);
}
#else
typedef struct {
    fenv_t env;
} tess__fp;
static inline tess__fp tess__fp_enter(void) {
    tess__fp old;
    fegetenv(&old.env);
    fesetenv(FE_DFL_ENV);
    return old;
}
static inline void tess__fp_leave(tess__fp old) {
    fesetenv(&old.env);
}
#endif
#endif

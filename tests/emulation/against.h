/* SPDX-License-Identifier: BSD-3-Clause */
/* Launches of emulated kernels beside the doubles of the same, on arrays that all of a case's launches share. */
#ifndef TESSERA_AGAINST_H
#define TESSERA_AGAINST_H
#include "emulator.h"
#include "tests/doubles/double.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(OPS_HALF_F16)
#define double__model_kernels double__model_kernels_f16
#endif
const double_kernel *double__model_kernels(void), *double__device_kernels(void), *double__nccl_kernels(void),
    *double__lion_kernels(void);

/** Memory that the case's end frees, full of NaNs, `past` bytes behind a multiple of 64. */
void *array_at(size_t bytes, size_t past);
void *array(size_t bytes);
/** Random numbers of up to `size`, in 16 bits (`half`) or fp32. */
void *factors(uint64_t n, int half, float size);
float *floats(uint64_t n, float size);
float random_number(void);              /* from -1 to 1 */
uint64_t over(uint64_t n, uint64_t by); /* rounded up */

/** Adds a launch to the case. */
void launch(const char *name, const void *args, size_t args_bytes, uint64_t blocks, unsigned threads);
#define LAUNCH(name, args, blocks, threads) launch(name, &(args), sizeof(args), blocks, threads)
/** Every kernel of the list was in a case, but those whose names begin with `but`. */
void expect_all_launched(const emulated_kernel *list, const char *but);

/** Runs the case's launches on the double and emulated, in each order from its beginning: every array has the same
 * bytes. The arrays then hold what came out. */
void expect_doubles_bits(const char *what, int with_copies);
/** Behind expect_doubles_bits: the same with `resident` blocks at once, in as many schedules as `seeds`. */
void expect_any_schedule(const char *what, unsigned resident, unsigned seeds);
void forget_arrays(void);
/** Both. */
void compare(const char *what);
#endif

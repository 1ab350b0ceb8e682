/* SPDX-License-Identifier: BSD-3-Clause */
/* The result that a reduction must give, element by element and slowly: the tree of docs/numbers.md over the ranks'
 * values. */
#ifndef TESS_COMM_REFERENCE_H
#define TESS_COMM_REFERENCE_H
#include <stdint.h>
#include <tessera/plugin.h>

uint64_t ref_dtype_bytes(uint32_t dtype);
const char *ref_dtype_name(uint32_t dtype);
/* The value that `rank` contributes at element `i`: the same on every rank that asks. Written in `dtype` to `out`. With
 * `exact`, small integers, whose sums are exact in any order. */
void ref_value(uint32_t dtype, int rank, uint64_t i, int exact, void *out);
/* The result at element `i` over ranks 0 to n-1, in dtype `to`; `old` is what was there before, null: not added. */
void ref_reduce(uint32_t from, uint32_t to, uint32_t redop, int n, uint64_t i, int exact, double scale, const void *old,
                void *out);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Computes the result that a reduction must give, element by element: the tree of docs/numbers.md over the ranks'
 * values. */
#ifndef TESS_COMM_REFERENCE_H
#define TESS_COMM_REFERENCE_H
#include <stdint.h>
#include <tessera/plugin.h>

uint64_t ref_dtype_bytes(uint32_t dtype);
const char *ref_dtype_name(uint32_t dtype);
/* Writes the value that `rank` contributes at element `i`, in `dtype`. Every rank computes the same. With `exact` it is
 * a small integer, so sums are exact in any order. */
void ref_value(uint32_t dtype, int rank, uint64_t i, int exact, void *out);
/* Writes the result at element `i` over ranks 0 to n-1, in dtype `to`. `old` is the earlier value to add, or null. */
void ref_reduce(uint32_t from, uint32_t to, uint32_t redop, int n, uint64_t i, int exact, double scale, const void *old,
                void *out);

enum { PARTS_UNEVEN, PARTS_TO_ONE, PARTS_TO_NEXT, PARTS_NONE, PARTS_SHAPES };
/* Returns the elements that go from one rank to another in an all_to_all_v of this shape. No rank sends or gets more
 * than `count` in all. */
uint64_t ref_part(int shape, uint64_t count, int nranks, int from, int to);
#endif

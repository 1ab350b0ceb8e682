// Sums (and minima, maxima) of the ranks' contributions in the engine's tree order: docs/numbers.md, "Tree".
#pragma once
#include <cstddef>
#include <cstdint>

namespace tess_gloo {

struct Reduction {
    uint32_t redop, in, out; // TESS_SUM …; dtypes
    bool add;                // what out holds is added to the sum
    double scale;            // multiplies the sum, in the accumulation type; 0 means 1
};

// Elements handled at a time, so that partial sums stay in the first-level cache.
constexpr size_t kReduceBlock = 1024;
// Partial sums alive at once: one for each bit of the number of ranks, and one more; the widest type has 8 bytes.
constexpr size_t kReduceScratch = 34 * kReduceBlock * 8;

// leaves[n]: one contribution per rank, in rank order. `out` may be one of the leaves. Any alignment.
using ReduceFn = void (*)(const void *const *leaves, int n, void *out, size_t elems, const Reduction &, void *scratch);

// Null when this combination is not offered.
ReduceFn reduce_fn(const Reduction &);
size_t dtype_bytes(uint32_t dtype); // 0: unknown

// Whether this plugin reduces `in` into `out` with `redop`.
bool reduce_offered(uint32_t in, uint32_t out, uint32_t redop);

} // namespace tess_gloo

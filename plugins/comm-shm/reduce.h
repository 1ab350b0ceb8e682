/* Sums (and minima, maxima) of the ranks' contributions in the engine's tree order: docs/numbers.md, "Tree". */
#ifndef SHM_REDUCE_H
#define SHM_REDUCE_H
#include <stddef.h>
#include <stdint.h>

enum {
    SHM_SPAN = 64,    /* elements at a time */
    SHM_PARTIALS = 16 /* alive at once: one for each bit of the number of ranks */
};

struct shm_reduction {
    uint32_t redop, in, out; /* TESS_SUM …; dtypes */
    int add;                 /* what the output holds is added to the sum */
    int stream;              /* the output is large and not read soon */
    double scale;            /* multiplies the sum, in the accumulation type */
};

/* leaves[n]: one contribution per rank, in rank order. `out` may be one of the leaves. Any alignment. */
typedef void shm_reduce_fn(const struct shm_reduction *, const void *const *leaves, int n, void *out, uint64_t elems);
shm_reduce_fn shm_reduce;
int shm_reduce_offered(uint32_t in, uint32_t out, uint32_t redop);
uint32_t shm_dtype_bytes(uint32_t dtype); /* 0: unknown */

/* The loop of one combination; null when it is not offered. The same bits from each. */
shm_reduce_fn *shm_reduce_plain(uint32_t in, uint32_t out, uint32_t redop);
shm_reduce_fn *shm_reduce_avx2(uint32_t in, uint32_t out, uint32_t redop);
#endif

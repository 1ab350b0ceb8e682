/* Sums (and minima, maxima) of the ranks' contributions in the engine's tree order: docs/numbers.md, "Tree". */
#ifndef SHM_REDUCE_H
#define SHM_REDUCE_H
#include <stddef.h>
#include <stdint.h>

enum {
    SHM_BLOCK = 1024,      /* elements at a time, so that partial sums stay in the first-level cache */
    SHM_PARTIALS = 16 + 1, /* alive at once: one for each bit of the number of ranks, and the output */
    SHM_REDUCE_SCRATCH = SHM_PARTIALS * SHM_BLOCK * 8
};

struct shm_reduction {
    uint32_t redop, in, out; /* TESS_SUM …; dtypes */
    int add;                 /* what the output holds is added to the sum */
    int stream;              /* the output is large and not read soon */
    double scale;            /* multiplies the sum, in the accumulation type */
};

/* leaves[n]: one contribution per rank, in rank order. `out` may be one of the leaves. Any alignment. */
void shm_reduce(const struct shm_reduction *, const void *const *leaves, int n, void *out, uint64_t elems,
                void *scratch);
int shm_reduce_offered(uint32_t in, uint32_t out, uint32_t redop);
uint32_t shm_dtype_bytes(uint32_t dtype); /* 0: unknown */

/* The loops of one combination, each over at most SHM_BLOCK elements; acc: the accumulation type, or `in`'s own. */
struct shm_kernels {
    void (*two)(void *acc, const void *a, const void *b, size_t n);                      /* acc = a op b */
    void (*one)(void *acc, const void *a, size_t n);                                     /* acc = a */
    void (*combine)(void *acc, const void *with, size_t n);                              /* acc = acc op with */
    void (*finish)(void *out, const void *old, const void *acc, size_t n, double scale); /* old: null or added */
    uint32_t in_bytes, acc_bytes, out_bytes;
};
/* 0 when the combination is not offered. The same bits from each. */
int shm_kernels_plain(uint32_t in, uint32_t out, uint32_t redop, struct shm_kernels *);
int shm_kernels_avx2(uint32_t in, uint32_t out, uint32_t redop, struct shm_kernels *);
#endif

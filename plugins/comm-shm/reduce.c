#include "reduce_impl.h"

#include "copy.h"

int shm_kernels_plain(uint32_t in, uint32_t out, uint32_t redop, struct shm_kernels *k) {
    return pick(in, out, redop, k);
}

int shm_reduce_offered(uint32_t in, uint32_t out, uint32_t redop) {
    struct shm_kernels k;
    return pick(in, out, redop, &k);
}

uint32_t shm_dtype_bytes(uint32_t dtype) {
    static const uint8_t bytes[] = { 0, 1, 1, 4, 8, 2, 2, 4, 8 };
    return dtype < sizeof bytes ? bytes[dtype] : 0;
}

static void pick_best(const struct shm_reduction *r, struct shm_kernels *k) {
#ifdef TESS_SHM_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
        shm_kernels_avx2(r->in, r->out, r->redop, k);
        return;
    }
#endif
    shm_kernels_plain(r->in, r->out, r->redop, k);
}

/* One block through the binary counter: partial i holds the sum of weight[i] neighbouring leaves. */
static void reduce_block(const struct shm_kernels *k, const void *const *leaves, int n, uint64_t first, size_t m,
                         char *partials) {
    const uint64_t step = (uint64_t)SHM_BLOCK * k->acc_bytes, skip = first * k->in_bytes;
    int weight[SHM_PARTIALS], depth = 0;
    for (int i = 0; i < n; i += 2) {
        const char *a = (const char *)leaves[i] + skip;
        char *top = partials + (uint64_t)depth * step;
        if (i + 1 < n)
            k->two(top, a, (const char *)leaves[i + 1] + skip, m);
        else
            k->one(top, a, m);
        weight[depth++] = i + 1 < n ? 2 : 1;
        for (; depth > 1 && weight[depth - 1] == weight[depth - 2]; depth--) {
            k->combine(partials + (uint64_t)(depth - 2) * step, partials + (uint64_t)(depth - 1) * step, m);
            weight[depth - 2] *= 2;
        }
    }
    for (; depth > 1; depth--)
        k->combine(partials + (uint64_t)(depth - 2) * step, partials + (uint64_t)(depth - 1) * step, m);
}

void shm_reduce(const struct shm_reduction *r, const void *const *leaves, int n, void *out, uint64_t elems,
                void *scratch) {
    struct shm_kernels k;
    char *end = (char *)scratch + (uint64_t)(SHM_PARTIALS - 1) * SHM_BLOCK * 8;
    pick_best(r, &k);
    for (uint64_t at = 0; at < elems; at += SHM_BLOCK) {
        size_t m = elems - at < SHM_BLOCK ? (size_t)(elems - at) : SHM_BLOCK;
        char *to = (char *)out + at * k.out_bytes;
        reduce_block(&k, leaves, n, at, m, scratch);
        k.finish(r->stream ? end : to, r->add ? to : NULL, scratch, m, r->scale);
        if (r->stream)
            shm_copy(to, end, m * k.out_bytes, 1);
    }
}

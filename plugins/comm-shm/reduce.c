#include "reduce_impl.h"

shm_reduce_fn *shm_reduce_plain(uint32_t in, uint32_t out, uint32_t redop) {
    return pick(in, out, redop);
}

int shm_reduce_offered(uint32_t in, uint32_t out, uint32_t redop) {
    return pick(in, out, redop) != NULL;
}

uint32_t shm_dtype_bytes(uint32_t dtype) {
    static const uint8_t bytes[] = { 0, 1, 1, 4, 8, 2, 2, 4, 8 };
    return dtype < sizeof bytes ? bytes[dtype] : 0;
}

static shm_reduce_fn *pick_best(const struct shm_reduction *r) {
#ifdef TESS_SHM_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
        return shm_reduce_avx2(r->in, r->out, r->redop);
#endif
    return shm_reduce_plain(r->in, r->out, r->redop);
}

void shm_reduce(const struct shm_reduction *r, const void *const *leaves, int n, void *out, uint64_t elems) {
    struct shm_reduction own = *r;
    own.stream = r->stream && (uintptr_t)out % shm_dtype_bytes(r->out) == 0; /* else no element begins a cache line */
    pick_best(r)(&own, leaves, n, out, elems);
}

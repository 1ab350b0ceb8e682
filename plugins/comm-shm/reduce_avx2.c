/* reduce.h with AVX2 and F16C: same bits, wider loops. Called only where the CPU has both. */
#include "reduce_impl.h"

shm_reduce_fn *shm_reduce_avx2(uint32_t in, uint32_t out, uint32_t redop) {
    return pick(in, out, redop);
}

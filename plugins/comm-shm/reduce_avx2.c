/* reduce.h with AVX2 and F16C: same bits, wider loops. Called only where the CPU has both. */
#include "reduce_impl.h"

int shm_kernels_avx2(uint32_t in, uint32_t out, uint32_t redop, struct shm_kernels *k) {
    return pick(in, out, redop, k);
}

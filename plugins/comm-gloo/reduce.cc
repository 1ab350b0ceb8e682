#include "reduce_impl.h"

namespace tess_gloo {

#ifdef TESS_GLOO_AVX2
ReduceFn reduce_fn_avx2(const Reduction &); // reduce_avx2.cc
#endif

ReduceFn reduce_fn(const Reduction &r) {
#ifdef TESS_GLOO_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
        return reduce_fn_avx2(r);
#endif
    return pick(r);
}

bool reduce_offered(uint32_t in, uint32_t out, uint32_t redop) {
    return pick(Reduction{ redop, in, out, false, 1.0 }) != nullptr;
}

size_t dtype_bytes(uint32_t dtype) {
    switch (dtype) {
    case TESS_U8:
    case TESS_I8: return 1;
    case TESS_F16:
    case TESS_BF16: return 2;
    case TESS_I32:
    case TESS_F32: return 4;
    case TESS_I64:
    case TESS_F64: return 8;
    default: return 0;
    }
}

} // namespace tess_gloo

// reduce.h with AVX2 and F16C: same bits, wider loops. Called only where the CPU has both.
#include "reduce_impl.h"

namespace tess_gloo {

ReduceFn reduce_fn_avx2(const Reduction &r);
ReduceFn reduce_fn_avx2(const Reduction &r) {
    return pick(r);
}

} // namespace tess_gloo

/* SPDX-License-Identifier: BSD-3-Clause */
/* Makes kernels of the bodies in kernels.h. It is compiled with --fmad=false (docs/numbers.md). */
#include "kernels.h"

/* Each kernel holds its body twice: for factors of 16 bits and for fp32. In a body that knows which, loads follow each
 * other without branches, so that a thread waits for them once. `half` of the arguments; 0 if they have none: */
__device__ int number(int32_t); /* not defined; narrow's `half` is none */
template <class T>
__device__ static inline auto is_half(const T &a, int) -> decltype(number(a.half)) {
    return a.half;
}
template <class T>
__device__ static inline auto is_half(const T &a, int) -> decltype(number(a.norm.half)) {
    return a.norm.half;
}
template <class T>
__device__ static inline int is_half(const T &, long) {
    return 0;
}
template <class T>
__device__ static inline auto set_half(T &a, int half, int) -> decltype(number(a.half)) {
    return a.half = half;
}
template <class T>
__device__ static inline int set_half(T &, int, long) {
    return 0;
}
/* Arguments with a known `half`. Larger ones have arrays with computed indices, which would not stay in registers. */
template <class T, bool is_small = sizeof(T) <= 256>
struct known {
    T args;
    __device__ known(const T &a, int half) : args(a) { set_half(args, half, 0); }
};
template <class T>
struct known<T, false> {
    const T &args;
    __device__ known(const T &a, int) : args(a) {}
};
/* Small, with computed indices all the same. */
template <>
struct known<ops_args_fp8_most, true> {
    const ops_args_fp8_most &args;
    __device__ known(const ops_args_fp8_most &a, int) : args(a) {}
};

/* Returns whether the last phases do nothing, as nobody wants what a kernel finds (kernels_found.h). */
template <class T>
__device__ static inline int finds_nothing(const T &) {
    return 0;
}
#define FINDS(name, in, and_if)                                                                                        \
    __device__ static inline int finds_nothing(const ops_args_##name &a) {                                             \
        return and_if && !(in).found.of[0] && !(in).found.of[1];                                                       \
    }
FINDS(bias, a, 1)
FINDS(gelu_slopes, a, 1)
FINDS(swiglu, a, 1)
FINDS(swiglu_slopes, a, 1)
FINDS(norm, a, a.tile_rows) /* without them it is a kernel that finds nothing and has no such phases */
FINDS(norm_slopes, a, a.tile_rows)
FINDS(norm_slopes_columns, a.norm, 1)

#define KERNEL_OF(name, phases, doubles, bounds)                                                                       \
    extern "C" __global__ void __launch_bounds__ bounds OPS_KERNEL(name)(const __grid_constant__ ops_args_##name a) {  \
        __shared__ __align__(16) double room[doubles];                                                                 \
        if (is_half(a, 0)) {                                                                                           \
            asm volatile("// 16 bits"); /* the compiler would make one of two bodies that begin alike */               \
            PHASES_OF(name, phases, 1)                                                                                 \
        } else {                                                                                                       \
            asm volatile("// fp32");                                                                                   \
            PHASES_OF(name, phases, 0)                                                                                 \
        }                                                                                                              \
    }
#define PHASES_OF(name, phases, half)                                                                                  \
    const known<ops_args_##name> k(a, half);                                                                           \
    _Pragma("unroll") for (int phase = 0; phase < phases; phase++) {                                                   \
        if (phase >= phases - OPS_FOUND_PHASES && finds_nothing(k.args))                                               \
            break;                                                                                                     \
        if (phase)                                                                                                     \
            __syncthreads();                                                                                           \
        ops_body_##name(&k.args, blockIdx.x, threadIdx.x, phase, room);                                                \
    }
#define KERNEL(name, phases) KERNEL_OF(name, phases, OPS_ROOM, (OPS_BLOCK))
OPS_CUDA_KERNELS(KERNEL)
/* At least four blocks fit on a multiprocessor, which makes half of its threads. */
#define WIDE_KERNEL(name, phases) KERNEL_OF(name, phases, OPS_WIDE, (OPS_BLOCK, 4))
OPS_CUDA_WIDE_KERNELS(WIDE_KERNEL)

#define ATTEND(name, args, shares)                                                                                     \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 1) OPS_KERNEL(name)(const __grid_constant__ args a) {   \
        __shared__ __align__(16) shares shared;                                                                        \
        body_##name(&a, blockIdx.x, &shared);                                                                          \
    }
OPS_ATTEND_KERNELS(ATTEND)

#if !defined(GIVEN_SHARED) /* tests/emulation has its own */
#define GIVEN_SHARED(type, name)                                                                                       \
    extern __shared__ __align__(16) unsigned char name##_bytes[];                                                      \
    type &name = *reinterpret_cast<type *>(name##_bytes)
#endif
#define ATTEND_LARGE(name, args, shares)                                                                               \
    extern "C" __global__ void __launch_bounds__(TILE_MOST_THREADS, 1)                                                 \
        OPS_KERNEL(name)(const __grid_constant__ args a) {                                                             \
        GIVEN_SHARED(shares, shared);                                                                                  \
        body_##name(&a, blockIdx.x, &shared);                                                                          \
    }
OPS_ATTEND_LARGE_KERNELS(ATTEND_LARGE)

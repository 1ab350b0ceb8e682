/* SPDX-License-Identifier: BSD-3-Clause */
/* The words of CUDA C++ for the host's compiler, as far as our kernels use them: in front of a .cu file. */
#ifndef TESSERA_CUDA_WORDS_H
#define TESSERA_CUDA_WORDS_H
#include "emulator.h"

#include <math.h>
#include <string.h>

#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("emulated_shared")))
#define GIVEN_SHARED(type, name) __shared__ __align__(16) type name
#define __syncthreads() emulated_barrier()
#define __syncwarp() emulated_warp_barrier()

template <class T>
static inline T __ldcg(const T *at) {
    return *at;
}
template <class T>
static inline void __stcg(T *at, T value) {
    *at = value;
}
/* Between blocks. */
static inline void __threadfence() {}
template <class T>
static inline T atomicAdd(T *at, T by) {
    return __atomic_fetch_add(at, by, __ATOMIC_RELAXED);
}
static inline int __clzll(long long x) {
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline float __shfl_xor_sync(unsigned, float x, int apart) {
    return emulated_shuffle_xor(x, apart);
}

/* ---- vectors, which a GPU reads and writes at multiples of their size only ------------------------- */
template <unsigned BYTES>
struct emulated_aligned {
    emulated_aligned() {}
    emulated_aligned(const emulated_aligned &from) { emulated_look(&from, BYTES); }
    emulated_aligned &operator=(const emulated_aligned &from) {
        emulated_look(this, BYTES);
        emulated_look(&from, BYTES);
        return *this;
    }
};
struct alignas(8) uint2 : emulated_aligned<8> {
    uint32_t x, y;
};
template <class T>
struct alignas(16) emulated_four : emulated_aligned<16> {
    T x, y, z, w;
    emulated_four(T x_, T y_, T z_, T w_) : x(x_), y(y_), z(z_), w(w_) {}
};
typedef emulated_four<uint32_t> uint4;
typedef emulated_four<float> float4;
static inline float4 make_float4(float x, float y, float z, float w) {
    return float4(x, y, z, w);
}

/* ---- in place of tools/models/cuda/ptx.h ------------------------------------------------------------ */
#define TESS_MODELS_CUDA_PTX_H
#include "kit/formulas.h"

#if defined(OPS_HALF_F16)
enum { PTX_F16 = 1 };
#else
enum { PTX_F16 = 0 };
#endif
TESS_FN uint16_t ptx_f16_of(float x) {
    return tess_f16_of_f32(x);
}
TESS_FN float ptx_of_f16(uint16_t h) {
    return tess_f32_of_f16(h);
}
TESS_FN uint32_t ptx_pair(float low, float high) {
    return PTX_F16 ? tess_f16_of_f32(low) | (uint32_t)tess_f16_of_f32(high) << 16
                   : tess_bf16_of_f32(low) | (uint32_t)tess_bf16_of_f32(high) << 16;
}
TESS_FN float ptx_exp2(float x) {
    return exp2f(x);
}
TESS_FN void ptx_multiply(float *c, const uint32_t *a, const uint32_t *b) {
    emulated_multiply(c, a, b, PTX_F16);
}

TESS_FN float ptx_over(float x) {
    return 1 / x;
}

/* Lane i gets, of each matrix, elements 2 · (i mod 4) and the next of row i / 4. */
static inline void ptx_read(uint32_t *r, const uint16_t *row) {
    const uint16_t *rows[32];
    unsigned lane = threadIdx.x % 32;
    emulated_look(row, 16);
    emulated_rows(row, rows);
    for (unsigned m = 0; m < 4; m++) {
        const uint16_t *of = rows[8 * m + lane / 4] + lane % 4 * 2;
        r[m] = of[0] | (uint32_t)of[1] << 16;
    }
}
/* The same of column i / 4. */
static inline void ptx_read_turned(uint32_t *r, const uint16_t *row) {
    const uint16_t *rows[32];
    unsigned lane = threadIdx.x % 32;
    emulated_look(row, 16);
    emulated_rows(row, rows);
    for (unsigned m = 0; m < 4; m++) {
        const uint16_t *const *of = rows + 8 * m + lane % 4 * 2;
        r[m] = of[0][lane / 4] | (uint32_t)of[1][lane / 4] << 16;
    }
}

/* ---- order between blocks ------------------------------------------------------------------------------ */
static inline uint32_t ptx_acquire(const uint32_t *at) {
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
static inline void ptx_release(uint32_t *at) {
    __atomic_fetch_add(at, 1, __ATOMIC_RELEASE);
    emulated_give_way();
}
static inline void ptx_pause() {
    emulated_pause();
}

/* ---- asynchronous copies ----------------------------------------------------------------------------- */
struct emulated_copy {
    char *to;
    const char *from;
    int bytes, of;
};
static struct {
    emulated_copy copies[64];
    int n;
} emulated_under_way[EMULATED_RESIDENT * EMULATED_THREADS]; /* of each thread */

static inline void emulated_move(const emulated_copy *c) {
    for (int i = 0; i < c->of; i++)
        c->to[i] = (char)(i < c->bytes ? c->from[i] : 0);
}
static inline void emulated_start(void *to, const void *from, int bytes, int of) {
    auto *mine = &emulated_under_way[emulated_strand()];
    emulated_copy c = { (char *)to, (const char *)from, bytes, of };
    emulated_look(to, (unsigned)of);
    emulated_look(from, (unsigned)of);
    if (!emulated_is_late()) {
        emulated_move(&c);
        return;
    }
    if (mine->n == 64)
        emulated_refuse("more copies under way than emulated");
    for (int i = 0; i < of; i++)
        c.to[i] = (char)0xff;
    mine->copies[mine->n++] = c;
}
static inline void ptx_copy(uint16_t *to, const uint16_t *from, int bytes) {
    emulated_start(to, from, bytes, 16);
}
static inline void ptx_copy_pair(float *to, const float *from, int bytes) {
    emulated_start(to, from, bytes, 8);
}
static inline void ptx_wait_all() {
    auto *mine = &emulated_under_way[emulated_strand()];
    for (int i = 0; i < mine->n; i++)
        emulated_move(&mine->copies[i]);
    mine->n = 0;
}
static inline void emulated_ends() {
    if (emulated_under_way[emulated_strand()].n)
        emulated_refuse("ends while copies to shared memory are under way");
}

/* A row of a list of kernels. */
#define EMULATED(name, args)                                                                                           \
    { #name, sizeof(args), [](const void *a) {                                                                         \
         name(*(const args *)a);                                                                                       \
         emulated_ends();                                                                                              \
     } },
#endif

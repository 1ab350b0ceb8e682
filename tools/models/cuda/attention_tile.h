/* SPDX-License-Identifier: BSD-3-Clause */
/* Fragments of matrices for tensor cores, and tiles in shared memory. In CUDA a thread is one lane of one warp. On
 * the host one call stands for all lanes and all warps of a block in turn. The host's product reads the fragments by
 * the layout of PTX's mma.m16n8k16, so a lane with a wrong element shows there too. */
#ifndef TESS_MODELS_CUDA_ATTENTION_TILE_H
#define TESS_MODELS_CUDA_ATTENTION_TILE_H
#include "half.h"

#include <math.h>
#include <stdlib.h>

/* A block has TILE_ROWS rows, 16 for each warp; a large one twice as many warps. */
enum { TILE_WARPS = 4, TILE_THREADS = 32 * TILE_WARPS, TILE_ROWS = 16 * TILE_WARPS };
enum { TILE_MOST_WARPS = 2 * TILE_WARPS, TILE_MOST_THREADS = 32 * TILE_MOST_WARPS };
/* TILE_PAD elements follow each row of a tile, so that the lanes' rows lie in different banks */
enum { TILE_PAD = 8 };

#if defined(__CUDA_ARCH__)
#define TILE_LANES 1
#define TILE_WARPS_HERE(warps) 1
#define TILE_EACH_OF(w, i, warps) for (int w = (int)threadIdx.x / 32, i = 0; i < 1; i++)
#define TILE_GROUP(i) ((int)(threadIdx.x % 32) / 4) /* a lane's group of four, and its place in the group */
#define TILE_FOURTH(i) ((int)threadIdx.x % 4)
#define TILE_ALL_LANES(i) for (int i = 0; i < 1; i++)
#define TILE_ALL_WARPS(i) for (int i = 0; i < 1; i++)
#define TILE_SYNC() __syncthreads()
#define TILE_UNROLL _Pragma("unroll")
#define TILE_ROLLED _Pragma("unroll 1")
#else
#define TILE_LANES 32
#define TILE_WARPS_HERE(warps) (warps)
#define TILE_EACH_OF(w, i, warps) for (int w = 0, i = 0; w < (warps); w++, i++)
#define TILE_GROUP(i) ((i) / 4)
#define TILE_FOURTH(i) ((i) % 4)
#define TILE_ALL_LANES(i) for (int i = 0; i < TILE_LANES; i++)
#define TILE_ALL_WARPS(i) for (int i = 0; i < TILE_WARPS; i++)
#define TILE_SYNC() (void)0
#define TILE_UNROLL
#define TILE_ROLLED
#endif
#define TILE_EACH_WARP(w, i) TILE_EACH_OF(w, i, TILE_WARPS)
/* Runs its body once for each lane: its number i, group and place. */
#define TILE_EACH_LANE(i, g, t)                                                                                        \
    TILE_ALL_LANES(i)                                                                                                  \
        for (int g = TILE_GROUP(i), t = TILE_FOURTH(i), t##_once = 1; t##_once; t##_once = 0)

typedef struct { /* 16 × 16, row-major */
    uint32_t r[TILE_LANES][4];
} tile_a;
typedef struct { /* 16 × 8: columns of `b` are rows of memory */
    uint32_t r[TILE_LANES][2];
} tile_b;
typedef struct { /* 16 × 8: rows g and g + 8, columns 2t and 2t + 1 */
    __attribute__((aligned(16))) float v[TILE_LANES][4];
} tile_c;

typedef struct { /* a number for each of a lane's two rows */
    float v[TILE_LANES][2];
} tile_rows;

TESS_FN uint32_t tile_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
    return ptx_pair(low, high);
#else
    return ops_pair_of(low, high);
#endif
}

TESS_FN float tile_exp2(float x) {
#if defined(__CUDA_ARCH__)
    return ptx_exp2(x);
#else
    return exp2f(x);
#endif
}

/* Returns tanh(x) to 2e-7, without a branch. */
TESS_FN float tile_tanh(float x) {
    float e = 1 + tile_exp2(2.88539008f * x);
#if defined(__CUDA_ARCH__)
    return 1 - 2 * ptx_over(e);
#else
    return 1 - 2 * (1 / e);
#endif
}

/* Returns the value that a store in 16 bits and a load would give. */
TESS_FN float tile_rounded(float x) {
    return ops_of_half(ops_half_of(x));
}

/* Reads four fp32 elements by one load of 16 bytes. */
TESS_FN void tile_four(const float *at, float *v) {
#if defined(__CUDA_ARCH__)
    *(float4 *)v = *(const float4 *)at;
#else
    memcpy(v, at, 4 * sizeof *v);
#endif
}

TESS_FN uint32_t tile_word(const uint16_t *at) {
#if defined(__CUDA_ARCH__)
    return *(const uint32_t *)at;
#else
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
#endif
}

/* ---- fragments ----------------------------------------------------------------------------------- */
/* Loads rows `row` … of a tile as a left factor; columns from `k` on are its depth. */
TESS_FN void tile_load_a(tile_a *a, const uint16_t *tile, int pitch, int row, int k) {
#if defined(__CUDA_ARCH__)
    int lane = (int)threadIdx.x % 32;
    ptx_read(a->r[0], tile + (row + lane % 16) * pitch + k + lane / 16 * 8);
#else
    TILE_EACH_LANE(i, g, t) {
        const uint16_t *at = tile + (row + g) * pitch + k + 2 * t;
        a->r[i][0] = tile_word(at);
        a->r[i][1] = tile_word(at + 8 * pitch);
        a->r[i][2] = tile_word(at + 8);
        a->r[i][3] = tile_word(at + 8 * pitch + 8);
    }
#endif
}

/* Loads sixteen columns of a tile as the rows of a left factor; sixteen rows are its depth. */
TESS_FN void tile_load_a_turned(tile_a *a, const uint16_t *tile, int pitch, int k, int column) {
#if defined(__CUDA_ARCH__)
    int lane = (int)threadIdx.x % 32;
    ptx_read_turned(a->r[0], tile + (k + lane / 16 * 8 + lane % 8) * pitch + column + lane / 8 % 2 * 8);
#else
    TILE_EACH_LANE(i, g, t)
        for (int n = 0; n < 4; n++) {
            const uint16_t *at = tile + (k + n / 2 * 8 + 2 * t) * pitch + column + n % 2 * 8 + g;
            a->r[i][n] = at[0] | (uint32_t)at[pitch] << 16;
        }
#endif
}

/* Loads sixteen rows of a tile as the columns of two right factors. */
TESS_FN void tile_load_b(tile_b *b, const uint16_t *tile, int pitch, int row, int k) {
#if defined(__CUDA_ARCH__)
    int lane = (int)threadIdx.x % 32;
    uint32_t r[4];
    ptx_read(r, tile + (row + lane / 16 * 8 + lane % 8) * pitch + k + lane / 8 % 2 * 8);
    b[0].r[0][0] = r[0], b[0].r[0][1] = r[1], b[1].r[0][0] = r[2], b[1].r[0][1] = r[3];
#else
    TILE_EACH_LANE(i, g, t)
        for (int n = 0; n < 2; n++) {
            const uint16_t *at = tile + (row + 8 * n + g) * pitch + k + 2 * t;
            b[n].r[i][0] = tile_word(at);
            b[n].r[i][1] = tile_word(at + 8);
        }
#endif
}

/* Loads sixteen columns of a tile as the columns of two right factors; sixteen rows are their depth. */
TESS_FN void tile_load_b_turned(tile_b *b, const uint16_t *tile, int pitch, int k, int column) {
#if defined(__CUDA_ARCH__)
    int lane = (int)threadIdx.x % 32;
    uint32_t r[4];
    ptx_read_turned(r, tile + (k + lane % 16) * pitch + column + lane / 16 * 8);
    b[0].r[0][0] = r[0], b[0].r[0][1] = r[1], b[1].r[0][0] = r[2], b[1].r[0][1] = r[3];
#else
    TILE_EACH_LANE(i, g, t)
        for (int n = 0; n < 2; n++) {
            const uint16_t *at = tile + (k + 2 * t) * pitch + column + 8 * n + g;
            b[n].r[i][0] = at[0] | (uint32_t)at[pitch] << 16;
            b[n].r[i][1] = at[8 * pitch] | (uint32_t)at[9 * pitch] << 16;
        }
#endif
}

/* Rounds two neighbouring results to 16 bits as a left factor. */
TESS_FN void tile_a_of(tile_a *a, const tile_c *left, const tile_c *right) {
    TILE_ALL_LANES(i) {
        a->r[i][0] = tile_pair(left->v[i][0], left->v[i][1]);
        a->r[i][1] = tile_pair(left->v[i][2], left->v[i][3]);
        a->r[i][2] = tile_pair(right->v[i][0], right->v[i][1]);
        a->r[i][3] = tile_pair(right->v[i][2], right->v[i][3]);
    }
}

/* Rounds results to 16 bits, and writes them to rows `row` … of a tile. */
TESS_FN void tile_store(uint16_t *tile, int pitch, const tile_c *c, int row, int column) {
    TILE_EACH_LANE(i, g, t) {
        TILE_UNROLL for (int n = 0; n < 2; n++) {
            uint32_t pair = tile_pair(c->v[i][2 * n], c->v[i][2 * n + 1]);
            uint16_t *at = tile + (row + g + 8 * n) * pitch + column + 2 * t;
#if defined(__CUDA_ARCH__)
            *(uint32_t *)at = pair;
#else
            memcpy(at, &pair, sizeof pair);
#endif
        }
    }
}

/* Read and write results in memory as the lanes hold them, 512 bytes of a warp at once, in the cache that all
 * multiprocessors share. */
TESS_FN void tile_get_sums(tile_c *c, const float *from) {
    TILE_EACH_LANE(i, g, t) {
        const float *at = from + 16 * g + 4 * t;
#if defined(__CUDA_ARCH__)
        *(float4 *)c->v[i] = __ldcg((const float4 *)at);
#else
        memcpy(c->v[i], at, sizeof c->v[i]);
#endif
    }
}
TESS_FN void tile_put_sums(const tile_c *c, float *to) {
    TILE_EACH_LANE(i, g, t) {
        float *at = to + 16 * g + 4 * t;
#if defined(__CUDA_ARCH__)
        __stcg((float4 *)at, *(const float4 *)c->v[i]);
#else
        memcpy(at, c->v[i], sizeof c->v[i]);
#endif
    }
}
TESS_FN void tile_add(tile_c *c, const tile_c *by) {
    TILE_ALL_LANES(i) {
        TILE_UNROLL for (int e = 0; e < 4; e++) c->v[i][e] += by->v[i][e];
    }
}

/* Multiplies each row by its factor. */
TESS_FN void tile_times(tile_c *c, const tile_rows *by) {
    TILE_ALL_LANES(i) {
        TILE_UNROLL for (int e = 0; e < 4; e++) c->v[i][e] *= by->v[i][e / 2];
    }
}

TESS_FN void tile_clear(tile_c *c) {
    TILE_ALL_LANES(i) {
        c->v[i][0] = c->v[i][1] = c->v[i][2] = c->v[i][3] = 0;
    }
}

/* c += a · b */
TESS_FN void tile_multiply(tile_c *c, const tile_a *a, const tile_b *b) {
#if defined(__CUDA_ARCH__)
    ptx_multiply(c->v[0], a->r[0], b->r[0]);
#else
    float left[16][16], right[16][8];
    TILE_EACH_LANE(i, g, t) {
        for (int n = 0; n < 4; n++)
            for (int high = 0; high < 2; high++)
                left[g + n % 2 * 8][2 * t + high + n / 2 * 8] = ops_of_half((uint16_t)(a->r[i][n] >> 16 * high));
        for (int n = 0; n < 2; n++)
            for (int high = 0; high < 2; high++)
                right[2 * t + high + 8 * n][g] = ops_of_half((uint16_t)(b->r[i][n] >> 16 * high));
    }
    TILE_EACH_LANE(i, g, t) {
        for (int n = 0; n < 4; n++) {
            float sum = 0;
            for (int k = 0; k < 16; k++)
                sum += left[g + n / 2 * 8][k] * right[k][2 * t + n % 2];
            c->v[i][n] += sum;
        }
    }
#endif
}

/* ---- two rows of each lane, combined over the four lanes that share them ---------------------------- */
TESS_FN void tile_rows_set(tile_rows *r, float value) {
    TILE_ALL_LANES(i) {
        r->v[i][0] = r->v[i][1] = value;
    }
}

#if defined(__CUDA_ARCH__)
#define TILE_OVER_FOUR(name, join)                                                                                     \
    TESS_FN void name(tile_rows *r) {                                                                                  \
        TILE_UNROLL for (int n = 0; n < 2; n++) TILE_UNROLL for (int apart = 1; apart < 4; apart *= 2) {               \
            float x = r->v[0][n], y = __shfl_xor_sync(0xffffffffu, x, apart);                                          \
            r->v[0][n] = join(x, y);                                                                                   \
        }                                                                                                              \
    }
#else
#define TILE_OVER_FOUR(name, join)                                                                                     \
    TESS_FN void name(tile_rows *r) {                                                                                  \
        for (int n = 0; n < 2; n++)                                                                                    \
            for (int apart = 1; apart < 4; apart *= 2) {                                                               \
                float x[TILE_LANES];                                                                                   \
                for (int i = 0; i < TILE_LANES; i++)                                                                   \
                    x[i] = join(r->v[i][n], r->v[i ^ apart][n]);                                                       \
                for (int i = 0; i < TILE_LANES; i++)                                                                   \
                    r->v[i][n] = x[i];                                                                                 \
            }                                                                                                          \
    }
#endif
#define TILE_PLUS(x, y) ((x) + (y))
TILE_OVER_FOUR(tile_rows_most, fmaxf)
TILE_OVER_FOUR(tile_rows_sum, TILE_PLUS)

/* Writes two neighbours of a row with `left` elements; vector: both at once. */
TESS_FN void tile_put_two(uint16_t *to, float x, float y, int left, int vector) {
    uint32_t pair = tile_pair(x, y);
#if defined(__CUDA_ARCH__)
    if (vector && left > 0) {
        *(uint32_t *)to = pair;
        return;
    }
#endif
    (void)vector;
    if (left > 0)
        to[0] = (uint16_t)pair;
    if (left > 1)
        to[1] = (uint16_t)(pair >> 16);
}

/* ---- order between blocks --------------------------------------------------------------------------- */
/* Returns how many blocks have called this before; *shared is the block's. The order of calls is the order in which
 * blocks begin, whatever their indices. */
TESS_FN uint32_t tile_ticket(uint32_t *next, uint32_t *shared) {
#if defined(__CUDA_ARCH__)
    if (threadIdx.x == 0)
        *shared = atomicAdd(next, 1u);
    TILE_SYNC();
#else
    *shared = (*next)++;
#endif
    return *shared;
}

/* One thread waits until as many blocks as `before` have passed. After the next TILE_SYNC the block's threads see what
 * those wrote. The host's blocks follow each other, so a wait there would not end. */
TESS_FN void tile_wait_turn(const uint32_t *passed, uint32_t before) {
#if defined(__CUDA_ARCH__)
    if (threadIdx.x == 0)
        while (ptx_acquire(passed) != before)
            ptx_pause();
#else
    if (*passed != before)
        abort();
#endif
}
/* Lets the next block pass. A TILE_SYNC lies between this and the block's writes. */
TESS_FN void tile_pass(uint32_t *passed) {
#if defined(__CUDA_ARCH__)
    if (threadIdx.x == 0)
        ptx_release(passed);
#else
    ++*passed;
#endif
}

/* ---- tiles --------------------------------------------------------------------------------------- */
typedef struct { /* rows of `size` elements in memory, `pitch` apart */
    const uint16_t *at;
    uint32_t pitch;
    int rows, size, vector; /* vector: every eighth element can be read 16 bytes at a time */
} tile_from;

/* Copies rows `first` … to a tile of n rows of `width` elements; elements beyond the matrix are zeros. */
TESS_FN void tile_fill(uint16_t *tile, int n, int width, const tile_from *m, int first, int thread, int threads) {
    TILE_ROLLED for (int i = thread; i < n * width; i += threads) {
        int row = i / width, c = i % width, inside = first + row < m->rows && c < m->size;
        tile[row * (width + TILE_PAD) + c] = inside ? m->at[(uint64_t)(uint32_t)(first + row) * m->pitch + c] : 0;
    }
}

/* ---- copies that overlap the work ------------------------------------------------------------------- */
/* A block starts copies to tiles. After tile_wait and TILE_SYNC all of them are complete. The host copies when it
 * waits, and fills the tile with NaNs until then. */
enum { TILE_COPIES = 8 };
typedef struct {
    int threads; /* of the block */
#if !defined(__CUDA_ARCH__)
    struct {
        uint16_t *tile;
        tile_from m;
        int n, width, first;
    } copies[TILE_COPIES];
    int n;
#endif
} tile_pipe;

TESS_FN void tile_pipe_begin(tile_pipe *p, int threads) {
    p->threads = threads;
#if !defined(__CUDA_ARCH__)
    p->n = 0;
#endif
}

/* Starts copying n rows to a tile. Rows that cannot be read 16 bytes at a time are copied immediately. */
TESS_FN void tile_start(tile_pipe *p, uint16_t *tile, int n, int width, const tile_from *m, int first) {
#if defined(__CUDA_ARCH__)
    if (!m->vector) {
        tile_fill(tile, n, width, m, first, (int)threadIdx.x, p->threads);
        return;
    }
    const uint16_t *at = m->at + (uint64_t)(uint32_t)first * m->pitch;
    TILE_UNROLL for (unsigned k = 0; k < (unsigned)(n * width / 8 / p->threads); k++) {
        unsigned i = threadIdx.x + k * (unsigned)p->threads, row = i / (unsigned)(width / 8),
                 c = i % (unsigned)(width / 8) * 8;
        int inside = (int)row < m->rows - first && (int)c < m->size;
        ptx_copy(tile + (row * (unsigned)(width + TILE_PAD) + c), inside ? at + (row * m->pitch + c) : m->at,
                 inside ? 16 : 0);
    }
#else
    if (p->n == TILE_COPIES)
        abort();
    memset(tile, 0xff, (size_t)(n * (width + TILE_PAD)) * sizeof *tile);
    p->copies[p->n].tile = tile, p->copies[p->n].m = *m, p->copies[p->n].n = n, p->copies[p->n].width = width;
    p->copies[p->n++].first = first;
#endif
}

/* Starts copying n pairs of fp32, of which `inside` exist; the others are zeros. The host copies immediately. */
TESS_FN void tile_start_pairs(float *to, const float *from, int n, int inside) {
#if defined(__CUDA_ARCH__)
    int i = (int)threadIdx.x;
    if (i < n)
        ptx_copy_pair(to + 2 * i, i < inside ? from + 2 * i : from, i < inside ? 8 : 0);
#else
    for (int i = 0; i < 2 * n; i++)
        to[i] = i < 2 * inside ? from[i] : 0;
#endif
}

TESS_FN void tile_wait(tile_pipe *p) {
#if defined(__CUDA_ARCH__)
    (void)p;
    ptx_wait_all();
#else
    for (int i = 0; i < p->n; i++)
        for (int t = 0; t < p->threads; t++)
            tile_fill(p->copies[i].tile, p->copies[i].n, p->copies[i].width, &p->copies[i].m, p->copies[i].first, t,
                      p->threads);
    p->n = 0;
#endif
}
#endif

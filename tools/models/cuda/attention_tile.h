/* SPDX-License-Identifier: BSD-3-Clause */
/* Fragments of matrices for tensor cores, and tiles in shared memory. In CUDA a thread is one lane of one warp. On
 * the host one call stands for all lanes and all warps of a block in turn. The host's product reads the fragments by
 * the layout of PTX's mma.m16n8k16, so a lane with a wrong element shows there too. */
#ifndef TESS_MODELS_CUDA_ATTENTION_TILE_H
#define TESS_MODELS_CUDA_ATTENTION_TILE_H
#include "half.h"

#include <stdlib.h>

/* A block has TILE_ROWS rows, 16 for each warp. */
enum { TILE_WARPS = 4, TILE_THREADS = 32 * TILE_WARPS, TILE_ROWS = 16 * TILE_WARPS };
/* TILE_PAD elements follow each row of a tile, so that the lanes' rows lie in different banks */
enum { TILE_PAD = 8 };

#if defined(__CUDA_ARCH__)
#define TILE_LANES 1
#define TILE_WARPS_HERE 1
#define TILE_EACH_THREAD(t) for (int t = (int)threadIdx.x, t##_once = 1; t##_once; t##_once = 0)
#define TILE_EACH_WARP(w, i) for (int w = (int)threadIdx.x / 32, i = 0; i < 1; i++)
#define TILE_EACH_LANE(i, g, t) /* g: the lane's group of four; t: the lane's place in the group */                    \
    for (int i = 0, g = (int)(threadIdx.x % 32) / 4, t = (int)threadIdx.x % 4; i < 1; i++)
#define TILE_ALL_LANES(i) for (int i = 0; i < 1; i++)
#define TILE_ALL_WARPS(i) for (int i = 0; i < 1; i++)
#define TILE_SYNC() __syncthreads()
#define TILE_UNROLL _Pragma("unroll")
#else
#define TILE_LANES 32
#define TILE_WARPS_HERE TILE_WARPS
#define TILE_EACH_THREAD(t) for (int t = 0; t < TILE_THREADS; t++)
#define TILE_EACH_WARP(w, i) for (int w = 0, i = 0; w < TILE_WARPS; w++, i++)
#define TILE_EACH_LANE(i, g, t) for (int i = 0, g = 0, t = 0; i < 32; i++, g = i / 4, t = i % 4)
#define TILE_ALL_LANES(i) for (int i = 0; i < TILE_LANES; i++)
#define TILE_ALL_WARPS(i) for (int i = 0; i < TILE_WARPS; i++)
#define TILE_SYNC() (void)0
#define TILE_UNROLL
#endif

typedef struct { /* 16 × 16, row-major */
    uint32_t r[TILE_LANES][4];
} tile_a;
typedef struct { /* 16 × 8: columns of `b` are rows of memory */
    uint32_t r[TILE_LANES][2];
} tile_b;
typedef struct { /* 16 × 8: rows g and g + 8, columns 2t and 2t + 1 */
    float v[TILE_LANES][4];
} tile_c;

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
    TILE_EACH_LANE(i, g, t) {
        const uint16_t *at = tile + (row + g) * pitch + k + 2 * t;
        a->r[i][0] = tile_word(at);
        a->r[i][1] = tile_word(at + 8 * pitch);
        a->r[i][2] = tile_word(at + 8);
        a->r[i][3] = tile_word(at + 8 * pitch + 8);
    }
}

/* Loads eight rows of a tile as the columns of a right factor. */
TESS_FN void tile_load_b(tile_b *b, const uint16_t *tile, int pitch, int row, int k) {
    TILE_EACH_LANE(i, g, t) {
        const uint16_t *at = tile + (row + g) * pitch + k + 2 * t;
        b->r[i][0] = tile_word(at);
        b->r[i][1] = tile_word(at + 8);
    }
}

/* Loads eight columns of a tile as the columns of a right factor; sixteen rows are its depth. */
TESS_FN void tile_load_b_turned(tile_b *b, const uint16_t *tile, int pitch, int k, int column) {
#if defined(__CUDA_ARCH__)
    ptx_read_turned(b->r[0], tile + (k + (int)(threadIdx.x % 16)) * pitch + column);
#else
    TILE_EACH_LANE(i, g, t) {
        const uint16_t *at = tile + (k + 2 * t) * pitch + column + g;
        b->r[i][0] = at[0] | (uint32_t)at[pitch] << 16;
        b->r[i][1] = at[8 * pitch] | (uint32_t)at[9 * pitch] << 16;
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
typedef struct {
    float v[TILE_LANES][2];
} tile_rows;

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
#define TILE_MOST(x, y) ((x) > (y) ? (x) : (y))
#define TILE_PLUS(x, y) ((x) + (y))
TILE_OVER_FOUR(tile_rows_most, TILE_MOST)
TILE_OVER_FOUR(tile_rows_sum, TILE_PLUS)

/* ---- tiles --------------------------------------------------------------------------------------- */
typedef struct { /* rows of `size` elements in memory, `pitch` apart */
    const uint16_t *at;
    uint64_t pitch;
    int rows, size, vector; /* vector: every eighth element can be read 16 bytes at a time */
} tile_from;

TESS_FN void tile_get(uint16_t *v, const uint16_t *at, int n, int vector) {
#if defined(__CUDA_ARCH__)
    if (vector && n >= 8) {
        *(uint4 *)v = *(const uint4 *)at;
        return;
    }
#endif
    (void)vector;
    TILE_UNROLL for (int i = 0; i < 8; i++) v[i] = i < n ? at[i] : 0;
}

TESS_FN void tile_put(uint16_t *to, const uint16_t *v) {
#if defined(__CUDA_ARCH__)
    *(uint4 *)to = *(const uint4 *)v;
#else
    memcpy(to, v, 16);
#endif
}

/* Reads eight elements of a row from column c on; elements beyond the matrix are zeros. */
TESS_FN void tile_eight(const tile_from *m, int row, int c, uint16_t *v) {
    int n = row < m->rows ? m->size - c : 0;
    tile_get(v, n > 0 ? m->at + (uint64_t)row * m->pitch + c : m->at, n, m->vector);
}

/* Copies rows `first` … to a tile of n rows of `width` elements. */
TESS_FN void tile_fill(uint16_t *tile, int n, int width, const tile_from *m, int first, int thread) {
    int eights = width / 8;
    __attribute__((aligned(16))) uint16_t v[8];
    for (int i = thread; i < n * eights; i += TILE_THREADS) {
        int row = i / eights, c = i % eights * 8;
        tile_eight(m, first + row, c, v);
        tile_put(tile + row * (width + TILE_PAD) + c, v);
    }
}

/* ---- copies that overlap the work ------------------------------------------------------------------- */
/* A block starts copies to tiles; tile_commit ends a group of copies. After tile_wait and TILE_SYNC the groups are
 * complete, except the last `most`. The host copies when it waits, and fills the tile with NaNs until then. */
enum { TILE_COPIES = 8 };
typedef struct {
#if defined(__CUDA_ARCH__)
    int unused;
#else
    struct {
        uint16_t *tile;
        tile_from m;
        int n, width, first, group;
    } copies[TILE_COPIES];
    int n, groups;
#endif
} tile_pipe;

TESS_FN void tile_pipe_begin(tile_pipe *p) {
#if defined(__CUDA_ARCH__)
    p->unused = 0;
#else
    p->n = p->groups = 0;
#endif
}

/* Starts copying n rows to a tile. Rows that cannot be read 16 bytes at a time are copied immediately. */
TESS_FN void tile_start(tile_pipe *p, uint16_t *tile, int n, int width, const tile_from *m, int first) {
#if defined(__CUDA_ARCH__)
    int eights = width / 8;
    (void)p;
    if (!m->vector) {
        tile_fill(tile, n, width, m, first, (int)threadIdx.x);
        return;
    }
    for (int i = (int)threadIdx.x; i < n * eights; i += TILE_THREADS) {
        int row = i / eights, c = i % eights * 8, inside = first + row < m->rows && c < m->size;
        const uint16_t *from = inside ? m->at + (uint64_t)(first + row) * m->pitch + c : m->at;
        ptx_copy(tile + row * (width + TILE_PAD) + c, from, inside ? 16 : 0);
    }
#else
    if (p->n == TILE_COPIES)
        abort();
    memset(tile, 0xff, (size_t)(n * (width + TILE_PAD)) * sizeof *tile);
    p->copies[p->n].tile = tile, p->copies[p->n].m = *m, p->copies[p->n].n = n, p->copies[p->n].width = width;
    p->copies[p->n].first = first, p->copies[p->n++].group = p->groups;
#endif
}

TESS_FN void tile_commit(tile_pipe *p) {
#if defined(__CUDA_ARCH__)
    (void)p;
    ptx_commit();
#else
    p->groups++;
#endif
}

TESS_FN void tile_wait(tile_pipe *p, int most) {
#if defined(__CUDA_ARCH__)
    (void)p;
    if (most)
        ptx_wait_but_one();
    else
        ptx_wait_all();
#else
    int left = 0;
    for (int i = 0; i < p->n; i++)
        if (p->copies[i].group >= p->groups - most)
            p->copies[left++] = p->copies[i];
        else
            TILE_EACH_THREAD(t)
                tile_fill(p->copies[i].tile, p->copies[i].n, p->copies[i].width, &p->copies[i].m, p->copies[i].first,
                          t);
    p->n = left;
#endif
}
#endif

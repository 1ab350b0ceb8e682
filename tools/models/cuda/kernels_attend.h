/* SPDX-License-Identifier: BSD-3-Clause */
/* Causal attention in 16 bits: one launch forward and one backward, whatever the batch and the heads. A block has 64
 * query rows of one head and walks over the earlier keys. It keeps a running maximum and sum (Dao et al.,
 * "FlashAttention", 2022; Dao, "FlashAttention-2", 2023). Backward has blocks of queries and blocks of keys. Each
 * element has one writer, so the bits do not depend on the order of blocks. Heads may share keys and values. */
#ifndef TESS_MODELS_CUDA_KERNELS_ATTEND_H
#define TESS_MODELS_CUDA_KERNELS_ATTEND_H
#include "attention_tile.h"
#include "tools/models/ops_formulas.h"

typedef struct { /* qkv[batch, time, heads + 2 · kv_heads, size]; y[batch, time, heads, size] */
    const uint16_t *qkv;
    uint16_t *y;
    float *lse; /* [batch, heads, time] */
    int32_t batch, time, heads, kv_heads, size, tiles, vector, window;
    float scale, cap;
} ops_args_attend;
typedef struct { /* blocks of queries precede blocks of keys */
    const uint16_t *qkv, *y, *dy;
    /* A table that is not null turns the gradients of queries and keys back. */
    const float *lse, *table;
    uint16_t *dqkv;
    int32_t batch, time, heads, kv_heads, size, tiles, vector, window;
    float scale, cap;
} ops_args_attend_backward;

typedef struct { /* a query sees the keys from attend_first_key to itself */
    int window;
    float scale, over_cap, cap_over; /* over_cap: scale / cap, or 0 without a cap; cap_over: cap / scale */
} attend_sight;
#define ATTEND_SIGHT(a)                                                                                                \
    { (a)->window, (a)->scale, (a)->cap > 0 ? (a)->scale / (a)->cap : 0, (a)->cap / (a)->scale }
TESS_FN int attend_first_key(const attend_sight *e, int query) {
    return e->window > 0 && query >= e->window ? query - e->window + 1 : 0;
}
TESS_FN int attend_hides(const attend_sight *e, int query, int key) {
    return key > query || (e->window > 0 && key + e->window <= query);
}
/* Returns tanh(scaled score / cap). Without a cap it returns 0, so that score and slope stay as they are. */
TESS_FN float attend_tanh(const attend_sight *e, float score) {
    return e->over_cap > 0 ? ops_tanh(score * e->over_cap) : 0;
}
TESS_FN float attend_capped(const attend_sight *e, float score, float t) {
    return e->over_cap > 0 ? e->cap_over * t : score;
}

typedef struct { /* one tile of one head of one sample */
    int64_t n;
    int head, tile;
} attend_place;

/* Blocks with the most work start first; in forward those are the last tiles. */
TESS_FN attend_place attend_place_of(uint32_t block, int heads, int tiles, int backwards) {
    uint32_t of = block / (uint32_t)tiles, tile = block % (uint32_t)tiles;
    attend_place p = { (int64_t)(of / (uint32_t)heads), (int)(of % (uint32_t)heads), (int)tile };
    p.tile = backwards ? tiles - 1 - p.tile : p.tile;
    return p;
}

/* The rows of head `at_`, where a sample's heads of queries, keys and values are numbered in that order. */
#define ATTEND_PART(a, p, at_)                                                                                         \
    {                                                                                                                  \
        (a)->qkv +                                                                                                     \
            ((uint64_t)(p).n * (uint64_t)(a)->time * attend_pitch((a)->heads, (a)->kv_heads) + (uint64_t)(at_)) *      \
                (uint64_t)(a)->size,                                                                                   \
            attend_pitch((a)->heads, (a)->kv_heads) * (uint64_t)(a)->size, (a)->time, (a)->size, (a)->vector           \
    }
TESS_FN uint64_t attend_pitch(int heads, int kv_heads) {
    return (uint64_t)(heads + 2 * kv_heads);
}
/* Returns the rows of a head of y or dy. */
TESS_FN tile_from attend_rows(const uint16_t *y, int64_t n, int head, int time, int heads, int size, int vector) {
    uint64_t pitch = (uint64_t)heads * (uint64_t)size;
    tile_from m = { y + (uint64_t)n * (uint64_t)time * pitch + (uint64_t)head * (uint64_t)size, pitch, time, size,
                    vector };
    return m;
}

#define ATTEND_LOG2E 1.44269504f
#define ATTEND_NONE (-1e30f) /* the score of a hidden key, and the maximum of no scores */

/* Writes a warp's 16 rows × 8 columns, each row times its factor. */
TESS_FN void attend_put(const tile_c *c, const tile_rows *times, uint16_t *to, uint64_t pitch, int row, int rows,
                        int column, int size) {
    TILE_EACH_LANE(i, g, t) {
        TILE_UNROLL for (int e = 0; e < 4; e++) {
            int r = row + g + e / 2 * 8, k = column + 2 * t + e % 2;
            if (r < rows && k < size)
                to[(uint64_t)r * pitch + (uint64_t)k] = ops_half_of(c->v[i][e] * times->v[i][e / 2]);
        }
    }
}

/* Turns 16 rows × 8 pairs back by their positions: `re` and `im` hold the columns of the two halves of a head. It
 * rounds them first, as a separate launch would read them. */
TESS_FN void attend_turn_back(tile_c *re, tile_c *im, const float *table, int row, int rows, int pair, int pairs) {
    TILE_EACH_LANE(i, g, t) {
        TILE_UNROLL for (int n = 0; n < 2; n++) {
            int r = row + g + n * 8;
            __attribute__((aligned(16))) float turn[4] = { 1, 0, 1, 0 };
            if (r < rows)
                tile_four(table + 2 * ((uint64_t)r * (uint64_t)pairs + (uint64_t)(pair + 2 * t)), turn);
            TILE_UNROLL for (int e = 0; e < 2; e++) {
                float x = tile_rounded(re->v[i][2 * n + e]), y = tile_rounded(im->v[i][2 * n + e]);
                float c = turn[2 * e], s = -turn[2 * e + 1];
                re->v[i][2 * n + e] = x * c - y * s;
                im->v[i][2 * n + e] = y * c + x * s;
            }
        }
    }
}

/* Two threads share a row; each sums y · dy over half of it. */
TESS_FN void attend_half_delta(const tile_from *y, const tile_from *dy, int first, int rows, int thread, float *half) {
    __attribute__((aligned(16))) uint16_t a[8], b[8];
    float sum = 0;
    if (thread >= 2 * rows)
        return;
    for (int c = thread % 2 * 8; c < y->size; c += 16) {
        tile_eight(y, first + thread / 2, c, a);
        tile_eight(dy, first + thread / 2, c, b);
        TILE_UNROLL for (int i = 0; i < 8; i++) sum += ops_of_half(a[i]) * ops_of_half(b[i]);
    }
    half[thread] = sum;
}

enum { ATTEND_MOST = 128 };
#define ATTEND_NAME_(name, size) name##_##size
#define ATTEND_NAME(name, size) ATTEND_NAME_(name, size)

#define ATTEND_SIZE 16
#define ATTEND_SMALL 32
#include "attend_body.h"
#define ATTEND_SIZE 32
#define ATTEND_SMALL 64
#include "attend_body.h"
#define ATTEND_SIZE 64
#define ATTEND_SMALL 64
#include "attend_body.h"
#define ATTEND_SIZE 96
#define ATTEND_SMALL 32
#include "attend_body.h"
#define ATTEND_SIZE 128
#define ATTEND_SMALL 16
#include "attend_body.h"
#endif

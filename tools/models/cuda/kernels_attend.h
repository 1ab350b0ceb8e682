/* SPDX-License-Identifier: BSD-3-Clause */
/* Causal attention in 16 bits: one launch forward and two backward, whatever the batch and the heads. A block has
 * query rows of one head and walks over the earlier keys. It keeps a running maximum and sum (Dao et al.,
 * "FlashAttention", 2022; Dao, "FlashAttention-2", 2023). Backward has blocks of queries and blocks of keys. Each
 * element has one writer, so the bits do not depend on the order of blocks. Heads may share keys and values. */
#ifndef TESS_MODELS_CUDA_KERNELS_ATTEND_H
#define TESS_MODELS_CUDA_KERNELS_ATTEND_H
#include "attention_tile.h"

#include <limits.h>

/* Sixteens of query rows that a warp holds in a kernel for heads of `size`. Two share each load of keys and values;
 * larger heads leave too few registers. */
#define ATTEND_PARTS(size) ((size) <= 64 ? 2 : 1)
/* Return how many blocks of queries, or of keys, a head has. */
TESS_FN uint32_t attend_query_tiles(int time, int size) {
    int rows = ATTEND_PARTS(size) * TILE_ROWS;
    return (uint32_t)((time + rows - 1) / rows);
}
TESS_FN uint32_t attend_key_tiles(int time) {
    return (uint32_t)((time + TILE_ROWS - 1) / TILE_ROWS);
}

#define ATTEND_LOG2E 1.44269504f
typedef struct {              /* a query sees the keys from attend_first_key to itself */
    int32_t window;           /* INT_MAX: all earlier keys */
    float scale, two;         /* of scores; two: for exponentials of base 2 */
    float over_cap, cap_over; /* over_cap: scale / cap, or 0 without a cap; cap_over: cap / scale */
} attend_sight;
TESS_FN attend_sight attend_sight_of(int window, float scale, float cap) {
    attend_sight e = { window > 0 ? window : INT_MAX, scale, scale * ATTEND_LOG2E, cap > 0 ? scale / cap : 0,
                       cap / scale };
    return e;
}

typedef struct { /* qkv[batch, time, heads + 2 · kv_heads, size]; y[batch, time, heads, size] */
    const uint16_t *qkv;
    uint16_t *y;
    float *lse; /* [batch, heads, time] */
    int32_t batch, time, heads, kv_heads, size, vector;
    attend_sight sight;
} ops_args_attend;
typedef struct { /* blocks of queries precede blocks of keys */
    const uint16_t *qkv, *dy;
    const float *rows; /* [batch, heads, time, 2]: the sums of attend_sums */
    /* A table that is not null turns the gradients of queries and keys back. */
    const float *table;
    uint16_t *dqkv;
    int32_t batch, time, heads, kv_heads, size, vector;
    attend_sight sight;
    /* attend_five.h. sums: attend_five_sums; turns: attend_five_turns counts, of which attend_sums makes zeros; group:
     * heads of keys whose blocks follow each other. */
    float *sums;
    uint32_t *turns;
    uint32_t group;
} ops_args_attend_backward;

TESS_FN int attend_first_key(const attend_sight *e, int query) {
    return query >= e->window ? query - e->window + 1 : 0;
}

typedef struct { /* scores of a warp: rows × columns are queries × keys, or with `turned` keys × queries */
    int row, rows, column, columns, turned;
} attend_field;
/* Returns whether some queries of a field do not see some keys, and whether no query sees a key. */
TESS_FN int attend_hides_some(const attend_sight *e, attend_field f) {
    int query = f.turned ? f.column : f.row, queries = f.turned ? f.columns : f.rows;
    int key = f.turned ? f.row : f.column, keys = f.turned ? f.rows : f.columns;
    return key + keys - 1 > query || query + queries - 1 - key >= e->window;
}
TESS_FN int attend_hides_all(const attend_sight *e, attend_field f) {
    int query = f.turned ? f.column : f.row, queries = f.turned ? f.columns : f.rows;
    int key = f.turned ? f.row : f.column, keys = f.turned ? f.rows : f.columns;
    return key > query + queries - 1 || query - (key + keys - 1) >= e->window;
}

/* Hides the scores of keys that their queries do not see. Only the field's first 16 rows are in s. */
TESS_FN void attend_hide(tile_c *s, const attend_sight *e_, attend_field f) {
    TILE_EACH_LANE(i, g, t) {
        TILE_UNROLL for (int k = 0; k < f.columns / 8; k++) TILE_UNROLL for (int e = 0; e < 4; e++) {
            int back = f.row + g + e / 2 * 8 - (f.column + k * 8 + 2 * t + e % 2);
            if ((uint32_t)(f.turned ? -back : back) >= (uint32_t)e_->window) /* later keys are below 0 */
                s[k].v[i][e] = -INFINITY;
        }
    }
}

/* Caps scores; where `slopes` is not null, multiplies it by the derivative. */
TESS_FN void attend_cap(tile_c *s, tile_c *slopes, int columns, const attend_sight *e_) {
    TILE_ALL_LANES(i) {
        TILE_UNROLL for (int k = 0; k < columns / 8; k++) TILE_UNROLL for (int e = 0; e < 4; e++) {
            float t = tile_tanh(s[k].v[i][e] * e_->over_cap);
            s[k].v[i][e] = e_->cap_over * t;
            if (slopes)
                slopes[k].v[i][e] *= 1 - t * t;
        }
    }
}

typedef struct { /* one tile of one head of one sample */
    int n, head, tile;
} attend_place;

/* Numbers the tiles first, then samples and heads, so that the blocks with the most work start first. */
TESS_FN attend_place attend_place_of(uint32_t block, int batch, int heads) {
    uint32_t of = (uint32_t)batch * (uint32_t)heads, within = block % of;
    attend_place p = { (int)(within / (uint32_t)heads), (int)(within % (uint32_t)heads), (int)(block / of) };
    return p;
}

/* ---- backward in five products: attend_five.h ------------------------------------------------------- */
/* Keys of a block, and queries of a step. Two steps of queries and dy take the place of the values. */
enum { ATTEND_FIVE_KEYS = 128, ATTEND_FIVE_STEP = ATTEND_FIVE_KEYS / 4 };
#define ATTEND_FIVE_WARPS(size) (ATTEND_FIVE_KEYS / (16 * ATTEND_PARTS(size)))
TESS_FN uint32_t attend_five_tiles(int time) {
    return (uint32_t)((time + ATTEND_FIVE_KEYS - 1) / ATTEND_FIVE_KEYS);
}
TESS_FN uint64_t attend_five_steps(uint64_t heads, uint64_t time) {
    return heads * ((time + ATTEND_FIVE_STEP - 1) / ATTEND_FIVE_STEP);
}
/* Return how many fp32 elements and counts a launch has, where `heads` are those of all samples. */
TESS_FN uint64_t attend_five_sums(uint64_t heads, uint64_t time, int size) {
    return attend_five_steps(heads, time) * (uint64_t)(ATTEND_FIVE_STEP * (size <= 64 ? 64 : 128));
}
TESS_FN uint64_t attend_five_turns(uint64_t heads, uint64_t time) {
    return 1 + attend_five_steps(heads, time);
}
/* Returns the number of a step of a head of queries among those of all heads. */
TESS_FN uint32_t attend_step_of(const ops_args_attend_backward *a, attend_place p, int query, int step) {
    uint32_t steps = (uint32_t)((a->time + step - 1) / step);
    return (uint32_t)(p.n * a->heads + p.head) * steps + (uint32_t)(query / step);
}
/* Numbers groups of heads first, so that the sums of those at work stay in the GPU's cache. Within a group, tiles, so
 * that the longest walks begin first and earlier keys have lower tickets. */
TESS_FN attend_place attend_five_place(const ops_args_attend_backward *a, uint32_t ticket, uint32_t tiles) {
    uint32_t all = (uint32_t)a->batch * (uint32_t)a->kv_heads, begin = ticket / (a->group * tiles) * a->group;
    uint32_t heads = all - begin < a->group ? all - begin : a->group, within = ticket - begin * tiles;
    uint32_t head = begin + within % heads;
    attend_place p = { (int)(head / (uint32_t)a->kv_heads), (int)(head % (uint32_t)a->kv_heads),
                       (int)(within / heads) };
    return p;
}

/* Returns the rows of head `head` of sample n, where a row has `heads` of them. */
TESS_FN tile_from attend_rows(const uint16_t *x, int heads, int n, int head, int time, int size, int vector) {
    uint32_t pitch = (uint32_t)heads * (uint32_t)size, row = (uint32_t)n * (uint32_t)time;
    tile_from m = { x + (uint64_t)row * pitch + (uint32_t)head * (uint32_t)size, pitch, time, size, vector };
    return m;
}
/* Heads of queries, keys and values are numbered in that order. */
#define ATTEND_PART(a, n, head)                                                                                        \
    attend_rows((a)->qkv, (a)->heads + 2 * (a)->kv_heads, n, head, (a)->time, (a)->size, (a)->vector)
#define ATTEND_DY(a, n, head) attend_rows((a)->dy, (a)->heads, n, head, (a)->time, (a)->size, (a)->vector)

/* Writes a warp's 16 rows of m as they lie in `to`, where m lies in `of`. */
TESS_FN void attend_put(const tile_c *c, int columns, uint16_t *to, const uint16_t *of, const tile_from *m, int row) {
    TILE_EACH_LANE(i, g, t) {
        TILE_UNROLL for (int n = 0; n < 2; n++) {
            int r = row + g + 8 * n;
            uint16_t *at = to + (m->at - of) + (uint64_t)(uint32_t)r * m->pitch + 2 * t;
            if (r < m->rows)
                TILE_UNROLL for (int d = 0; d < columns; d += 8) tile_put_two(
                    at + d, c[d / 8].v[i][2 * n], c[d / 8].v[i][2 * n + 1], m->size - d - 2 * t, m->vector);
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

/* The address of a query's sums. */
#define ATTEND_ROWS(a, n, head, query)                                                                                 \
    ((a)->rows + 2 * ((uint64_t)(uint32_t)((n) * (a)->heads + (head)) * (uint32_t)(a)->time + (uint32_t)(query)))
/* Reads the sums of a warp's 16 queries. */
TESS_FN void attend_own_rows(tile_c *own, const float *rows, int row, int time) {
    TILE_ALL_LANES(i) {
        TILE_UNROLL for (int e = 0; e < 4; e++) {
            int r = row + TILE_GROUP(i) + e / 2 * 8;
            own->v[i][e] = r < time ? rows[2 * r + e % 2] : 0;
        }
    }
}

/* Copies to `four`: of the rows g and g + 8 of a lane, or of its columns of a field, base-2 log-sum-exp and delta. */
TESS_FN void attend_four(const tile_c *own, const float *columns, int k, int i, int t, float *four) {
    if (own)
        memcpy(four, own->v[i], sizeof own->v[i]);
    else
        tile_four(columns + 2 * (k * 8 + 2 * t), four);
}

/* Turns scores into probabilities, and dp into the gradient of scores over `scale`. */
TESS_FN void attend_slopes(tile_c *s, tile_c *dp, const tile_c *own, const float *columns, const attend_sight *sight,
                           attend_field f) {
    __attribute__((aligned(16))) float four[4];
    TILE_ALL_LANES(i)
        TILE_UNROLL for (int k = 0; k < f.columns / 8; k++) {
            attend_four(own, columns, k, i, TILE_FOURTH(i), four);
            TILE_UNROLL for (int e = 0; e < 4; e++) dp[k].v[i][e] -= four[f.turned ? e % 2 * 2 + 1 : e / 2 * 2 + 1];
        }
    if (sight->over_cap > 0)
        attend_cap(s, dp, f.columns, sight);
    if (attend_hides_some(sight, f))
        attend_hide(s, sight, f);
    TILE_ALL_LANES(i)
        TILE_UNROLL for (int k = 0; k < f.columns / 8; k++) {
            attend_four(own, columns, k, i, TILE_FOURTH(i), four);
            TILE_UNROLL for (int e = 0; e < 4; e++) {
                s[k].v[i][e] = tile_exp2(fmaf(s[k].v[i][e], sight->two, -four[f.turned ? e % 2 * 2 : e / 2 * 2]));
                dp[k].v[i][e] *= s[k].v[i][e];
            }
        }
}

enum { ATTEND_MOST = 128 };
#define ATTEND_NAME_(name, size) name##_##size
#define ATTEND_NAME(name, size) ATTEND_NAME_(name, size)

/* ATTEND_SPAN: rows of the tiles that a block walks over. ATTEND_SLICE: columns of scores at a time in backward.
 * ATTEND_FIVE: there is a backward in five products. */
#define ATTEND_SIZE 16
#define ATTEND_SPAN 64
#define ATTEND_SLICE 32
#include "attend_body.h"
#define ATTEND_SIZE 32
#define ATTEND_SPAN 64
#define ATTEND_SLICE 32
#include "attend_body.h"
#define ATTEND_SIZE 64
#define ATTEND_FIVE
#define ATTEND_SPAN 64
#define ATTEND_SLICE 32
#include "attend_body.h"
#define ATTEND_SIZE 96
#define ATTEND_SPAN 32
#define ATTEND_SLICE 32
#include "attend_body.h"
#define ATTEND_SIZE 128
#define ATTEND_FIVE
#define ATTEND_SPAN 32
#define ATTEND_SLICE 16
#include "attend_body.h"
#endif

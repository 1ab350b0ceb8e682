/* SPDX-License-Identifier: BSD-3-Clause */
/* The two kernels of kernels_attend.h for heads of up to ATTEND_SIZE elements. kernels_attend.h includes this file once
 * per size, for some with ATTEND_FIVE. A block reads its own rows once, as factors in registers. It walks over tiles of
 * SPAN rows of two matrices; the copy of the next two overlaps the work on these. */
#define SIZE ATTEND_SIZE
#define SPAN ATTEND_SPAN
#define SLICE ATTEND_SLICE
#define PARTS ATTEND_PARTS(SIZE)
#define NAME(name) ATTEND_NAME(name, ATTEND_SIZE)
#define PITCH (SIZE + TILE_PAD)

typedef struct {
    uint16_t tile[4 * SPAN * PITCH]; /* two stages of two tiles */
} NAME(attend_shared);
typedef struct {
    uint16_t tile[4 * SPAN * PITCH];
    float rows[2][2 * SPAN]; /* of each query of a stage, base-2 log-sum-exp and delta */
} NAME(attend_backward_shared);

TESS_FN uint16_t *NAME(attend_tile)(uint16_t *tiles, int stage, int which) {
    return tiles + (2 * stage + which) * SPAN * PITCH;
}

/* s[16 rows of each part, n] = left · right[n, SIZE]^T */
TESS_FN void NAME(attend_score)(tile_c *s, const tile_a *left, int parts, const uint16_t *right, int n) {
    TILE_UNROLL for (int k = 0; k < parts * n / 8; k++) tile_clear(&s[k]);
    TILE_UNROLL for (int d = 0; d < SIZE / 16; d++) TILE_UNROLL for (int k = 0; k < n / 8; k += 2) {
        tile_b b[2];
        tile_load_b(b, right, PITCH, k * 8, d * 16);
        TILE_UNROLL for (int m = 0; m < parts; m++) TILE_UNROLL for (int j = 0; j < 2; j++)
            tile_multiply(&s[m * (n / 8) + k + j], &left[m * (SIZE / 16) + d], &b[j]);
    }
}

/* y[16 rows of each part, SIZE] += p[.., n] · right[n, SIZE] */
TESS_FN void NAME(attend_collect)(tile_c *y, const tile_c *p, int parts, const uint16_t *right, int n) {
    TILE_UNROLL for (int k = 0; k < n / 16; k++) {
        tile_a a[PARTS];
        TILE_UNROLL for (int m = 0; m < parts; m++)
            tile_a_of(&a[m], &p[m * (n / 8) + 2 * k], &p[m * (n / 8) + 2 * k + 1]);
        TILE_UNROLL for (int d = 0; d < SIZE / 8; d += 2) {
            tile_b b[2];
            tile_load_b_turned(b, right, PITCH, k * 16, d * 8);
            TILE_UNROLL for (int m = 0; m < parts; m++) TILE_UNROLL for (int j = 0; j < 2; j++)
                tile_multiply(&y[m * (SIZE / 8) + d + j], &a[m], &b[j]);
        }
    }
}

/* Reads a warp's rows of a tile as left factors. */
TESS_FN void NAME(attend_hold)(tile_a *left, int parts, const uint16_t *tile, int row) {
    TILE_UNROLL for (int m = 0; m < parts; m++) TILE_UNROLL for (int d = 0; d < SIZE / 16; d++)
        tile_load_a(&left[m * (SIZE / 16) + d], tile, PITCH, row + m * 16, d * 16);
}

/* Starts copying SPAN rows of two matrices to a stage. */
TESS_FN void NAME(attend_fetch)(tile_pipe *pipe, uint16_t *tiles, int stage, const tile_from *x, const tile_from *y,
                                int first) {
    tile_start(pipe, NAME(attend_tile)(tiles, stage, 0), SPAN, SIZE, x, first);
    tile_start(pipe, NAME(attend_tile)(tiles, stage, 1), SPAN, SIZE, y, first);
}

/* ---- forward ------------------------------------------------------------------------------------- */
typedef struct { /* a warp's state for its rows */
    tile_a q[PARTS * (SIZE / 16)];
    tile_c y[PARTS * (SIZE / 8)];
    tile_rows most[PARTS], sum[PARTS];
} NAME(attend_state);

/* Replaces scores by exponentials relative to the new maximum and rescales the earlier sums to it. While all keys of a
 * row are hidden, its maximum is minus infinity, and its exponentials are 0. */
TESS_FN void NAME(attend_online)(tile_c *y, tile_rows *most, tile_rows *sum, tile_c *s, float scale) {
    tile_rows high = *most, shrink, at;
    TILE_ALL_LANES(i) {
        TILE_UNROLL for (int k = 0; k < SPAN / 8; k++) TILE_UNROLL for (int e = 0; e < 4; e++) high.v[i][e / 2] =
            fmaxf(high.v[i][e / 2], s[k].v[i][e]);
    }
    tile_rows_most(&high);
    TILE_ALL_LANES(i) {
        TILE_UNROLL for (int n = 0; n < 2; n++) {
            at.v[i][n] = high.v[i][n] == -INFINITY ? 0 : high.v[i][n] * scale;
            shrink.v[i][n] = tile_exp2(fmaf(most->v[i][n], scale, -at.v[i][n]));
            sum->v[i][n] *= shrink.v[i][n];
        }
        TILE_UNROLL for (int k = 0; k < SPAN / 8; k++) TILE_UNROLL for (int e = 0; e < 4; e++) {
            s[k].v[i][e] = tile_exp2(fmaf(s[k].v[i][e], scale, -at.v[i][e / 2]));
            sum->v[i][e / 2] += s[k].v[i][e];
        }
    }
    TILE_UNROLL for (int d = 0; d < SIZE / 8; d++) tile_times(&y[d], &shrink);
    *most = high;
}

/* Adds a tile of keys and values. */
TESS_FN void NAME(attend_add)(NAME(attend_state) * w, uint16_t *tiles, int stage, int row, int key,
                              const attend_sight *sight) {
    tile_c s[PARTS * (SPAN / 8)];
    attend_field f = { row, PARTS * 16, key, SPAN, 0 };
    if (attend_hides_all(sight, f))
        return;
    NAME(attend_score)(s, w->q, PARTS, NAME(attend_tile)(tiles, stage, 0), SPAN);
    f.rows = 16;
    TILE_UNROLL for (int m = 0; m < PARTS; m++, f.row += 16) {
        tile_c *part = &s[m * (SPAN / 8)];
        if (sight->over_cap > 0)
            attend_cap(part, NULL, SPAN, sight);
        if (attend_hides_some(sight, f))
            attend_hide(part, sight, f);
        NAME(attend_online)(&w->y[m * (SIZE / 8)], &w->most[m], &w->sum[m], part, sight->two);
    }
    NAME(attend_collect)(w->y, s, PARTS, NAME(attend_tile)(tiles, stage, 1), SPAN);
}

/* Writes the results of the part m of a warp's rows. */
TESS_FN void NAME(attend_finish)(NAME(attend_state) * w, int m, const ops_args_attend *a, attend_place p, int row) {
    tile_from y = attend_rows(a->y, a->heads, p.n, p.head, a->time, a->size, a->vector);
    float *lse = a->lse + (uint64_t)(uint32_t)(p.n * a->heads + p.head) * (uint32_t)a->time;
    tile_rows over;
    tile_rows_sum(&w->sum[m]);
    TILE_EACH_LANE(i, g, t) {
        TILE_UNROLL for (int n = 0; n < 2; n++) {
            int r = row + g + 8 * n;
            over.v[i][n] = 1.0f / w->sum[m].v[i][n];
            if (t == 0 && r < a->time)
                lse[r] = w->most[m].v[i][n] * a->sight.scale + logf(w->sum[m].v[i][n]);
        }
    }
    TILE_UNROLL for (int d = 0; d < SIZE / 8; d++) tile_times(&w->y[m * (SIZE / 8) + d], &over);
    attend_put(&w->y[m * (SIZE / 8)], SIZE, a->y, a->y, &y, row);
}

/* Reads the queries from the second stage. */
TESS_FN void NAME(attend_begin)(NAME(attend_state) * state, NAME(attend_shared) * shared) {
    TILE_EACH_WARP(w, i) {
        NAME(attend_hold)(state[i].q, PARTS, NAME(attend_tile)(shared->tile, 1, 0), w * PARTS * 16);
        TILE_UNROLL for (int d = 0; d < PARTS * (SIZE / 8); d++) tile_clear(&state[i].y[d]);
        TILE_UNROLL for (int m = 0; m < PARTS; m++) {
            tile_rows_set(&state[i].most[m], -INFINITY);
            tile_rows_set(&state[i].sum[m], 0);
        }
    }
}

TESS_FN void NAME(body_attend)(const ops_args_attend *a, uint32_t block, NAME(attend_shared) * shared) {
    attend_place p = attend_place_of(block, a->batch, a->heads);
    int first = ((int)attend_query_tiles(a->time, SIZE) - 1 - p.tile) * PARTS * TILE_ROWS;
    int kv = a->heads + p.head / (a->heads / a->kv_heads), last = first + PARTS * TILE_ROWS - 1;
    tile_from q = ATTEND_PART(a, p.n, p.head), k = ATTEND_PART(a, p.n, kv), v = ATTEND_PART(a, p.n, kv + a->kv_heads);
    NAME(attend_state) state[TILE_WARPS_HERE(TILE_WARPS)];
    tile_pipe pipe;
    int begin = attend_first_key(&a->sight, first) / SPAN * SPAN, end = last < a->time ? last + 1 : a->time;
    tile_pipe_begin(&pipe, TILE_THREADS);
    tile_start(&pipe, NAME(attend_tile)(shared->tile, 1, 0), PARTS * TILE_ROWS, SIZE, &q, first);
    NAME(attend_fetch)(&pipe, shared->tile, 0, &k, &v, begin);
    tile_wait(&pipe);
    TILE_SYNC();
    NAME(attend_begin)(state, shared);
    for (int key = begin, stage = 0; key < end; key += SPAN, stage = 1 - stage) {
        tile_wait(&pipe);
        TILE_SYNC();
        if (key + SPAN < end)
            NAME(attend_fetch)(&pipe, shared->tile, 1 - stage, &k, &v, key + SPAN);
        TILE_EACH_WARP(w, i)
            NAME(attend_add)(&state[i], shared->tile, stage, first + w * PARTS * 16, key, &a->sight);
    }
    TILE_EACH_WARP(w, i)
        TILE_UNROLL for (int m = 0; m < PARTS; m++)
            NAME(attend_finish)(&state[i], m, a, p, first + (w * PARTS + m) * 16);
}

/* ---- backward ------------------------------------------------------------------------------------ */
typedef struct { /* a warp's: rows of two matrices, the gradients, and of queries base-2 log-sum-exp and delta */
    tile_a x[PARTS * (SIZE / 16)], y[PARTS * (SIZE / 16)];
    tile_c dx[PARTS * (SIZE / 8)], dy[PARTS * (SIZE / 8)], own[PARTS];
} NAME(attend_held);

/* Reads `parts` times 64 rows of two matrices through both stages. */
TESS_FN void NAME(attend_own)(NAME(attend_held) * held, int parts, NAME(attend_backward_shared) * shared,
                              const tile_from *x, const tile_from *y, int first) {
    uint16_t *behind = shared->tile + parts * TILE_ROWS * PITCH;
    tile_pipe pipe;
    tile_pipe_begin(&pipe, TILE_THREADS);
    tile_start(&pipe, shared->tile, parts * TILE_ROWS, SIZE, x, first);
    tile_start(&pipe, behind, parts * TILE_ROWS, SIZE, y, first);
    tile_wait(&pipe);
    TILE_SYNC();
    TILE_EACH_WARP(w, i) {
        NAME(attend_hold)(held[i].x, parts, shared->tile, w * parts * 16);
        NAME(attend_hold)(held[i].y, parts, behind, w * parts * 16);
        TILE_UNROLL for (int d = 0; d < parts * (SIZE / 8); d++) {
            tile_clear(&held[i].dx[d]);
            tile_clear(&held[i].dy[d]);
        }
    }
    TILE_SYNC();
}

/* Multiplies gradients of 16 queries or keys by the scale, turns them back if there is a table, and writes them. */
TESS_FN void NAME(attend_give)(tile_c *sum, const ops_args_attend_backward *a, const tile_from *m, int row) {
    tile_rows scale;
    tile_rows_set(&scale, a->sight.scale);
    TILE_UNROLL for (int d = 0; d < SIZE / 8; d++) tile_times(&sum[d], &scale);
    if (a->table)
        TILE_UNROLL for (int d = 0; d < SIZE / 16; d++)
            attend_turn_back(&sum[d], &sum[d + SIZE / 16], a->table, row, a->time, d * 8, SIZE / 2);
    attend_put(sum, SIZE, a->dqkv, a->qkv, m, row);
}

/* Adds SLICE keys to the gradient of a warp's queries. */
TESS_FN void NAME(attend_to_queries)(NAME(attend_held) * w, const uint16_t *keys, const uint16_t *values,
                                     attend_field f, const attend_sight *sight) {
    tile_c s[PARTS * (SLICE / 8)], dp[PARTS * (SLICE / 8)];
    if (attend_hides_all(sight, f))
        return;
    NAME(attend_score)(s, w->x, PARTS, keys, SLICE);
    NAME(attend_score)(dp, w->y, PARTS, values, SLICE);
    f.rows = 16;
    TILE_UNROLL for (int m = 0; m < PARTS; m++, f.row += 16)
        attend_slopes(&s[m * (SLICE / 8)], &dp[m * (SLICE / 8)], &w->own[m], NULL, sight, f);
    NAME(attend_collect)(w->dx, dp, PARTS, keys, SLICE);
}

/* Computes the gradient of a tile of queries; it walks over the keys that they see. */
TESS_FN void NAME(attend_of_queries)(const ops_args_attend_backward *a, attend_place p,
                                     NAME(attend_backward_shared) * shared) {
    int kv = a->heads + p.head / (a->heads / a->kv_heads);
    int first = ((int)attend_query_tiles(a->time, SIZE) - 1 - p.tile) * PARTS * TILE_ROWS;
    int last = first + PARTS * TILE_ROWS - 1, end = last < a->time ? last + 1 : a->time;
    tile_from q = ATTEND_PART(a, p.n, p.head), k = ATTEND_PART(a, p.n, kv), v = ATTEND_PART(a, p.n, kv + a->kv_heads);
    tile_from dy = ATTEND_DY(a, p.n, p.head);
    NAME(attend_held) held[TILE_WARPS_HERE(TILE_WARPS)];
    tile_pipe pipe;
    int begin = attend_first_key(&a->sight, first) / SPAN * SPAN;
    NAME(attend_own)(held, PARTS, shared, &q, &dy, first);
    tile_pipe_begin(&pipe, TILE_THREADS);
    NAME(attend_fetch)(&pipe, shared->tile, 0, &k, &v, begin);
    TILE_EACH_WARP(w, i)
        TILE_UNROLL for (int m = 0; m < PARTS; m++)
            attend_own_rows(&held[i].own[m], ATTEND_ROWS(a, p.n, p.head, 0), first + (w * PARTS + m) * 16, a->time);
    for (int key = begin, stage = 0; key < end; key += SPAN, stage = 1 - stage) {
        const uint16_t *keys = NAME(attend_tile)(shared->tile, stage, 0), *values = keys + SPAN * PITCH;
        tile_wait(&pipe);
        TILE_SYNC();
        if (key + SPAN < end)
            NAME(attend_fetch)(&pipe, shared->tile, 1 - stage, &k, &v, key + SPAN);
        TILE_EACH_WARP(w, i)
            TILE_ROLLED for (int c = 0; c < SPAN; c += SLICE) {
                attend_field f = { first + w * PARTS * 16, PARTS * 16, key + c, SLICE, 0 };
                NAME(attend_to_queries)(&held[i], keys + c * PITCH, values + c * PITCH, f, &a->sight);
            }
    }
    TILE_EACH_WARP(w, i)
        TILE_UNROLL for (int m = 0; m < PARTS; m++)
            NAME(attend_give)(&held[i].dx[m * (SIZE / 8)], a, &q, first + (w * PARTS + m) * 16);
}

/* Adds SLICE queries to the gradients of a warp's keys and values. */
TESS_FN void NAME(attend_to_keys)(NAME(attend_held) * w, const uint16_t *queries, const uint16_t *dy, const float *rows,
                                  attend_field f, const attend_sight *sight) {
    tile_c s[SLICE / 8], dp[SLICE / 8];
    if (attend_hides_all(sight, f))
        return;
    NAME(attend_score)(s, w->x, 1, queries, SLICE);
    NAME(attend_score)(dp, w->y, 1, dy, SLICE);
    attend_slopes(s, dp, NULL, rows, sight, f);
    NAME(attend_collect)(w->dy, s, 1, dy, SLICE);
    NAME(attend_collect)(w->dx, dp, 1, queries, SLICE);
}

/* Starts copying SPAN queries of a head, their gradients and sums. */
TESS_FN void NAME(attend_fetch_queries)(tile_pipe *pipe, NAME(attend_backward_shared) * shared, int stage,
                                        const ops_args_attend_backward *a, attend_place p, int query) {
    tile_from q = ATTEND_PART(a, p.n, p.head);
    tile_from dy = ATTEND_DY(a, p.n, p.head);
    NAME(attend_fetch)(pipe, shared->tile, stage, &q, &dy, query);
    tile_start_pairs(shared->rows[stage], ATTEND_ROWS(a, p.n, p.head, query), SPAN, a->time - query);
}

/* Writes the gradients of 64 keys and values. */
TESS_FN void NAME(attend_give_keys)(NAME(attend_held) * held, const ops_args_attend_backward *a, attend_place p) {
    tile_from k = ATTEND_PART(a, p.n, a->heads + p.head), v = ATTEND_PART(a, p.n, a->heads + a->kv_heads + p.head);
    TILE_EACH_WARP(w, i) {
        int row = p.tile * TILE_ROWS + w * 16;
        NAME(attend_give)(held[i].dx, a, &k, row);
        attend_put(held[i].dy, SIZE, a->dqkv, a->qkv, &v, row);
    }
}

/* Computes the gradients of 64 keys and values. It walks over the later queries of each head that shares them. */
TESS_FN void NAME(attend_of_keys)(const ops_args_attend_backward *a, attend_place p,
                                  NAME(attend_backward_shared) * shared) {
    int share = a->heads / a->kv_heads, kv = a->heads + p.head, first = p.tile * TILE_ROWS;
    tile_from k = ATTEND_PART(a, p.n, kv), v = ATTEND_PART(a, p.n, kv + a->kv_heads);
    attend_place at = { p.n, p.head * share, p.tile }; /* the walk's */
    NAME(attend_held) held[TILE_WARPS_HERE(TILE_WARPS)];
    tile_pipe pipe;
    int last = first + TILE_ROWS - 1, end = a->time - last > a->sight.window ? last + a->sight.window : a->time;
    NAME(attend_own)(held, 1, shared, &k, &v, first);
    tile_pipe_begin(&pipe, TILE_THREADS);
    NAME(attend_fetch_queries)(&pipe, shared, 0, a, at, first);
    for (int query = first, stage = 0; at.head < (p.head + 1) * share; stage = 1 - stage) {
        const uint16_t *queries = NAME(attend_tile)(shared->tile, stage, 0), *dy = queries + SPAN * PITCH;
        int now = query;
        query = now + SPAN < end ? now + SPAN : first;
        at.head += query == first;
        tile_wait(&pipe);
        TILE_SYNC();
        if (at.head < (p.head + 1) * share)
            NAME(attend_fetch_queries)(&pipe, shared, 1 - stage, a, at, query);
        TILE_EACH_WARP(w, i)
            TILE_ROLLED for (int c = 0; c < SPAN; c += SLICE) {
                attend_field f = { first + w * 16, 16, now + c, SLICE, 1 };
                NAME(attend_to_keys)
                (&held[i], queries + c * PITCH, dy + c * PITCH, shared->rows[stage] + 2 * c, f, &a->sight);
            }
    }
    at.head = at.head / share - 1; /* p.head, computed again so that no register keeps addresses during the walk */
    NAME(attend_give_keys)(held, a, at);
}

TESS_FN void NAME(body_attend_backward)(const ops_args_attend_backward *a, uint32_t block,
                                        NAME(attend_backward_shared) * shared) {
    uint32_t queries = (uint32_t)a->batch * (uint32_t)a->heads * attend_query_tiles(a->time, SIZE);
    if (block < queries)
        NAME(attend_of_queries)(a, attend_place_of(block, a->batch, a->heads), shared);
    else
        NAME(attend_of_keys)(a, attend_place_of(block - queries, a->batch, a->kv_heads), shared);
}

#if defined(ATTEND_FIVE)
#include "attend_five.h"
#undef ATTEND_FIVE
#endif

#undef SIZE
#undef SPAN
#undef SLICE
#undef PARTS
#undef NAME
#undef PITCH
#undef ATTEND_SIZE
#undef ATTEND_SPAN
#undef ATTEND_SLICE

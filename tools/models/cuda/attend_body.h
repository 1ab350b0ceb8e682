/* SPDX-License-Identifier: BSD-3-Clause */
/* The two kernels of kernels_attend.h for heads of up to ATTEND_SIZE elements. Backward walks in tiles of
 * ATTEND_SMALL rows. kernels_attend.h includes this file once per size. */
#define SIZE ATTEND_SIZE
#define SMALL ATTEND_SMALL
#define NAME(name) ATTEND_NAME(name, ATTEND_SIZE)
#define PITCH (SIZE + TILE_PAD)

typedef struct {
    uint16_t tile[2][TILE_ROWS * PITCH];
} NAME(attend_shared);
typedef struct { /* a warp's state for its 16 rows */
    tile_a q[SIZE / 16];
    tile_c y[SIZE / 8];
    tile_rows most, sum;
} NAME(attend_state);

/* s[16, n] = left[16 rows of the warp, SIZE] · right[n, SIZE]^T */
TESS_FN void NAME(attend_score)(tile_c *s, const uint16_t *left, int row, const uint16_t *right, int n) {
    TILE_UNROLL for (int k = 0; k < n / 8; k++) tile_clear(&s[k]);
    TILE_UNROLL for (int d = 0; d < SIZE / 16; d++) {
        tile_a a;
        tile_load_a(&a, left, PITCH, row, d * 16);
        TILE_UNROLL for (int k = 0; k < n / 8; k++) {
            tile_b b;
            tile_load_b(&b, right, PITCH, k * 8, d * 16);
            tile_multiply(&s[k], &a, &b);
        }
    }
}

/* y[16, SIZE] += p[16, n] · right[n, SIZE] */
TESS_FN void NAME(attend_collect)(tile_c *y, const tile_c *p, const uint16_t *right, int n) {
    TILE_UNROLL for (int k = 0; k < n / 16; k++) {
        tile_a a;
        tile_a_of(&a, &p[2 * k], &p[2 * k + 1]);
        TILE_UNROLL for (int d = 0; d < SIZE / 8; d++) {
            tile_b b;
            tile_load_b_turned(&b, right, PITCH, k * 16, d * 8);
            tile_multiply(&y[d], &a, &b);
        }
    }
}

/* ---- forward ------------------------------------------------------------------------------------- */
/* Replaces scores by exponentials relative to the new maximum and rescales the earlier sums to it. */
TESS_FN void NAME(attend_online)(NAME(attend_state) * w, tile_c *s, int row, int key, const attend_sight *e_) {
    tile_rows most = w->most, shrink;
    float scale = e_->scale * ATTEND_LOG2E;
    TILE_EACH_LANE(i, g, t) {
        TILE_UNROLL for (int k = 0; k < TILE_ROWS / 8; k++) TILE_UNROLL for (int e = 0; e < 4; e++) {
            int hidden = attend_hides(e_, row + g + e / 2 * 8, key + k * 8 + 2 * t + e % 2);
            float score = attend_capped(e_, s[k].v[i][e], attend_tanh(e_, s[k].v[i][e]));
            s[k].v[i][e] = hidden ? ATTEND_NONE : score;
            most.v[i][e / 2] = TILE_MOST(most.v[i][e / 2], s[k].v[i][e]);
        }
    }
    tile_rows_most(&most);
    TILE_ALL_LANES(i) {
        TILE_UNROLL for (int n = 0; n < 2; n++) {
            shrink.v[i][n] = tile_exp2((w->most.v[i][n] - most.v[i][n]) * scale);
            w->sum.v[i][n] *= shrink.v[i][n];
        }
        TILE_UNROLL for (int k = 0; k < TILE_ROWS / 8; k++) TILE_UNROLL for (int e = 0; e < 4; e++) {
            s[k].v[i][e] = tile_exp2((s[k].v[i][e] - most.v[i][e / 2]) * scale);
            w->sum.v[i][e / 2] += s[k].v[i][e];
        }
        TILE_UNROLL for (int d = 0; d < SIZE / 8; d++) TILE_UNROLL for (int e = 0; e < 4; e++) w->y[d].v[i][e] *=
            shrink.v[i][e / 2];
    }
    w->most = most;
}

TESS_FN void NAME(attend_look)(const NAME(attend_state) * w, tile_c *s, const uint16_t *keys) {
    TILE_UNROLL for (int k = 0; k < TILE_ROWS / 8; k++) tile_clear(&s[k]);
    TILE_UNROLL for (int d = 0; d < SIZE / 16; d++) TILE_UNROLL for (int k = 0; k < TILE_ROWS / 8; k++) {
        tile_b b;
        tile_load_b(&b, keys, PITCH, k * 8, d * 16);
        tile_multiply(&s[k], &w->q[d], &b);
    }
}

TESS_FN void NAME(attend_finish)(NAME(attend_state) * w, const ops_args_attend *a, attend_place p, int row) {
    uint64_t pitch = (uint64_t)a->heads * (uint64_t)a->size;
    uint16_t *y = a->y + (uint64_t)p.n * (uint64_t)a->time * pitch + (uint64_t)p.head * (uint64_t)a->size;
    float *lse = a->lse + (p.n * a->heads + p.head) * a->time;
    tile_rows over;
    tile_rows_sum(&w->sum);
    TILE_EACH_LANE(i, g, t) {
        TILE_UNROLL for (int n = 0; n < 2; n++) {
            int r = row + g + 8 * n;
            over.v[i][n] = 1.0f / w->sum.v[i][n];
            if (t == 0 && r < a->time)
                lse[r] = w->most.v[i][n] * a->scale + logf(w->sum.v[i][n]);
        }
    }
    TILE_UNROLL for (int d = 0; d < SIZE / 8; d++) attend_put(&w->y[d], &over, y, pitch, row, a->time, d * 8, a->size);
}

/* Starts a group of one copy; if `first` is below 0 the group is empty. */
TESS_FN void NAME(attend_start)(tile_pipe *pipe, NAME(attend_shared) * shared, int which, const tile_from *m,
                                int first) {
    if (first >= 0)
        tile_start(pipe, shared->tile[which], TILE_ROWS, SIZE, m, first);
    tile_commit(pipe);
}

/* The copy of the next keys overlaps the exponentials and the product with values. The copy of the next values
 * overlaps the product with keys. If the first keys of a row are all hidden, its sums are meaningless until it sees
 * one. That key's maximum then scales them to 0. */
TESS_FN void NAME(body_attend)(const ops_args_attend *a, uint32_t block, NAME(attend_shared) * shared) {
    attend_place p = attend_place_of(block, a->heads, a->tiles, 1);
    int kv = a->heads + p.head / (a->heads / a->kv_heads), first = p.tile * TILE_ROWS;
    tile_from q = ATTEND_PART(a, p, p.head), k = ATTEND_PART(a, p, kv), v = ATTEND_PART(a, p, kv + a->kv_heads);
    NAME(attend_state) state[TILE_WARPS_HERE];
    tile_c s[TILE_WARPS_HERE][TILE_ROWS / 8];
    tile_pipe pipe;
    const attend_sight sight = ATTEND_SIGHT(a);
    int begin = attend_first_key(&sight, first) / TILE_ROWS * TILE_ROWS;
    TILE_EACH_THREAD(t)
        tile_fill(shared->tile[0], TILE_ROWS, SIZE, &q, first, t);
    TILE_SYNC();
    TILE_EACH_WARP(w, i) {
        TILE_UNROLL for (int d = 0; d < SIZE / 16; d++)
            tile_load_a(&state[i].q[d], shared->tile[0], PITCH, w * 16, d * 16);
        TILE_UNROLL for (int d = 0; d < SIZE / 8; d++) tile_clear(&state[i].y[d]);
        tile_rows_set(&state[i].most, ATTEND_NONE);
        tile_rows_set(&state[i].sum, 0);
    }
    TILE_SYNC();
    tile_pipe_begin(&pipe);
    NAME(attend_start)(&pipe, shared, 0, &k, begin);
    NAME(attend_start)(&pipe, shared, 1, &v, begin);
    for (int key = begin; key <= first; key += TILE_ROWS) {
        int next = key + TILE_ROWS <= first ? key + TILE_ROWS : -1;
        tile_wait(&pipe, 1);
        TILE_SYNC();
        TILE_ALL_WARPS(i)
            NAME(attend_look)(&state[i], s[i], shared->tile[0]);
        TILE_SYNC();
        NAME(attend_start)(&pipe, shared, 0, &k, next);
        TILE_EACH_WARP(w, i)
            NAME(attend_online)(&state[i], s[i], first + w * 16, key, &sight);
        tile_wait(&pipe, 1);
        TILE_SYNC();
        TILE_ALL_WARPS(i)
            NAME(attend_collect)(state[i].y, s[i], shared->tile[1], TILE_ROWS);
        TILE_SYNC();
        NAME(attend_start)(&pipe, shared, 1, &v, next);
    }
    TILE_EACH_WARP(w, i)
        NAME(attend_finish)(&state[i], a, p, first + w * 16);
}

/* ---- backward ------------------------------------------------------------------------------------ */
typedef struct {
    uint16_t large[2][TILE_ROWS * PITCH], small[3][SMALL * PITCH]; /* small[0] and small[2] alternate */
    float half[2 * TILE_ROWS], lse[TILE_ROWS];
} NAME(attend_backward_shared);

/* Turns scores into probabilities, and dp into the gradient of the scores. With `turned`, rows are keys, and columns
 * are queries from `column` on. lse and the halves of delta belong to the tile's queries. */
TESS_FN void NAME(attend_slopes)(const NAME(attend_backward_shared) * shared, tile_c *s, tile_c *dp, int turned,
                                 int row, int column, int local, int time, const attend_sight *sight) {
    TILE_EACH_LANE(i, g, t) {
        TILE_UNROLL for (int k = 0; k < SMALL / 8; k++) TILE_UNROLL for (int e = 0; e < 4; e++) {
            int r = g + e / 2 * 8, c = k * 8 + 2 * t + e % 2, query = turned ? c : local + r;
            int hidden = turned ? attend_hides(sight, column + c, row + r) || column + c >= time
                                : attend_hides(sight, row + r, column + c);
            float delta = shared->half[2 * query] + shared->half[2 * query + 1], t_ = attend_tanh(sight, s[k].v[i][e]);
            float score = attend_capped(sight, s[k].v[i][e], t_);
            float p = hidden ? 0 : tile_exp2(score * (sight->scale * ATTEND_LOG2E) - shared->lse[query]);
            s[k].v[i][e] = p;
            dp[k].v[i][e] = p * (dp[k].v[i][e] - delta) * sight->scale * (1.0f - t_ * t_);
        }
    }
}

/* Loads the queries' lse, converted to base 2, and computes the halves of delta from their rows of y and dy. */
TESS_FN void NAME(attend_queries)(const ops_args_attend_backward *a, attend_place p, int head, int first, int rows,
                                  NAME(attend_backward_shared) * shared) {
    tile_from y = attend_rows(a->y, p.n, head, a->time, a->heads, a->size, a->vector);
    tile_from dy = attend_rows(a->dy, p.n, head, a->time, a->heads, a->size, a->vector);
    const float *lse = a->lse + (p.n * a->heads + head) * a->time;
    TILE_EACH_THREAD(t) {
        attend_half_delta(&y, &dy, first, rows, t, shared->half);
        if (t < rows)
            shared->lse[t] = first + t < a->time ? lse[first + t] * ATTEND_LOG2E : 0;
    }
}

/* Starts a group of one copy; if `first` is below 0 the group is empty. */
TESS_FN void NAME(attend_fetch)(tile_pipe *pipe, uint16_t *tile, const tile_from *m, int first) {
    if (first >= 0)
        tile_start(pipe, tile, SMALL, SIZE, m, first);
    tile_commit(pipe);
}

/* Turns the gradients of a warp's queries or keys back by their positions, if there is a table. */
TESS_FN void NAME(attend_turn)(tile_c *sum, const ops_args_attend_backward *a, int row) {
    if (a->table)
        TILE_UNROLL for (int d = 0; d < SIZE / 16; d++)
            attend_turn_back(&sum[d], &sum[d + SIZE / 16], a->table, row, a->time, d * 8, SIZE / 2);
}

/* Computes the gradient of 64 queries; it walks over the keys that they see. */
TESS_FN void NAME(attend_of_queries)(const ops_args_attend_backward *a, attend_place p,
                                     NAME(attend_backward_shared) * shared) {
    int kv = a->heads + p.head / (a->heads / a->kv_heads), first = p.tile * TILE_ROWS;
    uint64_t pitch = attend_pitch(a->heads, a->kv_heads) * (uint64_t)a->size;
    uint16_t *dq = a->dqkv + (uint64_t)p.n * (uint64_t)a->time * pitch + (uint64_t)p.head * (uint64_t)a->size;
    tile_from q = ATTEND_PART(a, p, p.head), k = ATTEND_PART(a, p, kv), v = ATTEND_PART(a, p, kv + a->kv_heads);
    tile_from dy = attend_rows(a->dy, p.n, p.head, a->time, a->heads, a->size, a->vector);
    tile_c sum[TILE_WARPS_HERE][SIZE / 8], s[TILE_WARPS_HERE][SMALL / 8], dp[TILE_WARPS_HERE][SMALL / 8];
    tile_rows once;
    tile_pipe pipe;
    const attend_sight sight = ATTEND_SIGHT(a);
    int begin = attend_first_key(&sight, first) / SMALL * SMALL;
    int end = first + TILE_ROWS < a->time ? first + TILE_ROWS : a->time;
    tile_rows_set(&once, 1);
    TILE_ALL_WARPS(i) {
        TILE_UNROLL for (int d = 0; d < SIZE / 8; d++) tile_clear(&sum[i][d]);
    }
    TILE_EACH_THREAD(t) {
        tile_fill(shared->large[0], TILE_ROWS, SIZE, &q, first, t);
        tile_fill(shared->large[1], TILE_ROWS, SIZE, &dy, first, t);
    }
    NAME(attend_queries)(a, p, p.head, first, TILE_ROWS, shared);
    tile_pipe_begin(&pipe);
    NAME(attend_fetch)(&pipe, shared->small[0], &k, begin);
    NAME(attend_fetch)(&pipe, shared->small[1], &v, begin);
    for (int key = begin, turn = 0; key < end; key += SMALL, turn = 2 - turn) {
        int next = key + SMALL < end ? key + SMALL : -1;
        tile_wait(&pipe, 0);
        TILE_SYNC();
        NAME(attend_fetch)(&pipe, shared->small[2 - turn], &k, next);
        TILE_EACH_WARP(w, i) {
            NAME(attend_score)(s[i], shared->large[0], w * 16, shared->small[turn], SMALL);
            NAME(attend_score)(dp[i], shared->large[1], w * 16, shared->small[1], SMALL);
        }
        TILE_SYNC();
        NAME(attend_fetch)(&pipe, shared->small[1], &v, next);
        TILE_EACH_WARP(w, i) {
            NAME(attend_slopes)(shared, s[i], dp[i], 0, first + w * 16, key, w * 16, a->time, &sight);
            NAME(attend_collect)(sum[i], dp[i], shared->small[turn], SMALL);
        }
    }
    TILE_EACH_WARP(w, i) {
        NAME(attend_turn)(sum[i], a, first + w * 16);
        TILE_UNROLL for (int d = 0; d < SIZE / 8; d++)
            attend_put(&sum[i][d], &once, dq, pitch, first + w * 16, a->time, d * 8, a->size);
    }
}

/* Computes the gradients of 64 keys and values. It walks over the later queries of each head that shares them. */
TESS_FN void NAME(attend_of_keys)(const ops_args_attend_backward *a, attend_place p,
                                  NAME(attend_backward_shared) * shared) {
    int share = a->heads / a->kv_heads, kv = a->heads + p.head, first = p.tile * TILE_ROWS;
    uint64_t pitch = attend_pitch(a->heads, a->kv_heads) * (uint64_t)a->size;
    uint16_t *dk = a->dqkv + (uint64_t)p.n * (uint64_t)a->time * pitch + (uint64_t)kv * (uint64_t)a->size;
    uint16_t *dv = dk + (uint64_t)a->kv_heads * (uint64_t)a->size;
    tile_from k = ATTEND_PART(a, p, kv), v = ATTEND_PART(a, p, kv + a->kv_heads);
    tile_c sum[TILE_WARPS_HERE][2][SIZE / 8], s[TILE_WARPS_HERE][SMALL / 8], dp[TILE_WARPS_HERE][SMALL / 8];
    tile_rows once;
    tile_pipe pipe;
    const attend_sight sight = ATTEND_SIGHT(a);
    int last = first + TILE_ROWS - 1, end = a->window > 0 && last + a->window < a->time ? last + a->window : a->time;
    tile_rows_set(&once, 1);
    TILE_ALL_WARPS(i) {
        TILE_UNROLL for (int d = 0; d < SIZE / 8; d++) {
            tile_clear(&sum[i][0][d]);
            tile_clear(&sum[i][1][d]);
        }
    }
    TILE_EACH_THREAD(t) {
        tile_fill(shared->large[0], TILE_ROWS, SIZE, &k, first, t);
        tile_fill(shared->large[1], TILE_ROWS, SIZE, &v, first, t);
    }
    for (int head = p.head * share; head < (p.head + 1) * share; head++) {
        tile_from q = ATTEND_PART(a, p, head);
        tile_from dy = attend_rows(a->dy, p.n, head, a->time, a->heads, a->size, a->vector);
        TILE_SYNC();
        tile_pipe_begin(&pipe);
        NAME(attend_fetch)(&pipe, shared->small[0], &q, first);
        NAME(attend_fetch)(&pipe, shared->small[1], &dy, first);
        NAME(attend_queries)(a, p, head, first, SMALL, shared);
        for (int query = first, turn = 0; query < end; query += SMALL, turn = 2 - turn) {
            int next = query + SMALL < end ? query + SMALL : -1;
            tile_wait(&pipe, 1);
            TILE_SYNC();
            NAME(attend_fetch)(&pipe, shared->small[2 - turn], &q, next);
            TILE_EACH_WARP(w, i)
                NAME(attend_score)(s[i], shared->large[0], w * 16, shared->small[turn], SMALL);
            tile_wait(&pipe, 1);
            TILE_SYNC();
            TILE_EACH_WARP(w, i) {
                NAME(attend_score)(dp[i], shared->large[1], w * 16, shared->small[1], SMALL);
                NAME(attend_slopes)(shared, s[i], dp[i], 1, first + w * 16, query, 0, a->time, &sight);
                NAME(attend_collect)(sum[i][1], s[i], shared->small[1], SMALL);
            }
            TILE_SYNC();
            NAME(attend_fetch)(&pipe, shared->small[1], &dy, next);
            if (next >= 0)
                NAME(attend_queries)(a, p, head, next, SMALL, shared);
            TILE_ALL_WARPS(i)
                NAME(attend_collect)(sum[i][0], dp[i], shared->small[turn], SMALL);
        }
    }
    TILE_EACH_WARP(w, i) {
        TILE_UNROLL for (int d = 0; d < SIZE / 8; d++)
            attend_put(&sum[i][1][d], &once, dv, pitch, first + w * 16, a->time, d * 8, a->size);
        NAME(attend_turn)(sum[i][0], a, first + w * 16);
        TILE_UNROLL for (int d = 0; d < SIZE / 8; d++)
            attend_put(&sum[i][0][d], &once, dk, pitch, first + w * 16, a->time, d * 8, a->size);
    }
}

TESS_FN void NAME(body_attend_backward)(const ops_args_attend_backward *a, uint32_t block,
                                        NAME(attend_backward_shared) * shared) {
    uint32_t queries = (uint32_t)a->batch * (uint32_t)a->heads * (uint32_t)a->tiles;
    if (block < queries)
        NAME(attend_of_queries)(a, attend_place_of(block, a->heads, a->tiles, 1), shared);
    else
        NAME(attend_of_keys)(a, attend_place_of(block - queries, a->kv_heads, a->tiles, 0), shared);
}

#undef SIZE
#undef SMALL
#undef NAME
#undef PITCH
#undef ATTEND_SIZE
#undef ATTEND_SMALL

/* SPDX-License-Identifier: BSD-3-Clause */
/* Backward of attention in five products: a block has KEYS keys and walks over the queries that see them, from the last
 * to the first. It computes scores and their gradients once. Gradients of keys and values stay in registers. Those of
 * queries are sums over blocks, fp32 in memory. attend_body.h includes this file for some sizes.
 *
 * Order: the block of a query's first keys stores its part, each later one adds its own, and that of its last keys
 * writes the gradient. A count for each STEP queries of a head says how many have passed, and a block waits for its
 * turn. So sums have one order, whatever the GPU and its schedule (as in the deterministic backward of Dao's
 * FlashAttention-2, 2023). Walking downwards, blocks of one head that begin together follow each other by one step.
 *
 * No block waits without end: it waits for blocks of the same head with earlier keys alone. Blocks take their places by
 * a ticket as they begin, and earlier keys have lower tickets. So whom it waits for has begun, and a block that has
 * begun keeps its multiprocessor until it ends. The block with the lowest ticket of those that run waits for none. */
#define WARPS ATTEND_FIVE_WARPS(SIZE)
#define STEP ATTEND_FIVE_STEP /* queries */
#define KEYS ATTEND_FIVE_KEYS
#define SLOPES (STEP + TILE_PAD)
#define HELD (SIZE / 32)
#define GROUPS (STEP / 16) /* sixteens of queries; warps share the columns of each */

typedef struct {
    uint16_t tile[4 * STEP * PITCH]; /* two stages of queries and dy; first all values, which are as many rows */
    uint16_t keys[KEYS * PITCH], slopes[KEYS * SLOPES];
    float rows[2][2 * STEP]; /* of each query of a stage, base-2 log-sum-exp and delta */
    uint32_t ticket;
} NAME(attend_five_shared);

/* Reads the block's keys and values. */
TESS_FN void NAME(attend_five_own)(NAME(attend_held) * held, NAME(attend_five_shared) * shared, const tile_from *k,
                                   const tile_from *v, int first) {
    tile_pipe pipe;
    tile_pipe_begin(&pipe, 32 * WARPS);
    tile_start(&pipe, shared->keys, KEYS, SIZE, k, first);
    tile_start(&pipe, shared->tile, KEYS, SIZE, v, first);
    tile_wait(&pipe);
    TILE_SYNC();
    TILE_EACH_OF(w, i, WARPS) {
        NAME(attend_hold)(held[i].x, PARTS, shared->keys, w * PARTS * 16);
        NAME(attend_hold)(held[i].y, PARTS, shared->tile, w * PARTS * 16);
        TILE_UNROLL for (int d = 0; d < PARTS * (SIZE / 8); d++) {
            tile_clear(&held[i].dx[d]);
            tile_clear(&held[i].dy[d]);
        }
    }
    TILE_SYNC();
}

/* Starts copying STEP queries of a head, their gradients and sums. */
TESS_FN void NAME(attend_five_fetch)(tile_pipe *pipe, NAME(attend_five_shared) * shared, int stage,
                                     const ops_args_attend_backward *a, attend_place p, int query) {
    tile_from q = ATTEND_PART(a, p.n, p.head);
    tile_from dy = ATTEND_DY(a, p.n, p.head);
    uint16_t *to = shared->tile + 2 * stage * STEP * PITCH;
    tile_start(pipe, to, STEP, SIZE, &q, query);
    tile_start(pipe, to + STEP * PITCH, STEP, SIZE, &dy, query);
    tile_start_pairs(shared->rows[stage], ATTEND_ROWS(a, p.n, p.head, query), STEP, a->time - query);
}

/* Adds 16 queries to the gradients of a warp's keys and values, and leaves the gradients of scores in `slopes`. Half of
 * the keys' fragments are read again from `keys`, for which there are no registers. */
TESS_FN void NAME(attend_five_keys)(NAME(attend_held) * w, const uint16_t *queries, const uint16_t *dy,
                                    const float *rows, const uint16_t *keys, uint16_t *slopes, attend_field f,
                                    const attend_sight *sight) {
    tile_c s[PARTS * 2], dp[PARTS * 2];
    int seen = !attend_hides_all(sight, f);
    TILE_UNROLL for (int k = 0; k < PARTS * 2; k++) tile_clear(&dp[k]);
    if (seen) {
        TILE_UNROLL for (int m = 0; m < PARTS; m++) TILE_UNROLL for (int d = HELD; d < SIZE / 16; d++)
            tile_load_a(&w->x[m * (SIZE / 16) + d], keys, PITCH, m * 16, d * 16);
        NAME(attend_score)(s, w->x, PARTS, queries, 16);
        NAME(attend_score)(dp, w->y, PARTS, dy, 16);
        f.rows = 16;
        TILE_UNROLL for (int m = 0; m < PARTS; m++, f.row += 16)
            attend_slopes(&s[m * 2], &dp[m * 2], NULL, rows, sight, f);
    }
    TILE_UNROLL for (int k = 0; k < PARTS * 2; k++) tile_store(slopes, SLOPES, &dp[k], k / 2 * 16, k % 2 * 8);
    if (seen) {
        NAME(attend_collect)(w->dy, s, PARTS, dy, 16);
        NAME(attend_collect)(w->dx, dp, PARTS, queries, 16);
    }
}

/* Computes the block's part of a gradient: 16 queries, and of their columns 16 in each half of a head, so that a lane
 * has both elements of a pair that turns. */
TESS_FN void NAME(attend_five_part)(tile_c *dq, const NAME(attend_five_shared) * shared, int row, int column) {
    TILE_UNROLL for (int d = 0; d < 4; d++) tile_clear(&dq[d]);
    TILE_UNROLL for (int k = 0; k < KEYS; k += 16) {
        tile_a a;
        tile_load_a_turned(&a, shared->slopes, SLOPES, k, row);
        TILE_UNROLL for (int d = 0; d < 4; d += 2) {
            tile_b b[2];
            tile_load_b_turned(b, shared->keys, PITCH, k, d / 2 * (SIZE / 2) + column);
            tile_multiply(&dq[d], &a, &b[0]);
            tile_multiply(&dq[d + 1], &a, &b[1]);
        }
    }
}

/* Scales, turns back and writes a finished gradient. */
TESS_FN void NAME(attend_five_give)(tile_c *dq, const ops_args_attend_backward *a, const tile_from *q, int row,
                                    int column) {
    tile_rows scale;
    tile_rows_set(&scale, a->sight.scale);
    TILE_UNROLL for (int d = 0; d < 4; d++) tile_times(&dq[d], &scale);
    if (a->table)
        TILE_UNROLL for (int d = 0; d < 2; d++)
            attend_turn_back(&dq[d], &dq[d + 2], a->table, row, a->time, column + d * 8, SIZE / 2);
    TILE_UNROLL for (int half = 0; half < 2; half++) {
        tile_from m = *q;
        m.at += half * (SIZE / 2) + column;
        m.size -= half * (SIZE / 2) + column;
        attend_put(&dq[2 * half], 16, a->dqkv, a->qkv, &m, row);
    }
}

/* Adds the block's part to the gradients of STEP queries in its turn: `before` blocks have earlier keys. */
TESS_FN void NAME(attend_five_queries)(const ops_args_attend_backward *a, attend_place p,
                                       const NAME(attend_five_shared) * shared, int query, uint32_t before, int last) {
    tile_from q = ATTEND_PART(a, p.n, p.head);
    TILE_EACH_OF(w, i, WARPS) {
        int row = w % GROUPS * 16, column = w / GROUPS * 16;
        float *sums = a->sums + (uint64_t)attend_step_of(a, p, query, STEP) * (STEP * SIZE) + w * 4 * 128;
        tile_c dq[4], earlier[4];
        if (before)
            TILE_UNROLL for (int d = 0; d < 4; d++) tile_get_sums(&earlier[d], sums + d * 128);
        NAME(attend_five_part)(dq, shared, row, column);
        if (before)
            TILE_UNROLL for (int d = 0; d < 4; d++) tile_add(&dq[d], &earlier[d]);
        if (last)
            NAME(attend_five_give)(dq, a, &q, query + row, column);
        else
            TILE_UNROLL for (int d = 0; d < 4; d++) tile_put_sums(&dq[d], sums + d * 128);
    }
}

/* Writes the gradients of the block's keys and values. */
TESS_FN void NAME(attend_five_give_keys)(NAME(attend_held) * held, const ops_args_attend_backward *a, attend_place p) {
    tile_from k = ATTEND_PART(a, p.n, a->heads + p.head), v = ATTEND_PART(a, p.n, a->heads + a->kv_heads + p.head);
    TILE_EACH_OF(w, i, WARPS)
        TILE_UNROLL for (int m = 0; m < PARTS; m++) {
            int row = p.tile * KEYS + (w * PARTS + m) * 16;
            NAME(attend_give)(&held[i].dx[m * (SIZE / 8)], a, &k, row);
            attend_put(&held[i].dy[m * (SIZE / 8)], SIZE, a->dqkv, a->qkv, &v, row);
        }
}

TESS_FN void NAME(body_attend_five)(const ops_args_attend_backward *a, uint32_t block,
                                    NAME(attend_five_shared) * shared) {
    attend_place at = attend_five_place(a, tile_ticket(a->turns, &shared->ticket), attend_five_tiles(a->time));
    int share = a->heads / a->kv_heads, kv = a->heads + at.head, first = at.tile * KEYS, last = first + KEYS - 1;
    int end = a->time - last > a->sight.window ? last + a->sight.window : a->time, top = (end - 1) / STEP * STEP;
    tile_from k = ATTEND_PART(a, at.n, kv), v = ATTEND_PART(a, at.n, kv + a->kv_heads);
    NAME(attend_held) held[TILE_WARPS_HERE(WARPS)];
    uint32_t step = 0, before = 0;
    tile_pipe pipe;
    (void)block;
    NAME(attend_five_own)(held, shared, &k, &v, first);
    at.head *= share; /* from here on the walk's head of queries */
    tile_pipe_begin(&pipe, 32 * WARPS);
    NAME(attend_five_fetch)(&pipe, shared, 0, a, at, top);
    for (int query = top, stage = 0, left = share; left; stage = 1 - stage) {
        const uint16_t *queries = shared->tile + 2 * stage * STEP * PITCH, *dy = queries + STEP * PITCH;
        int wraps = query == first, next = wraps ? top : query - STEP;
        attend_place then = { at.n, at.head + wraps, at.tile };
        left -= wraps;
        tile_wait(&pipe);
        TILE_SYNC();
        if (step)
            tile_pass(a->turns + step);
        if (left)
            NAME(attend_five_fetch)(&pipe, shared, 1 - stage, a, then, next);
        TILE_EACH_OF(w, i, WARPS)
            TILE_ROLLED for (int c = 0; c < STEP; c += 16) {
                attend_field f = { first + w * PARTS * 16, PARTS * 16, query + c, 16, 1 };
                NAME(attend_five_keys)
                (&held[i], queries + c * PITCH, dy + c * PITCH, shared->rows[stage] + 2 * c,
                 shared->keys + w * PARTS * 16 * PITCH, shared->slopes + w * PARTS * 16 * SLOPES + c, f, &a->sight);
            }
        step = 1 + attend_step_of(a, at, query, STEP);
        before = (uint32_t)(at.tile - attend_first_key(&a->sight, query) / KEYS);
        tile_wait_turn(a->turns + step, before);
        TILE_SYNC();
        NAME(attend_five_queries)(a, at, shared, query, before, query / KEYS == at.tile);
        at.head += wraps, query = next;
    }
    TILE_SYNC();
    tile_pass(a->turns + step);
    at.head = at.head / share - 1;
    NAME(attend_five_give_keys)(held, a, at);
}

#undef WARPS
#undef STEP
#undef KEYS
#undef SLOPES
#undef GROUPS

/* SPDX-License-Identifier: BSD-3-Clause */
/* A set of cells in which every triple of values occurs: Cohen, Dalal, Fredman and Patton's way (The AETG System,
 * 1997). A triple that is in no cell yet is the seed of some candidates; each takes the other axes in random order and
 * on each the value that completes most new triples; the best candidate is the next cell. At the end values that no
 * triple needs become others that cost less. */
#include "axes.h"

#include <stdint.h>
#include <string.h>

enum { CANDIDATES = 24, ATTEMPTS = 400, VARIATIONS = 200000 };

static uint16_t covered[N_AXES][N_AXES][N_AXES][MAX_VALUES][MAX_VALUES][MAX_VALUES]; /* cells that have the triple */

static uint16_t *seen(const cell *c, int i, int j, int k) {
    return &covered[i][j][k][c->v[i]][c->v[j]][c->v[k]];
}

/* The triple of axis a with two others, i before j; NULL where one of them is not set, or is a. */
static uint16_t *with(const cell *c, int a, int i, int j) {
    if (i == a || j == a || c->v[i] == UNSET || c->v[j] == UNSET)
        return NULL;
    return a < i ? seen(c, a, i, j) : a < j ? seen(c, i, a, j) : seen(c, i, j, a);
}

/* How many triples of axis a with two axes that are set are new. */
static int new_with(const cell *c, int a) {
    int n = 0;
    for (int i = 0; i < N_AXES; i++)
        for (int j = i + 1; j < N_AXES; j++) {
            const uint16_t *cells = with(c, a, i, j);
            n += cells && !*cells;
        }
    return n;
}

/* Whether a triple of axis a is in no other cell. */
static int needed_on(const cell *c, int a) {
    for (int i = 0; i < N_AXES; i++)
        for (int j = i + 1; j < N_AXES; j++) {
            const uint16_t *cells = with(c, a, i, j);
            if (cells && *cells == 1)
                return 1;
        }
    return 0;
}

static uint32_t random_below(uint32_t *state, uint32_t n) {
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % n;
}

static void shuffle(int *order, uint32_t *state) {
    for (int i = N_AXES; i-- > 1;) {
        int j = (int)random_below(state, (uint32_t)i + 1), was = order[i];
        order[i] = order[j];
        order[j] = was;
    }
}

/* The value that is possible and completes most new triples; from a random one on, so that ties fall differently. How
 * many triples; -1: none is possible. */
static int choose_value(cell *c, int a, uint32_t *state) {
    int most = -1, best = UNSET, n = axes[a].n, from = (int)random_below(state, (uint32_t)n);
    for (int i = 0; i < n; i++) {
        c->v[a] = (unsigned char)((from + i) % n);
        int fresh = cell_exists(c) ? new_with(c, a) : -1;
        if (fresh > most)
            most = fresh, best = c->v[a];
    }
    c->v[a] = (unsigned char)best;
    return most;
}

/* Sets the unset axes; how many new triples that makes beside the seed. -1: it leads nowhere. */
static int complete(cell *c, uint32_t *state) {
    int order[N_AXES], sum = 0;
    for (int i = 0; i < N_AXES; i++)
        order[i] = i;
    shuffle(order, state);
    for (int i = 0; i < N_AXES; i++) {
        if (c->v[order[i]] != UNSET)
            continue;
        int fresh = choose_value(c, order[i], state);
        if (fresh < 0)
            return -1;
        sum += fresh;
    }
    return sum;
}

/* The best of some candidates with the seed's values; 0: it can be in no cell. */
static int grow(const cell *seed, uint32_t *state, cell *out) {
    int most = -1;
    for (int tries = 0, good = 0; cell_exists(seed) && tries < ATTEMPTS && good < CANDIDATES; tries++) {
        cell c = *seed;
        int fresh = complete(&c, state);
        good += fresh >= 0;
        if (fresh > most)
            most = fresh, *out = c;
    }
    return most >= 0;
}

static void mark(const cell *c, int more) {
    for (int i = 0; i < N_AXES; i++)
        for (int j = i + 1; j < N_AXES; j++)
            for (int k = j + 1; k < N_AXES; k++)
                *seen(c, i, j, k) = (uint16_t)(*seen(c, i, j, k) + more);
}

/* Cells for the values of three axes. */
static size_t cover(int i, int j, int k, uint32_t *state, cell *out) {
    size_t n = 0;
    cell seed;
    for (int x = 0; x < axes[i].n * axes[j].n * axes[k].n; x++) {
        seed = (cell){ .large = 0, .whole = 0 };
        memset(seed.v, UNSET, sizeof seed.v);
        seed.v[i] = (unsigned char)(x % axes[i].n);
        seed.v[j] = (unsigned char)(x / axes[i].n % axes[j].n);
        seed.v[k] = (unsigned char)(x / axes[i].n / axes[j].n);
        if (*seen(&seed, i, j, k) || !grow(&seed, state, &out[n]))
            continue;
        mark(&out[n++], 1);
    }
    return n;
}

/* The axes with most values first: what they need is most of the set, and the others ride along. */
static void by_size(int *order) {
    for (int i = 0; i < N_AXES; i++) {
        int at = i;
        for (; at > 0 && axes[order[at - 1]].n < axes[i].n; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

/* ---- the same for less ---- */

/* Roughly the time of a processor that it takes: messages between all ranks are dear, by TCP most. */
static int price(const cell *c) {
    int w = cell_ranks(c);
    return w * (20 + (w - 1) * (cell_is(c, COMM, "gloo") ? 6 : 1) * (2 + cell_accum(c)) / 2);
}

/* Tries another value on one axis, which is kept where every triple stays in some cell, and the price does not rise. */
static void vary(cell *c, uint32_t *state) {
    int a = (int)random_below(state, N_AXES);
    cell other = *c;
    other.v[a] = (unsigned char)random_below(state, (uint32_t)axes[a].n);
    if (other.v[a] == c->v[a] || price(&other) > price(c) || needed_on(c, a) || !cell_exists(&other))
        return;
    mark(c, -1);
    mark(&other, 1);
    *c = other;
}

static int is_needed(const cell *c) {
    for (int a = 0; a < N_AXES; a++)
        if (needed_on(c, a))
            return 1;
    return 0;
}

static size_t cheaper(cell *cells, size_t n, uint32_t *state) {
    size_t kept = 0;
    for (int i = 0; i < VARIATIONS; i++)
        vary(&cells[random_below(state, (uint32_t)n)], state);
    for (size_t i = 0; i < n; i++)
        if (is_needed(&cells[i]))
            cells[kept++] = cells[i];
        else
            mark(&cells[i], -1);
    return kept;
}

size_t cells_covering(uint32_t seed, cell *out) {
    int order[N_AXES];
    uint32_t state = seed;
    size_t n = 0;
    memset(covered, 0, sizeof covered);
    by_size(order);
    for (int z = 2; z < N_AXES; z++)
        for (int y = 1; y < z; y++)
            for (int x = 0; x < y; x++) {
                int a[3] = { order[x], order[y], order[z] };
                for (int i = 0; i < 2; i++)
                    for (int j = 0; j < 2; j++)
                        if (a[j] > a[j + 1]) {
                            int was = a[j];
                            a[j] = a[j + 1];
                            a[j + 1] = was;
                        }
                n += cover(a[0], a[1], a[2], &state, out + n);
            }
    return cheaper(out, n, &state);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "axes.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

axis_values axes[N_AXES] = {
    [DEVICE] = { "device", { "cpu" }, 1 },
    [COMM] = { "comm", { "self", "gloo", "shm" }, 3 },
    [OFFLOAD] = { "offload", { "none", "cpu" }, 2 },
    [PRECISION] = { "precision", { "fp32", "bf16" }, 2 },
    [WRAP] = { "wrap", { "none", "scopes", "size:100", "module:h.0,h.1" }, 4 },
    [STRATEGY] = { "strategy", { "full", "grad_op", "none", "hybrid", "hybrid_grad_op", "hybrid:3" }, 6 },
    [ACTIVATIONS] = { "activations", { "keep", "recompute", "offload" }, 3 },
    [RANKS] = { "W", { "1", "2", "3", "4", "5", "6", "8" }, 7 },
    [ACCUM] = { "accum", { "1", "2each", "2end" }, 3 },
    [CLIP] = { "clip", { "off", "on" }, 2 },
};

int axes_device_alone;

int axes_extend(void) {
    int added = 0;
    static const struct {
        int axis;
        const char *variable;
    } extra[] = { { DEVICE, "TESSERA_MATRIX_DEVICE" },
                  { COMM, "TESSERA_MATRIX_COMM" },
                  { OFFLOAD, "TESSERA_MATRIX_OFFLOAD" },
                  { PRECISION, "TESSERA_MATRIX_PRECISION" },
                  { WRAP, "TESSERA_MATRIX_WRAP" } };
    for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++) {
        const char *text = getenv(extra[i].variable);
        axis_values *a = &axes[extra[i].axis];
        if (text && *text && a->n < MAX_VALUES) {
            a->values[a->n++] = text;
            added++;
        }
    }
    return added;
}

int cell_ranks(const cell *c) {
    return atoi(axes[RANKS].values[c->v[RANKS]]);
}

static int is(const cell *c, int axis, const char *value) {
    return strcmp(axes[axis].values[c->v[axis]], value) == 0;
}

/* A device and a comm plugin that are given together belong together: no other reaches that memory, and it reaches no
 * other. */
enum { GIVEN_COMM = 3 /* its index */ };
static int belong(const cell *c) {
    if (axes_device_alone && c->v[DEVICE] == 0)
        return 0;
    if (axes[DEVICE].n == 1 || axes[COMM].n <= GIVEN_COMM)
        return 1;
    return is(c, COMM, "self") || (c->v[DEVICE] > 0) == (c->v[COMM] == GIVEN_COMM);
}

int cell_exists(const cell *c) {
    return belong(c) && is(c, COMM, "self") == (cell_ranks(c) == 1);
}

/* More than four ranks, and groups of three among them, are for the cells that are named one by one. */
static int in_product(const cell *c) {
    return cell_exists(c) && cell_ranks(c) <= 4 && !is(c, STRATEGY, "hybrid:3");
}

void cell_strategy(const cell *c, char *out, size_t n) {
    static const int group[] = { 1, 1, 1, 3, 2, 1, 2, 1, 4 }; /* K by the number of ranks */
    const char *s = axes[STRATEGY].values[c->v[STRATEGY]];
    if (strncmp(s, "hybrid", 6) != 0 || strchr(s, ':'))
        snprintf(out, n, "%s", s);
    else
        snprintf(out, n, "%s:%d", s, group[cell_ranks(c)]);
}

void cell_name(const cell *c, char *out, size_t n) {
    size_t at = 0;
    for (int a = 0; a < N_AXES && at < n; a++) {
        char strategy[32];
        const char *value = axes[a].values[c->v[a]], *slash = strrchr(value, '/');
        if (a == DEVICE && axes[a].n == 1)
            continue;
        if (a == STRATEGY) {
            cell_strategy(c, strategy, sizeof strategy);
            value = strategy;
        } else if (slash) {
            value = slash + 1;
        }
        at += (size_t)snprintf(out + at, n - at, "%s%s=%s", at ? "," : "", axes[a].name, value);
    }
}

/* Counts through the product; 0 when it is over. */
static int next(cell *c) {
    for (int a = N_AXES; a-- > 0;) {
        if (++c->v[a] < axes[a].n)
            return 1;
        c->v[a] = 0;
    }
    return 0;
}

size_t cells_all(cell *out) {
    cell c = { { 0 } };
    size_t n = 0;
    do
        if (in_product(&c) && n < MAX_CELLS)
            out[n++] = c;
    while (next(&c));
    return n;
}

/* ---- the covering set ---- */

static uint8_t covered[N_AXES][N_AXES][N_AXES][MAX_VALUES][MAX_VALUES][MAX_VALUES];

/* How many triples of the cell are new; marks them when asked to. */
static int new_triples(const cell *c, int mark) {
    int n = 0;
    for (int i = axes[DEVICE].n > 1 ? DEVICE : DEVICE + 1; i < N_AXES; i++)
        for (int j = i + 1; j < N_AXES; j++)
            for (int k = j + 1; k < N_AXES; k++) {
                uint8_t *seen = &covered[i][j][k][c->v[i]][c->v[j]][c->v[k]];
                n += !*seen;
                if (mark)
                    *seen = 1;
            }
    return n;
}

static uint32_t random_number(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Values of the other axes take turns: over all of these cells, each plugin meets each number of ranks. */
static cell varied(int k) {
    cell c = { { 0 } };
    c.v[COMM] = (unsigned char)(axes_device_alone ? GIVEN_COMM : 1 + k % 2);
    c.v[DEVICE] = (unsigned char)axes_device_alone;
    c.v[OFFLOAD] = (unsigned char)(k / 2 % 2);
    c.v[WRAP] = (unsigned char)(1 + k % 3);
    c.v[ACTIVATIONS] = (unsigned char)(k % 3);
    c.v[ACCUM] = (unsigned char)((k + 1) % 3);
    c.v[CLIP] = (unsigned char)(k / 3 % 2);
    return c;
}

static cell plain_of_six(void) {
    cell c = varied(0);
    c.v[OFFLOAD] = c.v[ACTIVATIONS] = c.v[ACCUM] = c.v[CLIP] = 0;
    return c;
}

/* Five, six and eight ranks, in every strategy. The doubles of a GPU are six. */
static void add_many_ranks(cell *out, size_t *n) {
    enum { FIVE = 4, SIX = 5, EIGHT = 6 };
    int k = 0;
    for (int ranks = FIVE; ranks <= EIGHT; ranks++)
        for (int strategy = 0; strategy < axes[STRATEGY].n; strategy++)
            for (int precision = 0; precision < 2; precision++, k++) {
                cell c = varied(k), plain = plain_of_six();
                c.v[RANKS] = plain.v[RANKS] = (unsigned char)ranks;
                c.v[STRATEGY] = plain.v[STRATEGY] = (unsigned char)strategy;
                c.v[PRECISION] = plain.v[PRECISION] = (unsigned char)precision;
                if ((is(&c, STRATEGY, "hybrid:3") || axes_device_alone) && ranks != SIX)
                    continue;
                if (ranks == SIX)
                    out[(*n)++] = plain;
                if (!axes_device_alone)
                    out[(*n)++] = c;
            }
}

size_t cells_covering(cell *out) {
    static cell all[MAX_CELLS];
    size_t n_all = cells_all(all), n = 0;
    uint32_t seed = 20220518;
    memset(covered, 0, sizeof covered);
    for (size_t left = n_all; left > 0;) {
        size_t best = 0;
        int most = 0;
        for (int tries = 0; tries < 200; tries++) {
            size_t i = random_number(&seed) % left;
            int fresh = new_triples(&all[i], 0);
            if (fresh > most)
                most = fresh, best = i;
        }
        for (size_t i = 0; most == 0 && i < left; i++) /* the last few are rare: look at all */
            if (new_triples(&all[i], 0) > 0)
                most = 1, best = i;
        if (most == 0)
            break;
        new_triples(&all[best], 1);
        out[n++] = all[best];
        all[best] = all[--left];
    }
    add_many_ranks(out, &n);
    return n;
}

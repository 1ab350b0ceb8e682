/* SPDX-License-Identifier: BSD-3-Clause */
#include "axes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

axis_values axes[N_AXES] = {
    [DEVICE] = { "device", { "cpu" }, 1 },
    [COMM] = { "comm", { "self", "gloo", "shm", "fault:over=shm" }, 4 },
    [OFFLOAD] = { "offload", { "none", "cpu", "cpu:params", "cpu:grads,optimizer", "cpu:fraction=0.5" }, 5 },
    [PRECISION] = { "precision", { "fp32", "bf16", "bf16:wire=fp32", "bf16:grad=bf16" }, 4 },
    [WRAP] = { "wrap", { "none", "scopes", "size:100", "module:h.0,h.1" }, 4 },
    [STRATEGY] = { "strategy", { "full", "grad_op", "none", "hybrid", "hybrid_grad_op", "hybrid:3" }, 6 },
    [ACTIVATIONS] = { "activations", { "keep", "recompute", "offload" }, 3 },
    [RANKS] = { "W", { "1", "2", "3", "4", "5", "6", "8" }, 7 },
    [ACCUM] = { "accum", { "1", "2each", "2end", "4each", "4end" }, 5 },
    [CLIP] = { "clip", { "off", "on" }, 2 },
    [API] = { "api", { "blocks", "fused", "hooks" }, 3 },
    [OPTIMIZER] = { "optimizer", { "adamw", "adam", "sgd", "adadelta" }, 4 },
    [GROUPS] = { "groups", { "1", "2" }, 2 },
    [PREFETCH] = { "prefetch", { "auto", "0", "1", "3" }, 4 },
    [DETERMINISTIC] = { "deterministic", { "0", "1" }, 2 },
    [STRICT] = { "strict", { "0", "1" }, 2 },
};

int axes_device_alone;

enum { OWN_COMMS = 4 /* the index of one that is added */ };

void axes_extend(void) {
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
        if (text && *text && a->n < MAX_VALUES)
            a->values[a->n++] = text;
    }
}

int cell_ranks(const cell *c) {
    return atoi(axes[RANKS].values[c->v[RANKS]]);
}

int cell_is(const cell *c, int axis, const char *value) {
    return c->v[axis] != UNSET && strcmp(axes[axis].values[c->v[axis]], value) == 0;
}

static int isnt(const cell *c, int axis, const char *value) {
    return c->v[axis] != UNSET && !cell_is(c, axis, value);
}

/* ---- what can exist ---- */

/* A device and a comm plugin that are given together belong together: no other reaches that memory, and it reaches no
 * other. Its comm plugin may sum in an order of its own but for deterministic runs; its doubles are six. */
static int device_possible(const cell *c) {
    int on_device = c->v[DEVICE] != UNSET && c->v[DEVICE] > 0;
    int own_comm = c->v[COMM] != UNSET && c->v[COMM] < OWN_COMMS && !cell_is(c, COMM, "self");
    if (on_device && (own_comm || cell_is(c, DETERMINISTIC, "0") || cell_is(c, RANKS, "8")))
        return 0;
    return c->v[DEVICE] != 0 || axes[DEVICE].n == 1 ||
           (!axes_device_alone && (c->v[COMM] == UNSET || c->v[COMM] < OWN_COMMS));
}

static int ranks_possible(const cell *c) {
    if (cell_is(c, COMM, "self") && (isnt(c, RANKS, "1") || cell_is(c, STRATEGY, "hybrid:3")))
        return 0;
    if (cell_is(c, RANKS, "1") && isnt(c, COMM, "self"))
        return 0;
    return !(cell_is(c, STRATEGY, "hybrid:3") && isnt(c, RANKS, "6"));
}

int cell_exists(const cell *c) {
    return device_possible(c) && ranks_possible(c) && !(cell_is(c, API, "hooks") && isnt(c, ACTIVATIONS, "keep"));
}

/* ---- names ---- */

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

/* ---- the product ---- */

/* Counts through the product; 0 when it is over. */
static int next(cell *c) {
    for (int a = N_PRODUCT; a-- > 0;) {
        if (++c->v[a] < axes[a].n)
            return 1;
        c->v[a] = 0;
    }
    return 0;
}

/* The product has few ranks, two microbatches at most, and plugins without arguments or others below them. */
static int in_product(const cell *c) {
    int plain =
        !strchr(axes[OFFLOAD].values[c->v[OFFLOAD]], ':') && !strchr(axes[PRECISION].values[c->v[PRECISION]], ':');
    return plain && !cell_is(c, COMM, "fault:over=shm") && !cell_is(c, STRATEGY, "hybrid:3") && cell_ranks(c) <= 4 &&
           atoi(axes[ACCUM].values[c->v[ACCUM]]) <= 2 && cell_exists(c);
}

size_t cells_all(cell *out) {
    cell c = { { 0 } };
    size_t n = 0;
    do {
        c.v[DETERMINISTIC] = c.v[DEVICE] > 0;
        if (in_product(&c) && n < MAX_CELLS)
            out[n++] = c;
    } while (next(&c));
    return n;
}

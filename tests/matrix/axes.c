/* SPDX-License-Identifier: BSD-3-Clause */
#include "axes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

axis_values axes[N_AXES] = {
    [DEVICE] = { "device", { "cpu" }, 1 },
    [COMM] = { "comm", { "self", "gloo", "shm", "fault:over=shm" }, 4 },
    [OFFLOAD] = { "offload",
                  { "none", "cpu", "cpu:params", "cpu:grads,optimizer", "cpu:fraction=0.5", "disk:.", "disk:.,all",
                    "disk:.,grads,optimizer+cpu:params" },
                  8 },
    [PRECISION] = { "precision",
                    { "fp32", "bf16", "bf16:wire=fp32", "bf16:grad=bf16", "fp16", "wire8", "wire8:fp8,compute=bf16",
                      "bf16:products=fp8" },
                    8 },
    [WRAP] = { "wrap", { "none", "scopes", "size:100", "module:h.0,h.1" }, 4 },
    [STRATEGY] = { "strategy", { "full", "grad_op", "none", "hybrid", "hybrid_grad_op", "hybrid:3" }, 6 },
    [ACTIVATIONS] = { "activations", { "keep", "recompute", "offload" }, 3 },
    [RANKS] = { "W", { "1", "2", "3", "4", "5", "6", "8" }, 7 },
    [ACCUM] = { "accum", { "1", "2each", "2end", "4each", "4end" }, 5 },
    [CLIP] = { "clip", { "off", "on" }, 2 },
    [API] = { "api", { "blocks", "fused", "hooks" }, 3 },
    [OPTIMIZER] = { "optimizer", { "adamw", "adam", "sgd", "adadelta" }, 4 },
    [GROUPS] = { "groups", { "1", "2", "rates" }, 3 },
    [PREFETCH] = { "prefetch", { "auto", "0", "1", "3" }, 4 },
    [DETERMINISTIC] = { "deterministic", { "0", "1" }, 2 },
    [COPY] = { "copy", { "0", "1" }, 2 },
    [STRICT] = { "strict", { "0", "1" }, 2 },
    [AUDIT] = { "audit", { "0", "1/1", "1/3" }, 3 },
};

int axes_device_alone;

enum { OWN_COMMS = 4 /* the index of one that is added */ };

void axes_extend(void) {
    static const struct {
        int axis;
        const char *variable;
    } extra[] = { { DEVICE, "TESSERA_MATRIX_DEVICE" },   { COMM, "TESSERA_MATRIX_COMM" },
                  { OFFLOAD, "TESSERA_MATRIX_OFFLOAD" }, { PRECISION, "TESSERA_MATRIX_PRECISION" },
                  { WRAP, "TESSERA_MATRIX_WRAP" },       { OPTIMIZER, "TESSERA_MATRIX_OPTIMIZER" } };
    for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++) {
        char *text = getenv(extra[i].variable) ? strdup(getenv(extra[i].variable)) : NULL; /* until the end */
        axis_values *a = &axes[extra[i].axis];
        for (char *value = text ? strtok(text, "|") : NULL; value; value = strtok(NULL, "|")) {
            if (a->n == MAX_VALUES) {
                fprintf(stderr, "%s: %s has more than %d values with it\n", extra[i].variable, a->name, MAX_VALUES);
                exit(2);
            }
            a->values[a->n++] = value;
        }
    }
    const char *strict = getenv("TESSERA_MATRIX_STRICT");
    if (strict && strcmp(strict, "1") == 0)
        axes[STRICT] = (axis_values){ "strict", { "1" }, 1 };
}

int cell_ranks(const cell *c) {
    return atoi(axes[RANKS].values[c->v[RANKS]]);
}

int cell_accum(const cell *c) {
    return c->whole ? c->whole : atoi(axes[ACCUM].values[c->v[ACCUM]]);
}

int cell_is(const cell *c, int axis, const char *value) {
    return c->v[axis] != UNSET && strcmp(axes[axis].values[c->v[axis]], value) == 0;
}

int cell_stores(const cell *c) {
    return c->v[OFFLOAD] != UNSET && strncmp(axes[OFFLOAD].values[c->v[OFFLOAD]], "disk:", 5) == 0;
}

static int isnt(const cell *c, int axis, const char *value) {
    return c->v[axis] != UNSET && !cell_is(c, axis, value);
}

/* ---- what can exist ---- */

/* Also before it is chosen, where all cells are: a seed that no cell can have costs hundreds of attempts. */
static int on_device(const cell *c) {
    return c->v[DEVICE] == UNSET ? axes_device_alone : c->v[DEVICE] > 0;
}

/* A device and a comm plugin that are given together belong together: no other reaches that memory, and it reaches no
 * other. Its comm plugin may sum in an order of its own but for deterministic runs; its GPUs are six, or
 * TESSERA_MATRIX_DEVICES. */
static int device_possible(const cell *c) {
    const char *devices = getenv("TESSERA_MATRIX_DEVICES");
    int too_many = c->v[RANKS] != UNSET && cell_ranks(c) > (devices ? atoi(devices) : 6);
    int own_comm = c->v[COMM] != UNSET && c->v[COMM] < OWN_COMMS && !cell_is(c, COMM, "self");
    if (on_device(c) && (own_comm || cell_is(c, DETERMINISTIC, "0") || too_many || cell_stores(c)))
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

/* One rank has no auditor, hooks have no blocks, and the host does not read a device's memory. */
static int audit_possible(const cell *c) {
    return !isnt(c, AUDIT, "0") ||
           (!cell_is(c, RANKS, "1") && !cell_is(c, COMM, "self") && !cell_is(c, API, "hooks") && !on_device(c));
}

int cell_exists(const cell *c) {
    return device_possible(c) && ranks_possible(c) && audit_possible(c) &&
           !(cell_is(c, API, "hooks") && isnt(c, ACTIVATIONS, "keep"));
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
    size_t at = (size_t)snprintf(out, n, "%s", c->large ? "large" : "");
    for (int a = 0; a < N_AXES && at < n; a++) {
        char strategy[32], whole[8];
        const char *value = axes[a].values[c->v[a]], *slash = *value == '/' ? strrchr(value, '/') : NULL;
        if (a == ACCUM && c->whole) {
            snprintf(whole, sizeof whole, "%d", c->whole);
            value = whole;
        }
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

/* ---- one by its name ---- */

/* Where the value of the axis starts in the text: behind "axis=" at its beginning or behind a comma. */
static const char *value_in(const char *text, const char *axis) {
    size_t n = strlen(axis);
    for (const char *at = text; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, axis, n) == 0 && at[n] == '=')
            return at + n + 1;
    }
    return NULL;
}

/* The longest value of the axis that stands there, for one may begin with another or have a comma. */
static int value_at(const cell *c, int a, const char *at) {
    int best = -1;
    size_t longest = 0;
    for (int i = 0; i < axes[a].n; i++) {
        char strategy[32];
        cell one = *c;
        one.v[a] = (unsigned char)i;
        const char *value = axes[a].values[i];
        if (a == STRATEGY) {
            cell_strategy(&one, strategy, sizeof strategy);
            value = strategy;
        }
        size_t n = strlen(value);
        if (n > longest && strncmp(at, value, n) == 0 && (at[n] == ',' || !at[n]))
            best = i, longest = n;
    }
    return best;
}

int cell_named(const char *text, cell *out) {
    static const int ranks_first[] = { RANKS, STRATEGY };
    memset(out, 0, sizeof *out);
    out->large = strncmp(text, "large,", 6) == 0;
    for (int i = -2; i < N_AXES; i++) { /* strategies have their groups by the number of ranks */
        int a = i < 0 ? ranks_first[i + 2] : i;
        const char *at = value_in(text, axes[a].name);
        int v = at ? value_at(out, a, at) : 0;
        if (v < 0)
            return 0;
        out->v[a] = (unsigned char)v;
    }
    return cell_exists(out);
}

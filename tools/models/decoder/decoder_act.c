/* SPDX-License-Identifier: BSD-3-Clause */
/* Activations and sums of two tensors, element by element. */
#include "decoder_rows.h"
#include "tools/models/parallel.h"

enum { GRAIN = 4096 /* least elements per thread */ };

typedef struct {
    const decoder *d;
    const void *gate, *up;
    void *y, *dgate;
} act;

enum { PLAIN, SILU, GELU }; /* no gate, or the gate's activation */

TESS_FN lanes act_lanes(int gated, lanes gate, lanes up) {
    return gated == SILU ? lanes_swiglu_of(gate, up) : gated == GELU ? lanes_gelu_of(gate) * up : lanes_gelu_of(up);
}

TESS_FN void act_few(int half, int gated, const act *a, int64_t i, int64_t n) {
    lanes up = rows_of(half, a->up, i, n), gate = gated ? rows_of(half, a->gate, i, n) : up;
    rows_to(half, act_lanes(gated, gate, up), a->y, i, n);
}

TESS_FN void act_pair(int half, int gated, const act *a, int64_t i) {
    lanes_pair up = pair_of(half, a->up, i), gate = gated ? pair_of(half, a->gate, i) : up;
    pair_to(half, (lanes_pair){ act_lanes(gated, gate.a, up.a), act_lanes(gated, gate.b, up.b) }, a->y, i);
}

/* Returns dup for dy, and writes dgate if there is a gate. */
TESS_FN lanes act_slope(int gated, lanes gate, lanes up, lanes dy, lanes *dgate) {
    if (!gated)
        return lanes_gelu_slope_of(up, dy);
    if (gated == GELU) {
        *dgate = lanes_gelu_slope_of(gate, dy * up);
        return dy * lanes_gelu_of(gate);
    }
    *dgate = lanes_swiglu_gate_slope_of(gate, up, dy);
    return lanes_swiglu_up_slope_of(gate, dy);
}

TESS_FN void act_backward_few(int half, int gated, const act *a, int64_t i, int64_t n) {
    lanes up = rows_of(half, a->up, i, n), gate = gated ? rows_of(half, a->gate, i, n) : up, dgate = up;
    lanes dup = act_slope(gated, gate, up, rows_of(half, a->y, i, n), &dgate);
    if (gated)
        rows_to(half, dgate, a->dgate, i, n);
    rows_to(half, dup, a->y, i, n);
}

TESS_FN void act_backward_pair(int half, int gated, const act *a, int64_t i) {
    lanes_pair up = pair_of(half, a->up, i), gate = gated ? pair_of(half, a->gate, i) : up, dgate = up;
    lanes_pair dup = pair_of(half, a->y, i);
    dup.a = act_slope(gated, gate.a, up.a, dup.a, &dgate.a);
    dup.b = act_slope(gated, gate.b, up.b, dup.b, &dgate.b);
    if (gated)
        pair_to(half, dgate, a->dgate, i);
    pair_to(half, dup, a->y, i);
}

/* Each kind has a loop of its own, so that all constants of its formula stay in registers. */
TESS_FN void act_span(int half, int gated, int backward, const act *a, int64_t i, int64_t last) {
    for (; i + PAIR <= last; i += PAIR)
        (backward ? act_backward_pair : act_pair)(half, gated, a, i);
    for (; i < last; i += LANES)
        (backward ? act_backward_few : act_few)(half, gated, a, i, last - i);
}

#define ACT_SPANS(half, gated, backward, ...)                                                                          \
    switch (gated) {                                                                                                   \
    case PLAIN: BY_FORMAT(half, act_span, PLAIN, backward, __VA_ARGS__); break;                                        \
    case SILU: BY_FORMAT(half, act_span, SILU, backward, __VA_ARGS__); break;                                          \
    default: BY_FORMAT(half, act_span, GELU, backward, __VA_ARGS__); break;                                            \
    }

/* Works on a copy of the parameters: the compiler must reload memory that a vector store may overwrite. The others
 * do too. */
OPS_CLONES static void act_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const act a = *(const act *)arg;
    (void)thread;
    ACT_SPANS(a.d->half, a.gate ? 1 + a.d->gelu : PLAIN, 0, &a, first, last);
}

void decoder_act(const decoder *d, const void *gate, const void *up, void *y, int64_t elems) {
    act a = { d, gate, up, y, NULL };
    ops_parallel(d->o, elems, GRAIN, act_range, &a);
}

OPS_CLONES static void act_backward_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const act a = *(const act *)arg;
    (void)thread;
    ACT_SPANS(a.d->half, a.gate ? 1 + a.d->gelu : PLAIN, 1, &a, first, last);
}

void decoder_act_backward(const decoder *d, const void *gate, const void *up, void *dy_dup, void *dgate,
                          int64_t elems) {
    act a = { d, gate, up, dy_dup, dgate };
    ops_parallel(d->o, elems, GRAIN, act_backward_range, &a);
}

OPS_CLONES static void add_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const act *a = arg;
    (void)thread;
    for (int64_t i = first; i < last; i += LANES)
        rows_put(a->d, rows_at(a->d, a->y, i, last - i) + rows_at(a->d, a->up, i, last - i), a->y, i, last - i);
}

void decoder_add(const decoder *d, const void *x, void *y, int64_t elems) {
    act a = { .d = d, .up = x, .y = y };
    ops_parallel(d->o, elems, GRAIN, add_range, &a);
}

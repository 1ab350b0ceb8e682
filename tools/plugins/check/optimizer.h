/* SPDX-License-Identifier: BSD-3-Clause */
/* The checks of an optimizer plugin share the plugin, shapes of parameters, and its description of one. */
#ifndef CHECK_OPTIMIZER_H
#define CHECK_OPTIMIZER_H
#include <tessera/plugin_helpers.h>
#include "suites.h"

enum { SHAPES = 11, STEPS = 4, GUARD = 4096, CANARY = 0x5c };

extern const tess_optimizer_ops *optimizer_ops;
extern void *optimizer_ctx;
void open_optimizer(check *);
tess_param_view param_of(int shape, uint32_t dtype);

/** optimizer_describe.c: asks the plugin, with a struct full of `garbage`; judges the answer. */
tess_status describe(check *, const tess_param_view *, uint32_t flags, tess_grain *out, int garbage);
/** Elements of the block or row that no piece parts; else 1. */
uint64_t uncut_of(const tess_param_view *, const tess_grain *);
void judge(check *, const tess_param_view *, const tess_grain *);
void descriptions(check *);
void same_on_all_ranks(check *);
void longer_structs(check *);

typedef struct { /* memory between guard bytes */
    unsigned char *at, *base;
    uint64_t bytes;
} guarded;
typedef void share_fn(void *pool, uint64_t n, void (*fn)(void *user, uint64_t first, uint64_t n), void *user);
typedef struct { /* a parameter with its gradient and states */
    tess_param_view param;
    tess_grain grain;
    guarded master, grad, state[TESS_STATES_MOST];
    guarded update, scratch;             /* of matrices */
    unsigned char in_update, in_scratch; /* bytes that a step finds there */
    share_fn *share;                     /* among how many the work on a matrix is shared out */
    uint32_t phase;                      /* in which a piece comes */
} stepped;

/** optimizer_step.c: 0 where the plugin refuses that shape, or gives it to a device's kernel. */
int stepped_new(check *, int shape, stepped *);
void stepped_free(stepped *);
void stepped_gradient(stepped *, uint64_t step);
uint64_t stepped_state_at(const stepped *, uint32_t k, uint64_t elem);
uint64_t stepped_grain(const stepped *); /* as uncut_of */
/** A piece without addresses. */
tess_optimizer_piece stepped_piece_of(const stepped *, uint64_t step, uint64_t first, uint64_t elems);
tess_status stepped_piece(stepped *, uint64_t step, uint64_t first, uint64_t elems, tess_error *);
void stepped_must(check *, stepped *, uint64_t step, uint64_t first, uint64_t elems); /* which has to succeed */
/** Steps in pieces of `grains` grains, in the phase that is set. With `back`, the last piece comes first. */
void stepped_cut(check *, stepped *, uint64_t step, uint64_t grains, int back);
/** All phases of a step in such pieces, a matrix before and after its work as a whole. */
void stepped_phases(check *, stepped *, uint64_t step, uint64_t grains, int back);
/** The same, each as one piece. */
void stepped_at_once(check *, stepped *, uint64_t step);
/** A step may write only the bytes [first, end). */
void stepped_untouched(check *, const guarded *, const unsigned char *before, uint64_t first, uint64_t end,
                       const char *what);
void stepped_same(check *, const stepped *, const stepped *, const char *when, const char *than);

/** Works on matrix `index` of the parameter's stack. */
void stepped_matrix(check *, stepped *, uint64_t step, uint64_t index);

/** optimizer_matrix.c */
void update_written(check *);
void matrix_alone(check *);
void matrix_any_parts(check *);
void matrix_any_scratch(check *);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks an optimizer plugin's description of a parameter. */
#include "optimizer.h"

#include <string.h>

const tess_optimizer_ops *optimizer_ops;
void *optimizer_ctx;

/* The shapes include a scalar, ones that no block or vector divides, whole blocks, and one that plugins take for
 * large. */
static const struct {
    int32_t ndim;
    int64_t shape[3];
} shapes[] = { { 0, { 0 } },      { 1, { 1 } },       { 1, { 63 } },      { 2, { 13, 5 } },
               { 1, { 255 } },    { 1, { 256 } },     { 2, { 257, 1 } },  { 3, { 3, 7, 31 } },
               { 2, { 64, 64 } }, { 2, { 4097, 1 } }, { 2, { 129, 131 } } };
_Static_assert(sizeof shapes / sizeof shapes[0] == SHAPES, "as many as the header says");

void open_optimizer(check *c) {
    optimizer_ops = check_open(c);
    optimizer_ctx = c->ctx;
}

tess_param_view param_of(int i, uint32_t dtype) {
    tess_param_view v = { .struct_size = sizeof v,
                          .dtype = dtype,
                          .name = "h.0.weight",
                          .elems = 1,
                          .shape = shapes[i].shape,
                          .ndim = shapes[i].ndim };
    for (int32_t d = 0; d < v.ndim; d++)
        v.elems *= (uint64_t)v.shape[d];
    return v;
}

tess_status describe(check *c, const tess_param_view *p, uint32_t flags, tess_grain *out, int garbage) {
    tess_error e = { .struct_size = sizeof e };
    memset(out, garbage, sizeof *out);
    out->struct_size = sizeof *out;
    check_doing(c, "describe");
    tess_status s = optimizer_ops->describe(optimizer_ctx, p, flags, out, &e);
    check_doing(c, "");
    check_that(c, s == TESS_OK || s == TESS_E_UNSUPPORTED || s == TESS_E_INVALID,
               "describe of %llu elements gave %s: %s", (unsigned long long)p->elems, check_status(s), e.message);
    check_that(c, s == TESS_OK || *e.message, "describe gave %s and no message", check_status(s));
    return s;
}

uint64_t uncut_of(const tess_param_view *p, const tess_grain *g) {
    if (g->grain == TESS_GRAIN_ROW)
        return p->ndim ? (uint64_t)p->shape[p->ndim - 1] : 1;
    for (uint32_t k = 0; g->grain == TESS_GRAIN_MATRIX && k < g->n_states; k++)
        if (g->state[k].every > 1)
            return g->cols;
    return g->grain == TESS_GRAIN_BLOCK ? g->block : 1;
}

static void judge_state(check *c, const tess_param_view *p, const tess_grain *g, uint32_t k) {
    const tess_state *x = &g->state[k];
    check_that(c, tess_dtype_bytes(x->dtype), "state %u has dtype %u, which is none", k, x->dtype);
    check_that(c, x->every == 1 || x->every == uncut_of(p, g),
               "state %u has a value for %u elements, expected 1, or the block or row", k, x->every);
    check_that(c,
               memchr(x->name, 0, sizeof x->name) && *x->name &&
                   strspn(x->name, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(x->name),
               "state %u has no name of [a-z0-9_]", k);
    for (uint32_t i = 0; i < k; i++)
        check_that(c, strcmp(g->state[i].name, x->name) != 0, "two states have the name %s", x->name);
}

static void judge_matrix(check *c, const tess_param_view *p, const tess_grain *g) {
    unsigned long long elems = p->elems;
    if (g->grain != TESS_GRAIN_MATRIX) {
        check_that(c, !g->rows && !g->cols && !g->scratch_bytes && !g->whole,
                   "describe of %llu elements states a matrix beside another grain", elems);
        return;
    }
    check_that(c, g->rows && g->cols && g->cols <= p->elems / g->rows && p->elems % (g->rows * g->cols) == 0,
               "describe of %llu elements states matrices of %llu rows and %llu columns, of which it is no stack",
               elems, (unsigned long long)g->rows, (unsigned long long)g->cols);
    check_that(c,
               TESS_CAN(tess_optimizer_ops, optimizer_ops, matrix) &&
                   TESS_CAN(tess_optimizer_ops, optimizer_ops, step) && !g->kernel,
               "states the grain of a matrix, and has no step and matrix, or names a kernel");
    for (uint32_t k = 0; k < 32; k++)
        check_that(c,
                   !(g->whole >> k & 1) || (k < g->n_states && g->state[k].dtype == TESS_F32 && g->state[k].every == 1),
                   "states that state %u travels with the update, and it is none of fp32 for each element", k);
}

void judge(check *c, const tess_param_view *p, const tess_grain *g) {
    unsigned long long elems = p->elems;
    check_that(c, g->grain >= TESS_GRAIN_ELEMENT && g->grain <= TESS_GRAIN_ROW,
               "describe of %llu elements states grain %u, which is none", elems, g->grain);
    if (g->grain == TESS_GRAIN_BLOCK)
        check_that(c, g->block && g->block <= TESS_BLOCK_MOST && !(g->block & (g->block - 1)),
                   "describe of %llu elements states blocks of %u, expected a power of two up to %d", elems, g->block,
                   TESS_BLOCK_MOST);
    else
        check_that(c, !g->block, "describe of %llu elements states a block beside another grain", elems);
    judge_matrix(c, p, g);
    check_that(c, g->kernel <= TESS_OPT_ADADELTA, "describe of %llu elements names kernel %u, which is none", elems,
               g->kernel);
    check_that(c, g->n_states <= TESS_STATES_MOST, "describe of %llu elements states %u states, expected up to %d",
               elems, g->n_states, TESS_STATES_MOST);
    for (uint32_t k = 0; k < g->n_states; k++)
        judge_state(c, p, g, k);
    check_that(c, g->struct_size == sizeof *g, "describe wrote struct_size");
}

/* A device's kernel reads and writes fixed states, so a plugin that names a kernel must describe exactly those. */
static void judge_kernel(check *c, const tess_grain *g, uint32_t flags) {
    uint32_t n = g->kernel != TESS_OPT_SGD ? 2 : flags & TESS_STEPS_MOMENTUM ? 1 : 0;
    check_that(c, g->n_states == n, "names kernel %u and states %u states, expected %u", g->kernel, g->n_states, n);
    for (uint32_t k = 0; k < n; k++)
        check_that(c, g->state[k].dtype == TESS_F32 && g->state[k].every == 1,
                   "names kernel %u, and its state %s is not fp32 with one value for each element", g->kernel,
                   g->state[k].name);
}

/* State k has one name for all parameters, and all that name a kernel name the same one. Checkpoints and the core rely
 * on that. */
static void judge_together(check *c, tess_grain *all, const tess_grain *g) {
    for (uint32_t k = 0; k < g->n_states; k++) {
        if (k < all->n_states)
            check_that(c, strcmp(all->state[k].name, g->state[k].name) == 0,
                       "state %u is %s of one parameter and %s of another", k, all->state[k].name, g->state[k].name);
        all->state[k] = g->state[k];
    }
    all->n_states = g->n_states > all->n_states ? g->n_states : all->n_states;
    check_that(c, !g->kernel || !all->kernel || g->kernel == all->kernel,
               "names kernel %u for one parameter and %u for another", all->kernel, g->kernel);
    all->kernel = g->kernel ? g->kernel : all->kernel;
}

void descriptions(check *c) {
    int served = 0, refused = 0;
    open_optimizer(c);
    for (uint32_t flags = 0; flags < 2; flags++) {
        tess_grain all = { .n_states = 0 };
        for (int i = 0; i < SHAPES; i++) {
            tess_param_view p = param_of(i, TESS_F32);
            tess_grain a, b;
            tess_status s = describe(c, &p, flags, &a, 0x5a), t = describe(c, &p, flags, &b, 0xa5);
            check_that(c, s == t, "describe gives %s, then %s", check_status(s), check_status(t));
            served += s == TESS_OK;
            refused += s != TESS_OK;
            if (s != TESS_OK)
                continue;
            check_that(c, memcmp(&a, &b, sizeof a) == 0,
                       "describe says something else the second time, or leaves a part unwritten");
            judge(c, &p, &a);
            if (a.kernel)
                judge_kernel(c, &a, flags);
            judge_together(c, &all, &a);
        }
    }
    check_that(c, served, "steps no parameter at all");
    check_note(c, "%d described, %d refused", served, refused);
}

/* The description must be pure, so all ranks compare a hash of every answer. */
void same_on_all_ranks(check *c) {
    uint64_t hash = 1469598103934665603u;
    open_optimizer(c);
    for (int i = 0; i < SHAPES; i++) {
        tess_param_view p = param_of(i, TESS_F32);
        tess_grain g;
        tess_status s = describe(c, &p, 0, &g, 0);
        for (size_t b = 0; s == TESS_OK && b < sizeof g; b++)
            hash = (hash ^ ((unsigned char *)&g)[b]) * 1099511628211u;
    }
    check_flag_set(c, c->rank, (int64_t)(hash >> 1));
    check_meet(c);
    for (int r = 0; r < c->nranks; r++)
        check_that(c, check_flag_get(c, r) == (int64_t)(hash >> 1), "describe says something else on rank %d", r);
}

void longer_structs(check *c) {
    struct {
        tess_grain x;
        uint64_t later[3];
    } out;
    struct {
        tess_param_view p;
        uint64_t later[2];
    } in;
    tess_grain plain;
    open_optimizer(c);
    memset(&in, 0x5a, sizeof in);
    memset(&out, 0x5a, sizeof out);
    in.p = param_of(SHAPES - 1, TESS_F32);
    if (describe(c, &in.p, 0, &plain, 0) != TESS_OK)
        check_skip(c, "does not step f32");
    in.p.struct_size = sizeof in;
    out.x.struct_size = sizeof out;
    check_that(c, optimizer_ops->describe(optimizer_ctx, &in.p, 0, &out.x, NULL) == TESS_OK,
               "describe of longer structs failed");
    check_that(c, out.later[0] == 0 && out.later[2] == 0, "describe leaves the end of a longer answer unwritten");
    check_that(c, out.x.struct_size == sizeof out, "describe wrote struct_size");
    out.x.struct_size = sizeof plain;
    check_that(c, memcmp(&out.x, &plain, sizeof plain) == 0, "describe of longer structs says something else");
    uint32_t size = offsetof(tess_grain, n_states); /* a multiple of its alignment */
    tess_grain *cut = check_at_edge(c, size);
    memset(cut, 0, size);
    cut->struct_size = size;
    check_doing(c, "describe with a shorter answer");
    optimizer_ops->describe(optimizer_ctx, &in.p, 0, cut, NULL);
    check_that(c, memcmp((char *)cut + 4, (char *)&plain + 4, size - 4) == 0,
               "describe of a shorter answer says something else");
    check_doing(c, "");
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks a precision plugin's choice of dtypes. */
#include <string.h>

#include <tessera/plugin_helpers.h>
#include "suites.h"

static const tess_precision_ops *ops;
static void *ctx;
static const uint32_t reals[] = { TESS_F16, TESS_BF16, TESS_F32, TESS_F64 };
enum {
    REALS = sizeof reals / sizeof reals[0],
    ALL_REALS = 1 << TESS_F16 | 1 << TESS_BF16 | 1 << TESS_F32 | 1 << TESS_F64
};

static void open_precision(check *c) {
    ops = check_open(c);
    ctx = c->ctx;
}

/* ---- choose ------------------------------------------------------------------------------------ */

static const int64_t shape[2] = { 300, 7 };
static tess_param_view param_of(uint32_t dtype, uint32_t mask, uint32_t flags) {
    return (tess_param_view){ .struct_size = sizeof(tess_param_view),
                              .dtype = dtype,
                              .flags = flags,
                              .compute_mask = mask,
                              .name = "h.0.weight",
                              .elems = 2100,
                              .shape = shape,
                              .ndim = 2 };
}

static tess_status choose(check *c, const tess_param_view *p, tess_precision_choice *out, int garbage) {
    tess_error e = { .struct_size = sizeof e };
    memset(out, garbage, sizeof *out);
    out->struct_size = sizeof *out;
    check_doing(c, "choose");
    tess_status s = ops->choose(ctx, p, out, &e);
    check_doing(c, "");
    check_that(c, s == TESS_OK || s == TESS_E_UNSUPPORTED || s == TESS_E_INVALID, "choose for %s gave %s: %s",
               tess_dtype_name(p->dtype), check_status(s), e.message);
    check_that(c, s == TESS_OK || *e.message, "choose for %s gave %s and no message", tess_dtype_name(p->dtype),
               check_status(s));
    return s;
}

static int is_blocks(uint32_t dtype) {
    return tess_dtype_is_blocks(dtype);
}

static void judge(check *c, const tess_param_view *p, const tess_precision_choice *x) {
    const char *of = tess_dtype_name(p->dtype);
    const uint32_t all[] = { x->master, x->compute, x->gather, x->grad_local, x->grad_wire, x->accumulate };
    static const char *const names[] = { "master", "compute", "gather", "grad_local", "grad_wire", "accumulate" };
    for (int i = 0; i < 6; i++)
        check_that(c, tess_dtype_span(all[i], 1), "choose for %s: %s is dtype %u, which is none", of, names[i], all[i]);
    check_that(c, !p->compute_mask || (p->compute_mask >> x->compute & 1),
               "choose for %s: compute is %s, which the program does not read", of, tess_dtype_name(x->compute));
    check_that(c, x->accumulate == (p->dtype == TESS_F64 ? TESS_F64 : TESS_F32) || x->accumulate == TESS_F64,
               "choose for %s: sums are made in %s", of, tess_dtype_name(x->accumulate));
    check_that(c, tess_dtype_bytes(x->master) >= tess_dtype_bytes(x->compute),
               "choose for %s: the master, %s, is narrower than compute, %s", of, tess_dtype_name(x->master),
               tess_dtype_name(x->compute));
    check_that(c, !is_blocks(x->master) && !is_blocks(x->compute) && !is_blocks(x->grad_local),
               "choose for %s: blocks are to rest or to be computed in; they only travel", of);
    check_that(
        c, !(is_blocks(x->gather) || is_blocks(x->grad_wire)) || (x->master == TESS_F32 && x->grad_local == TESS_F32),
        "choose for %s: sends blocks, of a master in %s and local gradients in %s, expected f32", of,
        tess_dtype_name(x->master), tess_dtype_name(x->grad_local));
    check_that(c, is_blocks(x->gather) || x->gather == x->compute,
               "choose for %s: gathers in %s what kernels read in %s", of, tess_dtype_name(x->gather),
               tess_dtype_name(x->compute));
    check_that(c, x->rounding <= TESS_ROUND_STOCHASTIC, "choose for %s: rounding is %u, which is none", of,
               x->rounding);
    check_that(c, !x->products || (x->products == TESS_F8E4M3 && p->compute_mask >> TESS_F8E4M3 & 1),
               "choose for %s: products are in %s, which the program does not round to", of,
               tess_dtype_name(x->products));
    check_that(c, x->struct_size == sizeof *x, "choose wrote struct_size");
}

static void choices(check *c) {
    int served = 0, refused = 0;
    open_precision(c);
    for (int d = 0; d < REALS; d++)
        for (uint32_t flags = 0; flags < 4; flags++)
            for (uint32_t mask = 0; mask <= ALL_REALS; mask = mask ? mask << 1 : 1u << TESS_F16) {
                int is_all = mask > 1u << TESS_F64;
                tess_param_view p = param_of(reals[d], is_all ? ALL_REALS | 1u << TESS_F8E4M3 : mask, flags);
                tess_precision_choice a, b;
                tess_status s = choose(c, &p, &a, 0x5a), t = choose(c, &p, &b, 0xa5);
                check_that(c, s == t, "choose for %s gives %s, then %s", tess_dtype_name(reals[d]), check_status(s),
                           check_status(t));
                refused += s != TESS_OK;
                if (s != TESS_OK)
                    continue;
                served++;
                check_that(c, memcmp(&a, &b, sizeof a) == 0,
                           "choose for %s says something else the second time, or leaves a part unwritten",
                           tess_dtype_name(reals[d]));
                judge(c, &p, &a);
            }
    check_that(c, served, "chooses for no parameter at all");
    check_note(c, "%d chosen, %d refused", served, refused);
}

/* The choice must be pure, so all ranks compare a hash of every choice. */
static void same_on_all_ranks(check *c) {
    uint64_t hash = 1469598103934665603u;
    open_precision(c);
    for (int d = 0; d < REALS; d++)
        for (uint32_t flags = 0; flags < 4; flags++) {
            tess_param_view p = param_of(reals[d], ALL_REALS, flags);
            tess_precision_choice x;
            tess_status s = choose(c, &p, &x, 0);
            const uint32_t fields[] = { (uint32_t)s,  x.master,    x.compute,   x.gather,
                                        x.grad_local, x.grad_wire, x.accumulate };
            for (size_t i = 0; i < (s == TESS_OK ? sizeof fields / sizeof fields[0] : 1); i++)
                hash = (hash ^ fields[i]) * 1099511628211u;
        }
    check_flag_set(c, c->rank, (int64_t)(hash >> 1));
    check_meet(c);
    for (int r = 0; r < c->nranks; r++)
        check_that(c, check_flag_get(c, r) == (int64_t)(hash >> 1), "choose says something else on rank %d", r);
}

static void longer_structs(check *c) {
    struct {
        tess_precision_choice x;
        uint64_t later[3];
    } out;
    struct {
        tess_param_view p;
        uint64_t later[2];
    } in;
    tess_precision_choice plain;
    open_precision(c);
    memset(&in, 0x5a, sizeof in);
    memset(&out, 0x5a, sizeof out);
    in.p = param_of(TESS_F32, ALL_REALS, 0);
    if (choose(c, &in.p, &plain, 0) != TESS_OK)
        check_skip(c, "does not choose for f32");
    in.p.struct_size = sizeof in;
    out.x.struct_size = sizeof out;
    check_that(c, ops->choose(ctx, &in.p, &out.x, NULL) == TESS_OK, "choose of longer structs failed");
    check_that(c, out.later[0] == 0 && out.later[2] == 0, "choose leaves the end of a longer answer unwritten");
    check_that(c, out.x.struct_size == sizeof out, "choose wrote struct_size");
    out.x.struct_size = sizeof plain;
    check_that(c, memcmp(&out.x, &plain, sizeof plain) == 0, "choose of longer structs says something else");
    /* An older core passes a shorter answer. The plugin must not write past its end. */
    for (uint32_t size = 8; size < sizeof plain; size += 4) {
        tess_precision_choice *cut = check_at_edge(c, size);
        memset(cut, 0, size);
        memcpy(cut, &size, sizeof size);
        check_doing(c, "choose with a shorter answer");
        ops->choose(ctx, &in.p, cut, NULL);
        check_that(c, memcmp((char *)cut + 4, (char *)&plain + 4, size - 4) == 0,
                   "choose of a shorter answer says something else");
    }
    check_doing(c, "");
}

static int is_power_of_two(float x) {
    union {
        float value;
        uint32_t bits;
    } u = { x };
    return x > 0 && (u.bits & 0x7fffffu) == 0 && u.bits < 0x7f800000u;
}

static void loss_scaling(check *c) {
    tess_loss_scaling a, b;
    tess_error e = { .struct_size = sizeof e };
    open_precision(c);
    if (!TESS_CAN(tess_precision_ops, ops, loss_scaling))
        check_skip(c, "losses are not scaled");
    memset(&a, 0x5a, sizeof a);
    memset(&b, 0xa5, sizeof b);
    a.struct_size = b.struct_size = sizeof a;
    check_doing(c, "loss_scaling");
    check_that(c, ops->loss_scaling(ctx, &a, &e) == TESS_OK, "loss_scaling failed: %s", e.message);
    check_that(c, ops->loss_scaling(ctx, &b, NULL) == TESS_OK, "loss_scaling failed the second time");
    check_that(c, memcmp(&a, &b, sizeof a) == 0,
               "loss_scaling says something else the second time, or leaves a part unwritten");
    if (a.init == 0)
        check_skip(c, "losses are not scaled");
    check_that(c,
               is_power_of_two(a.init) && is_power_of_two(a.least) && is_power_of_two(a.growth) &&
                   is_power_of_two(a.backoff),
               "loss_scaling: %g, times %g or %g, at least %g: not all are powers of two", (double)a.init,
               (double)a.growth, (double)a.backoff, (double)a.least);
    check_that(c, a.least <= a.init && a.backoff < 1 && a.growth > 1,
               "loss_scaling: the scale does not begin at its least or above, or does not grow and back off");
}

const check_case check_cases_precision[] = {
    { "same_on_all_ranks", 3, same_on_all_ranks, 0, 0 },
    { "choices", 1, choices, 0, 0 },
    { "longer_structs", 1, longer_structs, 0, 0 },
    { "loss_scaling", 1, loss_scaling, 0, 0 },
    { 0 },
};

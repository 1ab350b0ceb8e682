/* SPDX-License-Identifier: BSD-3-Clause */
/* The choice of dtypes, and the casts where the plugin has its own, against the core's rounding to nearest even. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/kernels/kernels.h"
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

static void judge(check *c, const tess_param_view *p, const tess_precision_choice *x) {
    const char *of = tess_dtype_name(p->dtype);
    const uint32_t all[] = { x->master, x->compute, x->gather, x->grad_local, x->grad_wire, x->accumulate };
    static const char *const names[] = { "master", "compute", "gather", "grad_local", "grad_wire", "accumulate" };
    for (int i = 0; i < 6; i++)
        check_that(c, tess_dtype_bytes(all[i]), "choose for %s: %s is dtype %u, which is none", of, names[i], all[i]);
    check_that(c, !p->compute_mask || (p->compute_mask >> x->compute & 1),
               "choose for %s: compute is %s, which the program does not read", of, tess_dtype_name(x->compute));
    check_that(c, x->accumulate == (p->dtype == TESS_F64 ? TESS_F64 : TESS_F32) || x->accumulate == TESS_F64,
               "choose for %s: sums are made in %s", of, tess_dtype_name(x->accumulate));
    check_that(c, tess_dtype_bytes(x->master) >= tess_dtype_bytes(x->compute),
               "choose for %s: the master, %s, is narrower than compute, %s", of, tess_dtype_name(x->master),
               tess_dtype_name(x->compute));
    check_that(c, x->block_elems >= 1, "choose for %s: shards are multiples of %u elements", of, x->block_elems);
    check_that(c, x->reserved == 0, "choose for %s: reserved is %u", of, x->reserved);
    check_that(c, x->struct_size == sizeof *x, "choose wrote struct_size");
}

static void choices(check *c) {
    int served = 0, refused = 0;
    open_precision(c);
    for (int d = 0; d < REALS; d++)
        for (uint32_t flags = 0; flags < 4; flags++)
            for (uint32_t mask = 0; mask <= ALL_REALS; mask = mask ? mask << 1 : 1u << TESS_F16) {
                tess_param_view p = param_of(reals[d], mask > 1u << TESS_F64 ? ALL_REALS : mask, flags);
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

/* Pure, so the same on every rank: all ranks compare a hash of every choice. */
static void same_on_all_ranks(check *c) {
    uint64_t hash = 1469598103934665603u;
    open_precision(c);
    for (int d = 0; d < REALS; d++)
        for (uint32_t flags = 0; flags < 4; flags++) {
            tess_param_view p = param_of(reals[d], ALL_REALS, flags);
            tess_precision_choice x;
            tess_status s = choose(c, &p, &x, 0);
            const uint32_t fields[] = { (uint32_t)s, x.master,     x.compute,     x.gather,     x.grad_local,
                                        x.grad_wire, x.accumulate, x.block_elems, x.block_bytes };
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
    /* A shorter answer, of an older core, is written no further than it goes. */
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

/* ---- casts ------------------------------------------------------------------------------------- */

enum { ELEMS = 70001 };
static tess_precision *instance;

static void finish(check *c) {
    check_doing(c, "destroy");
    ops->destroy(instance);
    ops->destroy(NULL);
    check_doing(c, "");
}

static void open_casts(check *c) {
    tess_error e = { .struct_size = sizeof e };
    open_precision(c);
    if (!TESS_CAN(tess_precision_ops, ops, cast))
        check_skip(c, "has no casts: the device makes them");
    check_doing(c, "create");
    tess_status s = ops->create(ctx, TESS_MEM_HOST, &instance, &e);
    check_doing(c, "");
    if (s == TESS_E_UNSUPPORTED)
        check_skip(c, "casts in no host memory");
    check_that(c, s == TESS_OK, "create gave %s: %s", check_status(s), e.message);
    c->finish = finish;
}

/* Runs one cast of the plugin; 0 when it is the device's. */
static int cast(check *c, uint32_t from, uint32_t to, const void *src, void *dst, uint64_t elems) {
    tess_need need = { .struct_size = sizeof need };
    tess_stream none = { 0 };
    tess_error e = { .struct_size = sizeof e };
    tess_cast x = { .struct_size = sizeof x, .from = from, .to = to, .src = src, .dst = dst, .elems = elems };
    tess_status s = ops->cast_need(ctx, TESS_MEM_HOST, &x, &need);
    if (s == TESS_E_UNSUPPORTED)
        return 0;
    check_that(c, s == TESS_OK, "cast_need gave %s", check_status(s));
    check_stated(c, need.backend_bytes);
    x.scratch_bytes = need.device_bytes;
    x.scratch = need.device_bytes ? malloc(need.device_bytes) : NULL;
    check_doing(c, "cast");
    s = ops->cast(instance, &x, &none, &e);
    check_doing(c, "");
    free(x.scratch);
    check_that(c, s == TESS_OK, "cast from %s to %s gave %s: %s", tess_dtype_name(from), tess_dtype_name(to),
               check_status(s), e.message);
    return 1;
}

static void reference(check *c, uint32_t from, uint32_t to, const void *src, void *dst, uint64_t elems) {
    const void *in[1] = { src };
    tess_error e = { .struct_size = sizeof e };
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_CAST,
                      .in_dtype = from,
                      .out_dtype = to,
                      .n_in = 1,
                      .in = in,
                      .out = dst,
                      .elems = elems,
                      .scale = 1 };
    check_that(c, tess__kernel_run(&k, NULL, &e) == TESS_OK, "no reference: %s", e.message);
}

/* Values whose rounding tells: ties, the largest, denormals, infinities, NaN, and any. */
static void fill(float *out) {
    uint64_t seed = 3;
    static const uint32_t special[] = {
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x3f808000, 0x3f818000,
        0x3f808001, 0x3f807fff, 0x7f7fffff, 0xff7fffff, 0x7f7f8000, 0x7f7f7fff, 0x477fefff, 0x477ff000,
        0x477fe000, 0x33000000, 0x33000001, 0x387fc000, 0x387fe000, 0x7f800000, 0xff800000, 0x7fc00000,
        0x7f800001, 0xffc12345, 0x00008000, 0x00018000, 0x00007fff,
    };
    for (int i = 0; i < ELEMS; i++) {
        uint32_t bits = (uint32_t)check_random(&seed);
        memcpy(&out[i], &bits, 4);
    }
    memcpy(out, special, sizeof special);
}

static int is_nan(uint32_t dtype, const void *p) {
    uint16_t half;
    float f;
    double d;
    switch (dtype) {
    case TESS_F16: memcpy(&half, p, 2); return (half & 0x7fff) > 0x7c00;
    case TESS_BF16: memcpy(&half, p, 2); return (half & 0x7fff) > 0x7f80;
    case TESS_F32: memcpy(&f, p, 4); return isnan(f);
    default: memcpy(&d, p, 8); return isnan(d);
    }
}

static void compare(check *c, uint32_t from, uint32_t to, const void *src, const void *got, const void *want,
                    uint64_t n) {
    uint64_t in = tess_dtype_bytes(from), out = tess_dtype_bytes(to);
    for (uint64_t i = 0; i < n; i++) {
        const unsigned char *g = (const unsigned char *)got + i * out, *w = (const unsigned char *)want + i * out;
        uint64_t is = 0, should = 0, was = 0;
        memcpy(&is, g, out);
        memcpy(&should, w, out);
        memcpy(&was, (const unsigned char *)src + i * in, in);
        if (is_nan(to, w)) /* any NaN will do */
            check_that(c, is_nan(to, g), "cast from %s to %s loses NaN: %#llx becomes %#llx", tess_dtype_name(from),
                       tess_dtype_name(to), (unsigned long long)was, (unsigned long long)is);
        else
            check_that(c, is == should, "cast from %s to %s: %#llx becomes %#llx, to nearest even it is %#llx",
                       tess_dtype_name(from), tess_dtype_name(to), (unsigned long long)was, (unsigned long long)is,
                       (unsigned long long)should);
    }
}

static void rounding(check *c) {
    static float values[ELEMS];
    static double in[ELEMS], got[ELEMS + 1], want[ELEMS];
    int pairs = 0;
    open_casts(c);
    fill(values);
    for (int f = 0; f < REALS; f++)
        for (int t = 0; t < REALS; t++) {
            reference(c, TESS_F32, reals[f], values, in, ELEMS);
            reference(c, reals[f], reals[t], in, want, ELEMS);
            memset(got, 0x5a, sizeof got);
            if (!cast(c, reals[f], reals[t], in, got, ELEMS))
                continue;
            pairs++;
            compare(c, reals[f], reals[t], in, got, want, ELEMS);
            unsigned char *end = (unsigned char *)got + ELEMS * (uint64_t)tess_dtype_bytes(reals[t]);
            check_that(c, *end == 0x5a, "cast from %s to %s writes past the end", tess_dtype_name(reals[f]),
                       tess_dtype_name(reals[t]));
        }
    if (!pairs)
        check_skip(c, "makes no cast between standard dtypes");
    check_note(c, "%d pairs of dtypes", pairs);
}

/* Odd counts, and addresses that are aligned to their element only. */
static void odd_counts(check *c) {
    static float values[ELEMS];
    static uint16_t got[ELEMS + 2], want[ELEMS];
    open_casts(c);
    fill(values);
    for (uint64_t n = 0; n < 200; n++) {
        memset(got, 0x5a, sizeof got);
        if (!cast(c, TESS_F32, TESS_BF16, values + n % 5, got + 1, n))
            check_skip(c, "does not cast from f32 to bf16");
        reference(c, TESS_F32, TESS_BF16, values + n % 5, want, n);
        compare(c, TESS_F32, TESS_BF16, values + n % 5, got + 1, want, n);
        check_that(c, got[0] == 0x5a5a && got[n + 1] == 0x5a5a, "a cast of %llu elements writes beside them",
                   (unsigned long long)n);
    }
}

/* A value that a narrow dtype can hold comes back unchanged. */
static void round_trip(check *c) {
    static uint16_t all[65536], back[65536];
    static float wide[65536];
    int pairs = 0;
    open_casts(c);
    for (int i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (uint32_t dtype = TESS_F16; dtype <= TESS_BF16; dtype++) {
        reference(c, dtype, TESS_F32, all, wide, 65536);
        if (!cast(c, TESS_F32, dtype, wide, back, 65536))
            continue;
        pairs++;
        compare(c, TESS_F32, dtype, wide, back, all, 65536);
    }
    if (!pairs)
        check_skip(c, "does not cast to f16 or bf16");
}

const check_case check_cases_precision[] = {
    { "same_on_all_ranks", 3, same_on_all_ranks, 0, 0 },
    { "choices", 1, choices, 0, 0 },
    { "longer_structs", 1, longer_structs, 0, 0 },
    { "rounding", 1, rounding, 0, 0 },
    { "odd_counts", 1, odd_counts, 0, 0 },
    { "round_trip", 1, round_trip, 0, 0 },
    { 0 },
};

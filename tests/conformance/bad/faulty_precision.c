/* SPDX-License-Identifier: BSD-3-Clause */
/* A precision plugin: f32 is computed in bf16 where that is read. It also carries the faults of files and of opening.
 */
#include <stdlib.h>
#include <unistd.h>

#include "faulty.h"

FAULTY_NOTE(TESS_KIND_PRECISION);

static tess_status choose(void *ctx, const tess_param_view *p, tess_precision_choice *out, tess_error *e) {
    uint32_t mask = p->compute_mask ? p->compute_mask : 1u << p->dtype, compute = p->dtype;
    (void)ctx;
    if (p->dtype == TESS_F32 && (mask >> TESS_BF16 & 1))
        compute = TESS_BF16;
#ifdef FAULT_DEPENDS_ON_RANK
    const char *rank = getenv("RANK");
    if (rank && *rank == '2')
        compute = p->dtype;
#endif
#ifndef FAULT_COMPUTE_UNREADABLE
    if (!(mask >> compute & 1))
        return failed(e, TESS_E_UNSUPPORTED, "the program does not read dtype %u", compute);
#endif
    tess_precision_choice x = { .master = p->dtype,
                                .compute = compute,
                                .gather = compute,
                                .grad_local = p->dtype,
                                .grad_wire = compute,
                                .accumulate = p->dtype == TESS_F64 ? TESS_F64 : TESS_F32 };
#ifdef FAULT_GATHERS_WIDER
    x.gather = p->dtype;
#endif
#ifdef FAULT_SUMS_IN_BF16
    x.accumulate = compute;
#endif
#ifdef FAULT_CHOICE_UNWRITTEN
    out->master = x.master, out->compute = x.compute, out->gather = x.gather, out->grad_local = x.grad_local;
    out->grad_wire = x.grad_wire;
    (void)e;
#else
    give(out, out->struct_size, &x, sizeof x);
#endif
    return TESS_OK;
}

static tess_status loss_scaling(void *ctx, tess_loss_scaling *out, tess_error *e) {
    tess_loss_scaling x = { .init = 8, .growth = 2, .backoff = 0.5f, .least = 1 };
    (void)ctx;
    (void)e;
#ifdef FAULT_SCALES_BY_THREE
    x.init = 3;
#endif
#ifdef FAULT_SCALE_GROWS_BACKWARDS
    x.backoff = 2;
#endif
    give(out, out->struct_size, &x, sizeof x);
    return TESS_OK;
}

static const tess_precision_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .choose = choose,
    .loss_scaling = loss_scaling,
};

/* ---- the file and its opening ------------------------------------------------------------------ */

#ifdef FAULT_EXTRA_EXPORT
TESS_EXPORT int faulty_helper(void);
int faulty_helper(void) {
    return 1;
}
#endif
#ifdef FAULT_FAST_MATH /* as crtfastmath.o names it */
__attribute__((constructor, used)) static void set_fast_math(void) {}
#endif
#ifdef FAULT_UNDEFINED_SYMBOL
int nobody_has_this(void);
#endif
#ifdef FAULT_LINKS_CORE
const char *tess_last_error(void);
#endif
#ifdef FAULT_CRASHES_AT_EXIT
static void at_the_end(void) {
    abort();
}
#endif

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *e) {
#ifdef FAULT_WRITES_OUTPUT_ON_FAILURE
    *out = &ops;
#endif
#ifdef FAULT_NULL_ERROR
    e->code = TESS_OK;
#endif
    if (kind != TESS_KIND_PRECISION)
        return failed(e, TESS_E_UNSUPPORTED, "faulty offers precision only");
    take_at_open(host);
#ifdef FAULT_READS_BEHIND_HOST
    const uint64_t *behind = (const uint64_t *)(host + 1);
    if (*(volatile const uint64_t *)behind)
        return failed(e, TESS_E_VERSION, "a core that is too new");
#endif
#ifdef FAULT_REFUSES_LONGER_HOST
    if (host->struct_size != sizeof *host)
        return failed(e, TESS_E_VERSION, "a host table of %u bytes", host->struct_size);
#endif
#ifdef FAULT_IMPORTS_GETENV
    if (getenv("FAULTY"))
        return failed(e, TESS_E_INVALID, "set");
#endif
#ifdef FAULT_OPENS_ONCE
    static int times;
    if (times++)
        return failed(e, TESS_E_INVALID, "already open");
#endif
#ifdef FAULT_LEAKS_MEMORY
    char *volatile lost = malloc(1 << 20); /* volatile: the compiler may not leave it out */
    if (lost)
        memset(lost, 1, 1 << 20);
#endif
#ifdef FAULT_LEAKS_FILE
    (void)!dup(2);
#endif
#ifdef FAULT_UNDEFINED_SYMBOL
    nobody_has_this();
#endif
#ifdef FAULT_LINKS_CORE
    tess_last_error();
#endif
#ifdef FAULT_CRASHES_AT_EXIT
    atexit(at_the_end);
#endif
#ifdef FAULT_NO_MESSAGE
    if (*host->args)
        return TESS_E_INVALID;
#endif
#ifdef FAULT_USES_STORE_IN_OPEN
    host->kv_set(host->host, "faulty", "", 1);
#endif
    (void)host;
    *out = &ops;
    *ctx = NULL;
    return TESS_OK;
}

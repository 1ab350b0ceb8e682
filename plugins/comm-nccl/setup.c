/* SPDX-License-Identifier: BSD-3-Clause */
#include "communicator.h"

#include <stdlib.h>

/* ---- the first communicator: a call that blocks, in a thread of its own ------------------------- */

/* The caller's and the thread's. NCCL has no way to end this call from outside, so who gives up leaves it behind, with
 * the context that it works in. */
struct founding {
    const struct nccl_library *lib;
    const tess_cuda *cu;
    CUdevice device;
    CUcontext context;
    ncclUniqueId id;
    ncclConfig_t config;
    int size, rank;
    ncclComm_t comm;
    ncclResult_t result;
    atomic_int state;
};
enum { FOUNDING = 0, FOUNDED, GIVEN_UP };

/* Groups of one rank work beside each other, each with channels and a proxy of its own. */
static ncclConfig_t config_of(const tess_comm *c, int channels) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    config.splitShare = 0;
    config.maxCTAs = channels;
#ifdef NCCL_CTA_POLICY_ZERO
    if (c->settings->engines)
        config.CTAPolicy = NCCL_CTA_POLICY_ZERO; /* sums have no engine and keep their kernels */
#else
    (void)c;
#endif
    return config;
}

static void forget(struct founding *w) {
    w->cu->cuDevicePrimaryCtxRelease(w->device);
    free(w);
}

static void found_in_thread(void *arg) {
    struct founding *w = arg;
    int entered = w->cu->cuCtxPushCurrent(w->context) == CUDA_SUCCESS, expected = FOUNDING;
    w->result = entered ? w->lib->ncclCommInitRankConfig(&w->comm, w->size, w->id, w->rank, &w->config)
                        : ncclUnhandledCudaError;
    int given_up = !atomic_compare_exchange_strong(&w->state, &expected, FOUNDED);
    if (w->comm && (given_up || w->result != ncclSuccess))
        w->lib->ncclCommAbort(w->comm);
    if (entered)
        w->cu->cuCtxPopCurrent(NULL);
    if (given_up)
        forget(w);
}

/* Until the thread is through, the run is ending, or it is late. */
static tess_status await_founding(const tess_comm *c, struct founding *w, int64_t late_ns, tess_error *f) {
    for (int64_t nap_ns = 20000; atomic_load(&w->state) == FOUNDING; nap_ns = nap_ns < 500000 ? 2 * nap_ns : nap_ns) {
        if (kit_aborting(c->settings->host))
            return tess_plugin_fail(f, TESS_E_ABORTED, "nccl: the run was aborted in ncclCommInitRankConfig");
        if (kit_now_ns() > late_ns)
            return tess_plugin_fail(f, TESS_E_TIMEOUT,
                                    "nccl: ncclCommInitRankConfig of group '%.100s' did not end in time", c->prefix);
        kit_nap(nap_ns);
    }
    return TESS_OK;
}

/* A peer that is gone ends the call soon, and then nothing is left behind. */
static void await_end(const struct founding *w) {
    enum { GRACE_NS = 200000000, NAP_NS = 500000 };
    for (int64_t late_ns = kit_now_ns() + GRACE_NS; atomic_load(&w->state) == FOUNDING && kit_now_ns() < late_ns;)
        kit_nap(NAP_NS);
}

static tess_status found_or_leave(tess_comm *c, struct founding *w, int64_t late_ns, tess_error *f) {
    pthread_t thread;
    int expected = FOUNDING;
    tess_status s = kit_thread_start(&thread, c->settings->host, "nccl", "tess-nccl-init", found_in_thread, w, f);
    if (s) {
        forget(w);
        return s;
    }
    s = await_founding(c, w, late_ns, f);
    if (s)
        await_end(w);
    if (s && atomic_compare_exchange_strong(&w->state, &expected, GIVEN_UP)) {
        pthread_detach(thread);
        return s;
    }
    pthread_join(thread, NULL);
    s = w->result == ncclSuccess ? TESS_OK : nccl_failed(f, c->gpu.lib, w->result, "ncclCommInitRankConfig");
    atomic_store(&c->comm, s ? NULL : w->comm);
    forget(w);
    return s;
}

static tess_status make_first_comm(tess_comm *c, ncclUniqueId id, int64_t late_ns, tess_error *f) {
    struct founding *w = calloc(1, sizeof *w);
    if (!w)
        return tess_plugin_fail(f, TESS_E_NOMEM, "nccl: no memory");
    *w = (struct founding){ .lib = c->gpu.lib, .cu = c->gpu.cu, .device = c->gpu.device, .id = id };
    w->config = config_of(c, c->channels), w->size = c->size, w->rank = c->rank;
    tess_status s = nccl_cuda_ok(tess_cuda_retain(w->cu, w->device, &w->context), "cuDevicePrimaryCtxRetain", f);
    if (s) {
        free(w);
        return s;
    }
    return found_or_leave(c, w, late_ns, f);
}

static void say_that_it_hangs(const tess_comm *c) {
    char text[24];
    if (c->rank == 0 && c->size > 1 && nccl_hangs_in_windows(c->gpu.lib->version))
        kit_log(c->settings->host, 1, "nccl",
                "NCCL %s does not end collectives in windows when a rank is lost, and the others may hang (2.29.7 or "
                "later does; TESSERA_NCCL_WINDOWS=off)",
                nccl_version_text(c->gpu.lib->version, text));
}

static int has_engines(int version) {
#ifdef NCCL_CTA_POLICY_ZERO
    return version >= NCCL_VERSION(2, 28, 0);
#else
    return version < 0; /* nccl.h of this build knows no such policy */
#endif
}

static void say_that_kernels_gather(const tess_comm *c) {
    char text[24];
    if (c->rank == 0 && c->settings->engines && !has_engines(c->gpu.lib->version))
        kit_log(c->settings->host, 1, "nccl",
                "NCCL %s has no gathers by copy engines, and kernels do them (2.28 or later, at build and at run time)",
                nccl_version_text(c->gpu.lib->version, text));
}

tess_status nccl_found(tess_comm *c, tess_error *f) {
    int64_t late = kit_until_ns(c->timeout_ns);
    ncclUniqueId id;
    int multiprocessors;
    tess_status s = nccl_meet(c, &id, &multiprocessors, late, f);
    if (s)
        return s;
    nccl_room_begin(c, multiprocessors);
    s = make_first_comm(c, id, late, f);
    if (s == TESS_OK && nccl_memory_shares(c))
        say_that_it_hangs(c);
    if (s == TESS_OK)
        say_that_kernels_gather(c);
    return s;
}

/* ---- calls that an abort from another thread ends ----------------------------------------------- */

static tess_status find_place(tess_comm *child, ncclComm_t comm, tess_error *f) {
    const struct nccl_library *lib = child->gpu.lib;
    ncclResult_t r = lib->ncclCommCount(comm, &child->size);
    if (r != ncclSuccess)
        return nccl_failed(f, lib, r, "ncclCommCount");
    r = lib->ncclCommUserRank(comm, &child->rank);
    return r == ncclSuccess ? TESS_OK : nccl_failed(f, lib, r, "ncclCommUserRank");
}

static tess_status split_off(tess_comm *parent, int color, int32_t key, int channels, int64_t late_ns, ncclComm_t *out,
                             tess_error *f) {
    ncclConfig_t config = config_of(parent, channels);
    tess_status s = nccl_gate_enter(parent, "ncclCommSplit", late_ns, f);
    if (s)
        return s;
    if (nccl_use_begin(&parent->use, &parent->stop)) { /* if not, nccl_gate_leave says why it must stop */
        nccl_use_blocks(&parent->use);
        ncclResult_t r = parent->gpu.lib->ncclCommSplit(atomic_load(&parent->comm), color, key, out, &config);
        nccl_use_end(&parent->use);
        s = r == ncclSuccess ? TESS_OK : nccl_failed(f, parent->gpu.lib, r, "ncclCommSplit");
    }
    return nccl_gate_leave(parent, s, f);
}

tess_status nccl_divide(tess_comm *parent, int32_t color, int32_t key, tess_comm *child, tess_error *f) {
    int64_t late = kit_until_ns(child && child->timeout_ns >= 0 ? child->timeout_ns : parent->timeout_ns);
    ncclComm_t comm = NULL;
    int channels = 0;
    tess_status s = nccl_failure(parent, f);
    if (s == TESS_OK)
        s = nccl_room_take(parent, child, &channels, f);
    if (s)
        return s;
    s = split_off(parent, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, channels, late, &comm, f);
    if (child)
        atomic_store(&child->comm, comm);
    if (s == TESS_OK && child)
        s = find_place(child, comm, f);
    if (s) /* the others wait for this rank: they must learn of it */
        nccl_fail_locked(parent, f);
    return s;
}

tess_status nccl_dissolve(tess_comm *c, int64_t late_ns, tess_error *f) {
    tess_status s = nccl_gate_enter(c, "ncclCommFinalize", late_ns, f);
    if (s)
        return s;
    if (nccl_use_begin(&c->use, &c->stop)) {
        nccl_use_blocks(&c->use);
        ncclResult_t r = c->gpu.lib->ncclCommFinalize(atomic_load(&c->comm));
        nccl_use_end(&c->use);
        s = r == ncclSuccess ? TESS_OK : nccl_failed(f, c->gpu.lib, r, "ncclCommFinalize");
    }
    return nccl_gate_leave(c, s, f);
}

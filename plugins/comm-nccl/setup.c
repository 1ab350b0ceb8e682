/* SPDX-License-Identifier: BSD-3-Clause */
#include "communicator.h"

/* ---- calls that do not block -------------------------------------------------------------------- */

/* Asks until it is through; gives up when `c` is stopped, the run is ending, or at `late_ns`. */
static tess_status await_setup(tess_comm *c, ncclComm_t which, int64_t late_ns, const char *call, tess_error *f) {
    for (int64_t nap_ns = 2000;; nap_ns = nap_ns < 500000 ? 2 * nap_ns : nap_ns) {
        ncclResult_t state = ncclInProgress, r = c->gpu.lib->ncclCommGetAsyncError(which, &state);
        if (r != ncclSuccess)
            return nccl_failed(f, c->gpu.lib, r, "ncclCommGetAsyncError");
        if (state != ncclInProgress)
            return state == ncclSuccess ? TESS_OK : nccl_failed(f, c->gpu.lib, state, call);
        if (atomic_load(&c->stop))
            return nccl_stopped(c, call, f);
        if (kit_aborting(c->settings->host))
            return tess_plugin_fail(f, TESS_E_ABORTED, "nccl: the run was aborted in %s", call);
        if (kit_now_ns() > late_ns)
            return tess_plugin_fail(f, TESS_E_TIMEOUT, "nccl: %s of group '%.100s' did not end in time", call,
                                    c->prefix);
        kit_nap(nap_ns);
    }
}

static tess_status await_result(tess_comm *c, ncclComm_t which, ncclResult_t r, int64_t late_ns, const char *call,
                                tess_error *f) {
    return r == ncclSuccess || r == ncclInProgress ? await_setup(c, which, late_ns, call, f)
                                                   : nccl_failed(f, c->gpu.lib, r, call);
}

/* All calls block in NCCL versions whose nonblocking calls hang at random. */
static int always_blocks(const tess_comm *c) {
    return nccl_hangs_unblocked(c->gpu.lib->version);
}

static ncclConfig_t config_of(int channels, int blocks) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocks;
    config.splitShare = 0;
    config.maxCTAs = channels;
    return config;
}

/* ---- splitting ---------------------------------------------------------------------------------- */

/* Splits a parent that does not block: both are in progress until it is done. What NCCL shares is the parent's choice
 * (splitShare): channels and the proxy, and also the one stream in which all who share take turns. The first one shares
 * with none, so that groups work beside each other. A child shares with the one that works, which is split from it. */
static tess_status split_off(tess_comm *c, int color, int key, int channels, int blocks, int64_t late_ns,
                             ncclComm_t *out, tess_error *f) {
    ncclConfig_t config = config_of(channels, blocks);
    config.splitShare = !blocks;
    ncclResult_t r = c->gpu.lib->ncclCommSplit(c->setup, color, key, &c->newborn, &config);
    tess_status s = await_result(c, c->setup, r, late_ns, "ncclCommSplit", f);
    if (s)
        return s;
    *out = c->newborn;
    c->newborn = NULL;
    return *out ? await_setup(c, *out, late_ns, "ncclCommSplit", f) : TESS_OK;
}

/* The one that works, of all ranks of the one that was set up. */
static tess_status make_worker(tess_comm *c, int64_t late_ns, tess_error *f) {
    ncclComm_t comm = NULL;
    tess_status s = split_off(c, 0, c->rank, c->channels, 1, late_ns, &comm, f);
    atomic_store(&c->comm, comm);
    return s;
}

static tess_status find_place(tess_comm *child, ncclComm_t comm, tess_error *f) {
    const struct nccl_library *lib = child->gpu.lib;
    ncclResult_t r = lib->ncclCommCount(comm, &child->size);
    if (r != ncclSuccess)
        return nccl_failed(f, lib, r, "ncclCommCount");
    r = lib->ncclCommUserRank(comm, &child->rank);
    return r == ncclSuccess ? TESS_OK : nccl_failed(f, lib, r, "ncclCommUserRank");
}

static tess_status divide_blocking(tess_comm *parent, int color, int32_t key, int channels, int64_t late_ns,
                                   ncclComm_t *out, tess_error *f) {
    ncclConfig_t config = config_of(channels, 1);
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
    int of_color = color < 0 ? NCCL_SPLIT_NOCOLOR : color;
    ncclComm_t comm = NULL;
    int channels = 0;
    tess_status s = nccl_failure(parent, f);
    if (s == TESS_OK)
        s = nccl_room_take(parent, child, &channels, f);
    if (s)
        return s;
    s = parent->setup ? split_off(parent, of_color, key, channels, 0, late, &comm, f)
                      : divide_blocking(parent, of_color, key, channels, late, &comm, f);
    if (child && parent->setup)
        child->setup = comm;
    else if (child)
        atomic_store(&child->comm, comm);
    if (s == TESS_OK && child)
        s = find_place(child, comm, f);
    if (s == TESS_OK && child && child->setup)
        s = make_worker(child, late, f);
    if (s) /* the others wait for this rank: they must learn of it */
        nccl_fail_locked(parent, f);
    return s;
}

/* ---- beginning and end -------------------------------------------------------------------------- */

static void say_that_it_blocks(const tess_comm *c) {
    char text[24];
    if (c->rank == 0 && c->size > 1)
        kit_log(c->settings->host, 1, "nccl",
                "NCCL %s is known to hang at random in calls that do not block; with it making communicators blocks, "
                "and a rank lost meanwhile may hold up the others (2.27 or later does not)",
                nccl_version_text(c->gpu.lib->version, text));
}

static void say_that_it_hangs(const tess_comm *c) {
    char text[24];
    if (c->rank == 0 && c->size > 1 && nccl_hangs_in_windows(c->gpu.lib->version))
        kit_log(c->settings->host, 1, "nccl",
                "NCCL %s does not end collectives in windows when a rank is lost, and the others may hang (2.29.7 or "
                "later does; TESSERA_NCCL_WINDOWS=off)",
                nccl_version_text(c->gpu.lib->version, text));
}

static tess_status found_blocking(tess_comm *c, ncclUniqueId id, tess_error *f) {
    ncclConfig_t config = config_of(c->channels, 1);
    ncclComm_t comm = NULL;
    say_that_it_blocks(c);
    ncclResult_t r = c->gpu.lib->ncclCommInitRankConfig(&comm, c->size, id, c->rank, &config);
    atomic_store(&c->comm, r == ncclSuccess ? comm : NULL);
    return r == ncclSuccess ? TESS_OK : nccl_failed(f, c->gpu.lib, r, "ncclCommInitRankConfig");
}

static tess_status make_first_comm(tess_comm *c, ncclUniqueId id, int64_t late_ns, tess_error *f) {
    ncclConfig_t config = config_of(c->channels, 0);
    if (always_blocks(c))
        return found_blocking(c, id, f);
    ncclResult_t r = c->gpu.lib->ncclCommInitRankConfig(&c->setup, c->size, id, c->rank, &config);
    if (r != ncclSuccess && r != ncclInProgress)
        c->setup = NULL;
    tess_status s = await_result(c, c->setup, r, late_ns, "ncclCommInitRankConfig", f);
    return s ? s : make_worker(c, late_ns, f);
}

tess_status nccl_found(tess_comm *c, tess_error *f) {
    int64_t late = kit_until_ns(c->timeout_ns);
    ncclUniqueId id;
    int multiprocessors;
    tess_status s = nccl_meet(c, &id, &multiprocessors, late, f);
    if (s == TESS_OK)
        s = nccl_enter(&c->gpu, f);
    if (s)
        return s;
    nccl_room_begin(c, multiprocessors);
    s = make_first_comm(c, id, late, f);
    if (s == TESS_OK && nccl_memory_shares(c))
        say_that_it_hangs(c);
    nccl_leave(&c->gpu);
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
    s = nccl_gate_leave(c, s, f);
    if (s || !c->setup)
        return s;
    ncclResult_t r = c->gpu.lib->ncclCommFinalize(c->setup);
    return await_result(c, c->setup, r, late_ns, "ncclCommFinalize", f);
}

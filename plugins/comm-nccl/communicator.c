/* SPDX-License-Identifier: BSD-3-Clause */
#include "communicator.h"

#include <stdlib.h>

/* ---- requests ----------------------------------------------------------------------------------- */

/* Makes the communicator's stream wait for the work that `after` holds now. */
static tess_status follow_stream(tess_comm *c, tess_request *r, const tess_stream *after, tess_error *f) {
    const tess_cuda *cu = c->gpu.cu;
    if (after->mem != TESS_MEM_CUDA)
        return TESS_OK;
    tess_status s = nccl_cuda_ok(cu->cuEventRecord(r->begun, (CUstream)after->handle), "cuEventRecord", f);
    return s ? s : nccl_cuda_ok(cu->cuStreamWaitEvent(c->gpu.stream, r->begun, 0), "cuStreamWaitEvent", f);
}

/* Sends announcements in the request's first group. The waiting thread or the watcher compares them when the request
 * has ended. */
static tess_status post_announcement(tess_comm *c, tess_request *r, const kit_announcement *own,
                                     struct nccl_words *words, tess_error *f) {
    *r->own = *own;
    nccl_said_note(c, own);
    CUresult result = c->gpu.cu->cuMemcpyHtoDAsync(r->own_there, r->own, sizeof *own, c->gpu.stream);
    *words = (struct nccl_words){ (void *)r->own_there, (void *)r->all_there, sizeof *own };
    return nccl_cuda_ok(result, "cuMemcpyHtoDAsync", f);
}

static tess_status fetch_announcements(tess_comm *c, tess_request *r, tess_error *f) {
    uint64_t bytes = (uint64_t)c->size * sizeof(kit_announcement);
    CUresult result = c->gpu.cu->cuMemcpyDtoHAsync(r->all, r->all_there, bytes, c->gpu.stream);
    r->compares = result == CUDA_SUCCESS;
    return nccl_cuda_ok(result, "cuMemcpyDtoHAsync", f);
}

/* NCCL's calls, which may block. */
static tess_status run_calls(tess_comm *c, const tess_collective *calls, uint32_t n, struct nccl_words *words,
                             tess_error *f) {
    struct nccl_launch launch = { .cu = c->gpu.cu,
                                  .lib = c->gpu.lib,
                                  .comm = atomic_load(&c->comm),
                                  .stream = c->gpu.stream,
                                  .sums = &c->gpu.sums,
                                  .kernels = &c->gpu.kernels,
                                  .rank = c->rank,
                                  .size = c->size,
                                  .how_sums = c->settings->sums,
                                  .words = words,
                                  .use = &c->use,
                                  .stop = &c->stop };
    tess_status s = nccl_gate_enter(c, "a collective", kit_until_ns(c->timeout_ns), f);
    return s ? s : nccl_gate_leave(c, nccl_run_calls(&launch, calls, n, f), f);
}

static tess_status queue_calls(tess_comm *c, tess_request *r, const tess_collective *calls, uint32_t n,
                               const kit_announcement *own, int announces, tess_error *f) {
    struct nccl_words words = { .own = NULL };
    tess_status s = TESS_OK;
    int compares = announces && c->size > 1;
    for (uint32_t i = 0; s == TESS_OK && i < n; i++)
        s = follow_stream(c, r, &calls[i].after, f);
    if (s == TESS_OK && compares)
        s = post_announcement(c, r, own, &words, f);
    if (s == TESS_OK)
        s = run_calls(c, calls, n, &words, f);
    if (s == TESS_OK && compares)
        s = fetch_announcements(c, r, f);
    return s ? s : nccl_cuda_ok(c->gpu.cu->cuEventRecord(r->ended, c->gpu.stream), "cuEventRecord", f);
}

/* Whether ranks disagreed, which explains why NCCL failed: others saw it first and left. */
static void explain_failure(tess_comm *c, tess_error *f) {
    tess_error mismatch = { .struct_size = sizeof mismatch, .rank = -1 };
    if (!atomic_load(&c->stop) && nccl_compare_stalled(c, &mismatch) != TESS_OK)
        *f = mismatch;
}

static tess_status queue_or_fail(tess_comm *c, tess_request *r, const tess_collective *calls, uint32_t n,
                                 const kit_announcement *own, int announces, tess_error *f) {
    enum { A_SECOND = 1000000000 };
    tess_status s = queue_calls(c, r, calls, n, own, announces, f);
    if (s == TESS_OK)
        return s;
    explain_failure(c, f);
    nccl_fail_locked(c, f);
    nccl_failure(c, f);
    nccl_wait_until_idle(c, kit_now_ns() + A_SECOND); /* no work of the post may still run when it returns */
    nccl_request_give(r);
    return f->code;
}

static tess_status post_locked(tess_comm *c, const tess_collective *calls, uint32_t n, kit_announcement *own,
                               int announces, tess_request **out, tess_error *f) {
    tess_request *r;
    tess_status s = nccl_request_take(c, &r, f);
    if (s)
        return s;
    r->seq = own->seq = c->seq++;
    s = queue_or_fail(c, r, calls, n, own, announces, f);
    if (s)
        return s;
    if (c->tail)
        c->tail->next = r;
    else
        c->head = r;
    c->tail = r;
    *out = r;
    return TESS_OK;
}

/* Whether the stream that the calls come behind is recording, which they then join. */
static tess_status find_recording(const tess_comm *c, const tess_collective *calls, uint32_t n, int *out,
                                  tess_error *f) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUstream after = n > 0 && calls->after.mem == TESS_MEM_CUDA ? (CUstream)calls->after.handle : NULL;
    CUresult r = after ? c->gpu.cu->cuStreamIsCapturing(after, &status) : CUDA_SUCCESS;
    *out = status != CU_STREAM_CAPTURE_STATUS_NONE;
    return nccl_cuda_ok(r, "cuStreamIsCapturing", f);
}

/* A recorded post runs nothing yet, so its request has no events to query and no announcements to compare. */
static tess_status post_recorded(tess_comm *c, const tess_collective *calls, uint32_t n, const kit_announcement *own,
                                 tess_request **out, tess_error *f) {
    tess_request *r;
    tess_status s = nccl_request_take(c, &r, f);
    if (s)
        return s;
    atomic_store(&c->recorded, 1);
    s = queue_or_fail(c, r, calls, n, own, 0, f);
    if (s)
        return s;
    r->recorded = 1;
    atomic_store_explicit(&r->status, TESS_OK, memory_order_release);
    *out = r;
    return TESS_OK;
}

static tess_status post_announced(tess_comm *c, const tess_collective *calls, uint32_t n, kit_announcement own,
                                  int announces, tess_request **out, tess_error *f) {
    int records = 0;
    pthread_mutex_lock(&c->lock);
    tess_status s = nccl_failure(c, f);
    if (s == TESS_OK && c->finalized)
        s = tess_plugin_fail(f, TESS_E_INVALID, "nccl: post after finalize");
    if (s == TESS_OK)
        s = nccl_enter(&c->gpu, f);
    if (s == TESS_OK) {
        s = find_recording(c, calls, n, &records, f);
        if (s == TESS_OK)
            s = records ? post_recorded(c, calls, n, &own, out, f) : post_locked(c, calls, n, &own, announces, out, f);
        nccl_leave(&c->gpu);
    }
    pthread_mutex_unlock(&c->lock);
    return s;
}

tess_status nccl_comm_post(tess_comm *c, const tess_collective *calls, uint32_t n, tess_request **out, tess_error *f) {
    enum { MOST = 64 };
    tess_collective own[MOST];
    if (n == 0 || n > MOST || calls->struct_size < offsetof(tess_collective, tag) + sizeof calls->tag)
        return tess_plugin_fail(f, TESS_E_INVALID, "nccl: %u collectives of %u bytes each, takes up to %d", n,
                                n ? calls->struct_size : 0, MOST);
    for (uint32_t i = 0; i < n; i++) {
        const char *at = (const char *)calls + (size_t)i * calls->struct_size;
        own[i] = kit_take_call((const tess_collective *)at, calls->struct_size);
        tess_status s = nccl_check(&own[i], c->rank, c->size, c->settings->sums, f);
        if (s)
            return s;
    }
    /* A barrier moves nothing but the announcements. */
    int announces = c->settings->compares;
    for (uint32_t i = 0; i < n; i++)
        announces |= own[i].op == TESS_BARRIER;
    return post_announced(c, own, n, kit_announce(own, n, 0), announces, out, f);
}

static tess_status look_at(tess_request *r, tess_error *f) {
    tess_comm *c = r->comm;
    tess_status s = atomic_load_explicit(&r->status, memory_order_acquire);
    if (s == TESS_PENDING && pthread_mutex_trylock(&c->lock) == 0) { /* if the lock is taken, a post is being queued */
        nccl_look(c);
        pthread_mutex_unlock(&c->lock);
        s = atomic_load_explicit(&r->status, memory_order_acquire);
    }
    if (s < 0)
        *f = r->failure;
    return s;
}

tess_status nccl_comm_wait(tess_request *r, int64_t timeout_ns, tess_error *f) {
    int64_t late = kit_until_ns(timeout_ns);
    for (int64_t nap_ns = 2000;; nap_ns = nap_ns < 200000 ? 2 * nap_ns : nap_ns) {
        tess_status s = look_at(r, f);
        if (s != TESS_PENDING || timeout_ns == 0)
            return s;
        if (kit_now_ns() > late)
            return tess_plugin_fail(f, TESS_E_TIMEOUT, "nccl: not done within %.3f s", (double)timeout_ns * 1e-9);
        kit_nap(nap_ns);
    }
}

tess_status nccl_comm_wait_stream(tess_request *r, const tess_stream *stream, tess_error *f) {
    tess_comm *c = r->comm;
    tess_status s = atomic_load_explicit(&r->status, memory_order_acquire);
    if (s < 0)
        *f = r->failure;
    if (s != TESS_PENDING && !r->recorded)
        return s;
    if (stream->mem != TESS_MEM_CUDA)
        return nccl_comm_wait(r, -1, f);
    s = nccl_enter(&c->gpu, f);
    if (s)
        return s;
    CUresult result = c->gpu.cu->cuStreamWaitEvent((CUstream)stream->handle, r->ended, 0);
    nccl_leave(&c->gpu);
    return nccl_cuda_ok(result, "cuStreamWaitEvent", f);
}

tess_status nccl_comm_health(tess_comm *c, tess_error *f) {
    if (pthread_mutex_trylock(&c->lock) == 0) {
        nccl_look(c);
        pthread_mutex_unlock(&c->lock);
    }
    return nccl_failure(c, f);
}

void nccl_comm_release(tess_request *r) {
    tess_comm *c = r->comm;
    pthread_mutex_lock(&c->lock);
    nccl_request_give(r);
    pthread_mutex_unlock(&c->lock);
}

/* ---- beginning and ending ----------------------------------------------------------------------- */

tess_status nccl_comm_create(const struct nccl_settings *settings, const tess_comm_config *config, tess_comm **out,
                             tess_error *f) {
    tess_comm *c = calloc(1, sizeof *c);
    if (!c)
        return tess_plugin_fail(f, TESS_E_NOMEM, "nccl: no memory");
    c->settings = settings;
    c->rank = config->rank;
    c->size = config->nranks;
    c->timeout_ns = config->timeout_ns > 0 ? config->timeout_ns : -1;
    snprintf(c->prefix, sizeof c->prefix, "%s", config->group ? config->group : "");
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->failure_lock, NULL);
    pthread_mutex_init(&c->said.lock, NULL);
    pthread_mutex_init(&c->watch_lock, NULL);
    pthread_cond_init(&c->work, NULL);
    c->index = config->device >= 0 ? config->device : config->local_rank;
    tess_status s = nccl_gpu_open(&c->gpu, c->index, f);
    if (s) {
        nccl_comm_destroy(c);
        return s;
    }
    *out = c;
    return TESS_OK;
}

/* Posts an announcement alone and waits for those of all ranks. */
static tess_status meet_in(tess_comm *c, uint32_t op, int64_t timeout_ns, tess_error *f) {
    tess_request *r;
    tess_status s = post_announced(c, NULL, 0, kit_announce_own(op, 0, 0), 1, &r, f);
    if (s)
        return s;
    s = nccl_comm_wait(r, timeout_ns, f);
    if (s == TESS_E_TIMEOUT) {
        nccl_comm_fail(c, f);
        tess_error ignored = { .struct_size = sizeof ignored };
        nccl_comm_wait(r, 1000000000, &ignored);
    }
    if (atomic_load(&r->status) != TESS_PENDING)
        nccl_comm_release(r);
    return s;
}

tess_status nccl_comm_begin(tess_comm *c, tess_error *f) {
    tess_status s = nccl_watcher_start(c, f);
    return s ? s : meet_in(c, KIT_OP_JOIN, c->timeout_ns, f);
}

tess_status nccl_comm_finalize(tess_comm *c, int64_t timeout_ns, tess_error *f) {
    int64_t late = kit_until_ns(timeout_ns);
    pthread_mutex_lock(&c->lock);
    int finalized = c->finalized;
    pthread_mutex_unlock(&c->lock);
    if (finalized)
        return TESS_OK;
    tess_status s = meet_in(c, KIT_OP_FINALIZE, timeout_ns, f);
    if (s)
        return s;
    pthread_mutex_lock(&c->lock);
    s = nccl_failure(c, f);
    if (s == TESS_OK) {
        s = nccl_dissolve(c, late, f);
        if (s)
            nccl_fail_locked(c, f);
        c->finalized = s == TESS_OK;
    }
    pthread_mutex_unlock(&c->lock);
    return s;
}

static void give_back(const tess_comm *c, ncclComm_t comm) {
    if (comm && c->gpu.lib->ncclCommDestroy(comm) != ncclSuccess)
        kit_log(c->settings->host, 1, "nccl", "ncclCommDestroy failed");
}

/* Call it in the GPU's context. It aborts communicators that were not finalized, so that it never waits for a peer. */
static void end_nccl(tess_comm *c) {
    enum { A_SECOND = 1000000000 };
    tess_error f = { .struct_size = sizeof f };
    pthread_mutex_lock(&c->lock);
    if (c->finalized) {
        give_back(c, atomic_exchange(&c->comm, NULL));
    } else {
        tess_plugin_fail(&f, TESS_E_ABORTED, "nccl: the communicator was destroyed");
        nccl_fail_locked(c, &f);
    }
    nccl_wait_until_idle(c, kit_now_ns() + A_SECOND);
    nccl_sweep(c);
    pthread_mutex_unlock(&c->lock);
}

/* Work behind an abort may wait for other work than NCCL's, and still uses the announcements. */
static void free_when_idle(tess_comm *c) {
    if (nccl_wait_until_idle(c, kit_now_ns() + NCCL_PATIENCE_NS))
        nccl_free_chunks(c);
    else
        kit_log(c->settings->host, 1, "nccl", "the GPU's work did not end after an abort: announcements are not freed");
}

void nccl_comm_destroy(tess_comm *c) {
    tess_error ignored = { .struct_size = sizeof ignored };
    if (!c)
        return;
    if (c->gpu.context && (nccl_enter(&c->gpu, &ignored) == TESS_OK || nccl_enter(&c->gpu, &ignored) == TESS_OK)) {
        end_nccl(c);
        nccl_watcher_stop(c);
        nccl_abort_join(c);
        free_when_idle(c);
        nccl_leave(&c->gpu);
    } else {
        nccl_watcher_stop(c);
        nccl_abort_join(c);
    }
    nccl_gpu_close(&c->gpu);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->failure_lock);
    pthread_mutex_destroy(&c->said.lock);
    pthread_mutex_destroy(&c->watch_lock);
    pthread_cond_destroy(&c->work);
    free(c);
}

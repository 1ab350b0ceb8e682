/* SPDX-License-Identifier: BSD-3-Clause */
/* A stream's work, recorded once as a CUDA graph and run again by one call. */
#include "batch.h"

static tess_graph *find_free(tess_device *d) {
    for (int i = 0; i < CUDA_GRAPHS; i++)
        if (!d->graphs[i].exec)
            return &d->graphs[i];
    return NULL;
}

/* Capture restricts this thread alone, so other threads, such as those of collectives, may still make calls that it
 * forbids. */
tess_status cuda_record_begin(tess_device *d, const tess_stream *stream, tess_error *error) {
    tess_status s = cuda_enter(d, error);
    if (s)
        return s;
    CUresult r = cuda_batch_flush(d);
    r = r ? r : d->cu->cuStreamBeginCapture((CUstream)stream->handle, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    cuda_leave(d);
    return r ? cuda_failed(d, r, "recording", error) : TESS_OK;
}

/* Without the flag all nodes have the priority of the stream that the graph is launched into: computation, the least.
 */
static CUresult end(tess_device *d, CUstream stream, CUgraphExec *exec) {
    CUgraph graph = NULL;
    CUresult flushed = cuda_batch_flush(d), r = d->cu->cuStreamEndCapture(stream, &graph);
    r = r ? r : flushed;
    if (r == CUDA_SUCCESS && exec)
        r = d->cu->cuGraphInstantiate(exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
    if (graph)
        d->cu->cuGraphDestroy(graph);
    return r;
}

tess_status cuda_record_end(tess_device *d, const tess_stream *stream, tess_graph **out, tess_error *error) {
    CUgraphExec exec = NULL;
    tess_graph *g = out ? find_free(d) : NULL;
    tess_status s = cuda_enter(d, error);
    if (s)
        return s;
    CUresult r = end(d, (CUstream)stream->handle, g ? &exec : NULL);
    cuda_leave(d);
    if (!out)
        return TESS_OK;
    if (r)
        return cuda_failed(d, r, "what was recorded", error);
    if (!g)
        return tess_plugin_fail(error, TESS_E_NOMEM, "device cuda: more than %d graphs", CUDA_GRAPHS);
    *g = (tess_graph){ d, exec };
    *out = g;
    return TESS_OK;
}

tess_status cuda_graph_run(tess_graph *g, const tess_stream *stream, tess_error *error) {
    tess_device *d = g->device;
    tess_status s = cuda_enter(d, error);
    if (s)
        return s;
    CUresult r = cuda_batch_flush(d);
    r = r ? r : d->cu->cuGraphLaunch(g->exec, (CUstream)stream->handle);
    cuda_leave(d);
    return r ? cuda_failed(d, r, "running what was recorded", error) : TESS_OK;
}

void cuda_graph_destroy(tess_graph *g) {
    if (!g)
        return;
    if (cuda_enter(g->device, NULL) == TESS_OK) {
        g->device->cu->cuGraphExecDestroy(g->exec);
        cuda_leave(g->device);
    }
    g->exec = NULL;
}

tess_status cuda_optimizer_prepare(void *ctx, const tess_optimizer *o, void *out) {
    char *to = out;
    (void)ctx;
    if (!o->step || (o->n_segments && !o->segments))
        return TESS_E_INVALID;
    for (uint32_t i = 0; i < o->n_segments; i++) {
        tess_step_constants c;
        tess_step_prepare(o, TESS_AT(o->segments, i), &c);
        memset(to, 0, TESS_PREPARED_BYTES);
        memcpy(to, &c, sizeof c);
        to += TESS_PREPARED_BYTES;
    }
    return TESS_OK;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Streams that record what is put into them, and graphs made of it. One stream to a recording: work that another one
 * would join is refused. As with the real driver, what a recording cannot hold breaks it, and its end then fails. */
#include "driver.h"

#include <string.h>
#include <sys/mman.h>

typedef struct node {
    struct node *next;
    double_work_fn run;
    size_t bytes;
    int always, touches;
    unsigned char data[DOUBLE_WORK_BYTES] __attribute__((aligned(16)));
} node;

struct double_graph {
    double_graph *next; /* among all that are known */
    node *first, *last;
    int is_exec;
};

typedef struct capture {
    struct capture *next;
    double_stream *stream;
    double_graph *graph;
    pthread_t thread;
    int mode, broken;
} capture;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static capture *captures;
static double_graph *graphs;

/* ---- recordings ------------------------------------------------------------------------------------ */

static capture *capture_of(const double_stream *s) {
    capture *c = captures;
    while (c && c->stream != s)
        c = c->next;
    return c;
}

static void drop_nodes(double_graph *g) {
    for (node *n = g->first, *next; n; n = next) {
        next = n->next;
        double__unmap(n, sizeof *n);
    }
}

static int add_node(double_graph *g, const node *of) {
    node *n = double__map(sizeof *n, PROT_READ | PROT_WRITE);
    if (!n)
        return -1;
    memcpy(n, of, offsetof(node, data) + of->bytes);
    n->next = NULL;
    if (g->last)
        g->last->next = n;
    else
        g->first = n;
    g->last = n;
    return 0;
}

int double__record(double_stream *s, double_work_fn run, const void *data, size_t bytes, int always, int touches) {
    pthread_mutex_lock(&lock);
    capture *c = capture_of(s);
    if (c && !c->broken) {
        node n = { .run = run, .bytes = bytes, .always = always, .touches = touches };
        if (bytes)
            memcpy(n.data, data, bytes);
        c->broken = add_node(c->graph, &n) != 0;
    }
    pthread_mutex_unlock(&lock);
    return c != NULL;
}

int double__is_recording(const double_stream *s) {
    pthread_mutex_lock(&lock);
    capture *c = capture_of(s);
    pthread_mutex_unlock(&lock);
    return c != NULL;
}

CUresult double__break(double_stream *s, CUresult with) {
    pthread_mutex_lock(&lock);
    capture *c = capture_of(s);
    if (c)
        c->broken = 1;
    pthread_mutex_unlock(&lock);
    return with;
}

CUresult double__unsafe(void) {
    CUresult r = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (capture *c = captures; c; c = c->next)
        if (c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
            (c->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && pthread_equal(c->thread, pthread_self()))) {
            c->broken = 1;
            r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    pthread_mutex_unlock(&lock);
    return r;
}

CUresult double__stream_takes(double_stream *s) {
    CUresult r = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    capture *c = capture_of(s);
    if (c && c->broken)
        r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    for (c = s == double__null_stream(double__stream_device(s)) ? captures : NULL; c; c = c->next)
        if (double__stream_device(c->stream) == double__stream_device(s) && double__stream_blocks(c->stream)) {
            c->broken = 1;
            r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    pthread_mutex_unlock(&lock);
    return r;
}

#undef cuStreamBeginCapture
DOUBLE_API CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    ENTER_CONTEXT("cuStreamBeginCapture", CUDA_ERROR_UNKNOWN);
    double_stream *s = double__stream_of(handle);
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    if (s == double__null_stream(double__stream_device(s)))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (double__is_recording(s) || (unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    capture *c = double__map(sizeof *c, PROT_READ | PROT_WRITE);
    double_graph *g = double__map(sizeof *g, PROT_READ | PROT_WRITE);
    if (!c || !g)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *c = (capture){ .stream = s, .graph = g, .thread = pthread_self(), .mode = (int)mode };
    pthread_mutex_lock(&lock);
    c->next = captures;
    captures = c;
    pthread_mutex_unlock(&lock);
    double__live("recordings", 1);
    return CUDA_SUCCESS;
}

static void know(double_graph *g) {
    pthread_mutex_lock(&lock);
    g->next = graphs;
    graphs = g;
    pthread_mutex_unlock(&lock);
    double__live(g->is_exec ? "graphs that can be launched" : "graphs", 1);
}

static capture *take_off(const double_stream *s, CUresult *r) {
    pthread_mutex_lock(&lock);
    capture **at = &captures;
    while (*at && (*at)->stream != s)
        at = &(*at)->next;
    capture *c = *at;
    if (!c)
        *r = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    else if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(c->thread, pthread_self()))
        *r = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, c = NULL;
    else
        *at = c->next;
    pthread_mutex_unlock(&lock);
    return c;
}

/* Ends the recording even when asked to fail. */
DOUBLE_API CUresult cuStreamEndCapture(CUstream handle, CUgraph *out) {
    CUresult entered = double__enter_context("cuStreamEndCapture", CUDA_ERROR_UNKNOWN), r = CUDA_SUCCESS;
    double_stream *s = double__stream_of(handle);
    capture *c = s ? take_off(s, &r) : NULL;
    *out = NULL;
    if (!c)
        return s ? r : CUDA_ERROR_INVALID_HANDLE;
    double_graph *g = c->graph;
    if (c->broken || entered != CUDA_SUCCESS) {
        drop_nodes(g);
        double__unmap(g, sizeof *g);
        r = c->broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : entered;
    } else {
        know(g);
        *out = (CUgraph)(void *)g;
    }
    double__unmap(c, sizeof *c);
    double__live("recordings", -1);
    return r;
}

/* ---- graphs -------------------------------------------------------------------------------------------- */

static double_graph *known(const void *handle, int is_exec) {
    pthread_mutex_lock(&lock);
    double_graph *g = graphs;
    while (g && (g != handle || g->is_exec != is_exec))
        g = g->next;
    pthread_mutex_unlock(&lock);
    return g;
}

static CUresult destroy(void *handle, int is_exec) {
    double_graph *g = known(handle, is_exec);
    if (!g)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    double_graph **at = &graphs;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    pthread_mutex_unlock(&lock);
    drop_nodes(g);
    double__unmap(g, sizeof *g);
    double__live(is_exec ? "graphs that can be launched" : "graphs", -1);
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph handle, unsigned long long flags) {
    ENTER_CONTEXT("cuGraphInstantiate", CUDA_ERROR_OUT_OF_MEMORY);
    double_graph *of = known(handle, 0);
    if (!of)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags)
        return CUDA_ERROR_NOT_SUPPORTED;
    double_graph *g = double__map(sizeof *g, PROT_READ | PROT_WRITE);
    int failed = !g;
    for (const node *n = of->first; n && !failed; n = n->next)
        failed = add_node(g, n) != 0;
    if (failed)
        return CUDA_ERROR_OUT_OF_MEMORY;
    g->is_exec = 1;
    know(g);
    *out = (CUgraphExec)(void *)g;
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
    ENTER_CONTEXT("cuGraphLaunch", CUDA_ERROR_LAUNCH_FAILED);
    const double_graph *g = known(handle, 1);
    double_stream *s = double__stream_of(stream);
    if (!g || !s)
        return CUDA_ERROR_INVALID_HANDLE;
    if (double__is_recording(s))
        return double__break(s, CUDA_ERROR_NOT_SUPPORTED); /* a graph within a graph */
    for (const node *n = g->first; n; n = n->next)
        double__push_as(s, n->run, n->data, n->bytes, n->always, n->touches);
    return CUDA_SUCCESS;
}

/* Both give back even when asked to fail. */
DOUBLE_API CUresult cuGraphExecDestroy(CUgraphExec handle) {
    CUresult entered = double__enter_context("cuGraphExecDestroy", CUDA_ERROR_UNKNOWN), r = destroy(handle, 1);
    return r ? r : entered;
}

DOUBLE_API CUresult cuGraphDestroy(CUgraph handle) {
    CUresult entered = double__enter_context("cuGraphDestroy", CUDA_ERROR_UNKNOWN), r = destroy(handle, 0);
    return r ? r : entered;
}

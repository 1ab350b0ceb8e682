/* SPDX-License-Identifier: BSD-3-Clause */
/* Streams that record what is put into them, and graphs made of it. A stream that waits for an event of a recording
 * joins it, and must be waited for before the end. As with the real driver, what a recording cannot hold breaks it, and
 * its end then fails. A graph's streams run beside each other: nothing but what was recorded orders them. */
#include "driver.h"

#include <string.h>
#include <sys/mman.h>

enum { STREAMS = 16, WORK = 0, MARK, WAIT };

typedef struct node {
    struct node *next;
    int kind, stream; /* stream: its number in the recording */
    uint64_t mark;    /* MARK: its number, of all that there ever were; WAIT: of the one that is waited for */
    double_work_fn run;
    const double_recorded *ops; /* of work that is more than bytes; null: none */
    size_t bytes;
    int always, touches;
    unsigned char
        points[DOUBLE_WORK_BYTES / sizeof(void *) / 8]; /* by word of `data`: it is an address of the device's */
    unsigned char data[DOUBLE_WORK_BYTES] __attribute__((aligned(16)));
} node;

struct double_graph {
    double_graph *next; /* among all that are known */
    node *first, *last;
    int is_exec, n_streams;
    int priority[STREAMS]; /* of the streams that were recorded */
    int by_node;           /* launched, each stream's work has the recorded priority; else that of the launch's */
    double_stream *streams[STREAMS]; /* of a graph that can be launched: its own, but for the first */
    double_stream *launched;         /* into which it was launched last, and how far that must come */
    uint64_t launched_seq;
};

typedef struct capture {
    struct capture *next;
    double_stream *streams[STREAMS]; /* it began in the first */
    double_graph *graph;
    pthread_t thread;
    int mode, broken;
} capture;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static capture *captures;
static double_graph *graphs;
static uint64_t marks;

/* ---- recordings ------------------------------------------------------------------------------------ */

static int number_of(const capture *c, const double_stream *s) {
    for (int i = 0; i < c->graph->n_streams; i++)
        if (c->streams[i] == s)
            return i;
    return -1;
}

static capture *capture_of(const double_stream *s) {
    capture *c = captures;
    while (c && number_of(c, s) < 0)
        c = c->next;
    return c;
}

static void drop_nodes(double_graph *g) {
    for (node *n = g->first, *next; n; n = next) {
        next = n->next;
        if (n->ops)
            n->ops->drop(n->data);
        double__unmap(n, sizeof *n);
    }
}

static int add_node(double_graph *g, const node *of) {
    node *n = double__map(sizeof *n, PROT_READ | PROT_WRITE);
    if (!n)
        return -1;
    memcpy(n, of, offsetof(node, data) + of->bytes);
    if (n->ops)
        n->ops->keep(n->data);
    n->next = NULL;
    if (g->last)
        g->last->next = n;
    else
        g->first = n;
    g->last = n;
    return 0;
}

/* Just behind the end of what lies there counts, too. */
static int points(const unsigned char *at) {
    char *word;
    double_piece piece;
    memcpy(&word, at, sizeof word);
    return double__is_device(word) && (double__piece_of(word, &piece) || double__piece_of(word - 1, &piece));
}

static void note_pointers(node *n) {
    for (size_t at = 0; !n->ops && at + sizeof(void *) <= n->bytes; at += sizeof(void *))
        n->points[at / sizeof(void *) / 8] |= (unsigned char)(points(n->data + at) << at / sizeof(void *) % 8);
}

static int record(double_stream *s, node *n, const void *data) {
    pthread_mutex_lock(&lock);
    capture *c = capture_of(s);
    if (c && !c->broken) {
        n->stream = number_of(c, s);
        if (n->bytes)
            memcpy(n->data, data, n->bytes);
        note_pointers(n);
        c->broken = add_node(c->graph, n) != 0;
    }
    pthread_mutex_unlock(&lock);
    return c != NULL;
}

int double__record(double_stream *s, double_work_fn run, const void *data, size_t bytes, int always, int touches) {
    node n = { .run = run, .bytes = bytes, .always = always, .touches = touches };
    return record(s, &n, data);
}

int double__record_as(double_stream *s, const double_recorded *ops, const void *data, size_t bytes) {
    node n = { .ops = ops, .bytes = bytes };
    return record(s, &n, data);
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

static int has_blocking(const capture *c) {
    for (int i = 0; i < c->graph->n_streams; i++)
        if (double__stream_blocks(c->streams[i]))
            return 1;
    return 0;
}

CUresult double__stream_takes(double_stream *s) {
    CUresult r = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    capture *c = capture_of(s);
    if (c && c->broken)
        r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    for (c = s == double__null_stream(double__stream_device(s)) ? captures : NULL; c; c = c->next)
        if (double__stream_device(c->streams[0]) == double__stream_device(s) && has_blocking(c)) {
            c->broken = 1;
            r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    pthread_mutex_unlock(&lock);
    return r;
}

/* ---- events of a recording --------------------------------------------------------------------------- */

uint64_t double__record_mark(double_stream *s) {
    node n = { .kind = MARK };
    pthread_mutex_lock(&lock);
    n.mark = ++marks;
    pthread_mutex_unlock(&lock);
    return record(s, &n, NULL) ? n.mark : 0;
}

static capture *capture_with(uint64_t mark) {
    for (capture *c = captures; c; c = c->next)
        for (const node *n = c->graph->first; n; n = n->next)
            if (n->kind == MARK && n->mark == mark)
                return c;
    return NULL;
}

/* With the lock. */
static CUresult join(capture *c, double_stream *s, uint64_t mark) {
    node n = { .kind = WAIT, .mark = mark, .stream = number_of(c, s) };
    if (s == double__null_stream(double__stream_device(s)) ||
        double__stream_device(s) != double__stream_device(c->streams[0]))
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (n.stream < 0 && c->graph->n_streams == STREAMS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (n.stream < 0) {
        n.stream = c->graph->n_streams;
        c->graph->priority[n.stream] = double__stream_priority(s);
        c->streams[c->graph->n_streams++] = s;
    }
    c->broken |= add_node(c->graph, &n) != 0;
    return CUDA_SUCCESS;
}

CUresult double__record_wait(double_stream *s, uint64_t mark) {
    pthread_mutex_lock(&lock);
    capture *own = capture_of(s), *c = mark ? capture_with(mark) : NULL;
    CUresult r = CUDA_SUCCESS;
    if (own && own != c) /* of work that the recording does not hold */
        r = c ? CUDA_ERROR_STREAM_CAPTURE_MERGE : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    else if (!c)
        r = mark ? CUDA_ERROR_CAPTURED_EVENT : CUDA_ERROR_NOT_READY; /* the latter: nothing to do with recordings */
    else
        r = c->broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : join(c, s, mark);
    if (own && r != CUDA_SUCCESS)
        own->broken = 1;
    if (c && r != CUDA_SUCCESS)
        c->broken = 1;
    pthread_mutex_unlock(&lock);
    return r;
}

static uint64_t count_nodes(const double_graph *g) {
    uint64_t n = 0;
    for (const node *at = g->first; at; at = at->next)
        n++;
    return n;
}

/* Whether the first stream comes behind all that was recorded in the others. */
static int is_joined(const double_graph *g) {
    uint64_t n = count_nodes(g), behind[STREAMS] = { n }; /* by stream: it waits for this many of all nodes */
    const node **all = n ? double__map(n * sizeof *all, PROT_READ | PROT_WRITE) : NULL;
    int joined = !n || all != NULL;
    n = 0;
    for (const node *at = g->first; all && at; at = at->next)
        all[n++] = at;
    for (uint64_t i = n; joined && i-- > 0;) {
        if (i >= behind[all[i]->stream] && all[i]->kind != MARK)
            joined = 0;
        for (uint64_t k = i; all[i]->kind == WAIT && i < behind[all[i]->stream] && k-- > 0;)
            if (all[k]->kind == MARK && all[k]->mark == all[i]->mark && behind[all[k]->stream] < k)
                behind[all[k]->stream] = k;
    }
    if (all)
        double__unmap(all, count_nodes(g) * sizeof *all);
    return joined;
}

DOUBLE_API CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *out) {
    ENTER_CONTEXT("cuStreamIsCapturing", CUDA_ERROR_UNKNOWN);
    double_stream *s = double__stream_of(handle);
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    const capture *c = capture_of(s);
    *out = !c          ? CU_STREAM_CAPTURE_STATUS_NONE
           : c->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
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
    *c = (capture){ .streams = { s }, .graph = g, .thread = pthread_self(), .mode = (int)mode };
    g->n_streams = 1;
    g->priority[0] = double__stream_priority(s);
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
    while (*at && (*at)->streams[0] != s)
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
    r = c->broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : is_joined(g) ? entered : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (r != CUDA_SUCCESS) {
        drop_nodes(g);
        double__unmap(g, sizeof *g);
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

static void end_streams(double_graph *g) {
    for (int i = 1; g->is_exec && i < g->n_streams; i++)
        if (g->streams[i])
            double__stream_end(g->streams[i]);
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
    if (g->launched && double__stream_known(g->launched) && !double__stream_has_passed(g->launched, g->launched_seq))
        double__spoil(double__stream_device(g->launched), -1); /* it runs */
    drop_nodes(g);
    end_streams(g);
    double__unmap(g, sizeof *g);
    double__live(is_exec ? "graphs that can be launched" : "graphs", -1);
    return CUDA_SUCCESS;
}

static int copy_graph(double_graph *g, const double_graph *of) {
    g->is_exec = 1;
    g->n_streams = of->n_streams;
    memcpy(g->priority, of->priority, sizeof g->priority);
    for (const node *n = of->first; n; n = n->next)
        if (add_node(g, n))
            return -1;
    for (int i = 1; i < g->n_streams; i++)
        if (!(g->streams[i] = double__stream_new(double__current_device(), 0, g->priority[i])))
            return -1;
    return 0;
}

DOUBLE_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph handle, unsigned long long flags) {
    ENTER_CONTEXT("cuGraphInstantiate", CUDA_ERROR_OUT_OF_MEMORY);
    double_graph *of = known(handle, 0);
    if (!of)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags & ~(unsigned long long)CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)
        return CUDA_ERROR_NOT_SUPPORTED;
    double_graph *g = double__map(sizeof *g, PROT_READ | PROT_WRITE);
    if (!g || copy_graph(g, of))
        return CUDA_ERROR_OUT_OF_MEMORY;
    g->by_node = flags != 0;
    know(g);
    *out = (CUgraphExec)(void *)g;
    return CUDA_SUCCESS;
}

/* What pointed into memory of the device when it was recorded must do so at the launch. */
static int is_stale(const node *n) {
    for (size_t at = 0; at + sizeof(void *) <= n->bytes; at += sizeof(void *))
        if (n->points[at / sizeof(void *) / 8] >> at / sizeof(void *) % 8 & 1 && !points(n->data + at))
            return 1;
    return 0;
}

struct passed { /* a mark of a graph that is being launched */
    uint64_t mark, seq;
    double_stream *stream;
};

static void put(const node *n, double_stream *s, struct passed *all, int *n_marks) {
    if (n->kind == MARK) {
        all[(*n_marks)++] = (struct passed){ n->mark, double__stream_queued(s), s };
    } else if (n->kind == WAIT) {
        for (int i = 0; i < *n_marks; i++)
            if (all[i].mark == n->mark)
                double__stream_follow(s, all[i].stream, all[i].seq);
    } else if (n->ops) {
        n->ops->launch(s, n->data);
    } else {
        double__push_as(s, n->run, n->data, n->bytes, n->always, n->touches);
    }
}

static void nothing(void *data) {
    (void)data;
}

/* The graph's own streams begin where the launch's is, and that goes on where they end. */
static void fork_and_join(const double_graph *g, double_stream *s, int fork) {
    if (g->n_streams > 1 && fork)
        double__push_mark(s, nothing, NULL, 0); /* behind the null stream, as any work */
    for (int i = 1; i < g->n_streams; i++) {
        double_stream *from = fork ? s : g->streams[i], *to = fork ? g->streams[i] : s;
        double__stream_follow(to, from, double__stream_queued(from));
    }
}

/* Without the flag all work of a launch has the priority of the stream that it is launched into. */
static void set_priorities(const double_graph *g, const double_stream *s) {
    for (int i = 1; i < g->n_streams; i++)
        double__stream_prefer(g->streams[i], g->by_node ? g->priority[i] : double__stream_priority(s));
}

static CUresult run_graph(double_graph *g, double_stream *s) {
    uint64_t bytes = (count_nodes(g) + 1) * sizeof(struct passed);
    struct passed *all = double__map(bytes, PROT_READ | PROT_WRITE);
    int n_marks = 0;
    if (!all)
        return CUDA_ERROR_OUT_OF_MEMORY;
    set_priorities(g, s);
    fork_and_join(g, s, 1);
    for (const node *n = g->first; n; n = n->next) {
        if (is_stale(n))
            double__spoil(double__stream_device(s), -1);
        if (n->kind == WORK && n->stream && double__stream_priority(g->streams[n->stream]) != g->priority[n->stream])
            double__fails("nodes-of-another-priority"); /* counts */
        put(n, n->stream ? g->streams[n->stream] : s, all, &n_marks);
    }
    fork_and_join(g, s, 0);
    g->launched = s;
    g->launched_seq = double__stream_queued(s);
    double__unmap(all, bytes);
    return CUDA_SUCCESS;
}

DOUBLE_API CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
    ENTER_CONTEXT("cuGraphLaunch", CUDA_ERROR_LAUNCH_FAILED);
    double_graph *g = known(handle, 1);
    double_stream *s = double__stream_of(stream);
    if (!g || !s)
        return CUDA_ERROR_INVALID_HANDLE;
    if (double__is_recording(s))
        return double__break(s, CUDA_ERROR_NOT_SUPPORTED); /* a graph within a graph */
    return run_graph(g, s);
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

/* SPDX-License-Identifier: BSD-3-Clause */
/* A device with real queues, over the core's cpu device: each stream is a thread that does one thing after another. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "core/builtin/device_cpu.h"
#include "faulty.h"

FAULTY_NOTE(TESS_KIND_DEVICE);

static const tess_device_ops *cpu;
static tess_device_ops ops;

typedef struct work {
    struct work *next;
    tess_device *device;
    void *dst;
    const void *src; /* null: fill */
    uint8_t byte;
    uint64_t bytes;
    struct tess_event *event; /* record, or with `wait` wait for it */
    int wait;
    unsigned turn;
} work;
typedef struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    work *first, **last;
    int stop, busy;
} queue;
struct tess_event {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned recorded, passed;
};

static void pass(tess_event *e, unsigned turn) {
    pthread_mutex_lock(&e->lock);
    if ((int)(turn - e->passed) > 0)
        e->passed = turn;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static int wait_for(tess_event *e, unsigned turn, const struct timespec *late) {
    int gone = 0;
    pthread_mutex_lock(&e->lock);
    while ((int)(turn - e->passed) > 0 && !gone)
        gone = late ? pthread_cond_timedwait(&e->changed, &e->lock, late) : pthread_cond_wait(&e->changed, &e->lock);
    int passed = (int)(turn - e->passed) <= 0;
    pthread_mutex_unlock(&e->lock);
    return passed;
}

static void do_work(const work *w) {
    if (w->event && w->wait)
        wait_for(w->event, w->turn, NULL);
    else if (w->event)
        pass(w->event, w->turn);
    else if (w->src)
        memcpy(w->dst, w->src, w->bytes);
    else
        memset(w->dst, w->byte, w->bytes);
}

static void *serve(void *arg) {
    queue *q = arg;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (!q->first && !q->stop)
            pthread_cond_wait(&q->changed, &q->lock);
        if (!q->first)
            break;
        work *w = q->first;
        q->first = w->next;
        if (!q->first)
            q->last = &q->first;
        q->busy = 1;
        pthread_mutex_unlock(&q->lock);
        nanosleep(&(struct timespec){ 0, 2000000 }, NULL); /* so that what does not wait is seen */
        do_work(w);
        free(w);
        pthread_mutex_lock(&q->lock);
        q->busy = 0;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static void push(const tess_stream *stream, work w) {
    queue *q = stream->handle;
    work *mine = malloc(sizeof *mine);
    *mine = w;
    pthread_mutex_lock(&q->lock);
    *q->last = mine;
    q->last = &mine->next;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

static void drain(const tess_stream *stream) {
    queue *q = stream->handle;
    pthread_mutex_lock(&q->lock);
    while (q->first || q->busy)
        pthread_cond_wait(&q->changed, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

static tess_status stream_create(tess_device *d, uint32_t role, tess_stream *out, tess_error *e) {
    queue *q = calloc(1, sizeof *q);
    (void)d, (void)role, (void)e;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    q->last = &q->first;
    pthread_create(&q->thread, NULL, serve, q);
    *out = (tess_stream){ .mem = TESS_MEM_HOST, .handle = q };
    return TESS_OK;
}

static void stream_destroy(tess_device *d, tess_stream *stream) {
    queue *q = stream->handle;
    (void)d;
    pthread_mutex_lock(&q->lock);
    q->stop = 1;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    free(q);
}

static tess_status event_create(tess_device *d, tess_event **out, tess_error *e) {
    tess_event *x = calloc(1, sizeof *x);
    (void)d, (void)e;
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->changed, NULL);
    *out = x;
    return TESS_OK;
}

static void event_destroy(tess_event *x) {
    free(x);
}

static tess_status event_record(tess_event *x, const tess_stream *stream, tess_error *e) {
    (void)e;
    push(stream, (work){ .event = x, .turn = ++x->recorded });
    return TESS_OK;
}

static tess_status event_stream_wait(tess_event *x, const tess_stream *stream, tess_error *e) {
    (void)e;
#ifndef FAULT_STREAM_WAIT_NOTHING
    push(stream, (work){ .event = x, .wait = 1, .turn = x->recorded });
#endif
    (void)x, (void)stream;
    return TESS_OK;
}

static tess_status event_wait(tess_event *x, int64_t timeout_ns, tess_error *e) {
    struct timespec late;
    clock_gettime(CLOCK_REALTIME, &late);
    late.tv_sec += timeout_ns / 1000000000;
#ifdef FAULT_EVENT_NOTHING
    return TESS_OK;
#endif
    if (wait_for(x, x->recorded, timeout_ns < 0 ? NULL : &late))
        return TESS_OK;
    return timeout_ns ? failed(e, TESS_E_TIMEOUT, "not yet") : TESS_PENDING;
}

static tess_status copy(tess_device *d, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem, uint64_t bytes,
                        const tess_stream *stream, tess_error *e) {
    if (dst_mem > TESS_MEM_PINNED || src_mem > TESS_MEM_PINNED)
        return cpu->copy(d, dst, dst_mem, src, src_mem, bytes, stream, e);
#ifdef FAULT_COPY_SHORT
    bytes = bytes > 4096 ? bytes / 64 * 64 : bytes;
#endif
    if (bytes)
        push(stream, (work){ .dst = dst, .src = src, .bytes = bytes });
    return TESS_OK;
}

static tess_status fill(tess_device *d, void *dst, uint8_t byte, uint64_t bytes, const tess_stream *stream,
                        tess_error *e) {
    (void)d, (void)e;
#ifdef FAULT_FILL_LONG
    bytes = (bytes + 7) / 8 * 8;
#endif
    if (bytes)
        push(stream, (work){ .dst = dst, .byte = byte, .bytes = bytes });
    return TESS_OK;
}

static tess_status kernel(tess_device *d, const tess_kernel *k, const tess_stream *stream, tess_error *e) {
    tess_kernel mine = *k;
    drain(stream);
#ifdef FAULT_SUM_ORDER
    const void *in[32];
    for (uint32_t i = 0; k->kernel == TESS_K_TREE_SUM && i < k->n_in && i < 32; i++)
        in[i] = k->in[k->n_in - 1 - i];
    if (k->kernel == TESS_K_TREE_SUM && k->n_in <= 32 && !(k->flags & TESS_KERNEL_CHAIN))
        mine.in = in;
#endif
#ifdef FAULT_NO_WEIGHT_DECAY
    tess_optimizer o;
    tess_segment s[8];
    if (k->kernel == TESS_K_OPTIMIZER && k->optimizer->n_segments <= 8) {
        o = *k->optimizer;
        memcpy(s, o.segments, o.n_segments * sizeof *s);
        for (uint32_t i = 0; i < o.n_segments; i++)
            s[i].weight_decay = 0;
        o.segments = s;
        mine.optimizer = &o;
    }
#endif
    return cpu->kernel(d, &mine, stream, e);
}

static tess_status create(void *ctx, int32_t index, uint64_t capacity_bytes, tess_device **out, tess_error *e) {
#ifdef FAULT_NO_CAPACITY
    capacity_bytes = 0;
#endif
    return cpu->create(ctx, index, capacity_bytes, out, e);
}

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *e) {
    const void *table = NULL;
    if (kind != TESS_KIND_DEVICE)
        return failed(e, TESS_E_UNSUPPORTED, "faulty offers device only");
    take_at_open(host);
    tess_status s = tess__device_cpu_open(host, &table, ctx, e);
    if (s < 0)
        return s;
    cpu = table;
    ops = *cpu;
    ops.create = create;
    ops.stream_create = stream_create;
    ops.stream_import = NULL;
    ops.stream_destroy = stream_destroy;
    ops.event_create = event_create;
    ops.event_destroy = event_destroy;
    ops.event_record = event_record;
    ops.event_stream_wait = event_stream_wait;
    ops.event_wait = event_wait;
    ops.event_elapsed_ns = NULL;
    ops.copy = copy;
    ops.fill = fill;
    ops.kernel = kernel;
    *out = &ops;
    return TESS_OK;
}

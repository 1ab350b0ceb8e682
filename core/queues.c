#include "engine.h"

#include "status.h"
#include "try.h"

static tess_status failed(const tess *t, tess_status s, const tess_error *e) {
    return s ? tess__plugin_failed(s, TESS_KIND_DEVICE, t->plugins[TESS_KIND_DEVICE], e) : TESS_OK;
}

#define CALL(t, slot, ...)                                                                                             \
    do {                                                                                                               \
        tess_error call_error = { .struct_size = sizeof call_error };                                                  \
        TRY(failed(t, (t)->dev->slot(__VA_ARGS__, &call_error), &call_error));                                         \
    } while (0)

/* ---- making and giving back ---- */

tess_status tess__queues_start(tess *t) {
    tess__queues *q = &t->queues;
    tess_comm_caps caps = { .struct_size = sizeof caps };
    if (t->setup.env.mem == TESS_MEM_HOST || !TESS_CAN(tess_device_ops, t->dev, stream_create))
        return TESS_OK;
    q->on = 1;
    q->comm_waits = t->comm->query(t->setup.comm_ctx, NULL, &caps) == TESS_OK &&
                    (caps.caps & TESS_COMM_STREAM_ORDERED) && TESS_CAN(tess_comm_ops, t->comm, wait_stream);
    CALL(t, event_create, t->device, &q->reached);
    CALL(t, event_create, t->device, &q->synced);
    CALL(t, event_create, t->device, &q->batch_taken);
    return TESS_OK;
}

static tess_status make(tess *t, tess__queue *q, uint32_t role) {
    CALL(t, stream_create, t->device, role, &q->stream);
    for (int i = 0; i < TESS__QUEUE_EVENTS; i++)
        CALL(t, event_create, t->device, &q->events[i]);
    return TESS_OK;
}

tess_status tess__queues_moves(tess *t) {
    TRY(make(t, &t->queues.up, TESS_STREAM_UP));
    return make(t, &t->queues.down, TESS_STREAM_DOWN);
}

static void give_back(tess *t, tess__queue *q) {
    for (int i = 0; i < TESS__QUEUE_EVENTS; i++)
        if (q->events[i])
            t->dev->event_destroy(q->events[i]);
    if (q->stream.handle)
        t->dev->stream_destroy(t->device, &q->stream);
}

void tess__queues_end(tess *t) {
    tess__queues *q = &t->queues;
    tess_event *events[] = { q->reached, q->synced, q->batch_taken };
    if (!q->on)
        return;
    for (int i = 0; i < 3; i++)
        if (events[i])
            t->dev->event_destroy(events[i]);
    give_back(t, &q->up);
    give_back(t, &q->down);
    *q = (tess__queues){ .on = 0 };
}

/* ---- transfers ---- */

static tess_status begin(tess *t, const tess__queue *q) {
    CALL(t, event_record, t->queues.reached, &t->compute);
    CALL(t, event_stream_wait, t->queues.reached, &q->stream);
    return TESS_OK;
}

static tess_status end(tess *t, tess__queue *q) {
    uint64_t ticket = q->posted + 1;
    CALL(t, event_record, q->events[ticket % TESS__QUEUE_EVENTS], &q->stream);
    q->posted = ticket;
    return TESS_OK;
}

static tess_status kernel(tess *t, tess__queue *q, tess_kernel *k) {
    k->struct_size = sizeof *k;
    TRY(begin(t, q));
    CALL(t, kernel, t->device, k, &q->stream);
    return end(t, q);
}

tess_status tess__queue_up(void *engine, tess_kernel *k) {
    tess *t = engine;
    return kernel(t, &t->queues.up, k);
}

tess_status tess__queue_down(void *engine, tess_kernel *k) {
    tess *t = engine;
    return kernel(t, &t->queues.down, k);
}

tess_status tess__queue_copy(tess *t, tess__queue *q, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem,
                             uint64_t bytes) {
    TRY(begin(t, q));
    CALL(t, copy, t->device, dst, dst_mem, src, src_mem, bytes, &q->stream);
    return end(t, q);
}

tess_status tess__queue_wait(tess *t, const tess__queue *q, uint64_t ticket) {
    if (ticket)
        CALL(t, event_stream_wait, q->events[ticket % TESS__QUEUE_EVENTS], &t->compute);
    return TESS_OK;
}

tess_status tess__queue_finish(tess *t, const tess__queue *q, uint64_t ticket) {
    if (ticket)
        CALL(t, event_wait, q->events[ticket % TESS__QUEUE_EVENTS], INT64_C(-1));
    return TESS_OK;
}

/* ---- collectives ---- */

/* Frees those that have ended, oldest first; waits for them when `all` have to end, or when there is no room. */
static tess_status sweep(tess *t, int all) {
    tess__queues *q = &t->queues;
    while (q->n_retired > 0) {
        tess__retired *r = &q->retired[q->first_retired];
        tess_error e = { .struct_size = sizeof e, .rank = -1 };
        if (!all && q->n_retired < TESS__RETIRED && t->comm->test(r->request, &e) == TESS_PENDING)
            return TESS_OK;
        TRY(tess__comm_wait(t, r->which, r->request, r->seq));
        t->comm->request_free(r->request);
        q->first_retired = (q->first_retired + 1) % TESS__RETIRED;
        q->n_retired--;
    }
    return TESS_OK;
}

tess_status tess__retire(tess *t, int which, tess_request *request, uint64_t seq) {
    tess__queues *q = &t->queues;
    q->retired[(q->first_retired + q->n_retired++) % TESS__RETIRED] = (tess__retired){ request, seq, which };
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    tess_status s = t->comm->wait_stream(request, &t->compute, &e);
    if (s)
        return tess__plugin_failed(s, TESS_KIND_COMM, t->plugins[TESS_KIND_COMM], &e);
    return sweep(t, 0);
}

/* ---- the host needs it ---- */

tess_status tess__device_sync(tess *t) {
    if (!t->queues.on)
        return TESS_OK;
    TRY(sweep(t, 1)); /* what a lost rank would keep us waiting for */
    CALL(t, event_record, t->queues.synced, &t->compute);
    CALL(t, event_wait, t->queues.synced, INT64_C(-1));
    return TESS_OK;
}

tess_status tess__device_read(tess *t, void *to, const void *from, uint64_t bytes) {
    TRY(tess__device_sync(t)); /* a copy to pageable memory blocks, and would not hear of a lost rank */
    CALL(t, copy, t->device, to, TESS_MEM_HOST, from, t->setup.env.mem, bytes, &t->compute);
    return tess__device_sync(t);
}

tess_status tess__batch_mark(tess *t) {
    if (t->queues.on)
        CALL(t, event_record, t->queues.batch_taken, &t->compute);
    return TESS_OK;
}

tess_status tess__batch_wait(tess *t) {
    if (t->queues.on && t->setup.input_bytes)
        CALL(t, event_wait, t->queues.batch_taken, INT64_C(-1));
    return TESS_OK;
}

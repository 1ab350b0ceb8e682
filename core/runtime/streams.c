/* SPDX-License-Identifier: BSD-3-Clause */
#include "streams.h"

#include "base/status.h"
#include "kernels/norm.h"

#include <stdio.h>
#include <string.h>

/* ---- making and giving back ---- */

tess_status tess__streams_start(tess__streams *q, const tess__device *device, tess__comms *comms) {
    q->device = device;
    q->comms = comms;
    q->on = tess__device_has_streams(device);
    if (!q->on)
        return TESS_OK;
    q->comm_waits = tess__comms_waits_on_streams(comms);
    TRY(tess__device_event(device, &q->reached));
    TRY(tess__device_event(device, &q->synced));
    TRY(tess__device_event(device, &q->result_there));
    TRY(tess__device_event(device, &q->norm_there));
    for (int i = 0; i < TESS__PASSES; i++)
        TRY(tess__device_event(device, &q->passes[i].over));
    return tess__device_event(device, &q->batch_taken);
}

static tess_status make_stream(tess__streams *q, tess__stream *s, uint32_t role) {
    TRY(tess__device_stream(q->device, role, &s->stream));
    for (int i = 0; i < TESS__STREAM_EVENTS; i++)
        TRY(tess__device_event(q->device, &s->events[i]));
    return TESS_OK;
}

tess_status tess__streams_add_transfers(tess__streams *q) {
    TRY(make_stream(q, &q->up, TESS_STREAM_UP));
    return make_stream(q, &q->down, TESS_STREAM_DOWN);
}

static void destroy_stream(tess__streams *q, tess__stream *s) {
    for (int i = 0; i < TESS__STREAM_EVENTS; i++)
        tess__device_event_end(q->device, s->events[i]);
    tess__device_stream_end(q->device, &s->stream);
}

void tess__streams_end(tess__streams *q) {
    tess_event *events[] = { q->reached, q->synced, q->batch_taken, q->result_there, q->norm_there };
    if (!q->on)
        return;
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        tess__device_event_end(q->device, events[i]);
    for (int i = 0; i < TESS__PASSES; i++)
        tess__device_event_end(q->device, q->passes[i].over);
    destroy_stream(q, &q->up);
    destroy_stream(q, &q->down);
    *q = (tess__streams){ .on = 0 };
}

/* ---- transfers ---- */

static tess_status begin_transfer(tess__streams *q, const tess__stream *s) {
    TRY(tess__device_record(q->device, q->reached, &q->device->compute));
    TRY(tess__device_stream_wait(q->device, q->reached, &s->stream));
    return tess__timeline_begin(q->timeline, &s->stream, &q->timed);
}

static tess_status end_transfer(tess__streams *q, tess__stream *s) {
    uint64_t ticket = s->posted + 1;
    uint32_t lane = s == &q->up ? TESS__TRACK_UP : TESS__TRACK_DOWN;
    TRY(tess__timeline_stop(q->timeline, q->timed, &s->stream, lane, &q->doing, NULL, q->step));
    TRY(tess__device_record(q->device, s->events[ticket % TESS__STREAM_EVENTS], &s->stream));
    s->posted = ticket;
    return TESS_OK;
}

tess_status tess__stream_kernel(tess__streams *q, tess__stream *s, tess_kernel *k) {
    TRY(begin_transfer(q, s));
    TRY(tess__device_kernel(q->device, k, &s->stream));
    return end_transfer(q, s);
}

tess_status tess__stream_copy(tess__streams *q, tess__stream *s, void *dst, uint32_t dst_mem, const void *src,
                              uint32_t src_mem, uint64_t bytes) {
    TRY(begin_transfer(q, s));
    TRY(tess__device_copy(q->device, dst, dst_mem, src, src_mem, bytes, &s->stream));
    return end_transfer(q, s);
}

tess_status tess__stream_wait(tess__streams *q, const tess__stream *s, uint64_t ticket) {
    tess_event *event = s->events[ticket % TESS__STREAM_EVENTS];
    return ticket ? tess__device_stream_wait(q->device, event, &q->device->compute) : TESS_OK;
}

void tess__streams_record(tess__streams *q) {
    q->recording = 1;
    q->posted_before[0] = q->up.posted;
    q->posted_before[1] = q->down.posted;
}

tess_status tess__streams_join(tess__streams *q) {
    q->recording = 0;
    TRY(tess__stream_wait(q, &q->up, q->up.posted > q->posted_before[0] ? q->up.posted : 0));
    return tess__stream_wait(q, &q->down, q->down.posted > q->posted_before[1] ? q->down.posted : 0);
}

tess_status tess__stream_finish(tess__streams *q, const tess__stream *s, uint64_t ticket) {
    return ticket ? tess__device_event_wait(q->device, s->events[ticket % TESS__STREAM_EVENTS], -1) : TESS_OK;
}

/* ---- collectives ---- */

static const tess__retired *next_retired(tess__streams *q) {
    const tess__retired *r = &q->retired[q->first_retired];
    q->first_retired = (q->first_retired + 1) % TESS__RETIRED;
    q->n_retired--;
    return r;
}

/* Waits for a retired collective, named in messages, since the engine may be in another call by now. */
static tess_status wait_retired(tess__streams *q, const tess__retired *r) {
    char before[TESS__ACTIVITY];
    snprintf(before, sizeof before, "%s", tess__comms_activity(q->comms));
    tess__comms_doing(q->comms, r->what);
    TRY(tess__comm_wait(q->comms, r->which, r->request, r->seq));
    if (before[0])
        tess__comms_doing(q->comms, before);
    else
        tess__comms_idle(q->comms);
    return TESS_OK;
}

/* Frees retired collectives that have ended, oldest first. Waits for those that must have ended, which are the first
 * `due` of all, and when there is no room. */
static tess_status sweep_retired(tess__streams *q, uint64_t due) {
    while (q->n_retired > 0) {
        tess__retired *r = &q->retired[q->first_retired];
        uint64_t before = q->ever_retired - (uint64_t)q->n_retired;
        if (before >= due && q->n_retired < TESS__RETIRED && !tess__comm_has_ended(q->comms, r->request))
            return TESS_OK;
        TRY(wait_retired(q, r));
        tess__comm_free(q->comms, next_retired(q)->request);
    }
    return TESS_OK;
}

void tess__streams_drop(tess__streams *q) {
    while (q->n_retired > 0)
        tess__comm_drop(q->comms, next_retired(q)->request);
}

tess_status tess__retire(tess__streams *q, int which, tess_request *request, uint64_t seq) {
    if (q->recording) { /* it has ended */
        tess_status s = tess__comm_wait_on_stream(q->comms, request, &q->device->compute);
        tess__comm_free(q->comms, request);
        return s;
    }
    tess__retired *r = &q->retired[(q->first_retired + q->n_retired++) % TESS__RETIRED];
    *r = (tess__retired){ .request = request, .seq = seq, .which = which };
    snprintf(r->what, sizeof r->what, "%s", tess__comms_activity(q->comms));
    q->ever_retired++;
    TRY(tess__comm_wait_on_stream(q->comms, request, &q->device->compute));
    return sweep_retired(q, 0);
}

tess_status tess__stream_collective(tess__streams *q, int which, const tess_collective *c, const char *doing) {
    tess_collective own = *c;
    if (!q->on || !q->comm_waits)
        return tess__comm_run(q->comms, which, c, doing);
    tess__comms_doing(q->comms, doing);
    TRY(tess__comm_post(q->comms, which, &own, &q->comms->unowned_request));
    tess_request *posted = q->comms->unowned_request;
    q->comms->unowned_request = NULL;
    TRY(tess__retire(q, which, posted, own.seq));
    tess__comms_idle(q->comms);
    return TESS_OK;
}

/* ---- the host needs it ---- */

tess_status tess__streams_sync(tess__streams *q) {
    if (!q->on)
        return TESS_OK;
    TRY(sweep_retired(q, q->ever_retired)); /* what a lost rank would keep us waiting for */
    TRY(tess__device_record(q->device, q->synced, &q->device->compute));
    return tess__device_event_wait(q->device, q->synced, -1);
}

void tess__streams_idle(tess__streams *q) {
    if (!q->on)
        return;
    const tess_stream *all[] = { &q->device->compute, &q->up.stream, &q->down.stream };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if ((i == 0 || all[i]->handle) && tess__device_record(q->device, q->synced, all[i]) == TESS_OK)
            tess__device_event_wait(q->device, q->synced, 5 * INT64_C(1000000000));
}

tess_status tess__streams_read(tess__streams *q, void *to, const void *from, uint64_t bytes) {
    TRY(tess__streams_sync(q)); /* a copy to pageable memory blocks, and would not hear of a lost rank */
    TRY(tess__device_copy(q->device, to, TESS_MEM_HOST, from, q->device->mem, bytes, NULL));
    return tess__streams_sync(q);
}

tess_status tess__batch_mark(tess__streams *q) {
    return q->on ? tess__device_record(q->device, q->batch_taken, &q->device->compute) : TESS_OK;
}

/* ---- a pass's result ---- */

tess_status tess__result_take(tess__streams *q, void *to, void *at, const void *from, uint64_t bytes) {
    tess__late_pass *pass = &q->passes[q->pass];
    if (!q->on)
        return tess__streams_read(q, to, from, bytes);
    TRY(tess__device_copy(q->device, at, TESS_MEM_PINNED, from, q->device->mem, bytes, NULL));
    if (q->late) {
        pass->result = to;
        pass->result_at = at;
        pass->result_bytes = bytes;
        return TESS_OK;
    }
    TRY(tess__device_record(q->device, q->result_there, &q->device->compute));
    q->result = to;
    q->result_at = at;
    q->result_bytes = bytes;
    return TESS_OK;
}

void tess__result_again(tess__streams *q, const tess__late_pass *as, void *to) {
    tess__late_pass *pass = &q->passes[q->pass];
    pass->result = to;
    pass->result_at = as->result_at;
    pass->result_bytes = as->result_bytes;
    pass->limbs = as->limbs;
    pass->is_recorded = 1;
}

/* A recorded pass has no requests to wait for. Meanwhile this thread looks for lost ranks. */
static tess_status wait_and_listen(tess__streams *q, const tess__late_pass *pass) {
    const int64_t slice = INT64_C(100000000);
    tess_status s = TESS_E_TIMEOUT;
    tess__comms_doing(q->comms, pass->what);
    for (int64_t waited = 0; s == TESS_E_TIMEOUT; waited += slice) {
        s = tess__device_event_wait(q->device, pass->over, slice);
        if (s != TESS_OK && s != TESS_E_TIMEOUT)
            return s;
        TRY(tess__comms_listen(q->comms, waited));
    }
    tess__comms_idle(q->comms);
    return TESS_OK;
}

static tess_status wait_for(tess__streams *q, tess__late_pass *pass) {
    int listens = pass->is_recorded && q->comms->world.nranks > 1;
    if (!pass->under_way)
        return TESS_OK;
    TRY(sweep_retired(q, pass->retired)); /* what a lost rank would keep us waiting for */
    TRY(listens ? wait_and_listen(q, pass) : tess__device_event_wait(q->device, pass->over, -1));
    if (pass->result)
        memcpy(pass->result, pass->result_at, pass->result_bytes);
    if (pass->values)
        memcpy(pass->values, pass->values_at, pass->values_bytes);
    q->limbs = pass->limbs;
    if (pass->limbs && !q->not_finite_step && !isfinite(tess__norm_square(pass->limbs)))
        q->not_finite_step = pass->step;
    *pass = (tess__late_pass){ .over = pass->over };
    return TESS_OK;
}

tess_status tess__passes_wait(tess__streams *q) {
    for (int i = 0; i < TESS__PASSES; i++) /* the oldest first */
        TRY(wait_for(q, &q->passes[(q->pass + i) % TESS__PASSES]));
    return TESS_OK;
}

static tess_status ends_here(tess__streams *q, tess__late_pass *pass) {
    TRY(tess__device_record(q->device, pass->over, &q->device->compute));
    pass->retired = q->ever_retired;
    return TESS_OK;
}

/* The next pass takes the oldest one's place, for which the device is still busy with this one. */
static tess_status go_on(tess__streams *q) {
    tess__late_pass *pass = &q->passes[q->pass];
    TRY(ends_here(q, pass));
    pass->under_way = 1;
    q->pass = (q->pass + 1) % TESS__PASSES;
    return wait_for(q, &q->passes[q->pass]);
}

int tess__latest_pass(const tess__streams *q) {
    int latest = (q->pass + TESS__PASSES - 1) % TESS__PASSES;
    int can = q->on && q->late && q->comm_waits;
    return can && q->passes[latest].under_way && !q->passes[latest].values ? latest : -1;
}

tess_status tess__values_take(tess__streams *q, int at_pass, void *to, void *at, const void *from, uint64_t bytes) {
    tess__late_pass *pass = &q->passes[at_pass];
    TRY(tess__device_copy(q->device, at, TESS_MEM_PINNED, from, q->device->mem, bytes, NULL));
    pass->values = to;
    pass->values_at = at;
    pass->values_bytes = bytes;
    return ends_here(q, pass);
}

/* The batch was copied before the result, so one wait is enough for both. */
tess_status tess__pass_wait(tess__streams *q) {
    if (!q->on)
        return TESS_OK;
    if (q->late)
        return go_on(q);
    TRY(sweep_retired(q, q->ever_retired)); /* what a lost rank would keep us waiting for */
    TRY(tess__device_event_wait(q->device, q->result ? q->result_there : q->batch_taken, -1));
    if (q->result)
        memcpy(q->result, q->result_at, q->result_bytes);
    q->result = NULL;
    return TESS_OK;
}

void tess__result_forget(tess__streams *q) {
    q->result = NULL;
    q->limbs = NULL;
    q->pass = 0; /* as on a rank that takes a lost one's place */
    for (int i = 0; i < TESS__PASSES; i++)
        q->passes[i] = (tess__late_pass){ .over = q->passes[i].over };
}

tess_status tess__norm_take(tess__streams *q, void *to, const void *from, uint64_t bytes) {
    TRY(tess__device_copy(q->device, to, TESS_MEM_PINNED, from, q->device->mem, bytes, NULL));
    if (q->late) {
        q->passes[q->pass].limbs = to;
        return TESS_OK;
    }
    return tess__device_record(q->device, q->norm_there, &q->device->compute);
}

tess_status tess__norm_wait(const tess__streams *q) {
    return tess__device_event_wait(q->device, q->norm_there, -1);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* What the engine puts into streams, on a device that works as late as it may: only when the host waits for an event,
 * and then only what lies before that event, or before one that this work waits for. So an order that is missing shows.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "core/runtime/streams.h"

enum { STREAMS = 3, MOST = 1024 };
typedef struct { /* a copy, or a wait for what another stream held then */
    int *to;
    const int *from;
    int other, until; /* of a wait: the stream, and how much of it */
} work;
typedef struct {
    work all[MOST];
    int n, done;
} queue;
struct tess_event {
    int used, stream, at;
};

static queue queues[STREAMS];
static struct tess_event events[3 * TESS__STREAM_EVENTS];
static int n_streams, late;             /* late: so many waits of the host run into their time limit */
static int64_t limit_ns;                /* of the last wait */
static tess_status none_or_now, broken; /* broken: what a wait of the host ends with */

static queue *queue_of(const tess_stream *s) {
    return s->handle ? s->handle : &queues[0];
}

static void run_until(int stream, int until) {
    queue *q = &queues[stream];
    while (q->done < until) {
        const work *w = &q->all[q->done++];
        if (w->to)
            *w->to = *w->from;
        else
            run_until(w->other, w->until);
    }
}

static tess_status stream_create(tess_device *d, uint32_t role, tess_stream *out, tess_error *e) {
    (void)d;
    (void)e;
    assert_int_equal(role, n_streams == 1 ? TESS_STREAM_UP : TESS_STREAM_DOWN);
    *out = (tess_stream){ .mem = TESS_MEM_CUDA, .handle = &queues[n_streams++] };
    return TESS_OK;
}
static void stream_destroy(tess_device *d, tess_stream *s) {
    (void)d;
    s->handle = NULL;
    n_streams--;
}
static tess_status event_create(tess_device *d, tess_event **out, tess_error *e) {
    (void)d;
    (void)e;
    *out = events;
    while ((*out)->used)
        ++*out;
    **out = (struct tess_event){ .used = 1, .stream = 0, .at = 0 };
    return TESS_OK;
}
static void event_destroy(tess_event *event) {
    assert_int_equal(event->used, 1);
    event->used = 0;
}
static tess_status event_record(tess_event *event, const tess_stream *s, tess_error *e) {
    (void)e;
    event->stream = (int)(queue_of(s) - queues);
    event->at = queue_of(s)->n;
    return TESS_OK;
}
static tess_status event_stream_wait(tess_event *event, const tess_stream *s, tess_error *e) {
    (void)e;
    queue *q = queue_of(s);
    q->all[q->n++] = (work){ .other = event->stream, .until = event->at };
    return TESS_OK;
}
static tess_status event_wait(tess_event *event, int64_t timeout_ns, tess_error *e) {
    (void)e;
    limit_ns = timeout_ns;
    if (late-- > 0)
        return TESS_E_TIMEOUT;
    run_until(event->stream, event->at);
    return broken;
}
static tess_status copy(tess_device *d, void *to, uint32_t to_mem, const void *from, uint32_t from_mem, uint64_t bytes,
                        const tess_stream *s, tess_error *e) {
    (void)d;
    (void)to_mem;
    (void)from_mem;
    (void)e;
    queue *q = queue_of(s);
    assert_int_equal(bytes, sizeof(int));
    q->all[q->n++] = (work){ .to = to, .from = from };
    return TESS_OK;
}
static tess_status health(tess_comm *c, tess_error *e) {
    (void)c;
    (void)e;
    return none_or_now;
}

static const tess_device_ops ops = { .struct_size = sizeof ops,
                                     .stream_create = stream_create,
                                     .stream_destroy = stream_destroy,
                                     .event_create = event_create,
                                     .event_destroy = event_destroy,
                                     .event_record = event_record,
                                     .event_stream_wait = event_stream_wait,
                                     .event_wait = event_wait,
                                     .copy = copy };
static const tess__plugin plugin = { .name = "late" };
static const tess__device device = { .ops = &ops, .plugin = &plugin, .mem = TESS_MEM_CUDA };
static tess_status query(void *ctx, tess_comm *c, tess_comm_caps *out) {
    (void)ctx;
    (void)c;
    out->caps = 0;
    return TESS_OK;
}
static tess_status query_ordered(void *ctx, tess_comm *c, tess_comm_caps *out) {
    (void)ctx;
    (void)c;
    out->caps = TESS_COMM_STREAM_ORDERED;
    return TESS_OK;
}
static tess_status wait_stream(tess_request *r, const tess_stream *s, tess_error *e) {
    (void)r;
    (void)s;
    (void)e;
    return TESS_E_INTERNAL;
}
static const tess_comm_ops comm_ops = { .struct_size = sizeof comm_ops, .query = query, .health = health };
static tess__comms comms;
static tess__streams q;

static int begin(void **state) {
    (void)state;
    memset(queues, 0, sizeof queues);
    memset(events, 0, sizeof events);
    n_streams = 1, late = 0, none_or_now = broken = TESS_OK;
    comms = (tess__comms){ .ops = &comm_ops, .plugin = &plugin, .device = &device, .timeout_ns = 1000000000 };
    comms.world.nranks = 1;
    q = (tess__streams){ .on = 0 };
    return tess__streams_start(&q, &device, &comms) || !q.on || q.comm_waits || tess__streams_add_transfers(&q);
}
static int end(void **state) {
    (void)state;
    tess__streams_end(&q);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        assert_int_equal(events[i].used, 0);
    assert_int_equal(n_streams, 1);
    tess__streams_end(&q); /* nothing */
    return 0;
}

static void put(int *to, const int *from) { /* on the compute stream */
    assert_int_equal(tess__device_copy(&device, to, TESS_MEM_CUDA, from, TESS_MEM_CUDA, sizeof *to, NULL), TESS_OK);
}
static void move(tess__stream *s, int *to, const int *from) {
    assert_int_equal(tess__stream_copy(&q, s, to, TESS_MEM_CUDA, from, TESS_MEM_CUDA, sizeof *to), TESS_OK);
}

/* ---- transfers -----------------------------------------------------------------------------------------------------
 */

static void test_streams__a_transfer_follows_the_work_before_it(void **state) {
    (void)state;
    int a = 7, b = 0, c = 0, d = 0, other = 0;
    put(&b, &a);
    move(&q.down, &c, &b);
    move(&q.up, &other, &b);
    assert_int_equal(c, 0);
    assert_int_equal(tess__stream_finish(&q, &q.down, 0), TESS_OK); /* nothing to wait for */
    assert_int_equal(c, 0);
    assert_int_equal(tess__stream_finish(&q, &q.down, q.down.posted), TESS_OK);
    assert_int_equal(c, 7);
    assert_int_equal(limit_ns, -1);
    assert_int_equal(other, 0);
    put(&d, &other); /* waits for nothing, so it is before the transfer up */
    assert_int_equal(tess__stream_wait(&q, &q.up, 0), TESS_OK);
    assert_int_equal(tess__streams_sync(&q), TESS_OK);
    assert_int_equal(d, 0);
    assert_int_equal(tess__stream_wait(&q, &q.up, q.up.posted), TESS_OK);
    put(&d, &other);
    assert_int_equal(tess__streams_sync(&q), TESS_OK);
    assert_int_equal(d, 7);
}

static void test_streams__many_transfers_have_an_event_each(void **state) {
    (void)state;
    static int from[3 * TESS__STREAM_EVENTS], to[3 * TESS__STREAM_EVENTS];
    for (int i = 0; i < 2 * TESS__STREAM_EVENTS; i++) {
        from[i] = i + 1;
        move(&q.up, &to[i], &from[i]);
        assert_int_equal(q.up.posted, i + 1);
        if (i % 3 == 2) { /* the one before the last, and no later one */
            assert_int_equal(tess__stream_finish(&q, &q.up, q.up.posted - 1), TESS_OK);
            assert_int_equal(to[i - 1], i);
            assert_int_equal(to[i], 0);
        }
    }
    assert_int_equal(q.down.posted, 0);
}

static void test_streams__a_recording_waits_for_its_own_transfers(void **state) {
    (void)state;
    int a = 7, b = 0, c = 0, d = 0;
    move(&q.up, &b, &a);
    move(&q.down, &b, &a);
    tess__streams_record(&q);
    assert_int_equal(q.recording, 1);
    assert_int_equal(tess__streams_join(&q), TESS_OK);
    assert_int_equal(q.recording, 0);
    assert_int_equal(queues[0].n, 0); /* nothing was put there meanwhile */
    tess__streams_record(&q);
    move(&q.down, &c, &a);
    move(&q.up, &d, &a);
    assert_int_equal(tess__streams_join(&q), TESS_OK);
    assert_int_equal(tess__streams_sync(&q), TESS_OK);
    assert_int_equal(c, 7);
    assert_int_equal(d, 7);
}

static void test_streams__the_end_waits_for_all_a_while(void **state) {
    (void)state;
    int a = 7, b = 0, c = 0, d = 0;
    move(&q.up, &c, &a);
    move(&q.down, &d, &a);
    put(&b, &a); /* which no transfer waits for */
    tess__streams_idle(&q);
    assert_int_equal(b + c + d, 21);
    assert_int_equal(limit_ns, 5000000000);
}

/* ---- results -------------------------------------------------------------------------------------------------------
 */

static void test_streams__what_is_read_is_there(void **state) {
    (void)state;
    int a = 7, b = 0, c = 0;
    put(&b, &a);
    assert_int_equal(tess__streams_read(&q, &c, &b, sizeof c), TESS_OK);
    assert_int_equal(c, 7);
}

static void test_streams__a_result_comes_with_its_pass(void **state) {
    (void)state;
    int on_device = 7, at = 0, to = 0, batch = 0, in = 3;
    put(&batch, &in);
    assert_int_equal(tess__batch_mark(&q), TESS_OK);
    assert_int_equal(tess__result_take(&q, &to, &at, &on_device, sizeof to), TESS_OK);
    assert_int_equal(at, 0);
    assert_int_equal(tess__pass_wait(&q), TESS_OK);
    assert_int_equal(to, 7);
    assert_int_equal(batch, 3);
    at = 9, in = 4;
    put(&batch, &in); /* a pass without a result: its batch alone is waited for */
    assert_int_equal(tess__batch_mark(&q), TESS_OK);
    put(&on_device, &in);
    assert_int_equal(tess__pass_wait(&q), TESS_OK);
    assert_int_equal(batch, 4);
    assert_int_equal(to, 7);
    assert_int_equal(on_device, 7);
    assert_int_equal(tess__result_take(&q, &to, &at, &on_device, sizeof to), TESS_OK);
    tess__result_forget(&q);
    assert_int_equal(tess__pass_wait(&q), TESS_OK);
    assert_int_equal(to, 7);
}

static void test_streams__a_late_result_comes_with_the_next_pass(void **state) {
    (void)state;
    int value[3] = { 7, 8, 9 }, at[3] = { 0 }, to[3] = { 0 };
    q.late = 1;
    for (int pass = 0; pass < 3; pass++) {
        assert_int_equal(tess__result_take(&q, &to[pass], &at[pass], &value[pass], sizeof(int)), TESS_OK);
        assert_int_equal(tess__pass_wait(&q), TESS_OK);
        assert_int_equal(to[pass], 0);
        assert_true(pass == 0 || to[pass - 1] == value[pass - 1]);
    }
    assert_int_equal(tess__passes_wait(&q), TESS_OK);
    assert_int_equal(to[2], 9);
    to[2] = 1;
    assert_int_equal(tess__passes_wait(&q), TESS_OK); /* once */
    assert_int_equal(to[2], 1);
}

static void test_streams__a_norm_has_an_event_or_comes_with_its_pass(void **state) {
    (void)state;
    int from = 7, to = 0;
    put(&from, &from);
    assert_int_equal(tess__norm_take(&q, &to, &from, sizeof to), TESS_OK);
    assert_int_equal(q.norm_there->at, 2);
    assert_null(q.passes[0].limbs);
    assert_int_equal(tess__norm_wait(&q), TESS_OK);
    assert_int_equal(to, 7);
    q.late = 1;
    assert_int_equal(tess__norm_take(&q, &to, &from, sizeof to), TESS_OK);
    assert_ptr_equal(q.passes[0].limbs, &to);
    assert_int_equal(q.norm_there->at, 2); /* the pass's own event is behind it */
}

static void test_streams__who_waits_for_collectives_is_asked_once(void **state) {
    (void)state;
    for (int can = 0; can < 3; can++) { /* both the promise and the slot */
        static tess_comm_ops some;
        tess__streams_end(&q);
        some = (tess_comm_ops){ .struct_size = sizeof some, .query = can == 1 ? query : query_ordered };
        some.wait_stream = can ? wait_stream : NULL;
        comms.ops = &some;
        assert_int_equal(tess__streams_start(&q, &device, &comms), TESS_OK);
        assert_int_equal(q.comm_waits, can == 2);
    }
}

static void test_streams__values_go_behind_the_latest_pass(void **state) {
    (void)state;
    int value = 7, at = 0, to = 0, more = 0;
    q.late = q.comm_waits = 1;
    assert_int_equal(tess__latest_pass(&q), -1); /* none is under way */
    assert_int_equal(tess__pass_wait(&q), TESS_OK);
    assert_int_equal(tess__latest_pass(&q), 0);
    put(&more, &value);
    assert_int_equal(tess__values_take(&q, 0, &to, &at, &more, sizeof to), TESS_OK);
    assert_int_equal(tess__latest_pass(&q), -1); /* it has some */
    assert_int_equal(tess__pass_wait(&q), TESS_OK);
    assert_int_equal(to, 7);
    assert_int_equal(tess__latest_pass(&q), 1);
    q.comm_waits = 0;
    assert_int_equal(tess__latest_pass(&q), -1);
    q.comm_waits = 1, q.late = 0;
    assert_int_equal(tess__latest_pass(&q), -1);
}

/* A pass that was recorded leaves its result where the recording did, and has no request that would tell of a lost
 * rank. */
static void test_streams__a_recorded_pass_is_waited_for_in_slices(void **state) {
    (void)state;
    const int at = 7;
    const tess__late_pass as = { .result_at = &at, .result_bytes = sizeof at };
    int to = 0;
    q.late = 1;
    for (int nranks = 1; nranks <= 2; nranks++) {
        comms.world.nranks = nranks;
        tess__result_again(&q, &as, &to);
        late = nranks == 1 ? 0 : 5;
        assert_int_equal(tess__pass_wait(&q), TESS_OK);
        assert_int_equal(to, 0);
        assert_int_equal(tess__passes_wait(&q), TESS_OK);
        assert_int_equal(to, 7);
        assert_int_equal(limit_ns, nranks == 1 ? -1 : 100000000);
        to = 0;
    }
    tess__result_again(&q, &as, &to);
    late = 1000;
    assert_int_equal(tess__pass_wait(&q), TESS_OK);
    assert_int_equal(tess__passes_wait(&q), TESS_E_TIMEOUT);
    assert_int_equal(late, 1000 - 12); /* slices of 0.1 s until more than the second are over */
    assert_int_equal(to, 0);
    late = 1, none_or_now = TESS_E_PEER;
    comms.list[0] = (tess_comm *)&comms;
    assert_int_equal(tess__passes_wait(&q), TESS_E_PEER);
    comms.list[0] = NULL;
    broken = TESS_E_DEVICE; /* and the device may fail */
    assert_int_equal(tess__passes_wait(&q), TESS_E_DEVICE);
    broken = TESS_OK;
}

static void test_streams__without_streams_nothing_is_waited_for(void **state) {
    (void)state;
    int from = 7, to = 0;
    const tess__device plain = { .ops = &ops, .plugin = &plugin, .mem = TESS_MEM_HOST };
    tess__streams none = { .device = &plain };
    assert_int_equal(tess__streams_sync(&none), TESS_OK);
    assert_int_equal(tess__batch_mark(&none), TESS_OK);
    assert_int_equal(tess__pass_wait(&none), TESS_OK);
    tess__streams_idle(&none);
    assert_int_equal(tess__result_take(&none, &to, NULL, &from, sizeof to), TESS_OK);
    assert_int_equal(queues[0].n, 1); /* the copy alone */
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)
        CASE(test_streams__a_transfer_follows_the_work_before_it),
        CASE(test_streams__many_transfers_have_an_event_each),
        CASE(test_streams__a_recording_waits_for_its_own_transfers),
        CASE(test_streams__the_end_waits_for_all_a_while),
        CASE(test_streams__what_is_read_is_there),
        CASE(test_streams__a_result_comes_with_its_pass),
        CASE(test_streams__a_late_result_comes_with_the_next_pass),
        CASE(test_streams__a_norm_has_an_event_or_comes_with_its_pass),
        CASE(test_streams__who_waits_for_collectives_is_asked_once),
        CASE(test_streams__values_go_behind_the_latest_pass),
        CASE(test_streams__a_recorded_pass_is_waited_for_in_slices),
        CASE(test_streams__without_streams_nothing_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

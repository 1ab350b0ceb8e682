/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks the order among streams. The host waits only at the end. Each gather reads bytes that one stream has just
 * written, and another stream copies the result at once. */
#include <stdlib.h>

#include "comm.h"
#include "device.h"
#include "suites.h"

enum { ROUNDS = 40, BYTES = 3000 };

typedef struct {
    comm_rank *r;
    const tess_comm_ops *ops;
    uint64_t all; /* bytes that one round gathers */
    tess_stream other;
    tess_buffer in, out, kept;
    tess_request *requests[ROUNDS];
} stream_rounds;

static void gather_post(stream_rounds *x, int round) {
    tess_error e = { .struct_size = sizeof e };
    tess_collective c = { .struct_size = sizeof c,
                          .op = TESS_ALL_GATHER,
                          .send_dtype = TESS_U8,
                          .recv_dtype = TESS_U8,
                          .send_mem = comm_staged_mem(),
                          .recv_mem = comm_staged_mem(),
                          .send = x->in.ptr,
                          .recv = x->out.ptr,
                          .count = BYTES,
                          .scale = 1,
                          .after = dut.stream,
                          .tag = (uint64_t)round };
    must(dut.ops->fill(dut.device, x->in.ptr, (uint8_t)(ROUNDS * x->r->rank + round), BYTES, &dut.stream, &dut.error),
         "fill");
    tess_status s = x->ops->post(x->r->comm, &c, 1, &x->requests[round], &e);
    check_that(x->r->c, s == TESS_OK, "post gave %s: %s", check_status(s), e.message);
    s = x->ops->wait_stream(x->requests[round], &x->other, &e);
    check_that(x->r->c, s == TESS_OK, "wait_stream gave %s: %s", check_status(s), e.message);
}

/* Copies on the other stream. An event makes the next round's fill and gather wait for it. */
static void result_copy(stream_rounds *x, int round) {
    tess_event *copied;
    must(dut.ops->copy(dut.device, (char *)x->kept.ptr + (uint64_t)round * x->all, comm_staged_mem(), x->out.ptr,
                       comm_staged_mem(), x->all, &x->other, &dut.error),
         "copy");
    must(dut.ops->event_create(dut.device, &copied, &dut.error), "event_create");
    must(dut.ops->event_record(copied, &x->other, &dut.error), "event_record");
    must(dut.ops->event_stream_wait(copied, &dut.stream, &dut.error), "event_stream_wait");
    dut.ops->event_destroy(copied);
}

static void results_check(stream_rounds *x) {
    unsigned char *host = malloc(ROUNDS * x->all);
    check_that(x->r->c, host, "no memory for the check");
    comm_staged_down(host, x->kept.ptr, ROUNDS * x->all);
    drain(&dut.stream);
    for (uint64_t i = 0; i < ROUNDS * x->all; i++) {
        unsigned char want = (unsigned char)(ROUNDS * (i % x->all / BYTES) + i / x->all);
        check_that(x->r->c, host[i] == want, "round %llu has %u of rank %llu, not %u: out of order",
                   (unsigned long long)(i / x->all), host[i], (unsigned long long)(i % x->all / BYTES), want);
    }
    free(host);
}

static void requests_end(stream_rounds *x) {
    tess_error e = { .struct_size = sizeof e };
    for (int i = 0; i < ROUNDS; i++) {
        tess_status s = x->ops->wait(x->requests[i], CHECK_LONG_NS, &e);
        check_that(x->r->c, s == TESS_OK, "wait gave %s: %s", check_status(s), e.message);
        x->ops->request_free(x->requests[i]);
    }
}

static void stream_order(check *self) {
    stream_rounds x = { .r = comm_open(self) };
    comm_must_claim(x.r, TESS_COMM_STREAM_ORDERED, "TESS_COMM_STREAM_ORDERED");
    if (!comm_staged_mem() || !TESS_CAN(tess_device_ops, dut.ops, stream_create))
        check_skip(self, "has no streams");
    comm_join(x.r);
    x.ops = comm_staged_real();
    x.all = (uint64_t)x.r->nranks * BYTES;
    x.in = comm_staged_obtain(BYTES);
    x.out = comm_staged_obtain(x.all);
    x.kept = comm_staged_obtain(ROUNDS * x.all);
    must(dut.ops->stream_create(dut.device, TESS_STREAM_GATHER, &x.other, &dut.error), "stream_create");
    for (int i = 0; i < ROUNDS; i++) {
        gather_post(&x, i);
        result_copy(&x, i);
    }
    drain(&x.other);
    results_check(&x);
    requests_end(&x);
    comm_staged_release(&x.in), comm_staged_release(&x.out), comm_staged_release(&x.kept);
    dut.ops->stream_destroy(dut.device, &x.other);
    comm_leave(x.r);
}

const check_case check_cases_comm_staged[] = {
    { "stream_order_one_rank", 1, stream_order, 0, 0 },
    { "stream_order_three_ranks", 3, stream_order, 0, 0 },
    { 0 },
};

/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks of TESS_COMM_APART: a communicator and a split of it with the same ranks work beside each other. Rank 1 enters
 * a gather of the second later, while the others go on with the first. A backend on a GPU may need one order of posts
 * on all ranks. There rank 1 posts too, on a stream that waits for a gather of ranks 1 and 2. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "device.h"
#include "suites.h"

enum { FIRST, SECOND, BYTES = 3000, LATE = 1, LETS_GO = 2 };
#define PATIENCE_NS (10 * CHECK_SECOND_NS)

typedef struct {
    comm_rank *r;
    const tess_comm_ops *ops; /* the plugin's own table */
    uint32_t mem;
    uint64_t all; /* bytes of a gather's result */
    tess_comm *comm[2];
    tess_buffer in[2], out[2];
    void *reg[2]; /* registrations of `out` */
    tess_request *request[2];
    unsigned char rounds[2];
    tess_comm *pair; /* communicator of ranks LATE and LETS_GO, on a device only */
    tess_buffer pair_in, pair_out;
    tess_stream held;
} apart;

/* ---- memory ---- */

static tess_buffer obtain(const apart *x, uint64_t bytes) {
    if (x->mem != TESS_MEM_HOST)
        return comm_staged_obtain(bytes);
    tess_buffer b = { .struct_size = sizeof b, .mem = TESS_MEM_HOST, .bytes = bytes, .ptr = malloc(bytes) };
    check_that(x->r->c, b.ptr, "no memory for the check");
    return b;
}

static void give_back(const apart *x, tess_buffer *b) {
    if (x->mem == TESS_MEM_HOST)
        free(b->ptr);
    else
        comm_staged_release(b);
}

static void fill(const apart *x, const tess_buffer *b, unsigned char with) {
    if (x->mem == TESS_MEM_HOST)
        memset(b->ptr, with, b->bytes);
    else
        must(dut.ops->fill(dut.device, b->ptr, with, b->bytes, &dut.stream, &dut.error), "fill");
}

/* ---- a gather on one of the two ---- */

static const char *name_of(int which) {
    return which == FIRST ? "the first communicator" : "the one that was split off";
}

static tess_status post_on(const apart *x, tess_comm *comm, const tess_buffer *in, const tess_buffer *out, void *reg,
                           const tess_stream *after, tess_request **request, tess_error *e) {
    tess_collective c = { .struct_size = sizeof c,
                          .op = TESS_ALL_GATHER,
                          .send_dtype = comm_word(),
                          .recv_dtype = comm_word(),
                          .send_mem = x->mem,
                          .recv_mem = x->mem,
                          .send = in->ptr,
                          .recv = out->ptr,
                          .recv_reg = reg,
                          .count = BYTES / 4,
                          .scale = 1,
                          .tag = 5 };
    if (after && x->mem != TESS_MEM_HOST)
        c.after = *after;
    check_doing(x->r->c, "post");
    tess_status s = x->ops->post(comm, &c, 1, request, e);
    check_doing(x->r->c, "");
    return s;
}

static unsigned char sent_by(int rank, int which, int round) {
    return (unsigned char)(1 + 32 * round + 8 * which + rank);
}

static void post(apart *x, int which, const tess_stream *after) {
    tess_error e = { .struct_size = sizeof e };
    fill(x, &x->in[which], sent_by(x->r->rank, which, ++x->rounds[which]));
    if (x->mem != TESS_MEM_HOST)
        drain(&dut.stream);
    tess_status s =
        post_on(x, x->comm[which], &x->in[which], &x->out[which], x->reg[which], after, &x->request[which], &e);
    check_that(x->r->c, s == TESS_OK, "post on %s gave %s: %s", name_of(which), check_status(s), e.message);
}

static void must_hold(const apart *x, int which) {
    unsigned char *host = malloc(x->all);
    check_that(x->r->c, host, "no memory for the check");
    if (x->mem == TESS_MEM_HOST) {
        memcpy(host, x->out[which].ptr, x->all);
    } else {
        comm_staged_down(host, x->out[which].ptr, x->all);
        drain(&dut.stream);
    }
    for (uint64_t i = 0; i < x->all; i++) {
        unsigned char want = sent_by((int)(i / BYTES), which, x->rounds[which]);
        check_that(x->r->c, host[i] == want, "a gather on %s has %u of rank %llu, not %u", name_of(which), host[i],
                   (unsigned long long)(i / BYTES), want);
    }
    free(host);
}

/* Waits for the gather and checks its result. `while_what` completes the message. */
static void end(apart *x, int which, const char *while_what) {
    tess_error e = { .struct_size = sizeof e };
    check_doing(x->r->c, "wait");
    tess_status s = x->ops->wait(x->request[which], PATIENCE_NS, &e);
    check_doing(x->r->c, "");
    check_that(x->r->c, s == TESS_OK, "a gather on %s %s: wait gave %s: %s", name_of(which), while_what,
               check_status(s), e.message);
    x->ops->request_free(x->request[which]);
    must_hold(x, which);
}

/* ---- one that is held up ---- */

/* Makes the stream `held` of rank LATE wait for a gather of the pair, which LETS_GO has not posted yet. */
static void hold_up(apart *x) {
    tess_error e = { .struct_size = sizeof e };
    tess_request *request;
    if (x->r->rank != LATE)
        return;
    must(dut.ops->stream_create(dut.device, TESS_STREAM_GATHER, &x->held, &dut.error), "stream_create");
    tess_status s = post_on(x, x->pair, &x->pair_in, &x->pair_out, NULL, &dut.stream, &request, &e);
    check_that(x->r->c, s == TESS_OK, "post on a pair of ranks gave %s: %s", check_status(s), e.message);
    s = x->ops->wait_stream(request, &x->held, &e);
    check_that(x->r->c, s == TESS_OK, "wait_stream gave %s: %s", check_status(s), e.message);
    x->request[FIRST] = request; /* let_go waits for it */
}

static void let_go(apart *x, tess_request *of_late) {
    tess_error e = { .struct_size = sizeof e };
    tess_request *request = of_late;
    if (!x->pair)
        return;
    if (x->r->rank == LETS_GO) {
        tess_status s = post_on(x, x->pair, &x->pair_in, &x->pair_out, NULL, &dut.stream, &request, &e);
        check_that(x->r->c, s == TESS_OK, "post on a pair of ranks gave %s: %s", check_status(s), e.message);
    }
    tess_status s = x->ops->wait(request, PATIENCE_NS, &e);
    check_that(x->r->c, s == TESS_OK, "wait on a pair of ranks gave %s: %s", check_status(s), e.message);
    x->ops->request_free(request);
}

/* All ranks but LATE enter a gather of the second communicator while all go on with the first. Returns the request that
 * holds LATE back. */
static tess_request *go_on_beside(apart *x) {
    int on_device = x->mem != TESS_MEM_HOST, late = x->r->rank == LATE;
    tess_error e = { .struct_size = sizeof e };
    if (on_device)
        hold_up(x);
    tess_request *holds = x->request[FIRST];
    if (on_device || !late)
        post(x, SECOND, late ? &x->held : &dut.stream);
    post(x, FIRST, &dut.stream);
    end(x, FIRST, "waits for what the other one was given");
    if (x->request[SECOND]) {
        tess_status s = x->ops->test(x->request[SECOND], &e);
        check_that(x->r->c, s == TESS_PENDING, "a gather of which rank %d has not begun is %s", LATE, check_status(s));
    }
    check_meet(x->r->c);
    return holds;
}

/* ---- beginning and ending ---- */

static tess_comm *split_off(const apart *x, int color, const char *group) {
    tess_comm_config cfg = { .struct_size = sizeof cfg,
                             .rank = x->r->rank,
                             .nranks = x->r->nranks,
                             .device = -1,
                             .group = group,
                             .timeout_ns = CHECK_LONG_NS };
    tess_error e = { .struct_size = sizeof e };
    tess_comm *child = NULL;
    check_doing(x->r->c, "split");
    tess_status s = x->ops->split(x->comm[FIRST], color, x->r->rank, &cfg, &child, &e);
    check_doing(x->r->c, "");
    check_that(x->r->c, s == TESS_OK && !child == (color < 0), "split gave %s: %s", check_status(s), e.message);
    x->r->c->communicators += child != NULL;
    return child;
}

static void begin(apart *x, check *self) {
    *x = (apart){ .r = comm_open(self) };
    comm_must_claim(x->r, TESS_COMM_APART, "TESS_COMM_APART");
    check_that(self, (x->r->caps.caps & TESS_COMM_SPLIT) && TESS_CAN(tess_comm_ops, x->r->ops, split),
               "claims TESS_COMM_APART, and cannot split");
    comm_must_offer(x->r, TESS_ALL_GATHER, comm_word());
    x->mem = comm_staged_mem() ? comm_staged_mem() : TESS_MEM_HOST;
    if (comm_staged_mem() && !TESS_CAN(tess_device_ops, dut.ops, stream_create))
        check_skip(self, "has no streams");
    comm_join(x->r);
    x->ops = comm_staged_mem() ? comm_staged_real() : x->r->ops;
    x->all = (uint64_t)x->r->nranks * BYTES;
    x->comm[FIRST] = x->r->comm;
    x->comm[SECOND] = split_off(x, 0, "beside");
    for (int i = 0; i < 2; i++) {
        x->in[i] = obtain(x, BYTES);
        x->out[i] = obtain(x, x->all);
    }
}

static void begin_with_pair(apart *x, check *self) {
    begin(x, self);
    if (x->mem == TESS_MEM_HOST)
        return;
    x->pair = split_off(x, x->r->rank == LATE || x->r->rank == LETS_GO ? 0 : -1, "pair");
    x->pair_in = obtain(x, BYTES);
    x->pair_out = obtain(x, 2 * BYTES);
}

static void leave(apart *x, tess_comm *comm) {
    tess_error e = { .struct_size = sizeof e };
    if (comm && TESS_CAN(tess_comm_ops, x->ops, finalize)) {
        tess_status s = x->ops->finalize(comm, CHECK_LONG_NS, &e);
        check_that(x->r->c, s == TESS_OK, "finalize gave %s: %s", check_status(s), e.message);
    }
    if (comm)
        x->ops->destroy(comm);
}

static void finish(apart *x) {
    for (int i = 0; i < 2; i++) {
        give_back(x, &x->in[i]);
        give_back(x, &x->out[i]);
    }
    if (x->pair_in.ptr) {
        give_back(x, &x->pair_in);
        give_back(x, &x->pair_out);
    }
    if (x->held.handle)
        dut.ops->stream_destroy(dut.device, &x->held);
    leave(x, x->pair);
    comm_leave(x->r);
}

/* ---- the checks ---- */

static void apart_passes(check *self) {
    apart x;
    begin_with_pair(&x, self);
    tess_request *holds = go_on_beside(&x);
    let_go(&x, holds);
    if (!x.request[SECOND])
        post(&x, SECOND, NULL);
    end(&x, SECOND, "that was held up");
    leave(&x, x.comm[SECOND]);
    finish(&x);
}

static void apart_aborts(check *self) {
    apart x;
    tess_error e = { .struct_size = sizeof e };
    begin_with_pair(&x, self);
    comm_must_claim(x.r, TESS_COMM_ABORT, "TESS_COMM_ABORT");
    tess_request *holds = go_on_beside(&x);
    check_doing(self, "abort");
    x.ops->abort(x.comm[SECOND], TESS_E_ABORTED);
    check_meet(self); /* all ranks must abort before let_go, or the gather may still succeed */
    let_go(&x, holds);
    if (x.request[SECOND]) {
        tess_status s = x.ops->wait(x.request[SECOND], PATIENCE_NS, &e);
        check_that(self, s < 0 && s != TESS_E_TIMEOUT, "a gather on %s ended with %s after its abort", name_of(SECOND),
                   check_status(s));
        x.ops->request_free(x.request[SECOND]);
    }
    check_meet(self);
    post(&x, FIRST, &dut.stream);
    end(&x, FIRST, "does not go on after the other one's abort");
    tess_status s = comm_health(x.r, &e);
    check_that(self, s == TESS_OK, "health after the other one's abort is %s: %s", check_status(s), e.message);
    x.ops->destroy(x.comm[SECOND]);
    finish(&x);
}

/* Registers memory with both communicators. One of them then unregisters it while the other works. */
static void apart_registers(check *self) {
    apart x;
    tess_error e = { .struct_size = sizeof e };
    begin(&x, self);
    if (!TESS_CAN(tess_comm_ops, x.ops, mem_register))
        check_skip(self, "has no slot mem_register");
    tess_buffer both = obtain(&x, x.all), own[2] = { both, both }, plain[2] = { x.out[FIRST], x.out[SECOND] };
    for (int i = 0; i < 2; i++) {
        tess_status s = x.ops->mem_register(x.comm[i], &own[i], &e);
        if (s == TESS_E_UNSUPPORTED)
            check_skip(self, "registers no such memory");
        check_that(self, s == TESS_OK, "mem_register with %s gave %s: %s", name_of(i), check_status(s), e.message);
        x.out[i] = own[i];
        x.reg[i] = own[i].reg;
    }
    for (int i = 0; i < 2; i++) {
        post(&x, i, &dut.stream);
        end(&x, i, "in memory that is registered with both");
    }
    x.ops->mem_deregister(x.comm[FIRST], &own[FIRST]);
    post(&x, SECOND, &dut.stream);
    end(&x, SECOND, "in memory that the other one let go of");
    x.ops->mem_deregister(x.comm[SECOND], &own[SECOND]);
    memcpy(x.out, plain, sizeof x.out);
    give_back(&x, &both);
    leave(&x, x.comm[SECOND]);
    finish(&x);
}

const check_case check_cases_comm_apart[] = {
    { "apart_passes", 3, apart_passes, 0, 0 },
    { "apart_aborts", 3, apart_aborts, 0, 0 },
    { "apart_registers", 2, apart_registers, 0, 0 },
    { 0 },
};

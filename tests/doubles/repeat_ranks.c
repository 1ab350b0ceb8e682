/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank whose passes are recorded and run again, on the doubles: for e2e/test_repeat_ranks_doubles and its like.
 *
 *     repeat_ranks late      reduces values behind passes, and looks when they change
 *     repeat_ranks number    at last rank 1 runs a pass of another number than the others
 *     repeat_ranks rate      … another learning rate
 *     repeat_ranks calls     … calls the blocks of a pass that the others run again
 *     repeat_ranks misses    … goes to tess_barrier instead
 *     repeat_ranks orders    … gives the communicators of gathers and of reductions their work the other way round
 *     repeat_ranks for ever  says on standard output when passes are run again, and goes on */
#include "driver.h"

#include "core/engine/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/gpu.h>

enum { WEIGHTS = 128, WORDS = 16, ALIKE = 12 };
static struct {
    tess *t;
    CUstream stream;
    CUdeviceptr memory; /* of collectives of its own; 0: none */
    int rank, ranks, forwards;
    uint32_t results[2][WORDS]; /* of two passes, which are under way at once */
} net;

static tess_status done(CUresult r) {
    return r == CUDA_SUCCESS ? TESS_OK : tess_fail(TESS_E_DEVICE, "a block: %d", (int)r);
}

/* The result is the batch. */
static tess_status forward(void *user, const tess_block_call *c) {
    (void)user;
    net.forwards++;
    return done(cuMemcpyDtoDAsync((CUdeviceptr)c->output, (CUdeviceptr)c->batch, WORDS * 4, net.stream));
}

static tess_status backward(void *user, const tess_block_call *c) {
    (void)user;
    return done(cuMemsetD32Async((CUdeviceptr)c->grads[0], 0x3f800000u /* 1 */, WEIGHTS, net.stream));
}

static tess_status zero(void *user, const tess_range *r, void *data) {
    (void)user;
    memset(data, 0, r->elems * sizeof(float));
    return TESS_OK;
}

static tess_status declare(void) {
    const int64_t shape[] = { WEIGHTS };
    tess_param_options p = { .struct_size = sizeof p, .dtype = TESS_F32, .name = "b.w", .shape = shape, .ndim = 1 };
    tess_block_options b = { .struct_size = sizeof b, .name = "b", .output_bytes = WORDS * 4 };
    b.forward = forward;
    b.backward = backward;
    tess_status s = tess_param_add(net.t, &p, NULL);
    s = s ? s : tess_block_add(net.t, &b, NULL);
    return s ? s : tess_shard(net.t, zero, NULL);
}

static tess_status open_net(void) {
    tess_options o = { .struct_size = sizeof o, .device = "cuda", .comm = "nccl", .optimizer = "sgd" };
    o.pointer_mem = 1u << TESS_MEM_CUDA;
    o.flags = TESS_OPTIONS_LATE | TESS_OPTIONS_REPEAT;
    o.input_bytes = WORDS * 4;
    tess_status s = tess_open(&o, &net.t);
    net.stream = tess_stream_get(net.t);
    net.rank = tess_rank(net.t);
    net.ranks = tess_ranks(net.t);
    return s ? s : declare();
}

static tess_status run_at(float rate, uint32_t pass, uint64_t repeat) {
    uint32_t batch[WORDS];
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = rate };
    tess_run_options o = { .struct_size = sizeof o, .kind = TESS_PASS_TRAIN, .batch = batch };
    for (int i = 0; i < WORDS; i++)
        batch[i] = pass;
    o.result = net.results[pass % 2];
    o.step = &step;
    return tess_run_repeat(net.t, &o, repeat);
}

static tess_status run(uint32_t pass, uint64_t repeat) {
    return run_at(0.5f, pass, repeat);
}

/* ---- alike, and then not ------------------------------------------------------------------------------------ */

/* Both numbers are recorded when they are over. */
static tess_status run_alike(void) {
    tess_status s = TESS_OK;
    for (uint32_t i = 0; !s && i < ALIKE; i++)
        s = run(i, i < ALIKE / 2 ? 7 : 8);
    return s;
}

static tess_status differ(const char *how) {
    tess_status s = run_alike();
    if (s)
        return s;
    if (net.rank != 1)
        s = run(ALIKE, 7);
    else if (strcmp(how, "misses") == 0)
        s = tess_barrier(net.t);
    else if (strcmp(how, "rate") == 0)
        s = run_at(0.25f, ALIKE, 7);
    else
        s = run(ALIKE, strcmp(how, "number") == 0 ? 8 : 0);
    return s ? s : tess_run_wait(net.t);
}

/* On a GPU each of the two then keeps its part until the other rank comes, which it never does. */
static tess_status post_in_two_orders(void) {
    tess__comms *comms = &net.t->comms;
    tess_request *requests[2];
    tess_status s = done(cuMemAlloc(&net.memory, (uint64_t)net.ranks * WEIGHTS * 8));
    uint64_t first = comms->n_collectives;
    for (int i = 0; !s && i < 2; i++) {
        int sums = (net.rank == 1) != (i == 1);
        tess_collective c = { .op = sums ? TESS_REDUCE_SCATTER : TESS_ALL_GATHER, .redop = sums ? TESS_SUM : 0 };
        c.send_dtype = c.recv_dtype = TESS_F32;
        c.send = (void *)net.memory;
        c.recv = (char *)net.memory + (uint64_t)net.ranks * WEIGHTS * 4;
        c.count = WEIGHTS;
        c.scale = 1;
        c.tag = c.op;
        tess__comms_doing(comms, sums ? "a reduction" : "a gather");
        s = tess__comm_post(comms, sums ? TESS__SHARD_SUMS : TESS__SHARD, &c, &requests[i]);
    }
    s = s ? s : tess__comm_wait(comms, net.rank == 1 ? TESS__SHARD_SUMS : TESS__SHARD, requests[0], first);
    return s ? tess__engine_fail(net.t, s) : tess_fail(TESS_E_INTERNAL, "two orders, and all is well");
}

static tess_status go_in_two_orders(void) {
    tess_status s = run_alike();
    s = s ? s : tess_run_wait(net.t);
    return s ? s : post_in_two_orders();
}

static tess_status go_on(void) {
    tess_status s = run_alike();
    if (s)
        return s;
    printf("passes are run again: %d were called\n", net.forwards);
    fflush(stdout);
    for (uint32_t i = ALIKE; !s; i++)
        s = run(i, 7);
    return s;
}

/* ---- values that come late ---------------------------------------------------------------------------------- */

#define WANTED(value, expected, when)                                                                                  \
    do {                                                                                                               \
        double is = (double)(value), wanted = (double)(expected);                                                      \
        if (is != wanted)                                                                                              \
            return tess_fail(TESS_E_INTERNAL, "%s: %s is %g, expected %g", when, #value, is, wanted);                  \
    } while (0)

/* Of what pass i leaves: each rank's value is i + rank. */
static double sum_of(uint32_t i) {
    return net.ranks * (double)i + net.ranks * (net.ranks - 1) / 2.0;
}

/* Behind each pass one late reduction; behind each third one that is waited for, too, in between. */
static tess_status reduce_late(uint32_t pass, double value[3]) {
    int64_t at_once = net.rank;
    value[0] = value[1] = pass + net.rank;
    value[2] = -1;
    tess_status s = tess_all_reduce_late(net.t, value, 2, TESS_F64, TESS_SUM);
    if (s)
        return s;
    WANTED(value[0], net.ranks > 1 ? pass + net.rank : sum_of(pass), "behind the pass");
    if (pass % 3 == 0)
        s = tess_all_reduce(net.t, &at_once, 1, TESS_I64, TESS_MAX);
    WANTED(at_once, pass % 3 == 0 ? net.ranks - 1 : net.rank, "at once");
    return s;
}

static tess_status look(uint32_t pass, const double value[3]) {
    WANTED(value[0], sum_of(pass), "one pass later");
    WANTED(value[1], sum_of(pass), "one pass later");
    WANTED(value[2], -1, "behind what was reduced");
    WANTED(net.results[pass % 2][0], pass, "the result");
    return TESS_OK;
}

/* The second behind a pass, more than there is room for, and without a pass are there at once. */
static tess_status reduce_otherwise(void) {
    double first = 1, second = 1, many[9] = { 0, 0, 0, 0, 0, 0, 0, 0, 1 };
    tess_status s = run(0, 7);
    s = s ? s : tess_all_reduce_late(net.t, many, 9, TESS_F64, TESS_SUM);
    s = s ? s : tess_all_reduce_late(net.t, &first, 1, TESS_F64, TESS_SUM);
    s = s ? s : tess_all_reduce_late(net.t, &second, 1, TESS_F64, TESS_SUM);
    if (s)
        return s;
    WANTED(many[8], net.ranks, "more than there is room for");
    WANTED(second, net.ranks, "the second behind a pass");
    if ((s = tess_run_wait(net.t)))
        return s;
    WANTED(first, net.ranks, "the first behind a pass");
    if ((s = tess_all_reduce_late(net.t, &first, 1, TESS_F64, TESS_MAX)))
        return s;
    WANTED(first, net.ranks, "without a pass");
    return TESS_OK;
}

static tess_status late(void) {
    double values[2][3];
    tess_status s = TESS_OK;
    for (uint32_t i = 0; !s && i < ALIKE; i++) {
        s = run(i, 7);
        if (!s && i)
            s = look(i - 1, values[(i - 1) % 2]);
        s = s ? s : reduce_late(i, values[i % 2]);
    }
    s = s ? s : tess_run_wait(net.t);
    s = s ? s : look(ALIKE - 1, values[(ALIKE - 1) % 2]);
    if (s)
        return s;
    WANTED(net.forwards, 4, "passes that were called or recorded");
    return reduce_otherwise();
}

static tess_status act(const char *what) {
    return strcmp(what, "late") == 0     ? late()
           : strcmp(what, "for") == 0    ? go_on()
           : strcmp(what, "orders") == 0 ? go_in_two_orders()
                                         : differ(what);
}

/* Blocks work in the context that is current. */
static int enter(void) {
    const char *rank = getenv("LOCAL_RANK");
    CUdevice device = rank ? atoi(rank) : 0;
    CUcontext context;
    return cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS &&
           cuCtxPushCurrent(context) == CUDA_SUCCESS;
}

static void leave(void) {
    const char *rank = getenv("LOCAL_RANK");
    cuCtxPopCurrent(NULL);
    cuDevicePrimaryCtxRelease(rank ? atoi(rank) : 0);
}

int main(int argc, char **argv) {
    if (!enter())
        return 1;
    tess_status s = open_net();
    s = s ? s : act(argc > 1 ? argv[1] : "");
    if (s)
        fprintf(stderr, "repeat_ranks: %s\n", tess_last_error());
    tess_status closed = tess_close(net.t);
    if (net.memory)
        cuMemFree(net.memory);
    leave();
    return tess_exit_code(s ? s : closed);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints of shards in a device's memory, which pass through the host's in pieces: every element of weights and
 * moments is where it was, on the doubles and on the CPU. */
#include "driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/gpu.h>
#include <tessera/inspect.h>
#include <unistd.h>

#include <cmocka.h>

enum { PIECE = 65536, ELEMS = 3 * PIECE + 70, KINDS = 3 }; /* more than one piece of a save and of a load */
typedef struct {
    tess *t;
    CUstream stream;
    int on_cpu;
} net;
typedef struct {
    float values[KINDS][ELEMS]; /* weights, moments */
} content;

static const char *optimizer = "adamw";
static uint32_t kinds = KINDS;
static CUcontext context;
static content saved, again;
static float batch[ELEMS];

/* The gradient is the batch. */
static tess_status backward(void *user, const tess_block_call *c) {
    const net *n = user;
    if (n->on_cpu)
        memcpy(c->grads[0], c->batch, sizeof batch);
    else if (cuMemcpyDtoDAsync((CUdeviceptr)c->grads[0], (CUdeviceptr)c->batch, sizeof batch, n->stream))
        return tess_fail(TESS_E_DEVICE, "backward");
    return TESS_OK;
}

static tess_status forward(void *user, const tess_block_call *c) {
    (void)user;
    (void)c;
    return TESS_OK;
}

static tess_status number(void *user, const tess_range *r, void *data) {
    (void)user;
    for (uint64_t i = 0; i < r->elems; i++)
        ((float *)data)[i] = (float)((r->first_elem + i) % 9973) / 64;
    return TESS_OK;
}

static void ok(tess_status s) {
    if (s)
        fail_msg("%s", tess_last_error());
}

static void open_net(net *n, const char *device, uint32_t checkpoint) {
    const int64_t shape[] = { ELEMS };
    tess_options o = { .struct_size = sizeof o, .device = device, .comm = "self", .optimizer = optimizer };
    tess_param_options p = { .struct_size = sizeof p, .dtype = TESS_F32, .name = "b.w", .shape = shape, .ndim = 1 };
    tess_block_options b = { .struct_size = sizeof b, .name = "b", .output_bytes = 64, .user = n };
    *n = (net){ .on_cpu = strcmp(device, "cpu") == 0 };
    o.pointer_mem = n->on_cpu ? 0 : 1u << TESS_MEM_CUDA;
    o.input_bytes = sizeof batch;
    o.checkpoint = checkpoint;
    ok(tess_open(&o, &n->t));
    if (!n->on_cpu)
        n->stream = tess_stream_get(n->t);
    ok(tess_param_add(n->t, &p, NULL));
    b.forward = forward;
    b.backward = backward;
    ok(tess_block_add(n->t, &b, NULL));
    ok(tess_shard(n->t, number, NULL));
}

static void train(const net *n, int first, int steps) {
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    tess_run_options o = { .struct_size = sizeof o, .kind = TESS_PASS_TRAIN, .batch = batch, .step = &step };
    for (int s = first; s < first + steps; s++) {
        for (int i = 0; i < ELEMS; i++)
            batch[i] = (float)((i + 7 * s) % 1009 - 500) / 8;
        ok(tess_run(n->t, &o));
    }
}

static tess_status take(void *user, const tess_range *r, void *data) {
    memcpy((float *)user + r->first_elem, data, r->elems * sizeof(float));
    return TESS_OK;
}

static void read_all(const net *n, content *out) {
    memset(out, 0xff, sizeof *out);
    for (uint32_t kind = 0; kind < kinds; kind++)
        ok(tess_each_owned(n->t, kind ? TESS_OF_MOMENT1 + kind - 1 : TESS_OF_PARAM, take, out->values[kind]));
}

static void holds_what_was_saved(const net *n) {
    read_all(n, &again);
    for (uint32_t kind = 0; kind < kinds; kind++)
        for (int i = 0; i < ELEMS; i++)
            if (memcmp(&again.values[kind][i], &saved.values[kind][i], sizeof(float)) != 0)
                fail_msg("kind %u, element %d: %g, saved was %g", kind, i, again.values[kind][i],
                         saved.values[kind][i]);
}

/* Saves on one device, and goes on from it on another. */
static void from_to(const char *from, uint32_t checkpoint, const char *to) {
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX", command[128];
    net n;
    assert_non_null(mkdtemp(folder));
    const tess_checkpoint_options out = { .struct_size = sizeof out, .dir = folder };
    const tess_checkpoint_load_options in = { .struct_size = sizeof in, .path = folder };
    tess_checkpoint_info info = { .struct_size = sizeof info };
    open_net(&n, from, checkpoint);
    train(&n, 0, 2);
    ok(tess_checkpoint_save(n.t, &out));
    read_all(&n, &saved);
    train(&n, 2, 1); /* a save that goes on beside it has what was there before */
    ok(tess_close(n.t));

    open_net(&n, to, 0);
    ok(tess_checkpoint_load(n.t, &in, &info));
    assert_int_equal(info.step, 2);
    holds_what_was_saved(&n);
    ok(tess_close(n.t));
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_checkpoint__elements_come_back_to_the_device_doubles(void **state) {
    (void)state;
    from_to("cuda", 0, "cuda");
    from_to("cuda", 1, "cuda");
}

static void test_checkpoint__elements_change_devices_doubles(void **state) {
    (void)state;
    from_to("cuda", 0, "cpu");
    from_to("cpu", 0, "cuda");
}

/* A plugin that steps on the device's stream: the CPU's bits, which go on from one to the other. */
static void test_checkpoint__a_plugins_steps_are_the_cpus_doubles(void **state) {
    (void)state;
    net n;
    optimizer = "lion";
    kinds = 2;
    open_net(&n, "cpu", 0);
    train(&n, 0, 3);
    read_all(&n, &saved);
    ok(tess_close(n.t));
    open_net(&n, "cuda", 0);
    train(&n, 0, 3);
    holds_what_was_saved(&n);
    ok(tess_close(n.t));
    from_to("cuda", 1, "cpu");
    from_to("cpu", 0, "cuda");
    optimizer = "adamw";
    kinds = KINDS;
}

int main(void) {
    if (!getenv("DEVICE")) {
        printf("skipped: DEVICE does not name device-cuda\n");
        return 77;
    }
    setenv("TESSERA_DOUBLE_LEAKS", "55", 1);
    setenv("TESSERA_DOUBLE_DELAY_US", "200", 0);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxPushCurrent(context))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint__elements_come_back_to_the_device_doubles),
        cmocka_unit_test(test_checkpoint__elements_change_devices_doubles),
        cmocka_unit_test(test_checkpoint__a_plugins_steps_are_the_cpus_doubles),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cuCtxPopCurrent(NULL);
    cuDevicePrimaryCtxRelease(0);
    return failed;
}

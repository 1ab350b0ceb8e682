/* SPDX-License-Identifier: BSD-3-Clause */
/* Passes on the doubles for whose end the host does not wait, and those that the device records. */
#include "driver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tessera/gpu.h>
#include <tessera/inspect.h>
#include <unistd.h>

#include <cmocka.h>

enum { WEIGHTS = 128, WORDS = 16, PASSES = 9 };
typedef struct {
    tess *t;
    CUstream stream;
    int forwards, synchronizes, fails;
} net;

static CUcontext context;

/* The result is the batch. */
static tess_status forward(void *user, const tess_block_call *c) {
    net *n = user;
    n->forwards++;
    CUresult r = cuMemcpyDtoDAsync((CUdeviceptr)c->output, (CUdeviceptr)c->batch, WORDS * 4, n->stream);
    if (n->fails)
        return tess_fail(TESS_E_DEVICE, "forward: 1");
    if (r == CUDA_SUCCESS && n->synchronizes)
        r = cuStreamSynchronize(n->stream);
    return r == CUDA_SUCCESS ? TESS_OK : tess_fail(TESS_E_DEVICE, "forward: %d", (int)r);
}

static tess_status backward(void *user, const tess_block_call *c) {
    net *n = user;
    CUresult r = cuMemsetD32Async((CUdeviceptr)c->grads[0], 0x3f800000u /* 1 */, WEIGHTS, n->stream);
    return r == CUDA_SUCCESS ? TESS_OK : tess_fail(TESS_E_DEVICE, "backward: %d", (int)r);
}

static tess_status zero(void *user, const tess_range *r, void *data) {
    (void)user;
    memset(data, 0, r->elems * sizeof(float));
    return TESS_OK;
}

static void ok(tess_status s) {
    if (s)
        fail_msg("%s", tess_last_error());
}

static void open_net(net *n, uint32_t flags, const char *optimizer, const char *key, const char *value) {
    const tess_setting setting = { key, value };
    tess_options o = { .struct_size = sizeof o, .device = "cuda", .comm = "self", .optimizer = optimizer };
    o.pointer_mem = 1u << TESS_MEM_CUDA;
    o.flags = flags;
    o.input_bytes = WORDS * 4;
    o.settings = &setting;
    o.n_settings = key != NULL;
    *n = (net){ .t = NULL };
    ok(tess_open(&o, &n->t));
    n->stream = tess_stream_get(n->t);
    const int64_t shape[] = { WEIGHTS };
    tess_param_options p = { .struct_size = sizeof p, .dtype = TESS_F32, .name = "b.w", .shape = shape, .ndim = 1 };
    ok(tess_param_add(n->t, &p, NULL));
    tess_block_options b = { .struct_size = sizeof b, .name = "b", .output_bytes = WORDS * 4, .user = n };
    b.forward = forward;
    b.backward = backward;
    ok(tess_block_add(n->t, &b, NULL));
    ok(tess_shard(n->t, zero, NULL));
}

/* A batch of `value`, which changes as soon as the call is back, and a rate that differs from step to step. */
static tess_status run(const net *n, uint32_t value, uint64_t repeat, float clip, uint32_t *result) {
    uint32_t batch[WORDS];
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 1.0f / (float)(1 << value), .clip_norm = clip };
    tess_run_options o = { .struct_size = sizeof o, .kind = TESS_PASS_TRAIN, .batch = batch, .result = result };
    for (int i = 0; i < WORDS; i++)
        batch[i] = value;
    o.step = &step;
    tess_status s = tess_run_repeat(n->t, &o, repeat);
    memset(batch, 0xee, sizeof batch);
    return s;
}

static tess_status take(void *user, const tess_range *r, void *data) {
    memcpy((float *)user + r->first_elem, data, r->elems * sizeof(float));
    return TESS_OK;
}

static void read_weights(const net *n, float *out) {
    ok(tess_each_owned(n->t, TESS_OF_PARAM, take, out));
}

static void each_is(const uint32_t *result, uint32_t value) {
    for (int i = 0; i < WORDS; i++)
        assert_int_equal(result[i], value);
}

/* ---- late results ---------------------------------------------------------------------------------------- */

static void test_passes__late_result_comes_with_the_next_call_doubles(void **state) {
    uint32_t result[PASSES][WORDS];
    float w[WEIGHTS], sum = 0;
    net n;
    (void)state;
    memset(result, 0xff, sizeof result);
    open_net(&n, TESS_OPTIONS_LATE, "sgd", NULL, NULL);
    for (uint32_t i = 0; i < PASSES; i++) {
        ok(run(&n, i, 0, 0, result[i]));
        each_is(result[i], 0xffffffffu);
        if (i)
            each_is(result[i - 1], i - 1);
        sum -= 1.0f / (float)(1 << i);
    }
    ok(tess_run_wait(n.t));
    each_is(result[PASSES - 1], PASSES - 1);
    ok(tess_run_wait(n.t)); /* nothing is left */
    read_weights(&n, w);
    for (int i = 0; i < WEIGHTS; i++)
        assert_true(w[i] == sum);
    ok(tess_close(n.t));
}

static double norm_of(const net *n) {
    tess_stats stats = { .struct_size = sizeof stats };
    ok(tess_stats_get(n->t, &stats));
    return stats.grad_norm;
}

static void test_passes__late_norm_is_that_of_the_pass_that_is_over_doubles(void **state) {
    uint32_t result[WORDS];
    net n;
    (void)state;
    open_net(&n, TESS_OPTIONS_LATE, "sgd", NULL, NULL);
    ok(run(&n, 0, 0, 1, result));
    assert_true(norm_of(&n) == -1); /* none is over */
    ok(run(&n, 1, 0, 1, result));
    assert_true(norm_of(&n) > 11.31 && norm_of(&n) < 11.32); /* 128 gradients of 1 */
    ok(run(&n, 2, 0, 0, result));
    assert_true(norm_of(&n) > 11.31);
    ok(tess_run_wait(n.t));
    assert_true(norm_of(&n) == -1); /* the last step did not clip */
    ok(tess_close(n.t));
}

static void test_passes__step_apart_is_refused_doubles(void **state) {
    net n;
    tess_optimizer_options o = { .struct_size = sizeof o, .lr = 1 };
    (void)state;
    open_net(&n, TESS_OPTIONS_LATE, "sgd", NULL, NULL);
    assert_int_equal(tess_step(n.t, &o), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "TESS_OPTIONS_LATE"));
    tess_close(n.t);
}

/* ---- recorded passes --------------------------------------------------------------------------------------- */

/* The weights after passes 0 …, and how often the block was called. */
static int train(uint64_t repeat_of(uint32_t pass), const char *optimizer, float clip, const char *key,
                 const char *value, float *w) {
    uint32_t result[PASSES][WORDS];
    net n;
    memset(result, 0xff, sizeof result); /* what an earlier run left there is none */
    open_net(&n, TESS_OPTIONS_LATE | TESS_OPTIONS_REPEAT, optimizer, key, value);
    assert_non_null(n.stream); /* the default stream cannot record */
    for (uint32_t i = 0; i < PASSES; i++)
        ok(run(&n, i, repeat_of(i), clip, result[i]));
    ok(tess_run_wait(n.t));
    for (uint32_t i = 0; i < PASSES; i++)
        each_is(result[i], i);
    read_weights(&n, w);
    ok(tess_close(n.t));
    return n.forwards;
}

static uint64_t always_7(uint32_t pass) {
    (void)pass;
    return 7;
}

static uint64_t never(uint32_t pass) {
    (void)pass;
    return 0;
}

static uint64_t another_from_6(uint32_t pass) {
    return pass < 6 ? 7 : 8;
}

/* Two passes are under way at once, with places of their own: each is called, recorded, and from then on repeated. */
static void test_passes__recorded_ones_give_the_same_bits_doubles(void **state) {
    static const char *const optimizers[] = { "sgd", "adam", "adamw", "adadelta" };
    float plain[WEIGHTS], recorded[WEIGHTS];
    (void)state;
    for (int i = 0; i < 8; i++) {
        const char *optimizer = optimizers[i / 2];
        float clip = i % 2 ? 0.25f : 0;
        assert_int_equal(train(always_7, optimizer, clip, "graphs", "0", plain), PASSES);
        assert_int_equal(train(always_7, optimizer, clip, NULL, NULL, recorded), 4);
        assert_memory_equal(plain, recorded, sizeof plain);
        assert_true(plain[0] != 0);
    }
}

static void test_passes__what_differs_is_called_doubles(void **state) {
    float plain[WEIGHTS], w[WEIGHTS];
    (void)state;
    assert_int_equal(train(never, "adamw", 0, NULL, NULL, plain), PASSES);
    assert_int_equal(train(another_from_6, "adamw", 0, NULL, NULL, w), 4 + 3);
    assert_memory_equal(plain, w, sizeof w);
    assert_int_equal(train(always_7, "adamw", 0, "strict", "1", w), PASSES);
    assert_memory_equal(plain, w, sizeof w);
}

static void test_passes__watched_ones_are_called_doubles(void **state) {
    uint32_t result[WORDS];
    net n;
    (void)state;
    open_net(&n, TESS_OPTIONS_LATE | TESS_OPTIONS_REPEAT, "sgd", NULL, NULL);
    for (uint32_t i = 0; i < 6; i++)
        ok(run(&n, i, 1, 0, result));
    assert_int_equal(n.forwards, 4);
    ok(tess_trace(n.t, 1000));
    ok(run(&n, 6, 1, 0, result));
    assert_int_equal(n.forwards, 5);
    ok(tess_trace(n.t, 0));
    ok(run(&n, 7, 1, 0, result));
    assert_int_equal(n.forwards, 5);
    ok(tess_close(n.t));
}

/* Standard error goes to a file between these two. */
static int said_file = -1, said_before = -1;
static void listen(void) {
    said_before = dup(2);
    said_file = memfd_create("said", 0);
    dup2(said_file, 2);
}
static int lines_said(const char *word) {
    char text[4096];
    ssize_t n = pread(said_file, text, sizeof text - 1, 0);
    int lines = 0;
    text[n < 0 ? 0 : n] = 0;
    dup2(said_before, 2);
    close(said_before);
    close(said_file);
    for (char *at = text; (at = strstr(at, word)); at++)
        lines++;
    return lines;
}

/* The block waits for the stream, or the driver's call fails: one line, and passes have the bits of called ones. */
static void test_passes__what_cannot_be_recorded_is_called_doubles(void **state) {
    static const char *const failing[] = { "", "cuStreamBeginCapture:%d", "cuStreamEndCapture:%d",
                                           "cuGraphInstantiate:%d", "cuMemcpyDtoDAsync:%d" };
    (void)state;
    float plain[WEIGHTS], w[WEIGHTS];
    train(never, "adamw", 0.25f, NULL, NULL, plain);
    for (size_t i = 0; i < sizeof failing / sizeof *failing; i++) {
        uint32_t result[PASSES][WORDS];
        char wish[64], name[32];
        net n;
        open_net(&n, TESS_OPTIONS_LATE | TESS_OPTIONS_REPEAT, "adamw", NULL, NULL);
        n.synchronizes = i == 0;
        listen();
        for (uint32_t k = 0; k < PASSES; k++) {
            if (k == 2 && i) { /* the first that is recorded */
                snprintf(name, sizeof name, "%.*s", (int)strcspn(failing[i], ":"), failing[i]);
                snprintf(wish, sizeof wish, failing[i], (int)double__counted(name) + 1);
                setenv("TESSERA_DOUBLE_FAIL", wish, 1);
            }
            ok(run(&n, k, 7, 0.25f, result[k]));
            unsetenv("TESSERA_DOUBLE_FAIL");
        }
        ok(tess_run_wait(n.t));
        assert_int_equal(lines_said("a pass cannot be recorded, so"), 1);
        for (uint32_t k = 0; k < PASSES; k++)
            each_is(result[k], k);
        read_weights(&n, w);
        assert_memory_equal(plain, w, sizeof w);
        assert_in_range(n.forwards, PASSES, PASSES + 1); /* once more where the block was recorded */
        ok(tess_close(n.t));
    }
}

/* What fails when it is called, too, is the pass's error. */
static void test_passes__what_cannot_be_called_is_an_error_doubles(void **state) {
    uint32_t result[WORDS];
    net n;
    (void)state;
    open_net(&n, TESS_OPTIONS_LATE | TESS_OPTIONS_REPEAT, "sgd", NULL, NULL);
    ok(run(&n, 0, 1, 0, result));
    ok(run(&n, 1, 1, 0, result));
    n.fails = 1;
    assert_int_equal(run(&n, 2, 1, 0, result), TESS_E_DEVICE);
    assert_non_null(strstr(tess_last_error(), "forward: 1"));
    assert_int_equal(tess_close(n.t), TESS_E_DEVICE); /* and nothing is left behind */
}

int main(void) {
    if (!getenv("DEVICE")) {
        printf("skipped: DEVICE does not name device-cuda\n");
        return 77;
    }
    setenv("TESSERA_DOUBLE_LEAKS", "55", 1);
    setenv("TESSERA_DOUBLE_DELAY_US", "500", 0);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxPushCurrent(context))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes__late_result_comes_with_the_next_call_doubles),
        cmocka_unit_test(test_passes__late_norm_is_that_of_the_pass_that_is_over_doubles),
        cmocka_unit_test(test_passes__step_apart_is_refused_doubles),
        cmocka_unit_test(test_passes__recorded_ones_give_the_same_bits_doubles),
        cmocka_unit_test(test_passes__what_differs_is_called_doubles),
        cmocka_unit_test(test_passes__watched_ones_are_called_doubles),
        cmocka_unit_test(test_passes__what_cannot_be_recorded_is_called_doubles),
        cmocka_unit_test(test_passes__what_cannot_be_called_is_an_error_doubles),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cuCtxPopCurrent(NULL);
    cuDevicePrimaryCtxRelease(0);
    return failed;
}

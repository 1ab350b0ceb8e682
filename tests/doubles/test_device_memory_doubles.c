/* SPDX-License-Identifier: BSD-3-Clause */
/* device-cuda's memory on the doubles: what is released in a pass holds up nothing but itself. */
#include "driver.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/plugin.h>
#include <unistd.h>

#include <cmocka.h>

static const tess_device_ops *ops;
static void *ctx;
static tess_device *device;
static tess_stream compute, up;
static tess_error error = { .struct_size = sizeof error };
static int gate;

static void quiet_log(void *host, int32_t level, const char *plugin, const char *message) {
    (void)host, (void)level, (void)plugin, (void)message;
}
static const char *no_option(void *host, const char *key) {
    (void)host, (void)key;
    return NULL;
}
static const tess_host host = { .struct_size = sizeof host,
                                .abi_major = TESS_ABI_MAJOR,
                                .abi_minor = TESS_ABI_MINOR,
                                .log = quiet_log,
                                .option = no_option,
                                .args = "",
                                .helper_cpus = "",
                                .numa_node = -1 };

static int open_device(void **state) {
    typedef tess_status (*open_fn)(const tess_host *, uint32_t, const void **, void **, tess_error *);
    const void *table;
    open_fn open;
    (void)state;
    void *library = dlopen(getenv("DEVICE"), RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "tess_plugin_open_v1") : NULL;
    memcpy(&open, &symbol, sizeof symbol);
    assert_non_null(open);
    assert_int_equal(open(&host, TESS_KIND_DEVICE, &table, &ctx, &error), TESS_OK);
    ops = table;
    assert_int_equal(ops->create(ctx, 0, 0, &device, &error), TESS_OK);
    assert_int_equal(ops->stream_create(device, TESS_STREAM_COMPUTE, &compute, &error), TESS_OK);
    assert_int_equal(ops->stream_create(device, TESS_STREAM_UP, &up, &error), TESS_OK);
    return 0;
}

static int close_device(void **state) {
    (void)state;
    ops->stream_destroy(device, &compute);
    ops->stream_destroy(device, &up);
    ops->destroy(device);
    ops->close(ctx);
    return 0;
}

static tess_buffer take(uint64_t bytes) {
    tess_alloc_request r = { .struct_size = sizeof r, .mem = TESS_MEM_CUDA, .bytes = bytes, .numa_node = -1 };
    tess_buffer b = { .struct_size = sizeof b };
    assert_int_equal(ops->mem_alloc(device, &r, &b, &error), TESS_OK);
    return b;
}

/* The stream stands still until the gate opens. */
static void hold(void *data) {
    while (!__atomic_load_n((int *)data, __ATOMIC_ACQUIRE))
        usleep(100);
}

static void stop(const tess_stream *s) {
    CUcontext context;
    __atomic_store_n(&gate, 0, __ATOMIC_RELEASE);
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    assert_int_equal(cuCtxPushCurrent(context), CUDA_SUCCESS);
    assert_int_equal(cuLaunchHostFunc((CUstream)s->handle, hold, &gate), CUDA_SUCCESS);
    cuCtxPopCurrent(NULL);
    cuDevicePrimaryCtxRelease(0);
}

static void *open_gate_late(void *arg) {
    (void)arg;
    usleep(300000);
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    return NULL;
}

static int is_open(void) {
    return __atomic_load_n(&gate, __ATOMIC_ACQUIRE);
}

static void test_device_memory__release_holds_up_no_allocation_doubles(void **state) {
    pthread_t opener;
    (void)state;
    for (int i = 0; i < 2; i++) { /* what computes, and what copies for others */
        tess_buffer a = take(64 << 20);
        void *first = a.ptr;
        stop(i ? &up : &compute);
        pthread_create(&opener, NULL, open_gate_late, NULL); /* ends a wait that should not be */
        ops->mem_free(device, &a);
        tess_buffer b = take(64 << 20), c = take(2 << 20);
        assert_false(is_open());
        assert_ptr_not_equal(b.ptr, first); /* work that still runs may use it */
        pthread_join(opener, NULL);
        ops->mem_free(device, &b);
        ops->mem_free(device, &c);
    }
}

static void test_device_memory__scarce_memory_is_waited_for_doubles(void **state) {
    pthread_t opener;
    (void)state;
    tess_buffer a = take(700 << 20); /* of 1 GiB */
    stop(&compute);
    pthread_create(&opener, NULL, open_gate_late, NULL);
    ops->mem_free(device, &a);
    a = take(800 << 20);
    assert_true(is_open());
    pthread_join(opener, NULL);
    ops->mem_free(device, &a);
}

int main(void) {
    if (!getenv("DEVICE")) {
        printf("skipped: DEVICE does not name device-cuda\n");
        return 77;
    }
    setenv("TESSERA_DOUBLE_LEAKS", "55", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_device_memory__release_holds_up_no_allocation_doubles, open_device,
                                        close_device),
        cmocka_unit_test_setup_teardown(test_device_memory__scarce_memory_is_waited_for_doubles, open_device,
                                        close_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

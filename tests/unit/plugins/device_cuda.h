/* SPDX-License-Identifier: BSD-3-Clause */
/* device-cuda over a driver that writes down its calls. The linker puts this file's functions between the plugin and
 * the C library. */
#ifndef TEST_DEVICE_CUDA_H
#define TEST_DEVICE_CUDA_H
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/plugins/written_driver.h"

const unsigned char cuda_kernels_image[1];
enum { OPENED = 1 /* its local rank */ };

static int no_memory_in; /* the n-th allocation from now fails; 0: none */
static tess_error e;
static const tess_device_ops *ops;
static void *plugin;
static tess_device *device;

void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes) {
    return no_memory_in && --no_memory_in == 0 ? NULL : __real_calloc(n, bytes);
}

static void write_log(void *host, int32_t level, const char *who, const char *line) {
    (void)host;
    say("log %d, %s: %s; ", level, who, line);
}
static tess_host host = { .struct_size = sizeof host, .log = write_log, .args = "" };

static tess_error *no_error(void) {
    e = (tess_error){ .struct_size = sizeof e };
    return &e;
}

/* The status of a failed call, and its message without what each has in front. */
#define EXPECT_FAILS(call, status, text)                                                                               \
    do {                                                                                                               \
        no_error();                                                                                                    \
        assert_int_equal(call, status);                                                                                \
        assert_true(e.code == (status) && e.rank == -1);                                                               \
        assert_string_equal(e.message, text);                                                                          \
    } while (0)

static void open_plugin(void) {
    const void *table;
    written_begin();
    written_forget();
    assert_int_equal(tess_plugin_open_v1(&host, TESS_KIND_DEVICE, &table, &plugin, no_error()), TESS_OK);
    ops = table;
}
static void open_device(uint64_t capacity) {
    open_plugin();
    if (ops->create(plugin, OPENED, capacity, &device, no_error()))
        fail_msg("%s", e.message);
    said_so_far[0] = 0;
}
/* All is given back: what is left is the device's own. */
static void close_device(void) {
    ops->destroy(device);
    ops->close(plugin);
    assert_true(written_is_clean());
    said_so_far[0] = 0;
}

/* Fails each call of the driver once, with this result. `work` says so with the result's status and number, names the
 * plugin, and has left the context; then `clean`, if there is one, looks at what is left. Returns how many calls may
 * fail. */
static inline int fail_each_call(tess_status (*work)(void), CUresult result, void (*clean)(void)) {
    for (int n = 1;; n++) {
        int contexts = written.contexts;
        no_error();
        written.fails_in = n;
        written.fails_with = result;
        tess_status s = work();
        int reached = written.fails_in == 0;
        written.fails_in = 0;
        assert_int_equal(written.contexts, contexts);
        if (!reached) {
            assert_int_equal(s, TESS_OK);
            return n - 1;
        }
        if (s != tess_cuda_status(result) || !strstr(e.message, "device cuda: ") || e.code != s)
            fail_msg("call %d of the driver fails: status %d, \"%s\"", n, s, e.message);
        if (clean)
            clean();
        said_so_far[0] = 0;
    }
}
#endif

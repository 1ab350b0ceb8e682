/* SPDX-License-Identifier: BSD-3-Clause */
/* device-cuda over a driver that writes down its calls. */
#ifndef TEST_DEVICE_CUDA_H
#define TEST_DEVICE_CUDA_H
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>

#include "tests/unit/plugins/written_driver.h"

const unsigned char cuda_kernels_image[1];
enum { OPENED = 1 /* its local rank */ };

static const tess_device_ops *ops;
static void *plugin;
static tess_device *device;

/* The device's lock, which one thread takes and gives back. */
static int held;
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock) {
    (void)lock;
    assert_int_equal(held++, 0);
    return 0;
}
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock) {
    (void)lock;
    assert_int_equal(held--, 1);
    return 0;
}

static tess_host host = { .struct_size = sizeof host, .log = write_log, .args = "" };

static void open_plugin(void) {
    const void *table;
    written_begin();
    written_forget();
    written.who = "device cuda: ";
    assert_int_equal(tess_plugin_open_v1(&host, TESS_KIND_DEVICE, &table, &plugin, no_error()), TESS_OK);
    ops = table;
}
static void open_device(uint64_t capacity) {
    open_plugin();
    if (ops->create(plugin, OPENED, capacity, &device, no_error()))
        fail_msg("%s", e.message);
    said_so_far[0] = 0;
}
static void close_plugin(void) {
    ops->close(plugin);
    assert_int_equal(live_memory, 0);
}
/* All is given back: what is left is the device's own. */
static void close_device(void) {
    ops->destroy(device);
    close_plugin();
    is_clean();
    assert_int_equal(held, 0);
    said_so_far[0] = 0;
}
#endif

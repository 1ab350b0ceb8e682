/* SPDX-License-Identifier: BSD-3-Clause */
/* The device under check. The host may not reach its buffers, so every access goes through its copy slot. */
#ifndef TESSERA_CHECK_DEVICE_H
#define TESSERA_CHECK_DEVICE_H
#include "check.h"

typedef struct {
    check *c;
    const tess_device_ops *ops;
    void *ctx;
    tess_device *device;
    tess_device_info info;
    tess_stream stream; /* the compute stream */
    tess_error error;
} device_under_test;
extern device_under_test dut;

/** Opens the plugin and its device 0. Skips the check if there is none. */
void device_open(check *);
/** Opens the device of that index. dut.ops and dut.ctx are already set. */
void device_take(check *, int32_t index);
/** Takes that device of the plugin `cuda` for a check of another kind, which is skipped where there is none. Returns
 * the plugin, for device_give_back. */
void *device_borrow(check *, int32_t index);
void device_give_back(check *, void *plugin);
/** Fails the check with the device's message if `status` is not TESS_OK. */
void must(tess_status status, const char *what);
/** Returns device memory with a copy of `data`, or undefined if `data` is null. `release` frees it. */
tess_buffer upload(const void *data, uint64_t bytes);
void download(const tess_buffer *, void *data, uint64_t bytes);
void release(tess_buffer *);
/** Runs the kernel of the built-in cpu device in host memory, for comparison. */
void run_reference(const tess_kernel *);
/** Waits for all work of a stream by an event. */
void drain(const tess_stream *);
#endif

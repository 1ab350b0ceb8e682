/* SPDX-License-Identifier: BSD-3-Clause */
/* The device under check. Its buffers may be out of the host's reach, so everything goes through its copy. */
#ifndef TESSERA_CHECK_DEVICE_H
#define TESSERA_CHECK_DEVICE_H
#include "check.h"

typedef struct {
    check *c;
    const tess_device_ops *ops;
    void *ctx;
    tess_device *device;
    tess_device_info info;
    tess_stream stream; /* compute */
    tess_error error;
} device_under_test;
extern device_under_test dut;

/** Opens the plugin and device 0 of it; skips the check where there is none. */
void device_open(check *);
/** The device of that index of a plugin that is in dut.ops and dut.ctx already. */
void device_take(check *, int32_t index);
/** Fails the check with the device's message when `status` is not TESS_OK. */
void must(tess_status status, const char *what);
/** Device memory that holds what `data` has (null: undefined); freed by release. */
tess_buffer upload(const void *data, uint64_t bytes);
void download(const tess_buffer *, void *data, uint64_t bytes);
void release(tess_buffer *);
/** Runs the kernel of the built-in cpu device in host memory, for comparison. */
void run_reference(const tess_kernel *);
/** Waits for all work of a stream, by an event. */
void drain(const tess_stream *);
#endif

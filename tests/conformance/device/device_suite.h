/* What every device must do, whoever wrote it: the cases, and how they reach the device under test. Buffers of the
 * device may be out of the host's reach, so everything goes through its copy. */
#ifndef DEVICE_SUITE_H
#define DEVICE_SUITE_H
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/plugin.h>

typedef struct {
    const tess_device_ops *ops;
    void *ctx;
    tess_device *device;
    tess_device_info info;
    tess_stream stream; /* compute */
    tess_error error;
} device_under_test;
extern device_under_test dut;

/** Fails the test with the device's message when `status` is not TESS_OK. */
void check(tess_status status, const char *what);
/** Device memory that holds what `data` has (null: undefined); freed by release. */
tess_buffer upload(const void *data, uint64_t bytes);
void download(const tess_buffer *, void *data, uint64_t bytes);
void release(tess_buffer *);
/** Waits for all work of a stream, by an event. */
void drain(const tess_stream *);
uint64_t next_random(uint64_t *state);
float random_float(uint64_t *state); /* over many magnitudes */

/* device_memory.c */
void test_device__description_is_complete_and_pure(void **);
void test_device__memory_is_aligned_and_rounded_up(void **);
void test_device__beyond_capacity_is_refused_and_harmless(void **);
void test_device__copies_keep_bytes_between_all_kinds(void **);
void test_device__fill_sets_only_what_was_asked(void **);
void test_device__events_order_streams(void **);
/* device_kernels.c: against the core's own kernels on the host */
void test_device__casts_equal_the_core(void **);
void test_device__tree_sums_equal_the_core(void **);
void test_device__scale_equals_the_core(void **);
void test_device__square_sums_equal_the_core(void **);
void test_device__optimizers_equal_the_core(void **);
void test_device__bad_kernels_are_refused(void **);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* For tests of the CUDA operators against the plain ones: arrays in both memories, both tables. */
#ifndef TESSERA_TESTS_CUDA_TABLES_H
#define TESSERA_TESTS_CUDA_TABLES_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"
#include "kit/formulas.h"
#include "tools/models/ops.h"
#include "tools/models/philox.h"

static const tess_cuda *cu;
static CUdevice device;
static CUcontext context;
static CUstream stream;

/* ---- arrays in both memories -------------------------------------------------------------------- */
typedef struct {
    void *host;
    float *dev; /* any type */
    uint64_t bytes;
} both;
enum { MOST_ARRAYS = 32 };
static both arrays[MOST_ARRAYS];
static int n_arrays;

static both take(uint64_t bytes) {
    both b = { calloc(1, ops_align(bytes) + 64), NULL, bytes };
    CUdeviceptr at;
    assert_true(n_arrays < MOST_ARRAYS);
    assert_int_equal(cu->cuMemAlloc(&at, ops_align(bytes) + 64), CUDA_SUCCESS);
    b.dev = (float *)(uintptr_t)at;
    assert_non_null(b.host);
    arrays[n_arrays++] = b;
    return b;
}

static void up(const both *b) {
    assert_int_equal(cu->cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)b->dev, b->host, b->bytes, stream), CUDA_SUCCESS);
    assert_int_equal(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
}

static float number(uint32_t which, uint64_t i) {
    return 2 * philox_uniform(philox_at(3, PHILOX_BATCH, i, which, 0).v[i & 3]) - 1;
}

static inline both numbers(uint32_t which, uint64_t elems) {
    both b = take(elems * sizeof(float));
    for (uint64_t i = 0; i < elems; i++)
        ((float *)b.host)[i] = number(which, i);
    up(&b);
    return b;
}

/* Factors of products: fp32 (0), bf16 or fp16. */
enum { IN_BF16 = 1, IN_F16, FACTOR_KINDS };
static inline uint16_t half_of(int halves, float x) {
    return halves == IN_F16 ? tess_f16_of_f32(x) : tess_bf16_of_f32(x);
}
static inline float wide_of(int halves, uint16_t half) {
    return halves == IN_F16 ? tess_f32_of_f16(half) : tess_f32_of_bf16(half);
}

/* The same weights as `from`, in the dtype that a table made for such factors takes. */
static inline both weights_of(const both *from, int halves) {
    uint64_t elems = from->bytes / sizeof(float);
    both b = take(from->bytes);
    for (uint64_t i = 0; i < elems; i++)
        if (halves)
            ((uint16_t *)b.host)[i] = half_of(halves, ((float *)from->host)[i]);
        else
            ((float *)b.host)[i] = ((float *)from->host)[i];
    up(&b);
    return b;
}

static inline both indices(uint64_t elems, int32_t below) {
    both b = take(elems * sizeof(int32_t));
    for (uint64_t i = 0; i < elems; i++)
        ((int32_t *)b.host)[i] = (int32_t)(philox_at(5, PHILOX_BATCH, i, 1, 0).v[0] % (uint32_t)below);
    up(&b);
    return b;
}

static void *down(const both *b) {
    void *got = malloc(b->bytes);
    assert_non_null(got);
    assert_int_equal(cu->cuMemcpyDtoHAsync(got, (CUdeviceptr)(uintptr_t)b->dev, b->bytes, stream), CUDA_SUCCESS);
    assert_int_equal(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
    return got;
}

static inline void same_bits(const both *b) {
    void *got = down(b);
    assert_memory_equal(got, b->host, b->bytes);
    free(got);
}

/* Both arrays of the device have the same bytes. */
static inline void same_there(const both *a, const both *b) {
    void *first = down(a), *second = down(b);
    assert_memory_equal(first, second, a->bytes);
    free(first), free(second);
}

/* `got` is freed. */
static void near_values(const both *b, float *got, double tolerance) {
    const float *expected = b->host;
    double off = 0, size = 0;
    for (uint64_t i = 0; i < b->bytes / sizeof(float); i++) {
        off += ((double)got[i] - expected[i]) * ((double)got[i] - expected[i]);
        size += (double)expected[i] * expected[i];
    }
    free(got);
    assert_true(size > 0);
    if (!(sqrt(off) <= tolerance * sqrt(size)))
        fail_msg("differs by %g of the norm, at most %g is allowed", sqrt(off / size), tolerance);
}

static void near(const both *b, double tolerance) {
    near_values(b, down(b), tolerance);
}

/* ---- both tables -------------------------------------------------------------------------------- */
typedef struct {
    ops *c, *d; /* the CPU's, the device's */
    both scratch;
} tables;

static int attention_products; /* see ops_options */
static tables open_tables_with(int halves, int cudnn_attention, uint64_t scratch_bytes) {
    const ops_table *plain, *cuda;
    const ops_options how = { .bf16 = halves == IN_BF16,
                              .fp16 = halves == IN_F16,
                              .cudnn_attention = cudnn_attention,
                              .attention_products = attention_products };
    tables t;
    assert_int_equal(ops_find("plain", &plain), TESS_OK);
    assert_int_equal(ops_find("cuda", &cuda), TESS_OK);
    assert_int_equal(plain->create(&how, &t.c), TESS_OK);
    assert_int_equal(cuda->create(&how, &t.d), TESS_OK);
    tess_stream s = { .mem = TESS_MEM_CUDA, .device = 0, .handle = stream };
    assert_int_equal(cuda->start(t.d, &s), TESS_OK);
    t.scratch = take(scratch_bytes ? scratch_bytes : 64);
    return t;
}

static tables open_tables(int halves, uint64_t scratch_bytes) {
    return open_tables_with(halves, 0, scratch_bytes);
}

static void close_tables(tables *t) {
    t->c->t->destroy(t->c);
    t->d->t->destroy(t->d);
    while (n_arrays) {
        both *b = &arrays[--n_arrays];
        free(b->host);
        assert_int_equal(cu->cuMemFree((CUdeviceptr)(uintptr_t)b->dev), CUDA_SUCCESS);
    }
}

/* The call on both, which is expected to succeed; the CPU's table is c, the device's d. */
#define ON_BOTH(t, slot, host_args, dev_args)                                                                          \
    do {                                                                                                               \
        assert_int_equal((t).c->t->slot host_args, TESS_OK);                                                           \
        assert_int_equal((t).d->t->slot dev_args, TESS_OK);                                                            \
    } while (0)

static int start(void **state) {
    char why[240];
    (void)state;
    if (tess_cuda_get(&cu, why, sizeof why) != TESS_OK) {
        printf("skipped: %s\n", why);
        exit(77);
    }
    return cu->cuDeviceGet(&device, 0) || cu->cuDevicePrimaryCtxRetain(&context, device) ||
           cu->cuCtxPushCurrent(context) || cu->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0);
}

static int finish(void **state) {
    CUcontext popped;
    (void)state;
    return cu->cuStreamDestroy(stream) || cu->cuCtxPopCurrent(&popped) || cu->cuDevicePrimaryCtxRelease(device);
}
#endif

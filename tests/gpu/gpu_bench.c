/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_bench [BYTES | once]: device-cuda against the limits of the machine, measured in the same run: kernels against a
 * copy in the device's memory, pinned copies against the driver's own, and what the engine adds to a model's kernels.
 * Prints one line for each: "what value limit ratio unit". Options of the model come as for tessera train, from the
 * environment. "once" is for a tool that looks at our kernels: gpu_bench.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_driver.h"
#include "gpu_bench.h"
#include "core/engine/state.h"
#include "core/kernels/kernels.h"
#include "tools/models/direct.h"
#include "core/kernels/norm.h"
#include "core/base/status.h"
#include "tools/support/options.h"
#include "tools/train/train.h"

enum { ROUNDS = 15, ARRAYS = 4 };

typedef struct {
    tess *t;
    const tess_device_ops *dev;
    tess_device *device;
    const tess_cuda *cu;
    uint64_t bytes, elems;
    tess_buffer array[ARRAYS], low, scratch, pinned[2];
    double copy_bandwidth;
} bench;

int gpu_bench_once;

double gpu_bench_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
double gpu_bench_median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}
void gpu_bench_say(const char *what, double value, double limit, const char *unit) {
    if (gpu_bench_once)
        puts(what);
    else
        printf("%-34s %10.2f %10.2f %6.3f %s\n", what, value, limit, value / limit, unit);
    fflush(stdout);
}

static tess_status plugin_failed(tess_status s, const tess_error *e) {
    return s == TESS_OK ? s : tess__fail(s, "%s", e->message);
}

/* ---- memory ------------------------------------------------------------------------------------ */
static tess_status take(bench *b, uint32_t mem, uint64_t bytes, tess_buffer *out) {
    tess_error e = { .struct_size = sizeof e };
    tess_alloc_request r = { .struct_size = sizeof r, .mem = mem, .numa_node = -1, .bytes = bytes, .align = 256 };
    r.domain = mem == TESS_MEM_CUDA ? TESS_DOMAIN_DEVICE : TESS_DOMAIN_HOST;
    r.category = TESS_CAT_TEMPORARY;
    out->struct_size = sizeof *out;
    return plugin_failed(b->dev->mem_alloc(b->device, &r, out, &e), &e);
}

static tess_status copy(const bench *b, void *to, uint32_t to_mem, const void *from, uint32_t from_mem,
                        uint64_t bytes) {
    tess_error e = { .struct_size = sizeof e };
    return plugin_failed(b->dev->copy(b->device, to, to_mem, from, from_mem, bytes, &b->t->device.compute, &e), &e);
}

static tess_status finish(const bench *b) {
    CUresult r = b->cu->cuStreamSynchronize(b->t->device.compute.handle);
    return r ? tess__fail(tess_cuda_status(r), "waiting: %s", tess_cuda_text(r)) : TESS_OK;
}

static tess_status obtain(bench *b) {
    for (int i = 0; i < ARRAYS; i++)
        TRY(take(b, TESS_MEM_CUDA, b->bytes, &b->array[i]));
    TRY(take(b, TESS_MEM_CUDA, b->bytes / 2, &b->low));
    TRY(take(b, TESS_MEM_CUDA, 64 << 20 < b->bytes ? 64 << 20 : b->bytes, &b->scratch));
    for (int i = 0; i < 2; i++)
        TRY(take(b, TESS_MEM_PINNED, b->bytes / 4, &b->pinned[i]));
    float *x = b->pinned[0].ptr; /* no kernel meets zeros, denormals or the root of a negative state */
    for (uint64_t i = 0; i < b->bytes / 4 / sizeof *x; i++)
        x[i] = (float)((i * 2654435761u >> 8) % 65536 + 1) * 0x1p-17f;
    for (int i = 0; i < ARRAYS; i++)
        for (uint64_t at = 0; at < b->bytes; at += b->bytes / 4)
            TRY(copy(b, (char *)b->array[i].ptr + at, TESS_MEM_CUDA, x, TESS_MEM_PINNED, b->bytes / 4));
    TRY(copy(b, b->low.ptr, TESS_MEM_CUDA, b->array[0].ptr, TESS_MEM_CUDA, b->bytes / 2));
    return finish(b);
}

static void give_back(bench *b) {
    tess_buffer *all[] = { &b->array[0], &b->array[1], &b->array[2],  &b->array[3],
                           &b->low,      &b->scratch,  &b->pinned[0], &b->pinned[1] };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->ptr)
            b->dev->mem_free(b->device, all[i]);
}

/* ---- copies ------------------------------------------------------------------------------------ */
static tess_status device_copy(bench *b) {
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double begin = gpu_bench_now();
        for (int k = 0; k < 4; k++)
            TRY(copy(b, b->array[k % 2 + 2].ptr, TESS_MEM_CUDA, b->array[k % 2].ptr, TESS_MEM_CUDA, b->bytes));
        TRY(finish(b));
        double bandwidth = 8.0 * (double)b->bytes / (gpu_bench_now() - begin);
        best = round && bandwidth > best ? bandwidth : best; /* the first warms up */
    }
    b->copy_bandwidth = best;
    printf("%-34s %10.2f GB/s, read and written: the limit of the kernels below\n", "copy in device memory",
           best * 1e-9);
    return TESS_OK;
}

/* One direction by the plugin and by the driver itself, in turns. */
static tess_status pinned_copies(bench *b, int up) {
    double ours[ROUNDS], driver[ROUNDS], bytes = (double)b->pinned[0].bytes;
    CUstream stream = b->t->device.compute.handle;
    void *host = b->pinned[0].ptr, *device = b->array[0].ptr;
    for (int round = 0; round < ROUNDS; round++) {
        double begin = gpu_bench_now();
        TRY(up ? copy(b, device, TESS_MEM_CUDA, host, TESS_MEM_PINNED, b->pinned[0].bytes)
               : copy(b, host, TESS_MEM_PINNED, device, TESS_MEM_CUDA, b->pinned[0].bytes));
        TRY(finish(b));
        ours[round] = gpu_bench_now() - begin;
        begin = gpu_bench_now();
        CUresult r = up ? b->cu->cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)device, host, b->pinned[0].bytes, stream)
                        : b->cu->cuMemcpyDtoHAsync(host, (CUdeviceptr)(uintptr_t)device, b->pinned[0].bytes, stream);
        if (r)
            return tess__fail(TESS_E_DEVICE, "copying: %s", tess_cuda_text(r));
        TRY(finish(b));
        driver[round] = gpu_bench_now() - begin;
    }
    qsort(driver, ROUNDS, sizeof *driver, by_value);
    gpu_bench_say(up ? "pinned copy to the device" : "pinned copy from the device",
                  bytes / gpu_bench_median(ours, ROUNDS) * 1e-9, bytes / driver[0] * 1e-9, "GB/s");
    return TESS_OK;
}

/* ---- kernels ----------------------------------------------------------------------------------- */
typedef struct {
    const char *what;
    uint32_t kernel, in_dtype, out_dtype, n_in, optimizer, low_copy, bytes_per_elem;
} kernel_case;
static const kernel_case cases[] = {
    { "cast f32 to bf16", TESS_K_CAST, TESS_F32, TESS_BF16, 1, 0, 0, 6 },
    { "cast bf16 to f32", TESS_K_CAST, TESS_BF16, TESS_F32, 1, 0, 0, 6 },
    { "adamw", TESS_K_OPTIMIZER, TESS_F32, TESS_F32, 1, TESS_OPT_ADAMW, 0, 28 },
    { "adamw with a bf16 copy", TESS_K_OPTIMIZER, TESS_F32, TESS_F32, 1, TESS_OPT_ADAMW, 1, 30 },
    { "adam", TESS_K_OPTIMIZER, TESS_F32, TESS_F32, 1, TESS_OPT_ADAM, 0, 28 },
    { "adadelta", TESS_K_OPTIMIZER, TESS_F32, TESS_F32, 1, TESS_OPT_ADADELTA, 0, 28 },
    { "sgd with momentum", TESS_K_OPTIMIZER, TESS_F32, TESS_F32, 1, TESS_OPT_SGD, 0, 20 },
    { "tree sum of 2", TESS_K_TREE_SUM, TESS_F32, TESS_F32, 2, 0, 0, 12 },
    { "sum of squares", TESS_K_SQUARE_SUM, TESS_F32, TESS_I64, 1, 0, 0, 4 },
};

static tess_kernel kernel_of(const bench *b, const kernel_case *c, const void **in, const tess_optimizer *optimizer) {
    int narrows = c->kernel == TESS_K_CAST && c->out_dtype == TESS_BF16;
    in[0] = c->in_dtype == TESS_BF16 ? b->low.ptr : b->array[0].ptr;
    in[1] = b->array[2].ptr;
    return (tess_kernel){ .struct_size = sizeof(tess_kernel),
                          .kernel = c->kernel,
                          .in_dtype = c->in_dtype,
                          .out_dtype = c->out_dtype,
                          .n_in = c->n_in,
                          .in = in,
                          .out = narrows ? b->low.ptr : b->array[1].ptr,
                          .out2 = c->low_copy ? b->low.ptr : NULL,
                          .state = { b->array[2].ptr, b->array[3].ptr },
                          .elems = b->elems,
                          .scale = 1,
                          .optimizer = optimizer,
                          .scratch = b->scratch.ptr,
                          .scratch_bytes = b->scratch.bytes };
}

static tess_status run_kernel(bench *b, const kernel_case *c) {
    tess_segment segment = { .struct_size = sizeof segment, .elems = b->elems, .lr = 1e-6f, .weight_decay = 0.01f };
    tess_optimizer optimizer = { .struct_size = sizeof optimizer,
                                 .optimizer = c->optimizer,
                                 .n_segments = 1,
                                 .segments = &segment,
                                 .step = 10,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.999f,
                                 .eps = 1e-8f,
                                 .rho = 0.9f,
                                 .grad_scale = 1 };
    const void *in[2];
    double seconds[ROUNDS];
    segment.momentum = c->optimizer == TESS_OPT_SGD ? 0.9f : 0;
    tess_kernel kernel = kernel_of(b, c, in, c->kernel == TESS_K_OPTIMIZER ? &optimizer : NULL);
    tess_error e = { .struct_size = sizeof e };
    for (int round = -2; round < ROUNDS; round++) {
        TRY(finish(b));
        double begin = gpu_bench_now();
        for (int k = 0; k < 4; k++)
            TRY(plugin_failed(b->dev->kernel(b->device, &kernel, &b->t->device.compute, &e), &e));
        TRY(finish(b));
        if (round >= 0)
            seconds[round] = (gpu_bench_now() - begin) / 4;
    }
    gpu_bench_say(c->what, (double)(b->elems * c->bytes_per_elem) / gpu_bench_median(seconds, ROUNDS) * 1e-9,
                  b->copy_bandwidth * 1e-9, "GB/s");
    return TESS_OK;
}

/* ---- the engine around a model's kernels --------------------------------------------------------- */
static void fill_batch(const model *m, void *batch) {
    uint8_t *text = gpt_text(batch);
    memset(batch, 0, m->desc.input_bytes);
    ((model_batch *)batch)->count = (uint32_t)(m->options.batch * m->options.context);
    for (uint64_t i = 0; i < m->desc.input_bytes - sizeof(model_batch); i++)
        text[i] = (uint8_t)(i * 7 % 61 + 32);
}

static tess_status make_gpt(tess *t, uint32_t precision, model **out) {
    train_settings s;
    TRY(train_settings_read("gpt", &s));
    model_options o = { .batch = (int32_t)s.batch,
                        .layers = (int32_t)s.layers,
                        .heads = (int32_t)s.heads,
                        .width = (int32_t)s.width,
                        .context = (int32_t)s.context,
                        .precision = precision,
                        .operators = "cuda" };
    TRY(model_create("gpt", &o, out));
    return t ? TESS_OK : (*out)->o->t->start((*out)->o, &(tess_stream){ .mem = TESS_MEM_CUDA });
}

static tess_options options_of(uint64_t input_bytes) {
    return (tess_options){ .struct_size = sizeof(tess_options),
                           .pointer_mem = 1u << TESS_MEM_HOST | 1u << TESS_MEM_CUDA,
                           .device = "cuda",
                           .optimizer = "none",
                           .input_bytes = input_bytes };
}

typedef struct {
    tess *t;
    model *m, *alone;
    direct *d;
    void *batch;
    gpt_result result;
} overhead;

static tess_status overhead_open(overhead *o) {
    TRY(make_gpt(NULL, TESS_BF16, &o->alone));
    o->batch = aligned_alloc(64, ops_align(o->alone->desc.input_bytes));
    if (!o->batch)
        return tess__fail(TESS_E_NOMEM, "no memory for a batch");
    fill_batch(o->alone, o->batch);
    TRY(direct_create(o->alone, 0, &o->d));
    tess_options options = options_of(o->alone->desc.input_bytes);
    TRY(tess_open(&options, &o->t));
    TRY(make_gpt(o->t, TESS_BF16, &o->m));
    TRY(model_start(o->t, o->m));
    TRY(model_declare(o->t, o->m));
    return tess_shard(o->t, model_fill, o->m);
}

static tess_status overhead_run(overhead *o) {
    double ours[ROUNDS], kernels[ROUNDS];
    tess_run_options run = { .struct_size = sizeof run, .kind = TESS_PASS_TRAIN, .batch = o->batch };
    run.result = &o->result;
    for (int round = -2; round < ROUNDS; round++) {
        double begin = gpu_bench_now();
        TRY(model_run(o->t, o->m, &run));
        TRY(o->m->o->t->finish(o->m->o));
        double middle = gpu_bench_now();
        TRY(tess_grad_drop(o->t));
        double again = gpu_bench_now();
        direct_zero_grads(o->d);
        TRY(direct_run(o->d, TESS_PASS_TRAIN, o->batch, 0, 0, &o->result));
        TRY(o->alone->o->t->finish(o->alone->o));
        if (round >= 0)
            ours[round] = middle - begin, kernels[round] = gpu_bench_now() - again;
    }
    double a = gpu_bench_median(ours, ROUNDS) * 1e3, k = gpu_bench_median(kernels, ROUNDS) * 1e3;
    gpu_bench_say("gpt bf16, a pass in the engine", a, k, "ms, against its kernels alone");
    return TESS_OK;
}

static tess_status measure_overhead(void) {
    overhead o;
    memset(&o, 0, sizeof o);
    setenv("TESSERA_PRECISION", "bf16", 1);
    setenv("TESSERA_STRATEGY", "none", 1);
    tess_status status = overhead_open(&o);
    if (status == TESS_OK)
        status = overhead_run(&o);
    direct_destroy(o.d);
    tess_close(o.t);
    model_destroy(o.m);
    model_destroy(o.alone);
    free(o.batch);
    return status;
}

static tess_status measure_device(uint64_t bytes) {
    bench b = { .bytes = bytes / 4096 * 4096 };
    tess_options options = options_of(0);
    char why[240];
    b.elems = b.bytes / sizeof(float);
    tess_status status = tess_cuda_get(&b.cu, why, sizeof why);
    if (status != TESS_OK)
        return tess__fail(status, "%s", why);
    TRY(tess_open(&options, &b.t));
    b.dev = b.t->device.ops;
    b.device = b.t->device.handle;
    status = obtain(&b);
    if (status == TESS_OK)
        status = device_copy(&b);
    for (size_t i = 0; i < sizeof cases / sizeof *cases && status == TESS_OK; i++)
        status = run_kernel(&b, &cases[i]);
    for (int up = 1; up >= 0 && status == TESS_OK; up--)
        status = pinned_copies(&b, up);
    give_back(&b);
    tess_close(b.t);
    if (status == TESS_OK)
        status = gpu_bench_layer(bytes, b.copy_bandwidth);
    return status == TESS_OK ? gpu_bench_ends(bytes, b.copy_bandwidth) : status;
}

/* The context of the device stays current, for the driver's own calls here. */
static tess_status keep_current(const tess_cuda **out, CUdevice *device_out) {
    const tess_cuda *cu;
    char why[240];
    CUcontext context;
    CUdevice device;
    tess_status status = tess_cuda_get(&cu, why, sizeof why);
    if (status != TESS_OK)
        return tess__fail(status, "%s", why);
    CUresult r = cu->cuDeviceGet(&device, 0);
    r = r ? r : cu->cuDevicePrimaryCtxRetain(&context, device);
    r = r ? r : cu->cuCtxPushCurrent(context);
    *out = cu;
    *device_out = device;
    return r ? tess__fail(tess_cuda_status(r), "%s", tess_cuda_text(r)) : TESS_OK;
}

int main(int argc, char **argv) {
    gpu_bench_once = argc > 1 && strcmp(argv[1], "once") == 0;
    uint64_t bytes = gpu_bench_once ? UINT64_C(1) << 20 : argc > 1 ? strtoull(argv[1], NULL, 0) : UINT64_C(1) << 30;
    const tess_cuda *cu = NULL;
    CUdevice device;
    CUcontext popped;
    tool_options_start();
    tess_status status = keep_current(&cu, &device);
    int is_current = status == TESS_OK;
    if (status == TESS_OK)
        status = measure_device(bytes);
    if (status == TESS_OK && !gpu_bench_once)
        status = measure_overhead();
    if (is_current) {
        cu->cuCtxPopCurrent(&popped);
        cu->cuDevicePrimaryCtxRelease(device);
    }
    if (status != TESS_OK)
        fprintf(stderr, "gpu_bench: %s\n", tess_last_error());
    return tess_exit_code(status);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Compares every kernel of a device bit by bit with the core's loops on the host. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "device.h"
#include "kit/norm_limbs.h"
#include <tessera/plugin_helpers.h>
#include "suites.h"

enum { ELEMS = 10007, MOST_IN = 9, MOST_BUFFERS = 16 };

/* A kernel with pointers to host memory, and their sizes. It runs on the host, or on the device through copies. */
typedef struct {
    tess_kernel kernel;
    const void *in[MOST_IN];
    uint64_t in_bytes, out_bytes, out2_bytes, state_bytes;
} job;

static tess_buffer buffers[MOST_BUFFERS];
static uint32_t n_buffers;
static void *moved(const void *host, uint64_t bytes) {
    if (!host)
        return NULL;
    buffers[n_buffers] = upload(host, bytes);
    return buffers[n_buffers++].ptr;
}
static void moved_back(void *host, uint64_t bytes) {
    if (host) {
        download(&buffers[n_buffers], host, bytes);
        n_buffers++;
    }
}

/* Output, second output and states must come back in the order in which they went, because moved_back takes `buffers`
 * in order. */
static void run_on_device(job *j) {
    tess_kernel k = j->kernel;
    tess_need need = { .struct_size = sizeof need };
    const void *in[MOST_IN];
    tess_buffer scratch = { .struct_size = sizeof scratch };
    n_buffers = 0;
    must(dut.ops->kernel_need(dut.ctx, &k, &need), "kernel_need");
    check_stated(dut.c, need.backend_bytes);
    if (need.device_bytes) {
        scratch = upload(NULL, need.device_bytes);
        k.scratch = scratch.ptr;
        k.scratch_bytes = need.device_bytes;
    }
    k.out = moved(j->kernel.out, j->out_bytes);
    k.out2 = moved(j->kernel.out2, j->out2_bytes);
    for (int i = 0; i < 4; i++)
        k.state[i] = moved(j->kernel.state[i], j->state_bytes);
    for (uint32_t i = 0; i < k.n_in; i++)
        in[i] = moved(j->in[i], j->in_bytes);
    k.in = in;
    must(dut.ops->kernel(dut.device, &k, &dut.stream, &dut.error), "kernel");
    drain(&dut.stream);
    uint32_t all = n_buffers;
    n_buffers = 0;
    moved_back(j->kernel.out, j->out_bytes);
    moved_back(j->kernel.out2, j->out2_bytes);
    for (int i = 0; i < 4; i++)
        moved_back(j->kernel.state[i], j->state_bytes);
    for (uint32_t i = 0; i < all; i++)
        release(&buffers[i]);
    release(&scratch);
}

static void run_on_host(job *j) {
    j->kernel.in = j->in;
    run_reference(&j->kernel);
}

static float values[MOST_IN][ELEMS];
static double wide[MOST_IN][ELEMS];
static void fill_values(uint64_t seed) {
    for (int k = 0; k < MOST_IN; k++)
        for (int i = 0; i < ELEMS; i++) {
            values[k][i] = check_random_float(&seed);
            wide[k][i] = (double)values[k][i] * (1 + (double)check_random_float(&seed) * 0x1p-30);
        }
    static const float special[] = { 0.0f, -0.0f, 0x1p-149f, -0x1.8p-130f, 3.4e38f, -65520.0f, 0x1p-25f };
    memcpy(values[0], special, sizeof special);
}

static int offered(const job *j) {
    tess_need need = { .struct_size = sizeof need };
    return dut.ops->kernel_need(dut.ctx, &j->kernel, &need) == TESS_OK;
}

static job cast_job(uint32_t from, uint32_t to, const void *in, void *out) {
    job j = { .kernel = { .struct_size = sizeof j.kernel,
                          .kernel = TESS_K_CAST,
                          .in_dtype = from,
                          .out_dtype = to,
                          .n_in = 1,
                          .out = out,
                          .elems = ELEMS,
                          .scale = 1 },
              .in = { in },
              .in_bytes = tess_dtype_span(from, ELEMS),
              .out_bytes = tess_dtype_span(to, ELEMS) };
    return j;
}

/* Compares bits, not values, because NaN and -0 must match too. */
__attribute__((format(printf, 6, 7))) static void same(check *self, const void *got, const void *want, uint64_t bytes,
                                                       uint64_t elem_bytes, const char *format, ...) {
    const unsigned char *g = got, *w = want;
    uint64_t at = 0, is = 0, should = 0;
    char text[200];
    while (at < bytes && g[at] == w[at])
        at++;
    if (at == bytes)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    at -= at % elem_bytes;
    memcpy(&is, g + at, elem_bytes);
    memcpy(&should, w + at, elem_bytes);
    check_fail(self, "%s: element %llu is %#llx, not %#llx", text, (unsigned long long)(at / elem_bytes),
               (unsigned long long)is, (unsigned long long)should);
}

static void casts_equal_the_core(check *self) {
    device_open(self);
    static const uint32_t dtypes[] = { TESS_F16, TESS_BF16, TESS_F32, TESS_F64 };
    static double in[ELEMS], want[ELEMS], got[ELEMS];
    int pairs = 0;
    fill_values(31);
    for (int f = 0; f < 4; f++) {
        for (int t = 0; t < 4; t++) {
            job make = cast_job(TESS_F64, dtypes[f], wide[0], in);
            run_on_host(&make); /* makes inputs in the dtype to cast from */
            job a = cast_job(dtypes[f], dtypes[t], in, want), b = cast_job(dtypes[f], dtypes[t], in, got);
            if (!offered(&b))
                continue;
            memset(got, 0, sizeof got);
            run_on_host(&a);
            run_on_device(&b);
            same(self, got, want, a.out_bytes, tess_dtype_bytes(dtypes[t]), "cast from %s to %s",
                 tess_dtype_name(dtypes[f]), tess_dtype_name(dtypes[t]));
            pairs++;
        }
    }
    check_note(self, "%d pairs of dtypes", pairs);
    job up = cast_job(TESS_F32, TESS_BF16, values[0], want); /* the two casts that training needs */
    check_that(self, offered(&up), "does not offer the cast from fp32 to bf16, which training needs");
    up = cast_job(TESS_BF16, TESS_F32, want, got);
    check_that(self, offered(&up), "does not offer the cast from bf16 to fp32, which training needs");
}

static job sum_job(uint32_t in, uint32_t out_dtype, uint32_t n, void *out, uint32_t flags, double scale) {
    job j = { .kernel = { .struct_size = sizeof j.kernel,
                          .kernel = TESS_K_TREE_SUM,
                          .in_dtype = in,
                          .out_dtype = out_dtype,
                          .n_in = n,
                          .flags = flags,
                          .out = out,
                          .elems = ELEMS,
                          .scale = scale },
              .in_bytes = tess_dtype_span(in, ELEMS),
              .out_bytes = tess_dtype_span(out_dtype, ELEMS) };
    return j;
}

static void tree_sums_equal_the_core(check *self) {
    device_open(self);
    static uint16_t low[MOST_IN][ELEMS];
    static float want[ELEMS], got[ELEMS];
    fill_values(32);
    for (int k = 0; k < MOST_IN; k++) {
        job narrow = cast_job(TESS_F32, TESS_BF16, values[k], low[k]);
        run_on_host(&narrow);
    }
    for (uint32_t n = 1; n <= MOST_IN; n++) {
        for (uint32_t variant = 0; variant < 6; variant++) { /* input f32 or bf16; plain, added and scaled, or chain */
            int bf16 = variant & 1;
            uint32_t flags = variant / 2 == 1 ? TESS_KERNEL_ADD : variant / 2 == 2 ? TESS_KERNEL_CHAIN : 0;
            double scale = variant / 2 == 1 ? 1.0 / 3 : 1;
            job a = sum_job(bf16 ? TESS_BF16 : TESS_F32, TESS_F32, n, want, flags, scale);
            if (bf16 && (flags & TESS_KERNEL_CHAIN)) /* a chain's partials are f32, and inputs have one size */
                a.kernel.n_in = 1;
            for (uint32_t k = 0; k < a.kernel.n_in; k++)
                a.in[k] = bf16 ? (void *)low[k] : values[k];
            job b = a;
            b.kernel.out = got;
            memcpy(want, values[7], sizeof want);
            memcpy(got, values[7], sizeof got);
            run_on_host(&a);
            run_on_device(&b);
            same(self, got, want, sizeof want, 4, "tree_sum of %u %s%s%s", a.kernel.n_in, bf16 ? "bf16" : "f32",
                 flags & TESS_KERNEL_ADD ? ", added and scaled" : "", flags & TESS_KERNEL_CHAIN ? ", chain" : "");
        }
    }
}

/* To blocks and back; sums of them, each sum of two in a block, into f32 and into blocks. */
static void blocks_equal_the_core(check *self) {
    enum { BYTES = (ELEMS / TESS_Q8_BLOCK + 1) * TESS_Q8_BYTES };
    static char packed[MOST_IN][BYTES], got[sizeof values[0]], want[sizeof got];
    device_open(self);
    fill_values(36);
    for (uint32_t dtype = TESS_Q8; dtype <= TESS_Q8E4M3; dtype++) {
        job pack = cast_job(TESS_F32, dtype, values[0], got), widen = cast_job(dtype, TESS_F32, packed[0], got);
        if (!offered(&pack))
            check_skip(self, "makes no blocks of 8 bits");
        run_on_device(&pack);
        for (int k = 0; k < MOST_IN; k++) {
            job a = cast_job(TESS_F32, dtype, values[k], packed[k]);
            run_on_host(&a);
        }
        same(self, got, packed[0], BYTES, 1, "cast from f32 to %s", tess_dtype_name(dtype));
        run_on_device(&widen);
        widen.kernel.out = want;
        run_on_host(&widen);
        same(self, got, want, sizeof want, 4, "cast from %s to f32", tess_dtype_name(dtype));
        for (uint32_t n = 1; n <= MOST_IN; n++)
            for (int packs = 0; packs < 2; packs++) {
                uint32_t through = dtype == TESS_Q8 ? TESS_KERNEL_Q8 : TESS_KERNEL_Q8E4M3;
                job a = sum_job(dtype, packs ? dtype : TESS_F32, n, want, through, packs ? 1 : 1.0 / 3), b;
                for (uint32_t k = 0; k < n; k++)
                    a.in[k] = packed[k];
                b = a;
                b.kernel.out = got;
                run_on_host(&a);
                run_on_device(&b);
                same(self, got, want, a.out_bytes, packs ? 1 : 4, "tree_sum of %u %s%s", n, tess_dtype_name(dtype),
                     packs ? ", packed" : "");
            }
    }
}

static void scale_equals_the_core(check *self) {
    device_open(self);
    static float want[ELEMS], got[ELEMS];
    fill_values(33);
    job a = { .kernel = { .struct_size = sizeof a.kernel,
                          .kernel = TESS_K_SCALE,
                          .in_dtype = TESS_F32,
                          .out_dtype = TESS_F32,
                          .n_in = 1,
                          .out = want,
                          .elems = ELEMS,
                          .scale = 1.0 / 7 },
              .in = { values[0] },
              .in_bytes = sizeof want,
              .out_bytes = sizeof want };
    job b = a;
    b.kernel.out = got;
    run_on_host(&a);
    run_on_device(&b);
    same(self, got, want, sizeof want, 4, "scale");
}

static void square_sums_equal_the_core(check *self) {
    device_open(self);
    int64_t want[TESS__NORM_LIMBS], got[TESS__NORM_LIMBS];
    fill_values(34);
    for (uint32_t flags = 0; flags <= TESS_KERNEL_ADD; flags += TESS_KERNEL_ADD) {
        for (uint64_t elems = 0; elems <= ELEMS; elems = elems * 5 + 1) {
            job a = { .kernel = { .struct_size = sizeof a.kernel,
                                  .kernel = TESS_K_SQUARE_SUM,
                                  .in_dtype = TESS_F32,
                                  .out_dtype = TESS_I64,
                                  .n_in = 1,
                                  .flags = flags,
                                  .out = want,
                                  .elems = elems,
                                  .scale = 0.3 },
                      .in = { values[0] },
                      .in_bytes = sizeof values[0],
                      .out_bytes = sizeof want };
            job b = a;
            memset(want, 0, sizeof want);
            want[3] = 12345;
            memcpy(got, want, sizeof got);
            b.kernel.out = got;
            run_on_host(&a);
            run_on_device(&b);
            same(self, got, want, sizeof want, 8, "square_sum of %llu elements", (unsigned long long)elems);
        }
    }
}

static const tess_segment segments[3] = {
    /* the elements between segments stay unchanged */
    { .struct_size = sizeof segments[0], .first = 3, .elems = 1000, .lr = 0.01f, .momentum = 0.9f },
    { .struct_size = sizeof segments[0],
      .first = 1003,
      .elems = 1,
      .lr = 0.02f,
      .weight_decay = 0.1f,
      .momentum = 0.5f },
    { .struct_size = sizeof segments[0],
      .first = 2048,
      .elems = ELEMS - 2048 - 5,
      .lr = 0.01f,
      .weight_decay = 0.01f,
      .momentum = 0.9f },
};

static struct { /* the host's and the device's arrays */
    float param[2][ELEMS], state0[2][ELEMS], state1[2][ELEMS];
    uint16_t low[2][ELEMS];
} stepped;

static void steps_begin(void) {
    for (int side = 0; side < 2; side++) {
        memcpy(stepped.param[side], values[1], sizeof stepped.param[side]);
        memset(stepped.state0[side], 0, sizeof stepped.state0[side]);
        memset(stepped.state1[side], 0, sizeof stepped.state1[side]);
        memset(stepped.low[side], 0x11, sizeof stepped.low[side]);
    }
}

static void step_one(int side, const tess_optimizer *o, int low_copy) {
    float *second = o->optimizer == TESS_OPT_SGD ? NULL : stepped.state1[side];
    job j = { .kernel = { .struct_size = sizeof j.kernel,
                          .kernel = TESS_K_OPTIMIZER,
                          .in_dtype = TESS_F32,
                          .out_dtype = TESS_F32,
                          .n_in = 1,
                          .out = stepped.param[side],
                          .out2 = low_copy ? stepped.low[side] : NULL,
                          .state = { stepped.state0[side], second },
                          .elems = ELEMS,
                          .optimizer = o },
              .in = { values[1 + o->step] },
              .in_bytes = sizeof stepped.param[0],
              .out_bytes = sizeof stepped.param[0],
              .out2_bytes = sizeof stepped.low[0],
              .state_bytes = sizeof stepped.param[0] };
    if (side)
        run_on_device(&j);
    else
        run_on_host(&j);
}

static void compare_steps(check *self, const char *name) {
    const float(*p)[ELEMS] = stepped.param;
    same(self, p[1], p[0], sizeof p[0], 4, "%s: parameters", name);
    same(self, stepped.state0[1], stepped.state0[0], sizeof p[0], 4, "%s: first state", name);
    same(self, stepped.state1[1], stepped.state1[0], sizeof p[0], 4, "%s: second state", name);
    same(self, stepped.low[1], stepped.low[0], sizeof stepped.low[0], 2, "%s: bf16 copy", name);
    check_that(self, memcmp(&p[1][3], &values[1][3], 4) != 0, "%s: nothing was stepped", name);
    same(self, &p[1][2], &values[1][2], 4, 4, "%s: what is in no segment", name);
    check_that(self, stepped.low[1][2] == 0x1111, "%s: the bf16 copy of what is in no segment changed", name);
    same(self, &p[1][1004], &values[1][1004], 1044 * sizeof(float), 4, "%s: what is in no segment", name);
    same(self, &p[1][ELEMS - 5], &values[1][ELEMS - 5], 5 * sizeof(float), 4, "%s: what is in no segment", name);
}

static void step_both(check *self, uint32_t optimizer, int low_copy) {
    static const char *const names[] = { "?", "sgd", "adam", "adamw", "adadelta" };
    steps_begin();
    for (uint64_t step = 1; step <= 4; step++) {
        tess_optimizer o = { .struct_size = sizeof o,
                             .optimizer = optimizer,
                             .n_segments = 3,
                             .segments = segments,
                             .step = step,
                             .beta1 = 0.9f,
                             .beta2 = 0.99f,
                             .eps = 1e-6f,
                             .rho = 0.95f,
                             .grad_scale = 0.7f };
        step_one(0, &o, low_copy);
        step_one(1, &o, low_copy);
    }
    compare_steps(self, names[optimizer]);
}

static void optimizers_equal_the_core(check *self) {
    device_open(self);
    fill_values(35);
    for (uint32_t optimizer = TESS_OPT_SGD; optimizer <= TESS_OPT_ADADELTA; optimizer++)
        for (int low_copy = 0; low_copy < 2; low_copy++)
            step_both(self, optimizer, low_copy);
}

static void refused(check *self, const job *j, const char *what) {
    tess_need need = { .struct_size = sizeof need };
    tess_status s = dut.ops->kernel_need(dut.ctx, &j->kernel, &need);
    check_that(self, s == TESS_E_UNSUPPORTED, "kernel_need of %s gave %s, expected TESS_E_UNSUPPORTED", what,
               check_status(s));
    check_that(self, dut.ops->kernel(dut.device, &j->kernel, &dut.stream, &dut.error) < 0, "runs %s", what);
}

static void bad_kernels_are_refused(check *self) {
    device_open(self);
    float x[8] = { 0 };
    job j = sum_job(TESS_F32, TESS_I32, 1, x, 0, 1);
    refused(self, &j, "a sum of f32 into i32");
    j = sum_job(TESS_F32, TESS_F32, 1, x, 0, 1);
    j.kernel.kernel = 999;
    refused(self, &j, "an unknown kernel");
    job none = cast_job(TESS_F32, TESS_BF16, x, x);
    none.kernel.elems = 0; /* no elements are no error */
    none.kernel.in = none.in;
    must(dut.ops->kernel(dut.device, &none.kernel, &dut.stream, &dut.error), "a kernel over no elements");
    drain(&dut.stream);
}

const check_case check_cases_device_kernels[] = {
    { "casts", 1, casts_equal_the_core, 0, 0 },
    { "tree_sums", 1, tree_sums_equal_the_core, 0, 0 },
    { "blocks", 1, blocks_equal_the_core, 0, 0 },
    { "scale", 1, scale_equals_the_core, 0, 0 },
    { "square_sums", 1, square_sums_equal_the_core, 0, 0 },
    { "optimizers", 1, optimizers_equal_the_core, 0, 0 },
    { "bad_kernels", 1, bad_kernels_are_refused, 0, 0 },
    { 0 },
};

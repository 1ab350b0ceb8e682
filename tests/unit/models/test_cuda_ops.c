/* SPDX-License-Identifier: BSD-3-Clause */
/* Every operator of the CUDA table against the plain one, on the doubles of the driver and of cuBLAS: what is one
 * formula per element, or a sum in the same order, to the bit; sums in another order within rounding. */
#include "cuda_tables.h"

static int n_opened;    /* for fp32, with cuDNN */
static int n_convolved; /* convolutions by cuDNN */

static int on_doubles(void) {
    return getenv("TESSERA_DOUBLE_DELAY_US") != NULL;
}

/* The next time. */
static void refuse_cudnn(void) {
    char text[40];
    snprintf(text, sizeof text, "cudnnCreate:%d", n_opened + 1);
    setenv("TESSERA_DOUBLE_FAIL", text, 1);
}

/* All three of its convolutions fail the next time, after their workspace was asked for. */
static void fail_convolutions(void) {
    static const char *const names[] = { "Forward", "BackwardData", "BackwardFilter" };
    char text[160] = "";
    for (int i = 0; i < 3; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%scudnnConvolution%s:%d", i ? "," : "", names[i],
                 n_convolved + 1);
    setenv("TESSERA_DOUBLE_FAIL", text, 1);
}

static tables open_counted(int halves, uint64_t scratch_bytes) {
    n_opened += !halves;
    return open_tables(halves, scratch_bytes);
}

static void elements_on(int halves) {
    enum { N = 5001 };
    tables t = open_counted(halves, 0);
    both x = numbers(1, N), dy = numbers(2, N), y = take(N * 4), dx = take(N * 4), half = take(N * 2),
         z = numbers(3, N);
    ON_BOTH(t, relu_backward, (t.c, x.host, dy.host, dx.host, N, 1.25f), (t.d, x.dev, dy.dev, dx.dev, N, 1.25f));
    same_bits(&dx);
    ON_BOTH(t, add, (t.c, x.host, z.host, N), (t.d, x.dev, z.dev, N));
    same_bits(&z);
    ON_BOTH(t, narrow, (t.c, x.host, half.host, N), (t.d, x.dev, (uint16_t *)half.dev, N));
    same_bits(&half);
    ON_BOTH(t, widen, (t.c, half.host, y.host, N), (t.d, (uint16_t *)half.dev, y.dev, N));
    same_bits(&y);
    ON_BOTH(t, copy, (t.c, x.host, y.host, N * 4), (t.d, x.dev, y.dev, N * 4));
    same_bits(&y);
    ON_BOTH(t, zero, (t.c, y.host, 400), (t.d, y.dev, 400));
    same_bits(&y);
    close_tables(&t);
}

static void test_cuda_ops__elementwise_equals_the_cpus_bits(void **state) {
    (void)state;
    for (int halves = 0; halves < FACTOR_KINDS; halves++)
        elements_on(halves);
}

static void test_cuda_ops__dropout_has_the_cpus_masks(void **state) {
    enum { SAMPLES = 5, ELEMS = 1030 }; /* not a multiple of four, nor of a block */
    tables t = open_counted(0, 0);
    both x = numbers(1, SAMPLES * ELEMS);
    ops_dropout drop = { .seed = UINT64_C(0x123456789a), .step = 7, .first_sample = 40, .layer = 3, .rate = 0.25f };
    (void)state;
    ON_BOTH(t, dropout, (t.c, x.host, SAMPLES, ELEMS, &drop), (t.d, x.dev, SAMPLES, ELEMS, &drop));
    same_bits(&x);
    drop.rate = 0;
    ON_BOTH(t, dropout, (t.c, x.host, SAMPLES, ELEMS, &drop), (t.d, x.dev, SAMPLES, ELEMS, &drop));
    same_bits(&x);
    close_tables(&t);
}

static void test_cuda_ops__pools_equal_the_cpus_bits(void **state) {
    ops_conv_shape s = { .batch = 3, .height = 7, .width = 10, .channels = 5 }; /* an odd row is left over */
    enum { IN = 3 * 7 * 10 * 5, OUT = 3 * 3 * 5 * 5, PLACES = 70 };
    tables t = open_counted(0, 0);
    both x = numbers(1, IN), y = take(OUT * 4), which = take(OUT), dy = numbers(2, OUT), dx = take(IN * 4);
    both mean = take(15 * 4), d = numbers(3, 15);
    (void)state;
    ON_BOTH(t, maxpool, (t.c, x.host, &s, y.host, which.host), (t.d, x.dev, &s, y.dev, (uint8_t *)which.dev));
    same_bits(&y);
    same_bits(&which);
    ON_BOTH(t, maxpool_backward, (t.c, y.host, which.host, dy.host, &s, dx.host, 2),
            (t.d, y.dev, (uint8_t *)which.dev, dy.dev, &s, dx.dev, 2));
    same_bits(&dx);
    ON_BOTH(t, avgpool, (t.c, x.host, mean.host, 3, PLACES, 5), (t.d, x.dev, mean.dev, 3, PLACES, 5));
    near(&mean, 1e-6);
    ON_BOTH(t, avgpool_backward, (t.c, d.host, dx.host, 3, PLACES, 5), (t.d, d.dev, dx.dev, 3, PLACES, 5));
    same_bits(&dx);
    close_tables(&t);
}

static void test_cuda_ops__batchnorm_equals_the_cpus_bits(void **state) {
    (void)state;
    for (int relu = 0; relu < 2; relu++)
        for (uint32_t with = OPS_BATCH; with <= OPS_RUNNING; with++) {
            ops_batchnorm_shape s = { 1300, 6, relu };
            uint64_t n = s.rows * s.channels;
            tables t = open_counted(0, ops_batchnorm_scratch(&s));
            both x = numbers(1, n), w = numbers(2, 6), b = numbers(3, 6), mean = numbers(4, 6), var = take(24);
            both y = take(n * 4), stats = take(48), dy = numbers(5, n), dx = take(n * 4), dw = take(24), db = take(24);
            for (int c = 0; c < 6; c++)
                ((float *)var.host)[c] = 0.5f + (float)c;
            up(&var), up(&dw), up(&db);
            ON_BOTH(t, batchnorm,
                    (t.c, &s, with, x.host, w.host, b.host, mean.host, var.host, y.host, stats.host, t.scratch.host),
                    (t.d, &s, with, x.dev, w.dev, b.dev, mean.dev, var.dev, y.dev, stats.dev, t.scratch.dev));
            same_bits(&y), same_bits(&stats), same_bits(&mean), same_bits(&var);
            ON_BOTH(t, batchnorm_backward,
                    (t.c, &s, x.host, w.host, stats.host, y.host, dy.host, dx.host, dw.host, db.host, t.scratch.host),
                    (t.d, &s, x.dev, w.dev, stats.dev, y.dev, dy.dev, dx.dev, dw.dev, db.dev, t.scratch.dev));
            same_bits(&dx), same_bits(&dw), same_bits(&db);
            close_tables(&t);
        }
}

static void test_cuda_ops__losses_equal_the_cpus(void **state) {
    static const uint64_t classes[] = { 3, 10, 256 };
    (void)state;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        uint64_t rows = 41, count = 37, n = classes[i];
        tables t = open_counted(0, 4096);
        both logits = numbers(1, rows * n), labels = indices(rows, (int32_t)n), loss = take(sizeof(ops_loss));
        both d = take(rows * n * 4);
        ON_BOTH(t, cross_entropy, (t.c, logits.host, labels.host, rows, n, count, loss.host, NULL),
                (t.d, logits.dev, (int32_t *)labels.dev, rows, n, count, (ops_loss *)loss.dev, t.scratch.dev));
        assert_true(t.d->t->cross_entropy_need(rows) <= 4096);
        near(&logits, 1e-6);
        ops_loss *got = down(&loss), *expected = loss.host;
        assert_true(fabs(got->loss - expected->loss) <= 1e-12 * expected->loss);
        assert_int_equal(got->correct, expected->correct);
        assert_int_equal(got->count, count);
        assert_true(got->divisor == 0);
        free(got);
        up(&logits);
        for (float scale = 1; scale <= 3; scale += 2) {
            ON_BOTH(t, cross_entropy_backward, (t.c, logits.host, labels.host, rows, n, count, scale, d.host),
                    (t.d, logits.dev, (int32_t *)labels.dev, rows, n, count, scale, d.dev));
            same_bits(&d);
        }
        for (int32_t squared = 0; squared < 2; squared++) {
            ON_BOTH(t, sum_loss, (t.c, d.host, 9, squared, 4, loss.host),
                    (t.d, d.dev, 9, squared, 4, (ops_loss *)loss.dev));
            same_bits(&loss);
            ON_BOTH(t, sum_loss_backward, (t.c, logits.host, 5, squared, 0.5f, rows * n, d.host),
                    (t.d, logits.dev, 5, squared, 0.5f, rows * n, d.dev));
            same_bits(&d);
        }
        close_tables(&t);
    }
}

static void test_cuda_ops__indices_equal_the_cpus(void **state) {
    enum { SAMPLES = 3, TIME = 11, ROWS = SAMPLES * TIME };
    tables t = open_counted(0, 0);
    both text = take(SAMPLES * (TIME + 1)), ids = take(ROWS * 4);
    (void)state;
    for (int i = 0; i < SAMPLES * (TIME + 1); i++)
        ((uint8_t *)text.host)[i] = (uint8_t)(i * 37 % 19 * 13);
    up(&text);
    ON_BOTH(t, ids, (t.c, (uint8_t *)text.host + 1, SAMPLES, TIME, TIME + 1, ids.host),
            (t.d, (uint8_t *)text.dev + 1, SAMPLES, TIME, TIME + 1, (int32_t *)ids.dev));
    same_bits(&ids);
    close_tables(&t);
}

/* fp32: the plain product in both, as cuBLAS's double is made of it, but sums over strips and columns in another order.
 * 16 bits: the plain table multiplies in fp32, so factors are rounded on one side only. */
static void linear_on(int halves, int32_t relu, int32_t no_bias) {
    ops_linear_shape s = { 45, 33, 20, relu, no_bias };
    uint64_t in = 45 * 33, out = 45 * 20;
    ops_scratch nc, nd;
    ops_linear *lc, *ld;
    tables t = open_counted(halves, 1 << 20);
    both x = numbers(1, in), wide = numbers(2, 33 * 20), w = weights_of(&wide, halves), b = numbers(3, 20);
    both dy = numbers(4, out), y = take(out * 4), dx = take(in * 4), dw = numbers(5, 33 * 20), db = numbers(6, 20);
    double within = halves ? 6e-3 : 5e-6; /* cuBLAS sums in an order of its own */
    assert_int_equal(t.c->t->linear_create(t.c, &s, &lc, &nc), TESS_OK);
    assert_int_equal(t.d->t->linear_create(t.d, &s, &ld, &nd), TESS_OK);
    assert_true(nd.forward_bytes <= 1 << 20 && nd.backward_bytes <= 1 << 20);
    void *scratch = aligned_alloc(64, ops_align(nc.forward_bytes + nc.backward_bytes));
    ON_BOTH(t, linear_forward, (lc, x.host, w.host, no_bias ? NULL : b.host, y.host, scratch),
            (ld, x.dev, w.dev, no_bias ? NULL : b.dev, y.dev, t.scratch.dev));
    near(&y, within);
    ON_BOTH(t, linear_backward, (lc, x.host, w.host, dy.host, dx.host, dw.host, db.host, scratch),
            (ld, x.dev, w.dev, dy.dev, dx.dev, dw.dev, db.dev, t.scratch.dev));
    near(&dx, within), near(&dw, within), near(&db, 1e-6);
    t.c->t->linear_destroy(lc);
    t.d->t->linear_destroy(ld);
    free(scratch);
    close_tables(&t);
}

static void test_cuda_ops__linear_equals_the_cpus(void **state) {
    (void)state;
    linear_on(0, 0, 1);
    linear_on(0, 1, 0);
    linear_on(IN_BF16, 1, 0);
    linear_on(IN_F16, 1, 0);
}

/* ALONE: without cuDNN, by products. FAILS: cuDNN's calls fail, and products take over. */
enum { WITH_CUDNN, ALONE, FAILS };
static void conv_on(const ops_conv_shape *s, int halves, int how) {
    int alone = how == ALONE;
    uint64_t in = (uint64_t)(s->batch * s->height * s->width * s->channels);
    uint64_t out = (uint64_t)(s->batch * ops_conv_height(s) * ops_conv_width(s) * s->outputs);
    uint64_t weights = (uint64_t)(s->outputs * s->channels * s->kernel * s->kernel);
    ops_scratch nc, nd;
    ops_conv *vc, *vd;
    if (alone)
        refuse_cudnn();
    tables t = open_counted(halves, 1 << 22);
    unsetenv("TESSERA_DOUBLE_FAIL");
    char described[128];
    t.d->t->describe(t.d, described, sizeof described);
    if (on_doubles())
        assert_int_equal(strstr(described, "cuDNN 9.") != NULL, !alone && !halves);
    both x = numbers(1, in), wide = numbers(2, weights), w = weights_of(&wide, halves);
    both b = numbers(3, (uint64_t)s->outputs), dy = numbers(4, out), y = take(out * 4), dx = take(in * 4);
    both dw = numbers(5, weights), db = numbers(6, (uint64_t)s->outputs);
    double within = halves ? 6e-3 : 5e-6; /* cuBLAS sums in an order of its own */
    assert_int_equal(t.c->t->conv_create(t.c, s, &vc, &nc), TESS_OK);
    assert_int_equal(t.d->t->conv_create(t.d, s, &vd, &nd), TESS_OK);
    assert_true(nd.forward_bytes <= 1 << 22 && nd.backward_bytes <= 1 << 22);
    void *scratch = aligned_alloc(64, ops_align(nc.forward_bytes + nc.backward_bytes));
    if (how == FAILS)
        fail_convolutions();
    ON_BOTH(t, conv_forward, (vc, x.host, w.host, b.host, y.host, scratch),
            (vd, x.dev, w.dev, b.dev, y.dev, t.scratch.dev));
    near(&y, within);
    ON_BOTH(t, conv_backward, (vc, x.host, w.host, dy.host, dx.host, dw.host, db.host, scratch),
            (vd, x.dev, w.dev, dy.dev, dx.dev, dw.dev, db.dev, t.scratch.dev));
    near(&dx, within), near(&dw, within), near(&db, 1e-6);
    unsetenv("TESSERA_DOUBLE_FAIL");
    n_convolved += !alone && !halves;
    t.c->t->conv_destroy(vc);
    t.d->t->conv_destroy(vd);
    free(scratch);
    close_tables(&t);
}

static void test_cuda_ops__convolution_equals_the_cpus(void **state) {
    static const ops_conv_shape shapes[] = { { 2, 9, 8, 3, 5, 3, 1, 0 },
                                             { 2, 7, 6, 4, 6, 5, 0, 2 },
                                             { 1, 5, 5, 2, 3, 1, 0, 0 } };
    ops_conv *v;
    ops_scratch need;
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int halves = 0; halves < FACTOR_KINDS; halves++)
            conv_on(&shapes[i], halves, WITH_CUDNN);
    tables t = open_counted(0, 0);
    assert_int_equal(t.d->t->conv_create(t.d, &(ops_conv_shape){ 1, 9, 9, 1, 1, 3, 0, 3 }, &v, &need),
                     TESS_E_UNSUPPORTED);
    close_tables(&t);
}

/* cuDNN refuses to start, as where there is none. */
static void test_cuda_ops__convolution_without_cudnn_equals_the_cpus(void **state) {
    static const ops_conv_shape shapes[] = { { 2, 9, 8, 3, 5, 3, 1, 0 }, { 2, 7, 6, 4, 6, 5, 0, 2 } };
    (void)state;
    if (!on_doubles())
        skip();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        conv_on(&shapes[i], 0, ALONE);
}

static void test_cuda_ops__convolution_that_fails_in_cudnn_is_done_by_products(void **state) {
    (void)state;
    if (!on_doubles())
        skip();
    conv_on(&(ops_conv_shape){ 2, 9, 8, 3, 5, 3, 1, 0 }, 0, FAILS);
}

static void test_cuda_ops__calls_before_start_are_refused(void **state) {
    const ops_table *cuda;
    ops *o;
    float x[4] = { 0 };
    (void)state;
    assert_int_equal(ops_find("cuda", &cuda), TESS_OK);
    assert_int_equal(cuda->create(NULL, &o), TESS_OK);
    assert_int_equal(cuda->add(o, x, x, 4), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "operators cuda: called before they were started on a device");
    cuda->destroy(o);
    cuda->destroy(NULL);
}

static int released;
static CUresult no_context(CUcontext *out, CUdevice d) {
    (void)d;
    *out = (CUcontext)1; /* which means nothing */
    return CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult count_release(CUdevice d) {
    (void)d;
    released++;
    return CUDA_SUCCESS;
}

static void test_cuda_ops__a_context_that_was_not_taken_is_not_given_back(void **state) {
    (void)state;
    tess_cuda *driver = (tess_cuda *)(uintptr_t)cu;
    const tess_cuda as_it_was = *cu;
    const ops_table *cuda;
    ops *o;
    assert_int_equal(ops_find("cuda", &cuda), TESS_OK);
    assert_int_equal(cuda->create(NULL, &o), TESS_OK);
    driver->cuDevicePrimaryCtxRetain = no_context, driver->cuDevicePrimaryCtxRelease = count_release;
    assert_int_equal(cuda->start(o, &(tess_stream){ .mem = TESS_MEM_CUDA, .handle = stream }), TESS_E_NOMEM);
    cuda->destroy(o);
    *driver = as_it_was;
    assert_int_equal(released, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_ops__elementwise_equals_the_cpus_bits),
        cmocka_unit_test(test_cuda_ops__dropout_has_the_cpus_masks),
        cmocka_unit_test(test_cuda_ops__pools_equal_the_cpus_bits),
        cmocka_unit_test(test_cuda_ops__batchnorm_equals_the_cpus_bits),
        cmocka_unit_test(test_cuda_ops__losses_equal_the_cpus),
        cmocka_unit_test(test_cuda_ops__indices_equal_the_cpus),
        cmocka_unit_test(test_cuda_ops__linear_equals_the_cpus),
        cmocka_unit_test(test_cuda_ops__convolution_equals_the_cpus),
        cmocka_unit_test(test_cuda_ops__convolution_without_cudnn_equals_the_cpus),
        cmocka_unit_test(test_cuda_ops__convolution_that_fails_in_cudnn_is_done_by_products),
        cmocka_unit_test(test_cuda_ops__calls_before_start_are_refused),
        cmocka_unit_test(test_cuda_ops__a_context_that_was_not_taken_is_not_given_back),
    };
    return cmocka_run_group_tests(tests, start, finish);
}

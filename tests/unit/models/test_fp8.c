/* SPDX-License-Identifier: BSD-3-Clause */
/* Products in fp8 on the CPU: formulas for every bf16, scales, a Llama against PyTorch (tests/reference/make_fp8.py),
 * and what depends on no thread, chunk or activation policy. */
#include "models_common.h"

#include <stdio.h>

#include "core/kernels/kernels.h"
#include "tools/models/decoder/decoder.h"
#include "tools/models/fp8.h"
#include "tools/models/fp8_formulas.h"
#include "tools/support/safetensors.h"

enum { HALVES = 1 << 16, STEPS = 20 };

/* ---- formulas ---------------------------------------------------------------------------------------- */
static float half(uint32_t h) {
    return tess_f32_of_bf16((uint16_t)h);
}
static float power(int exponent) {
    return tess_f32_of_bits((uint32_t)(exponent + 127) << 23);
}
static float top_of(int e5m2) {
    return e5m2 ? 57344.0f : 448.0f;
}

static tool_safetensors *reference(void) {
    char path[512];
    tool_safetensors *f;
    snprintf(path, sizeof path, "%s/tests/reference/data/llama-fp8.safetensors", TESSERA_SOURCE_DIR);
    assert_int_equal(tool_safetensors_open(path, &f), TESS_OK);
    return f;
}
static void read_tensor(const char *name, void *out, uint64_t bytes) {
    tool_safetensors *f = reference();
    const tool_tensor *t = tool_safetensors_find(f, name);
    if (!t || t->bytes != bytes)
        fail_msg("no tensor %s of %llu bytes", name, (unsigned long long)bytes);
    assert_int_equal(tool_safetensors_read(f, t, 0, t->elems, out), TESS_OK);
    tool_safetensors_close(f);
}

static void test_fp8__codes_are_those_of_pytorch(void **state) {
    (void)state;
    for (int e5m2 = 0; e5m2 < 2; e5m2++) {
        float stored[4]; /* 16 bits each */
        uint64_t hash = 1469598103934665603u;
        for (uint32_t h = 0; h < HALVES; h++)
            if (fabsf(half(h)) <= top_of(e5m2))
                hash = (hash ^ fp8_code(half(h), 1, e5m2)) * 1099511628211u;
        read_tensor(e5m2 ? "codes.e5m2" : "codes.e4m3", stored, sizeof stored);
        for (int k = 0; k < 4; k++)
            assert_true((float)(hash >> 16 * k & 0xffff) == stored[k]);
    }
}

/* For every bf16 and each scale: what stays as a bf16 is the code's value divided by the scale. */
static void test_fp8__a_bf16_holds_what_a_code_means(void **state) {
    (void)state;
    for (int e5m2 = 0; e5m2 < 2; e5m2++)
        for (int e = -FP8_EXPONENTS; e <= FP8_EXPONENTS; e++)
            for (uint32_t h = 0; h < HALVES; h++) {
                float scale = power(e), inverse = fp8_inverse(scale), x = half(h);
                float stays = fp8_rounded(x, scale, inverse, e5m2), means = fp8_value(fp8_code(x, scale, e5m2), e5m2);
                int is_finite = (h & 0x7f80) != 0x7f80;
                if (is_finite
                        ? stays != means * inverse || tess_f32_bits(stays) & 0xffff || signbit(stays) != signbit(x)
                        : stays == stays || means == means)
                    fail_msg("0x%04x with 2^%d, e5m2 %d: %g, its code means %g", h, e, e5m2, (double)stays,
                             (double)(means * inverse));
            }
}

static void test_fp8__every_code_is_its_values_code(void **state) {
    (void)state;
    for (int e5m2 = 0; e5m2 < 2; e5m2++)
        for (int code = 0; code < 256; code++) {
            float value = fp8_value((uint8_t)code, e5m2);
            if (value == value && fabsf(value) <= top_of(e5m2))
                assert_int_equal(fp8_code(value, 1, e5m2), code);
            else
                assert_int_equal(fp8_code(value, 1, e5m2) & 0x7f, FP8_NAN);
        }
}

static void test_fp8__a_scale_is_the_largest_power_of_two_that_fits(void **state) {
    (void)state;
    for (int e5m2 = 0; e5m2 < 2; e5m2++)
        for (uint32_t h = 1; h < 0x7f80; h++) {
            float scale = fp8_scale(h << 16, e5m2), most = half(h) * scale;
            assert_int_equal(tess_f32_bits(scale) & 0x7fffff, 0);
            assert_true(fp8_inverse(scale) * scale == 1);
            if (scale < power(FP8_EXPONENTS) && scale > power(-FP8_EXPONENTS))
                assert_true(most <= top_of(e5m2) && 2 * most > top_of(e5m2));
        }
    assert_true(fp8_scale(0, FP8_E4M3) == 1 && fp8_scale(0, FP8_E5M2) == 1);
    assert_true(fp8_inverse(fp8_scale(1 << 16, 0)) * fp8_inverse(fp8_scale(1 << 16, 1)) >= 0x1p-126f);
}

/* ---- tensors ------------------------------------------------------------------------------------------- */
static void test_fp8__tensors_keep_what_is_not_finite_and_any_threads_agree(void **state) {
    enum { N = 50000 };
    static uint16_t x[N], y[N], one[N];
    const ops_table *plain;
    (void)state;
    for (uint32_t i = 0; i < N; i++)
        x[i] = tess_bf16_of_f32(batch_uniform(i, 1, 2) - 0.5f);
    x[700] = 0x7f80, x[701] = 0xff80, x[40000] = 0x7fc0, x[41000] = tess_bf16_of_f32(-3.5f);
    assert_int_equal(ops_find("plain", &plain), TESS_OK);
    for (int32_t threads = 1; threads <= 5; threads++) {
        const ops_options how = { .threads = threads, .bf16 = 1 };
        ops *o;
        assert_int_equal(plain->create(&how, &o), TESS_OK);
        assert_int_equal(fp8_most(o, x, N, 0), tess_f32_bits(3.5f));
        assert_int_equal(fp8_most(o, x, 700, tess_f32_bits(8)), tess_f32_bits(8));
        fp8_round(o, x, y, N, fp8_scale(tess_f32_bits(3.5f), FP8_E4M3), FP8_E4M3);
        if (threads == 1)
            memcpy(one, y, sizeof one);
        assert_memory_equal(one, y, sizeof one);
        plain->destroy(o);
    }
    for (uint32_t i = 0; i < N; i++)
        assert_true(i == 700 || i == 701 || i == 40000 ? isnan(half(y[i])) : fabsf(half(y[i])) <= 3.5f);
    assert_int_equal(y[41000], x[41000]);
}

/* ---- a Llama -------------------------------------------------------------------------------------------- */
static model_options llama(uint32_t products) {
    model_options o = { .batch = 2, .layers = 2, .width = 32, .heads = 2, .context = 16, .dropout = -1, .seed = 1 };
    o.decoder.kv_heads = 1, o.decoder.feed = 48, o.precision = TESS_BF16, o.products = products;
    return o;
}

static void fill_text(run *r, uint64_t microbatch) {
    int32_t n = r->m->options.context + 1, samples = r->m->options.batch;
    model_batch *head = r->batch;
    uint8_t text[64];
    memset(r->batch, 0, r->m->desc.input_bytes);
    head->count = (uint32_t)(samples * (n - 1));
    for (int32_t s = 0; s < samples; s++) {
        gpt_sample((uint32_t)microbatch * (uint32_t)samples + (uint32_t)s, text, n);
        for (int32_t t = 0; t < n; t++)
            lm_tokens(r->batch)[s * n + t] = text[t];
    }
}

static double pass(run *r, uint64_t step) {
    _Alignas(64) char result[sizeof(model_result) + 256 * sizeof(float) + 64];
    fill_text(r, step);
    direct_zero_grads(r->d);
    assert_int_equal(direct_run(r->d, TESS_PASS_TRAIN, r->batch, step, step, result), TESS_OK);
    return ((model_result *)(void *)result)->loss / (double)((model_result *)(void *)result)->count;
}

static void step_adamw(run *r, uint64_t step, float **states) {
    for (int32_t p = 0; p < r->m->desc.n_params; p++) {
        const model_param *param = &r->m->desc.params[p];
        if (param->alias_of[0])
            continue;
        tess_segment s = { .struct_size = sizeof s, .elems = (uint64_t)param->elems, .lr = 1e-3f };
        s.weight_decay = param->ndim > 1 ? 0.1f : 0;
        tess_optimizer o = { .struct_size = sizeof o, .optimizer = TESS_OPT_ADAMW, .n_segments = 1, .segments = &s };
        o.step = step + 1, o.beta1 = 0.9f, o.beta2 = 0.999f, o.eps = 1e-8f, o.grad_scale = 1;
        tess_kernel k = { .struct_size = sizeof k, .kernel = TESS_K_OPTIMIZER, .n_in = 1, .optimizer = &o };
        k.in_dtype = k.out_dtype = TESS_F32, k.elems = s.elems;
        k.in = (const void *[]){ direct_grad(r->d, p) }, k.out = direct_param(r->d, p);
        k.state[0] = states[2 * p], k.state[1] = states[2 * p + 1];
        assert_int_equal(tess__kernel_run(&k, NULL, NULL), TESS_OK);
    }
}

enum { TENSORS = 64 };
/* How far the first step's gradients of a layer's matrices are from PyTorch's in fp8, of the norm of all. */
static double gradients_off(run *r) {
    double off = 0, size = 0;
    pass(r, 0);
    for (int32_t p = 0; p < r->m->desc.n_params; p++) {
        const model_param *param = &r->m->desc.params[p];
        float *expected = malloc((size_t)param->elems * sizeof(float) + 1);
        assert_non_null(expected);
        if (strncmp(param->name, "layers", 6) == 0 && param->ndim > 1) {
            read_tensor(param->name, expected, (uint64_t)param->elems * sizeof(float));
            off += pow(norm_of(direct_grad(r->d, p), expected, param->elems), 2);
            size += pow(norm_of(expected, NULL, param->elems), 2);
        }
        free(expected);
    }
    return sqrt(off / size);
}

/* They are off by what bf16 rounds elsewhere, which now and then makes another code. Products in bf16 are further away.
 */
static void test_fp8__the_first_gradients_are_those_of_pytorch(void **state) {
    double off[2];
    (void)state;
    for (int fp8 = 0; fp8 < 2; fp8++) {
        model_options o = llama(fp8 ? TESS_F8E4M3 : 0);
        run r = run_create("llama", &o);
        off[fp8] = gradients_off(&r);
        assert_int_equal(strstr(r.m->operators, "7 of a layer's 7 matrices in fp8 products") != NULL, fp8);
        run_destroy(&r);
    }
    print_message("gradients off by %.3f of their norm, in bf16 by %.3f\n", off[1], off[0]);
    assert_true(off[1] < 0.04 && off[0] > 2 * off[1]);
}

static void test_fp8__losses_follow_pytorch(void **state) {
    float expected[STEPS + 1], *states[2 * TENSORS];
    double worst = 0;
    model_options o = llama(TESS_F8E4M3);
    run r = run_create("llama", &o);
    (void)state;
    read_tensor("losses.fp8", expected, sizeof expected);
    for (int p = 0; p < 2 * TENSORS; p++)
        states[p] =
            p < 2 * r.m->desc.n_params ? calloc((size_t)r.m->desc.params[p / 2].elems + 1, sizeof(float)) : NULL;
    for (uint64_t step = 0; step <= STEPS; step++) {
        double off = fabs(pass(&r, step) / (double)expected[step] - 1);
        assert_true(isfinite(off)); /* fmax would pass it over */
        worst = fmax(worst, off);
        step_adamw(&r, step, states);
    }
    for (int p = 0; p < 2 * TENSORS; p++)
        free(states[p]);
    run_destroy(&r);
    print_message("losses at most %.2g off in %d steps\n", worst, STEPS);
    assert_true(worst < 1e-3);
}

/* ---- refusals and shapes ------------------------------------------------------------------------------- */
static void refused(const char *name, model_options o, tess_status status, const char *line) {
    model *m = NULL;
    assert_int_equal(model_create(name, &o, &m), status);
    if (!strstr(tess_last_error(), line))
        fail_msg("expected \"%s\": %s", line, tess_last_error());
}

static void test_fp8__refuses_in_one_line(void **state) {
    model_options o = llama(TESS_F8E4M3);
    (void)state;
    o.precision = TESS_F32;
    refused("llama", o, TESS_E_INVALID, "products in f8e4m3: expected fp8 (e4m3), beside bf16");
    o = llama(TESS_F8E5M2);
    refused("llama", o, TESS_E_INVALID, "products in f8e5m2: expected fp8 (e4m3), beside bf16");
    o = llama(TESS_F8E4M3), o.context = 15, o.batch = 1;
    refused("llama", o, TESS_E_UNSUPPORTED, "llama: no product can be in fp8: 15 rows (batch times context), width 32");
    o = llama(TESS_F8E4M3), o.lora.rank = 2, o.lora.alpha = 2;
    strcpy(o.lora.targets, "all-linear");
    refused("llama", o, TESS_E_UNSUPPORTED, "products in fp8 are not for adapters (--lora)");
}

/* A feed-forward half of odd width stays in bf16, the rest does not. */
static void test_fp8__products_of_odd_sides_stay_in_bf16(void **state) {
    model_options o = llama(TESS_F8E4M3);
    (void)state;
    o.decoder.feed = 40;
    run r = run_create("llama", &o);
    assert_non_null(strstr(r.m->operators, ", 4 of a layer's 7 matrices in fp8 products"));
    for (int32_t p = 0; p < r.m->desc.n_params; p++) {
        const char *name = r.m->desc.params[p].name;
        assert_int_equal(r.m->desc.params[p].in_fp8, strstr(name, "_proj") && strstr(name, "self_attn"));
    }
    assert_true(pass(&r, 0) > 0);
    run_destroy(&r);
}

/* Where a layer's scratch is the largest, what is written behind it is found (direct_intact). The largest products are
 * each of a layer's in turn. */
static void test_fp8__rounded_factors_fit_into_what_is_stated(void **state) {
    static const struct {
        int32_t width, kv_heads, feed;
    } sizes[] = { { 32, 1, 16 }, { 32, 1, 512 }, { 128, 2, 16 }, { 256, 2, 48 } };
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int halves = 0; halves < 2; halves++) {
            model_options o = llama(TESS_F8E4M3);
            o.width = sizes[i].width, o.decoder.kv_heads = sizes[i].kv_heads, o.decoder.feed = sizes[i].feed;
            o.decoder.vocabulary = 64, o.half_units = halves;
            run r = run_create("llama", &o);
            assert_true(pass(&r, 0) > 0);
            run_destroy(&r);
        }
}

/* A scale of a chunk would not be that of a device, which has none. */
static void test_fp8__a_layer_has_one_chunk(void **state) {
    (void)state;
    for (int fp8 = 0; fp8 < 2; fp8++) {
        model_options o = llama(fp8 ? TESS_F8E4M3 : 0);
        model *m;
        o.batch = 16, o.context = 64;
        assert_int_equal(model_create("llama", &o, &m), TESS_OK);
        assert_int_equal(((const decoder *)m->own)->chunk_samples == o.batch, fp8);
        model_destroy(m);
    }
}

/* A NaN in one matrix is a NaN in the loss, not a number. */
static void test_fp8__a_nan_reaches_the_loss(void **state) {
    model_options o = llama(TESS_F8E4M3);
    run r = run_create("llama", &o);
    (void)state;
    for (int32_t p = 0; p < r.m->desc.n_params; p++)
        if (strstr(r.m->desc.params[p].name, "layers.1.mlp.up_proj"))
            direct_param(r.d, p)[5] = NAN;
    assert_true(isnan(pass(&r, 0)));
    run_destroy(&r);
}

/* All of a layer's products are in fp8, and bytes of codes are all that is beyond bf16. */
static void test_fp8__a_layer_costs_its_codes_and_products(void **state) {
    model_options o = llama(TESS_F8E4M3);
    run eight = run_create("llama", &o);
    o.products = 0;
    run sixteen = run_create("llama", &o);
    const decoder *d = eight.m->own;
    double rows = (double)d->rows, x = rows * (double)(2 * d->width + d->q_width + d->hidden), w = 0;
    double dy = rows * (double)(d->qkv_width + 2 * d->width + 2 * d->hidden);
    model_cost a = model_block_cost(eight.m, 1), b = model_block_cost(sixteen.m, 1);
    (void)state;
    for (int32_t p = 0; p < eight.m->desc.n_params; p++)
        if (strstr(eight.m->desc.params[p].name, "layers.0.") && eight.m->desc.params[p].in_fp8)
            w += (double)eight.m->desc.params[p].elems;
    assert_true(w > 0 && a.forward_fp8 == 2 * rows * w && a.backward_fp8 == 4 * rows * w);
    assert_true(b.forward_fp8 == 0 && b.backward_fp8 == 0 && a.forward_flops == b.forward_flops);
    assert_true(a.forward_bytes - b.forward_bytes == 6 * (x + w));
    assert_true(a.backward_bytes - b.backward_bytes == 6 * (x + w + 2 * dy));
    assert_int_equal(a.forward_kernels - b.forward_kernels, 2 * 4);
    assert_int_equal(a.backward_kernels - b.backward_kernels, 4 * 4);
    assert_true(model_block_cost(eight.m, 0).forward_bytes == model_block_cost(sixteen.m, 0).forward_bytes);
    run_destroy(&eight), run_destroy(&sixteen);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp8__codes_are_those_of_pytorch),
        cmocka_unit_test(test_fp8__a_bf16_holds_what_a_code_means),
        cmocka_unit_test(test_fp8__every_code_is_its_values_code),
        cmocka_unit_test(test_fp8__a_scale_is_the_largest_power_of_two_that_fits),
        cmocka_unit_test(test_fp8__tensors_keep_what_is_not_finite_and_any_threads_agree),
        cmocka_unit_test(test_fp8__the_first_gradients_are_those_of_pytorch),
        cmocka_unit_test(test_fp8__losses_follow_pytorch),
        cmocka_unit_test(test_fp8__refuses_in_one_line),
        cmocka_unit_test(test_fp8__products_of_odd_sides_stay_in_bf16),
        cmocka_unit_test(test_fp8__rounded_factors_fit_into_what_is_stated),
        cmocka_unit_test(test_fp8__a_layer_has_one_chunk),
        cmocka_unit_test(test_fp8__a_nan_reaches_the_loss),
        cmocka_unit_test(test_fp8__a_layer_costs_its_codes_and_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

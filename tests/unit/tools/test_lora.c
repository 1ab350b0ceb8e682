/* SPDX-License-Identifier: BSD-3-Clause */
/* Adapters against peft: logits, gradients and 20 steps (tests/reference); in every family against matrices that have
 * their product in them; blocks of codes; folders that are refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kit/formulas.h"
#include "tools/models/direct.h"
#include "tools/models/philox.h"
#include "tools/plan/hf_config.h"
#include "tools/support/peft_folder.h"
#include "tools/support/safetensors.h"
#include "tools/train/hf_weights.h"
#include "../scratch_dir.h"

enum { STEPS = 20, BATCH = 2, CONTEXT = 16, VOCABULARY = 64, ROWS = BATCH * CONTEXT, TOKENS = BATCH * (CONTEXT + 1) };
enum { FP16_SCALE = 1024 };

typedef struct {
    const char *folder, *base, *model;
} reference;
static const reference references[] = { { "peft-llama", "hf-llama", "llama" }, { "peft-gpt2", "hf-gpt2", "gpt2" } };

typedef struct {
    model *m;
    direct *d;
    void *batch, *result;
    tool_safetensors *values, *adapters;
    float **state; /* two per parameter */
} run;

static void path_of(const char *name, const char *end, char out[512]) {
    snprintf(out, 512, "%s/tests/reference/data/%s%s", TESSERA_SOURCE_DIR, name, end);
}

static float *load(const tool_safetensors *from, const char *name, uint64_t elems) {
    const tool_tensor *t = tool_safetensors_find(from, name);
    if (!t || t->elems != elems)
        fail_msg("no tensor %s of %llu elements", name, (unsigned long long)elems);
    float *data = malloc(elems * sizeof *data);
    assert_non_null(data);
    assert_int_equal(tool_safetensors_read(from, t, 0, elems, data), TESS_OK);
    return data;
}

/* Of adapter p, by its name there. */
static float *load_adapter(const run *r, const tool_safetensors *from, int32_t p) {
    char name[PEFT_NAME];
    peft_name(r->m->t->name, r->m->desc.params[p].name, name);
    return load(from, name, (uint64_t)r->m->desc.params[p].elems);
}

static void fill(run *r, const char *folder) {
    hf_weights *f = NULL;
    if (hf_weights_open(folder, r->m, &f) != TESS_OK)
        fail_msg("%s", tess_last_error());
    for (int32_t p = 0; p < r->m->desc.n_params; p++) {
        const model_param *param = &r->m->desc.params[p];
        tess_range all = {
            .struct_size = sizeof all, .tag = (uint64_t)p, .elems = (uint64_t)param->elems, .name = "all"
        };
        if (param->alias_of[0])
            continue;
        if (!param->is_adapter) {
            assert_int_equal(hf_weights_fill(f, &all, direct_param(r->d, p)), TESS_OK);
            continue;
        }
        float *values = load_adapter(r, r->adapters, p);
        memcpy(direct_param(r->d, p), values, (size_t)param->elems * sizeof *values);
        free(values);
    }
    hf_weights_close(f);
}

static model_options options_of(const reference *c, const char *operators, uint32_t precision) {
    char folder[512];
    int32_t positions = 0;
    model_options o = { .batch = BATCH, .context = CONTEXT, .seed = 1, .operators = operators, .precision = precision };
    peft_config config;
    path_of(c->base, "", folder);
    if (hf_config_read(folder, c->model, &o, &positions) != TESS_OK)
        fail_msg("%s", tess_last_error());
    path_of(c->folder, "", folder);
    if (peft_config_read(folder, &config) != TESS_OK)
        fail_msg("%s", tess_last_error());
    o.lora = (model_lora){ .rank = config.rank, .rooted = config.rooted, .alpha = (float)config.alpha };
    memcpy(o.lora.targets, config.targets, sizeof o.lora.targets);
    return o;
}

static run open_run(const reference *c, const char *operators, int halves, uint32_t precision) {
    char path[512];
    model_options o = options_of(c, operators, precision);
    run r = { 0 };
    o.half_units = halves;
    path_of(c->folder, ".safetensors", path);
    if (model_create(c->model, &o, &r.m) != TESS_OK || direct_create(r.m, 1, &r.d) != TESS_OK ||
        tool_safetensors_open(path, &r.values) != TESS_OK)
        fail_msg("%s", tess_last_error());
    path_of(c->folder, "/adapter_model.safetensors", path);
    assert_int_equal(tool_safetensors_open(path, &r.adapters), TESS_OK);
    r.batch = calloc(1, r.m->desc.input_bytes);
    r.result = calloc(1, r.m->desc.result_bytes);
    r.state = calloc((size_t)r.m->desc.n_params * 2, sizeof *r.state);
    for (int32_t p = 0; p < 2 * r.m->desc.n_params; p++)
        r.state[p] = calloc((size_t)r.m->desc.params[p / 2].elems + 1, sizeof(float));
    path_of(c->base, "", path);
    fill(&r, path);
    return r;
}

static void close_run(run *r) {
    assert_true(direct_intact(r->d));
    for (int32_t p = 0; p < 2 * r->m->desc.n_params; p++)
        free(r->state[p]);
    free(r->state);
    free(r->batch);
    free(r->result);
    tool_safetensors_close(r->values);
    tool_safetensors_close(r->adapters);
    direct_destroy(r->d);
    model_destroy(r->m);
}

static double pass(run *r, uint32_t kind, uint64_t step, int row) {
    const tool_tensor *t = tool_safetensors_find(r->values, "tokens");
    assert_non_null(t);
    assert_int_equal(tool_safetensors_read_raw(r->values, t, step * TOKENS, TOKENS, lm_tokens(r->batch)), TESS_OK);
    *(model_batch *)r->batch =
        (model_batch){ .count = ROWS, .want_logits = row >= 0, .logits_row = row < 0 ? 0 : (uint32_t)row };
    if (direct_run(r->d, kind, r->batch, 0, 0, r->result) != TESS_OK)
        fail_msg("%s", tess_last_error());
    return ((const model_result *)r->result)->loss / ROWS;
}

static void compare_logits(run *r) {
    float *expected = load(r->values, "logits", ROWS * VOCABULARY);
    for (int row = 0; row < ROWS; row++) {
        pass(r, TESS_PASS_EVAL, 0, row);
        for (int c = 0; c < VOCABULARY; c++)
            if (!(fabs((double)(lm_logits(r->result)[c] - expected[row * VOCABULARY + c])) < 1e-5))
                fail_msg("logit %d of row %d is %g, expected %g", c, row, (double)lm_logits(r->result)[c],
                         (double)expected[row * VOCABULARY + c]);
    }
    free(expected);
}

static void compare_gradients(run *r) {
    direct_zero_grads(r->d);
    pass(r, TESS_PASS_TRAIN, 0, -1);
    for (int32_t p = 0; p < r->m->desc.n_params; p++) {
        double off = 0, size = 0;
        if (!r->m->desc.params[p].is_adapter)
            continue;
        float *theirs = load_adapter(r, r->values, p);
        for (int64_t i = 0; i < r->m->desc.params[p].elems; i++) {
            double t = (double)theirs[i], difference = (double)direct_grad(r->d, p)[i] - t;
            off += difference * difference;
            size += t * t;
        }
        if (!(sqrt(off / size) < 1e-5))
            fail_msg("%s is %g of its norm off", r->m->desc.params[p].name, sqrt(off / size));
        free(theirs);
    }
}

static void adamw(run *r, int32_t p, int step, float scale) {
    double c1 = 1 - pow(0.9, step), c2 = 1 - pow(0.999, step);
    float *w = direct_param(r->d, p), *m = r->state[2 * p], *v = r->state[2 * p + 1];
    const float *g = direct_grad(r->d, p);
    for (int64_t i = 0; i < r->m->desc.params[p].elems; i++) {
        const float mean = g[i] / scale;
        m[i] = 0.9f * m[i] + 0.1f * mean;
        v[i] = 0.999f * v[i] + 0.001f * mean * mean;
        w[i] = (float)((double)w[i] * (1 - 1e-3 * 0.1) - 1e-3 * (m[i] / c1) / (sqrt(v[i] / c2) + 1e-8));
    }
}

/* The greatest difference of all losses from those stored as `name`, which must be less than `most`. */
static double compare_losses(run *r, const char *name, double most, float scale) {
    float *expected = load(r->values, name, STEPS + 1);
    double worst = 0;
    direct_scale_loss(r->d, scale);
    for (int step = 0; step <= STEPS; step++) {
        direct_zero_grads(r->d);
        double loss = pass(r, TESS_PASS_TRAIN, (uint64_t)(step % STEPS), -1);
        worst = fmax(worst, fabs(loss - (double)expected[step]));
        if (!(worst < most) || !isfinite(loss)) /* fmax passes NaN over */
            fail_msg("loss of step %d is %.9g, expected %.9g", step, loss, (double)expected[step]);
        for (int32_t p = 0; p < r->m->desc.n_params; p++)
            if (r->m->desc.params[p].is_adapter)
                adamw(r, p, step + 1, scale);
    }
    free(expected);
    return worst;
}

static void test_lora__follows_peft(void **state) {
    static const char *const operators[] = { "plain", "auto" };
    (void)state;
    for (size_t c = 0; c < sizeof references / sizeof *references; c++)
        for (int o = 0; o < 2; o++) {
            run r = open_run(&references[c], operators[o], o == 0, TESS_F32);
            compare_logits(&r);
            compare_gradients(&r);
            compare_losses(&r, "losses", 1e-5, 1);
            close_run(&r);
        }
}

/* peft's own fp16, which rounds each product, is up to 3e-4 from its fp64; ours rounds at block boundaries alone, and
 * is as far. */
static void test_lora__follows_peft_in_fp16(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof references / sizeof *references; c++) {
        run r = open_run(&references[c], "auto", 0, TESS_F16);
        assert_non_null(strstr(r.m->operators, "fp16"));
        const double off = compare_losses(&r, "losses_fp16", 1e-3, FP16_SCALE);
        print_message("%s: losses in fp16 at most %.2g off\n", references[c].folder, off);
        assert_true(off > 0);
        close_run(&r);
    }
}

/* ---- every family, against a matrix that has the adapter's product in it ------------------------------ */
enum { RANK = 3 };
#define SMALL_MODEL .batch = 4, .layers = 2, .heads = 4, .width = 24, .context = 48 /* two chunks */
static const struct {
    const char *name;
    model_options o;
} families[] = {
    { "gpt2", { SMALL_MODEL, .decoder = { .vocabulary = 61 } } },
    { "qwen2",
      { SMALL_MODEL, .untied = 1, .decoder = { .vocabulary = 61, .kv_heads = 2, .head_size = 10, .feed = 36 } } },
    { "qwen3",
      { SMALL_MODEL, .half_units = 1,
        .decoder = { .vocabulary = 61, .kv_heads = 2, .feed = 36, .window = 5, .window_from = 1 } } },
    { "gemma2",
      { SMALL_MODEL, .decoder = { .vocabulary = 61,
                                  .kv_heads = 1,
                                  .head_size = 8,
                                  .feed = 36,
                                  .window = 4,
                                  .window_every = 2,
                                  .attention_cap = 0.7,
                                  .logit_cap = 2 } } },
    { "gemma3",
      { SMALL_MODEL,
        .decoder = { .vocabulary = 61, .kv_heads = 2, .feed = 36, .window = 4, .rope_local_theta = 30 } } },
};

typedef struct {
    model *m;
    direct *d;
} side;

static side open_side(const char *name, const model_options *o) {
    side s;
    if (model_create(name, o, &s.m) != TESS_OK || direct_create(s.m, 1, &s.d) != TESS_OK)
        fail_msg("%s", tess_last_error());
    return s;
}

static void close_side(side *s) {
    assert_true(direct_intact(s->d));
    direct_destroy(s->d);
    model_destroy(s->m);
}

static int32_t param_of(const side *s, const char *name) {
    for (int32_t p = 0; p < s->m->desc.n_params; p++)
        if (strcmp(s->m->desc.params[p].name, name) == 0)
            return p;
    fail_msg("no parameter %s", name);
    return -1;
}

/* As it rests at `to`; and what that is. */
static void rest(uint32_t stored, float *x, int64_t elems, void *to) {
    for (int64_t i = 0; i < elems; i += STORED_BLOCK) {
        float block[STORED_BLOCK] = { 0 };
        size_t n = (size_t)(elems - i < STORED_BLOCK ? elems - i : STORED_BLOCK);
        memcpy(block, x + i, n * sizeof *x);
        for (size_t k = 0; k < n && stored == STORED_BF16; k++)
            ((uint16_t *)to)[(size_t)i + k] = tess_bf16_of_f32(block[k]);
        if (stored == STORED_F32)
            memcpy((float *)to + i, block, n * sizeof *x);
        if (stored_in_blocks(stored))
            stored_pack(stored, block, (uint8_t *)to + i / STORED_BLOCK * stored_block_bytes(stored));
    }
    stored_read(stored, to, 0, elems, x);
}

static void shake(float *x, int64_t elems, int32_t p, float by) {
    for (int64_t i = 0; i < elems; i++)
        x[i] += by * (2 * philox_uniform(philox_at(5, PHILOX_BATCH, (uint64_t)i, (uint32_t)p, 8).v[0]) - 1);
}

/* The same values on both sides, of matrices without the adapters' part. */
static void share_values(side *beside, side *within) {
    for (int32_t p = 0; p < beside->m->desc.n_params; p++) {
        const model_param *of = &beside->m->desc.params[p];
        float *x = direct_param(beside->d, p);
        if (of->is_adapter)
            memset(x, 0, (size_t)of->elems * sizeof *x);
        if (of->alias_of[0] || of->is_adapter) {
            shake(x, of->is_adapter ? of->elems : 0, p, 0.3f);
            continue;
        }
        float *w = direct_param(within->d, param_of(within, of->name));
        shake(w, of->elems, p, of->ndim == 2 ? 0.4f : 0.2f);
        rest(of->stored, w, of->elems, x);
    }
}

typedef struct { /* parameters of an adapter: A, behind which B is, and the matrix on the other side */
    int32_t a, matrix;
    int64_t outputs, inputs;
} pair;

static pair pair_of(const side *beside, const side *within, int32_t a) {
    char name[MODEL_NAME];
    const model_param *p = &beside->m->desc.params[a];
    snprintf(name, sizeof name, "%.*sweight", (int)(strstr(p->name, "lora_A") - p->name), p->name);
    return (pair){ a, param_of(within, name), p[1].shape[0], p->shape[1] };
}

static void add_product(side *beside, side *within, const pair *of, float scale) {
    const float *a = direct_param(beside->d, of->a), *b = direct_param(beside->d, of->a + 1);
    float *w = direct_param(within->d, of->matrix);
    for (int64_t i = 0; i < of->outputs * of->inputs; i++)
        for (int64_t k = 0; k < RANK; k++)
            w[i] += scale * b[i / of->inputs * RANK + k] * a[k * of->inputs + i % of->inputs];
}

static double off_by(const double *expected, const float *got, int64_t n) {
    double off = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        off += (expected[i] - (double)got[i]) * (expected[i] - (double)got[i]);
        size += expected[i] * expected[i];
    }
    return sqrt(off / size);
}

/* dA = scale · B^T dW and dB = scale · dW A^T. */
static void compare_pair(side *beside, side *within, const pair *of, float scale) {
    double da[96 * RANK] = { 0 }, db[96 * RANK] = { 0 }; /* 96: the widest */
    const float *a = direct_param(beside->d, of->a), *b = direct_param(beside->d, of->a + 1);
    const float *dw = direct_grad(within->d, of->matrix);
    assert_true(of->inputs <= 96 && of->outputs <= 96);
    for (int64_t i = 0; i < of->outputs * of->inputs; i++)
        for (int64_t k = 0; k < RANK; k++) {
            int64_t row = i / of->inputs, column = i % of->inputs;
            da[k * of->inputs + column] += (double)(scale * b[row * RANK + k]) * (double)dw[i];
            db[row * RANK + k] += (double)(scale * a[k * of->inputs + column]) * (double)dw[i];
        }
    double off_a = off_by(da, direct_grad(beside->d, of->a), RANK * of->inputs),
           off_b = off_by(db, direct_grad(beside->d, of->a + 1), of->outputs * RANK);
    if (!(off_a < 1e-5 && off_b < 1e-5))
        fail_msg("%s, %s: %g and %g of their norm off", beside->m->t->name, beside->m->desc.params[of->a].name, off_a,
                 off_b);
}

static double loss_of(side *s, void *batch) {
    model_result *result = calloc(1, s->m->desc.result_bytes);
    direct_zero_grads(s->d);
    if (direct_run(s->d, TESS_PASS_TRAIN, batch, 0, 0, result) != TESS_OK)
        fail_msg("%s", tess_last_error());
    double loss = result->loss / (double)result->count;
    free(result);
    return loss;
}

static void compare_sides(const char *name, const model_options *o, uint32_t stored) {
    model_options adapted = *o;
    adapted.lora = (model_lora){ .rank = RANK, .alpha = 6, .matrices = stored, .targets = "all-linear" };
    adapted.lora.tables = stored == STORED_F32 ? STORED_F32 : STORED_BF16;
    side beside = open_side(name, &adapted), within = open_side(name, o);
    float scale = 6.0f / RANK;
    void *batch = calloc(1, within.m->desc.input_bytes);
    share_values(&beside, &within);
    for (int32_t p = 0; p < beside.m->desc.n_params; p++)
        if (strstr(beside.m->desc.params[p].name, "lora_A")) {
            pair of = pair_of(&beside, &within, p);
            add_product(&beside, &within, &of, scale);
        }
    ((model_batch *)batch)->count = (uint32_t)(o->batch * o->context);
    for (int32_t i = 0; i < o->batch * (o->context + 1); i++)
        lm_tokens(batch)[i] = (i * i * 7 + 3 * i) % 61;
    double a = loss_of(&beside, batch), b = loss_of(&within, batch);
    if (!(fabs(a - b) < 1e-5 * b))
        fail_msg("%s, %s: loss %.9g beside the matrices, %.9g within", name, stored_name(stored), a, b);
    for (int32_t p = 0; p < beside.m->desc.n_params; p++)
        if (strstr(beside.m->desc.params[p].name, "lora_A")) {
            pair of = pair_of(&beside, &within, p);
            compare_pair(&beside, &within, &of, scale);
        }
    free(batch);
    close_side(&beside);
    close_side(&within);
}

static void test_lora__an_adapter_is_a_part_of_its_matrix(void **state) {
    static const uint32_t stored[] = { STORED_F32, STORED_BF16, STORED_NF4 };
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (int k = 0; k < 3; k++) {
            model_options o = families[i].o;
            o.operators = k ? "plain" : "auto";
            compare_sides(families[i].name, &o, stored[k]);
        }
}

/* ---- blocks of codes --------------------------------------------------------------------------------- */
static void test_lora__codes_are_the_nearest(void **state) {
    static const float nf4[4] = { -1.0f, 0.0f, 0.07958029955625534f, 1.0f };
    float x[STORED_BLOCK] = { -3, 0, 0.3f, 3, 0.1f }, back[STORED_BLOCK];
    uint8_t block[STORED_BLOCK_BYTES];
    (void)state;
    stored_pack(STORED_NF4, x, block);
    stored_read(STORED_NF4, block, 0, STORED_BLOCK, back);
    for (int i = 0; i < 4; i++)
        assert_true(back[i] == nf4[i] * 3.0f);
    assert_true(back[4] == 0);        /* 0.033 is nearer to 0 than to 0.0796 */
    assert_int_equal(block[4], 0x07); /* -1 in the upper half, then 0 */
    stored_pack(STORED_INT8, x, block);
    stored_read(STORED_INT8, block, 0, STORED_BLOCK, back);
    for (int i = 0; i < STORED_BLOCK; i++)
        assert_true(fabsf(back[i] - x[i]) <= 3.0f / 254.0f + 1e-6f);
    memset(x, 0, sizeof x);
    for (uint32_t kind = STORED_INT8; kind < STORED_KINDS; kind++) {
        stored_pack(kind, x, block);
        stored_read(kind, block, 3, 5, back);
        assert_true(back[0] == 0 && back[4] == 0);
    }
}

/* A shard may begin and end within a block. */
static void test_lora__any_run_of_codes_is_made_alike(void **state) {
    (void)state;
    for (uint32_t kind = STORED_INT8; kind < STORED_KINDS; kind++) {
        model_options o = { .batch = 1, .layers = 1, .heads = 2, .width = 158, .context = 4, .operators = "plain" };
        model *m = NULL;
        o.lora = (model_lora){ .rank = 2, .alpha = 2, .matrices = kind, .targets = "c_attn" };
        assert_int_equal(model_create("gpt2", &o, &m), TESS_OK);
        int32_t p = 0;
        while (strcmp(m->desc.params[p].name, "h.0.attn.c_attn.weight") != 0)
            p++;
        assert_int_equal(m->desc.params[p].elems, 74892); /* more than are made at once; the last block has 12 */
        uint64_t bytes = (uint64_t)stored_elems(kind, 74892);
        assert_int_equal(bytes, 1171 * stored_block_bytes(kind));
        uint8_t *whole = malloc(bytes), *parts = malloc(bytes);
        tess_range r = { .struct_size = sizeof r, .tag = (uint64_t)p, .slice_elems = bytes, .elems = bytes };
        assert_int_equal(model_fill(m, &r, whole), TESS_OK);
        for (uint64_t at = 0; at < bytes; at += r.elems) {
            r.first_elem = at;
            r.elems = bytes - at < 23 ? bytes - at : 23;
            assert_int_equal(model_fill(m, &r, parts + at), TESS_OK);
        }
        assert_memory_equal(whole, parts, bytes);
        free(whole);
        free(parts);
        model_destroy(m);
    }
}

/* ---- folders ----------------------------------------------------------------------------------------- */
static void test_lora__what_is_written_reads_back(void **state) {
    const peft_config c = { .rank = 7, .rooted = 1, .alpha = 3.5, .targets = "q_proj,mlp.down_proj" };
    peft_config back;
    scratch_dir dir;
    (void)state;
    assert_int_equal(scratch_dir_make(&dir), 0);
    assert_int_equal(peft_config_write(dir.path, &c, "a/base", 0), TESS_OK);
    if (peft_config_read(dir.path, &back) != TESS_OK)
        fail_msg("%s", tess_last_error());
    assert_int_equal(back.rank, 7);
    assert_int_equal(back.rooted, 1);
    assert_true(back.alpha == 3.5);
    assert_string_equal(back.targets, c.targets);
    scratch_dir_remove(&dir);
}

static void test_lora__what_is_not_supported_is_refused_by_name(void **state) {
    static const struct {
        const char *member, *says;
    } rows[] = {
        { "\"use_dora\":true", "\"use_dora\" is set" },
        { "\"modules_to_save\":[\"lm_head\"]", "\"modules_to_save\" is set" },
        { "\"lora_dropout\":0.05", "\"lora_dropout\" is set" },
        { "\"rank_pattern\":{\"q_proj\":8}", "\"rank_pattern\" is set" },
        { "\"layers_to_transform\":[0]", "\"layers_to_transform\" is set" },
        { "\"bias\":\"all\"", "\"bias\" is all, expected \"none\"" },
        { "\"something_new\":1", "\"something_new\" is set" },
    };
    static const char *const fine[] = { "\"use_dora\":false", "\"modules_to_save\":null", "\"rank_pattern\": { }",
                                        "\"lora_dropout\":0.0", "\"alpha_pattern\":{},\"layers_pattern\":[ ]" };
    peft_config c;
    scratch_dir dir;
    char text[512];
    (void)state;
    assert_int_equal(scratch_dir_make(&dir), 0);
    const char *around = "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4,\"target_modules\":[\"q_proj\"],%s}";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(text, sizeof text, around, rows[i].member);
        assert_int_equal(scratch_write(&dir, "adapter_config.json", text, strlen(text)), 0);
        assert_int_equal(peft_config_read(dir.path, &c), TESS_E_DATA);
        if (!strstr(tess_last_error(), rows[i].says))
            fail_msg("%s: %s", rows[i].member, tess_last_error());
    }
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        snprintf(text, sizeof text, around, fine[i]);
        assert_int_equal(scratch_write(&dir, "adapter_config.json", text, strlen(text)), 0);
        if (peft_config_read(dir.path, &c) != TESS_OK)
            fail_msg("%s: %s", fine[i], tess_last_error());
    }
    scratch_dir_remove(&dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lora__follows_peft),
        cmocka_unit_test(test_lora__follows_peft_in_fp16),
        cmocka_unit_test(test_lora__an_adapter_is_a_part_of_its_matrix),
        cmocka_unit_test(test_lora__codes_are_the_nearest),
        cmocka_unit_test(test_lora__any_run_of_codes_is_made_alike),
        cmocka_unit_test(test_lora__what_is_written_reads_back),
        cmocka_unit_test(test_lora__what_is_not_supported_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

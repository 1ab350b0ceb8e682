/* SPDX-License-Identifier: BSD-3-Clause */
/* Models from Hugging Face folders against transformers: logits, gradients and 20 steps (tests/reference). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tools/models/decoder/decoder.h"
#include "tools/models/direct.h"
#include "tools/plan/hf_config.h"
#include "tools/train/hf_weights.h"
#include "../scratch_dir.h"
#include "tools/support/hf_export.h"
#include "tools/support/hf_family.h"
#include "tools/support/hf_names.h"
#include "tools/support/safetensors.h"

enum { STEPS = 20, BATCH = 2, CONTEXT = 16, VOCABULARY = 64, ROWS = BATCH * CONTEXT, TOKENS = BATCH * (CONTEXT + 1) };

typedef struct {
    const char *folder, *model;
} reference;
/* Those with a number are drawn at random (tests/reference/make_hf_reference.py). */
static const reference references[] = {
    { "hf-llama", "llama" },       { "hf-llama-tied", "llama" },  { "hf-gpt2", "gpt2" },
    { "hf-yarn-1", "llama" },      { "hf-yarn-2", "llama" },      { "hf-qwen2-1", "qwen2" },
    { "hf-qwen2-2", "qwen2" },     { "hf-qwen3-1", "qwen3" },     { "hf-qwen3-2", "qwen3" },
    { "hf-mistral-1", "mistral" }, { "hf-mistral-2", "mistral" }, { "hf-gemma2-1", "gemma2" },
    { "hf-gemma2-2", "gemma2" },   { "hf-gemma3-1", "gemma3" },   { "hf-gemma3-2", "gemma3" }
};

typedef struct {
    model *m;
    direct *d;
    void *batch, *result;
    tool_safetensors *values;
    float **state; /* two per parameter */
} run;

static void path_of(const char *name, const char *end, char out[512]) {
    snprintf(out, 512, "%s/tests/reference/data/%s%s", TESSERA_SOURCE_DIR, name, end);
}

static float *load(const run *r, const char *name, uint64_t *elems) {
    const tool_tensor *t = tool_safetensors_find(r->values, name);
    if (!t)
        fail_msg("no tensor %s", name);
    float *data = malloc(t->elems * sizeof *data);
    assert_non_null(data);
    assert_int_equal(tool_safetensors_read(r->values, t, 0, t->elems, data), TESS_OK);
    *elems = t->elems;
    return data;
}

static int is_own(const run *r, int32_t p) {
    return !r->m->desc.params[p].alias_of[0];
}

static void fill(run *r, const char *folder) {
    hf_weights *f = NULL;
    if (hf_weights_open(folder, r->m, &f) != TESS_OK)
        fail_msg("%s", tess_last_error());
    for (int32_t p = 0; p < r->m->desc.n_params; p++) {
        if (!is_own(r, p))
            continue;
        uint64_t elems = (uint64_t)r->m->desc.params[p].elems;
        for (uint64_t at = 0; at < elems;) { /* by ranges, as ranks do */
            tess_range part = { .struct_size = sizeof part, .tag = (uint64_t)p, .first_elem = at, .name = "part" };
            part.elems = elems - at < 37 ? elems - at : 37;
            assert_int_equal(hf_weights_fill(f, &part, direct_param(r->d, p) + at), TESS_OK);
            at += part.elems;
        }
    }
    hf_weights_close(f);
}

static run open_run(const reference *c, const char *operators, uint32_t precision) {
    char folder[512], values[512];
    int32_t positions = 0;
    model_options o = { .batch = BATCH, .context = CONTEXT, .seed = 1, .operators = operators, .precision = precision };
    run r = { 0 };
    path_of(c->folder, "", folder);
    path_of(c->folder, ".safetensors", values);
    if (hf_config_read(folder, c->model, &o, &positions) != TESS_OK || model_create(c->model, &o, &r.m) != TESS_OK ||
        direct_create(r.m, 1, &r.d) != TESS_OK || tool_safetensors_open(values, &r.values) != TESS_OK)
        fail_msg("%s", tess_last_error());
    assert_int_equal(positions, strcmp(c->model, "gpt2") == 0 ? 32 : 64);
    r.batch = calloc(1, r.m->desc.input_bytes);
    r.result = calloc(1, r.m->desc.result_bytes);
    r.state = calloc((size_t)r.m->desc.n_params * 2, sizeof *r.state);
    for (int32_t p = 0; p < 2 * r.m->desc.n_params; p++)
        r.state[p] = calloc((size_t)r.m->desc.params[p / 2].elems + 1, sizeof(float));
    fill(&r, folder);
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
    direct_destroy(r->d);
    model_destroy(r->m);
}

static void take_batch(run *r, uint64_t step) {
    const tool_tensor *t = tool_safetensors_find(r->values, "tokens");
    assert_non_null(t);
    assert_int_equal(tool_safetensors_read_raw(r->values, t, step * TOKENS, TOKENS, lm_tokens(r->batch)), TESS_OK);
    *(model_batch *)r->batch = (model_batch){ .count = ROWS };
}

static double pass(run *r, uint32_t kind) {
    if (direct_run(r->d, kind, r->batch, 0, 0, r->result) != TESS_OK)
        fail_msg("%s", tess_last_error());
    const model_result *sum = r->result;
    assert_int_equal(sum->count, ROWS);
    return sum->loss / ROWS;
}

static void compare_logits(run *r) {
    uint64_t elems;
    float *expected = load(r, "logits", &elems);
    assert_int_equal(elems, ROWS * VOCABULARY);
    double most = 0;
    for (uint64_t i = 0; i < elems; i++)
        most = fmax(most, fabs((double)expected[i]));
    take_batch(r, 0);
    for (uint32_t row = 0; row < ROWS; row++) {
        ((model_batch *)r->batch)->want_logits = 1;
        ((model_batch *)r->batch)->logits_row = row;
        pass(r, TESS_PASS_EVAL);
        for (int c = 0; c < VOCABULARY; c++)
            if (!(fabs((double)(lm_logits(r->result)[c] - expected[row * VOCABULARY + c])) < 1e-5 * most))
                fail_msg("logit %d of row %u is %g, expected %g", c, row, (double)lm_logits(r->result)[c],
                         (double)expected[row * VOCABULARY + c]);
    }
    free(expected);
}

/* |ours - theirs| / |theirs|, theirs turned where it is. */
static double distance(const float *ours, const float *theirs, const model_param *p, int turned) {
    double difference = 0, size = 0;
    int64_t rows = p->shape[0], columns = p->elems / rows;
    for (int64_t i = 0; i < p->elems; i++) {
        double t = (double)theirs[turned ? i % columns * rows + i / columns : i];
        difference += (ours[i] - t) * (ours[i] - t);
        size += t * t;
    }
    return sqrt(difference / size);
}

static void compare_gradients(run *r) {
    take_batch(r, 0);
    direct_zero_grads(r->d);
    pass(r, TESS_PASS_TRAIN);
    for (int32_t p = 0; p < r->m->desc.n_params; p++) {
        char name[HF_NAME];
        uint64_t elems;
        if (!is_own(r, p))
            continue;
        int turned = hf_name(r->m->t->name, r->m->desc.params[p].name, r->m->desc.params[p].ndim, name);
        float *theirs = load(r, name, &elems);
        double off = distance(direct_grad(r->d, p), theirs, &r->m->desc.params[p], turned);
        if (!(off < 1e-5))
            fail_msg("%s is %g of its norm off", name, off);
        free(theirs);
    }
}

static void adamw(run *r, int32_t p, int step) {
    const model_param *param = &r->m->desc.params[p];
    double decay = param->ndim >= 2 ? 0.1 : 0, c1 = 1 - pow(0.9, step), c2 = 1 - pow(0.999, step);
    float *w = direct_param(r->d, p), *m = r->state[2 * p], *v = r->state[2 * p + 1];
    const float *g = direct_grad(r->d, p);
    for (int64_t i = 0; i < param->elems; i++) {
        m[i] = 0.9f * m[i] + 0.1f * g[i];
        v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
        w[i] = (float)((double)w[i] * (1 - 1e-3 * decay) - 1e-3 * (m[i] / c1) / (sqrt(v[i] / c2) + 1e-8));
    }
}

static void compare_losses(run *r, double tolerance) {
    uint64_t elems;
    float *expected = load(r, "losses", &elems);
    assert_int_equal(elems, STEPS + 1);
    for (int step = 0; step <= STEPS; step++) {
        take_batch(r, (uint64_t)(step % STEPS));
        direct_zero_grads(r->d);
        double loss = pass(r, TESS_PASS_TRAIN);
        if (!(fabs(loss - (double)expected[step]) < tolerance))
            fail_msg("loss of step %d is %g, expected %g", step, loss, (double)expected[step]);
        for (int32_t p = 0; p < r->m->desc.n_params; p++)
            if (is_own(r, p))
                adamw(r, p, step + 1);
    }
    free(expected);
}

static void test_hf_weights__follows_transformers(void **state) {
    static const char *const operators[] = { "plain", "auto" };
    (void)state;
    for (size_t c = 0; c < sizeof references / sizeof *references; c++)
        for (int o = 0; o < 2; o++) {
            run r = open_run(&references[c], operators[o], TESS_F32);
            compare_logits(&r);
            compare_gradients(&r);
            compare_losses(&r, 1e-4);
            close_run(&r);
        }
}

static void test_hf_weights__in_bf16_stays_within_a_percent(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof references / sizeof *references; c++) {
        run r = open_run(&references[c], "auto", TESS_BF16);
        compare_losses(&r, 0.05);
        close_run(&r);
    }
}

static void test_hf_weights__another_shape_is_refused(void **state) {
    char folder[512];
    model_options o = { .batch = BATCH, .context = CONTEXT, .operators = "plain" };
    int32_t positions;
    model *m = NULL;
    hf_weights *f = NULL;
    (void)state;
    path_of("hf-llama", "", folder);
    assert_int_equal(hf_config_read(folder, "gpt2", &o, &positions), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "model_type \"llama\", but gpt2 is to be trained"));
    assert_int_equal(hf_config_read(folder, "llama", &o, &positions), TESS_OK);
    o.decoder.feed = 32;
    assert_int_equal(model_create("llama", &o, &m), TESS_OK);
    assert_int_equal(hf_weights_open(folder, m, &f), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "has shape 24 x 16, expected 32 x 16 from config.json"));
    model_destroy(m);
    path_of("hf-gpt2", "", folder);
    o.decoder.feed = 24;
    assert_int_equal(model_create("llama", &o, &m), TESS_OK);
    assert_int_equal(hf_weights_open(folder, m, &f), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "no tensor 'model.embed_tokens.weight' in model.safetensors"));
    model_destroy(m);
}

/* A sequence read a position at a time gives the logits of a pass over all of it; how far they
 * are off, in parts of the largest. */
static double compare_sequence(run *r) {
    model_batch *head = r->batch;
    int32_t tokens[CONTEXT];
    float whole[VOCABULARY];
    uint64_t bytes = 0;
    double most = 0, off = 0;
    assert_int_equal(model_sequence_begin(r->m, &bytes), TESS_OK);
    assert_true(bytes >= (uint64_t)(CONTEXT * r->m->options.layers) * sizeof(float));
    take_batch(r, 3);
    memcpy(tokens, lm_tokens(r->batch), sizeof tokens);
    for (uint32_t t = 0; t < CONTEXT + 3; t++) { /* the last three come again, after positions that are forgotten */
        uint32_t at = t < CONTEXT ? t : 2 + t - CONTEXT;
        take_batch(r, 3);
        head->want_logits = 1;
        head->logits_row = at;
        pass(r, TESS_PASS_EVAL);
        memcpy(whole, lm_logits(r->result), sizeof whole);
        lm_tokens(r->batch)[0] = tokens[at];
        *head = (model_batch){ .position = at + 1 };
        assert_int_equal(direct_run(r->d, TESS_PASS_EVAL, r->batch, 0, 0, r->result), TESS_OK);
        for (int c = 0; c < VOCABULARY; c++) {
            most = fmax(most, fabs((double)whole[c]));
            assert_true(isfinite((double)lm_logits(r->result)[c])); /* fmax would pass it over */
            off = fmax(off, fabs((double)whole[c] - (double)lm_logits(r->result)[c]));
        }
    }
    *head = (model_batch){ .position = 7 }; /* position 6 of a sequence of 5 */
    assert_int_equal(direct_run(r->d, TESS_PASS_EVAL, r->batch, 0, 0, r->result), TESS_E_INVALID);
    model_sequence_end(r->m);
    return off / most;
}

/* Gemma's bound is that of its functions. If each module's result in fp64 is off by half a unit in the last place of
 * fp32, logits of hf-gemma2-1 move by up to 4.3e-6 of the largest, of hf-gemma3-1 by 2.9e-6, of the others by 1.5e-6.
 */
static void test_hf_weights__a_position_at_a_time_gives_the_same_logits(void **state) {
    static const char *const operators[] = { "plain", "auto" };
    (void)state;
    for (size_t c = 0; c < sizeof references / sizeof *references; c++)
        for (int o = 0; o < 2; o++) {
            run r = open_run(&references[c], operators[o], TESS_F32),
                half = open_run(&references[c], "auto", TESS_BF16);
            double off = compare_sequence(&r), half_off = compare_sequence(&half);
            int is_gemma = references[c].model[0] == 'g' && references[c].model[1] == 'e';
            if (!(off < (is_gemma ? 5e-6 : 2e-6)) || !(half_off < (is_gemma ? 0.05 : 0.02)))
                fail_msg("%s: %g of the largest logit off, in bf16 %g", references[c].folder, off, half_off);
            close_run(&half);
            close_run(&r);
        }
}

/* Writes what the run holds into `folder`, in pieces that end within matrices, and files of at most 8 KiB. */
static void export_run(const run *r, const char *source, const char *folder) {
    tool_tensor *list = calloc((size_t)r->m->desc.n_params, sizeof *list);
    hf_export *x = NULL;
    char *config = NULL;
    uint64_t n = 0;
    assert_int_equal(hf_config_make(r->m, source, &config), TESS_OK);
    for (int32_t p = 0; p < r->m->desc.n_params; p++) {
        const model_param *param = &r->m->desc.params[p];
        if (!is_own(r, p))
            continue;
        snprintf(list[n].name, sizeof list[n].name, "%s", param->name);
        list[n].dtype = TESS_F32;
        list[n].ndim = param->ndim;
        memcpy(list[n++].shape, param->shape, sizeof param->shape);
    }
    assert_int_equal(hf_export_create(folder, r->m->t->name, config, list, n, 8192, &x), TESS_OK);
    for (int32_t p = 0; p < r->m->desc.n_params; p++)
        for (int64_t at = 0; is_own(r, p) && at < r->m->desc.params[p].elems; at += 100) {
            int64_t left = r->m->desc.params[p].elems - at;
            uint64_t bytes = (uint64_t)(left < 100 ? left : 100) * sizeof(float);
            assert_int_equal(hf_export_write(x, direct_param(r->d, p) + at, bytes), TESS_OK);
        }
    assert_int_equal(hf_export_commit(x), TESS_OK);
    free(config);
    free(list);
}

/* What was exported reads as the same model with the same bits. */
static void compare_export(const run *r, const char *folder) {
    model_options o = { .batch = BATCH, .context = CONTEXT, .seed = 9, .operators = "plain" };
    int32_t positions = 0;
    run back = { 0 };
    if (hf_config_read(folder, r->m->t->name, &o, &positions) != TESS_OK)
        fail_msg("%s", tess_last_error());
    assert_int_equal(model_create(r->m->t->name, &o, &back.m), TESS_OK);
    assert_int_equal(direct_create(back.m, 1, &back.d), TESS_OK);
    fill(&back, folder);
    assert_int_equal(back.m->desc.n_params, r->m->desc.n_params);
    assert_int_equal(o.untied, r->m->options.untied);
    assert_memory_equal(&back.m->options.decoder, &r->m->options.decoder, sizeof(model_decoder));
    for (int32_t p = 0; p < r->m->desc.n_params; p++)
        if (is_own(r, p))
            assert_memory_equal(direct_param(back.d, p), direct_param(r->d, p),
                                (size_t)r->m->desc.params[p].elems * sizeof(float));
    direct_destroy(back.d);
    model_destroy(back.m);
}

static void test_hf_weights__what_is_exported_reads_back_the_same(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof references / sizeof *references; c++) {
        char source[512];
        scratch_dir dir;
        run r = open_run(&references[c], "plain", TESS_F32);
        assert_int_equal(scratch_dir_make(&dir), 0);
        path_of(references[c].folder, "", source);
        export_run(&r, source, dir.path);
        compare_export(&r, dir.path);
        scratch_dir_remove(&dir);
        close_run(&r);
    }
}

static void test_hf_weights__a_model_made_from_nothing_has_a_config(void **state) {
    (void)state;
    for (const hf_family *f = hf_families; f->model; f++) {
        model_options o = { .batch = 1, .context = 24, .layers = 3, .heads = 4, .width = 48, .seed = 1 }, back = o;
        char path[] = "/tmp/tessera-config-XXXXXX", *config = NULL;
        int32_t positions = 0;
        model *m = NULL;
        o.operators = "plain";
        assert_int_equal(model_create(f->model, &o, &m), TESS_OK);
        assert_int_equal(hf_config_make(m, NULL, &config), TESS_OK);
        assert_null(strpbrk(config, " \n\t"));
        int file = mkstemp(path);
        assert_int_equal(write(file, config, strlen(config)), strlen(config));
        close(file);
        back.layers = back.heads = back.width = 0;
        if (hf_config_read(path, f->model, &back, &positions) != TESS_OK)
            fail_msg("%s", tess_last_error());
        assert_int_equal(positions, 24);
        assert_int_equal(back.layers, 3);
        assert_int_equal(back.heads, 4);
        assert_int_equal(back.width, 48);
        assert_int_equal(back.untied, 0);
        assert_int_equal(back.decoder.vocabulary, 256);
        assert_int_equal(back.decoder.feed, m->options.decoder.feed ? m->options.decoder.feed : 192);
        assert_int_equal(back.decoder.kv_heads, m->options.decoder.kv_heads);
        unlink(path);
        free(config);
        model_destroy(m);
    }
}

/* What a config.json with this text gives. */
static tess_status read_text(const scratch_dir *dir, const char *model, const char *text) {
    model_options o = { .batch = 1 };
    int32_t positions;
    assert_int_equal(scratch_write(dir, "config.json", text, strlen(text)), 0);
    return hf_config_read(dir->path, model, &o, &positions);
}

static void read_member(const scratch_dir *dir, const hf_family *of, const char *around, const hf_field *f) {
    static const char *const wrong[] = {
        [HF_WHOLE] = "0",        [HF_COUNT] = "-1",        [HF_REAL] = "0",     [HF_RATE] = "1",
        [HF_BOOL] = "1",         [HF_TEXT] = "\"else\"",   [HF_TRUE] = "false", [HF_FALSE] = "true",
        [HF_ONE] = "0.5",        [HF_EMPTY] = "{\"0\":1}", [HF_ROPE] = "3",     [HF_OBJECT] = "3",
        [HF_LAYER_TYPES] = "[]", [HF_IGNORED] = "[\"?\"]"
    };
    char text[512], at[512], refusal[128];
    const char *model = of->model;
    snprintf(at, sizeof at, around, hf_family_type(of), f->key);
    snprintf(text, sizeof text, at, wrong[f->kind]);
    snprintf(refusal, sizeof refusal, "config.json: \"%s\": expected ", f->key);
    assert_int_equal(read_text(dir, model, text), f->kind == HF_IGNORED ? TESS_OK : TESS_E_DATA);
    if (f->kind != HF_IGNORED && !strstr(tess_last_error(), refusal))
        fail_msg("%s: %s", text, tess_last_error());
    snprintf(text, sizeof text, at, "null");
    if (read_text(dir, model, text) != (f->required ? TESS_E_DATA : TESS_OK))
        fail_msg("%s: %s", text, tess_last_error());
}

static void test_hf_weights__every_member_is_refused_by_its_name(void **state) {
    scratch_dir dir;
    (void)state;
    assert_int_equal(scratch_dir_make(&dir), 0);
    for (const hf_family *of = hf_families; of->model; of++) {
        for (const hf_field *f = hf_any_fields; f->key; f++)
            read_member(&dir, of, "{\"model_type\":\"%s\",\"%s\":%%s}", f);
        for (const hf_field *f = of->fields; f->key; f++) {
            read_member(&dir, of, "{\"model_type\":\"%s\",\"%s\":%%s}", f);
            for (const hf_field *in = f->inner; in && in->key; in++) {
                char around[128];
                snprintf(around, sizeof around, "{\"model_type\":\"%%s\",\"%s\":{\"%%s\":%%%%s}}", f->key);
                read_member(&dir, of, around, in);
            }
        }
    }
    const hf_family *llama = hf_family_find("llama");
    for (const hf_field *f = hf_rope_fields; f->key; f++)
        read_member(&dir, llama, "{\"model_type\":\"%s\",\"rope_parameters\":{\"%s\":%%s}}", f);
    for (const hf_rope *r = hf_ropes; r->type; r++)
        for (const hf_field *f = r->fields; f->key; f++) {
            char around[256]; /* the first member of a key counts */
            snprintf(around, sizeof around,
                     "{\"model_type\":\"%%s\",\"rope_scaling\":{\"type\":\"%s\",\"%%s\":%%%%s,\"factor\":8,"
                     "\"low_freq_factor\":1,\"high_freq_factor\":4}}",
                     r->type);
            read_member(&dir, llama, around, f);
        }
    assert_int_equal(read_text(&dir, "llama", "{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"longrope\"}}"),
                     TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "rope_type \"longrope\": expected default, linear, llama3 or yarn"));
    assert_int_equal(read_text(&dir, "llama",
                               "{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,"
                               "\"low_freq_factor\":4,\"high_freq_factor\":4,"
                               "\"original_max_position_embeddings\":8}}"),
                     TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "\"high_freq_factor\": expected more than low_freq_factor"));
    scratch_dir_remove(&dir);
}

/* Which layers of three have a window of 7, as digits; "": an error. */
static void see_types(const scratch_dir *dir, const char *types, const char *expected) {
    char text[400], got[8] = "";
    int32_t positions;
    model_options o = { .batch = 1, .operators = "plain", .context = 8 };
    model *m = NULL;
    snprintf(text, sizeof text,
             "{\"model_type\":\"gemma2\",\"num_hidden_layers\":3,\"hidden_size\":8,\"intermediate_size\":8,"
             "\"head_dim\":2,\"vocab_size\":8,\"sliding_window\":7,\"layer_types\":%s}",
             types);
    assert_int_equal(scratch_write(dir, "config.json", text, strlen(text)), 0);
    if (hf_config_read(dir->path, "gemma2", &o, &positions) == TESS_OK) {
        assert_int_equal(model_create("gemma2", &o, &m), TESS_OK);
        for (int32_t i = 0; i < 3; i++)
            got[i] = (char)('0' + decoder_nearness(m->own, i));
        model_destroy(m);
    }
    assert_string_equal(got, expected);
}

static void test_hf_weights__layers_with_a_window_are_those_of_the_file(void **state) {
#define NEAR "\"sliding_attention\""
#define FAR "\"full_attention\""
    scratch_dir dir;
    (void)state;
    assert_int_equal(scratch_dir_make(&dir), 0);
    see_types(&dir, "null", "101"), see_types(&dir, "[" NEAR "," NEAR "," NEAR "]", "111");
    see_types(&dir, "[" FAR "," FAR "," FAR "]", "000"), see_types(&dir, "[" FAR "," NEAR "," NEAR "]", "011");
    see_types(&dir, "[" NEAR "," NEAR "," FAR "]", "110"), see_types(&dir, "[" NEAR "," FAR "," NEAR "]", "101");
    see_types(&dir, "[" FAR "," NEAR "," FAR "]", ""), see_types(&dir, "[" NEAR "," FAR "," FAR "]", "");
    see_types(&dir, "[" NEAR "," FAR "]", ""), see_types(&dir, "[" NEAR ",\"chunked_attention\"," FAR "]", "");
    scratch_dir_remove(&dir);
}

/* Every parameter's name comes back from its tensor's, which may have no prefix. */
static void test_hf_weights__names_there_and_back(void **state) {
    (void)state;
    for (const hf_family *f = hf_families; f->model; f++) {
        model_options o = { .batch = 1, .layers = 2, .untied = 1, .operators = "plain" };
        model *m = NULL;
        assert_int_equal(model_create(f->model, &o, &m), TESS_OK);
        for (int32_t i = 0; i < m->desc.n_params; i++) {
            const model_param *p = &m->desc.params[i];
            char theirs[HF_NAME], ours[HF_NAME];
            int turned = hf_name(f->model, p->name, p->ndim, theirs);
            assert_int_equal(hf_own_name(f->model, theirs, p->ndim, 0, ours), turned);
            assert_string_equal(ours, p->name);
            assert_int_equal(hf_own_name(f->model, hf_short_name(f->model, theirs), p->ndim, 1, ours), turned);
            assert_string_equal(ours, strcmp(p->name, "head.weight") == 0 ? "" : p->name);
        }
        model_destroy(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hf_weights__follows_transformers),
        cmocka_unit_test(test_hf_weights__in_bf16_stays_within_a_percent),
        cmocka_unit_test(test_hf_weights__another_shape_is_refused),
        cmocka_unit_test(test_hf_weights__a_position_at_a_time_gives_the_same_logits),
        cmocka_unit_test(test_hf_weights__what_is_exported_reads_back_the_same),
        cmocka_unit_test(test_hf_weights__a_model_made_from_nothing_has_a_config),
        cmocka_unit_test(test_hf_weights__every_member_is_refused_by_its_name),
        cmocka_unit_test(test_hf_weights__layers_with_a_window_are_those_of_the_file),
        cmocka_unit_test(test_hf_weights__names_there_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

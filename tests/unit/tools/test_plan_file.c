/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/engine/state.h"
#include "tools/plan/plan_at_peak.h"
#include "tools/plan/plan_file.h"
#include "tests/unit/scratch_dir.h"

static scratch_dir dir;

static int make_dir(void **state) {
    (void)state;
    unsetenv("TESSERA_BATCH");
    unsetenv("TESSERA_CONTEXT");
    return scratch_dir_make(&dir);
}

static int remove_dir(void **state) {
    (void)state;
    scratch_dir_remove(&dir);
    return 0;
}

/* ---- writing headers --------------------------------------------------------------------------- */

typedef struct { /* a header under construction */
    char *text;
    size_t n, cap;
    uint64_t at;
} header;

static void put(header *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(header *h, const char *format, ...) {
    va_list args;
    if (h->cap - h->n < 1024) {
        h->cap = 2 * h->cap + 4096;
        h->text = realloc(h->text, h->cap);
        assert_non_null(h->text);
    }
    va_start(args, format);
    h->n += (size_t)vsnprintf(h->text + h->n, h->cap - h->n, format, args);
    va_end(args);
}

/* A tensor of rows x cols, or of rows where cols is 0. */
static void tensor(header *h, const char *name, uint64_t rows, uint64_t cols) {
    uint64_t bytes = 2 * rows * (cols ? cols : 1);
    put(h, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%llu", h->n ? "," : "{", name, (unsigned long long)rows);
    if (cols)
        put(h, ",%llu", (unsigned long long)cols);
    put(h, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)h->at, (unsigned long long)(h->at + bytes));
    h->at += bytes;
}

static void write_file(const char *name, const char *json, size_t n, uint64_t length) {
    char *bytes = malloc(n + 8);
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(length >> 8 * i);
    memcpy(bytes + 8, json, n);
    assert_int_equal(scratch_write(&dir, name, bytes, n + 8), 0);
    free(bytes);
}

static void write_header(const char *name, header *h) {
    put(h, "}");
    write_file(name, h->text, h->n, h->n);
    free(h->text);
    *h = (header){ 0 };
}

static void write_text(const char *name, const char *text) {
    assert_int_equal(scratch_write(&dir, name, text, strlen(text)), 0);
}

typedef struct {
    uint64_t vocabulary, width, keys, hidden, layers;
} decoder;

/* The tensors of a Llama, with the published names. */
static void llama(header *h, const decoder *d) {
    static const char *const parts[] = { "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                         "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                         "mlp.down_proj",    "input_layernorm",  "post_attention_layernorm" };
    const uint64_t shapes[][2] = { { d->width, d->width },  { d->keys, d->width },   { d->keys, d->width },
                                   { d->width, d->width },  { d->hidden, d->width }, { d->hidden, d->width },
                                   { d->width, d->hidden }, { d->width, 0 },         { d->width, 0 } };
    char name[128];
    tensor(h, "lm_head.weight", d->vocabulary, d->width);
    tensor(h, "model.embed_tokens.weight", d->vocabulary, d->width);
    for (uint64_t i = 0; i < d->layers; i++)
        for (int p = 0; p < 9; p++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", (int)i, parts[p]);
            tensor(h, name, shapes[p][0], shapes[p][1]);
        }
    tensor(h, "model.norm.weight", d->width, 0);
}

/* ---- planning ---------------------------------------------------------------------------------- */

typedef struct {
    plan_file *file;
    tess *t;
} planned;

static planned plan(const char *path, int32_t ranks, const char *strategy, const char *optimizer,
                    const char *precision) {
    planned p = { 0 };
    assert_int_equal(plan_file_open(path, &p.file), TESS_OK);
    tess_options o = { .struct_size = sizeof o,
                       .plan_only = 1,
                       .ranks = ranks,
                       .strategy = strategy,
                       .optimizer = optimizer,
                       .precision = precision,
                       .input_bytes = plan_file_input_bytes(p.file) };
    assert_int_equal(tess_open(&o, &p.t), TESS_OK);
    assert_int_equal(plan_file_declare(p.file, p.t), TESS_OK);
    assert_int_equal(tess_shard(p.t, NULL, NULL), TESS_E_PLANNED);
    return p;
}

static void end(planned *p) {
    tess_close(p->t);
    plan_file_close(p->file);
}

static uint64_t resting(const planned *p, uint32_t category) {
    uint64_t bytes = 0;
    for (int32_t i = 0; i < p->t->plan.resident.n_buffers; i++)
        if (p->t->plan.resident.buffers[i].category == category)
            bytes += p->t->plan.resident.buffers[i].bytes;
    return bytes;
}

/* A comm that is not bounded to one host. */
static int has_network(void) {
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o, .plan_only = 1, .ranks = 16384 };
    tess_status s = tess_open(&o, &t);
    uint64_t bytes;
    if (!s)
        s = tess__scratch_of(&t->plan.setup, TESS_ALL_GATHER, TESS_F32, TESS_F32, 64, 16384, &bytes);
    tess_close(t);
    return s == TESS_OK;
}

static uint64_t pad(uint64_t n) {
    return (n + 63) / 64 * 64;
}

static uint64_t share(uint64_t elems, uint64_t ranks) {
    return pad((elems + ranks - 1) / ranks);
}

/* Elements of one shard of all units: embedding, layers, norm, head. All sizes are multiples of 64. */
static uint64_t shard_elems(const decoder *d, uint64_t ranks) {
    uint64_t layer = 2 * d->width * d->width + 2 * d->keys * d->width + 3 * d->width * d->hidden + 2 * d->width;
    return 2 * share(d->vocabulary * d->width, ranks) + d->layers * share(layer, ranks) + share(d->width, ranks);
}

static void test_plan_file__resting_bytes_of_large_decoders_equal_the_closed_form(void **state) {
    (void)state;
    static const decoder models[] = { { 128256, 8192, 1024, 28672, 80 }, { 128256, 16384, 1024, 53248, 126 } };
    static const uint64_t elems[] = { UINT64_C(70553706496), UINT64_C(405853388800) };
    static const struct {
        int32_t ranks, group;
        const char *strategy, *optimizer;
        uint64_t states;
    } cases[] = { { 1, 1, "full", "adamw", 2 },       { 8, 8, "full", "sgd", 0 },
                  { 7, 7, "full", "adadelta", 2 },    { 512, 512, "full", "adamw", 2 },
                  { 512, 1, "none", "sgd", 0 },       { 16384, 16384, "grad_op", "adam", 2 },
                  { 16384, 8, "hybrid:8", "adam", 2 } };
    const char *path = scratch_path(&dir, "model.safetensors");
    int network = has_network();
    for (int m = 0; m < 2; m++) {
        header h = { 0 };
        llama(&h, &models[m]);
        write_header("model.safetensors", &h);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            if (cases[i].ranks > 1 && !network)
                continue;
            planned p = plan(path, cases[i].ranks, cases[i].strategy, cases[i].optimizer, "fp32");
            uint64_t shard = shard_elems(&models[m], (uint64_t)cases[i].group);
            assert_int_equal(p.t->plan.layout.param_elems, elems[m]);
            assert_int_equal(p.t->plan.layout.n_units, models[m].layers + 3);
            assert_int_equal(resting(&p, TESS_CAT_SHARD_PARAM), 4 * shard);
            assert_int_equal(resting(&p, TESS_CAT_SHARD_GRAD), 4 * shard);
            assert_int_equal(resting(&p, TESS_CAT_OPTIMIZER), cases[i].states * 4 * shard);
            assert_int_equal(resting(&p, TESS_CAT_BUFFER), 0);
            assert_non_null(strstr(plan_file_note(p.file), "none, as no config.json"));
            assert_int_equal(plan_file_is_estimate(p.file), 0);
            end(&p);
        }
    }
}

static void test_plan_file__names_become_blocks_in_forward_order(void **state) {
    (void)state;
    static const char *const names[] = { "lm_head.weight",       "model.norm.weight",
                                         "model.layers.10.a.w",  "model.layers.2.a.w",
                                         "model.layers.2.e.7.w", "model.embed_tokens.weight",
                                         "vision.blocks.1.x",    "vision.patch_embed.proj.weight",
                                         "root_weight" };
    static const char *const order[] = {
        "model.embed_tokens", "vision.patch_embed.proj", "",           "vision.blocks.1",
        "model.layers.2",     "model.layers.10",         "model.norm", "lm_head"
    };
    header h = { 0 };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        tensor(&h, names[i], 3, 2);
    write_header("m.safetensors", &h);
    planned p = plan(scratch_path(&dir, "m.safetensors"), 1, "full", "sgd", "fp32");
    assert_int_equal(p.t->plan.model.n_scopes, 8);
    for (int i = 0; i < 8; i++)
        assert_string_equal(p.t->plan.model.scopes[i].name, order[i]);
    assert_int_equal(p.t->plan.model.scopes[4].n_params, 2);
    end(&p);
}

static void test_plan_file__the_fullest_instruction_books_the_planned_peak(void **state) {
    (void)state;
    const decoder model = { 100, 64, 32, 96, 3 };
    header h = { 0 };
    llama(&h, &model);
    write_header("m.safetensors", &h);
    planned p = plan(scratch_path(&dir, "m.safetensors"), 1, "full", "sgd", "fp32");
    plan_fullest f = plan_fullest_find(&p.t->plan, TESS_DOMAIN_DEVICE);
    assert_in_range(f.program, 0, TESS__N_PROGRAMS - 1);
    const tess__program *program = &p.t->plan.programs[f.program];
    assert_int_equal(program->instrs[f.instr].op, TESS__ALLOC);
    assert_true(f.point < program->n_points);
    if (f.point >= 0)
        assert_true(program->points[f.point].at <= f.instr);
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        assert_true(p.t->plan.programs[i].live_peak_bytes[TESS_DOMAIN_DEVICE] <=
                    program->live_peak_bytes[TESS_DOMAIN_DEVICE]);
    end(&p);
}

static void test_plan_file__whole_numbers_and_statistics_are_buffers(void **state) {
    (void)state;
    static const char json[] = "{\"bn.running_mean\":{\"dtype\":\"F32\",\"shape\":[100],\"data_offsets\":[0,400]},"
                               "\"bn.weight\":{\"dtype\":\"F16\",\"shape\":[100],\"data_offsets\":[400,600]},"
                               "\"mask\":{\"dtype\":\"BOOL\",\"shape\":[5,13],\"data_offsets\":[600,665]},"
                               "\"steps\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[665,673]},"
                               "\"wide\":{\"dtype\":\"F64\",\"shape\":[7],\"data_offsets\":[673,729]},"
                               "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[729,729]}}";
    write_file("m.safetensors", json, sizeof json - 1, sizeof json - 1);
    planned p = plan(scratch_path(&dir, "m.safetensors"), 1, "full", "adam", "fp32");
    assert_int_equal(p.t->plan.model.n_params, 5);
    assert_int_equal(resting(&p, TESS_CAT_BUFFER), 448 + 128 + 64);
    assert_int_equal(resting(&p, TESS_CAT_SHARD_PARAM), 128 * 4 + 64 * 8);
    assert_int_equal(resting(&p, TESS_CAT_OPTIMIZER), 2 * (128 + 64) * 4);
    end(&p);
}

/* ---- with config.json -------------------------------------------------------------------------- */

#define CONFIG(tail)                                                                                                   \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, \"num_hidden_layers\": 2, "                      \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"intermediate_size\": 128, \"vocab_size\": 256, "        \
    "\"rope_theta\": 1e5, \"max_position_embeddings\": 32" tail "}"

static const decoder small = { 256, 64, 32, 128, 2 };

static const tess_block_options *block(const planned *p, int32_t i) {
    return &p->t->plan.model.blocks[i].options;
}

static void test_plan_file__activations_of_a_decoder_follow_the_formula(void **state) {
    (void)state;
    header h = { 0 };
    llama(&h, &small);
    write_header("model.safetensors", &h);
    write_text("config.json", CONFIG(", \"tie_word_embeddings\": false"));
    setenv("TESSERA_BATCH", "3", 1);
    planned p = plan(dir.path, 1, "full", "sgd", "fp32");
    const uint64_t tokens = 3 * 32;
    assert_int_equal(plan_file_is_estimate(p.file), 1);
    assert_non_null(strstr(plan_file_note(p.file), "batch 3, context 32, 4 bytes each"));
    assert_int_equal(plan_file_input_bytes(p.file), tokens * 8);
    assert_int_equal(p.t->plan.model.n_blocks, 5);
    assert_int_equal(block(&p, 0)->output_bytes, tokens * 64 * 4);
    assert_int_equal(block(&p, 0)->saved_bytes, 0);
    /* norms and residual 3 · 64, queries and attention 2 · 64, keys and values 2 · 32, gate, up, product 3 · 128; fp32
     * per head and per normalisation */
    assert_int_equal(block(&p, 1)->saved_bytes, tokens * ((192 + 128 + 64 + 384) * 4 + 4 * 4 + 2 * 4));
    assert_int_equal(block(&p, 1)->output_bytes, tokens * 64 * 4);
    assert_int_equal(block(&p, 1)->forward_scratch_bytes, tokens * 64 * 4);
    assert_int_equal(block(&p, 1)->backward_scratch_bytes, tokens * (384 + 64) * 4);
    assert_int_equal(block(&p, 3)->saved_bytes, tokens * 4);
    assert_int_equal(block(&p, 4)->saved_bytes, tokens * 256 * 4);
    assert_int_equal(block(&p, 4)->backward_scratch_bytes, 0);
    assert_int_equal(block(&p, 4)->output_bytes, 64);
    end(&p);
}

static void test_plan_file__a_head_that_is_the_embedding_is_tied(void **state) {
    (void)state;
    header h = { 0 };
    llama(&h, &small); /* stored twice, but tied by its configuration */
    write_header("model.safetensors", &h);
    write_text("config.json", CONFIG(", \"tie_word_embeddings\": true"));
    planned p = plan(dir.path, 1, "full", "sgd", "fp32");
    uint64_t both = 2 * 256 * 64, layers = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128 + 128) + 64;
    assert_int_equal(p.t->plan.layout.param_elems, both / 2 + layers);
    assert_int_equal(p.t->plan.model.scopes[p.t->plan.model.n_scopes - 1].n_params, 1);
    end(&p);
    write_text("config.json", CONFIG(""));
    p = plan(dir.path, 1, "full", "sgd", "fp32");
    assert_int_equal(p.t->plan.layout.param_elems, both + layers); /* no word, and the file has both */
    end(&p);
    tensor(&h, "wte.weight", 256, 64);
    tensor(&h, "h.0.w", 64, 64);
    tensor(&h, "h.1.w", 64, 64);
    tensor(&h, "ln_f.weight", 64, 0);
    write_header("model.safetensors", &h);
    write_text("config.json", "{\"n_embd\":64,\"n_layer\":2,\"n_head\":4,\"n_inner\":null,\"vocab_size\":256,"
                              "\"n_positions\":16,\"n_ctx\":16}");
    p = plan(dir.path, 1, "full", "sgd", "fp32");
    assert_string_equal(p.t->plan.model.scopes[4].name, "lm_head");
    assert_string_equal(p.t->plan.model.params[p.t->plan.model.n_params - 1].name, "lm_head.weight");
    assert_int_equal(p.t->plan.layout.param_elems, 256 * 64 + 2 * 64 * 64 + 64);
    /* layer norms have two statistics; keys are as wide as queries; no gate */
    assert_int_equal(block(&p, 1)->saved_bytes, 16 * ((192 + 128 + 128 + 512) * 4 + 4 * 4 + 2 * 8));
    end(&p);
}

static void test_plan_file__a_configuration_without_a_formula_says_why(void **state) {
    (void)state;
    header h = { 0 };
    llama(&h, &small);
    write_header("model.safetensors", &h);
    static const char *const configs[][2] = {
        { "{}", "it has no hidden_size" },
        { "{\"hidden_size\":64}", "it has no num_attention_heads" },
        { "{\"hidden_size\":64,\"num_attention_heads\":4}", "it has no vocab_size" },
        { "{\"hidden_size\":64,\"num_attention_heads\":3,\"vocab_size\":9}", "no common width" },
        { CONFIG(",\"is_encoder_decoder\":true"), "an encoder and a decoder" },
    };
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        write_text("config.json", configs[i][0]);
        planned p = plan(dir.path, 1, "full", "sgd", "fp32");
        assert_non_null(strstr(plan_file_note(p.file), configs[i][1]));
        assert_int_equal(plan_file_is_estimate(p.file), 0);
        assert_int_equal(p.t->plan.model.n_blocks, 0);
        end(&p);
    }
    llama(&h, &small);
    tensor(&h, "model.scale", 4, 0); /* in module "model", which holds the layers too */
    write_header("model.safetensors", &h);
    write_text("config.json", CONFIG(""));
    planned p = plan(dir.path, 1, "full", "sgd", "fp32");
    assert_non_null(strstr(plan_file_note(p.file), "'model' holds parameters beside its layers"));
    end(&p);
}

/* ---- several files ----------------------------------------------------------------------------- */

static void write_two_files(void) {
    header h = { 0 };
    tensor(&h, "emb.weight", 10, 4);
    tensor(&h, "h.0.w", 4, 4);
    write_header("a.safetensors", &h);
    tensor(&h, "h.1.w", 4, 4);
    tensor(&h, "not_listed", 9, 9);
    write_header("b.safetensors", &h);
}

static void test_plan_file__a_folder_is_planned_by_its_index(void **state) {
    (void)state;
    write_two_files();
    write_text("model.safetensors.index.json",
               "{\"metadata\":{\"total_size\":112},\"weight_map\":{\"h.1.w\":\"b.safetensors\","
               "\"emb.weight\":\"a.safetensors\",\"h.0.w\":\"a.safetensors\"}}");
    planned p = plan(dir.path, 1, "full", "sgd", "fp32");
    assert_int_equal(p.t->plan.layout.param_elems, 40 + 16 + 16);
    assert_string_equal(p.t->plan.model.scopes[0].name, "emb");
    assert_string_equal(p.t->plan.model.scopes[2].name, "h.1");
    end(&p);
}

/* ---- MODEL.json -------------------------------------------------------------------------------- */

static void test_plan_file__a_description_is_planned_as_it_says(void **state) {
    (void)state;
    write_text("model.json", "{\"tessera_model\": 1, \"input_bytes\": 100, \"estimate\": true,\n"
                             " \"parameters\": [{\"name\": \"emb.w\", \"shape\": [10, 7], \"compute\": [\"F32\"]},\n"
                             "  {\"name\": \"h.*.w\", \"shape\": [64, 65], \"stack\": 3, \"frozen\": false},\n"
                             "  {\"name\": \"h.*.frozen\", \"shape\": [64], \"stack\": 3, \"frozen\": true},\n"
                             "  {\"name\": \"head.seen\", \"shape\": [], \"buffer\": true, \"dtype\": \"F64\"}],\n"
                             " \"tied\": [{\"name\": \"head.w\", \"of\": \"emb.w\"}],\n"
                             " \"blocks\": [{\"name\": \"emb\", \"output_bytes\": 640},\n"
                             "  {\"name\": \"h.*\", \"stack\": 3, \"output_bytes\": 640, \"saved_bytes\": 6400,\n"
                             "   \"forward_scratch_bytes\": 64, \"backward_scratch_bytes\": 128, \"keep\": true},\n"
                             "  {\"name\": \"head\"}]}");
    planned p = plan(scratch_path(&dir, "model.json"), 1, "full", "adam", "fp32");
    assert_int_equal(plan_file_input_bytes(p.file), 100);
    assert_int_equal(plan_file_is_estimate(p.file), 1);
    assert_int_equal(p.t->plan.model.n_blocks, 5);
    assert_string_equal(p.t->plan.model.scopes[3].name, "h.2");
    assert_int_equal(block(&p, 3)->saved_bytes, 6400);
    assert_int_equal(block(&p, 3)->forward_scratch_bytes, 64);
    assert_int_equal(block(&p, 3)->backward_scratch_bytes, 128);
    assert_int_equal(block(&p, 3)->flags, TESS_BLOCK_KEEP);
    assert_int_equal(p.t->plan.layout.param_elems, 70 + 3 * 64 * 65 + 3 * 64);
    assert_int_equal(resting(&p, TESS_CAT_SHARD_PARAM), 4 * (128 + 3 * 64 * 65 + 3 * 64));
    assert_int_equal(resting(&p, TESS_CAT_OPTIMIZER), 2 * 4 * (128 + 3 * 64 * 65));
    assert_int_equal(resting(&p, TESS_CAT_BUFFER), 64);
    end(&p);
}

static void test_plan_file__a_description_without_activations_has_none(void **state) {
    (void)state;
    write_text("model.json", "{\"tessera_model\":1,\"parameters\":[{\"name\":\"a.w\",\"shape\":[3]}],"
                             "\"blocks\":[{\"name\":\"a\"}]}");
    planned p = plan(scratch_path(&dir, "model.json"), 1, "full", "sgd", "fp32");
    assert_int_equal(p.t->plan.model.n_blocks, 0);
    assert_int_equal(p.t->plan.model.n_scopes, 1);
    assert_non_null(strstr(plan_file_note(p.file), "none, as the file names none"));
    end(&p);
}

/* ---- what is wrong ----------------------------------------------------------------------------- */

static int one_line(const char *text) {
    return text[0] && !strchr(text, '\n');
}

/* Opening, or declaring, fails with TESS_E_DATA and a message that has `expected` in it. */
static void assert_refused(const char *name, const char *expected) {
    plan_file *f = NULL;
    tess *t = NULL;
    const char *path = name ? scratch_path(&dir, name) : dir.path;
    tess_status s = plan_file_open(path, &f);
    if (s == TESS_OK) {
        tess_options o = { .struct_size = sizeof o, .plan_only = 1, .ranks = 1 };
        assert_int_equal(tess_open(&o, &t), TESS_OK);
        s = plan_file_declare(f, t);
    }
    if (s != TESS_E_DATA || !strstr(tess_last_error(), expected) || !one_line(tess_last_error()))
        fail_msg("status %d, '%s', expected '%s'", s, tess_last_error(), expected);
    tess_close(t);
    plan_file_close(f);
}

static void assert_json_refused(const char *json, const char *expected) {
    write_text("m.json", json);
    assert_refused("m.json", expected);
}

#define ENTRY(name, shape, dtype, from, to)                                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"

static void test_plan_file__bad_headers_are_refused_in_one_line(void **state) {
    (void)state;
    static const struct {
        const char *json, *expected;
    } bad[] = {
        { "{" ENTRY("a.w", "[4]", "F31", "0", "16") "}", "a known dtype" },
        { "{" ENTRY("a.w", "[4]", "F32", "0", "15") "}", "expected 16 bytes" },
        { "{" ENTRY("a.w", "[4]", "F32", "0", "16") "," ENTRY("b.w", "[4]", "F32", "8", "24") "}", "'b.w' begins at" },
        { "{" ENTRY("a.w", "[4]", "F32", "0", "16") "," ENTRY("a.w", "[4]", "F32", "16", "32") "}", "appears twice" },
        { "{" ENTRY("a.w", "[4194304,4194304]", "F32", "0",
                    "70368744177664") "," ENTRY("b.w", "[1]", "F32", "70368744177664", "70368744177668") "}",
          "more than 2^44 elements" },
        { "{" ENTRY("a.w", "[1152921504606846976]", "U8", "0", "1152921504606846976") "}", "2^60" },
        { "{" ENTRY("a.*.w", "[4]", "F32", "0", "16") "}", "a * in the name" },
        { "{" ENTRY("", "[4]", "F32", "0", "16") "}", "name that is not empty" },
        { "{}", "no tensors" },
        { "", "expected '{'" },
        { "{\"a\":", "expected '{'" },
        { "{\"a\":{\"dtype\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "expected '\"'" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_file("m.safetensors", bad[i].json, strlen(bad[i].json), strlen(bad[i].json));
        assert_refused("m.safetensors", bad[i].expected);
    }
    static const char good[] = "{" ENTRY("a.w", "[4]", "F32", "0", "16") "}";
    write_file("m.safetensors", good, sizeof good - 1, sizeof good);
    assert_refused("m.safetensors", "offset 0: a header of");
    write_file("m.safetensors", good, sizeof good - 1, UINT64_MAX);
    assert_refused("m.safetensors", "offset 0: a header of 18446744073709551615 bytes");
    write_file("m.safetensors", good, sizeof good - 1, sizeof good - 2);
    assert_refused("m.safetensors", "expected '}'");
    write_text("m.safetensors", "PK\3\4");
    assert_refused("m.safetensors", "4 bytes, expected at least 8");
    write_text("m.safetensors", "PK\3\4 this is another format altogether");
    assert_refused("m.safetensors", "offset 0: a header of");
    assert_refused("nowhere.safetensors", "No such file");
    assert_refused(NULL, "neither model.safetensors.index.json nor model.safetensors");
}

static void test_plan_file__data_beyond_the_header_is_refused_missing_data_is_not(void **state) {
    (void)state;
    static const char json[] = "{" ENTRY("a.w", "[1]", "F32", "0", "4") "}12345";
    write_file("m.safetensors", json, sizeof json - 1, sizeof json - 6);
    assert_refused("m.safetensors", "1 bytes belong to no tensor");
    for (size_t present = 0; present <= 4; present++) {
        write_file("m.safetensors", json, sizeof json - 6 + present, sizeof json - 6);
        planned p = plan(scratch_path(&dir, "m.safetensors"), 1, "full", "sgd", "fp32");
        assert_int_equal(p.t->plan.layout.param_elems, 1);
        end(&p);
    }
}

static void test_plan_file__truncated_headers_are_refused(void **state) {
    (void)state;
    char whole[4096];
    header h = { 0 };
    write_two_files();
    tensor(&h, "a.w", 3, 4);
    tensor(&h, "b.w", 3, 4);
    write_header("m.safetensors", &h);
    FILE *f = fopen(scratch_path(&dir, "m.safetensors"), "rb");
    size_t n = fread(whole, 1, sizeof whole, f);
    fclose(f);
    for (size_t cut = 0; cut < n; cut++) {
        assert_int_equal(scratch_write(&dir, "m.safetensors", whole, cut), 0);
        assert_refused("m.safetensors", "m.safetensors: ");
    }
}

static void test_plan_file__bad_indexes_are_refused_in_one_line(void **state) {
    (void)state;
    static const struct {
        const char *json, *expected;
    } bad[] = {
        { "{\"weight_map\":{\"a\":\"gone.safetensors\"}}", "gone.safetensors: No such file" },
        { "{\"weight_map\":{\"a\":\"../a.safetensors\"}}", "not the name of a file in its folder" },
        { "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "not the name of a file in its folder" },
        { "{\"weight_map\":{\"a\":\"..\"}}", "not the name of a file in its folder" },
        { "{\"weight_map\":{\"a\":\"\"}}", "not the name of a file in its folder" },
        { "{\"weight_map\":{\"zz\":\"a.safetensors\"}}", "tensor 'zz' is not in file 'a.safetensors'" },
        { "{\"weight_map\":{\"h.0.w\":\"a.safetensors\",\"h.0.w\":\"a.safetensors\"}}", "declared twice" },
        { "{\"weight_map\":{}}", "no tensors" },
        { "{\"metadata\":{}}", "no \"weight_map\"" },
        { "{\"weight_map\":[]}", "expected '{'" },
        { "{\"weight_map\":{\"a\":1}}", "expected '\"'" },
        { "[", "expected '{'" },
        { "{\"x\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "less nesting" },
    };
    write_two_files();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_text("model.safetensors.index.json", bad[i].json);
        assert_refused(NULL, bad[i].expected);
    }
}

static void test_plan_file__bad_configurations_are_refused_in_one_line(void **state) {
    (void)state;
    static const struct {
        const char *json, *expected;
    } bad[] = {
        { "{\"hidden_size\":-4}", "a whole number from 1" },
        { "{\"hidden_size\":\"large\"}", "a whole number from 1" },
        { "{\"hidden_size\":99999999999999999999}", "a whole number from 1" },
        { "{\"hidden_size\":0}", "a whole number from 1" },
        { "{\"hidden_size\":64", "expected '}'" },
        { "{\"x\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "less nesting" },
        { "{\"hidden_size\":64,\"num_hidden_layers\":80,\"num_attention_heads\":4,\"vocab_size\":256}",
          "num_hidden_layers is 80, but there are parameters of 2 layers only" },
        { "not json", "expected '{'" },
        { "", "expected '{'" },
    };
    header h = { 0 };
    llama(&h, &small);
    write_header("model.safetensors", &h);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_text("config.json", bad[i].json);
        assert_refused(NULL, bad[i].expected);
    }
    write_text("config.json", CONFIG(",\"num_experts_per_tok\":1000000"));
    assert_refused(NULL, "experts of 128 are more than 2^26 wide");
}

#define BLOCKS ",\"blocks\":[{\"name\":\"a\"}]}"
#define PARAM(fields) "{\"tessera_model\":1,\"parameters\":[{" fields "}]" BLOCKS

static void test_plan_file__bad_descriptions_are_refused_in_one_line(void **state) {
    (void)state;
    assert_json_refused("", "offset 0: expected '{'");
    assert_json_refused("{}", "\"tessera_model\": 1");
    assert_json_refused("{\"tessera_model\":2}", "version 1");
    assert_json_refused("{\"tessera_model\":1}", "no blocks");
    assert_json_refused("{\"tessera_model\":1} x", "the end");
    assert_json_refused("{\"tessera_model\":1,\"tessera_model\":1}", "\"tessera_model\" once, not twice");
    assert_json_refused("{\"tessera_model\":1,\"colour\":1}", "blocks, tied or estimate, not \"colour\"");
    assert_json_refused("{\"tessera_model\":1,\"parametres\":[]}", "\"parameters\" where there is \"parametres\"");
    assert_json_refused("{\"tessera_model\":1,\"layers\":3}", "tessera_model, input_bytes");
    assert_json_refused("{\"tessera_model\":1,\"paramters\":3}", "\"parameters\" where there is \"paramters\"");
    assert_json_refused(PARAM("\"name\":\"a.w\",\"shpae\":[4]"), "\"shape\" where there is \"shpae\"");
    assert_json_refused("{\"tessera_model\":1,\"input_bytes\":9000000000000000000" BLOCKS, "2^60");
    assert_json_refused("{\"tessera_model\":1,\"estimate\":1" BLOCKS, "true or false");
    assert_json_refused(PARAM("\"name\":\"a.w\""), "a name and a shape");
    assert_json_refused(PARAM("\"name\":\"a.w\",\"shape\":[0]"), "a dimension of at least 1");
    assert_json_refused(PARAM("\"name\":\"a.w\",\"shape\":[1,1,1,1,1,1,1,1,1]"), "at most 8 dimensions");
    assert_json_refused(PARAM("\"name\":\"a.w\",\"shape\":[9000000000000000000]"), "dimension 0 is");
    assert_json_refused(PARAM("\"name\":\"a.w\",\"shape\":[4],\"dtype\":\"I8\""), "F32, F64, F16, BF16 or U8");
    assert_json_refused(PARAM("\"name\":\"a.w\",\"shape\":[4],\"dtype\":\"U8\""), "it must be frozen");
    assert_json_refused(PARAM("\"name\":\"a.w\",\"shape\":[4],\"stack\":0"), "a stack of 1 to");
    assert_json_refused(PARAM("\"name\":\"a.w\",\"shape\":[4],\"stack\":2"), "a * in the name goes with stack");
    assert_json_refused(PARAM("\"name\":\"z.w\",\"shape\":[4]") "x", "the end");
    assert_json_refused(PARAM("\"name\":\"a.*\",\"shape\":[1],\"stack\":1048576},{\"name\":\"b\",\"shape\":[1]"),
                        "more than 1048576 parameters");
    assert_json_refused("{\"tessera_model\":1,\"blocks\":[{\"name\":\"a.*\",\"stack\":16385}]}",
                        "more than 16384 blocks");
    assert_json_refused("{\"tessera_model\":1,\"blocks\":[{\"name\":\"a\",\"saved_bytes\":64},{\"name\":\"b\"}]}",
                        "block \"a\" hands nothing on");
    assert_json_refused("{\"tessera_model\":1,\"blocks\":[{\"name\":\"a.*\",\"stack\":16000,"
                        "\"saved_bytes\":1000000000000000}]}",
                        "2^60 bytes");
    assert_json_refused("{\"tessera_model\":1,\"tied\":[{\"name\":\"a.x\",\"of\":\"a.y\"}]" BLOCKS,
                        "no parameter \"a.y\"");
    assert_json_refused("{\"tessera_model\":1,\"parameters\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "expected '{'");
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(test_plan_file__##name, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        TEST(resting_bytes_of_large_decoders_equal_the_closed_form),
        TEST(names_become_blocks_in_forward_order),
        TEST(the_fullest_instruction_books_the_planned_peak),
        TEST(whole_numbers_and_statistics_are_buffers),
        TEST(activations_of_a_decoder_follow_the_formula),
        TEST(a_head_that_is_the_embedding_is_tied),
        TEST(a_configuration_without_a_formula_says_why),
        TEST(a_folder_is_planned_by_its_index),
        TEST(a_description_is_planned_as_it_says),
        TEST(a_description_without_activations_has_none),
        TEST(bad_headers_are_refused_in_one_line),
        TEST(data_beyond_the_header_is_refused_missing_data_is_not),
        TEST(truncated_headers_are_refused),
        TEST(bad_indexes_are_refused_in_one_line),
        TEST(bad_configurations_are_refused_in_one_line),
        TEST(bad_descriptions_are_refused_in_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

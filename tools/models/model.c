/* SPDX-License-Identifier: BSD-3-Clause */
#include "model.h"
#include "philox.h"
#include <tessera/tessera.h>
#include <tessera/plugin_helpers.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const model_ops *const model_table[] = { &model_mnist,  &model_gpt,    &model_gpt2,    &model_llama,
                                         &model_qwen2,  &model_qwen3,  &model_mistral, &model_gemma2,
                                         &model_gemma3, &model_linear, &model_convbn,  NULL };

/* ---- options ------------------------------------------------------------------------------------ */
static int32_t either(int32_t value, int32_t fallback) {
    return value ? value : fallback;
}

static model_options with_defaults(const model_options *given, const model_options *defaults) {
    model_options o = given ? *given : (model_options){ 0 };
    o.batch = either(o.batch, defaults->batch);
    o.layers = either(o.layers, defaults->layers);
    o.heads = either(o.heads, defaults->heads);
    o.width = either(o.width, defaults->width);
    o.context = either(o.context, defaults->context);
    o.image_size = either(o.image_size, defaults->image_size);
    o.hidden = either(o.hidden, defaults->hidden);
    o.decoder.kv_heads = either(o.decoder.kv_heads, o.heads == defaults->heads ? defaults->decoder.kv_heads : 0);
    o.decoder.feed = either(o.decoder.feed, o.width == defaults->width ? defaults->decoder.feed : 0);
    o.threads = either(o.threads, 1);
    o.precision = o.precision ? o.precision : TESS_F32;
    o.dropout = o.dropout < 0 ? 0 : o.dropout > 0 ? o.dropout : defaults->dropout;
    return o;
}

static tess_status check_options(const model_options *o) {
    if (o->batch < 1 || o->batch > 65536)
        return tess_fail(TESS_E_INVALID, "batch %d: expected 1 to 65536", o->batch);
    if (o->threads < 1 || o->threads > 1024)
        return tess_fail(TESS_E_INVALID, "threads %d: expected 1 to 1024", o->threads);
    if (o->precision != TESS_F32 && o->precision != TESS_BF16 && o->precision != TESS_F16)
        return tess_fail(TESS_E_INVALID, "precision %u: expected f32, bf16 or f16", o->precision);
    if (o->products && (o->products != TESS_F8E4M3 || o->precision != TESS_BF16))
        return tess_fail(TESS_E_INVALID, "products in %s: expected fp8 (e4m3), beside bf16",
                         tess_dtype_name(o->products));
    if (!(o->dropout < 1))
        return tess_fail(TESS_E_INVALID, "dropout %g: expected below 1", (double)o->dropout);
    return TESS_OK;
}

static const model_ops *find(const char *name) {
    for (const model_ops *const *m = model_table; name && *m; m++)
        if (!strcmp((*m)->name, name))
            return *m;
    return NULL;
}

static tess_status unknown(const char *name) {
    char names[160] = "";
    for (const model_ops *const *m = model_table; *m; m++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", (*m)->name);
    }
    return tess_fail(TESS_E_INVALID, "model \"%s\" is unknown: expected one of %s", name ? name : "", names);
}

/* Matches `name` against one pattern, in which '*' stands for any text. */
static int matches(const char *pattern, size_t n, const char *name) {
    if (n == 0)
        return *name == 0;
    if (*pattern == '*')
        return matches(pattern + 1, n - 1, name) || (*name && matches(pattern, n, name + 1));
    return *pattern == *name && matches(pattern + 1, n - 1, name + 1);
}

static tess_status freeze(model *m) {
    int32_t trained = 0;
    for (const char *p = m->options.frozen; p && *p;) {
        size_t n = strcspn(p, ",");
        int32_t found = 0;
        for (int32_t i = 0; i < m->desc.n_params; i++)
            if (matches(p, n, m->desc.params[i].name))
                m->desc.params[i].is_frozen = found = 1;
        if (!found)
            return tess_fail(TESS_E_INVALID, "frozen \"%.*s\": %s has no parameter of that name", (int)n, p,
                             m->t->name);
        p += n + (p[n] == ',');
    }
    for (int32_t i = 0; m->options.lora.rank && i < m->desc.n_params; i++)
        m->desc.params[i].is_frozen |= !m->desc.params[i].is_adapter;
    for (int32_t i = 0; i < m->desc.n_params; i++)
        trained += !m->desc.params[i].is_frozen && !m->desc.params[i].alias_of[0];
    return trained ? TESS_OK : tess_fail(TESS_E_INVALID, "frozen: nothing is left to train");
}

/* Puts parameters of that name into group `number`, counted from 1, unless they are in one. Returns how many. */
static int32_t put_in_group(model *m, const char *pattern, size_t n, int32_t number) {
    int32_t found = 0;
    for (int32_t i = 0; i < m->desc.n_params; i++) {
        model_param *p = &m->desc.params[i];
        if (p->optimizer_group > 1 || p->is_frozen || p->is_buffer || p->alias_of[0] || !matches(pattern, n, p->name))
            continue;
        p->optimizer_group += 2 * number;
        found++;
    }
    return found;
}

static tess_status make_groups(model *m) {
    int32_t number = 1;
    for (const char *p = m->options.groups; p && *p; number++) {
        for (int is_last = 0; !is_last; p++) {
            size_t n = strcspn(p, ",:;");
            if (!put_in_group(m, p, n, number))
                return tess_fail(TESS_E_INVALID,
                                 "groups: %s trains no parameter of the name \"%.*s\" that is in no group yet",
                                 m->t->name, (int)n, p);
            p += n;
            is_last = *p != ',';
        }
        p += strcspn(p, ";");
        p += strspn(p, "; ");
    }
    return TESS_OK;
}

void model__describe(model *m) {
    m->o->t->describe(m->o, m->operators, sizeof m->operators);
    size_t at = strlen(m->operators);
    if (m->in_fp8)
        snprintf(m->operators + at, sizeof m->operators - at, ", %d of a layer's %d matrices in fp8 products",
                 m->in_fp8, m->matrices);
}

tess_status model_create(const char *name, const model_options *options, model **out) {
    const model_ops *t = find(name);
    if (!t)
        return unknown(name);
    model_options filled = with_defaults(options, &t->defaults);
    OPS_TRY(check_options(&filled));
    if (t->check)
        OPS_TRY(t->check(t, &filled));
    const ops_table *operators;
    OPS_TRY(ops_find(filled.operators, &operators));
    const ops_options how = { .threads = filled.threads,
                              .bf16 = filled.precision == TESS_BF16,
                              .isa = filled.isa,
                              .fp16 = filled.precision == TESS_F16,
                              .fp8 = filled.products != 0,
                              .cudnn_attention = t->decoder && filled.cudnn_attention,
                              .attention_products = filled.attention_products };
    model *m = calloc(1, sizeof *m);
    if (!m)
        return tess_fail(TESS_E_NOMEM, "out of memory for model %s", name);
    m->t = t;
    m->options = filled;
    tess_status status = operators->create(&how, &m->o);
    if (status == TESS_OK)
        status = t->build(m);
    if (status == TESS_OK && (how.bf16 || how.fp16) && !t->decoder)
        status = model__make_halves(m);
    if (status == TESS_OK)
        status = model__make_chunked(m);
    if (status == TESS_OK)
        status = freeze(m);
    if (status == TESS_OK)
        status = make_groups(m);
    if (status != TESS_OK) {
        model_destroy(m);
        return status;
    }
    m->options.isa = m->options.operators = m->options.frozen = m->options.groups =
        NULL; /* these texts belong to the caller */
    model__describe(m);
    *out = m;
    return TESS_OK;
}

void model_destroy(model *m) {
    if (!m)
        return;
    if (m->o) {
        m->t->release(m);
        m->o->t->destroy(m->o);
    }
    free(m->desc.params);
    free(m->desc.blocks);
    free(m->desc.scopes);
    free(m->halves);
    free(m->chunked);
    free(m);
}

/* ---- initial values ------------------------------------------------------------------------------ */
static float initial_value(const model_param *p, uint64_t element, const philox_block *words, const float normal[4]) {
    switch (p->init) {
    case MODEL_UNIFORM: return p->scale * (2.0f * philox_uniform(words->v[element & 3]) - 1.0f);
    case MODEL_NORMAL: return p->scale * normal[element & 3];
    case MODEL_GRID: return p->scale * (float)((int64_t)(element % 7) - 3);
    default: return p->scale;
    }
}

tess_status model_fill(void *user, const tess_range *r, void *data) {
    const model *m = user;
    float *out = data, normal[4] = { 0 };
    if (r->tag >= (uint64_t)m->desc.n_params)
        return tess_fail(TESS_E_INTERNAL, "filling %s: tag %llu is no parameter of %s", r->name,
                         (unsigned long long)r->tag, m->t->name);
    const model_param *p = &m->desc.params[r->tag];
    if (stored_in_blocks(p->stored) && r->slice_elems != (uint64_t)p->elems)
        return model_fill_stored(m, r, data, model_fill, user);
    philox_block words = { { 0 } };
    for (uint64_t i = 0; i < r->elems; i++) {
        uint64_t element = r->first_elem + i;
        if ((i == 0 || (element & 3) == 0) && p->init != MODEL_CONSTANT) {
            words = philox_at(m->options.seed, PHILOX_INIT, element, (uint32_t)r->tag, 0);
            if (p->init == MODEL_NORMAL)
                philox_normal(words, normal);
        }
        out[i] = initial_value(p, element, &words, normal);
    }
    return TESS_OK;
}

enum { BLOCKS_AT_ONCE = 1024 /* blocks that one read of a file covers */ };

/* Reads the elements of n blocks from block `first` on; elements beyond the matrix's end are zeros. */
static tess_status read_blocks(const model *m, const tess_range *r, uint64_t first, uint64_t n, float *values,
                               tess_range_fn fill, void *user) {
    tess_range of = *r;
    of.slice_elems = (uint64_t)m->desc.params[r->tag].elems;
    of.first_elem = of.stacked_first = first * STORED_BLOCK;
    of.elems = of.slice_elems - of.first_elem < n * STORED_BLOCK ? of.slice_elems - of.first_elem : n * STORED_BLOCK;
    memset(values + of.elems, 0, (n * STORED_BLOCK - of.elems) * sizeof *values);
    return fill(user, &of, values);
}

/* Packs n blocks, the first of which holds byte `at`, and copies their bytes from `at` up to `end`. */
static uint64_t pack_blocks(uint32_t stored, const float *values, uint64_t n, uint64_t at, uint64_t end, uint8_t *out) {
    uint64_t bytes = (uint64_t)stored_block_bytes(stored), skip = at % bytes, done = 0;
    for (uint64_t i = 0; i < n; i++, skip = 0) {
        uint8_t block[STORED_BLOCK_BYTES];
        uint64_t some = bytes - skip < end - at - done ? bytes - skip : end - at - done;
        stored_pack(stored, values + i * STORED_BLOCK, block);
        memcpy(out + done, block + skip, some);
        done += some;
    }
    return done;
}

tess_status model_fill_stored(const model *m, const tess_range *r, void *data, tess_range_fn fill, void *user) {
    uint32_t stored = m->desc.params[r->tag].stored;
    uint64_t bytes = (uint64_t)stored_block_bytes(stored), end = r->first_elem + r->elems;
    uint8_t *out = data;
    if (!stored_in_blocks(stored))
        return fill(user, r, data);
    float *values = malloc(BLOCKS_AT_ONCE * STORED_BLOCK * sizeof *values);
    tess_status status = values ? TESS_OK : tess_fail(TESS_E_NOMEM, "out of memory for blocks of %s", r->name);
    for (uint64_t at = r->first_elem; status == TESS_OK && at < end;) {
        uint64_t first = at / bytes, n = (end - 1) / bytes + 1 - first;
        n = n < BLOCKS_AT_ONCE ? n : BLOCKS_AT_ONCE;
        status = read_blocks(m, r, first, n, values, fill, user);
        if (status == TESS_OK)
            at += pack_blocks(stored, values, n, at, end, out + (at - r->first_elem));
    }
    free(values);
    return status;
}

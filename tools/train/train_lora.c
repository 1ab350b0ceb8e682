/* SPDX-License-Identifier: BSD-3-Clause */
#include "train_lora.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>
#include "tools/plan/lora_settings.h"
#include "tools/support/peft_folder.h"
#include "tools/support/safetensors.h"
#include "tools/support/say.h"

/* ---- starting values --------------------------------------------------------------------------------- */
typedef struct {
    const model *m;
    tool_safetensors *file; /* null: adapters get new values */
    char path[PATH_MAX];
    tess_range_fn fill;
    void *user;
} start;

static const tool_tensor *tensor_of(const start *s, const model_param *p) {
    char name[PEFT_NAME];
    peft_name(s->m->t->name, p->name, name);
    return tool_safetensors_find(s->file, name);
}

static tess_status check_tensor(const start *s, const model_param *p) {
    char name[PEFT_NAME];
    const tool_tensor *t = tensor_of(s, p);
    peft_name(s->m->t->name, p->name, name);
    if (!t)
        return tess_fail(TESS_E_DATA, "%s: no tensor '%s'", s->path, name);
    if (t->ndim != 2 || t->shape[0] != p->shape[0] || t->shape[1] != p->shape[1])
        return tess_fail(TESS_E_DATA, "%s: tensor '%s' has %" PRIu64 " elements, expected %" PRId64 " x %" PRId64,
                         s->path, name, t->elems, p->shape[0], p->shape[1]);
    return TESS_OK;
}

static tess_status open_adapters(const train_run *r, start *s) {
    char dir[PATH_MAX];
    uint64_t n = 0, adapters = 0;
    if (!lora_settings_folder(&r->s, dir))
        return TESS_OK;
    TRY(peft_weights_path(dir, s->path));
    TRY(tool_safetensors_open(s->path, &s->file));
    for (int32_t i = 0; i < s->m->desc.n_params; i++)
        if (s->m->desc.params[i].is_adapter) {
            TRY(check_tensor(s, &s->m->desc.params[i]));
            adapters++;
        }
    tool_safetensors_list(s->file, &n);
    if (n != adapters)
        return tess_fail(TESS_E_DATA, "%s: it has %" PRIu64 " tensors, the adapters of %s are %" PRIu64, s->path, n,
                         s->m->t->name, adapters);
    return TESS_OK;
}

static tess_status fill_start(void *user, const tess_range *r, void *data) {
    const start *s = user;
    const model_param *p = &s->m->desc.params[r->tag];
    if (!p->is_adapter)
        return model_fill_stored(s->m, r, data, s->fill, s->user);
    if (!s->file)
        return model_fill((void *)(uintptr_t)s->m, r, data);
    return r->elems ? tool_safetensors_read(s->file, tensor_of(s, p), r->first_elem, r->elems, data) : TESS_OK;
}

tess_status train_lora_shard(train_run *r, tess_range_fn fill, void *user) {
    start s = { .m = r->m, .fill = fill, .user = user };
    tess_status status = train_agree(r, open_adapters(r, &s));
    if (status == TESS_OK)
        status = tess_shard(r->t, fill_start, &s);
    tool_safetensors_close(s.file);
    return status;
}

/* ---- a peft folder ----------------------------------------------------------------------------------- */
static peft_config config_of(const model *m) {
    const model_lora *o = &m->options.lora;
    peft_config c = { .rank = o->rank, .rooted = o->rooted, .alpha = (double)o->alpha };
    snprintf(c.targets, sizeof c.targets, "%s", o->targets);
    return c;
}

static uint64_t list_adapters(const model *m, tool_tensor *out) {
    uint64_t n = 0;
    for (int32_t i = 0; i < m->desc.n_params; i++) {
        const model_param *p = &m->desc.params[i];
        if (!p->is_adapter)
            continue;
        out[n] = (tool_tensor){ .dtype = TESS_F32, .ndim = 2, .shape = { p->shape[0], p->shape[1] } };
        peft_name(m->t->name, p->name, out[n++].name);
    }
    return n;
}

typedef struct {
    const model *m;
    tool_safetensors_writer *file; /* null on ranks other than 0 */
} export;

static tess_status open_export(const train_run *r, export *x) {
    peft_config c = config_of(r->m);
    char path[PATH_MAX];
    int turned = strcmp(r->s.model, "gpt2") == 0;
    TRY(peft_config_write(r->s.export_to, &c, r->s.folder, turned));
    TRY(peft_weights_path(r->s.export_to, path));
    tool_tensor *list = calloc((size_t)r->m->desc.n_params, sizeof *list);
    if (!list)
        return tess_fail(TESS_E_NOMEM, "no memory to export adapters");
    tess_status status = tool_safetensors_create(path, list, list_adapters(r->m, list), &x->file);
    free(list);
    return status;
}

static tess_status export_range(void *user, const tess_range *r, void *data) {
    const export *x = user;
    if (!x->file || !x->m->desc.params[r->tag].is_adapter)
        return TESS_OK;
    return tool_safetensors_write(x->file, data, r->elems * sizeof(float));
}

tess_status train_lora_export(train_run *r) {
    export x = { .m = r->m };
    tess_status status = train_agree(r, r->rank == 0 ? open_export(r, &x) : TESS_OK);
    if (status == TESS_OK)
        status = tess_each_full(r->t, TESS_OF_PARAM, export_range, &x);
    if (status != TESS_OK) {
        tool_safetensors_discard(x.file);
        return status;
    }
    return train_agree(r, x.file ? tool_safetensors_commit(x.file) : TESS_OK);
}

/* ---- merging ----------------------------------------------------------------------------------------- */
struct train_lora_merge {
    const model *m;
    float **adapters;       /* index: parameter; null: no adapter */
    float *part;            /* part of a matrix */
    uint8_t *codes;         /* bytes of incomplete blocks */
    uint64_t n_codes, done; /* number of codes; elements of the parameter written so far */
    int32_t param;          /* the parameter that the codes belong to */
    float scale;
};
enum { RUN_ELEMS = 1024, PART_ELEMS = 4 * 65536 /* room for a range's blocks of 4-bit codes */ };

static tess_status keep_adapter(void *user, const tess_range *r, void *data) {
    const train_lora_merge *g = user;
    float *to = g->adapters[r->tag];
    if (to)
        memcpy(to + r->first_elem, data, r->elems * sizeof(float));
    return TESS_OK;
}

static tess_status make_room(train_lora_merge *g) {
    const model_desc *d = &g->m->desc;
    g->adapters = calloc((size_t)d->n_params, sizeof *g->adapters);
    g->part = malloc(PART_ELEMS * sizeof *g->part);
    g->codes = malloc(PART_ELEMS);
    int ok = g->adapters && g->part && g->codes;
    for (int32_t i = 0; ok && i < d->n_params; i++)
        if (d->params[i].is_adapter)
            ok = (g->adapters[i] = malloc((size_t)d->params[i].elems * sizeof(float))) != NULL;
    return ok ? TESS_OK : tess_fail(TESS_E_NOMEM, "no memory to merge adapters");
}

tess_status train_lora_merge_open(train_run *r, train_lora_merge **out) {
    const model_lora *o = &r->m->options.lora;
    train_lora_merge *g = calloc(1, sizeof *g);
    tess_status status = g ? TESS_OK : tess_fail(TESS_E_NOMEM, "no memory to merge adapters");
    if (g) {
        *g = (train_lora_merge){ .m = r->m, .param = -1 };
        g->scale = o->alpha / (o->rooted ? sqrtf((float)o->rank) : (float)o->rank);
        status = make_room(g);
    }
    status = train_agree(r, status);
    if (status == TESS_OK)
        status = tess_each_full(r->t, TESS_OF_PARAM, keep_adapter, g);
    if (status == TESS_OK)
        *out = g;
    else
        train_lora_merge_close(g);
    return status;
}

/* Returns the index of the adapter's A for matrix i, or -1. B follows A. */
static int32_t adapter_of(const model *m, int32_t i) {
    char name[MODEL_NAME + 16];
    const char *whole = m->desc.params[i].name;
    size_t n = strlen(whole), end = strlen("weight");
    if (n < end || strcmp(whole + n - end, "weight") != 0)
        return -1;
    snprintf(name, sizeof name, "%.*slora_A.weight", (int)(n - end), whole);
    for (int32_t k = i; k < m->desc.n_params; k++)
        if (strcmp(m->desc.params[k].name, name) == 0)
            return k;
    return -1;
}

/* Adds scale · (B A)[row][column …] to part[0 … n), within one row. Each sum runs in the order of the rank's
 * components. */
static void add_run(const train_lora_merge *g, int32_t a, uint64_t row, uint64_t column, uint64_t n, float *part) {
    uint64_t rank = (uint64_t)g->m->desc.params[a].shape[0], inputs = (uint64_t)g->m->desc.params[a].shape[1];
    float sums[RUN_ELEMS] = { 0 };
    for (uint64_t k = 0; k < rank; k++) {
        const float *down = g->adapters[a] + k * inputs + column, up = g->adapters[a + 1][row * rank + k];
        for (uint64_t i = 0; i < n; i++)
            sums[i] += up * down[i];
    }
    for (uint64_t i = 0; i < n; i++)
        part[i] += g->scale * sums[i];
}

static void add_product(const train_lora_merge *g, int32_t a, uint64_t first, uint64_t elems) {
    uint64_t inputs = (uint64_t)g->m->desc.params[a].shape[1];
    for (uint64_t e = 0, n; e < elems; e += n) {
        uint64_t row = (first + e) / inputs, column = (first + e) % inputs;
        n = inputs - column < elems - e ? inputs - column : elems - e;
        n = n < RUN_ELEMS ? n : RUN_ELEMS;
        add_run(g, a, row, column, n, g->part + e);
    }
}

/* Decodes complete blocks. The rest waits for the next range. */
static uint64_t read_blocks(train_lora_merge *g, const tess_range *r, const void *data) {
    const model_param *p = &g->m->desc.params[r->tag];
    uint64_t bytes = (uint64_t)stored_block_bytes(p->stored);
    memcpy(g->codes + g->n_codes, data, r->elems);
    g->n_codes += r->elems;
    uint64_t blocks = g->n_codes / bytes, elems = blocks * STORED_BLOCK, left = (uint64_t)p->elems - g->done;
    elems = elems < left ? elems : left;
    stored_read(p->stored, g->codes, 0, (int64_t)elems, g->part);
    g->n_codes -= blocks * bytes;
    memmove(g->codes, g->codes + blocks * bytes, g->n_codes);
    return elems;
}

tess_status train_lora_merge_range(train_lora_merge *g, const tess_range *r, const void *data, const float **out,
                                   uint64_t *elems) {
    const model_param *p = &g->m->desc.params[r->tag];
    int32_t param = (int32_t)r->tag;
    if (param != g->param)
        g->param = param, g->done = g->n_codes = 0;
    *out = g->part;
    *elems = 0;
    if (p->is_adapter)
        return TESS_OK;
    if (stored_in_blocks(p->stored))
        *elems = read_blocks(g, r, data);
    else
        memcpy(g->part, data, (*elems = r->elems) * sizeof(float));
    int32_t a = adapter_of(g->m, param);
    if (a >= 0)
        add_product(g, a, g->done, *elems);
    g->done += *elems;
    return TESS_OK;
}

void train_lora_merge_close(train_lora_merge *g) {
    if (!g)
        return;
    for (int32_t i = 0; g->adapters && i < g->m->desc.n_params; i++)
        free(g->adapters[i]);
    free(g->adapters);
    free(g->part);
    free(g->codes);
    free(g);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Derives blocks from the names of parameters. A name with a number between dots ("model.layers.7.mlp.up_proj.weight")
 * belongs to the layer that ends with its first number. Any other name belongs to its module. A module that looks like
 * an embedding precedes the layers, the others follow them, a head last. */
#include "plan_file_model.h"

#include <stdlib.h>
#include <string.h>

#include "tools/support/names.h"
#include <tessera/tessera.h>

typedef struct {
    char *name;
    int32_t place, family, rank; /* family: of layers, by the text before the number; rank: of the family */
    int64_t number;
    int32_t order; /* order of appearance */
} found_block;

typedef struct {
    const char *path;
    found_block *blocks;
    char **families;
    int32_t n_blocks, n_families;
    tool_names block_index, family_index;
} finder;

/* The end of the first number between dots, or 0; *start: where it begins. */
static size_t layer_end(const char *name, size_t *start) {
    for (size_t at = 0; name[at];) {
        size_t n = strcspn(name + at, ".");
        if (name[at + n] && n > 0 && n < 10 && strspn(name + at, "0123456789") == n) {
            *start = at;
            return at + n;
        }
        at += n + (name[at + n] == '.');
    }
    return 0;
}

static size_t module_end(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : 0;
}

static int has_word(const char *name, const char *const *words) {
    for (; *words; words++)
        if (strstr(name, *words))
            return 1;
    return 0;
}

static int32_t place_of(const char *module) {
    static const char *const heads[] = { "head", "embed_out", "score", "classifier", NULL };
    static const char *const first[] = { "emb", "wte", "wpe", "patch", "stem", "tok", NULL };
    if (has_word(module, heads) || strcmp(module, "output") == 0)
        return PLAN_HEAD;
    return !*module || has_word(module, first) ? PLAN_BEFORE : PLAN_AFTER;
}

/* Encoders come before decoders; other families stand as they appear. */
static int32_t family_rank(const char *family) {
    static const char *const first[] = { "encoder", "vision", "visual", NULL };
    return has_word(family, first) ? 0 : 1;
}

static tess_status no_memory(const finder *f) {
    return tess_fail(TESS_E_NOMEM, "%s: no memory for the blocks in its names", f->path);
}

static tess_status find_family(finder *f, const char *name, size_t n, int32_t *out) {
    *out = tool_names_find(&f->family_index, name, n);
    if (*out >= 0)
        return TESS_OK;
    char *family = strndup(name, n);
    if (!family)
        return no_memory(f);
    f->families[f->n_families] = family; /* never more than blocks */
    *out = f->n_families++;
    return tool_names_add(&f->family_index, family, *out);
}

static tess_status add_found(finder *f, const char *param) {
    size_t start = 0, layer = layer_end(param, &start), end = layer ? layer : module_end(param);
    if (tool_names_find(&f->block_index, param, end) >= 0)
        return TESS_OK;
    if (f->n_blocks == PLAN_MOST_BLOCKS)
        return tess_fail(TESS_E_DATA, "%s: its names make more than %d blocks", f->path, PLAN_MOST_BLOCKS);
    found_block *b = &f->blocks[f->n_blocks];
    *b = (found_block){ .name = strndup(param, end), .place = PLAN_LAYER, .order = f->n_blocks };
    if (!b->name)
        return no_memory(f);
    f->n_blocks++;
    tess_status status = tool_names_add(&f->block_index, b->name, b->order);
    if (status == TESS_OK && layer) {
        status = find_family(f, param, start, &b->family);
        b->number = strtoll(param + start, NULL, 10);
        b->rank = status == TESS_OK ? family_rank(f->families[b->family]) : 0;
    } else {
        b->place = place_of(b->name);
    }
    return status;
}

static int in_forward_order(const void *a, const void *b) {
    const found_block *x = a, *y = b;
    if (x->place != y->place)
        return x->place < y->place ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->family != y->family)
        return x->family < y->family ? -1 : 1;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

tess_status plan_names_blocks(plan_model *m, const char *path) {
    finder f = { .path = path };
    tess_status status = TESS_OK;
    f.blocks = calloc(PLAN_MOST_BLOCKS, sizeof *f.blocks);
    f.families = calloc(PLAN_MOST_BLOCKS, sizeof *f.families);
    if (!f.blocks || !f.families)
        status = no_memory(&f);
    for (int32_t i = 0; i < m->n_params && status == TESS_OK; i++)
        status = add_found(&f, m->params[i].name);
    if (status == TESS_OK)
        qsort(f.blocks, (size_t)f.n_blocks, sizeof *f.blocks, in_forward_order);
    for (int32_t i = 0; i < f.n_blocks && status == TESS_OK; i++)
        status = plan_model_block(m, path, &(plan_block){ .name = f.blocks[i].name, .place = f.blocks[i].place });
    for (int32_t i = 0; i < f.n_blocks; i++)
        free(f.blocks[i].name);
    for (int32_t i = 0; i < f.n_families; i++)
        free(f.families[i]);
    tool_names_free(&f.block_index);
    tool_names_free(&f.family_index);
    free(f.blocks);
    free(f.families);
    return status;
}

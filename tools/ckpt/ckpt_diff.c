/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>
#include "tools/support/say.h"
#include "tools/support/command_line.h"
#include "ckpt.h"

enum { CHUNK_ELEMS = 1 << 16 };

typedef struct {
    ckpt_source a, b;
    char text[TESS__TENSOR_NAME + 128]; /* the first difference; "": none */
    const char *tensor;
    uint64_t element;
    char *left, *right; /* a chunk of each */
} comparison;

static const char *kind_name(int kind, char out[16]) {
    snprintf(out, 16,
             kind == TESS__PIECE_PARAM    ? "parameter"
             : kind == TESS__PIECE_BUFFER ? "buffer"
                                          : "state %d",
             kind - TESS__PIECE_STATE0);
    return out;
}

static int32_t find_param(const ckpt_source *s, const char *name) {
    for (uint64_t i = 0; i < s->saved.manifest.n_params; i++)
        if (strcmp(s->saved.manifest.params[i].name, name) == 0)
            return (int32_t)i;
    return -1;
}

static void differ(comparison *c, const char *tensor, uint64_t element, const char *what) {
    c->tensor = tensor;
    c->element = element;
    snprintf(c->text, sizeof c->text, "%s: %s", tensor, what);
}

static tess_status compare_values(comparison *c, int32_t i, int32_t j, int kind) {
    const tess__tensor *t = &c->a.saved.manifest.params[i];
    uint32_t bytes = tess__tensor_dtype_bytes(ckpt_source_dtype(&c->a, i, kind));
    uint64_t elems = ckpt_source_elems(&c->a, i, kind);
    char word[16], what[160];
    for (uint64_t at = 0; at < elems; at += CHUNK_ELEMS) {
        uint64_t n = elems - at < CHUNK_ELEMS ? elems - at : CHUNK_ELEMS, k = 0;
        TRY(ckpt_source_read(&c->a, i, kind, at, n, c->left));
        TRY(ckpt_source_read(&c->b, j, kind, at, n, c->right));
        if (memcmp(c->left, c->right, n * bytes) == 0)
            continue;
        while (memcmp(c->left + k * bytes, c->right + k * bytes, bytes) == 0)
            k++;
        int at_text = snprintf(what, sizeof what, "%s: element %" PRIu64 " differs", kind_name(kind, word), at + k);
        if (bytes == 4) {
            float x, y;
            memcpy(&x, c->left + k * 4, 4);
            memcpy(&y, c->right + k * 4, 4);
            snprintf(what + at_text, sizeof what - (size_t)at_text, ": %.9g and %.9g", (double)x, (double)y);
        }
        differ(c, t->name, at + k, what);
        return TESS_OK;
    }
    return TESS_OK;
}

static tess_status compare_param(comparison *c, int32_t i) {
    const tess__tensor *t = &c->a.saved.manifest.params[i], *other;
    int32_t j = find_param(&c->b, t->name);
    char word[16], what[64];
    if (j < 0) {
        differ(c, t->name, 0, "only in the first");
        return TESS_OK;
    }
    other = &c->b.saved.manifest.params[j];
    if (t->dtype != other->dtype || t->ndim != other->ndim || memcmp(t->shape, other->shape, sizeof t->shape) != 0) {
        differ(c, t->name, 0, "another dtype or shape");
        return TESS_OK;
    }
    if (tess__manifest_in_base(&c->a.saved.manifest, (uint64_t)i) !=
        tess__manifest_in_base(&c->b.saved.manifest, (uint64_t)j))
        differ(c, t->name, 0, "held by one, in the files of the other's base");
    for (int kind = TESS__PIECE_PARAM; !c->tensor && kind < TESS__PIECE_STATE0 + 4; kind++) {
        int in_a = ckpt_source_has(&c->a, i, kind), in_b = ckpt_source_has(&c->b, j, kind);
        if (kind == TESS__PIECE_PROGRAM || (!in_a && !in_b))
            continue;
        snprintf(what, sizeof what, "%s: only in the %s", kind_name(kind, word), in_a ? "first" : "second");
        if (in_a != in_b)
            differ(c, t->name, 0, what);
        else if (kind >= TESS__PIECE_STATE0 &&
                 memcmp(ckpt_source_state(&c->a, i, kind), ckpt_source_state(&c->b, j, kind), sizeof(tess_state)) != 0)
            differ(c, t->name, 0, "a state that is kept in another way");
        else
            TRY(compare_values(c, i, j, kind));
    }
    return TESS_OK;
}

static int has_file(const tess__manifest *m, const tess__data_file *f) {
    for (uint64_t i = 0; i < m->n_base; i++)
        if (strcmp(m->base[i].name, f->name) == 0)
            return memcmp(m->base[i].sums[0], f->sums[0], TESS__SUM_BYTES) == 0;
    return 0;
}

/* Files by their checksums, as neither checkpoint holds them. */
static void compare_bases(comparison *c) {
    const tess__manifest *a = &c->a.saved.manifest, *b = &c->b.saved.manifest;
    for (uint64_t i = 0; !c->tensor && a->n_base && b->n_base && i < a->n_base; i++)
        if (!has_file(b, &a->base[i]))
            differ(c, a->base[i].name, 0, "a file of the base that differs, or only the first has");
}

static tess_status compare(const ckpt_arguments *a, comparison *c) {
    uint64_t n = c->a.saved.manifest.n_params;
    compare_bases(c);
    for (uint64_t i = 0; !c->tensor && i < n; i++) {
        TRY(compare_param(c, (int32_t)i));
        ckpt_progress(a, "compared", i + 1, n);
    }
    for (uint64_t i = 0; !c->tensor && i < c->b.saved.manifest.n_params; i++)
        if (find_param(&c->a, c->b.saved.manifest.params[i].name) < 0)
            differ(c, c->b.saved.manifest.params[i].name, 0, "only in the second");
    return TESS_OK;
}

static int say(ckpt_arguments *a, const comparison *c) {
    if (a->json_on) {
        json_object_begin(&a->json, NULL);
        json_string(&a->json, "event", "diff");
        json_bool(&a->json, "same", !c->tensor);
        json_string(&a->json, "tensor", c->tensor);
        json_uint(&a->json, "element", c->element);
        if (ckpt_json_end(a))
            return TOOL_DATA;
    } else if (!a->quiet)
        puts(c->tensor ? c->text : "the same");
    return c->tensor ? TOOL_FAILED : TOOL_OK;
}

int ckpt_diff(ckpt_arguments *a) {
    comparison c = { .tensor = NULL };
    char left[PATH_MAX], right[PATH_MAX];
    tess_status status = ckpt_find(a->paths[0], left);
    if (!status)
        status = ckpt_find(a->paths[1], right);
    if (!status)
        status = ckpt_source_open(left, &c.a);
    if (!status)
        status = ckpt_source_open(right, &c.b);
    c.left = malloc((size_t)CHUNK_ELEMS * 8);
    c.right = malloc((size_t)CHUNK_ELEMS * 8);
    if (!status && (!c.left || !c.right))
        status = tess_fail(TESS_E_NOMEM, "no memory to compare");
    if (!status)
        status = compare(a, &c);
    int code = status ? tool_report(status) : say(a, &c);
    ckpt_source_close(&c.a);
    ckpt_source_close(&c.b);
    free(c.left);
    free(c.right);
    return code;
}

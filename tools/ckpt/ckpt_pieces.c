/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/names.h"
#include <tessera/tessera.h>
#include "tools/support/say.h"
#include "ckpt.h"

static int in_order(const void *a, const void *b) {
    const ckpt_piece *x = a, *y = b;
    if (x->param != y->param)
        return x->param < y->param ? -1 : 1;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

static tess_status open_file(ckpt_source *s, uint64_t i) {
    if (s->open && s->open_index == i)
        return TESS_OK;
    tess__saved_file_close(s->open);
    s->open = NULL;
    s->open_index = i;
    return tess__saved_file_open(&s->saved, i, &s->open);
}

static tess_status add(ckpt_source *s, const tool_names *names, uint64_t file, uint64_t index, const tess__tensor *t) {
    tess__piece_name name;
    if (tess__piece_name_read(t->name, &name))
        return tess_fail(TESS_E_DATA, "%s: tensor '%s' is no piece of a checkpoint", s->saved.path, t->name);
    if (s->n == s->capacity) {
        uint64_t capacity = s->capacity ? 2 * s->capacity : 256;
        ckpt_piece *grown = realloc(s->pieces, capacity * sizeof *grown);
        if (!grown)
            return tess_fail(TESS_E_NOMEM, "%s: no memory for its pieces", s->saved.path);
        s->pieces = grown;
        s->capacity = capacity;
    }
    int32_t param = tool_names_find(names, name.name, strlen(name.name));
    if (name.kind == TESS__PIECE_PROGRAM)
        param = strcmp(name.name, "common") == 0 ? CKPT_COMMON : CKPT_OWN;
    if (param < 0 && name.kind != TESS__PIECE_PROGRAM)
        return tess_fail(TESS_E_DATA, "%s: tensor '%s' is of no parameter of its manifest", s->saved.path, t->name);
    name.state.dtype = t->dtype;
    s->named |= *name.state.name != 0;
    s->pieces[s->n++] = (ckpt_piece){ name.kind, param, name.first, t->elems, file, index, name.state };
    return TESS_OK;
}

static tess_status add_file(ckpt_source *s, const tool_names *names, uint64_t file) {
    uint64_t n;
    TRY(open_file(s, file));
    const tess__tensor *list = tess__saved_file_list(s->open, &n);
    for (uint64_t i = 0; i < n; i++)
        TRY(add(s, names, file, i, &list[i]));
    return TESS_OK;
}

/* Values of the kind of this piece for so many elements. */
static uint64_t values_of(uint64_t elems, const ckpt_piece *p) {
    return p->kind >= TESS__PIECE_STATE0 && p->state.every ? (elems + p->state.every - 1) / p->state.every : elems;
}

/* Pieces of one parameter and kind lie end to end and make up all of it. */
static tess_status check_whole(const ckpt_source *s) {
    for (uint64_t i = 0; i < s->n;) {
        const ckpt_piece *p = &s->pieces[i];
        uint64_t at = 0;
        if (p->param < 0) {
            i++;
            continue;
        }
        const tess__tensor *whole = &s->saved.manifest.params[p->param];
        for (; i < s->n && s->pieces[i].param == p->param && s->pieces[i].kind == p->kind; i++) {
            if (s->pieces[i].first != at)
                return tess_fail(TESS_E_DATA, "%s: '%s': a piece begins at element %" PRIu64 ", expected %" PRIu64,
                                 s->saved.path, whole->name, s->pieces[i].first, at);
            if (p->kind >= TESS__PIECE_STATE0 && memcmp(&s->pieces[i].state, &p->state, sizeof p->state) != 0)
                return tess_fail(TESS_E_DATA, "%s: '%s': the pieces of a state are kept in two ways", s->saved.path,
                                 whole->name);
            at += s->pieces[i].elems;
        }
        uint64_t all = values_of(whole->elems, p);
        if (at != all)
            return tess_fail(TESS_E_DATA, "%s: '%s': its pieces have %" PRIu64 " elements, expected %" PRIu64,
                             s->saved.path, whole->name, at, all);
    }
    return TESS_OK;
}

/* Every parameter has its values, and of its optimizer states all or, when it was frozen, none. A plugin may keep fewer
 * of some parameters: the first ones. */
static tess_status check_complete(const ckpt_source *s, int32_t param) {
    const tess__manifest *m = &s->saved.manifest;
    const tess__tensor *t = &m->params[param];
    int states = 0;
    if (tess__manifest_in_base(m, (uint64_t)param))
        return TESS_OK;
    if (t->elems && !ckpt_source_has(s, param, m->is_buffer[param] ? TESS__PIECE_BUFFER : TESS__PIECE_PARAM))
        return tess_fail(TESS_E_DATA, "%s: the value of '%s' is missing", s->saved.path, t->name);
    for (int k = 0; k < 4; k++)
        states |= ckpt_source_has(s, param, TESS__PIECE_STATE0 + k) << k;
    int all = (1 << (m->n_states < 4 ? m->n_states : 4)) - 1;
    if (s->named ? states & (states + 1) || states > all : states && states != all)
        return tess_fail(TESS_E_DATA, "%s: not all of the %" PRIu64 " optimizer states of '%s' are there",
                         s->saved.path, m->n_states, t->name);
    return TESS_OK;
}

static tess_status index_all(ckpt_source *s) {
    tool_names names = { NULL };
    tess_status status = TESS_OK;
    for (uint64_t i = 0; !status && i < s->saved.manifest.n_params; i++)
        status = tool_names_add(&names, s->saved.manifest.params[i].name, (int32_t)i);
    for (uint64_t i = 0; !status && i < s->saved.manifest.n_files; i++)
        status = add_file(s, &names, i);
    tool_names_free(&names);
    if (status)
        return status;
    if (s->n)
        qsort(s->pieces, s->n, sizeof *s->pieces, in_order);
    TRY(check_whole(s));
    for (uint64_t i = 0; i < s->saved.manifest.n_params; i++)
        TRY(check_complete(s, (int32_t)i));
    return TESS_OK;
}

tess_status ckpt_source_open(const char *path, ckpt_source *out) {
    *out = (ckpt_source){ .n = 0 };
    TRY(tess__saved_open(&tess__disk_real, path, &out->saved));
    tess_status status = index_all(out);
    if (status)
        ckpt_source_close(out);
    return status;
}

tess_status ckpt_source_find(const char *path, ckpt_source *out) {
    char found[PATH_MAX];
    tess_status status = ckpt_find(path, found);
    return status ? status : ckpt_source_open(found, out);
}

void ckpt_source_close(ckpt_source *s) {
    tess__saved_file_close(s->open);
    tess__saved_close(&s->saved);
    free(s->pieces);
    *s = (ckpt_source){ .n = 0 };
}

/* The first piece of a parameter's kind; s->n: none. */
static uint64_t first_piece(const ckpt_source *s, int32_t param, int kind) {
    const ckpt_piece key = { .kind = kind, .param = param };
    uint64_t low = 0, high = s->n;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (in_order(&s->pieces[middle], &key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < s->n && s->pieces[low].param == param && s->pieces[low].kind == kind ? low : s->n;
}

int ckpt_source_has(const ckpt_source *s, int32_t param, int kind) {
    return first_piece(s, param, kind) < s->n;
}

const tess_state *ckpt_source_state(const ckpt_source *s, int32_t param, int kind) {
    uint64_t i = kind >= TESS__PIECE_STATE0 ? first_piece(s, param, kind) : s->n;
    return i < s->n ? &s->pieces[i].state : NULL;
}

uint64_t ckpt_source_elems(const ckpt_source *s, int32_t param, int kind) {
    uint64_t i = first_piece(s, param, kind), elems = s->saved.manifest.params[param].elems;
    return i < s->n ? values_of(elems, &s->pieces[i]) : elems;
}

uint32_t ckpt_source_dtype(const ckpt_source *s, int32_t param, int kind) {
    if (kind == TESS__PIECE_PROGRAM)
        return TESS_U8;
    const tess_state *state = ckpt_source_state(s, param, kind);
    return state ? state->dtype : s->saved.manifest.params[param].dtype;
}

tess_status ckpt_source_read(ckpt_source *s, int32_t param, int kind, uint64_t first, uint64_t elems, void *out) {
    uint32_t bytes = tess__tensor_dtype_bytes(ckpt_source_dtype(s, param, kind));
    for (uint64_t i = first_piece(s, param, kind); elems && i < s->n; i++) {
        const ckpt_piece *p = &s->pieces[i];
        uint64_t n;
        if (p->first + p->elems <= first)
            continue;
        uint64_t within = first - p->first, here = p->elems - within < elems ? p->elems - within : elems;
        TRY(open_file(s, p->file));
        const tess__tensor *t = &tess__saved_file_list(s->open, &n)[p->tensor];
        if (tess__tensor_dtype_bytes(t->dtype) != bytes)
            return tess_fail(TESS_E_DATA, "%s: tensor '%s' has another dtype than its parameter", s->saved.path,
                             t->name);
        TRY(tess__saved_file_read(s->open, t, within, here, out));
        out = (char *)out + here * bytes;
        first += here;
        elems -= here;
    }
    return TESS_OK;
}

uint64_t ckpt_source_common_bytes(const ckpt_source *s) {
    uint64_t i = first_piece(s, CKPT_COMMON, TESS__PIECE_PROGRAM);
    return i < s->n ? s->pieces[i].elems : 0;
}

tess_status ckpt_source_word(ckpt_source *s, const char *key, char **out) {
    uint64_t bytes = ckpt_source_common_bytes(s);
    char *text = calloc(bytes + 1, 1), *at = NULL;
    *out = NULL;
    if (!text)
        return tess_fail(TESS_E_NOMEM, "%s: no memory for the program's text", s->saved.path);
    tess_status status = ckpt_source_read(s, CKPT_COMMON, TESS__PIECE_PROGRAM, 0, bytes, text);
    char *word = status ? NULL : strtok_r(text, " ", &at);
    while (word && (strncmp(word, key, strlen(key)) != 0 || word[strlen(key)] != '='))
        word = strtok_r(NULL, " ", &at);
    if (word && !(*out = strdup(word + strlen(key) + 1)))
        status = tess_fail(TESS_E_NOMEM, "%s: no memory for the program's text", s->saved.path);
    free(text);
    return status;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "model.h"

#include "base/hash.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Larger than any real model, small enough that no product of two counts overflows. */
enum { MAX_NAME = 255, MAX_COUNT = 1 << 22 };
#define MAX_ELEMS (UINT64_C(1) << 44)

int32_t tess__model_find_param(const tess__model *m, const char *name) {
    return tess__names_find(&m->param_index, name, strlen(name));
}

/* Makes room for `extra` more items of `size` bytes. */
static tess_status grow_items(void **items, int32_t n, int32_t *cap, int64_t extra, size_t size) {
    if (extra > MAX_COUNT - n)
        return tess__fail(TESS_E_INVALID, "more than %d declarations of one kind", MAX_COUNT);
    if (n + extra <= *cap)
        return TESS_OK;
    int32_t want = *cap ? *cap : 16;
    while (want < n + extra)
        want *= 2;
    void *bigger = realloc(*items, (size_t)want * size);
    if (!bigger)
        return tess__fail(TESS_E_NOMEM, "no memory for %d declarations", want);
    *items = bigger;
    *cap = want;
    return TESS_OK;
}

/* The name of slice i: `pattern` with its first * replaced; just a copy when stack is 0. */
static char *slice_name(const char *pattern, int64_t stack, int64_t i) {
    char buffer[MAX_NAME + 32];
    const char *star = stack ? strchr(pattern, '*') : NULL;
    if (star)
        snprintf(buffer, sizeof buffer, "%.*s%lld%s", (int)(star - pattern), pattern, (long long)i, star + 1);
    else
        snprintf(buffer, sizeof buffer, "%s", pattern);
    return strdup(buffer);
}

/* Tells whether a name has an empty part: ".a", "a..b" and "a." name no module. */
static int has_empty_part(const char *name) {
    size_t n = strlen(name);
    return n && (name[0] == '.' || name[n - 1] == '.' || strstr(name, ".."));
}

static tess_status check_name(const tess__model *m, const char *what, const char *name, int64_t stack) {
    if (m->finished)
        return tess__fail(TESS_E_INVALID, "%s \"%s\" is declared after tess_shard", what, name ? name : "");
    if (!name || strlen(name) > MAX_NAME)
        return tess__fail(TESS_E_INVALID, "a %s needs a name of at most %d characters", what, MAX_NAME);
    if (tess__has_control(name))
        return tess__fail(TESS_E_INVALID, "%s \"%s\": its name holds a control character", what, name);
    if (has_empty_part(name))
        return tess__fail(TESS_E_INVALID, "%s \"%s\": a part between its dots is empty", what, name);
    if (stack < 0 || stack > MAX_COUNT)
        return tess__fail(TESS_E_INVALID, "%s \"%s\": stack of %lld is not between 0 and %d", what, name,
                          (long long)stack, MAX_COUNT);
    if ((stack > 0) != (strchr(name, '*') != NULL))
        return tess__fail(TESS_E_INVALID, "%s \"%s\": a * in the name goes with stack > 0", what, name);
    return TESS_OK;
}

static tess_status add_name(tess__names *index, const char *what, const char *name, int32_t handle) {
    if (tess__names_find(index, name, strlen(name)) >= 0)
        return tess__fail(TESS_E_INVALID, "%s \"%s\" is declared twice", what, name);
    return tess__names_add(index, name, handle);
}

tess_status tess__model_add_scope(tess__model *m, const char *name, int64_t stack, int32_t *first) {
    TRY(check_name(m, "scope", name, stack));
    int64_t n = stack ? stack : 1;
    TRY(grow_items((void **)&m->scopes, m->n_scopes, &m->cap_scopes, n, sizeof *m->scopes));
    int32_t start = m->n_scopes;
    for (int64_t i = 0; i < n; i++) {
        char *full = slice_name(name, stack, i);
        if (!full)
            return tess__fail(TESS_E_NOMEM, "no memory for scope \"%s\"", name);
        tess_status s = add_name(&m->scope_index, "scope", full, m->n_scopes);
        if (s) {
            free(full);
            return s;
        }
        m->scopes[m->n_scopes++] = (tess__scope){ .name = full, .block = -1 };
    }
    if (first)
        *first = start;
    return TESS_OK;
}

static tess_status check_shape(const tess_param_options *o, uint64_t *elems) {
    if (o->ndim < 0 || o->ndim > TESS__MAX_DIMS || (o->ndim && !o->shape))
        return tess__fail(TESS_E_INVALID, "parameter \"%s\": %d dimensions%s, at most %d are possible", o->name,
                          o->ndim, o->shape ? "" : " and no shape", TESS__MAX_DIMS);
    if (!o->ndim && o->shape)
        return tess__fail(TESS_E_INVALID,
                          "parameter \"%s\": a shape is given and ndim is 0; set ndim, or for one element leave the "
                          "shape null",
                          o->name);
    *elems = 1;
    for (int32_t d = 0; d < o->ndim; d++) {
        if (o->shape[d] < 1 || (uint64_t)o->shape[d] > MAX_ELEMS / *elems)
            return tess__fail(TESS_E_INVALID, "parameter \"%s\": dimension %d is %lld", o->name, d,
                              (long long)o->shape[d]);
        *elems *= (uint64_t)o->shape[d];
    }
    return TESS_OK;
}

static tess_status check_param(const tess_param_options *o) {
    const uint32_t known = TESS_FROZEN | TESS_GRAD_OVERWRITE | TESS_BUFFER;
    if (!o->name[0])
        return tess__fail(TESS_E_INVALID, "a parameter needs a name that is not empty");
    if (!tess_dtype_bytes(o->dtype))
        return tess__fail(TESS_E_INVALID, "parameter \"%s\": unknown dtype %u", o->name, o->dtype);
    if (o->dtype != TESS_F32 && o->dtype != TESS_F64 && o->dtype != TESS_BF16 && o->dtype != TESS_F16 &&
        o->dtype != TESS_U8)
        return tess__fail(TESS_E_UNSUPPORTED, "parameter \"%s\" is %s; f32, f64, bf16, f16 and u8 are supported",
                          o->name, tess_dtype_name(o->dtype));
    if (o->flags & ~known)
        return tess__fail(TESS_E_INVALID, "parameter \"%s\": unknown flags 0x%x", o->name, o->flags & ~known);
    if (o->dtype == TESS_U8 && (o->flags & (TESS_FROZEN | TESS_BUFFER)) != TESS_FROZEN)
        return tess__fail(
            TESS_E_INVALID,
            "parameter \"%s\" is u8, opaque bytes, which are not trained: it must be frozen (TESS_FROZEN)", o->name);
    if (o->optimizer_group < 0)
        return tess__fail(TESS_E_INVALID, "parameter \"%s\": optimizer group %d", o->name, o->optimizer_group);
    return TESS_OK;
}

/* Adds slice i of the stack that `o` describes. */
static tess_status add_slice(tess__model *m, const tess_param_options *o, uint64_t elems, int64_t i) {
    tess__param p = { .dtype = o->dtype,
                      .flags = o->flags,
                      .compute_dtypes = o->compute_dtypes,
                      .ndim = o->ndim,
                      .elems = elems,
                      .tag = o->tag,
                      .slice = i,
                      .scope = -1,
                      .unit = -1,
                      .group = -1,
                      .tied_to = m->n_params,
                      .optimizer_group = o->optimizer_group };
    p.name = slice_name(o->name, o->stack, i);
    if (!p.name)
        return tess__fail(TESS_E_NOMEM, "no memory for parameter \"%s\"", o->name);
    if (o->ndim)
        memcpy(p.shape, o->shape, (size_t)o->ndim * sizeof *o->shape);
    tess_status s = add_name(&m->param_index, "parameter", p.name, m->n_params);
    if (s)
        free(p.name);
    else
        m->params[m->n_params++] = p;
    return s;
}

tess_status tess__model_add_param(tess__model *m, const tess_param_options *o, int32_t *first) {
    uint64_t elems = 0;
    tess_status s = check_name(m, "parameter", o->name, o->stack);
    if (s || (s = check_param(o)) || (s = check_shape(o, &elems)))
        return s;
    int64_t n = o->stack ? o->stack : 1;
    if (elems > (MAX_ELEMS - m->elems) / (uint64_t)n)
        return tess__fail(TESS_E_INVALID, "parameter \"%s\": with it the model has more than 2^44 elements", o->name);
    if ((s = grow_items((void **)&m->params, m->n_params, &m->cap_params, n, sizeof *m->params)))
        return s;
    int32_t start = m->n_params;
    for (int64_t i = 0; !s && i < n; i++)
        s = add_slice(m, o, elems, i);
    m->elems += elems * (uint64_t)n;
    if (!s && first)
        *first = start;
    return s;
}

static int is_within(const char *name, const char *module) {
    size_t n = strlen(module);
    return n == 0 || (strncmp(name, module, n) == 0 && (name[n] == 0 || name[n] == '.'));
}

static tess_status check_also(const tess__model *m, const tess_block_options *o) {
    if (!o->also)
        return TESS_OK;
    tess_status s = check_name(m, "module of a block", o->also, 0);
    if (!s && o->name && (is_within(o->also, o->name) || is_within(o->name, o->also)))
        s = tess__fail(TESS_E_INVALID, "block \"%s\": its other module \"%s\" is not beside it", o->name, o->also);
    return s;
}

/* Gives the block's scope another name. */
static tess_status add_also(tess__model *m, tess__block *b, const char *also) {
    b->options.also = NULL;
    if (!also)
        return TESS_OK;
    char *copy = strdup(also);
    tess_status s = copy ? add_name(&m->scope_index, "scope", copy, b->scope)
                         : tess__fail(TESS_E_NOMEM, "no memory for module \"%s\"", also);
    if (s)
        free(copy);
    else
        b->options.also = copy;
    return s;
}

tess_status tess__model_add_block(tess__model *m, const tess_block_options *o, int32_t *scope) {
    int32_t at;
    if (!o->forward || !o->backward)
        return tess__fail(TESS_E_INVALID, "block \"%s\" has no %s function", o->name ? o->name : "",
                          o->forward ? "backward" : "forward");
    if (o->flags & ~(uint32_t)(TESS_BLOCK_KEEP | TESS_BLOCK_DROP_OUTPUT | TESS_BLOCK_GRAD_IN_PLACE | TESS_BLOCK_AUDIT |
                               TESS_BLOCK_LATE_RESULT))
        return tess__fail(TESS_E_INVALID, "block \"%s\": unknown flags 0x%x", o->name ? o->name : "", o->flags);
    if (o->flags & TESS_BLOCK_LATE_RESULT && o->flags & TESS_BLOCK_DROP_OUTPUT)
        return tess__fail(TESS_E_INVALID,
                          "block \"%s\" has TESS_BLOCK_LATE_RESULT and TESS_BLOCK_DROP_OUTPUT: its backward has no "
                          "output to write",
                          o->name ? o->name : "");
    tess_status s = check_also(m, o);
    if (s || (s = tess__model_add_scope(m, o->name, 0, &at)) ||
        (s = grow_items((void **)&m->blocks, m->n_blocks, &m->cap_blocks, 1, sizeof *m->blocks)))
        return s;
    tess__block *b = &m->blocks[m->n_blocks];
    *b = (tess__block){ .options = *o, .scope = at };
    b->options.name = m->scopes[at].name;
    m->scopes[at].block = m->n_blocks++;
    s = add_also(m, b, o->also);
    if (!s && scope)
        *scope = at;
    return s;
}

tess_status tess__model_tie(tess__model *m, const char *alias, const char *of) {
    int32_t target = of ? tess__model_find_param(m, of) : -1;
    if (target < 0)
        return tess__fail(TESS_E_INVALID, "tie of \"%s\": no parameter \"%s\"", alias ? alias : "", of ? of : "");
    target = m->params[target].tied_to;
    const tess__param p = m->params[target]; /* a copy: adding one may move them */
    tess_param_options o = { .dtype = p.dtype,
                             .flags = p.flags,
                             .compute_dtypes = p.compute_dtypes,
                             .name = alias,
                             .shape = p.shape,
                             .ndim = p.ndim,
                             .optimizer_group = p.optimizer_group,
                             .tag = p.tag };
    int32_t at;
    TRY(tess__model_add_param(m, &o, &at));
    m->params[at].tied_to = target;
    return TESS_OK;
}

/* Takes the last part off the first *length bytes of a name; 0 when they were the root's already. */
static int go_up(const char *name, size_t *length) {
    if (*length == 0)
        return 0;
    while (*length > 0 && name[*length - 1] != '.')
        --*length;
    *length -= *length > 0;
    return 1;
}

/* Finds the nearest scope at or above the first *length bytes of a name, or -1; *length becomes that of the scope's
 * name. */
static int32_t scope_above(const tess__model *m, const char *name, size_t *length) {
    int32_t k;
    do
        k = tess__names_find(&m->scope_index, name, *length);
    while (k < 0 && go_up(name, length));
    return k;
}

/* Calls `visit` for each scope that hands out parameter i. A scope of the hooks hands out what it owns, a block all
 * below it. */
static void each_reader(tess__model *m, int32_t i, void (*visit)(tess__scope *, int32_t)) {
    const tess__param *p = &m->params[i];
    size_t length = strlen(p->name);
    do {
        int32_t k = scope_above(m, p->name, &length);
        if (k >= 0 && (k == p->scope || m->scopes[k].block >= 0))
            visit(&m->scopes[k], i);
    } while (go_up(p->name, &length));
}

static void count_param(tess__scope *scope, int32_t i) {
    (void)i;
    scope->n_params++;
}

static void list_param(tess__scope *scope, int32_t i) {
    scope->params[scope->n_params++] = i;
}

static int32_t home_of(const tess__model *m, int32_t i) {
    size_t length = strlen(m->params[i].name);
    return scope_above(m, m->params[i].name, &length);
}

tess_status tess__model_check_homes(const tess__model *m) {
    for (int32_t i = 0; i < m->n_params; i++)
        if (home_of(m, i) < 0)
            return tess__fail(TESS_E_INVALID,
                              "parameter \"%s\" lies in no declared scope; declare one of its prefixes, or \"\"",
                              m->params[i].name);
    return TESS_OK;
}

tess_status tess__model_finish(tess__model *m) {
    TRY(tess__model_check_homes(m));
    for (int32_t i = 0; i < m->n_params; i++)
        m->params[i].scope = home_of(m, i);
    for (int32_t i = 0; i < m->n_params; i++)
        each_reader(m, i, count_param);
    for (int32_t k = 0; k < m->n_scopes; k++) {
        tess__scope *scope = &m->scopes[k];
        scope->params = malloc(((size_t)scope->n_params + 1) * sizeof *scope->params);
        if (!scope->params)
            return tess__fail(TESS_E_NOMEM, "no memory for the parameter list of scope \"%s\"", scope->name);
        scope->n_params = 0;
    }
    for (int32_t i = 0; i < m->n_params; i++)
        each_reader(m, i, list_param);
    m->finished = 1;
    return TESS_OK;
}

void tess__model_free(tess__model *m) {
    for (int32_t i = 0; i < m->n_params; i++)
        free(m->params[i].name);
    for (int32_t k = 0; k < m->n_scopes; k++) {
        free(m->scopes[k].name);
        free(m->scopes[k].params);
    }
    for (int32_t i = 0; i < m->n_blocks; i++)
        free((char *)m->blocks[i].options.also);
    free(m->params);
    free(m->scopes);
    free(m->blocks);
    tess__names_free(&m->param_index);
    tess__names_free(&m->scope_index);
    *m = (tess__model){ 0 };
}

/* ---- comparing models: parameters, then scopes with their blocks, as one list ---- */

int32_t tess__model_n_items(const tess__model *m) {
    return m->n_params + m->n_scopes;
}

uint64_t tess__model_item_hash(const tess__model *m, int32_t i) {
    uint64_t h = TESS__HASH_START;
    if (i < m->n_params) {
        const tess__param *p = &m->params[i];
        h = tess__hash_text(h, p->name);
        h = tess__hash_u64(h, (uint64_t)p->dtype << 32 | p->flags);
        h = tess__hash_u64(h, (uint64_t)p->ndim << 32 | p->compute_dtypes);
        h = tess__hash(h, p->shape, (size_t)p->ndim * sizeof p->shape[0]);
        return tess__hash_u64(h, (uint64_t)p->tied_to << 32 | (uint32_t)p->optimizer_group);
    }
    const tess__scope *scope = &m->scopes[i - m->n_params];
    h = tess__hash_text(h, scope->name);
    h = tess__hash_u64(h, (uint64_t)(uint32_t)scope->block);
    if (scope->block >= 0) {
        const tess_block_options *o = &m->blocks[scope->block].options;
        h = tess__hash_u64(h, o->flags);
        h = tess__hash_u64(h, o->output_bytes);
        h = tess__hash_u64(h, o->saved_bytes);
        h = tess__hash_u64(h, o->forward_scratch_bytes);
        h = tess__hash_u64(h, o->backward_scratch_bytes);
        h = tess__hash_u64(h, o->remake_scratch_bytes);
        h = tess__hash_u64(h, o->selective_saved_bytes);
        h = tess__hash_u64(h, o->selective_scratch_bytes);
        h = tess__hash(h, &o->forward_work, sizeof o->forward_work);
        h = tess__hash(h, &o->selective_work, sizeof o->selective_work);
        h = tess__hash_text(h, o->also ? o->also : "");
    }
    return h;
}

void tess__model_item_text(const tess__model *m, int32_t i, char *out, size_t n) {
    if (i >= m->n_params) {
        const tess__scope *scope = &m->scopes[i - m->n_params];
        const tess_block_options *o = scope->block >= 0 ? &m->blocks[scope->block].options : NULL;
        if (o)
            snprintf(out, n, "block %s with %llu bytes of output, %llu saved", scope->name,
                     (unsigned long long)o->output_bytes, (unsigned long long)o->saved_bytes);
        else
            snprintf(out, n, "scope %s", scope->name);
        return;
    }
    const tess__param *p = &m->params[i];
    size_t at = (size_t)snprintf(out, n, "parameter %s, %s [", p->name, tess_dtype_name(p->dtype));
    for (int32_t d = 0; d < p->ndim && at < n; d++)
        at += (size_t)snprintf(out + at, n - at, "%s%lld", d ? ", " : "", (long long)p->shape[d]);
    if (at < n)
        snprintf(out + at, n - at, "]%s%s%s%s", p->flags & TESS_FROZEN ? ", frozen" : "",
                 p->flags & TESS_BUFFER ? ", buffer" : "", p->tied_to != i ? ", tied to " : "",
                 p->tied_to != i ? m->params[p->tied_to].name : "");
}

uint64_t tess__model_hash(const tess__model *m) {
    uint64_t h = tess__hash_u64(TESS__HASH_START, (uint64_t)m->n_params);
    for (int32_t i = 0; i < tess__model_n_items(m); i++)
        h = tess__hash_u64(h, tess__model_item_hash(m, i));
    return h;
}

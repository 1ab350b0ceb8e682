#include "model.h"

#include "hash.h"
#include "status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Larger than any real model, small enough that no product of two counts overflows. */
enum { MAX_NAME = 255, MAX_COUNT = 1 << 22 };

uint32_t tess__dtype_bytes(uint32_t dtype) {
    static const uint8_t bytes[] = { 0, 1, 1, 4, 8, 2, 2, 4, 8, 1, 1 };
    return dtype < sizeof bytes ? bytes[dtype] : 0;
}

const char *tess__dtype_name(uint32_t dtype) {
    static const char *const names[] = {
        "?", "u8", "i8", "i32", "i64", "f16", "bf16", "f32", "f64", "f8e4m3", "f8e5m2"
    };
    return dtype < sizeof names / sizeof names[0] ? names[dtype] : "?";
}

int tess__name_is_below(const char *name, const char *module) {
    size_t n = strlen(module);
    return n == 0 || (strncmp(name, module, n) == 0 && (name[n] == '.' || name[n] == 0));
}

int32_t tess__model_find_param(const tess__model *m, const char *name) {
    for (int32_t i = 0; i < m->n_params; i++)
        if (strcmp(m->params[i].name, name) == 0)
            return i;
    return -1;
}

static int32_t find_scope(const tess__model *m, const char *name) {
    for (int32_t i = 0; i < m->n_scopes; i++)
        if (strcmp(m->scopes[i].name, name) == 0)
            return i;
    return -1;
}

/* Makes room for `extra` more items of `size` bytes. */
static tess_status grow(void **items, int32_t n, int32_t *cap, int64_t extra, size_t size) {
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

static tess_status check_name(const tess__model *m, const char *what, const char *name, int64_t stack) {
    if (m->finished)
        return tess__fail(TESS_E_INVALID, "%s \"%s\" is declared after tess_shard", what, name ? name : "");
    if (!name || strlen(name) > MAX_NAME)
        return tess__fail(TESS_E_INVALID, "a %s needs a name of at most %d characters", what, MAX_NAME);
    if (stack < 0 || stack > MAX_COUNT)
        return tess__fail(TESS_E_INVALID, "%s \"%s\": stack of %lld is not between 0 and %d", what, name,
                          (long long)stack, MAX_COUNT);
    if ((stack > 0) != (strchr(name, '*') != NULL))
        return tess__fail(TESS_E_INVALID, "%s \"%s\": a * in the name goes with stack > 0", what, name);
    return TESS_OK;
}

tess_status tess__model_add_scope(tess__model *m, const char *name, int64_t stack, int32_t *first) {
    tess_status s = check_name(m, "scope", name, stack);
    if (s)
        return s;
    int64_t n = stack ? stack : 1;
    if ((s = grow((void **)&m->scopes, m->n_scopes, &m->cap_scopes, n, sizeof *m->scopes)))
        return s;
    int32_t start = m->n_scopes;
    for (int64_t i = 0; i < n; i++) {
        char *full = slice_name(name, stack, i);
        if (!full)
            return tess__fail(TESS_E_NOMEM, "no memory for scope \"%s\"", name);
        if (find_scope(m, full) >= 0) {
            s = tess__fail(TESS_E_INVALID, "scope \"%s\" is declared twice", full);
            free(full);
            return s;
        }
        m->scopes[m->n_scopes++] = (tess__scope){ .name = full, .block = -1 };
    }
    if (first)
        *first = start;
    return TESS_OK;
}

static tess_status check_param(const tess_param_options *o, uint64_t *elems) {
    if (!tess__dtype_bytes(o->dtype))
        return tess__fail(TESS_E_INVALID, "parameter \"%s\": unknown dtype %u", o->name, o->dtype);
    if (o->ndim < 0 || o->ndim > TESS__MAX_DIMS || (o->ndim && !o->shape))
        return tess__fail(TESS_E_INVALID, "parameter \"%s\": %d dimensions, at most %d are possible", o->name, o->ndim,
                          TESS__MAX_DIMS);
    *elems = 1;
    for (int32_t d = 0; d < o->ndim; d++) {
        if (o->shape[d] < 1 || (uint64_t)o->shape[d] > (UINT64_C(1) << 44) / *elems)
            return tess__fail(TESS_E_INVALID, "parameter \"%s\": dimension %d is %lld", o->name, d,
                              (long long)o->shape[d]);
        *elems *= (uint64_t)o->shape[d];
    }
    return TESS_OK;
}

tess_status tess__model_add_param(tess__model *m, const tess_param_options *o, int32_t *first) {
    uint64_t elems = 0;
    tess_status s = check_name(m, "parameter", o->name, o->stack);
    if (s || (s = check_param(o, &elems)))
        return s;
    int64_t n = o->stack ? o->stack : 1;
    if ((s = grow((void **)&m->params, m->n_params, &m->cap_params, n, sizeof *m->params)))
        return s;
    int32_t start = m->n_params;
    for (int64_t i = 0; i < n; i++) {
        tess__param p = { .dtype = o->dtype, .flags = o->flags, .compute_dtypes = o->compute_dtypes, .ndim = o->ndim };
        p.name = slice_name(o->name, o->stack, i);
        if (!p.name)
            return tess__fail(TESS_E_NOMEM, "no memory for parameter \"%s\"", o->name);
        if (o->ndim)
            memcpy(p.shape, o->shape, (size_t)o->ndim * sizeof *o->shape);
        p.elems = elems;
        p.tag = o->tag;
        p.slice = i;
        p.scope = p.unit = p.group = -1;
        p.tied_to = m->n_params;
        p.optimizer_group = o->optimizer_group;
        m->params[m->n_params++] = p;
    }
    if (first)
        *first = start;
    return TESS_OK;
}

tess_status tess__model_add_block(tess__model *m, const tess_block_options *o, int32_t *scope) {
    int32_t at;
    if (!o->forward || !o->backward)
        return tess__fail(TESS_E_INVALID, "block \"%s\" has no %s function", o->name ? o->name : "",
                          o->forward ? "backward" : "forward");
    tess_status s = tess__model_add_scope(m, o->name, 0, &at);
    if (s || (s = grow((void **)&m->blocks, m->n_blocks, &m->cap_blocks, 1, sizeof *m->blocks)))
        return s;
    tess__block *b = &m->blocks[m->n_blocks];
    *b = (tess__block){ .options = *o, .scope = at };
    b->options.name = m->scopes[at].name;
    m->scopes[at].block = m->n_blocks++;
    if (scope)
        *scope = at;
    return TESS_OK;
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
    tess_status s = tess__model_add_param(m, &o, &at);
    if (!s)
        m->params[at].tied_to = target;
    return s;
}

static tess_status find_homes(tess__model *m) {
    for (int32_t i = 0; i < m->n_params; i++) {
        tess__param *p = &m->params[i];
        size_t longest = 0;
        for (int32_t k = 0; k < m->n_scopes; k++) {
            size_t n = strlen(m->scopes[k].name);
            if (tess__name_is_below(p->name, m->scopes[k].name) && (p->scope < 0 || n > longest)) {
                p->scope = k;
                longest = n;
            }
        }
        if (p->scope < 0)
            return tess__fail(TESS_E_INVALID,
                              "parameter \"%s\" lies in no declared scope; declare one of its prefixes, or \"\"",
                              p->name);
    }
    return TESS_OK;
}

/* A block reads all below its name, a scope of the hooks what it owns. */
static int hands_out(const tess__model *m, int32_t scope, const tess__param *p) {
    const tess__scope *s = &m->scopes[scope];
    return s->block >= 0 ? tess__name_is_below(p->name, s->name) : p->scope == scope;
}

tess_status tess__model_finish(tess__model *m) {
    tess_status s = find_homes(m);
    if (s)
        return s;
    for (int32_t i = 0; i < m->n_params; i++)
        for (int32_t k = i + 1; k < m->n_params && m->n_params < 4096; k++)
            if (strcmp(m->params[i].name, m->params[k].name) == 0)
                return tess__fail(TESS_E_INVALID, "parameter \"%s\" is declared twice", m->params[i].name);
    for (int32_t k = 0; k < m->n_scopes; k++) {
        tess__scope *scope = &m->scopes[k];
        scope->params = malloc(((size_t)m->n_params + 1) * sizeof *scope->params);
        if (!scope->params)
            return tess__fail(TESS_E_NOMEM, "no memory for the parameter list of scope \"%s\"", scope->name);
        for (int32_t i = 0; i < m->n_params; i++)
            if (hands_out(m, k, &m->params[i]))
                scope->params[scope->n_params++] = i;
    }
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
    free(m->params);
    free(m->scopes);
    free(m->blocks);
    *m = (tess__model){ 0 };
}

uint64_t tess__model_hash(const tess__model *m) {
    uint64_t h = TESS__HASH_START;
    for (int32_t i = 0; i < m->n_params; i++) {
        const tess__param *p = &m->params[i];
        h = tess__hash_text(h, p->name);
        h = tess__hash_u64(h, (uint64_t)p->dtype << 32 | p->flags);
        h = tess__hash(h, p->shape, (size_t)p->ndim * sizeof p->shape[0]);
        h = tess__hash_u64(h, (uint64_t)p->tied_to << 32 | (uint32_t)p->optimizer_group);
    }
    for (int32_t k = 0; k < m->n_scopes; k++)
        h = tess__hash_text(h, m->scopes[k].name);
    for (int32_t b = 0; b < m->n_blocks; b++) {
        const tess_block_options *o = &m->blocks[b].options;
        h = tess__hash_u64(h, o->output_bytes);
        h = tess__hash_u64(h, o->saved_bytes);
        h = tess__hash_u64(h, o->forward_scratch_bytes);
        h = tess__hash_u64(h, o->backward_scratch_bytes);
    }
    return h;
}

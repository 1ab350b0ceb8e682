/* SPDX-License-Identifier: BSD-3-Clause */
/* MODEL.json, our own description of a model: docs/model-json.md. */
#include "plan_file_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/safetensors.h"
#include "tools/support/options.h"
#include <tessera/tessera.h>

typedef struct {
    plan_model *m;
    const char *path;
    json_in in;
    int estimate;
    tess_status status; /* a failure whose message is set already */
    char said[256];     /* storage that in.expected may point to */
} reader;

/* The fields of an object, by key; each reads one value and returns 1, or 0 after a failure. */
typedef struct {
    const char *key;
    int (*read)(reader *, void *item);
} field;

static int refuse(reader *r, const char *expected) {
    if (!r->in.expected)
        r->in.expected = expected;
    return 0;
}

/* Names the key found, and the one it may have been meant for; `expected` lists the keys. */
static int refuse_key(reader *r, const char *key, const field *fields, size_t n, const char *expected) {
    const char *names[16], *near;
    for (size_t i = 0; i < n && i < 16; i++)
        names[i] = fields[i].key;
    near = tool_nearest(key, names, n < 16 ? n : 16);
    if (!near)
        snprintf(r->said, sizeof r->said, "%s, not \"%s\"", expected, key);
    else if (strcmp(near, key) == 0)
        snprintf(r->said, sizeof r->said, "\"%s\" once, not twice", key);
    else
        snprintf(r->said, sizeof r->said, "\"%s\" where there is \"%s\"", near, key);
    return refuse(r, r->said);
}

/* `expected` lists the keys, for the message. */
static int read_object(reader *r, const field *fields, size_t n, void *item, const char *expected) {
    char key[32];
    uint64_t seen = 0;
    if (!json_in_char(&r->in, '{'))
        return 0;
    if (json_in_if(&r->in, '}'))
        return 1;
    do {
        size_t before = r->in.at, i = 0;
        if (!json_in_string(&r->in, key, sizeof key))
            return 0;
        while (i < n && strcmp(fields[i].key, key) != 0)
            i++;
        if (i == n || seen >> i & 1) {
            r->in.at = before;
            return refuse_key(r, key, fields, n, expected);
        }
        seen |= UINT64_C(1) << i;
        if (!json_in_char(&r->in, ':') || !fields[i].read(r, item))
            return 0;
    } while (json_in_if(&r->in, ','));
    return json_in_char(&r->in, '}');
}

static int read_array(reader *r, int (*read)(reader *)) {
    if (!json_in_char(&r->in, '['))
        return 0;
    if (json_in_if(&r->in, ']'))
        return 1;
    do
        if (!read(r))
            return 0;
    while (json_in_if(&r->in, ','));
    return json_in_char(&r->in, ']');
}

static int keep_status(reader *r, tess_status status) {
    r->status = status;
    return status == TESS_OK;
}

static int read_bool(reader *r, int *out) {
    size_t before;
    json_in_if(&r->in, ' '); /* white space is passed over */
    before = r->in.at;
    if (!json_in_skip(&r->in))
        return 0;
    size_t n = r->in.at - before;
    *out = n == 4 && memcmp(r->in.text + before, "true", 4) == 0;
    if (*out || (n == 5 && memcmp(r->in.text + before, "false", 5) == 0))
        return 1;
    r->in.at = before;
    return refuse(r, "true or false");
}

/* ---- parameters -------------------------------------------------------------------------------- */

typedef struct {
    char name[TOOL_TENSOR_NAME], of[TOOL_TENSOR_NAME];
    plan_param p;
    plan_block b;
    int has_shape;
} item;

static int read_name(reader *r, void *v) {
    item *t = v;
    return json_in_string(&r->in, t->name, sizeof t->name);
}

static int read_of(reader *r, void *v) {
    item *t = v;
    return json_in_string(&r->in, t->of, sizeof t->of);
}

static int read_stack(reader *r, void *v) {
    item *t = v;
    uint64_t n = 0;
    if (!json_in_uint(&r->in, &n))
        return 0;
    if (n < 1 || n > PLAN_MOST_PARAMS)
        return refuse(r, "a stack of 1 to 1048576");
    t->p.stack = t->b.stack = (int64_t)n;
    return 1;
}

static int read_shape(reader *r, void *v) {
    item *t = v;
    t->has_shape = 1;
    if (!json_in_char(&r->in, '['))
        return 0;
    if (json_in_if(&r->in, ']'))
        return 1;
    do {
        uint64_t dim = 0;
        if (t->p.ndim == TOOL_TENSOR_DIMS)
            return refuse(r, "at most 8 dimensions");
        if (!json_in_uint(&r->in, &dim))
            return 0;
        if (dim < 1)
            return refuse(r, "a dimension of at least 1");
        t->p.shape[t->p.ndim++] = (int64_t)dim;
    } while (json_in_if(&r->in, ','));
    return json_in_char(&r->in, ']');
}

static int read_dtype_word(reader *r, uint32_t *out) {
    char word[16];
    if (!json_in_string(&r->in, word, sizeof word))
        return 0;
    *out = tool_dtype_of_word(word);
    if (*out == TESS_F32 || *out == TESS_F64 || *out == TESS_F16 || *out == TESS_BF16 || *out == TESS_U8)
        return 1;
    return refuse(r, "a dtype before this place: F32, F64, F16, BF16 or U8");
}

static int read_dtype(reader *r, void *v) {
    return read_dtype_word(r, &((item *)v)->p.dtype);
}

static int read_compute(reader *r, void *v) {
    item *t = v;
    if (!json_in_char(&r->in, '['))
        return 0;
    do {
        uint32_t dtype = 0;
        if (!read_dtype_word(r, &dtype))
            return 0;
        t->p.compute_dtypes |= 1u << dtype;
    } while (json_in_if(&r->in, ','));
    return json_in_char(&r->in, ']');
}

static int read_flag(reader *r, item *t, uint32_t flag) {
    int on = 0;
    if (!read_bool(r, &on))
        return 0;
    t->p.flags |= on ? flag : 0;
    return 1;
}

static int read_frozen(reader *r, void *v) {
    return read_flag(r, v, TESS_FROZEN);
}

static int read_is_buffer(reader *r, void *v) {
    return read_flag(r, v, TESS_BUFFER);
}

static int read_param(reader *r) {
    static const field fields[] = { { "name", read_name },       { "shape", read_shape }, { "dtype", read_dtype },
                                    { "compute", read_compute }, { "stack", read_stack }, { "frozen", read_frozen },
                                    { "buffer", read_is_buffer } };
    item t = { .p = { .dtype = TESS_F32 } };
    t.p.name = t.name;
    if (!read_object(r, fields, sizeof fields / sizeof fields[0], &t,
                     "name, shape, dtype, compute, stack, frozen or buffer"))
        return 0;
    if (!t.name[0] || !t.has_shape)
        return refuse(r, "a name and a shape before this place");
    if (!t.p.compute_dtypes)
        t.p.compute_dtypes = 1u << t.p.dtype | (t.p.dtype == TESS_F32 ? 1u << TESS_BF16 | 1u << TESS_F16 : 0);
    return keep_status(r, plan_model_param(r->m, r->path, &t.p));
}

static int read_tie(reader *r) {
    static const field fields[] = { { "name", read_name }, { "of", read_of } };
    item t = { .p = { .dtype = 0 } };
    if (!read_object(r, fields, 2, &t, "name and of"))
        return 0;
    if (!t.name[0] || !t.of[0])
        return refuse(r, "name and of before this place");
    return keep_status(r, plan_model_tie(r->m, r->path, t.name, t.of));
}

/* ---- blocks ------------------------------------------------------------------------------------ */

static int read_output(reader *r, void *v) {
    return json_in_uint(&r->in, &((item *)v)->b.output_bytes);
}

static int read_saved(reader *r, void *v) {
    return json_in_uint(&r->in, &((item *)v)->b.saved_bytes);
}

static int read_forward(reader *r, void *v) {
    return json_in_uint(&r->in, &((item *)v)->b.forward_scratch_bytes);
}

static int read_backward(reader *r, void *v) {
    return json_in_uint(&r->in, &((item *)v)->b.backward_scratch_bytes);
}

static int read_keep(reader *r, void *v) {
    int keep = 0;
    if (!read_bool(r, &keep))
        return 0;
    ((item *)v)->b.keep = keep;
    return 1;
}

static int read_block(reader *r) {
    static const field fields[] = { { "name", read_name },
                                    { "stack", read_stack },
                                    { "output_bytes", read_output },
                                    { "saved_bytes", read_saved },
                                    { "forward_scratch_bytes", read_forward },
                                    { "backward_scratch_bytes", read_backward },
                                    { "keep", read_keep } };
    item t = { .p = { .dtype = 0 } };
    t.b.name = t.name;
    if (!read_object(r, fields, sizeof fields / sizeof fields[0], &t,
                     "name, stack, output_bytes, saved_bytes, forward_scratch_bytes, backward_scratch_bytes or keep"))
        return 0;
    return keep_status(r, plan_model_block(r->m, r->path, &t.b));
}

/* ---- the whole --------------------------------------------------------------------------------- */

static int read_version(reader *r, void *v) {
    uint64_t version = 0;
    *(int *)v = 1;
    if (!json_in_uint(&r->in, &version))
        return 0;
    return version == 1 ? 1 : refuse(r, "version 1 before this place");
}

static int read_input(reader *r, void *v) {
    (void)v;
    return json_in_uint(&r->in, &r->m->input_bytes);
}

static int read_params(reader *r, void *v) {
    (void)v;
    return read_array(r, read_param);
}

static int read_blocks(reader *r, void *v) {
    (void)v;
    return read_array(r, read_block);
}

static int read_ties(reader *r, void *v) {
    (void)v;
    return read_array(r, read_tie);
}

static int read_estimate(reader *r, void *v) {
    (void)v;
    return read_bool(r, &r->estimate);
}

static tess_status check(const plan_model *m, const char *path) {
    if (m->input_bytes > PLAN_MOST_BYTES)
        return tess_fail(TESS_E_DATA, "%s: input_bytes is more than 2^60", path);
    if (m->n_blocks == 0)
        return tess_fail(TESS_E_DATA, "%s: no blocks, expected them in forward order", path);
    for (int32_t i = 0; m->has_activations && i + 1 < m->n_blocks; i++)
        if (!m->blocks[i].output_bytes)
            return tess_fail(TESS_E_DATA, "%s: block \"%s\" hands nothing on: output_bytes is 0", path,
                             m->blocks[i].name);
    return TESS_OK;
}

tess_status plan_json_read(plan_model *m, const char *path, int *estimate) {
    enum { MOST_TEXT = 100 << 20 };
    static const field fields[] = {
        { "tessera_model", read_version }, { "input_bytes", read_input }, { "parameters", read_params },
        { "blocks", read_blocks },         { "tied", read_ties },         { "estimate", read_estimate }
    };
    reader r = { .m = m, .path = path };
    char *text = NULL;
    int has_version = 0;
    tess_status status = json_file_read(path, MOST_TEXT, &text, &r.in.bytes);
    if (status != TESS_OK)
        return status;
    r.in.text = text;
    int ok = read_object(&r, fields, sizeof fields / sizeof fields[0], &has_version,
                         "tessera_model, input_bytes, parameters, blocks, tied or estimate");
    if (ok && !has_version)
        ok = refuse(&r, "\"tessera_model\": 1 before this place");
    if (!ok || !json_in_end(&r.in))
        status = r.status != TESS_OK ? r.status : json_file_bad(path, &r.in);
    free(text);
    if (status == TESS_OK)
        status = plan_model_measure(m, path);
    if (status == TESS_OK)
        status = check(m, path);
    if (status == TESS_OK)
        *estimate = r.estimate;
    return status;
}

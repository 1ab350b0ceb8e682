/* SPDX-License-Identifier: BSD-3-Clause */
#include "safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_scan.h"
#include "safetensors_dtype.h"
#include "base/status.h"

#define MOST_DATA_BYTES (UINT64_C(1) << 60) /* so that no sum overflows, whatever a header says */

struct tess__safetensors {
    char *path;
    tess__source source;
    uint64_t n, capacity;
    tess__tensor *tensors; /* by offset */
};

static const struct {
    uint32_t dtype, bytes;
    const char *word;
} dtypes[] = {
    { TESS_F32, 4, "F32" },        { TESS_BF16, 2, "BF16" },      { TESS_F16, 2, "F16" }, { TESS_F64, 8, "F64" },
    { TESS_U8, 1, "U8" },          { TESS_I8, 1, "I8" },          { TESS_I32, 4, "I32" }, { TESS_I64, 8, "I64" },
    { TESS_F8E4M3, 1, "F8_E4M3" }, { TESS_F8E5M2, 1, "F8_E5M2" }, { TESS_U8, 1, "BOOL" }, { TESS_I32, 4, "U32" },
    { TESS_I64, 8, "U64" }, /* for their size; they are not written */
};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

uint32_t tess__tensor_dtype_bytes(uint32_t dtype) {
    for (size_t i = 0; i < N_DTYPES; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].bytes;
    return 0;
}

const char *tess__dtype_word(uint32_t dtype) {
    for (size_t i = 0; i < N_DTYPES; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].word;
    return NULL;
}

uint32_t tess__dtype_of_word(const char *word) {
    for (size_t i = 0; i < N_DTYPES; i++)
        if (strcmp(dtypes[i].word, word) == 0)
            return dtypes[i].dtype;
    return 0;
}

static tess_status read_at(const tess__safetensors *s, void *into, uint64_t bytes, uint64_t offset) {
    return bytes ? s->source.read(s->source.user, into, bytes, offset) : TESS_OK;
}

/* ---- the header -------------------------------------------------------------------------------- */
static int scan_shape(json_scan *in, tess__tensor *t) {
    uint64_t dim;
    if (!json_scan_char(in, '['))
        return 0;
    t->ndim = 0;
    t->elems = 1;
    if (json_scan_if(in, ']'))
        return 1;
    do {
        if (t->ndim == TESS__TENSOR_DIMS) {
            in->expected = "at most 8 dimensions";
            return 0;
        }
        if (!json_scan_uint(in, &dim))
            return 0;
        if (__builtin_mul_overflow(t->elems, dim, &t->elems) || t->elems > INT64_MAX / 8) {
            in->expected = "a shape of fewer than 2^60 elements";
            return 0;
        }
        t->shape[t->ndim++] = (int64_t)dim;
    } while (json_scan_if(in, ','));
    return json_scan_char(in, ']');
}

static int scan_offsets(json_scan *in, uint64_t *begin, uint64_t *end) {
    return json_scan_char(in, '[') && json_scan_uint(in, begin) && json_scan_char(in, ',') && json_scan_uint(in, end) &&
           json_scan_char(in, ']');
}

/* {"dtype":…,"shape":…,"data_offsets":…} in any order; `seen` has a bit for each. */
static int scan_tensor(json_scan *in, tess__tensor *t, uint64_t *end) {
    unsigned seen = 0;
    char key[32], word[16];
    if (!json_scan_char(in, '{'))
        return 0;
    do {
        if (!json_scan_string(in, key, sizeof key) || !json_scan_char(in, ':'))
            return 0;
        unsigned bit = strcmp(key, "dtype") == 0 ? 1 : strcmp(key, "shape") == 0 ? 2 : 4;
        if (bit == 4 && strcmp(key, "data_offsets") != 0)
            bit = 8;
        int ok = bit == 1   ? json_scan_string(in, word, sizeof word)
                 : bit == 2 ? scan_shape(in, t)
                 : bit == 4 ? scan_offsets(in, &t->offset, end)
                            : 0;
        if (!ok || seen & bit) {
            if (!in->expected)
                in->expected = "dtype, shape and data_offsets, once each";
            return 0;
        }
        seen |= bit;
    } while (json_scan_if(in, ','));
    if (!json_scan_char(in, '}'))
        return 0;
    in->expected = seen != 7 ? "dtype, shape and data_offsets, once each" : NULL;
    t->dtype = seen == 7 ? tess__dtype_of_word(word) : 0;
    if (seen == 7 && t->dtype == 0)
        in->expected = "a known dtype before this place";
    t->bytes = t->dtype ? t->elems * tess__tensor_dtype_bytes(t->dtype) : 0;
    return !in->expected;
}

static tess__tensor *add_tensor(tess__safetensors *s) {
    if (s->n == s->capacity) {
        uint64_t capacity = s->capacity ? 2 * s->capacity : 64;
        tess__tensor *grown = realloc(s->tensors, capacity * sizeof *grown);
        if (!grown)
            return NULL;
        s->tensors = grown;
        s->capacity = capacity;
    }
    tess__tensor *t = &s->tensors[s->n];
    memset(t, 0, sizeof *t);
    return t;
}

static tess_status scan_one(tess__safetensors *s, json_scan *in, uint64_t data_bytes) {
    uint64_t end = 0;
    tess__tensor *t = add_tensor(s);
    if (!t)
        return tess__fail(TESS_E_NOMEM, "%s: no memory for its header", s->path);
    if (!json_scan_string(in, t->name, sizeof t->name) || !json_scan_char(in, ':'))
        return TESS_E_DATA;
    if (strcmp(t->name, "__metadata__") == 0)
        return json_scan_skip(in) ? TESS_OK : TESS_E_DATA;
    if (!scan_tensor(in, t, &end))
        return TESS_E_DATA;
    if (end < t->offset || end - t->offset != t->bytes || end > data_bytes)
        return tess__fail(TESS_E_INVALID,
                          "%s: offset %zu: tensor '%s' lies at %" PRIu64 " to %" PRIu64 ", expected %" PRIu64
                          " bytes within %" PRIu64,
                          s->path, in->at + 8, t->name, t->offset, end, t->bytes, data_bytes);
    s->n++;
    return TESS_OK;
}

/* TESS_E_DATA from scan_one means that `in` says what is wrong; other failures have their message already. */
static tess_status scan_header(tess__safetensors *s, json_scan *in, uint64_t data_bytes) {
    tess_status status = TESS_OK;
    int ok = json_scan_char(in, '{');
    if (ok && !json_scan_if(in, '}')) {
        do
            status = scan_one(s, in, data_bytes);
        while (status == TESS_OK && json_scan_if(in, ','));
        ok = status == TESS_OK && json_scan_char(in, '}');
    }
    if (ok && json_scan_end(in))
        return TESS_OK;
    if (status != TESS_OK && status != TESS_E_DATA)
        return status == TESS_E_INVALID ? TESS_E_DATA : status;
    return tess__fail(TESS_E_DATA, "%s: offset %zu: the header is not as expected here: expected %s", s->path,
                      in->at + 8, in->expected ? in->expected : "JSON");
}

static int by_offset(const void *a, const void *b) {
    const tess__tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b) {
    const tess__tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static tess_status check_names(const tess__safetensors *s) {
    const tess__tensor **list = malloc((s->n + 1) * sizeof list[0]);
    tess_status status = TESS_OK;
    if (!list)
        return tess__fail(TESS_E_NOMEM, "%s: no memory for its header", s->path);
    for (uint64_t i = 0; i < s->n; i++)
        list[i] = &s->tensors[i];
    qsort(list, s->n, sizeof list[0], by_name);
    for (uint64_t i = 1; i < s->n && status == TESS_OK; i++)
        if (by_name(&list[i - 1], &list[i]) == 0)
            status = tess__fail(TESS_E_DATA, "%s: tensor '%s' appears twice", s->path, list[i]->name);
    free(list);
    return status;
}

/* Sorts; refuses gaps, overlaps and two tensors of one name; makes offsets count from the file's start. Where only the
 * header counts, the data may be cut short, but there is none beyond it. */
static tess_status check_layout(tess__safetensors *s, uint64_t data_start, uint64_t data_bytes) {
    uint64_t at = 0;
    if (s->n) /* the list of none is null */
        qsort(s->tensors, s->n, sizeof s->tensors[0], by_offset);
    for (uint64_t i = 0; i < s->n; i++) {
        tess__tensor *t = &s->tensors[i];
        if (t->offset != at)
            return tess__fail(TESS_E_DATA,
                              "%s: tensor '%s' begins at offset %" PRIu64 " of the data, expected %" PRIu64
                              " after the one before",
                              s->path, t->name, t->offset, at);
        at += t->bytes;
        t->offset += data_start;
    }
    if (s->source.header_only ? at < data_bytes : at != data_bytes)
        return tess__fail(TESS_E_DATA, "%s: offset %" PRIu64 ": %" PRIu64 " bytes belong to no tensor", s->path,
                          data_start + at, data_bytes - at);
    return check_names(s);
}

static tess_status read_header(tess__safetensors *s, uint64_t file_bytes) {
    unsigned char length[8];
    uint64_t bytes = 0;
    if (file_bytes < 8)
        return tess__fail(TESS_E_DATA, "%s: %" PRIu64 " bytes, expected at least 8 with the header's length", s->path,
                          file_bytes);
    TRY(read_at(s, length, 8, 0));
    for (int i = 0; i < 8; i++)
        bytes |= (uint64_t)length[i] << (8 * i);
    if (bytes > TESS__TENSOR_HEADER_MOST || bytes > file_bytes - 8)
        return tess__fail(TESS_E_DATA, "%s: offset 0: a header of %" PRIu64 " bytes, expected at most %" PRIu64,
                          s->path, bytes,
                          file_bytes - 8 < TESS__TENSOR_HEADER_MOST ? file_bytes - 8 : TESS__TENSOR_HEADER_MOST);
    char *header = malloc(bytes + 1);
    if (!header)
        return tess__fail(TESS_E_NOMEM, "%s: no memory for its header of %" PRIu64 " bytes", s->path, bytes);
    tess_status status = read_at(s, header, bytes, 8);
    if (status == TESS_OK)
        status = scan_header(s, &(json_scan){ .text = header, .bytes = bytes },
                             s->source.header_only ? MOST_DATA_BYTES : file_bytes - 8 - bytes);
    if (status == TESS_OK)
        status = check_layout(s, 8 + bytes, file_bytes - 8 - bytes);
    free(header);
    return status;
}

tess_status tess__safetensors_open_source(const char *path, const tess__source *source, tess__safetensors **out) {
    tess__safetensors *s = calloc(1, sizeof *s);
    if (!s || !(s->path = strdup(path))) {
        free(s);
        return tess__fail(TESS_E_NOMEM, "%s: no memory to read it", path);
    }
    s->source = *source;
    tess_status status = read_header(s, source->bytes);
    if (status != TESS_OK)
        tess__safetensors_close(s);
    else
        *out = s;
    return status;
}

void tess__safetensors_close(tess__safetensors *s) {
    if (!s)
        return;
    free(s->tensors);
    free(s->path);
    free(s);
}

tess_status tess__safetensors_read_raw(const tess__safetensors *s, const tess__tensor *t, uint64_t first,
                                       uint64_t elems, void *out) {
    uint32_t size = tess__tensor_dtype_bytes(t->dtype);
    if (first > t->elems || elems > t->elems - first)
        return tess__fail(TESS_E_DATA, "%s: tensor '%s' has %" PRIu64 " elements, expected at least %" PRIu64, s->path,
                          t->name, t->elems, first + elems);
    return read_at(s, out, elems * size, t->offset + first * size);
}

const tess__tensor *tess__safetensors_list(const tess__safetensors *s, uint64_t *n) {
    *n = s->n;
    return s->tensors;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Wraps the core's reader of checkpoints. */
#include "safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/disk.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/safetensors_dtype.h"
#include "names.h"
#include "say.h"

_Static_assert((int)TOOL_TENSOR_DIMS == (int)TESS__TENSOR_DIMS && (int)TOOL_TENSOR_NAME == (int)TESS__TENSOR_NAME,
               "as the core has them");

struct tool_safetensors {
    char *path;
    int disk_file; /* -1: closed */
    tess__safetensors *file;
    const tess__tensor *theirs;
    tool_tensor *list; /* the same tensors in the same order */
    tool_names names;
    uint64_t n;
};

uint32_t tool_dtype_bytes(uint32_t dtype) {
    return tess__tensor_dtype_bytes(dtype);
}

const char *tool_dtype_word(uint32_t dtype) {
    return tess__dtype_word(dtype);
}

uint32_t tool_dtype_of_word(const char *word) {
    return tess__dtype_of_word(word);
}

/* ---- reading ----------------------------------------------------------------------------------------- */

static tess_status read_disk(void *user, void *into, uint64_t bytes, uint64_t offset) {
    const tool_safetensors *s = user;
    int failed = tess__disk_read_all(&tess__disk_real, s->disk_file, into, bytes, offset);
    if (!failed)
        return TESS_OK;
    return tess_fail(TESS_E_DATA, "%s: offset %" PRIu64 ": %s", s->path, offset,
                     failed == -ENODATA ? "the file ends here, it was longer when it was opened" : strerror(-failed));
}

static tess_status open_disk(tool_safetensors *s, int header_only) {
    s->disk_file = tess__disk_real.open(NULL, s->path, TESS__DISK_READ);
    int64_t bytes = s->disk_file < 0 ? s->disk_file : tess__disk_real.size(NULL, s->disk_file);
    if (bytes < 0)
        return tess_fail(TESS_E_DATA,
                         bytes == -EISDIR || bytes == -EINVAL ? "%s: not a file, expected a safetensors file"
                                                              : "%s: %s",
                         s->path, strerror((int)-bytes));
    tess__source source = { .user = s, .read = read_disk, .bytes = (uint64_t)bytes, .header_only = header_only };
    return tess__safetensors_open_source(s->path, &source, &s->file);
}

static tess_status take_list(tool_safetensors *s) {
    s->theirs = tess__safetensors_list(s->file, &s->n);
    s->list = calloc(s->n + 1, sizeof *s->list);
    if (!s->list)
        return tess_fail(TESS_E_NOMEM, "%s: no memory for its list of tensors", s->path);
    for (uint64_t i = 0; i < s->n; i++) {
        const tess__tensor *t = &s->theirs[i];
        s->list[i] = (tool_tensor){ .dtype = t->dtype, .ndim = t->ndim, .elems = t->elems, .bytes = t->bytes };
        memcpy(s->list[i].name, t->name, sizeof t->name);
        memcpy(s->list[i].shape, t->shape, sizeof t->shape);
        TRY(tool_names_add(&s->names, s->list[i].name, (int32_t)i));
    }
    return TESS_OK;
}

static tess_status open_file(const char *path, int header_only, tool_safetensors **out) {
    tool_safetensors *s = calloc(1, sizeof *s);
    if (!s || !(s->path = strdup(path))) {
        free(s);
        return tess_fail(TESS_E_NOMEM, "%s: no memory to read it", path);
    }
    s->disk_file = -1;
    tess_status status = open_disk(s, header_only);
    if (status == TESS_OK)
        status = take_list(s);
    if (status == TESS_OK)
        *out = s;
    else
        tool_safetensors_close(s);
    return status;
}

tess_status tool_safetensors_open(const char *path, tool_safetensors **out) {
    return open_file(path, 0, out);
}

tess_status tool_safetensors_open_header(const char *path, tool_safetensors **out) {
    return open_file(path, 1, out);
}

void tool_safetensors_close(tool_safetensors *s) {
    if (!s)
        return;
    tess__safetensors_close(s->file);
    if (s->disk_file >= 0)
        tess__disk_real.close(NULL, s->disk_file);
    tool_names_free(&s->names);
    free(s->path);
    free(s->list);
    free(s);
}

const tool_tensor *tool_safetensors_list(const tool_safetensors *s, uint64_t *n) {
    *n = s->n;
    return s->list;
}

const tool_tensor *tool_safetensors_find(const tool_safetensors *s, const char *name) {
    int32_t i = tool_names_find(&s->names, name, strlen(name));
    return i < 0 ? NULL : &s->list[i];
}

/* ---- the data ---------------------------------------------------------------------------------- */
static float from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023, bits;
    float value;
    if (exponent == 31)
        bits = sign | 0x7f800000 | mantissa << 13;
    else if (exponent)
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    else {
        value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    memcpy(&value, &bits, 4);
    return value;
}

static float to_float(uint32_t dtype, const unsigned char *at) {
    uint16_t half;
    uint32_t bits;
    float value;
    double wide;
    switch (dtype) {
    case TESS_F64: memcpy(&wide, at, 8); return (float)wide;
    case TESS_F16: memcpy(&half, at, 2); return from_f16(half);
    case TESS_BF16:
        memcpy(&half, at, 2);
        bits = (uint32_t)half << 16;
        memcpy(&value, &bits, 4);
        return value;
    default: memcpy(&value, at, 4); return value;
    }
}

tess_status tool_safetensors_read_raw(const tool_safetensors *s, const tool_tensor *t, uint64_t first, uint64_t elems,
                                      void *out) {
    return tess__safetensors_read_raw(s->file, &s->theirs[t - s->list], first, elems, out);
}

tess_status tool_safetensors_read(const tool_safetensors *s, const tool_tensor *t, uint64_t first, uint64_t elems,
                                  float *out) {
    const tess__tensor *theirs = &s->theirs[t - s->list];
    uint32_t size = tool_dtype_bytes(t->dtype);
    unsigned char piece[8192];
    if (t->dtype != TESS_F32 && t->dtype != TESS_F64 && t->dtype != TESS_F16 && t->dtype != TESS_BF16)
        return tess_fail(TESS_E_DATA, "%s: tensor '%s' is %s, expected F32, F64, F16 or BF16", s->path, t->name,
                         tool_dtype_word(t->dtype));
    if (t->dtype == TESS_F32 || first > t->elems || elems > t->elems - first)
        return tess__safetensors_read_raw(s->file, theirs, first, elems, out);
    for (uint64_t done = 0; done < elems;) {
        uint64_t n = elems - done < sizeof piece / size ? elems - done : sizeof piece / size;
        TRY(tess__safetensors_read_raw(s->file, theirs, first + done, n, piece));
        for (uint64_t i = 0; i < n; i++)
            out[done + i] = to_float(t->dtype, piece + i * size);
        done += n;
    }
    return TESS_OK;
}

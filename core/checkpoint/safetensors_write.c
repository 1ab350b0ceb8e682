/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "safetensors.h"
#include "safetensors_dtype.h"
#include "json_text.h"

static int by_alignment(const void *a, const void *b) {
    const tess__tensor *x = a, *y = b;
    uint32_t dx = tess__tensor_dtype_bytes(x->dtype), dy = tess__tensor_dtype_bytes(y->dtype);
    return dx != dy ? (dx < dy ? 1 : -1) : strcmp(x->name, y->name);
}

uint64_t tess__safetensors_arrange(tess__tensor *tensors, uint64_t n) {
    uint64_t at = 0;
    if (n)
        qsort(tensors, n, sizeof *tensors, by_alignment);
    for (uint64_t i = 0; i < n; i++) {
        tess__tensor *t = &tensors[i];
        t->elems = 1;
        for (int32_t d = 0; d < t->ndim; d++)
            t->elems *= (uint64_t)t->shape[d];
        t->bytes = t->elems * tess__tensor_dtype_bytes(t->dtype);
        t->offset = at;
        at += t->bytes;
    }
    return at;
}

static void put_tensor(FILE *f, const tess__tensor *t) {
    fputc(',', f);
    tess__json_text(f, t->name);
    fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", tess__dtype_word(t->dtype));
    for (int32_t d = 0; d < t->ndim; d++)
        fprintf(f, "%s%" PRId64, d ? "," : "", t->shape[d]);
    fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->offset, t->offset + t->bytes);
}

tess_status tess__safetensors_header(const char *path, const tess__tensor *tensors, uint64_t n, const char *metadata,
                                     uint64_t align, char **out, size_t *bytes) {
    char *text = NULL;
    FILE *f = open_memstream(&text, bytes);
    if (!f)
        return tess__fail(TESS_E_NOMEM, "%s: no memory for the header", path);
    fwrite("\0\0\0\0\0\0\0", 1, 8, f);
    fprintf(f, "{\"__metadata__\":{%s}", metadata);
    for (uint64_t i = 0; i < n; i++)
        put_tensor(f, &tensors[i]);
    fputc('}', f);
    for (long length = ftell(f); (uint64_t)length % align != 0; length++)
        fputc(' ', f);
    if (fclose(f) != 0) {
        free(text);
        return tess__fail(TESS_E_NOMEM, "%s: no memory for the header", path);
    }
    uint64_t length = *bytes - 8;
    for (int i = 0; i < 8; i++)
        text[i] = (char)(unsigned char)(length >> (8 * i));
    *out = text;
    if (length <= TESS__TENSOR_HEADER_MOST)
        return TESS_OK;
    free(text);
    return tess__fail(TESS_E_UNSUPPORTED,
                      "%s: a header of %" PRIu64 " bytes for %" PRIu64 " tensors; the format has %d", path, length, n,
                      TESS__TENSOR_HEADER_MOST);
}

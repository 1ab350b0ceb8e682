/* SPDX-License-Identifier: BSD-3-Clause */
/* Files in the safetensors format (https://huggingface.co/docs/safetensors): eight bytes with the header's length, a
 * JSON header with name, dtype, shape and place of every tensor, the data. */
#ifndef TESS_SAFETENSORS_H
#define TESS_SAFETENSORS_H
#include <tessera/tessera.h>

#include <stddef.h>

enum { TESS__TENSOR_DIMS = 8, TESS__TENSOR_NAME = 320, TESS__TENSOR_HEADER_MOST = 100000000 };

typedef struct {
    char name[TESS__TENSOR_NAME];
    uint32_t dtype; /* TESS_F32 and so on */
    int32_t ndim;
    int64_t shape[TESS__TENSOR_DIMS];
    uint64_t elems, bytes, offset; /* offset: from the file's start; set by the reader */
} tess__tensor;

/** Bytes of one element; 0 for a dtype that has no name in the format. */
uint32_t tess__tensor_dtype_bytes(uint32_t dtype);

/* ---- writing --------------------------------------------------------------------------------------------------- */
/** Puts tensors into the format's order, larger alignment first, then by name, and sets elems, bytes and offset, which
 * here counts from the data's start. Returns the bytes of all data. */
uint64_t tess__safetensors_arrange(tess__tensor *, uint64_t n);
/** The start of a file with these arranged tensors: length and header, padded with spaces so that the data begins at
 * a multiple of `align`. `metadata`: members of __metadata__ as JSON. The caller frees *out. */
tess_status tess__safetensors_header(const char *path, const tess__tensor *, uint64_t n, const char *metadata,
                                     uint64_t align, char **out, size_t *bytes);

/* ---- reading --------------------------------------------------------------------------------------------------- */
typedef struct tess__safetensors tess__safetensors;
/* Anything that can be read at an offset. */
typedef struct {
    void *user;
    tess_status (*read)(void *user, void *into, uint64_t bytes, uint64_t offset); /* all of it, or a failure */
    uint64_t bytes;
    int header_only; /* the data need not be there: for what asks for names and shapes alone */
} tess__source;
/** Reads and checks the header: every tensor lies in the file, they fill it without gap or overlap. TESS_E_DATA. `path`
 * is for messages. The source's user outlives it. */
tess_status tess__safetensors_open_source(const char *path, const tess__source *, tess__safetensors **out);
void tess__safetensors_close(tess__safetensors *);                                  /* null is fine */
const tess__tensor *tess__safetensors_list(const tess__safetensors *, uint64_t *n); /* in the order of their data */
/** Elements first … first + elems of a tensor, as they are stored. */
tess_status tess__safetensors_read_raw(const tess__safetensors *, const tess__tensor *, uint64_t first, uint64_t elems,
                                       void *out);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads and writes files of whole named tensors in the safetensors format (https://huggingface.co/docs/safetensors). */
#ifndef TOOL_SAFETENSORS_H
#define TOOL_SAFETENSORS_H
#include <tessera/tessera.h>

enum { TOOL_TENSOR_DIMS = 8, TOOL_TENSOR_NAME = 320 };
typedef struct {
    char name[TOOL_TENSOR_NAME];
    uint32_t dtype; /* TESS_F32, … */
    int32_t ndim;
    int64_t shape[TOOL_TENSOR_DIMS];
    uint64_t elems, bytes; /* set by the reader */
} tool_tensor;

/** Returns the bytes of one element, or 0 if the format has no word for the dtype. */
uint32_t tool_dtype_bytes(uint32_t dtype);
const char *tool_dtype_word(uint32_t dtype);   /* "F32", or null if there is none */
uint32_t tool_dtype_of_word(const char *word); /* 0 if unknown */

/* Writes a file as a stream into PATH.tmp and renames it when it is complete. */
typedef struct tool_safetensors_writer tool_safetensors_writer;
/** Reads name, dtype, ndim and shape of each tensor. Their data must follow in the same order. */
tess_status tool_safetensors_create(const char *path, const tool_tensor *, uint64_t n, tool_safetensors_writer **out);
tess_status tool_safetensors_write(tool_safetensors_writer *, const void *data, uint64_t bytes);
/** Checks that all data has come, syncs and renames. The writer is freed, also after a failure. */
tess_status tool_safetensors_commit(tool_safetensors_writer *);
void tool_safetensors_discard(tool_safetensors_writer *); /* leaves no file; null is fine */

typedef struct tool_safetensors tool_safetensors;
/** Reads the header and checks that the tensors fill the file without gap or overlap. A bad file gives TESS_E_DATA. */
tess_status tool_safetensors_open(const char *path, tool_safetensors **out);
/** The same for callers that need only names and shapes, so the data may be missing. */
tess_status tool_safetensors_open_header(const char *path, tool_safetensors **out);
void tool_safetensors_close(tool_safetensors *);                                      /* null is fine */
const tool_tensor *tool_safetensors_list(const tool_safetensors *, uint64_t *n);      /* in the order of their data */
const tool_tensor *tool_safetensors_find(const tool_safetensors *, const char *name); /* null if missing */
/** Reads elements first … first + elems of a tensor of F32, F64, F16 or BF16 as fp32. */
tess_status tool_safetensors_read(const tool_safetensors *, const tool_tensor *, uint64_t first, uint64_t elems,
                                  float *out);
/** Reads them unconverted. */
tess_status tool_safetensors_read_raw(const tool_safetensors *, const tool_tensor *, uint64_t first, uint64_t elems,
                                      void *out);
#endif

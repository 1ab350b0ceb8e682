/* SPDX-License-Identifier: BSD-3-Clause */
/* Files in the safetensors format (https://huggingface.co/docs/safetensors): named tensors, whole. */
#ifndef TOOL_SAFETENSORS_H
#define TOOL_SAFETENSORS_H
#include <tessera/tessera.h>

enum { TOOL_TENSOR_DIMS = 8, TOOL_TENSOR_NAME = 320 };
typedef struct {
    char name[TOOL_TENSOR_NAME];
    uint32_t dtype; /* TESS_F32 and so on */
    int32_t ndim;
    int64_t shape[TOOL_TENSOR_DIMS];
    uint64_t elems, bytes; /* set by the reader */
} tool_tensor;

/** Bytes of one element; 0 for a dtype that has no word in the format. */
uint32_t tool_dtype_bytes(uint32_t dtype);
const char *tool_dtype_word(uint32_t dtype);   /* "F32"; null when there is none */
uint32_t tool_dtype_of_word(const char *word); /* 0 when it is unknown */

/* Writing: a whole file, streamed into PATH.tmp, which gets its name when it is complete. */
typedef struct tool_safetensors_writer tool_safetensors_writer;
/** The tensors' name, dtype, ndim and shape are read; their data follows in the order in which they are given. */
tess_status tool_safetensors_create(const char *path, const tool_tensor *, uint64_t n, tool_safetensors_writer **out);
tess_status tool_safetensors_write(tool_safetensors_writer *, const void *data, uint64_t bytes);
/** Checks that all data came, syncs, renames. The writer is gone afterwards, also after a failure. */
tess_status tool_safetensors_commit(tool_safetensors_writer *);
void tool_safetensors_discard(tool_safetensors_writer *); /* leaves no file; null is fine */

typedef struct tool_safetensors tool_safetensors;
/** Reads and checks the header: every tensor lies in the file, they fill it without gap or overlap. TESS_E_DATA. */
tess_status tool_safetensors_open(const char *path, tool_safetensors **out);
/** Does the same for callers that need names and shapes alone, so the data may be missing. */
tess_status tool_safetensors_open_header(const char *path, tool_safetensors **out);
void tool_safetensors_close(tool_safetensors *);                                      /* null is fine */
const tool_tensor *tool_safetensors_list(const tool_safetensors *, uint64_t *n);      /* in the order of their data */
const tool_tensor *tool_safetensors_find(const tool_safetensors *, const char *name); /* null: not there */
/** Elements first … first + elems of one of its tensors as fp32, from F32, F64, F16 or BF16. */
tess_status tool_safetensors_read(const tool_safetensors *, const tool_tensor *, uint64_t first, uint64_t elems,
                                  float *out);
/** The same as they are stored. */
tess_status tool_safetensors_read_raw(const tool_safetensors *, const tool_tensor *, uint64_t first, uint64_t elems,
                                      void *out);
#endif

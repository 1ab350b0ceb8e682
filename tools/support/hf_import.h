/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads a Hugging Face folder without its model: the model that its config.json names, and transposed matrices. */
#ifndef TOOL_HF_IMPORT_H
#define TOOL_HF_IMPORT_H
#include "safetensors.h"

typedef struct {
    char model[32]; /* the family's model (hf_family.h), or "" for an unknown family or no config.json */
    char *config;   /* config.json without white space, by hf_file_word; null if `model` is "" */
    int is_tied;    /* the head is the embedding, so a head tensor is ignored */
} hf_source;
/** Returns TESS_E_DATA if config.json cannot be read. */
tess_status hf_source_read(const char *dir, hf_source *out);
void hf_source_free(hf_source *);
/** Reads elements of a matrix [outputs, inputs] that the file stores as [inputs, outputs]. A range of our rows is a
 * range in each of the file's rows. Messages call the matrix `name`. */
tess_status hf_read_turned(const tool_safetensors *, const tool_tensor *, const char *name, uint64_t first,
                           uint64_t elems, float *out);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* A Hugging Face folder as it is read without its model: which model its config.json names, and matrices that lie
 * turned. */
#ifndef TOOL_HF_IMPORT_H
#define TOOL_HF_IMPORT_H
#include "safetensors.h"

typedef struct {
    char model[32]; /* the family's model (hf_family.h); "": unknown family, or no config.json */
    char *config;   /* config.json in one word, made by hf_file_word; null without a model */
    int is_tied;    /* the head is the embedding: a tensor of its own has no meaning */
} hf_source;
/** TESS_E_DATA for a config.json that does not read. */
tess_status hf_source_read(const char *dir, hf_source *out);
void hf_source_free(hf_source *);
/** Elements of a matrix [outputs, inputs], named `name` in messages, which the file has as [inputs, outputs]: a run of
 * our rows is a run of each of its rows. */
tess_status hf_read_turned(const tool_safetensors *, const tool_tensor *, const char *name, uint64_t first,
                           uint64_t elems, float *out);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes a model's parameters as a folder that transformers loads, with its names, config.json and GPT-2's transposed
 * matrices. Models that it does not know keep their own names and get no config.json. */
#ifndef TOOL_HF_EXPORT_H
#define TOOL_HF_EXPORT_H
#include "hf_folder.h"

typedef struct hf_export hf_export;
/** Creates the folder as hf_folder_create does, from the model's own names and shapes. `config` is an object without a
 * dtype, which this adds. If it is null, there is no config.json. */
tess_status hf_export_create(const char *dir, const char *model, const char *config, const tool_tensor *, uint64_t n,
                             uint64_t max_file_bytes, hf_export **out);
/** Takes the data in the given order, in pieces of any length. It holds one matrix at most, if that must be
 * transposed. */
tess_status hf_export_write(hf_export *, const void *data, uint64_t bytes);
/** Completes the folder. The export is freed, also after a failure. */
tess_status hf_export_commit(hf_export *);
void hf_export_discard(hf_export *); /* null is fine */
#endif

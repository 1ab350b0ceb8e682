/* SPDX-License-Identifier: BSD-3-Clause */
/* A model's parameters as a folder that transformers loads: its names, GPT-2's matrices turned, config.json. Models
 * that it does not know keep their own names and have no config.json. */
#ifndef TOOL_HF_EXPORT_H
#define TOOL_HF_EXPORT_H
#include "hf_folder.h"

typedef struct hf_export hf_export;
/** As hf_folder_create, with the model's own names and shapes. `config`: an object without a dtype, which is added;
 * null: no config.json. */
tess_status hf_export_create(const char *dir, const char *model, const char *config, const tool_tensor *, uint64_t n,
                             uint64_t max_file_bytes, hf_export **out);
/** The data in the given order, in pieces of any length; at most one matrix is held, where it is to be turned. */
tess_status hf_export_write(hf_export *, const void *data, uint64_t bytes);
/** The folder is complete. The export is gone afterwards, also after a failure. */
tess_status hf_export_commit(hf_export *);
void hf_export_discard(hf_export *); /* null is fine */
#endif

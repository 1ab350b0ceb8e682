/* SPDX-License-Identifier: BSD-3-Clause */
/* A folder of whole tensors as Hugging Face has it: model.safetensors, or model-00001-of-0000N.safetensors with
 * model.safetensors.index.json. */
#ifndef TOOL_HF_FOLDER_H
#define TOOL_HF_FOLDER_H
#include "safetensors.h"

typedef struct hf_folder hf_folder;
/** Tensors are split over files of at most `max_file_bytes` of data (0: 5 GB), in their order; one is never cut. Their
 * data follows in the same order. Makes the directory. */
tess_status hf_folder_create(const char *dir, const tool_tensor *, uint64_t n, uint64_t max_file_bytes,
                             hf_folder **out);
tess_status hf_folder_write(hf_folder *, const void *data, uint64_t bytes);
/** Files get their names as they are full, the index last. The folder is gone afterwards, also after a failure. */
tess_status hf_folder_commit(hf_folder *);
void hf_folder_discard(hf_folder *); /* null is fine */
#endif

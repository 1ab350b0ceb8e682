/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes whole tensors as Hugging Face does: model.safetensors, or model-00001-of-0000N.safetensors with
 * model.safetensors.index.json. */
#ifndef TOOL_HF_FOLDER_H
#define TOOL_HF_FOLDER_H
#include "safetensors.h"

typedef struct hf_folder hf_folder;
/** Creates the directory. Tensors are split in order over files of at most `max_file_bytes` of data (0: 5 GB), and none
 * is cut. The caller writes their data in the same order. */
tess_status hf_folder_create(const char *dir, const tool_tensor *, uint64_t n, uint64_t max_file_bytes,
                             hf_folder **out);
tess_status hf_folder_write(hf_folder *, const void *data, uint64_t bytes);
/** Completes the last file and writes the index. Earlier files have their names once full. The folder is freed, also
 * after a failure. */
tess_status hf_folder_commit(hf_folder *);
void hf_folder_discard(hf_folder *); /* null is fine */
#endif

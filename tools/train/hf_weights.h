/* SPDX-License-Identifier: BSD-3-Clause */
/* The weights of a Hugging Face folder: model.safetensors, or several files named by model.safetensors.index.json.
 * Every rank opens them and reads the ranges that it owns. */
#ifndef TOOL_HF_WEIGHTS_H
#define TOOL_HF_WEIGHTS_H
#include "tools/models/model.h"

typedef struct hf_weights hf_weights;
/** Opens the folder. Returns TESS_E_DATA unless each parameter has a tensor of its shape in one of the files. */
tess_status hf_weights_open(const char *dir, const model *, hf_weights **out);
/** A tess_range_fn whose `user` is the opened folder. */
tess_status hf_weights_fill(void *user, const tess_range *, void *data);
void hf_weights_close(hf_weights *); /* null is fine */
/** Paths of the folder's files of weights, null at the end; hf_weights_forget frees them. */
tess_status hf_weights_files(const char *dir, char ***out);
void hf_weights_forget(char **); /* null is fine */
#endif

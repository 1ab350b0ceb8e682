/* SPDX-License-Identifier: BSD-3-Clause */
/* What parameters of `gpt2` and `llama` are called in Hugging Face folders, and how they lie there. */
#ifndef TOOL_HF_NAMES_H
#define TOOL_HF_NAMES_H
#include "tools/models/model.h"

enum { HF_NAME = 128 };
/** Parameter `param` of a model made by gpt2 or llama: its tensor's name. Returns 1 when the tensor is the transpose
 * (GPT-2's matrices are [inputs, outputs] there), else 0. Not for an alias, which has no tensor. */
int hf_name(const model *, int32_t param, char out[HF_NAME]);
/** The name without the prefix that some files leave out. */
const char *hf_short_name(const char *name);
#endif

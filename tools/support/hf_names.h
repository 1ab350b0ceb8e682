/* SPDX-License-Identifier: BSD-3-Clause */
/* Names and layout of the parameters of `gpt2` and `llama` in Hugging Face folders. */
#ifndef TOOL_HF_NAMES_H
#define TOOL_HF_NAMES_H
#include <stdint.h>

enum { HF_NAME = 128 };
/** Whether folders of this model are known. */
int hf_knows(const char *model);
/** Parameter `name` of a model: its tensor's name, which is `name` where folders of it are not known. Returns 1 when
 * the tensor is the transpose (GPT-2's matrices are [inputs, outputs] there), else 0. Not for an alias, which has no
 * tensor.
 */
int hf_name(const char *model, const char *name, int32_t ndim, char out[HF_NAME]);
/** The same from a tensor's name, with or without the prefix that some files leave out; out is "" for a table that
 * is no parameter. */
int hf_own_name(const char *model, const char *name, int32_t ndim, char out[HF_NAME]);
/** The name without the prefix that some files leave out. */
const char *hf_short_name(const char *name);
#endif

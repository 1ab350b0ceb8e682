/* SPDX-License-Identifier: BSD-3-Clause */
/* Names and layout of parameters in Hugging Face folders, by the family's table (hf_family.h). */
#ifndef TOOL_HF_NAMES_H
#define TOOL_HF_NAMES_H
#include <stdint.h>

enum { HF_NAME = 128 };
/** Returns 1 if folders of this model are known. */
int hf_knows(const char *model);
/** Returns the tensor's name for parameter `name`, which is `name` itself if the model's folders are unknown. The
 * result is 1 if the tensor is the transpose, as GPT-2's [inputs, outputs] matrices are, else 0. An alias has no
 * tensor, so it has no name here. */
int hf_name(const char *model, const char *name, int32_t ndim, char out[HF_NAME]);
/** Does the reverse for a tensor's name, with or without the prefix that some files omit. `is_tied` says that the head
 * is the embedding. `out` is "" for a tensor that is no parameter, such as a table or a tied head. */
int hf_own_name(const char *model, const char *name, int32_t ndim, int is_tied, char out[HF_NAME]);
/** Returns the tensor's name without the prefix that some files omit. */
const char *hf_short_name(const char *model, const char *name);
/** Returns 1 if the tensor is a mask or a table of positions, which some files have beside the parameters. */
int hf_is_table(const char *name, int32_t ndim);
#endif

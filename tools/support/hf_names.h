/* SPDX-License-Identifier: BSD-3-Clause */
/* Names and layout of parameters in Hugging Face folders, by their family's table (hf_family.h). */
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
/** Does the same for a tensor's name, with or without the prefix that some files omit. `is_tied`: the head is the
 * embedding. out is "" for a tensor that is no parameter, such as a table or a tied head. */
int hf_own_name(const char *model, const char *name, int32_t ndim, int is_tied, char out[HF_NAME]);
/** The tensor's name without the prefix that some files leave out. */
const char *hf_short_name(const char *model, const char *name);
/** Whether the tensor is a mask or a table of positions, which some files have beside the parameters. */
int hf_is_table(const char *name, int32_t ndim);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Files of a Hugging Face folder that belong to its tokenizer, which no model reads here. */
#ifndef TOOL_HF_TOKENIZER_H
#define TOOL_HF_TOKENIZER_H
#include <limits.h>
#include <tessera/tessera.h>

/** The first file that says which tokens a model reads, in a folder or beside a file: 1 and its path, else 0. */
int hf_tokenizer_find(const char *path, char out[PATH_MAX]);
/** Copies those that `from` has into the folder `to`. TESS_E_DATA names the file that fails. */
tess_status hf_tokenizer_copy(const char *from, const char *to);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds and copies a folder's tokenizer files, which no model reads. */
#ifndef TOOL_HF_TOKENIZER_H
#define TOOL_HF_TOKENIZER_H
#include <limits.h>
#include <tessera/tessera.h>

/** Finds the first file that defines tokens, in a folder or beside a file. Returns 1 and its path, or 0. */
int hf_tokenizer_find(const char *path, char out[PATH_MAX]);
/** Copies the tokenizer files of folder `from` into folder `to`. TESS_E_DATA names the file that fails. */
tess_status hf_tokenizer_copy(const char *from, const char *to);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads JSON files from other programs. It limits their size and refuses a bad one in one line with the offset. */
#ifndef TOOL_JSON_FILE_H
#define TOOL_JSON_FILE_H
#include <stddef.h>
#include <tessera/tessera.h>

#include "json_in.h"

/** Reads a regular file of at most `most` bytes. The caller frees *text. */
tess_status json_file_read(const char *path, uint64_t most, char **text, size_t *bytes);
/** Fails with TESS_E_DATA; the message says what the scanner expected, and where. */
tess_status json_file_bad(const char *path, const json_in *);
#endif

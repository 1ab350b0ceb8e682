/* SPDX-License-Identifier: BSD-3-Clause */
/* A string of JSON, for the manifest and for safetensors headers. */
#ifndef TESS_JSON_TEXT_H
#define TESS_JSON_TEXT_H
#include <stdio.h>

/** Writes `text` in quotes; quotes, backslashes and control characters are escaped. */
void tess__json_text(FILE *, const char *text);
#endif

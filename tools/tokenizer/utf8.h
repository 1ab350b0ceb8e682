/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads and repairs UTF-8 as the tokenizers of other programs do. */
#ifndef TOOL_UTF8_H
#define TOOL_UTF8_H
#include <stddef.h>
#include <stdint.h>

/** Returns the bytes of the character at `text`, which has `bytes` > 0 left, or 0 if the bytes are invalid. *broken is
 * then the bytes that one U+FFFD replaces. The Unicode standard (section 3.9, maximal subparts) and Python's "replace"
 * count the same. */
size_t utf8_length(const unsigned char *text, size_t bytes, size_t *broken);
/** Copies `bytes` of text with U+FFFD for invalid bytes and returns the bytes written. `out` has room for 3 * bytes. */
size_t utf8_repair(const char *text, size_t bytes, char *out);
/** Returns 1 if all of the text is valid UTF-8. */
int utf8_is_whole(const char *text, size_t bytes);
/** Decodes one valid character of `length` bytes. */
uint32_t utf8_code(const unsigned char *text, size_t length);
/** Returns 1 if Unicode lists the character as White_Space. */
int utf8_is_space(uint32_t code);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Text as the tokenizers of other programs see it: UTF-8 without a fault. */
#ifndef TOOL_UTF8_H
#define TOOL_UTF8_H
#include <stddef.h>
#include <stdint.h>

/** Bytes of the character that begins at text, which has `bytes` > 0 left; 0 when none does. *broken is then how many
 * bytes stand for one U+FFFD, as the Unicode standard (section 3.9, maximal subparts) and Python's "replace" have it.
 */
size_t utf8_length(const unsigned char *text, size_t bytes, size_t *broken);
/** Copies `bytes` of text with every fault replaced by U+FFFD; `out` has room for 3 * bytes. Returns how many it wrote.
 */
size_t utf8_repair(const char *text, size_t bytes, char *out);
/** Whether all of it is UTF-8. */
int utf8_is_whole(const char *text, size_t bytes);
/** One character, which is whole. */
uint32_t utf8_code(const unsigned char *text, size_t length);
/** Unicode's White_Space. */
int utf8_is_space(uint32_t code);
#endif

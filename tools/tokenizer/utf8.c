/* SPDX-License-Identifier: BSD-3-Clause */
#include "utf8.h"

#include <string.h>

/* The first byte decides the length and the range of the second byte (Unicode standard, table 3-7). */
static const struct {
    unsigned char first, last, length, least, most;
} leads[] = {
    { 0x00, 0x7f, 1, 0, 0 },       { 0xc2, 0xdf, 2, 0x80, 0xbf }, { 0xe0, 0xe0, 3, 0xa0, 0xbf },
    { 0xe1, 0xec, 3, 0x80, 0xbf }, { 0xed, 0xed, 3, 0x80, 0x9f }, { 0xee, 0xef, 3, 0x80, 0xbf },
    { 0xf0, 0xf0, 4, 0x90, 0xbf }, { 0xf1, 0xf3, 4, 0x80, 0xbf }, { 0xf4, 0xf4, 4, 0x80, 0x8f },
};
enum { N_LEADS = sizeof leads / sizeof leads[0] };

size_t utf8_length(const unsigned char *text, size_t bytes, size_t *broken) {
    size_t row = 0, i = 1;
    *broken = 1;
    while (row < N_LEADS && (text[0] < leads[row].first || text[0] > leads[row].last))
        row++;
    if (row == N_LEADS)
        return 0;
    for (; i < leads[row].length; i++) {
        unsigned char least = i == 1 ? leads[row].least : 0x80, most = i == 1 ? leads[row].most : 0xbf;
        *broken = i;
        if (i == bytes || text[i] < least || text[i] > most)
            return 0;
    }
    return leads[row].length;
}

/* Returns the length of the leading ASCII. It tests eight bytes at a time. */
static size_t ascii(const char *text, size_t bytes) {
    size_t at = 0;
    uint64_t word;
    for (; at + sizeof word <= bytes; at += sizeof word) {
        memcpy(&word, text + at, sizeof word);
        if (word & 0x8080808080808080u)
            break;
    }
    while (at < bytes && (unsigned char)text[at] < 0x80)
        at++;
    return at;
}

size_t utf8_repair(const char *text, size_t bytes, char *out) {
    static const char replacement[] = "\xef\xbf\xbd";
    size_t at = 0, n = 0;
    while (at < bytes) {
        size_t plain = ascii(text + at, bytes - at), broken;
        memcpy(out + n, text + at, plain);
        at += plain, n += plain;
        if (at == bytes)
            break;
        size_t length = utf8_length((const unsigned char *)text + at, bytes - at, &broken);
        memcpy(out + n, length ? text + at : replacement, length ? length : 3);
        n += length ? length : 3;
        at += length ? length : broken;
    }
    return n;
}

int utf8_is_whole(const char *text, size_t bytes) {
    size_t at = 0, length = 1, broken;
    for (at = ascii(text, bytes); at < bytes && length > 0; at += ascii(text + at, bytes - at)) {
        length = utf8_length((const unsigned char *)text + at, bytes - at, &broken);
        at += length;
    }
    return length > 0;
}

uint32_t utf8_code(const unsigned char *text, size_t length) {
    uint32_t code = length == 1 ? text[0] : text[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++)
        code = code << 6 | (text[i] & 0x3fu);
    return code;
}

int utf8_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

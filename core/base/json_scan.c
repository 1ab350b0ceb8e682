/* SPDX-License-Identifier: BSD-3-Clause */
#include "json_scan.h"

#include <string.h>

static int fail_expecting(json_scan *s, const char *expected) {
    if (!s->expected)
        s->expected = expected;
    return 0;
}

static void skip_space(json_scan *s) {
    while (s->at < s->bytes && strchr(" \t\r\n", s->text[s->at]) && s->text[s->at])
        s->at++;
}

int json_scan_if(json_scan *s, char c) {
    skip_space(s);
    if (s->at == s->bytes || s->text[s->at] != c)
        return 0;
    s->at++;
    return 1;
}

int json_scan_char(json_scan *s, char c) {
    static const char *const names[] = { "'{'", "'}'", "'['", "']'", "','", "':'", "'\"'" };
    if (json_scan_if(s, c))
        return 1;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i][1] == c)
            return fail_expecting(s, names[i]);
    return fail_expecting(s, "another character");
}

int json_scan_end(json_scan *s) {
    skip_space(s);
    return s->at == s->bytes ? 1 : fail_expecting(s, "the end");
}

static int hex4(json_scan *s, uint32_t *out) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        char c = s->at < s->bytes ? s->text[s->at] : 0;
        if (c >= '0' && c <= '9')
            value = value * 16 + (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            value = value * 16 + (uint32_t)((c | 32) - 'a' + 10);
        else
            return fail_expecting(s, "four hexadecimal digits");
    }
    *out = value;
    return 1;
}

/* Reads one code point after "\u", two halves of a pair put together. */
static int code_point(json_scan *s, uint32_t *out) {
    uint32_t high, low;
    if (!hex4(s, &high))
        return 0;
    if (high < 0xd800 || high > 0xdfff) {
        *out = high;
        return high ? 1 : fail_expecting(s, "no null character");
    }
    if (high > 0xdbff || s->at + 2 > s->bytes || s->text[s->at] != '\\' || s->text[s->at + 1] != 'u')
        return fail_expecting(s, "a surrogate pair");
    s->at += 2;
    if (!hex4(s, &low) || low < 0xdc00 || low > 0xdfff)
        return fail_expecting(s, "a surrogate pair");
    *out = 0x10000 + ((high - 0xd800) << 10 | (low - 0xdc00));
    return 1;
}

static size_t utf8(uint32_t c, char out[4]) {
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(lead[n] | c);
    return n;
}

/* Reads one character of a string, escaped or not, as 1 to 4 bytes; 0 after a failure. */
static size_t one_character(json_scan *s, char out[4]) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = s->text[s->at++];
    if (c != '\\') {
        out[0] = c;
        return (unsigned char)c >= 0x20 ? 1 : (size_t)fail_expecting(s, "no control character in a string");
    }
    char escape = s->at < s->bytes ? s->text[s->at++] : 0;
    const char *known = escape ? strchr(from, escape) : NULL;
    if (known) {
        out[0] = to[known - from];
        return 1;
    }
    uint32_t c32;
    if (escape != 'u')
        return (size_t)fail_expecting(s, "an escape");
    return code_point(s, &c32) ? utf8(c32, out) : 0;
}

int json_scan_string(json_scan *s, char *out, size_t capacity) {
    size_t length = 0;
    if (!json_scan_char(s, '"'))
        return 0;
    while (s->at < s->bytes && s->text[s->at] != '"') {
        char piece[4];
        size_t n = one_character(s, piece);
        if (n == 0)
            return 0;
        if (out && length + n >= capacity)
            return fail_expecting(s, "a shorter string");
        if (out)
            memcpy(out + length, piece, n);
        length += n;
    }
    if (s->at == s->bytes)
        return fail_expecting(s, "the end of the string");
    s->at++;
    if (out)
        out[length] = '\0';
    return 1;
}

int json_scan_uint(json_scan *s, uint64_t *out) {
    skip_space(s);
    size_t start = s->at;
    uint64_t value = 0;
    while (s->at < s->bytes && s->text[s->at] >= '0' && s->text[s->at] <= '9') {
        uint64_t digit = (uint64_t)(s->text[s->at] - '0');
        if (value > (INT64_MAX - digit) / 10)
            return fail_expecting(s, "a smaller number");
        value = value * 10 + digit;
        s->at++;
    }
    if (s->at == start || (s->at > start + 1 && s->text[start] == '0'))
        return fail_expecting(s, "a whole number");
    *out = value;
    return 1;
}

static int skip_word(json_scan *s) {
    size_t start = s->at;
    while (s->at < s->bytes && s->text[s->at] && !strchr(" \t\r\n,:{}[]\"", s->text[s->at]))
        s->at++;
    return s->at > start ? 1 : fail_expecting(s, "a value");
}

static int skip_value(json_scan *s, int depth) {
    if (depth == 32)
        return fail_expecting(s, "less nesting");
    int object = json_scan_if(s, '{');
    if (!object && !json_scan_if(s, '[')) {
        if (s->at < s->bytes && s->text[s->at] == '"')
            return json_scan_string(s, NULL, 0);
        return skip_word(s);
    }
    char close = object ? '}' : ']';
    if (json_scan_if(s, close))
        return 1;
    do {
        if (object && !(json_scan_string(s, NULL, 0) && json_scan_char(s, ':')))
            return 0;
        if (!skip_value(s, depth + 1))
            return 0;
    } while (json_scan_if(s, ','));
    return json_scan_char(s, close);
}

int json_scan_skip(json_scan *s) {
    return skip_value(s, 0);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera/plugin_options.h: how the text of an option becomes a value. The core judges by it before it opens a plugin,
 * and the plugin reads by it, so the two cannot disagree.
 *
 * Optional, and no part of the ABI: it is compiled into the plugin. C11 or C++17; beyond plugin.h only libc. */
#ifndef TESSERA_PLUGIN_OPTIONS_H
#define TESSERA_PLUGIN_OPTIONS_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/plugin.h>

/** Declares a plugin's options, once and outside functions; the loader finds them in their section:
 *      TESS_OPTIONS(my_options) = { { sizeof(tess_option_spec), TESS_OPTION_INT, 1, 64, "mine-depth", "2", "", "…" } };
 */
#define TESS_OPTIONS(name) static const tess_option_spec name[] __attribute__((section(".tessera.options"), used))

typedef struct {
    uint64_t number; /* BYTES; FLAG: 0 or 1; CHOICE: the word's index; LIST: a bit for each word */
    int64_t integer; /* INT */
    double real;     /* REAL */
} tess_option_value;

/* The functions return 1, and 0 for a text that is not of the type; then the value is as before. */

static inline int tess_option_parse_int(const char *text, int64_t *out) {
    const int minus = *text == '-';
    int64_t value = 0;
    text += minus;
    if (!*text)
        return 0;
    for (; *text; text++) {
        const int digit = *text - '0';
        if (digit < 0 || digit > 9 || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, minus ? -digit : digit, &value))
            return 0;
    }
    *out = value;
    return 1;
}

/** strtod reads the locale's point, and blanks, a plus sign and "nan" besides. */
static inline int tess_option_parse_real(const char *text, double *out) {
    char shape[32], local[160], *end;
    const size_t chars = strlen(text), point = strcspn(text, ".");
    const int length = snprintf(shape, sizeof shape, "%.1f", 0.5); /* a zero, the point, a five */
    double value;
    if (((*text < '0' || *text > '9') && *text != '-' && *text != '.') || strchr(text, ',') || length < 3)
        return 0;
    if (chars + (size_t)length > sizeof local)
        return 0;
    snprintf(local, sizeof local, "%.*s%.*s%s", (int)point, text, point < chars ? length - 2 : 0, shape + 1,
             point < chars ? text + point + 1 : "");
    value = strtod(local, &end);
    if (end == local || *end || !__builtin_isfinite(value))
        return 0;
    *out = value;
    return 1;
}

/** The exponent of two of a suffix of bytes; -1 for an unknown one. */
static inline int tess_option_suffix(const char *suffix) {
    static const char *const words[] = { "", "KiB", "MiB", "GiB", "TiB" };
    if (strcmp(suffix, "B") == 0)
        return 0;
    for (int i = 0; i < 5; i++)
        if (strcmp(suffix, words[i]) == 0)
            return 10 * i;
    return -1;
}

/** "512", "64KiB", "1.5GiB": six decimals at most, and none of plain bytes. */
static inline int tess_option_parse_bytes(const char *text, uint64_t *out) {
    const char *at = text, *first;
    uint64_t whole = 0, fraction = 0, scale = 1, value;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(whole, 10, &whole) || __builtin_add_overflow(whole, *at - '0', &whole))
            return 0;
    if (at == text)
        return 0;
    first = at;
    if (*at == '.')
        for (at++; *at >= '0' && *at <= '9' && at - first <= 6; at++, scale *= 10)
            fraction = fraction * 10 + (uint64_t)(*at - '0');
    const int shift = tess_option_suffix(at);
    if (shift < 0 || (*first == '.' && (scale == 1 || shift == 0)))
        return 0;
    if (__builtin_mul_overflow(whole, UINT64_C(1) << shift, &value) ||
        __builtin_add_overflow(value, (fraction << shift) / scale, &value)) /* below 2^20 * 2^40 */
        return 0;
    *out = value;
    return 1;
}

/** The index of `word`, of `bytes` bytes, among those that `|` parts in `words`; -1 when it is none of them. */
static inline int tess_option_word(const char *word, size_t bytes, const char *words) {
    for (int i = 0; words; i++) {
        const char *bar = strchr(words, '|');
        const size_t length = bar ? (size_t)(bar - words) : strlen(words);
        if (bytes == length && memcmp(word, words, bytes) == 0)
            return i;
        words = bar ? bar + 1 : NULL;
    }
    return -1;
}

static inline int tess_option_parse_choice(const char *text, const char *words, uint64_t *out) {
    const int i = tess_option_word(text, strlen(text), words);
    if (i >= 0)
        *out = (uint64_t)i;
    return i >= 0;
}

static inline int tess_option_parse_flag(const char *text, uint64_t *out) {
    uint64_t i;
    if (!tess_option_parse_choice(text, "0|no|off|false|1|yes|on|true", &i))
        return 0;
    *out = i >= 4;
    return 1;
}

static inline int tess_option_parse_list(const char *text, const char *words, uint64_t *out) {
    uint64_t bits = 0;
    for (;;) {
        const size_t bytes = strcspn(text, ",");
        const int i = tess_option_word(text, bytes, words);
        if (i < 0 || i > 63)
            return 0;
        bits |= UINT64_C(1) << i;
        if (!text[bytes])
            break;
        text += bytes + 1;
    }
    *out = bits;
    return 1;
}

static inline int tess_option_within(const tess_option_spec *spec, double value) {
    return (spec->least == 0 && spec->most == 0) || (value >= spec->least && value <= spec->most);
}

/** The value of `text` as an option of that type; 0 when it is none. */
static inline int tess_option_parse(const tess_option_spec *spec, const char *text, tess_option_value *out) {
    tess_option_value value = { 0, 0, 0 };
    int good = 1;
    switch (spec->type) {
    case TESS_OPTION_INT:
        good = tess_option_parse_int(text, &value.integer) && tess_option_within(spec, (double)value.integer);
        break;
    case TESS_OPTION_REAL:
        good = tess_option_parse_real(text, &value.real) && tess_option_within(spec, value.real);
        break;
    case TESS_OPTION_BYTES: good = tess_option_parse_bytes(text, &value.number); break;
    case TESS_OPTION_CHOICE: good = tess_option_parse_choice(text, spec->choices, &value.number); break;
    case TESS_OPTION_FLAG: good = tess_option_parse_flag(text, &value.number); break;
    case TESS_OPTION_LIST: good = tess_option_parse_list(text, spec->choices, &value.number); break;
    default: break;
    }
    if (good)
        *out = value;
    return good;
}

/** Behind "expected" in a message: the values that the option takes. */
static inline const char *tess_option_expected(const tess_option_spec *spec, char *out, size_t room) {
    const char *what = spec->type == TESS_OPTION_INT ? "an integer" : "a finite number";
    if (spec->type == TESS_OPTION_BYTES)
        snprintf(out, room, "bytes such as 512, 64KiB or 1.5GiB");
    else if (spec->type == TESS_OPTION_CHOICE)
        snprintf(out, room, "one of %s", spec->choices);
    else if (spec->type == TESS_OPTION_FLAG)
        snprintf(out, room, "0, 1, no, yes, off, on, false or true");
    else if (spec->type == TESS_OPTION_LIST)
        snprintf(out, room, "words of %s, joined by commas", spec->choices);
    else if (spec->least == 0 && spec->most == 0)
        snprintf(out, room, "%s", what);
    else if (__builtin_isfinite(spec->most))
        snprintf(out, room, "%s from %.15g to %.15g", what, spec->least, spec->most);
    else
        snprintf(out, room, "%s from %.15g up", what, spec->least);
    return out;
}
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#include "json_out.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

void json_init(json_out *j, FILE *out) {
    *j = (json_out){ .out = out };
}

int json_utf8_length(const unsigned char *p) {
    static const struct {
        unsigned char mask, lead;
        int n;
        uint32_t least;
    } forms[] = { { 0xe0, 0xc0, 2, 0x80 }, { 0xf0, 0xe0, 3, 0x800 }, { 0xf8, 0xf0, 4, 0x10000 } };
    if (p[0] < 0x80)
        return 1;
    for (int f = 0; f < 3; f++) {
        if ((p[0] & forms[f].mask) != forms[f].lead)
            continue;
        uint32_t code = p[0] & (unsigned char)~forms[f].mask;
        for (int i = 1; i < forms[f].n; i++) {
            if ((p[i] & 0xc0) != 0x80)
                return 0;
            code = code << 6 | (p[i] & 0x3f);
        }
        return code >= forms[f].least && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? forms[f].n : 0;
    }
    return 0;
}

static void put_escape(FILE *out, unsigned char c) {
    static const char short_form[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    const char *at = memchr(short_form, c, sizeof short_form - 1);
    if (at)
        fprintf(out, "\\%c", letter[at - short_form]);
    else
        fprintf(out, "\\u%04x", c);
}

static void put_text(FILE *out, const char *text) {
    fputc('"', out);
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        int n = json_utf8_length(p);
        if (*p == '"' || *p == '\\' || *p < 0x20 || *p == 0x7f)
            put_escape(out, *p);
        else if (n)
            fwrite(p, 1, (size_t)n, out);
        else
            fputs("\\ufffd", out);
        p += n ? n : 1;
    }
    fputc('"', out);
}

/* Writes the comma and the key before a value. */
static void lead(json_out *j, const char *key) {
    uint64_t bit = UINT64_C(1) << (j->depth & 63);
    if (j->depth && (j->filled & bit))
        fputc(',', j->out);
    j->filled |= bit;
    if (key) {
        put_text(j->out, key);
        fputc(':', j->out);
    }
}

static void begin(json_out *j, const char *key, char bracket) {
    lead(j, key);
    fputc(bracket, j->out);
    j->depth++;
    j->filled &= ~(UINT64_C(1) << (j->depth & 63));
}

static void end(json_out *j, char bracket) {
    fputc(bracket, j->out);
    if (j->depth)
        j->depth--;
}

void json_object_begin(json_out *j, const char *key) {
    begin(j, key, '{');
}

void json_object_end(json_out *j) {
    end(j, '}');
}

void json_array_begin(json_out *j, const char *key) {
    begin(j, key, '[');
}

void json_array_end(json_out *j) {
    end(j, ']');
}

void json_string(json_out *j, const char *key, const char *text) {
    if (!text) {
        json_null(j, key);
        return;
    }
    lead(j, key);
    put_text(j->out, text);
}

void json_int(json_out *j, const char *key, int64_t value) {
    lead(j, key);
    fprintf(j->out, "%" PRId64, value);
}

void json_uint(json_out *j, const char *key, uint64_t value) {
    lead(j, key);
    fprintf(j->out, "%" PRIu64, value);
}

void json_double(json_out *j, const char *key, double value) {
    if (!isfinite(value)) {
        json_null(j, key);
        return;
    }
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    /* The locale's decimal point may be another character, so it is replaced by a point. */
    size_t whole = strspn(text, "-0123456789"), part = strcspn(text + whole, "0123456789e");
    lead(j, key);
    if (part && text[whole])
        fprintf(j->out, "%.*s.%s", (int)whole, text, text + whole + part);
    else
        fputs(text, j->out);
}

void json_bool(json_out *j, const char *key, int value) {
    lead(j, key);
    fputs(value ? "true" : "false", j->out);
}

void json_null(json_out *j, const char *key) {
    lead(j, key);
    fputs("null", j->out);
}

int json_line(json_out *j) {
    fputc('\n', j->out);
    j->depth = 0;
    return fflush(j->out) || ferror(j->out) ? -1 : 0;
}

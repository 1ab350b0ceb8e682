/* SPDX-License-Identifier: BSD-3-Clause */
/* Normalizes a text before it is split into words. A tokenizer's file asks for the text unchanged, composed (NFC), or
 * with U+2581 for blanks. Here blanks stay blanks, and U+2581 becomes one. */
#include <stdlib.h>
#include <string.h>

#ifdef TESSERA_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

#include "tokenizer_state.h"

size_t tokenizer_blanks(const char *text, size_t bytes, char *out) {
    static const char mark[] = "\xe2\x96\x81";
    size_t n = 0;
    for (size_t at = 0; at < bytes; at++) {
        int is_mark = at + 3 <= bytes && memcmp(text + at, mark, 3) == 0;
        out[n++] = is_mark ? ' ' : text[at];
        at += is_mark ? 2 : 0;
    }
    return n;
}

tess_status tokenizer_normalize(const tokenizer *t, int normalized, const char *text, size_t bytes, char **out,
                                size_t *n) {
#ifdef TESSERA_HAVE_UTF8PROC
    if (t->composes && normalized) {
        utf8proc_uint8_t *composed = NULL;
        utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &composed,
                                               UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (length < 0)
            return tess_fail(TESS_E_NOMEM, "a text of %zu bytes cannot be composed: %s", bytes,
                             utf8proc_errmsg(length));
        *out = (char *)composed;
        *n = (size_t)length;
        return TESS_OK;
    }
#endif
    int blanks = normalized && t->blanks == BLANKS_NORMALIZER, put = blanks && t->puts_blank && bytes > 0;
    *out = malloc(bytes + 2);
    if (!*out)
        return tess_fail(TESS_E_NOMEM, "no memory for a text of %zu bytes", bytes);
    **out = ' ';
    if (!blanks)
        memcpy(*out, text, bytes);
    *n = blanks ? tokenizer_blanks(text, bytes, *out + put) + (size_t)put : bytes;
    (*out)[*n] = '\0';
    return TESS_OK;
}

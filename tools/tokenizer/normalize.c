/* SPDX-License-Identifier: BSD-3-Clause */
/* Text as the tokenizer's file wants it before words are looked for: as it is, or composed (NFC). */
#include <stdlib.h>
#include <string.h>

#ifdef TESSERA_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

#include "tokenizer_state.h"

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
    (void)t, (void)normalized;
    *out = malloc(bytes + 1);
    if (!*out)
        return tess_fail(TESS_E_NOMEM, "no memory for a text of %zu bytes", bytes);
    memcpy(*out, text, bytes);
    (*out)[bytes] = '\0';
    *n = bytes;
    return TESS_OK;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "option_fields.h"

#include "base/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_FIELDS = 18, MOST_SETTINGS = 1024, NUMBER_CHARS = 24 };

/* Adds a copy; a null or empty text is a field that is not set. */
static tess_status add_option(tess__given *s, const char *key, const char *value) {
    if (!value || !value[0])
        return TESS_OK;
    tess_setting *at = (tess_setting *)&s->list[s->n];
    at->key = strdup(key);
    at->value = strdup(value);
    s->n++;
    return at->key && at->value ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory for the options");
}

static tess_status add_number(tess__given *s, const char *key, uint64_t value) {
    char text[NUMBER_CHARS] = "";
    if (value)
        snprintf(text, sizeof text, "%" PRIu64, value);
    return add_option(s, key, text);
}

static tess_status add_flag(tess__given *s, const char *key, int32_t value) {
    return add_option(s, key, value > 0 ? "1" : value < 0 ? "0" : NULL);
}

static tess_status add_texts(tess__given *s, const tess_options *o) {
    const tess_setting texts[] = { { "comm", o->comm },
                                   { "offload", o->offload },
                                   { "precision", o->precision },
                                   { "wrap", o->wrap },
                                   { "strategy", o->strategy },
                                   { "device", o->device },
                                   { "optimizer", o->optimizer },
                                   { "activations", o->activations },
                                   { "sync", o->sync },
                                   { "prefetch", o->prefetch },
                                   { "log", o->log } };
    tess_status status = TESS_OK;
    for (size_t i = 0; !status && i < sizeof texts / sizeof texts[0]; i++)
        status = add_option(s, texts[i].key, texts[i].value);
    return status;
}

static tess_status add_numbers(tess__given *s, const tess_options *o) {
    tess_status status = add_number(s, "accum", o->accum > 0 ? (uint64_t)o->accum : 0);
    if (!status)
        status = add_number(s, "threads", o->threads > 0 ? (uint64_t)o->threads : 0);
    if (!status)
        status = add_number(s, "mirror", o->mirror > 0 ? (uint64_t)o->mirror : 0);
    if (!status)
        status = add_number(s, "device-memory", o->device_memory_bytes);
    if (!status)
        status = add_number(s, "host-memory", o->host_memory_bytes);
    if (!status)
        status = add_flag(s, "deterministic", o->deterministic);
    return status ? status : add_flag(s, "strict", o->strict);
}

static tess_status add_settings(tess__given *s, const tess_options *o) {
    char variable[80];
    for (uint32_t i = 0; i < o->n_settings; i++) {
        const tess_setting *given = &o->settings[i];
        if (!given->key || !tess__option_variable(given->key, variable))
            return tess__fail(TESS_E_INVALID, "tess_options.settings[%u] has the key '%.64s', expected [a-z0-9-]+", i,
                              given->key ? given->key : "(null)");
        tess_status status = add_option(s, given->key, given->value);
        if (status)
            return status;
    }
    return TESS_OK;
}

tess_status tess__given_of(const tess_options *o, tess__given *out) {
    *out = (tess__given){ .wins = (o->flags & TESS_OPTIONS_WIN) != 0 };
    if (o->flags & ~(uint32_t)(TESS_OPTIONS_WIN | TESS_OPTIONS_STEP_IN_PASS | TESS_OPTIONS_NO_CLIP | TESS_OPTIONS_LATE |
                               TESS_OPTIONS_REPEAT))
        return tess__fail(TESS_E_INVALID, "tess_open: unknown flags 0x%x", o->flags);
    if (o->n_settings > MOST_SETTINGS || (o->n_settings && !o->settings))
        return tess__fail(TESS_E_INVALID, "tess_open: %u settings%s, at most %d are possible", o->n_settings,
                          o->settings ? "" : " at a null pointer", MOST_SETTINGS);
    out->list = calloc(N_FIELDS + (size_t)o->n_settings, sizeof *out->list);
    if (!out->list)
        return tess__fail(TESS_E_NOMEM, "no memory for the options");
    tess_status status = add_texts(out, o);
    if (!status)
        status = add_numbers(out, o);
    return status ? status : add_settings(out, o);
}

void tess__given_free(tess__given *s) {
    for (uint32_t i = 0; i < s->n; i++) {
        free((void *)s->list[i].key);
        free((void *)s->list[i].value);
    }
    free((void *)s->list);
    *s = (tess__given){ .list = NULL };
}

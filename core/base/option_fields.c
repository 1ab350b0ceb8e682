/* SPDX-License-Identifier: BSD-3-Clause */
#include "option_fields.h"

#include "status.h"
#include <tessera/gpu.h>

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SETTINGS = 1024, NUMBER_CHARS = 24 };

#define FIELD(of, field, type, key)                                                                                    \
    { #field, key, TESS__FIELD_##type, (uint32_t)offsetof(of, field), sizeof(((of *)0)->field) }

#define OPTION(field, type, key) FIELD(tess_options, field, type, key)
const tess__field tess__fields_of_options[] = { OPTION(struct_size, NONE, NULL),
                                                OPTION(pointer_mem, NUMBER, NULL),
                                                OPTION(comm, TEXT, "comm"),
                                                OPTION(offload, TEXT, "offload"),
                                                OPTION(precision, TEXT, "precision"),
                                                OPTION(wrap, TEXT, "wrap"),
                                                OPTION(strategy, TEXT, "strategy"),
                                                OPTION(device, TEXT, "device"),
                                                OPTION(optimizer, TEXT, "optimizer"),
                                                OPTION(momentum, NUMBER, NULL),
                                                OPTION(accum, NUMBER, "accum"),
                                                OPTION(device_memory_bytes, NUMBER, "device-memory"),
                                                OPTION(input_bytes, NUMBER, NULL),
                                                OPTION(stream, NONE, NULL),
                                                OPTION(plan_only, NONE, NULL),
                                                OPTION(flags, NUMBER, NULL),
                                                OPTION(ranks, NONE, NULL),
                                                OPTION(own_states, NUMBER, NULL),
                                                OPTION(activations, TEXT, "activations"),
                                                OPTION(sync, TEXT, "sync"),
                                                OPTION(prefetch, TEXT, "prefetch"),
                                                OPTION(log, TEXT, "log"),
                                                OPTION(host_memory_bytes, NUMBER, "host-memory"),
                                                OPTION(threads, NUMBER, "threads"),
                                                OPTION(deterministic, FLAG, "deterministic"),
                                                OPTION(strict, FLAG, "strict"),
                                                OPTION(n_settings, NONE, NULL),
                                                OPTION(settings, NONE, NULL),
                                                OPTION(plan_alternative, NONE, NULL),
                                                OPTION(plan_user, NONE, NULL),
                                                OPTION(checkpoint, NUMBER, NULL),
                                                OPTION(recover, NUMBER, NULL),
                                                OPTION(mirror, NUMBER, "mirror"),
                                                OPTION(microbatches, NUMBER, NULL),
                                                OPTION(group, NONE, NULL),
                                                OPTION(audit, TEXT, "audit"),
                                                OPTION(on_audit, TEXT, "on-audit"),
                                                OPTION(audit_failed, NONE, NULL),
                                                OPTION(audit_user, NONE, NULL),
                                                OPTION(common, NONE, NULL),
                                                OPTION(common_bytes, NUMBER, NULL),
                                                { .name = NULL } };
enum { N_OPTIONS = sizeof tess__fields_of_options / sizeof tess__fields_of_options[0] };

/* Names, shape and stack are written beside the numbers. */
#define PARAM(field, type) FIELD(tess_param_options, field, type, NULL)
const tess__field tess__fields_of_param[] = { PARAM(struct_size, NONE),
                                              PARAM(dtype, NUMBER),
                                              PARAM(flags, NUMBER),
                                              PARAM(compute_dtypes, NUMBER),
                                              PARAM(name, TEXT),
                                              PARAM(stack, NONE),
                                              PARAM(shape, NONE),
                                              PARAM(ndim, NUMBER),
                                              PARAM(optimizer_group, NUMBER),
                                              PARAM(tag, NONE),
                                              { .name = NULL } };

#define BLOCK(field, type) FIELD(tess_block_options, field, type, NULL)
const tess__field tess__fields_of_block[] = { BLOCK(struct_size, NONE),
                                              BLOCK(flags, NUMBER),
                                              BLOCK(name, TEXT),
                                              BLOCK(output_bytes, NUMBER),
                                              BLOCK(saved_bytes, NUMBER),
                                              BLOCK(forward_scratch_bytes, NUMBER),
                                              BLOCK(backward_scratch_bytes, NUMBER),
                                              BLOCK(forward, NONE),
                                              BLOCK(backward, NONE),
                                              BLOCK(user, NONE),
                                              BLOCK(remake_scratch_bytes, NUMBER),
                                              BLOCK(selective_saved_bytes, NUMBER),
                                              BLOCK(selective_scratch_bytes, NUMBER),
                                              BLOCK(forward_work, NUMBER),
                                              BLOCK(selective_work, NUMBER),
                                              BLOCK(also, TEXT),
                                              { .name = NULL } };

/* ---- as numbers in a file ---------------------------------------------------------------------- */

/* Bits as they lie there: a float's digits would depend on the program's locale. */
static int is_number(const tess__field *f) {
    return !f->key && f->type == TESS__FIELD_NUMBER;
}

static uint64_t number_at(const tess__field *f, const void *of) {
    const char *at = (const char *)of + f->offset;
    uint64_t wide;
    uint32_t narrow;
    if (f->bytes == sizeof wide)
        return memcpy(&wide, at, sizeof wide), wide;
    return memcpy(&narrow, at, sizeof narrow), narrow;
}

void tess__fields_write(FILE *f, const tess__field *field, const void *of) {
    for (; field->name; field++)
        if (is_number(field))
            fprintf(f, " %" PRIu64, number_at(field, of));
}

int tess__fields_read(FILE *f, const tess__field *field, void *to) {
    for (; field->name; field++) {
        uint64_t wide;
        uint32_t narrow;
        if (!is_number(field))
            continue;
        if (fscanf(f, " %" SCNu64, &wide) != 1 || (field->bytes == sizeof narrow && wide > UINT32_MAX))
            return 0;
        narrow = (uint32_t)wide;
        memcpy((char *)to + field->offset, field->bytes == sizeof narrow ? (void *)&narrow : (void *)&wide,
               field->bytes);
    }
    return 1;
}

/* ---- as settings ------------------------------------------------------------------------------- */

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

static tess_status add_field(tess__given *s, const tess_options *o, const tess__field *f) {
    const void *at = (const char *)o + f->offset;
    char text[NUMBER_CHARS] = "";
    uint64_t number = f->type == TESS__FIELD_TEXT ? 0 : number_at(f, o);
    int below_0 = f->bytes == sizeof(int32_t) && number > INT32_MAX;
    if (f->type == TESS__FIELD_TEXT)
        return add_option(s, f->key, *(const char *const *)at);
    if (f->type == TESS__FIELD_FLAG && number)
        return add_option(s, f->key, below_0 ? "0" : "1");
    if (below_0)
        return tess__fail(TESS_E_INVALID, "tess_open: tess_options.%s is %" PRId32 ", expected 0 or more", f->name,
                          (int32_t)(uint32_t)number);
    if (number)
        snprintf(text, sizeof text, "%" PRIu64, number);
    return add_option(s, f->key, text);
}

static tess_status add_fields(tess__given *s, const tess_options *o) {
    for (const tess__field *f = tess__fields_of_options; f->name; f++)
        if (f->key)
            TRY(add_field(s, o, f));
    return TESS_OK;
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

tess_status tess__copy_options(const char *call, void *own, uint32_t own_bytes, uint32_t least, const void *given) {
    enum { MOST = 1 << 16 };
    uint32_t size;
    if (!given)
        return tess__fail(TESS_E_INVALID, "%s: the options are missing", call);
    memcpy(&size, given, sizeof size);
    if (size < least || size > MOST || size % 4)
        return tess__fail(TESS_E_INVALID, "%s: struct_size of the options is %u; set it to sizeof of the struct (%u)",
                          call, size, own_bytes);
    memset(own, 0, own_bytes);
    memcpy(own, given, size < own_bytes ? size : own_bytes);
    memcpy(own, &own_bytes, sizeof own_bytes);
    return TESS_OK;
}

tess_status tess__given_of(const tess_options *o, tess__given *out) {
    *out = (tess__given){ .wins = (o->flags & TESS_OPTIONS_WIN) != 0 };
    if (o->flags & ~(uint32_t)(TESS_OPTIONS_WIN | TESS_OPTIONS_STEP_IN_PASS | TESS_OPTIONS_NO_CLIP | TESS_OPTIONS_LATE |
                               TESS_OPTIONS_REPEAT | TESS_OPTIONS_LOSS_SCALE | TESS_OPTIONS_BASE_APART))
        return tess__fail(TESS_E_INVALID, "tess_open: unknown flags 0x%x", o->flags);
    if (o->n_settings > MOST_SETTINGS || (o->n_settings && !o->settings))
        return tess__fail(TESS_E_INVALID, "tess_open: %u settings%s, at most %d are possible", o->n_settings,
                          o->settings ? "" : " at a null pointer", MOST_SETTINGS);
    out->list = calloc(N_OPTIONS + (size_t)o->n_settings, sizeof *out->list);
    if (!out->list)
        return tess__fail(TESS_E_NOMEM, "no memory for the options");
    tess_status status = add_fields(out, o);
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

/* SPDX-License-Identifier: BSD-3-Clause */
#include "checksum.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if TESSERA_HAVE_XXHASH_HEADER
#define XXH_INLINE_ALL /* the core links no library for it */
#include <xxhash.h>
#endif

#if TESSERA_HAVE_XXHASH_HEADER
int tess__sum_known(void) {
    return 1;
}

void tess__sum(const void *data, uint64_t bytes, uint8_t out[TESS__SUM_BYTES]) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, bytes));
    memcpy(out, canonical.digest, TESS__SUM_BYTES);
}

static void *start_state(void) {
    return XXH3_createState();
}

static void end_state(void *state) {
    XXH3_freeState(state);
}

static void begin_chunk(tess__sums *s) {
    XXH3_128bits_reset(s->state);
}

static void add_to_chunk(tess__sums *s, const void *data, uint64_t bytes) {
    XXH3_128bits_update(s->state, data, bytes);
}

static void take_chunk(tess__sums *s, uint8_t out[TESS__SUM_BYTES]) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(s->state));
    memcpy(out, canonical.digest, TESS__SUM_BYTES);
}
#else
int tess__sum_known(void) {
    return 0;
}

void tess__sum(const void *data, uint64_t bytes, uint8_t out[TESS__SUM_BYTES]) {
    (void)data, (void)bytes;
    memset(out, 0, TESS__SUM_BYTES);
}

static void *start_state(void) {
    return malloc(1);
}

static void end_state(void *state) {
    free(state);
}

static void begin_chunk(tess__sums *s) {
    (void)s;
}

static void add_to_chunk(tess__sums *s, const void *data, uint64_t bytes) {
    (void)s, (void)data, (void)bytes;
}

static void take_chunk(tess__sums *s, uint8_t out[TESS__SUM_BYTES]) {
    (void)s;
    memset(out, 0, TESS__SUM_BYTES);
}
#endif

int tess__sums_init(tess__sums *s, uint64_t chunk_bytes) {
    *s = (tess__sums){ .chunk_bytes = chunk_bytes, .state = start_state() };
    if (!s->state)
        return -1;
    begin_chunk(s);
    return 0;
}

static int close_chunk(tess__sums *s) {
    if (s->n == s->capacity) {
        uint64_t capacity = s->capacity ? 2 * s->capacity : 16;
        void *grown = realloc(s->sums, capacity * TESS__SUM_BYTES);
        if (!grown)
            return -1;
        s->sums = grown;
        s->capacity = capacity;
    }
    take_chunk(s, s->sums[s->n++]);
    s->filled = 0;
    begin_chunk(s);
    return 0;
}

int tess__sums_add(tess__sums *s, const void *data, uint64_t bytes) {
    while (bytes) {
        uint64_t n = s->chunk_bytes - s->filled < bytes ? s->chunk_bytes - s->filled : bytes;
        add_to_chunk(s, data, n);
        s->filled += n;
        data = (const char *)data + n;
        bytes -= n;
        if (s->filled == s->chunk_bytes && close_chunk(s))
            return -1;
    }
    return 0;
}

int tess__sums_finish(tess__sums *s) {
    return s->filled ? close_chunk(s) : 0;
}

void tess__sums_free(tess__sums *s) {
    if (s->state)
        end_state(s->state);
    free(s->sums);
    *s = (tess__sums){ 0 };
}

void tess__sum_text(const uint8_t sum[TESS__SUM_BYTES], char out[33]) {
    for (int i = 0; i < TESS__SUM_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", sum[i]);
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int tess__sum_parse(const char *text, uint8_t out[TESS__SUM_BYTES]) {
    if (strlen(text) != (size_t)2 * TESS__SUM_BYTES)
        return -1;
    for (int i = 0; i < TESS__SUM_BYTES; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return -1;
        out[i] = (uint8_t)(high * 16 + low);
    }
    return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "manifest.h"
#include "json_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_scan.h"
#include "base/status.h"
#include "safetensors_dtype.h"

#define MOST_CHUNK_BYTES (UINT64_C(1) << 30)
static const char format_name[] = "tessera-checkpoint";
static const char no_memory[] = "memory";
static const char own_sum_key[] = "\n\"xxh128_of_all_above\":\"";

/* ---- writing ------------------------------------------------------------------------------------- */
static void put_member(FILE *f, const char *key, const char *text) {
    fprintf(f, "\"%s\":", key);
    tess__json_text(f, text);
    fputs(",\n", f);
}

static void put_file(FILE *f, const tess__data_file *d) {
    char text[33];
    fputs("{\"name\":", f);
    tess__json_text(f, d->name);
    fprintf(f, ",\"bytes\":%" PRIu64 ",\"xxh128\":[", d->bytes);
    for (uint64_t i = 0; i < d->n_sums; i++) {
        tess__sum_text(d->sums[i], text);
        fprintf(f, "%s\"%s\"", i ? "," : "", text);
    }
    fputs("]}", f);
}

static void put_param(FILE *f, const tess__tensor *t, int is_buffer, int in_base) {
    fputs("{\"name\":", f);
    tess__json_text(f, t->name);
    fprintf(f, ",\"kind\":\"%s\",\"dtype\":\"%s\",\"shape\":[",
            is_buffer ? "buffer"
            : in_base ? "base"
                      : "parameter",
            tess__dtype_word(t->dtype));
    for (int32_t d = 0; d < t->ndim; d++)
        fprintf(f, "%s%" PRId64, d ? "," : "", t->shape[d]);
    fputs("]}", f);
}

static void put_lineage(FILE *f, const tess__lineage *l) {
    fputs("\"lineage\":[", f);
    for (uint64_t i = 0; i < l->n; i++)
        fprintf(f, "%s{\"id\":\"%016" PRIx64 "\",\"until\":%" PRIu64 "}", i ? "," : "", l->runs[i].id,
                l->runs[i].until);
    fputs("],\n", f);
}

/* The oldest that has what is to be said. */
static int version_of(const tess__manifest *m) {
    return m->n_base || m->loss_scale.scale > 0 || m->loss_scale.skipped ? 4 : m->has_score ? 3 : 2;
}

static void put_base(FILE *f, const tess__manifest *m) {
    fputs("\n\"base\":[", f);
    for (uint64_t i = 0; i < m->n_base; i++) {
        fputs(i ? ",\n" : "\n", f);
        put_file(f, &m->base[i]);
    }
    fputs("],", f);
}

static void put_all(FILE *f, const tess__manifest *m) {
    fprintf(f, "{\"format\":\"%s\",\n\"version\":%d,\n", format_name, version_of(m));
    put_member(f, "writer", m->writer);
    fprintf(f,
            "\"step\":%" PRIu64 ",\n\"generation\":%" PRIu64 ",\n\"ranks\":%" PRIu64 ",\n\"microbatches\":%" PRIu64
            ",\n",
            m->step, m->generation, m->ranks, m->microbatches);
    fprintf(f, "\"order\":%" PRIu64 ",\n", m->order);
    put_lineage(f, &m->lineage);
    put_member(f, "strategy", m->strategy);
    put_member(f, "precision", m->precision);
    put_member(f, "optimizer", m->optimizer);
    fprintf(f, "\"states\":%" PRIu64 ",\n\"chunk_bytes\":%" PRIu64 ",\n\"checksums\":%s,\n\"files\":[", m->n_states,
            m->chunk_bytes, m->has_sums ? "true" : "false");
    for (uint64_t i = 0; i < m->n_files; i++) {
        fputs(i ? ",\n" : "\n", f);
        put_file(f, &m->files[i]);
    }
    fputs("],\n\"parameters\":[", f);
    for (uint64_t i = 0; i < m->n_params; i++) {
        fputs(i ? ",\n" : "\n", f);
        put_param(f, &m->params[i], m->is_buffer[i], tess__manifest_in_base(m, i));
    }
    fprintf(f, "],\n\"finite\":%s,", m->not_finite ? "false" : "true");
    if (version_of(m) == 4)
        put_base(f, m);
    if (m->has_score)
        fprintf(f, "\n\"score\":\"%.17g\",", m->score);
    else if (version_of(m) == 4)
        fputs("\n\"score\":\"none\",", f);
    if (version_of(m) == 4)
        fprintf(f, "\n\"loss_scale\":\"%.17g\",\n\"good_steps\":%" PRIu64 ",\n\"overflows\":%" PRIu64 ",",
                m->loss_scale.scale, m->loss_scale.good, m->loss_scale.skipped);
}

tess_status tess__manifest_write(const tess__manifest *m, const char *path, char **out, size_t *bytes) {
    uint8_t sum[TESS__SUM_BYTES];
    char text[33];
    char *body = NULL;
    FILE *f = open_memstream(&body, bytes);
    if (!f)
        return tess__fail(TESS_E_NOMEM, "%s: no memory for it", path);
    put_all(f, m);
    if (fflush(f) == 0) {
        tess__sum(body, *bytes, sum);
        tess__sum_text(sum, text);
        fprintf(f, "%s%s\"}\n", own_sum_key, text);
    }
    if (fclose(f) != 0) {
        free(body);
        return tess__fail(TESS_E_NOMEM, "%s: no memory for it", path);
    }
    *out = body;
    return TESS_OK;
}

/* ---- reading ------------------------------------------------------------------------------------- */
static int fail_expecting(json_scan *in, const char *expected) {
    in->expected = expected;
    return 0;
}

/* Room for one more of an array's elements, zeroed. */
static void *grow_array(json_scan *in, void **array, uint64_t n, uint64_t *capacity, size_t size) {
    if (n == *capacity) {
        uint64_t more = *capacity ? 2 * *capacity : 16;
        void *grown = realloc(*array, more * size);
        if (!grown) {
            fail_expecting(in, no_memory);
            return NULL;
        }
        *array = grown;
        *capacity = more;
    }
    return memset((char *)*array + n * size, 0, size);
}

static int scan_sums(json_scan *in, tess__data_file *d) {
    uint64_t capacity = 0;
    char text[40];
    if (!json_scan_char(in, '['))
        return 0;
    if (json_scan_if(in, ']'))
        return 1;
    do {
        uint8_t *sum = grow_array(in, (void **)&d->sums, d->n_sums, &capacity, TESS__SUM_BYTES);
        if (!sum || !json_scan_string(in, text, sizeof text))
            return 0;
        if (tess__sum_parse(text, sum))
            return fail_expecting(in, "32 hexadecimal digits before this place");
        d->n_sums++;
    } while (json_scan_if(in, ','));
    return json_scan_char(in, ']');
}

static int read_key(json_scan *in, const char *expected) {
    char word[32];
    if (!json_scan_string(in, word, sizeof word) || !json_scan_char(in, ':'))
        return 0;
    return strcmp(word, expected) == 0 || fail_expecting(in, expected);
}

static int scan_file(json_scan *in, tess__data_file *d) {
    if (!json_scan_char(in, '{') || !read_key(in, "name") || !json_scan_string(in, d->name, sizeof d->name))
        return 0;
    if (strchr(d->name, '/') || d->name[0] == '.' || !d->name[0])
        return fail_expecting(in, "a file's plain name before this place");
    return json_scan_char(in, ',') && read_key(in, "bytes") && json_scan_uint(in, &d->bytes) &&
           json_scan_char(in, ',') && read_key(in, "xxh128") && scan_sums(in, d) && json_scan_char(in, '}');
}

static int scan_param(json_scan *in, tess__tensor *t, uint8_t *is_buffer, uint8_t *in_base) {
    char word[16];
    uint64_t dim;
    if (!json_scan_char(in, '{') || !read_key(in, "name") || !json_scan_string(in, t->name, sizeof t->name) ||
        !json_scan_char(in, ',') || !read_key(in, "kind") || !json_scan_string(in, word, sizeof word) ||
        !json_scan_char(in, ','))
        return 0;
    *is_buffer = strcmp(word, "buffer") == 0;
    *in_base = strcmp(word, "base") == 0;
    if (!read_key(in, "dtype") || !json_scan_string(in, word, sizeof word) || !json_scan_char(in, ',') ||
        !read_key(in, "shape") || !json_scan_char(in, '['))
        return 0;
    if (!(t->dtype = tess__dtype_of_word(word)))
        return fail_expecting(in, "a known dtype before this place");
    t->elems = 1;
    while (!json_scan_if(in, ']')) {
        if (t->ndim == TESS__TENSOR_DIMS || (t->ndim && !json_scan_char(in, ',')) || !json_scan_uint(in, &dim))
            return 0;
        if (__builtin_mul_overflow(t->elems, dim, &t->elems) || t->elems > INT64_MAX / 8)
            return fail_expecting(in, "a shape of fewer than 2^60 elements");
        t->shape[t->ndim++] = (int64_t)dim;
    }
    t->bytes = t->elems * tess__tensor_dtype_bytes(t->dtype);
    return json_scan_char(in, '}');
}

static int scan_list(json_scan *in, tess__data_file **files, uint64_t *n, uint64_t chunk_bytes) {
    uint64_t capacity = 0;
    if (!json_scan_char(in, '[') || json_scan_if(in, ']'))
        return !in->expected;
    do {
        tess__data_file *d = grow_array(in, (void **)files, *n, &capacity, sizeof *d);
        if (!d)
            return 0;
        ++*n;
        if (!scan_file(in, d))
            return 0;
        if (chunk_bytes && d->n_sums != d->bytes / chunk_bytes + (d->bytes % chunk_bytes > 0))
            return fail_expecting(in, "as many checksums as the file has chunks");
    } while (json_scan_if(in, ','));
    return json_scan_char(in, ']');
}

static int scan_files(json_scan *in, tess__manifest *m) {
    return scan_list(in, &m->files, &m->n_files, m->has_sums ? m->chunk_bytes : 0);
}

static int scan_params(json_scan *in, tess__manifest *m) {
    uint64_t capacity = 0, flags = 0, marks = 0;
    if (!json_scan_char(in, '[') || json_scan_if(in, ']'))
        return !in->expected;
    do {
        tess__tensor *t = grow_array(in, (void **)&m->params, m->n_params, &capacity, sizeof *t);
        uint8_t *is_buffer = grow_array(in, (void **)&m->is_buffer, m->n_params, &flags, 1);
        uint8_t *in_base = grow_array(in, (void **)&m->in_base, m->n_params, &marks, 1);
        if (!t || !is_buffer || !in_base)
            return 0;
        m->n_params++;
        if (!scan_param(in, t, is_buffer, in_base))
            return 0;
    } while (json_scan_if(in, ','));
    return json_scan_char(in, ']');
}

static int read_member(json_scan *in, const char *name) {
    return read_key(in, name);
}

static int scan_text(json_scan *in, const char *name, char *out, size_t capacity) {
    return read_member(in, name) && json_scan_string(in, out, capacity) && json_scan_char(in, ',');
}

static int scan_number(json_scan *in, const char *name, uint64_t *out) {
    return read_member(in, name) && json_scan_uint(in, out) && json_scan_char(in, ',');
}

static int scan_flag(json_scan *in, const char *name, int *out) {
    if (!read_member(in, name))
        return 0;
    while (in->at < in->bytes && in->text[in->at] == ' ')
        in->at++;
    *out = in->at < in->bytes && in->text[in->at] == 't';
    return json_scan_skip(in) && json_scan_char(in, ',');
}

static int scan_start(json_scan *in, uint64_t *version) {
    char word[32];
    if (!json_scan_char(in, '{') || !scan_text(in, "format", word, sizeof word))
        return 0;
    if (strcmp(word, format_name) != 0)
        return fail_expecting(in, "format tessera-checkpoint before this place");
    return scan_number(in, "version", version);
}

static int scan_run(json_scan *in, tess__lineage *l) {
    char text[17], *end;
    if (l->n == TESS__LINEAGE_MOST)
        return fail_expecting(in, "a lineage of at most 64 runs");
    if (!json_scan_char(in, '{') || !read_key(in, "id") || !json_scan_string(in, text, sizeof text))
        return 0;
    l->runs[l->n].id = strtoull(text, &end, 16);
    if (!*text || *end)
        return fail_expecting(in, "hexadecimal digits before this place");
    return json_scan_char(in, ',') && read_key(in, "until") && json_scan_uint(in, &l->runs[l->n++].until) &&
           json_scan_char(in, '}');
}

/* Version 1 has none. */
static int scan_lineage(json_scan *in, tess__manifest *m) {
    if (!scan_number(in, "order", &m->order) || !read_member(in, "lineage") || !json_scan_char(in, '['))
        return 0;
    if (!json_scan_if(in, ']')) {
        do {
            if (!scan_run(in, &m->lineage))
                return 0;
        } while (json_scan_if(in, ','));
        if (!json_scan_char(in, ']'))
            return 0;
    }
    return json_scan_char(in, ',');
}

/* Version 1 has none. */
static int scan_finite(json_scan *in, tess__manifest *m) {
    int finite = 1;
    int read = scan_flag(in, "finite", &finite);
    m->not_finite = !finite;
    return read;
}

/* As text, to the last bit; from version 4 on there may be none. */
static int scan_score(json_scan *in, uint64_t version, tess__manifest *m) {
    char text[40], *end;
    if (!scan_text(in, "score", text, sizeof text))
        return 0;
    if (version == 4 && strcmp(text, "none") == 0)
        return 1;
    m->has_score = 1;
    m->score = strtod(text, &end);
    return (*text && !*end && isfinite(m->score)) || fail_expecting(in, "a finite number before this place");
}

static int scan_loss_scale(json_scan *in, tess__loss_scale *s) {
    char text[40], *end;
    if (!scan_text(in, "loss_scale", text, sizeof text))
        return 0;
    s->scale = strtod(text, &end);
    if (!*text || *end || !(s->scale >= 0) || !isfinite(s->scale))
        return fail_expecting(in, "a scale from 0 up before this place");
    return scan_number(in, "good_steps", &s->good) && scan_number(in, "overflows", &s->skipped);
}

static int scan_base(json_scan *in, tess__manifest *m) {
    return read_member(in, "base") && scan_list(in, &m->base, &m->n_base, UINT64_MAX) && json_scan_char(in, ',');
}

static int scan_all(json_scan *in, uint64_t version, tess__manifest *m) {
    if (!scan_text(in, "writer", m->writer, sizeof m->writer) || !scan_number(in, "step", &m->step) ||
        !scan_number(in, "generation", &m->generation) || !scan_number(in, "ranks", &m->ranks) ||
        !scan_number(in, "microbatches", &m->microbatches) || (version > 1 && !scan_lineage(in, m)) ||
        !scan_text(in, "strategy", m->strategy, sizeof m->strategy) ||
        !scan_text(in, "precision", m->precision, sizeof m->precision) ||
        !scan_text(in, "optimizer", m->optimizer, sizeof m->optimizer) || !scan_number(in, "states", &m->n_states) ||
        !scan_number(in, "chunk_bytes", &m->chunk_bytes) || !scan_flag(in, "checksums", &m->has_sums))
        return 0;
    if (m->chunk_bytes == 0 || m->chunk_bytes > MOST_CHUNK_BYTES)
        return fail_expecting(in, "chunks of 1 byte to 1 GiB before this place");
    return read_member(in, "files") && scan_files(in, m) && json_scan_char(in, ',') && read_member(in, "parameters") &&
           scan_params(in, m) && json_scan_char(in, ',') && (version < 2 || scan_finite(in, m)) &&
           (version < 4 || scan_base(in, m)) && (version < 3 || scan_score(in, version, m)) &&
           (version < 4 || scan_loss_scale(in, &m->loss_scale));
}

/* Checks the last member. It is found from the end, so that nothing torn is looked into. */
static tess_status check_own_sum(const char *path, const char *text, uint64_t bytes) {
    const size_t tail = sizeof own_sum_key - 1 + 32 + 3;
    uint8_t expected[TESS__SUM_BYTES], found[TESS__SUM_BYTES];
    static const uint8_t none[TESS__SUM_BYTES];
    char digits[33] = "";
    if (bytes > tail && memcmp(text + bytes - tail, own_sum_key, sizeof own_sum_key - 1) == 0)
        memcpy(digits, text + bytes - 35, 32);
    if (tess__sum_parse(digits, expected) || memcmp(text + bytes - 3, "\"}\n", 3) != 0)
        return tess__fail(TESS_E_DATA, "%s: offset %" PRIu64 ": it does not end with its checksum: it is torn", path,
                          bytes);
    tess__sum(text, bytes - tail, found);
    if (tess__sum_known() && memcmp(expected, none, sizeof none) != 0 && memcmp(expected, found, sizeof found) != 0)
        return tess__fail(TESS_E_DATA, "%s: its checksum is wrong: it has been damaged", path);
    return TESS_OK;
}

tess_status tess__manifest_read(const char *path, const char *text, uint64_t bytes, tess__manifest *out) {
    tess__manifest m = { 0 };
    uint64_t version = 0;
    json_scan in = { .text = text, .bytes = bytes };
    tess_status status = TESS_OK;
    int started = scan_start(&in, &version);
    if (started && version > TESS__MANIFEST_VERSION)
        return tess__fail(TESS_E_DATA,
                          "%s: format version %" PRIu64 " is newer than this tessera, which reads up to %d", path,
                          version, TESS__MANIFEST_VERSION);
    if (started)
        status = check_own_sum(path, text, bytes);
    if (status == TESS_OK && (!started || !scan_all(&in, version, &m)))
        status = in.expected == no_memory
                     ? tess__fail(TESS_E_NOMEM, "%s: no memory for its %" PRIu64 " bytes", path, bytes)
                     : tess__fail(TESS_E_DATA, "%s: offset %zu: not a checkpoint's manifest here: expected %s", path,
                                  in.at, in.expected ? in.expected : "JSON");
    if (status != TESS_OK)
        tess__manifest_free(&m);
    else
        *out = m;
    return status;
}

int tess__manifest_is_newer(const char *text, uint64_t bytes) {
    json_scan in = { .text = text, .bytes = bytes };
    uint64_t version = 0;
    return scan_start(&in, &version) && version > TESS__MANIFEST_VERSION;
}

static void free_files(tess__data_file *files, uint64_t n) {
    for (uint64_t i = 0; files && i < n; i++)
        free(files[i].sums);
    free(files);
}

void tess__manifest_free(tess__manifest *m) {
    free_files(m->files, m->n_files);
    free_files(m->base, m->n_base);
    free(m->in_base);
    free(m->params);
    free(m->is_buffer);
    *m = (tess__manifest){ 0 };
}

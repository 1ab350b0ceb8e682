/* SPDX-License-Identifier: BSD-3-Clause */
#include "detail.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/proof/chain.h"
#include "tools/support/say.h"

/* ---- reading --------------------------------------------------------------------------------------- */

static tess_status no_memory(void) {
    return tess_fail(TESS_E_NOMEM, "no memory for digests in detail");
}

static char *text_of(const char *line, const char *key) {
    char text[1024] = "";
    (void)tess__chain_member(line, key, text, sizeof text);
    return strdup(text);
}

static void free_line(detail_line *l) {
    free(l->key);
    free(l->pass);
    free(l->instruction);
    free(l->stage);
    free(l->unit);
    free(l->what);
    free(l->tensor);
    free(l->dtype);
    free(l->values);
}

static tess_status parse(const char *line, detail_line *out) {
    char digest[24] = "", microbatch[16] = "-1";
    detail_line l = { .key = text_of(line, "key"),
                      .pass = text_of(line, "pass"),
                      .instruction = text_of(line, "instruction"),
                      .stage = text_of(line, "stage"),
                      .unit = text_of(line, "unit"),
                      .what = text_of(line, "what"),
                      .tensor = text_of(line, "tensor"),
                      .dtype = text_of(line, "dtype"),
                      .n = tess__chain_number(line, "n"),
                      .first = tess__chain_number(line, "first"),
                      .elems = tess__chain_number(line, "elems"),
                      .bytes = tess__chain_number(line, "bytes"),
                      .rank = (int32_t)tess__chain_number(line, "rank") };
    (void)tess__chain_member(line, "digest", digest, sizeof digest);
    (void)tess__chain_member(line, "microbatch", microbatch, sizeof microbatch);
    l.digest = strtoull(digest, NULL, 16);
    l.microbatch = (int32_t)strtol(microbatch, NULL, 10);
    *out = l;
    return l.key && l.pass && l.instruction && l.stage && l.unit && l.what && l.tensor && l.dtype ? TESS_OK
                                                                                                  : no_memory();
}

static tess_status add(detail_step *d, const char *line, FILE *values) {
    if ((d->n & (d->n - 1)) == 0) {
        detail_line *more = realloc(d->lines, (d->n ? 2 * d->n : 1) * sizeof *more);
        if (!more)
            return no_memory();
        d->lines = more;
    }
    detail_line *l = &d->lines[d->n++];
    TRY(parse(line, l));
    if (!values)
        return TESS_OK;
    l->values = malloc(l->elems * l->bytes + 1);
    if (!l->values)
        return no_memory();
    return fread(l->values, l->bytes, l->elems, values) == l->elems
               ? TESS_OK
               : tess_fail(TESS_E_DATA, "the elements of %s are cut", l->key);
}

static tess_status read_file(FILE *f, int values, detail_step *d) {
    char *line = NULL;
    size_t room = 0;
    ssize_t bytes;
    tess_status status = TESS_OK;
    while (status == TESS_OK && (bytes = getline(&line, &room, f)) > 0)
        if (line[bytes - 1] == '\n') /* else the command was ended in the line */
            status = add(d, line, values ? f : NULL);
    free(line);
    return status;
}

static int by_time(const void *a, const void *b) {
    const detail_line *x = a, *y = b;
    return x->n != y->n ? (x->n > y->n) - (x->n < y->n) : (x->rank > y->rank) - (x->rank < y->rank);
}

static int by_key(const void *a, const void *b) {
    const detail_line *x = *(detail_line *const *)a, *y = *(detail_line *const *)b;
    int order = strcmp(x->key, y->key);
    return order ? order : x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank) : (x > y) - (x < y);
}

static tess_status sort(detail_step *d) {
    d->keys = malloc((d->n + 1) * sizeof *d->keys);
    if (!d->keys)
        return no_memory();
    qsort(d->lines, d->n, sizeof *d->lines, by_time);
    for (size_t i = 0; i < d->n; i++)
        d->keys[i] = &d->lines[i];
    qsort(d->keys, d->n, sizeof(detail_line *), by_key);
    for (size_t i = 1; i < d->n; i++)
        if (strcmp(d->keys[i]->key, d->keys[i - 1]->key) == 0 && d->keys[i]->rank == d->keys[i - 1]->rank)
            d->keys[i]->again = d->keys[i - 1]->again + 1;
    return TESS_OK;
}

tess_status detail_read(const char *dir, int values, detail_step *out) {
    detail_step d = { .lines = NULL };
    tess_status status = TESS_OK;
    FILE *f = NULL;
    for (int rank = 0; status == TESS_OK && (rank == 0 || f); rank++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s-%d", dir, values ? "values" : "lines", rank);
        f = fopen(path, "re");
        if (f) {
            status = read_file(f, values, &d);
            fclose(f);
        }
    }
    if (status == TESS_OK)
        status = sort(&d);
    if (status == TESS_OK)
        *out = d;
    else
        detail_free(&d);
    return status;
}

void detail_free(detail_step *d) {
    for (size_t i = 0; i < d->n; i++)
        free_line(&d->lines[i]);
    free(d->lines);
    free(d->keys);
    *d = (detail_step){ .lines = NULL };
}

/* ---- comparing ------------------------------------------------------------------------------------- */

typedef struct { /* lines of one key */
    detail_line **at;
    size_t n;
} lines_of_key;

static lines_of_key find(const detail_step *d, const char *key) {
    size_t from = 0, to = d->n;
    while (from < to) {
        size_t at = (from + to) / 2;
        *(strcmp(d->keys[at]->key, key) < 0 ? &from : &to) = at + (strcmp(d->keys[at]->key, key) < 0);
    }
    lines_of_key r = { .at = d->keys + from };
    while (from + r.n < d->n && strcmp(r.at[r.n]->key, key) == 0)
        r.n++;
    return r;
}

/* The same part, of the same rank if it has it. */
static const detail_line *same_part(lines_of_key of, const detail_line *l) {
    const detail_line *found = NULL;
    for (size_t i = 0; i < of.n; i++)
        if (of.at[i]->first == l->first && of.at[i]->elems == l->elems && of.at[i]->again == l->again)
            if (!found || of.at[i]->rank == l->rank)
                found = of.at[i];
    return found;
}

/* The digest of all parts; replicas have the same ones. */
static uint64_t whole(lines_of_key of, uint32_t again, uint64_t *elems) {
    uint64_t sum = 0;
    *elems = 0;
    for (size_t i = 0; i < of.n; i++) {
        int known = of.at[i]->again != again;
        for (size_t k = 0; !known && k < i; k++)
            known = of.at[k]->again == again && of.at[k]->first == of.at[i]->first;
        sum += known ? 0 : of.at[i]->digest;
        *elems += known ? 0 : of.at[i]->elems;
    }
    return sum;
}

/* Tells whether the parts were cut otherwise, and differ as a whole. */
static int wholes_differ(lines_of_key a, lines_of_key b, uint32_t again) {
    uint64_t elems_a, elems_b, sum_a = whole(a, again, &elems_a), sum_b = whole(b, again, &elems_b);
    return elems_a == elems_b && sum_a != sum_b;
}

static int line_differs(const detail_line *l, const detail_line *other) {
    return l->digest != other->digest || strcmp(l->dtype, other->dtype) != 0;
}

const detail_line *detail_compare(const detail_step *a, const detail_step *b, const detail_line **other,
                                  size_t *unlike) {
    *unlike = 0;
    for (size_t i = 0; i < a->n; i++) {
        const detail_line *l = &a->lines[i];
        lines_of_key theirs = find(b, l->key);
        *unlike += theirs.n == 0;
        *other = same_part(theirs, l);
        if (*other ? line_differs(l, *other) : theirs.n && wholes_differ(find(a, l->key), theirs, l->again)) {
            *other = *other ? *other : theirs.at[0];
            return l;
        }
    }
    return NULL;
}

/* The first element that both parts have and that differs, before `end`. */
static uint64_t first_of_parts(const detail_line *a, const detail_line *b, uint64_t end) {
    uint64_t from = a->first > b->first ? a->first : b->first;
    uint64_t last_a = a->first + a->elems, last_b = b->first + b->elems, last = last_a < last_b ? last_a : last_b;
    for (uint64_t i = from; i < last && i < end; i++)
        if (memcmp(a->values + (i - a->first) * a->bytes, b->values + (i - b->first) * b->bytes, a->bytes) != 0)
            return i;
    return end;
}

static int is_of(const detail_line *l, const detail_line *like) {
    return strcmp(l->key, like->key) == 0 && l->again == like->again && l->values;
}

int detail_first_element(const detail_step *a, const detail_step *b, const detail_line *like, detail_element *out) {
    detail_element e = { .element = UINT64_MAX };
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; is_of(&a->lines[i], like) && k < b->n; k++) {
            const detail_line *x = &a->lines[i], *y = &b->lines[k];
            if (!is_of(y, like) || x->bytes != y->bytes)
                continue;
            uint64_t at = first_of_parts(x, y, e.element);
            if (at < e.element)
                e = (detail_element){ at, x, y, x->values + (at - x->first) * x->bytes,
                                      y->values + (at - y->first) * y->bytes };
        }
    *out = e;
    return e.a != NULL;
}

/* ---- numbers --------------------------------------------------------------------------------------- */

static double half(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31)
        return fraction ? (double)__builtin_nan("") : sign * (double)__builtin_inf();
    double value = exponent ? 1024 + fraction : fraction;
    for (int i = exponent ? exponent : 1; i < 25; i++)
        value /= 2;
    for (int i = 25; i < exponent; i++)
        value *= 2;
    return sign * value;
}

static float single(uint32_t bits) {
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

void detail_number(const detail_line *l, const char *value, char *number, char *bits, size_t n) {
    uint64_t word = 0;
    double wide;
    memcpy(&word, value, l->bytes < sizeof word ? l->bytes : sizeof word);
    memcpy(&wide, &word, sizeof wide);
    snprintf(bits, n, "%0*" PRIx64, (int)(2 * l->bytes), word);
    if (strcmp(l->dtype, "f32") == 0)
        snprintf(number, n, "%.9g", (double)single((uint32_t)word));
    else if (strcmp(l->dtype, "bf16") == 0)
        snprintf(number, n, "%.9g", (double)single((uint32_t)word << 16));
    else if (strcmp(l->dtype, "f16") == 0)
        snprintf(number, n, "%.9g", half((uint16_t)word));
    else if (strcmp(l->dtype, "f64") == 0)
        snprintf(number, n, "%.17g", wide);
    else if (strcmp(l->dtype, "i32") == 0)
        snprintf(number, n, "%" PRId32, (int32_t)word);
    else
        snprintf(number, n, "%" PRId64, (int64_t)word);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* manifest.json, character by character: what is not as it was written is refused, at its bounds too. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/manifest.h"

enum { ROOM = 1 << 16 };

/* Puts the right checksum behind `body`, so that only what the text says can be wrong. */
static tess_status read_body(const char *body, tess__manifest *out) {
    static char text[ROOM];
    uint8_t sum[TESS__SUM_BYTES];
    char digits[33];
    tess__sum(body, strlen(body), sum);
    tess__sum_text(sum, digits);
    int n = snprintf(text, sizeof text, "%s\n\"xxh128_of_all_above\":\"%s\"}\n", body, digits);
    assert_in_range(n, 1, ROOM - 1);
    return tess__manifest_read("m", text, (uint64_t)n, out);
}

/* A small one, with each kind of member, as this version writes it. */
static void write_body(char body[ROOM]) {
    uint8_t sums[3][TESS__SUM_BYTES] = { { 1 }, { 2 }, { 3 } };
    tess__data_file files[] = { { .name = "one", .bytes = 15, .n_sums = 2, .sums = sums },
                                { .name = "two", .bytes = 8, .n_sums = 1, .sums = sums + 2 } };
    tess__tensor params[] = { { .name = "a", .dtype = TESS_F32, .ndim = 2, .shape = { 3, 5 } },
                              { .name = "b", .dtype = TESS_BF16 } };
    uint8_t is_buffer[] = { 0, 1 }, in_base[] = { 1, 0 };
    tess__data_file base = { .name = "model", .bytes = 90, .n_sums = 1, .sums = sums };
    tess__manifest m = { .step = 1,
                         .chunk_bytes = 8,
                         .generation = 2,
                         .order = 3,
                         .ranks = 4,
                         .has_sums = 1,
                         .n_files = 2,
                         .files = files,
                         .n_params = 2,
                         .params = params,
                         .n_states = 6,
                         .microbatches = 5,
                         .is_buffer = is_buffer,
                         .in_base = in_base,
                         .n_base = 1,
                         .base = &base,
                         .loss_scale = { .scale = 0.5, .good = 7, .skipped = 9 } };
    char *text;
    size_t bytes;
    m.lineage = (tess__lineage){ .n = 2, .runs = { { 0x12, 20 }, { 2, INT64_MAX } } };
    snprintf(m.writer, sizeof m.writer, "w");
    snprintf(m.strategy, sizeof m.strategy, "full");
    snprintf(m.precision, sizeof m.precision, "fp32");
    snprintf(m.optimizer, sizeof m.optimizer, "sgd");
    assert_int_equal(tess__manifest_write(&m, "m", &text, &bytes), TESS_OK);
    char *end = strstr(text, "\n\"xxh128_of_all_above\"");
    assert_non_null(end);
    snprintf(body, ROOM, "%.*s", (int)(end - text), text);
    free(text);
}

static int reads(const char *body) {
    tess__manifest m = { 0 };
    int ok = read_body(body, &m) == TESS_OK;
    if (!ok)
        assert_null(m.files); /* outputs are written on success only */
    tess__manifest_free(&m);
    return ok;
}

static void test_manifest__no_character_of_its_form_may_be_missing_or_another(void **state) {
    (void)state;
    static char body[ROOM], bad[ROOM];
    write_body(body);
    assert_true(reads(body));
    int n = 0;
    for (size_t i = 1; body[i]; i++) {
        if (!strchr("{}[]:,\"", body[i]) || strncmp(body + i - 1, "3,5", 3) == 0) /* 35 is a shape too */
            continue;
        snprintf(bad, sizeof bad, "%.*s%s", (int)i, body, body + i + 1);
        if (reads(bad))
            fail_msg("without '%c' at %zu: %.20s", body[i], i, body + i);
        snprintf(bad, sizeof bad, "%s", body);
        bad[i] = ';';
        if (reads(bad))
            fail_msg("';' for '%c' at %zu: %.20s", body[i], i, body + i);
        n++;
    }
    assert_true(n > 150);
}

static void test_manifest__every_member_has_its_name_and_its_place(void **state) {
    (void)state;
    static char body[ROOM], bad[ROOM];
    write_body(body);
    int n = 0;
    for (char *colon = body; (colon = strstr(colon, "\":")); colon++, n++) {
        snprintf(bad, sizeof bad, "%s", body);
        bad[colon - body - 1] ^= 1; /* the last letter of the name */
        if (reads(bad))
            fail_msg("a member named %.20s", bad + (colon - body) - 8);
    }
    assert_int_equal(n, 44);
}

/* Replaces `from`, which is there once. */
static int reads_with(const char *from, const char *to) {
    static char body[ROOM], changed[ROOM];
    write_body(body);
    const char *at = strstr(body, from);
    assert_non_null(at);
    assert_null(strstr(at + 1, from));
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - body), body, to, at + strlen(from));
    return reads(changed);
}

static void test_manifest__values_are_held_to_their_bounds(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
        int reads;
    } cases[] = {
        { "\"version\":4", "\"version\":3", 0 },
        { "\"version\":4", "\"version\":5", 0 },
        { "\"score\":\"none\"", "\"score\":\"nan\"", 0 },
        { "\"score\":\"none\"", "\"score\":\"1.5\"", 1 },
        { "\"loss_scale\":\"0.5\"", "\"loss_scale\":\"\"", 0 },
        { "\"loss_scale\":\"0.5\"", "\"loss_scale\":\"-1\"", 0 },
        { "\"loss_scale\":\"0.5\"", "\"loss_scale\":\"inf\"", 0 },
        { "\"overflows\":9", "\"overflows\":-9", 0 },
        { "\"name\":\"model\",\"bytes\":90", "\"name\":\"../m\",\"bytes\":90", 0 },
        { "tessera-checkpoint", "tessera-checkpoints", 0 },
        { "\"chunk_bytes\":8", "\"chunk_bytes\":0", 0 },
        { "\"chunk_bytes\":8", "\"chunk_bytes\":9", 1 }, /* the same number of chunks */
        { "\"chunk_bytes\":8", "\"chunk_bytes\":15", 0 },
        { "\"chunk_bytes\":8", "\"chunk_bytes\":7", 0 },
        { "\"chunk_bytes\":8", "\"chunk_bytes\":x", 0 },
        { "\"name\":\"one\",\"bytes\":15", "\"name\":\"one\",\"bytes\":16", 1 },
        { "\"name\":\"one\",\"bytes\":15", "\"name\":\"one\",\"bytes\":17", 0 },
        { "\"name\":\"one\",\"bytes\":15", "\"name\":\"one\",\"bytes\":8", 0 },
        { "\"name\":\"one\",\"bytes\":15", "\"name\":\"one\",\"bytes\":-1", 0 },
        { "\"checksums\":true", "\"checksums\": true", 1 },
        { "\"checksums\":true", "\"checksums\":", 0 },
        { "\"dtype\":\"F32\"", "\"dtype\":\"F33\"", 0 },
        { "\"until\":20", "\"until\":x", 0 },
        { "\"id\":\"0000000000000012\"", "\"id\":\"\"", 0 },
        { "\"id\":\"0000000000000012\"", "\"id\":\"g\"", 0 },
        { "\"id\":\"0000000000000012\"", "\"id\":\"12 \"", 0 },
        { "\"id\":\"0000000000000012\"", "\"id\":\"12345678901234567\"", 0 },
        { "[3,5]", "[1,2,3,4,5,6,7,8]", 1 },
        { "[3,5]", "[1,2,3,4,5,6,7,8,9]", 0 },
        { "[3,5]", "[3,]", 0 },
        { "[3,5]", "[3,-5]", 0 },
        { "[3,5]", "[1152921504606846975]", 1 }, /* 2^60 - 1 */
        { "[3,5]", "[1152921504606846976]", 0 },
        { "[3,5]", "[1152921504606846975,2]", 0 },
        { "[3,5]", "[4294967296,4294967296]", 0 }, /* 2^64 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (reads_with(cases[i].from, cases[i].to) != cases[i].reads)
            fail_msg("%s for %s", cases[i].to, cases[i].from);
    assert_false(reads_with("],\n\"strategy\"", "\n\"strategy\"")); /* the list's end and its comma, both */
    tess__manifest m;
    static char body[ROOM];
    write_body(body);
    assert_int_equal(read_body(body, &m), TESS_OK);
    assert_int_equal(m.lineage.runs[0].id, 0x12);
    assert_int_equal(m.lineage.runs[0].until, 20);
    assert_int_equal(m.n_files, 2);
    assert_string_equal(m.files[1].name, "two");
    assert_int_equal(m.files[1].bytes, 8);
    assert_int_equal(m.files[0].sums[1][0], 2);
    assert_int_equal(m.files[1].sums[0][0], 3);
    assert_int_equal(m.n_base, 1);
    assert_string_equal(m.base[0].name, "model");
    assert_int_equal(m.base[0].bytes, 90);
    assert_int_equal(m.base[0].sums[0][0], 1);
    assert_true(tess__manifest_in_base(&m, 0) && !tess__manifest_in_base(&m, 1) && !m.has_score);
    assert_int_equal(m.params[0].elems, 15);
    assert_int_equal(m.params[1].elems, 1);
    assert_true(!m.has_score && m.loss_scale.scale == 0.5 && m.loss_scale.good == 7 && m.loss_scale.skipped == 9);
    tess__manifest_free(&m);
}

static void test_manifest__a_chunk_has_at_most_a_gibibyte(void **state) {
    (void)state;
    static const char form[] = "{\"format\":\"tessera-checkpoint\",\"version\":1,\"writer\":\"w\",\"step\":7,"
                               "\"generation\":1,\"ranks\":1,\"microbatches\":1,\"strategy\":\"s\",\"precision\":\"p\","
                               "\"optimizer\":\"o\",\"states\":0,\"chunk_bytes\":%s,\"checksums\":false,\"files\":[%s],"
                               "\"parameters\":[],";
    static const struct {
        const char *bytes, *files;
        int reads;
    } cases[] = { { "1", "", 1 },
                  { "1073741824", "", 1 },
                  { "1073741825", "", 0 },
                  { "1", "{\"name\":\"n\",\"bytes\":9,\"xxh128\":[]}", 1 } }; /* written where xxHash is unknown */
    char body[512];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tess__manifest m = { 0 };
        snprintf(body, sizeof body, form, cases[i].bytes, cases[i].files);
        assert_int_equal(read_body(body, &m), cases[i].reads ? TESS_OK : TESS_E_DATA);
        if (!cases[i].reads)
            continue;
        assert_int_equal(m.step, 7); /* version 1: no order, no lineage, and nothing says that it is not finite */
        assert_int_equal(m.order, 0);
        assert_int_equal(m.lineage.n, 0);
        assert_false(m.not_finite || m.has_sums);
        tess__manifest_free(&m);
    }
}

static void test_manifest__a_lineage_has_at_most_64_runs(void **state) {
    (void)state;
    static char body[ROOM], changed[ROOM], runs[ROOM / 2];
    write_body(body);
    char *from = strstr(body, "\"lineage\":["), *to = strstr(body, "\"strategy\"");
    for (int n = TESS__LINEAGE_MOST; n <= TESS__LINEAGE_MOST + 1; n++) {
        tess__manifest m = { 0 };
        size_t at = 0;
        for (int i = 0; i < n; i++)
            at += (size_t)snprintf(runs + at, sizeof runs - at, "%s{\"id\":\"%x\",\"until\":%d}", i ? "," : "", i, i);
        snprintf(changed, sizeof changed, "%.*s\"lineage\":[%s],%s", (int)(from - body), body, runs, to);
        assert_int_equal(read_body(changed, &m), n == TESS__LINEAGE_MOST ? TESS_OK : TESS_E_DATA);
        assert_int_equal(m.lineage.n, n == TESS__LINEAGE_MOST ? n : 0);
        tess__manifest_free(&m);
    }
}

/* Many of each, so that tables grow more than once and keep what they hold. */
static void test_manifest__long_lists_come_back_whole(void **state) {
    (void)state;
    enum { N = 70 };
    static tess__data_file files[N];
    static tess__tensor params[N];
    static uint8_t is_buffer[N], sums[N][TESS__SUM_BYTES];
    tess__manifest got, m = { .chunk_bytes = 1, .has_sums = 1, .n_files = N, .n_params = N };
    char *text;
    size_t bytes;
    for (int i = 0; i < N; i++) {
        sums[i][0] = (uint8_t)i;
        sums[i][15] = (uint8_t)(255 - i);
        files[i] = (tess__data_file){ .bytes = (uint64_t)i, .n_sums = (uint64_t)i, .sums = sums };
        snprintf(files[i].name, sizeof files[i].name, "file-%d", i);
        params[i] = (tess__tensor){ .dtype = TESS_F32, .ndim = 1, .shape = { i } };
        snprintf(params[i].name, sizeof params[i].name, "param.%d", i);
        is_buffer[i] = i % 3 == 0;
    }
    m.files = files;
    m.params = params;
    m.is_buffer = is_buffer;
    assert_int_equal(tess__manifest_write(&m, "m", &text, &bytes), TESS_OK);
    assert_int_equal(tess__manifest_read("m", text, bytes, &got), TESS_OK);
    assert_int_equal(got.n_files, N);
    assert_int_equal(got.n_params, N);
    for (int i = 0; i < N; i++) {
        assert_string_equal(got.files[i].name, files[i].name);
        assert_int_equal(got.files[i].n_sums, i);
        if (i)
            assert_memory_equal(got.files[i].sums, sums, (size_t)i * TESS__SUM_BYTES);
        assert_string_equal(got.params[i].name, params[i].name);
        assert_int_equal(got.params[i].elems, i);
        assert_int_equal(got.is_buffer[i], is_buffer[i]);
    }
    tess__manifest_free(&got);
    free(text);
}

static void test_manifest__texts_come_back_whatever_they_hold(void **state) {
    (void)state;
    tess__manifest got, m = { .chunk_bytes = 1 };
    char *text;
    size_t bytes;
    snprintf(m.writer, sizeof m.writer, "\x01 \x1f\x20 \"\\ \t\n \x7f \xc3\xa9");
    assert_int_equal(tess__manifest_write(&m, "m", &text, &bytes), TESS_OK);
    assert_non_null(strstr(text, "\"\\u0001 \\u001f  \\\"\\\\ \\u0009\\u000a \x7f \xc3\xa9\""));
    assert_int_equal(tess__manifest_read("m", text, bytes, &got), TESS_OK);
    assert_string_equal(got.writer, m.writer);
    tess__manifest_free(&got);
    free(text);
}

static void test_manifest__a_torn_end_is_named_with_its_offset(void **state) {
    (void)state;
    tess__manifest m, whole = { .chunk_bytes = 1 };
    char *text, expected[96];
    size_t bytes;
    assert_int_equal(tess__manifest_write(&whole, "m", &text, &bytes), TESS_OK);
    for (size_t n = bytes - 60; n < bytes; n++) {
        assert_int_equal(tess__manifest_read("m", text, n, &m), TESS_E_DATA);
        snprintf(expected, sizeof expected, "m: offset %zu: it does not end with its checksum: it is torn", n);
        assert_string_equal(tess_last_error(), expected);
    }
    for (size_t at = bytes - 3; at < bytes; at++) { /* the brace and what is beside it */
        char kept = text[at];
        text[at] = 'x';
        assert_int_equal(tess__manifest_read("m", text, bytes, &m), TESS_E_DATA);
        text[at] = kept;
    }
    if (tess__sum_known()) {
        text[bytes - 4] ^= 1; /* the last digit of its checksum */
        assert_int_equal(tess__manifest_read("m", text, bytes, &m), TESS_E_DATA);
        text[bytes - 4] ^= 1;
        memset(text + bytes - 35, '0', 32); /* as a build without xxHash writes it */
        assert_int_equal(tess__manifest_read("m", text, bytes, &m), TESS_OK);
        tess__manifest_free(&m);
    }
    free(text);
}

static void test_manifest__only_a_later_version_of_this_format_is_newer(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int newer;
    } cases[] = { { "{\"format\":\"tessera-checkpoint\",\"version\":5,", 1 },
                  { "{\"format\":\"tessera-checkpoint\",\"version\":4,", 0 },
                  { "{\"format\":\"tessera-checkpoint\",\"version\":", 0 },
                  { "{\"format\":\"another\",\"version\":5,", 0 },
                  { "{\"version\":5,", 0 },
                  { "", 0 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(tess__manifest_is_newer(cases[i].text, strlen(cases[i].text)), cases[i].newer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_manifest__no_character_of_its_form_may_be_missing_or_another),
        cmocka_unit_test(test_manifest__every_member_has_its_name_and_its_place),
        cmocka_unit_test(test_manifest__values_are_held_to_their_bounds),
        cmocka_unit_test(test_manifest__a_chunk_has_at_most_a_gibibyte),
        cmocka_unit_test(test_manifest__a_lineage_has_at_most_64_runs),
        cmocka_unit_test(test_manifest__long_lists_come_back_whole),
        cmocka_unit_test(test_manifest__texts_come_back_whatever_they_hold),
        cmocka_unit_test(test_manifest__a_torn_end_is_named_with_its_offset),
        cmocka_unit_test(test_manifest__only_a_later_version_of_this_format_is_newer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

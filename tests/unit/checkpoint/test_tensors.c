/* SPDX-License-Identifier: BSD-3-Clause */
/* The header of a safetensors file: written to the byte, and read to its bounds. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/safetensors_dtype.h"

typedef struct {
    unsigned char bytes[8192];
    uint64_t n;
} file;

static tess_status read_file(void *user, void *into, uint64_t bytes, uint64_t offset) {
    const file *f = user;
    assert_true(bytes > 0 && offset <= f->n && bytes <= f->n - offset);
    memcpy(into, f->bytes + offset, bytes);
    return TESS_OK;
}

/* A file of this header and so much data, 0, 1, 2… */
static void make_file(file *f, const char *header, uint64_t data) {
    uint64_t length = strlen(header);
    for (int i = 0; i < 8; i++)
        f->bytes[i] = (unsigned char)(length >> (8 * i));
    memcpy(f->bytes + 8, header, length);
    for (uint64_t i = 0; i < data; i++)
        f->bytes[8 + length + i] = (unsigned char)i;
    f->n = 8 + length + data;
}

static tess_status open_file(file *f, int header_only, tess__safetensors **out) {
    return tess__safetensors_open_source(
        "f", &(tess__source){ .user = f, .read = read_file, .bytes = f->n, .header_only = header_only }, out);
}

static tess_status judge(const char *header, uint64_t data, int header_only) {
    static file f;
    tess__safetensors *s = NULL;
    make_file(&f, header, data);
    tess_status status = open_file(&f, header_only, &s);
    assert_int_equal(status == TESS_OK, s != NULL);
    tess__safetensors_close(s);
    return status;
}

static const char good[] = "{\"__metadata__\":{\"a\":\"b\"},"
                           "\"y\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[12,20]},"
                           "\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[12,12]},"
                           "\"x\":{\"data_offsets\":[0,12],\"dtype\":\"F32\",\"shape\":[3]},"
                           "\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[20,21]}}";

static void test_tensors__are_listed_by_their_place(void **state) {
    (void)state;
    static file f;
    tess__safetensors *s;
    uint64_t n;
    unsigned char got[16];
    make_file(&f, good, 21);
    assert_int_equal(open_file(&f, 0, &s), TESS_OK);
    const tess__tensor *t = tess__safetensors_list(s, &n);
    assert_int_equal(n, 4);
    static const char *const names[] = { "x", "e", "y", "s" };
    static const uint64_t offsets[] = { 0, 12, 12, 20 }, elems[] = { 3, 0, 4, 1 }, bytes[] = { 12, 0, 8, 1 };
    static const int32_t ndim[] = { 1, 1, 2, 0 };
    for (int i = 0; i < 4; i++) {
        assert_string_equal(t[i].name, names[i]);
        assert_int_equal(t[i].offset, 8 + strlen(good) + offsets[i]);
        assert_int_equal(t[i].elems, elems[i]);
        assert_int_equal(t[i].bytes, bytes[i]);
        assert_int_equal(t[i].ndim, ndim[i]);
    }
    assert_true(t[2].shape[0] == 2 && t[2].shape[1] == 2 && t[2].dtype == TESS_BF16);
    assert_int_equal(tess__safetensors_read_raw(s, &t[2], 1, 3, got), TESS_OK);
    assert_memory_equal(got, "\x0e\x0f\x10\x11\x12\x13", 6);
    assert_int_equal(tess__safetensors_read_raw(s, &t[2], 4, 0, got), TESS_OK);
    assert_int_equal(tess__safetensors_read_raw(s, &t[2], 5, 0, got), TESS_E_DATA);
    assert_int_equal(tess__safetensors_read_raw(s, &t[2], 1, 4, got), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "f: tensor 'y' has 4 elements, expected at least 5");
    tess__safetensors_close(s);
    tess__safetensors_close(NULL);
}

static void test_tensors__no_character_of_a_header_may_be_missing(void **state) {
    (void)state;
    char bad[sizeof good];
    assert_int_equal(judge(good, 21, 0), TESS_OK);
    for (size_t i = 0; good[i]; i++) {
        if (!strchr("{}[]:,\"", good[i]) || strncmp(good + i - (i > 0), "2,2", 3) == 0)
            continue;
        snprintf(bad, sizeof bad, "%.*s%s", (int)i, good, good + i + 1);
        if (judge(bad, 21, 0) != TESS_E_DATA)
            fail_msg("without '%c' at %zu: %s", good[i], i, good + i);
        snprintf(bad, sizeof bad, "%s", good);
        bad[i] = ';';
        if (judge(bad, 21, 0) != TESS_E_DATA)
            fail_msg("';' for '%c' at %zu: %s", good[i], i, good + i);
    }
}

#define ONE(dtype, shape, begin, end)                                                                                  \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #begin "," #end "]}}"

static void test_tensors__a_header_is_held_to_its_bounds(void **state) {
    (void)state;
    static const struct {
        const char *header;
        uint64_t data;
        int only, reads;
    } cases[] = {
        { "{}", 0, 0, 1 },
        { "{}", 1, 0, 0 }, /* which belongs to nothing */
        { "{} ", 0, 0, 1 },
        { "{}x", 0, 0, 0 },
        { "", 0, 0, 0 },
        { ONE("F32", "2", 0, 8), 8, 0, 1 },
        { ONE("F32", "2", 0, 8), 7, 0, 0 },
        { ONE("F32", "2", 0, 8), 9, 0, 0 },
        { ONE("F32", "2", 0, 8), 0, 1, 1 }, /* its data need not be there */
        { ONE("F32", "2", 0, 8), 8, 1, 1 },
        { ONE("F32", "2", 0, 8), 9, 1, 0 }, /* but no more than its data */
        { ONE("F32", "2", 0, 7), 8, 0, 0 },
        { ONE("F32", "2", 0, 9), 9, 0, 0 },
        { ONE("F32", "2", 1, 9), 9, 0, 0 }, /* a gap */
        { ONE("F32", "2", 8, 0), 8, 0, 0 },
        { ONE("F33", "2", 0, 8), 8, 0, 0 },
        { ONE("F32", "1,1,1,1,1,1,1,2", 0, 8), 8, 0, 1 },
        { ONE("F32", "1,1,1,1,1,1,1,1,2", 0, 8), 8, 0, 0 },
        { ONE("U8", "1152921504606846975", 0, 1152921504606846975), 0, 1, 1 }, /* 2^60 - 1 */
        { ONE("U8", "1152921504606846976", 0, 1152921504606846976), 0, 1, 0 },
        { ONE("F32", "4294967296,4294967296", 0, 0), 0, 0, 0 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 0, 0, 0 },
        { "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, 0, 0 },
        { "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 0, 0 },
        { "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 0, 0 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1, 0, 0 },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
          "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
          2, 0, 0 }, /* twice */
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
          "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
          3, 0, 0 }, /* an overlap */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tess_status expected = cases[i].reads ? TESS_OK : TESS_E_DATA;
        if (judge(cases[i].header, cases[i].data, cases[i].only) != expected)
            fail_msg("case %zu: %s: %s", i, cases[i].header, tess_last_error());
    }
    assert_int_equal(judge(ONE("U8", "1152921504606846976", 0, 0), 0, 0), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "expected a shape of fewer than 2^60 elements"));
    assert_int_equal(judge(ONE("U8", "1,1,1,1,1,1,1,1,1", 0, 0), 0, 0), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "expected at most 8 dimensions"));
    assert_int_equal(judge(ONE("F32", "2", 0, 8), 9, 0), TESS_E_DATA);
    char text[96];
    snprintf(text, sizeof text, "f: offset %zu: 1 bytes belong to no tensor", 8 + strlen(ONE("F32", "2", 0, 8)) + 8);
    assert_string_equal(tess_last_error(), text);
}

static void test_tensors__a_length_beyond_the_file_is_refused(void **state) {
    (void)state;
    static file f;
    tess__safetensors *s;
    for (uint64_t n = 0; n < 8; n++) {
        make_file(&f, "{}", 0);
        f.n = n;
        assert_int_equal(open_file(&f, 0, &s), TESS_E_DATA);
        assert_non_null(strstr(tess_last_error(), "expected at least 8 with the header's length"));
    }
    make_file(&f, "{}", 0);
    f.bytes[0] = 3;
    assert_int_equal(open_file(&f, 0, &s), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "f: offset 0: a header of 3 bytes, expected at most 2");
    f.bytes[7] = 1;
    assert_int_equal(open_file(&f, 0, &s), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "f: offset 0: a header of 72057594037927939 bytes, expected at most 2");
}

static void test_tensors__large_alignment_comes_first_then_the_name(void **state) {
    (void)state;
    tess__tensor t[] = { { .name = "b", .dtype = TESS_BF16, .ndim = 1, .shape = { 3 } },
                         { .name = "z", .dtype = TESS_F32, .ndim = 2, .shape = { 2, 3 } },
                         { .name = "d", .dtype = TESS_F64 },
                         { .name = "a", .dtype = TESS_F32, .ndim = 1, .shape = { 0 } },
                         { .name = "c", .dtype = TESS_U8, .ndim = 1, .shape = { 5 } } };
    assert_int_equal(tess__safetensors_arrange(t, 5), 8 + 0 + 24 + 6 + 5);
    static const char *const names[] = { "d", "a", "z", "b", "c" };
    static const uint64_t offsets[] = { 0, 8, 8, 32, 38 }, elems[] = { 1, 0, 6, 3, 5 };
    for (int i = 0; i < 5; i++) {
        assert_string_equal(t[i].name, names[i]);
        assert_int_equal(t[i].offset, offsets[i]);
        assert_int_equal(t[i].elems, elems[i]);
    }
    assert_int_equal(tess__safetensors_arrange(NULL, 0), 0);
    static const char expected[] =
        "{\"__metadata__\":{\"m\":\"n\"},\"d\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":"
        "[0,8]},\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]},\"z\":{\"dtype\":"
        "\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},\"b\":{\"dtype\":\"BF16\",\"shape\":"
        "[3],\"data_offsets\":[32,38]},\"c\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":"
        "[38,43]}}";
    static const uint64_t aligns[] = { 1, 8, 4096 };
    for (int i = 0; i < 3; i++) {
        char *text;
        size_t bytes;
        assert_int_equal(tess__safetensors_header("f", t, 5, "\"m\":\"n\"", aligns[i], &text, &bytes), TESS_OK);
        assert_int_equal(bytes, (8 + strlen(expected) + aligns[i] - 1) / aligns[i] * aligns[i]);
        uint64_t length = 0;
        for (int k = 0; k < 8; k++)
            length |= (uint64_t)(unsigned char)text[k] << (8 * k);
        assert_int_equal(length, bytes - 8);
        assert_memory_equal(text + 8, expected, strlen(expected));
        for (size_t k = 8 + strlen(expected); k < bytes; k++)
            assert_int_equal(text[k], ' ');
        free(text);
    }
}

static void test_tensors__every_dtype_has_its_size_and_word(void **state) {
    (void)state;
    static const struct {
        uint32_t dtype, bytes;
        const char *word;
    } known[] = { { TESS_F32, 4, "F32" },       { TESS_BF16, 2, "BF16" }, { TESS_F16, 2, "F16" },
                  { TESS_F64, 8, "F64" },       { TESS_U8, 1, "U8" },     { TESS_I8, 1, "I8" },
                  { TESS_I32, 4, "I32" },       { TESS_I64, 8, "I64" },   { TESS_F8E4M3, 1, "F8_E4M3" },
                  { TESS_F8E5M2, 1, "F8_E5M2" } };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        assert_int_equal(tess__tensor_dtype_bytes(known[i].dtype), known[i].bytes);
        assert_string_equal(tess__dtype_word(known[i].dtype), known[i].word);
        assert_int_equal(tess__dtype_of_word(known[i].word), known[i].dtype);
    }
    assert_int_equal(tess__dtype_of_word("BOOL"), TESS_U8);
    assert_int_equal(tess__dtype_of_word("U32"), TESS_I32);
    assert_int_equal(tess__dtype_of_word("U64"), TESS_I64);
    assert_int_equal(tess__dtype_of_word("F3"), 0);
    assert_int_equal(tess__tensor_dtype_bytes(99), 0);
    assert_null(tess__dtype_word(99));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors__are_listed_by_their_place),
        cmocka_unit_test(test_tensors__no_character_of_a_header_may_be_missing),
        cmocka_unit_test(test_tensors__a_header_is_held_to_its_bounds),
        cmocka_unit_test(test_tensors__a_length_beyond_the_file_is_refused),
        cmocka_unit_test(test_tensors__large_alignment_comes_first_then_the_name),
        cmocka_unit_test(test_tensors__every_dtype_has_its_size_and_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

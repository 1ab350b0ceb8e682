/* SPDX-License-Identifier: BSD-3-Clause */
/* The file from which `tessera plan -- PROGRAM` plans: every declaration and every option in force, a file for each
 * engine; fields come back as they were written. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/option_fields.h"
#include "core/engine/state.h"
#include "core/readers/declaration_file.h"
#include "tests/unit/scratch_dir.h"

static scratch_dir dir;

static int make_dir(void **state) {
    (void)state;
    return scratch_dir_make(&dir);
}

static int remove_dir(void **state) {
    (void)state;
    scratch_dir_remove(&dir);
    return 0;
}

static tess_status nothing(void *user, const tess_block_call *c) {
    (void)user, (void)c;
    return TESS_OK;
}

/* A scope, a block with the scope's weight tied, and memory of its own. */
static tess *declare(const tess_options *o) {
    static const int64_t shape[] = { 3, 5 };
    tess_param_options p = { .struct_size = sizeof p, .dtype = TESS_F32, .ndim = 2, .shape = shape };
    tess_block_options b = { .struct_size = sizeof b, .name = "b", .output_bytes = 64, .saved_bytes = 128 };
    tess *t = NULL;
    tess_scope scope;
    void *at;
    assert_int_equal(tess_open(o, &t), TESS_OK);
    assert_int_equal(tess_scope_add(t, "a", 0, &scope), TESS_OK);
    p.name = "a.weight";
    p.optimizer_group = 1;
    assert_int_equal(tess_param_add(t, &p, NULL), TESS_OK);
    p.name = "a.frozen bias";
    p.flags = TESS_FROZEN;
    assert_int_equal(tess_param_add(t, &p, NULL), TESS_OK);
    b.forward = b.backward = nothing;
    b.forward_scratch_bytes = 32;
    b.forward_work = 7;
    assert_int_equal(tess_block_add(t, &b, &scope), TESS_OK);
    assert_int_equal(tess_param_tie(t, "b.tied", "a.weight"), TESS_OK);
    assert_int_equal(tess_alloc(t, "own", 4096, &at), TESS_OK);
    return t;
}

static void read_file(const char *path, char *text, size_t n) {
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, n - 1, f)] = 0;
    fclose(f);
}

static void test_declaration_file__holds_every_declaration_and_option_in_force(void **state) {
    (void)state;
    char path[256], second[272], text[4096], want[4096];
    const tess_setting own = { "timeout", "17" };
    tess_options o = { .struct_size = sizeof o, .optimizer = "sgd", .input_bytes = 48, .plan_only = 1, .ranks = 2 };
    o.settings = &own;
    o.n_settings = 1;
    o.prefetch = "0";
    o.log = "warning"; /* each process has its own */
    tess *t = declare(&o);
    const tess__plan *p = &t->plan;
    const tess__given *before = tess__given_use(&t->settings.given);
    snprintf(path, sizeof path, "%s/plan", dir.path);
    snprintf(second, sizeof second, "%s.2", path);
    assert_int_equal(tess__describe(p, &t->settings.given, &o, 1, path), TESS_E_SYSTEM); /* made by who asks */
    assert_non_null(strstr(tess_last_error(), "plan: No such file or directory"));
    fclose(fopen(path, "w"));
    snprintf(
        want, sizeof want,
        "tessera-plan 3\noption optimizer 3 sgd\noption prefetch 1 0\noption timeout 2 17\nopen 0 0 48 0 0 0 0 0 0\n"
        "engines 1\nscope 1 a\nblock 0 64 128 32 0 0 0 0 4619567317775286272 0 1 b\n" /* 7 as a double's bits */
        "param %d 0 0 2 1 3 5 8 a.weight\nparam %d 1 0 2 1 3 5 13 a.frozen bias\ntie 0 6 b.tied\nalloc 4096\nend\n",
        TESS_F32, TESS_F32);
    tess__describe_expect(2);
    tess__describe_expect(-1);
    assert_int_equal(tess__describe(p, &t->settings.given, &o, 1, path), TESS_OK);
    read_file(path, text, sizeof text);
    assert_string_equal(text, want);
    assert_int_not_equal(access(second, F_OK), 0);
    fclose(fopen(path, "w"));
    assert_int_equal(tess__describe(p, &t->settings.given, &o, 0, path), TESS_OK); /* the first, in that one's place */
    assert_int_not_equal(access(second, F_OK), 0);
    assert_int_equal(tess__describe(p, &t->settings.given, &o, 0, path), TESS_OK);
    read_file(second, text, sizeof text);
    assert_string_equal(text, want);
    fclose(fopen(path, "w"));
    assert_int_equal(tess__describe(p, &t->settings.given, &o, 1, path), TESS_OK); /* there are others now */
    read_file(path, text, sizeof text);
    assert_string_equal(text, "");
    unlink(path);
    assert_int_equal(symlink(second, path), 0);
    tess__given_use(before);
    tess_close(t);
}

/* tess_shard reads the engine's own settings, and leaves its thread with those of the caller. */
static void test_declaration_file__is_where_the_engine_s_own_setting_says(void **state) {
    (void)state;
    char path[256], third[272], text[4096];
    const tess_setting own[] = { { "plan", "2" }, { "plan-file", path } };
    const tess__given callers = { 0 };
    tess_options o = { .struct_size = sizeof o, .settings = own, .n_settings = 2 };
    snprintf(path, sizeof path, "%s/own", dir.path);
    snprintf(third, sizeof third, "%s.3", path); /* behind the two of the test above */
    tess__given_use(&callers);
    tess__describe_expect(1);
    tess *t = declare(&o);
    assert_int_equal(tess_shard(t, NULL, NULL), TESS_E_PLANNED);
    assert_ptr_equal(tess__given_use(NULL), &callers);
    read_file(third, text, sizeof text);
    assert_memory_equal(text, "tessera-plan 3\n", 15);
    unlink(third);
    tess_close(t);
}

/* ---- fields ---- */

static int is_written(const tess__field *f) {
    return !f->key && f->type == TESS__FIELD_NUMBER;
}

static void fill(unsigned char *of, const tess__field *f, uint64_t seed) {
    for (; f->name; f++)
        for (uint32_t i = 0; is_written(f) && i < f->bytes; i++)
            of[f->offset + i] = (unsigned char)((seed += 0x9e3779b97f4a7c15ull) >> 40);
}

static FILE *file_of(const char *text) {
    FILE *f = tmpfile();
    assert_non_null(f);
    fputs(text, f);
    rewind(f);
    return f;
}

/* Every bit of every number; what is no number, or is one too many bits long, is refused. */
static void test_fields__come_back_as_they_were_written(void **state) {
    (void)state;
    static const tess__field *const tables[] = { tess__fields_of_options, tess__fields_of_param,
                                                 tess__fields_of_block };
    for (int k = 0; k < 3; k++) {
        static union {
            tess_options o;
            tess_param_options p;
            tess_block_options b;
            unsigned char bytes[sizeof(tess_options)];
        } mine, got;
        memset(&mine, 0, sizeof mine);
        memset(&got, 0, sizeof got);
        fill(mine.bytes, tables[k], (uint64_t)k);
        FILE *f = tmpfile();
        assert_non_null(f);
        tess__fields_write(f, tables[k], &mine);
        rewind(f);
        assert_true(tess__fields_read(f, tables[k], &got));
        assert_memory_equal(&mine, &got, sizeof mine);
        assert_int_equal(fgetc(f), EOF);
        fclose(f);
        static const char *const bad[] = { "", " 1", " x", " 99999999999999999999 " };
        for (int i = 0; i < 4; i++) {
            f = file_of(bad[i]);
            assert_false(tess__fields_read(f, tables[k], &got) && i < 3);
            fclose(f);
        }
    }
    tess_param_options p;
    const char *const edges[] = { " 4294967295 0 0 0 0", " 4294967296 0 0 0 0" };
    for (int i = 0; i < 2; i++) {
        FILE *f = file_of(edges[i]);
        assert_int_equal(tess__fields_read(f, tess__fields_of_param, &p), !i);
        fclose(f);
    }
    assert_int_equal(p.dtype, UINT32_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_declaration_file__holds_every_declaration_and_option_in_force),
        cmocka_unit_test(test_declaration_file__is_where_the_engine_s_own_setting_says),
        cmocka_unit_test(test_fields__come_back_as_they_were_written),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* A file of whole tensors, as another program writes it: its values are taken, whatever the width of their floats. A
 * file that does not fit the model is refused with what differs. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <tessera/inspect.h>

#include "core/checkpoint/safetensors.h"
#include "tests/unit/scratch_dir.h"

enum { ROWS = 257, COLS = 300 /* more elements than are converted at once */ };

static scratch_dir dir;

static int make_dir(void **state) {
    (void)state;
    return scratch_dir_make(&dir);
}

static int remove_dir(void **state) {
    (void)state;
    return scratch_tree_remove(&dir);
}

/* m.w and m.b, n.tied which is m.w, a buffer m.mean, and m.count, an integer in the file. */
static tess *open_model(void) {
    const int64_t matrix[] = { ROWS, COLS }, row[] = { COLS };
    tess_param_options w = { .struct_size = sizeof w, .dtype = TESS_F32, .name = "m.w", .shape = matrix, .ndim = 2 };
    tess_param_options b = { .struct_size = sizeof b, .dtype = TESS_F32, .name = "m.b", .shape = row, .ndim = 1 };
    tess_param_options mean = b, count = b;
    mean.name = "m.mean", mean.flags = count.flags = TESS_BUFFER;
    count.name = "m.count", count.dtype = TESS_F64, count.shape = NULL, count.ndim = 0;
    tess *t = NULL;
    assert_int_equal(tess_open(NULL, &t), TESS_OK);
    assert_int_equal(tess_scope_add(t, "m", 0, NULL), TESS_OK);
    assert_int_equal(tess_scope_add(t, "n", 0, NULL), TESS_OK);
    const tess_param_options *all[] = { &w, &b, &mean, &count };
    for (int i = 0; i < 4; i++)
        assert_int_equal(tess_param_add(t, all[i], NULL), TESS_OK);
    assert_int_equal(tess_param_tie(t, "n.tied", "m.w"), TESS_OK);
    assert_int_equal(tess_shard(t, NULL, NULL), TESS_OK);
    return t;
}

/* ---- the file ---- */
static const struct {
    const char *name;
    uint32_t dtype;
    int32_t ndim;
    int64_t rows, cols;
} fits[] = { { "m.w", TESS_BF16, 2, ROWS, COLS },
             { "m.b", TESS_F64, 1, COLS, 1 },
             { "m.mean", TESS_F32, 1, COLS, 1 },
             { "m.count", TESS_I64, 0, 1, 1 },
             { "mask", TESS_U8, 1, 9, 1 } };
enum { N = sizeof fits / sizeof *fits };

static void file_of(tess__tensor *x) {
    memset(x, 0, N * sizeof *x);
    for (int i = 0; i < N; i++) {
        snprintf(x[i].name, sizeof x[i].name, "%s", fits[i].name);
        x[i].dtype = fits[i].dtype, x[i].ndim = fits[i].ndim;
        x[i].shape[0] = fits[i].rows, x[i].shape[1] = fits[i].cols;
    }
}

/* Small whole numbers, which each dtype has exactly. */
static int value_of(uint64_t i) {
    return (int)(i % 101) - 50;
}

static void put(FILE *f, uint32_t dtype, int v) {
    float single = (float)v;
    double twice = v;
    int64_t whole = v;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    uint16_t half = (uint16_t)(bits >> 16);
    const void *of[] = { &whole, &half, &single, &twice };
    int which = dtype == TESS_BF16 ? 1 : dtype == TESS_F32 ? 2 : dtype == TESS_F64 ? 3 : 0;
    assert_int_equal(fwrite(of[which], tess__tensor_dtype_bytes(dtype), 1, f), 1);
}

static const char *write_file(tess__tensor *x, uint64_t n) {
    const char *path = scratch_path(&dir, "model.safetensors");
    char *header;
    size_t bytes;
    tess__safetensors_arrange(x, n);
    assert_int_equal(tess__safetensors_header(path, x, n, "", 8, &header, &bytes), TESS_OK);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(header, 1, bytes, f), bytes);
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < x[i].elems; k++)
            put(f, x[i].dtype, value_of(k + x[i].elems));
    assert_int_equal(fclose(f), 0);
    free(header);
    return path;
}

static tess_status load(tess *t, const char *path, uint32_t flags, tess_checkpoint_info *info) {
    static const char *const others[] = { "mask", NULL };
    const tess_checkpoint_load_options o = { .struct_size = sizeof o, .flags = flags, .path = path, .others = others };
    return tess_checkpoint_load(t, &o, info);
}

static tess_status compare(void *user, const tess_range *r, void *data) {
    uint64_t all = strcmp(r->name, "m.w") == 0 ? ROWS * COLS : strcmp(r->name, "m.count") == 0 ? 1 : COLS;
    int is_double = all == 1;
    for (uint64_t i = 0; i < r->elems; i++) {
        double got = is_double ? ((double *)data)[i] : (double)((float *)data)[i];
        assert_true(got == value_of(r->first_elem + i + all));
    }
    *(uint64_t *)user += r->elems;
    return TESS_OK;
}

static void test_load_tensors__values_are_taken_by_their_names(void **state) {
    (void)state;
    tess__tensor x[N];
    tess_checkpoint_info info = { .struct_size = sizeof info };
    uint64_t seen = 0;
    for (int by_alias = 0; by_alias < 2; by_alias++) {
        tess *t = open_model();
        file_of(x);
        if (by_alias)
            snprintf(x[0].name, sizeof x[0].name, "n.tied");
        assert_int_equal(load(t, write_file(x, N), 0, &info), TESS_OK);
        assert_true(info.step == 0 && info.ranks == 1);
        assert_int_equal(tess_each_owned(t, TESS_OF_PARAM, compare, &seen), TESS_OK);
        assert_int_equal(seen, (uint64_t)(1 + by_alias) * (ROWS * COLS + 2 * COLS + 1));
        assert_int_equal(tess_close(t), TESS_OK);
    }
}

static void test_load_tensors__a_file_that_does_not_fit_is_refused_with_why(void **state) {
    (void)state;
    static const char *const why[] = { "parameter 'm.w' is not in it",
                                       "tensor 'm.other' is no parameter and no buffer of this model",
                                       "tensor 'm.w' has the shape [300, 257], expected [257, 300]",
                                       "tensor 'm.w' has the shape [77100], expected [257, 300]",
                                       "tensor 'm.w' is i64, expected f32",
                                       "tensor 'm.count' is i32, expected f64",
                                       "none.safetensors: No such file",
                                       "has the shape [0, 9223372036854775807, 9223372036854775807, "
                                       "9223372036854775807, 9223372036854775807, 9223372036854775807, "
                                       "9223372036854775807, 9223372036854775807], expected [257, 300]" };
    for (int i = 0; i < (int)(sizeof why / sizeof *why); i++) {
        tess__tensor x[N];
        tess *t = open_model();
        file_of(x);
        if (i == 1)
            snprintf(x[0].name, sizeof x[0].name, "m.other");
        if (i == 2)
            x[0].shape[0] = COLS, x[0].shape[1] = ROWS;
        if (i == 3)
            x[0].ndim = 1, x[0].shape[0] *= COLS;
        if (i == 4)
            x[0].dtype = TESS_I64;
        if (i == 5)
            x[3].dtype = TESS_I32;
        for (int d = 0; i == 7 && d < TESS__TENSOR_DIMS; d++) /* the longest text of all */
            x[0].ndim = d + 1, x[0].shape[d] = d ? INT64_MAX : 0;
        if (i == 0)
            x[0] = x[N - 1];
        const char *path = i == 6 ? scratch_path(&dir, "none.safetensors") : write_file(x, i == 0 ? N - 1 : N);
        assert_int_equal(load(t, path, TESS_CHECKPOINT_IF_ANY, NULL), TESS_E_DATA);
        if (!strstr(tess_last_error(), why[i]))
            fail_msg("expected '%s', said '%s'", why[i], tess_last_error());
        assert_int_equal(tess_close(t), TESS_E_DATA);
    }
}

/* A file without a byte is no safetensors file, and not the disk's failure. */
static void test_load_tensors__an_empty_file_is_refused(void **state) {
    (void)state;
    const char *path = scratch_path(&dir, "empty.safetensors");
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    tess *t = open_model();
    assert_int_equal(load(t, path, 0, NULL), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "empty.safetensors: "));
    assert_null(strstr(tess_last_error(), "Success"));
    assert_int_equal(tess_close(t), TESS_E_DATA);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_tensors__values_are_taken_by_their_names),
        cmocka_unit_test(test_load_tensors__a_file_that_does_not_fit_is_refused_with_why),
        cmocka_unit_test(test_load_tensors__an_empty_file_is_refused),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}

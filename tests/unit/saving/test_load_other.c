/* SPDX-License-Identifier: BSD-3-Clause */
/* A checkpoint in a program that is not quite the one that saved it: of another model it is refused with what differs,
 * of other dtypes, frozen parameters or microbatches it is taken. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tessera/inspect.h>

#include "core/engine/state.h"
#include "tests/unit/scratch_dir.h"

enum { LARGE = 70001 /* elements: more than are converted at once */ };

typedef struct { /* a model of a and b, and the run */
    const char *name, *optimizer;
    int64_t rows, cols;
    int32_t ndim, more, microbatches;
    uint32_t dtype, flags; /* of b */
    float momentum;
} form;

static const form first = {
    .name = "m.extra", .optimizer = "adamw", .rows = 5, .cols = 3, .ndim = 2, .dtype = TESS_F32
};
static scratch_dir dir;

static int make_dir(void **state) {
    (void)state;
    return scratch_dir_make(&dir);
}

static int remove_dir(void **state) {
    (void)state;
    return scratch_tree_remove(&dir);
}

static double value_of(const tess_range *r, uint64_t i) {
    return 1.0 / (double)(3 + r->first_elem + i) + r->param;
}

static const form *filled; /* the form of the model that is filled or compared */
static tess_status fill(void *user, const tess_range *r, void *data) {
    for (uint64_t i = 0; i < r->elems; i++) {
        double v = user ? -1 : value_of(r, i);
        if (r->param == 1 && filled->dtype == TESS_F64)
            ((double *)data)[i] = v;
        else
            ((float *)data)[i] = (float)v;
    }
    return TESS_OK;
}

static void add(tess *t, const char *name, const form *f, int is_b) {
    const int64_t a[] = { 7 }, b[] = { f->rows, f->cols };
    tess_param_options p = { .struct_size = sizeof p, .dtype = TESS_F32, .ndim = 1, .name = name, .shape = a };
    if (is_b) {
        p.dtype = f->dtype;
        p.flags = f->flags;
        p.ndim = f->ndim;
        p.shape = b;
    }
    assert_int_equal(tess_param_add(t, &p, NULL), TESS_OK);
}

static const tess_options *given; /* null: none beside the form's */
static tess *open_form(const form *f, int blank) {
    tess_options o = given ? *given : (tess_options){ .struct_size = sizeof o };
    tess *t = NULL;
    o.optimizer = f->optimizer;
    o.momentum = f->momentum;
    o.microbatches = f->microbatches;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(tess_scope_add(t, "m", 0, NULL), TESS_OK);
    add(t, "m.weight", f, 0);
    add(t, f->name, f, 1);
    for (int i = 0; i < f->more; i++)
        add(t, "m.more", f, 0);
    filled = f;
    assert_int_equal(tess_shard(t, fill, blank ? t : NULL), TESS_OK);
    return t;
}

static void save(const form *f) {
    const tess_checkpoint_options to = { .struct_size = sizeof to, .dir = dir.path, .on_newer = "aside" };
    tess *t = open_form(f, 0);
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    assert_int_equal(tess_checkpoint_wait(t, NULL), TESS_OK);
    assert_int_equal(tess_close(t), TESS_OK);
}

static int newest; /* the directory is loaded, not the first step */

/* What the load says goes to `said`: its error, or what is on standard error. */
static tess_status load(tess *t, uint32_t flags, char *said, size_t n) {
    char path[128];
    snprintf(path, sizeof path, "%s%s", dir.path, newest ? "" : "/step-000000");
    const tess_checkpoint_load_options from = { .struct_size = sizeof from, .path = path, .flags = flags };
    int kept = dup(STDERR_FILENO);
    FILE *f = tmpfile();
    assert_non_null(f);
    dup2(fileno(f), STDERR_FILENO);
    tess_status s = tess_checkpoint_load(t, &from, NULL);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(f);
    said[fread(said, 1, n - 1, f)] = 0;
    fclose(f);
    if (s)
        snprintf(said, n, "%s", tess_last_error());
    return s;
}

static void refuses(const form *f, const char *why) {
    char said[1024];
    tess *t = open_form(f, 1);
    if (load(t, 0, said, sizeof said) != TESS_E_DATA || !strstr(said, why))
        fail_msg("expected '%s', said '%s'", why, said);
    assert_int_equal(tess_close(t), TESS_E_DATA);
}

static form with(form f, int what) {
    switch (what) {
    case 0: f.name = "m.other"; break;
    case 1: f.flags = TESS_BUFFER; break;
    case 2: f.rows = 3, f.cols = 5; break;
    case 3: f.ndim = 1, f.rows = 15; break;
    case 4: f.rows = 6; break;
    case 5: f.more = 1; break;
    case 6: f.optimizer = "sgd"; break;
    default: f.cols = 4;
    }
    return f;
}

static void test_load_other__another_model_is_refused_with_what_differs(void **state) {
    (void)state;
    static const char *const why[] = { "another model: this one has no parameter 'm.extra' of its own",
                                       "another model: this one has no parameter 'm.extra' of its own",
                                       "another model: 'm.extra' has 15 elements there and 15 here, or another shape",
                                       "another model: 'm.extra' has 15 elements there and 15 here, or another shape",
                                       "another model: 'm.extra' has 15 elements there and 18 here",
                                       "another model: it has 2 parameters, this one 3",
                                       "saved with optimizer adamw, this run has sgd",
                                       "another model: 'm.extra' has 15 elements there and 20 here" };
    save(&first);
    for (int i = 0; i < (int)(sizeof why / sizeof *why); i++) {
        form f = with(first, i);
        refuses(&f, why[i]);
    }
    form buffer = with(first, 1), plain = first;
    save(&buffer);
    refuses(&plain, "another model: this one has no buffer 'm.extra' of its own");
    form momentum = with(first, 6), none = momentum;
    momentum.momentum = 0.5f;
    save(&momentum);
    refuses(&none, "saved with 1 optimizer states, this run has 0: another momentum?");
}

static const char *differs;
static tess_status compare(void *user, const tess_range *r, void *data) {
    const form *stored = user;
    for (uint64_t i = 0; i < r->elems; i++) {
        double v = value_of(r, i);
        float narrow = (float)v;
        if (r->param == 1 && stored->dtype == TESS_BF16) {
            uint32_t bits;
            memcpy(&bits, &narrow, sizeof bits);
            bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u; /* to nearest, ties to even */
            memcpy(&narrow, &bits, sizeof bits);
        }
        if (r->param != 1 || stored->dtype != TESS_F64)
            v = (double)narrow;
        if (r->param == 1 && filled->dtype == TESS_F64 ? ((double *)data)[i] != v : ((float *)data)[i] != (float)v)
            differs = r->name;
    }
    return TESS_OK;
}

static void takes(const form *stored, const form *f, uint32_t flags, const char *says) {
    char said[1024];
    tess *t = open_form(f, 1);
    if (load(t, flags, said, sizeof said))
        fail_msg("%s", said);
    if (says ? !strstr(said, says) : *said)
        fail_msg("said '%s', expected '%s'", said, says ? says : "");
    differs = NULL;
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM, compare, (void *)stored), TESS_OK);
    assert_null(differs);
    assert_int_equal(tess_close(t), TESS_OK);
}

/* Piece by piece through fp32, or fp64 where that is the one or the other. */
static void test_load_other__other_dtypes_are_converted(void **state) {
    (void)state;
    static const uint32_t dtypes[] = { TESS_F32, TESS_F64, TESS_BF16 };
    for (int i = 0; i < 3; i++) {
        form stored = first;
        stored.rows = LARGE;
        stored.cols = 1;
        stored.flags = TESS_FROZEN; /* so that b may be any of them */
        stored.dtype = dtypes[i];
        save(&stored);
        for (int k = 0; k < 2; k++) {
            form f = stored;
            f.dtype = dtypes[k];
            takes(&stored, &f, 0, NULL);
        }
    }
    form bytes = first;
    bytes.flags = TESS_FROZEN;
    save(&bytes);
    bytes.dtype = TESS_U8;
    filled = &bytes;
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw" };
    tess *t = NULL;
    char said[1024];
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(tess_scope_add(t, "m", 0, NULL), TESS_OK);
    add(t, "m.weight", &bytes, 0);
    add(t, bytes.name, &bytes, 1);
    assert_int_equal(tess_shard(t, NULL, NULL), TESS_OK);
    assert_int_equal(load(t, 0, said, sizeof said), TESS_E_DATA);
    assert_non_null(strstr(said, "tensor 'param/m.extra"));
    assert_non_null(strstr(said, "is f32, this run has u8"));
    tess_close(t);
}

static void test_load_other__what_is_frozen_since_needs_no_states(void **state) {
    (void)state;
    form frozen = first;
    frozen.flags = TESS_FROZEN;
    save(&first);
    takes(&first, &frozen, 0, NULL);
    save(&frozen);
    refuses(&first, "optimizer state 1 of 2 of 'm.extra' has 0 elements for this rank, expected 15");
    takes(&frozen, &first, TESS_CHECKPOINT_PARAMS, NULL);
    form sgd = with(first, 6); /* for parameters alone neither optimizer nor states count */
    takes(&frozen, &sgd, TESS_CHECKPOINT_PARAMS, NULL);
}

static void test_load_other__other_microbatches_are_said(void **state) {
    (void)state;
    form two = first;
    save(&first);
    two.microbatches = 2;
    takes(&first, &two, 0,
          ": its steps had 1 microbatches (ranks: 1), those of this run have 2 (ranks: 1): set "
          "tess_options.microbatches to 1, or TESSERA_ACCUM to 1; other bits from here on\n");
    takes(&first, &two, TESS_CHECKPOINT_PARAMS, NULL);
}

/* Bytes that the program has given at the start are in every checkpoint, and come back by a load. */
static void test_load_other__common_bytes_of_the_program_come_back(void **state) {
    (void)state;
    char mine[7] = "seven 7", other[7] = "", said[1024], path[128];
    tess_options o = { .struct_size = sizeof o, .common = mine, .common_bytes = sizeof mine };
    tess *t = NULL;
    given = &o;
    save(&first);
    memset(mine, 0, sizeof mine);
    t = open_form(&first, 1);
    assert_int_equal(load(t, TESS_CHECKPOINT_PARAMS, said, sizeof said), TESS_OK);
    assert_int_equal(mine[0], 0); /* all but parameters begins anew */
    snprintf(path, sizeof path, "%s/step-000000", dir.path);
    tess_checkpoint_load_options from = {
        .struct_size = sizeof from, .path = path, .common = other, .common_bytes = 5
    };
    tess_checkpoint_info info = { .struct_size = sizeof info };
    assert_int_equal(tess_checkpoint_load(t, &from, &info), TESS_OK);
    assert_int_equal(info.common_bytes, 7);
    assert_memory_equal(other, "seven\0", 7);
    assert_int_equal(mine[0], 0);
    assert_int_equal(load(t, 0, said, sizeof said), TESS_OK);
    assert_memory_equal(mine, "seven 7", 7);
    assert_int_equal(tess_close(t), TESS_OK);
    given = NULL;
}

/* A checkpoint that is damaged is passed over, which is said with what is wrong. */
static void test_load_other__a_damaged_one_is_passed_over_and_named(void **state) {
    (void)state;
    char said[1024], path[300], want[400];
    const tess_checkpoint_options to = { .struct_size = sizeof to, .dir = dir.path, .on_newer = "aside" };
    tess *t = open_form(&first, 0);
    for (t->step.steps_done = 0; t->step.steps_done < 2; t->step.steps_done++) {
        assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
        assert_int_equal(tess_checkpoint_wait(t, NULL), TESS_OK);
    }
    newest = 1;
    assert_int_equal(load(t, 0, said, sizeof said), TESS_OK);
    assert_string_equal(said, "");
    assert_int_equal(t->step.steps_done, 1);
    snprintf(path, sizeof path, "%s/step-000001/manifest.json", dir.path);
    assert_int_equal(truncate(path, 20), 0);
    assert_int_equal(load(t, 0, said, sizeof said), TESS_OK);
    assert_int_equal(t->step.steps_done, 0);
    snprintf(want, sizeof want, "%s/step-000001", dir.path);
    assert_non_null(strstr(said, want));
    assert_non_null(strstr(said, "; trying the checkpoint before\n"));
    newest = 0;
    assert_int_equal(tess_close(t), TESS_OK);
}

int main(void) {
    setenv("TESSERA_LOG", "warning", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_other__another_model_is_refused_with_what_differs),
        cmocka_unit_test(test_load_other__other_dtypes_are_converted),
        cmocka_unit_test(test_load_other__what_is_frozen_since_needs_no_states),
        cmocka_unit_test(test_load_other__other_microbatches_are_said),
        cmocka_unit_test(test_load_other__common_bytes_of_the_program_come_back),
        cmocka_unit_test(test_load_other__a_damaged_one_is_passed_over_and_named),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints by the library's interface, at one rank: a run that goes on from one ends in the bits of a run that never
 * stopped, and the program's own bytes come back. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/toy.h"

typedef struct {
    float *values;
    uint64_t n;
} copy;

static tess_status append(void *user, const tess_range *r, void *data) {
    copy *c = user;
    c->values = realloc(c->values, (c->n + r->elems) * sizeof(float));
    memcpy(c->values + c->n, data, r->elems * sizeof(float));
    c->n += r->elems;
    return TESS_OK;
}

static tess *open_toy(toy *m, uint32_t checkpoint) {
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .checkpoint = checkpoint };
    tess *t = NULL;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, m, 0), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    return t;
}

static void train(tess *t, toy *m, int first, int steps) {
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    double loss;
    for (int i = first; i < first + steps; i++) {
        assert_int_equal(toy_pass(t, m, TESS_PASS_TRAIN, i, &loss), TESS_OK);
        assert_int_equal(tess_step(t, &step), TESS_OK);
    }
}

static copy parameters_of(tess *t) {
    copy c = { 0 };
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM, append, &c), TESS_OK);
    assert_true(c.n > 0);
    return c;
}

static tess_status count(void *user, const char *path, const tess_checkpoint_info *info) {
    int *n = user;
    ++*n;
    assert_non_null(strstr(path, "step-000003"));
    assert_int_equal(info->step, 3);
    assert_int_equal(info->ranks, 1);
    return TESS_OK;
}

static void goes_on(uint32_t checkpoint) {
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX", command[128], common[5] = "", own[4] = "";
    tess_checkpoint_info info = { .struct_size = sizeof info };
    tess_checkpoint_options to = { .struct_size = sizeof to, .keep = 1, .common = "same", .own = "own" };
    toy m;
    assert_non_null(mkdtemp(folder));
    to.dir = folder, to.common_bytes = 5, to.own_bytes = 4;
    tess *t = open_toy(&m, checkpoint);
    train(t, &m, 0, 3);
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    train(t, &m, 3, 3);
    assert_int_equal(tess_checkpoint_wait(t, &info), TESS_OK);
    assert_int_equal(info.step, 3);
    copy whole = parameters_of(t);
    assert_int_equal(tess_close(t), TESS_OK);

    int n = 0;
    assert_int_equal(tess_checkpoint_list(folder, count, &n), TESS_OK);
    assert_int_equal(n, 1);

    tess_checkpoint_load_options from = { .struct_size = sizeof from, .path = folder, .common = common, .own = own };
    from.common_bytes = sizeof common, from.own_bytes = sizeof own;
    t = open_toy(&m, 0);
    assert_int_equal(tess_checkpoint_load(t, &from, &info), TESS_OK);
    assert_int_equal(info.step, 3);
    assert_string_equal(common, "same");
    assert_string_equal(own, "own");
    train(t, &m, 3, 3);
    copy resumed = parameters_of(t);
    assert_int_equal(tess_close(t), TESS_OK);
    assert_int_equal(resumed.n, whole.n);
    assert_memory_equal(resumed.values, whole.values, whole.n * sizeof(float));
    free(whole.values);
    free(resumed.values);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_checkpoint_api__run_goes_on_to_the_same_bits(void **state) {
    (void)state;
    goes_on(0);
    goes_on(1);
}

/* ---- frozen parameters ------------------------------------------------------------------------------- */
enum { FROZEN = 4 << 20, TRAINED = 4096 };

static tess *open_frozen(void) {
    static const int64_t frozen[] = { FROZEN }, trained[] = { TRAINED };
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .checkpoint = 1 };
    tess_param_options p = { .struct_size = sizeof p, .dtype = TESS_F32, .ndim = 1 };
    tess_scope scope;
    tess *t = NULL;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(tess_scope_add(t, "a", 0, &scope), TESS_OK);
    p.name = "a.frozen", p.shape = frozen, p.flags = TESS_FROZEN;
    assert_int_equal(tess_param_add(t, &p, NULL), TESS_OK);
    p.name = "a.trained", p.shape = trained, p.flags = 0;
    assert_int_equal(tess_param_add(t, &p, NULL), TESS_OK);
    return t;
}

static tess_status set_all(void *user, const tess_range *r, void *data) {
    for (uint64_t i = 0; i < r->elems; i++)
        ((float *)data)[i] = *(float *)user;
    return TESS_OK;
}

static tess_status all_are(void *user, const tess_range *r, void *data) {
    for (uint64_t i = 0; i < r->elems; i++)
        if (((float *)data)[i] != *(float *)user)
            return tess_fail(TESS_E_DATA, "element %llu of %s is %g", (unsigned long long)i, r->name,
                             (double)((float *)data)[i]);
    return TESS_OK;
}

/* They are saved from where they lie: no memory is planned for a copy, and a write of the program's waits. */
static void test_checkpoint_api__frozen_parameters_are_not_copied(void **state) {
    (void)state;
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX", command[128];
    tess_checkpoint_options to = { .struct_size = sizeof to };
    tess_checkpoint_load_options from = { .struct_size = sizeof from };
    tess_stats stats = { .struct_size = sizeof stats };
    float saved = 1, later = 2;
    assert_non_null(mkdtemp(folder));
    to.dir = from.path = folder;
    tess *t = open_frozen();
    assert_int_equal(tess_shard(t, set_all, &saved), TESS_OK);
    assert_int_equal(tess_stats_get(t, &stats), TESS_OK);
    assert_true(stats.planned_peak_bytes[TESS_DOMAIN_HOST] < 64 * TRAINED);
    assert_int_equal(stats.peak_bytes[TESS_DOMAIN_HOST], stats.planned_peak_bytes[TESS_DOMAIN_HOST]);
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM | TESS_OF_WRITE, set_all, &later), TESS_OK);
    assert_int_equal(tess_checkpoint_wait(t, NULL), TESS_OK);
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM, all_are, &later), TESS_OK);
    assert_int_equal(tess_checkpoint_load(t, &from, NULL), TESS_OK);
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM, all_are, &saved), TESS_OK);
    assert_int_equal(tess_close(t), TESS_OK);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_checkpoint_api__nothing_there_is_bad_data(void **state) {
    (void)state;
    tess_checkpoint_load_options from = { .struct_size = sizeof from, .path = "/tmp/no-such-checkpoint" };
    toy m;
    tess *t = open_toy(&m, 0);
    assert_int_equal(tess_checkpoint_load(t, &from, NULL), TESS_E_DATA);
    assert_int_equal(tess_close(t), TESS_E_DATA);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_api__run_goes_on_to_the_same_bits),
        cmocka_unit_test(test_checkpoint_api__frozen_parameters_are_not_copied),
        cmocka_unit_test(test_checkpoint_api__nothing_there_is_bad_data),
    };
    return cmocka_run_group_tests_name("checkpoint_api", tests, NULL, NULL);
}

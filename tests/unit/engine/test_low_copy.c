/* SPDX-License-Identifier: BSD-3-Clause */
/* TESSERA_LOW_COPY at one rank: whatever changes parameters beside a step, the passes that follow read the same values
 * as without copies. Each story runs without and with them, with parameters on the device and on the host. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/state.h"
#include "tests/support/toy.h"

enum { MOST = 16 };
typedef struct { /* what a story shows: losses and digests, in order */
    uint64_t seen[MOST];
    int n;
} shown;

static void show(shown *s, double loss) {
    assert_true(s->n < MOST);
    memcpy(&s->seen[s->n++], &loss, sizeof loss);
}

static void show_digest(shown *s, tess *t) {
    assert_true(s->n < MOST);
    assert_int_equal(toy_digest(t, &s->seen[s->n++]), TESS_OK);
}

static void evaluate(shown *s, tess *t, toy *m) {
    double loss;
    assert_int_equal(toy_pass(t, m, TESS_PASS_EVAL, 3, &loss), TESS_OK);
    show(s, loss);
}

static void train(shown *s, tess *t, toy *m, int64_t i) {
    double loss;
    assert_int_equal(toy_pass(t, m, TESS_PASS_TRAIN, i, &loss), TESS_OK);
    show(s, loss);
}

static void step(tess *t) {
    const tess_optimizer_options o = { .struct_size = sizeof o, .lr = 0.05f };
    assert_int_equal(tess_step(t, &o), TESS_OK);
}

static tess_status shrink(void *user, const tess_range *r, void *data) {
    (void)user;
    for (uint64_t i = 0; i < r->elems; i++)
        ((float *)data)[i] *= 0.7f;
    return TESS_OK;
}

static void write_params(tess *t) {
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM | TESS_OF_WRITE, shrink, NULL), TESS_OK);
}

/* ---- stories ---- */

static void filled(shown *s, tess *t, toy *m) {
    evaluate(s, t, m);
    train(s, t, m, 0);
    step(t);
    evaluate(s, t, m);
    train(s, t, m, 1);
}

static void written(shown *s, tess *t, toy *m) {
    train(s, t, m, 0);
    step(t);
    write_params(t);
    evaluate(s, t, m);
    train(s, t, m, 1);
    write_params(t); /* before the step, which changes them again */
    step(t);
    evaluate(s, t, m);
}

static void dropped(shown *s, tess *t, toy *m) {
    train(s, t, m, 0);
    assert_int_equal(tess_grad_drop(t), TESS_OK); /* a step that is left out */
    evaluate(s, t, m);
    train(s, t, m, 1);
    step(t);
    train(s, t, m, 2);
}

static void loaded(shown *s, tess *t, toy *m) {
    char folder[] = "/tmp/tessera-low-copy-XXXXXX", command[64];
    assert_non_null(mkdtemp(folder));
    tess_checkpoint_options to = { .struct_size = sizeof to, .keep = 1, .dir = folder };
    tess_checkpoint_load_options from = { .struct_size = sizeof from, .path = folder };
    train(s, t, m, 0);
    step(t);
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    assert_int_equal(tess_checkpoint_wait(t, NULL), TESS_OK);
    train(s, t, m, 1);
    step(t);
    evaluate(s, t, m);
    assert_int_equal(tess_checkpoint_load(t, &from, NULL), TESS_OK);
    evaluate(s, t, m);
    train(s, t, m, 1);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* A scope is summoned within another, and masters are written between. */
static void summoned_within(shown *s, tess *t, toy *m) {
    const uint16_t *outer[8], *inner[8];
    double sum = 0;
    train(s, t, m, 0);
    step(t);
    assert_int_equal(tess_summon_begin(t, m->scope[1], (void *)outer, m->n_params[1]), TESS_OK);
    write_params(t);
    assert_int_equal(tess_summon_begin(t, m->scope[2], (void *)inner, m->n_params[2]), TESS_OK);
    for (int i = 0; i < 8; i++)
        sum += (i + 1) * (double)inner[0][i];
    show(s, sum);
    assert_int_equal(tess_summon_end(t, m->scope[2]), TESS_OK);
    assert_int_equal(tess_summon_end(t, m->scope[1]), TESS_OK);
}

static void summoned(shown *s, tess *t, toy *m) {
    const uint16_t *p[8];
    double sum = 0;
    train(s, t, m, 0);
    step(t);
    for (int round = 0; round < 2; round++) {
        write_params(t);
        assert_int_equal(tess_summon_begin(t, m->scope[1], (void *)p, m->n_params[1]), TESS_OK);
        for (int i = 0; i < 185; i++) /* a.weight */
            sum += (i + 1) * (double)p[0][i];
        show(s, sum);
        assert_int_equal(tess_summon_end(t, m->scope[1]), TESS_OK);
    }
}

static tess_status descend(void *user, const tess_range *r, void *param, const float *grad, float *const *state) {
    (void)user, (void)state;
    for (uint64_t i = 0; i < r->elems; i++)
        ((float *)param)[i] -= 0.1f * grad[i];
    return TESS_OK;
}

static void updated(shown *s, tess *t, toy *m) {
    for (int i = 0; i < 3; i++) {
        train(s, t, m, i);
        assert_int_equal(tess_update(t, descend, NULL), TESS_OK);
        evaluate(s, t, m);
    }
}

/* ---- without and with copies ---- */

typedef void story(shown *, tess *, toy *);

static shown tell(story *what, const char *optimizer, const char *offload, const char *copy) {
    shown s = { .n = 0 };
    toy m;
    tess *t = NULL;
    const tess_setting settings[] = { { "low-copy", copy } };
    tess_options o = { .struct_size = sizeof o,
                       .optimizer = optimizer,
                       .offload = offload,
                       .precision = "bf16",
                       .checkpoint = 1,
                       .settings = settings,
                       .n_settings = 1 };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, 0), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    what(&s, t, &m);
    show_digest(&s, t);
    assert_int_equal(tess_close(t), TESS_OK);
    return s;
}

static void same_by(story *what, const char *optimizer) {
    static const char *const offloads[] = { "none", "cpu", "cpu:params" };
    for (int i = 0; i < 3; i++) {
        shown without = tell(what, optimizer, offloads[i], "0"), with = tell(what, optimizer, offloads[i], "1");
        assert_int_equal(without.n, with.n);
        for (int k = 0; k < with.n; k++)
            if (with.seen[k] != without.seen[k])
                fail_msg("offload %s: value %d differs", offloads[i], k);
    }
}

#define STORY(name, optimizer)                                                                                         \
    static void test_low_copy__##name##_parameters_are_read_as_without(void **state) {                                 \
        (void)state;                                                                                                   \
        same_by(name, optimizer);                                                                                      \
    }
STORY(filled, "adamw")
STORY(written, "sgd")
STORY(dropped, "adam")
STORY(loaded, "adamw")
STORY(summoned, "adadelta")
STORY(summoned_within, "sgd")
STORY(updated, "own")

/* ---- what it takes ---- */

static tess *open_blocks(const char *precision, const char *copy, toy *m) {
    tess *t = NULL;
    const tess_setting settings[] = { { "low-copy", copy } };
    tess_options o = { .struct_size = sizeof o,
                       .optimizer = "adamw",
                       .precision = precision,
                       .input_bytes = TOY_INPUT_BYTES,
                       .settings = settings,
                       .n_settings = 1 };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, m, TOY_BLOCKS), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    return t;
}

/* Two bytes an element of what is trained, of its own category, and nothing is gathered any more. */
static void test_low_copy__it_is_planned_and_measured_and_no_gather_is_left(void **state) {
    (void)state;
    toy m;
    tess_stats stats = { .struct_size = sizeof stats };
    const tess_optimizer_options o = { .struct_size = sizeof o, .lr = 0.05f };
    tess *t = open_blocks("bf16", "1", &m);
    uint64_t elems = 0, gathers = 0;
    double loss;
    for (int32_t g = 0; g < t->plan.layout.n_groups; g++)
        elems += t->plan.layout.groups[g].trainable ? t->plan.layout.groups[g].shard_elems : 0;
    assert_int_equal(toy_run(t, TESS_PASS_TRAIN, 0, &o, &loss), TESS_OK);
    assert_int_equal(tess_stats_get(t, &stats), TESS_OK);
    assert_int_equal(stats.category_peak_bytes[TESS_DOMAIN_DEVICE][TESS_CAT_LOW_COPY], 2 * elems);
    assert_int_equal(stats.live_peak_category_bytes[TESS_DOMAIN_DEVICE][TESS_CAT_LOW_COPY], 2 * elems);
    for (int32_t i = 0; i < t->plan.programs[TESS__P_TRAIN].n_instrs; i++) {
        const tess__instr *in = &t->plan.programs[TESS__P_TRAIN].instrs[i];
        gathers += in->op == TESS__GATHER && t->plan.layout.groups[in->index].trainable;
    }
    assert_int_equal(gathers, 0);
    assert_int_equal(tess_close(t), TESS_OK);
}

/* Where masters are read as they lie there is nothing to copy. */
static void test_low_copy__without_narrower_parameters_there_is_none(void **state) {
    (void)state;
    toy m;
    tess *t = open_blocks("fp32", "1", &m);
    for (int32_t i = 0; i < t->plan.resident.n_buffers; i++)
        assert_int_not_equal(t->plan.resident.buffers[i].role, TESS__LOW_COPY);
    assert_int_equal(tess_close(t), TESS_OK);
}

/* ---- devices that do not promise it ---- */

static tess_status without_copies(void *ctx, const tess_kernel *k, tess_need *out) {
    (void)ctx, (void)out;
    return k->out2 ? TESS_E_UNSUPPORTED : TESS_OK;
}

/* What tess_shard says, with copies or without, where the device has `kernel_need`. */
static tess_status shard_on(tess_status (*kernel_need)(void *, const tess_kernel *, tess_need *), const char *copy,
                            int plan_only, const char *optimizer) {
    toy m;
    tess *t = NULL;
    const tess_setting settings[] = { { "low-copy", copy } };
    tess_options o = { .struct_size = sizeof o,
                       .optimizer = optimizer,
                       .precision = "bf16",
                       .plan_only = plan_only,
                       .settings = settings,
                       .n_settings = 1 };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, 0), TESS_OK);
    tess__device was = t->device;
    tess_device_ops ops = *was.ops;
    ops.kernel_need = kernel_need ? kernel_need : ops.kernel_need;
    t->device.ops = &ops;
    tess_status s = tess_shard(t, toy_fill, NULL);
    t->device.ops = was.ops;
    tess_close(t); /* gives the failure, where there was one */
    return s;
}

static void test_low_copy__a_device_that_does_not_promise_it_is_refused_before_anything_runs(void **state) {
    (void)state;
    for (int plan_only = 0; plan_only < 2; plan_only++) {
        tess_status fine = plan_only ? TESS_E_PLANNED : TESS_OK;
        assert_int_equal(shard_on(without_copies, "1", plan_only, "adamw"), TESS_E_UNSUPPORTED);
        assert_non_null(strstr(tess_last_error(), "TESSERA_LOW_COPY=1: device cpu offers no step that writes bf16"));
        assert_int_equal(tess_exit_code(TESS_E_UNSUPPORTED), 3);
        assert_int_equal(shard_on(without_copies, "0", plan_only, "adamw"), fine);
        assert_int_equal(shard_on(without_copies, "1", plan_only, "own"), fine); /* the core casts */
        assert_int_equal(shard_on(NULL, "1", plan_only, "adamw"), fine);
    }
}

#define TEST(name) cmocka_unit_test(test_low_copy__##name)
int main(void) {
    const struct CMUnitTest tests[] = { TEST(filled_parameters_are_read_as_without),
                                        TEST(written_parameters_are_read_as_without),
                                        TEST(dropped_parameters_are_read_as_without),
                                        TEST(loaded_parameters_are_read_as_without),
                                        TEST(summoned_parameters_are_read_as_without),
                                        TEST(summoned_within_parameters_are_read_as_without),
                                        TEST(updated_parameters_are_read_as_without),
                                        TEST(it_is_planned_and_measured_and_no_gather_is_left),
                                        TEST(without_narrower_parameters_there_is_none),
                                        TEST(a_device_that_does_not_promise_it_is_refused_before_anything_runs) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

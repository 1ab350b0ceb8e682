/* SPDX-License-Identifier: BSD-3-Clause */
/* The audits that a program has: those of every block in training, and none without the option. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/engine/state.h"
#include "core/plan/audit.h"
#include "tests/support/toy.h"

typedef struct {
    int sends, audits;
    uint64_t bytes, hash;
} counted;

static tess *planned(const char *share, int flags) {
    tess_options o = { .struct_size = sizeof o, .input_bytes = TOY_INPUT_BYTES, .plan_only = 1, .ranks = 2 };
    toy m;
    tess *t = NULL;
    o.audit = share;
    o.comm = "shm";
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, flags), TESS_OK);
    return t;
}

static counted count(const char *share, int program) {
    counted c = { .sends = 0 };
    tess *t = planned(share, TOY_BLOCKS);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_E_PLANNED);
    const tess__program *p = &t->plan.programs[program];
    for (int32_t i = 0; i < p->n_instrs; i++) {
        c.sends += p->instrs[i].op == TESS__AUDIT_SEND;
        c.audits += p->instrs[i].op == TESS__AUDIT;
    }
    c.bytes = p->step_bytes[TESS_DOMAIN_DEVICE]; /* all in all they are rounded up to pages */
    c.hash = p->hash;
    tess_close(t);
    return c;
}

static void test_audit__every_block_has_its_two(void **state) {
    (void)state;
    for (int program = TESS__P_TRAIN; program <= TESS__P_FUSED; program++) {
        counted none = count(NULL, program), off = count("0", program), on = count("1/8", program);
        int want = program == TESS__P_TRAIN || program == TESS__P_FUSED ? 2 * TOY_SCOPES : 0;
        assert_int_equal(none.sends + none.audits, 0);
        assert_int_equal(off.bytes, none.bytes);
        assert_true(off.hash == none.hash);
        assert_int_equal(on.sends, want);
        assert_int_equal(on.audits, want);
        assert_true(!want || on.bytes > none.bytes);
    }
}

static void test_audit__how_often_does_not_change_the_program(void **state) {
    (void)state;
    counted often = count("1/1", TESS__P_TRAIN), less = count("1/1000", TESS__P_TRAIN);
    assert_true(often.hash == less.hash);
    assert_int_equal(often.bytes, less.bytes);
}

static void test_audit__a_shared_gradient_is_sent_by_the_earlier_block(void **state) {
    (void)state;
    tess *t = planned("1/1", TOY_BLOCKS);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_E_PLANNED);
    const tess__model *m = &t->plan.model;
    const tess__scope *first = &m->scopes[m->blocks[0].scope];
    uint64_t shared = 0;
    for (int32_t k = 0; k < first->n_params; k++) {
        int adds = strcmp(m->params[first->params[k]].name, "embed.weight") == 0;
        assert_int_equal(tess__audit_adds(m, 0, k), adds);
        shared += adds ? tess__round_up(m->params[first->params[k]].elems * sizeof(float), 64) : 0;
    }
    assert_true(shared > 0);
    assert_int_equal(tess__audit_sums_before(m, &t->plan.layout, 0, first->n_params), shared);
    assert_int_equal(tess__audit_sums_before(m, &t->plan.layout, TOY_SCOPES - 1,
                                             m->scopes[m->blocks[TOY_SCOPES - 1].scope].n_params),
                     0);
    tess_close(t);
}

/* What one part is given lies before the next, for the larger of both directions' scratch. */
static void test_audit__parts_of_the_room_do_not_overlap(void **state) {
    (void)state;
    tess *t = planned("1/1", TOY_BLOCKS);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_E_PLANNED);
    const tess__model *m = &t->plan.model;
    for (int32_t b = 0; b < m->n_blocks; b++)
        for (int backward = 0; backward < 2; backward++) {
            const tess_block_options *o = &m->blocks[b].options;
            tess__audit_room r = tess__audit_room_of(&t->plan.setup, m, &t->plan.layout, b, backward);
            uint64_t input = b ? m->blocks[b - 1].options.output_bytes : 0;
            assert_true(o->forward_scratch_bytes > o->backward_scratch_bytes); /* backward's audit runs both */
            assert_true(r.input >= r.batch + TOY_INPUT_BYTES);
            assert_true(r.grad_output >= r.input + input);
            assert_true(r.sums >= r.grad_output + (backward && b < m->n_blocks - 1 ? o->output_bytes : 0));
            assert_true(r.saved >= r.output + o->output_bytes);
            assert_true(r.scratch >= r.saved + o->saved_bytes);
            assert_true(r.grad_input >= r.scratch + o->forward_scratch_bytes);
            assert_true(r.grads >= r.grad_input + (backward ? input : 0));
            assert_int_equal(
                r.work_bytes - r.grads,
                backward ? tess__audit_grads_before(m, &t->plan.layout, b, m->scopes[m->blocks[b].scope].n_params) : 0);
        }
    tess_close(t);
}

static tess_status nothing(void *user, const tess_block_call *c) {
    (void)user, (void)c;
    return TESS_OK;
}

static void test_audit__two_names_of_a_parameter_in_a_block_have_one_gradient(void **state) {
    (void)state;
    tess_options o = { .struct_size = sizeof o, .plan_only = 1, .ranks = 2, .audit = "1/1", .comm = "shm" };
    tess_block_options b = { .struct_size = sizeof b,
                             .flags = TESS_BLOCK_AUDIT,
                             .name = "only",
                             .output_bytes = 8,
                             .forward = nothing,
                             .backward = nothing };
    const int64_t shape[] = { 100 }, small[] = { 3 };
    tess_param_options w = { .struct_size = sizeof w, .dtype = TESS_F32, .name = "only.w", .shape = shape, .ndim = 1 };
    tess_param_options v = { .struct_size = sizeof v, .dtype = TESS_F32, .name = "only.v", .shape = small, .ndim = 1 };
    tess *t = NULL;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(tess_block_add(t, &b, NULL), TESS_OK);
    assert_int_equal(tess_param_add(t, &w, NULL), TESS_OK);
    assert_int_equal(tess_param_add(t, &v, NULL), TESS_OK);
    assert_int_equal(tess_param_tie(t, "only.again", "only.w"), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_E_PLANNED);
    const tess__model *m = &t->plan.model;
    assert_int_equal(m->scopes[0].n_params, 3);
    assert_int_equal(tess__audit_grads_before(m, &t->plan.layout, 0, 1), 448);
    assert_int_equal(tess__audit_grads_before(m, &t->plan.layout, 0, 2), 0); /* where the first name's is */
    assert_int_equal(tess__audit_grads_before(m, &t->plan.layout, 0, 3), 512);
    tess_close(t);
}

static void refused(const char *share, int flags, tess_status status, const char *message) {
    tess_options o = {
        .struct_size = sizeof o, .input_bytes = TOY_INPUT_BYTES, .plan_only = 1, .ranks = flags < 0 ? 1 : 2
    };
    toy m;
    tess *t = NULL;
    o.audit = share;
    tess_status s = tess_open(&o, &t);
    s = s ? s : toy_declare(t, &m, flags);
    s = s ? s : tess_shard(t, toy_fill, NULL);
    assert_int_equal(s, status);
    assert_non_null(strstr(tess_last_error(), message));
    tess_close(t);
}

static void test_audit__refuses_what_cannot_be_audited(void **state) {
    (void)state;
    refused("1/1", 0, TESS_E_UNSUPPORTED, "TESSERA_AUDIT=1/1: this program declares no blocks");
    refused("1/2", -1, TESS_E_INVALID, "TESSERA_AUDIT=1/2: one rank has no other that computes again; take two");
    refused("2/1", 0, TESS_E_INVALID, "TESSERA_AUDIT is '2/1', expected 0 (off) or 1/K with K from 1 to 1048576");
    refused("1/-1", 0, TESS_E_INVALID, "TESSERA_AUDIT is '1/-1'");
    refused("1/1048577", 0, TESS_E_INVALID, "TESSERA_AUDIT is '1/1048577'");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_audit__every_block_has_its_two),
        cmocka_unit_test(test_audit__how_often_does_not_change_the_program),
        cmocka_unit_test(test_audit__a_shared_gradient_is_sent_by_the_earlier_block),
        cmocka_unit_test(test_audit__parts_of_the_room_do_not_overlap),
        cmocka_unit_test(test_audit__two_names_of_a_parameter_in_a_block_have_one_gradient),
        cmocka_unit_test(test_audit__refuses_what_cannot_be_audited),
    };
    tess__log_set_least(TESS_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

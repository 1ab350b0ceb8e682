/* SPDX-License-Identifier: BSD-3-Clause */
/* What ranks make of an audit's digests: whose turn it is, which difference counts, who is asked, what is said to
 * people and to the program, and when a rank is left behind. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/engine/state.h"
#include "core/plan/audit.h"

static struct {
    int exchanges, told, killed, again;
    uint64_t tags[4];
    const char *doing[4];
    uint64_t word[2]; /* of the referee */
    int32_t referee;
    tess_status answer;
    tess_audit_failure failure;
    char said[1024], reported[1024]; /* to people, and to the launcher */
    int32_t level;
} world;

static tess_status run_planned(tess *t, const tess__instr *in, const void *send, void *recv, int scratch,
                               const char *doing);
static void say(int32_t level, const char *format, ...) {
    va_list args;
    va_start(args, format);
    world.level = level;
    vsnprintf(world.said, sizeof world.said, format, args);
    va_end(args);
}
static int end_self(int signal) {
    return world.killed = signal;
}
static void report(tess__control *c, tess_status status, int32_t lost, const char *why) {
    assert_null(c);
    assert_int_equal(status, TESS_E_LOST);
    assert_int_equal(lost, -1);
    assert_int_equal(world.killed, 0); /* before its end */
    snprintf(world.reported, sizeof world.reported, "%s", why);
}
#define tess__control_report report
#define tess__run_planned run_planned
#define tess__log say
#define raise end_self
#define tess__block_call_of(t, block) ((tess_block_call){ .struct_size = sizeof(tess_block_call) })
#define tess__scope_pointers(t, scope, params, grads, n) ((void)(scope), world.again++, TESS_OK)
#define tess__take_back(t, scope, backward, call) TESS_OK
#include "core/proof/audit.c"

enum { RANKS = 5, BLOCKS = 3 };
static tess engine;
static char names[BLOCKS][4] = { "in", "mid", "out" };
static found all[RANKS];

static tess_status run_planned(tess *t, const tess__instr *in, const void *send, void *recv, int scratch,
                               const char *doing) {
    assert_ptr_equal(t, &engine);
    assert_ptr_equal(send, &all[t->comms.world.rank]);
    assert_ptr_equal(recv, all);
    assert_int_equal(scratch, TESS__AUDIT_SCRATCH);
    world.tags[world.exchanges] = in->tag;
    world.doing[world.exchanges++] = doing;
    if (world.referee >= 0 && world.exchanges == 1)
        memcpy(all[world.referee].again, world.word, sizeof world.word);
    return world.answer ? tess__fail(world.answer, "a rank is gone") : TESS_OK;
}

static void hear_failure(void *user, const tess_audit_failure *f) {
    assert_ptr_equal(user, &world);
    world.told++;
    world.failure = *f;
}

static tess_status fake_block(void *user, const tess_block_call *c) {
    (void)user;
    (void)c;
    return TESS_OK;
}

/* A rank of `n`, in pass `pass` with two microbatches in a step; one audit in four passes. */
static tess *begin(int32_t n, int32_t rank, uint64_t pass) {
    static tess__block blocks[BLOCKS];
    static tess__scope scopes[BLOCKS];
    static tess__param params[2];
    static tess__unit units[1];
    static tess__group groups[1];
    static int32_t of_scope[1] = { 0 };
    static char unit_name[] = "the unit";
    memset(&world, 0, sizeof world);
    memset(&engine, 0, sizeof engine);
    memset(all, 0, sizeof all);
    world.referee = -1;
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = (tess__block){ .options = { .name = names[i], .flags = TESS_BLOCK_AUDIT, .forward = fake_block },
                                   .scope = i };
        scopes[i] = (tess__scope){ .name = names[i], .n_params = i == 1, .params = of_scope };
    }
    params[0] = (tess__param){ .name = unit_name, .unit = 0 };
    units[0].name = unit_name;
    engine.plan.model = (tess__model){ .params = params, .n_params = 1, .scopes = scopes, .n_scopes = BLOCKS };
    engine.plan.model.blocks = blocks;
    engine.plan.model.n_blocks = BLOCKS;
    engine.plan.layout.units = units;
    engine.plan.layout.groups = groups;
    engine.plan.setup.nranks = engine.comms.world.nranks = n;
    engine.plan.setup.accum = 2;
    engine.plan.setup.audit_every = 4;
    engine.plan.setup.env.mem = TESS_MEM_HOST;
    engine.comms.world.rank = rank;
    engine.step.steps_done = pass / 2;
    engine.pass.microbatch = (int32_t)(pass % 2);
    engine.settings.options.audit_failed = hear_failure;
    engine.settings.options.audit_user = &world;
    return &engine;
}

/* ---- turns ---- */

static void test_audit_verdict__every_block_has_its_turn_once_in_so_many_passes(void **state) {
    (void)state;
    for (int32_t every = 1; every <= 7; every++)
        for (int32_t block = 0; block < BLOCKS; block++)
            for (int backward = 0; backward < 2; backward++) {
                int due = 0;
                for (uint64_t pass = 0; pass < 3 * (uint64_t)every; pass++) {
                    tess *t = begin(3, 0, pass);
                    t->plan.setup.audit_every = every;
                    const int is = is_due(t, block, backward);
                    assert_int_equal(is, (pass + 2 * (uint64_t)block + (uint64_t)backward) % (uint64_t)every == 0);
                    due += is;
                }
                assert_int_equal(due, 3);
            }
}

static void test_audit_verdict__over_the_rounds_each_audits_each_other(void **state) {
    (void)state;
    for (int32_t n = 2; n <= RANKS; n++) {
        int by[RANKS][RANKS] = { { 0 } };
        for (uint64_t round = 0; round < 2 * (uint64_t)(n - 1); round++) {
            const tess__instr in = { .op = TESS__AUDIT, .index = 1 };
            audit a = audit_of(begin(n, 0, 4 * round + round % 4), &in); /* all passes of a round have one shift */
            assert_int_equal(a.shift, 1 + (int32_t)round % (n - 1));
            assert_true(a.block == 1 && a.ranks == n && !a.backward);
            for (int32_t r = 0; r < n; r++)
                by[auditor_of(&a, r)][r]++;
        }
        for (int32_t r = 0; r < n; r++)
            for (int32_t k = 0; k < n; k++)
                assert_int_equal(by[r][k], r == k ? 0 : 2);
    }
}

/* ---- verdicts ---- */

static const tess__instr forward = { .op = TESS__AUDIT, .index = 1, .tag = 900 },
                         backward = { .op = TESS__AUDIT, .index = 1, .tag = 901, .flags = TESS__OF_BACKWARD };

/* All have the digests of their own work, and the one that audits makes the same. */
static void agree(const audit *a) {
    for (int32_t r = 0; r < a->ranks; r++)
        for (int k = 0; k < KINDS; k++)
            all[r].own[k] = all[auditor_of(a, r)].again[k] = 0x100u * (unsigned)(r + 1) + (unsigned)k;
}

static void test_audit_verdict__the_first_difference_of_the_lowest_rank_counts(void **state) {
    (void)state;
    for (int32_t n = 2; n <= RANKS; n++)
        for (int set = 1; set < 1 << n; set++)        /* the ranks whose work differs */
            for (int kinds = 1; kinds < 8; kinds++) { /* in what */
                audit a = audit_of(begin(n, 0, 4), &backward);
                agree(&a);
                int first = -1, count = 0;
                for (int32_t r = 0; r < n; r++)
                    if (set >> r & 1) {
                        first = first < 0 ? r : first;
                        count++;
                        for (int k = 0; k < KINDS; k++)
                            all[r].own[k] += (uint64_t)(kinds >> k & 1);
                        all[r].changed = kinds >> KINDS & 1;
                    }
                difference d = find_difference(&a, all);
                const int kind = kinds & 1 ? OUTPUT : kinds & 2 ? GRADIENTS : KINDS;
                assert_int_equal(d.rank, first);
                assert_int_equal(d.kind, kind);
                assert_int_equal(d.all, count);
                assert_int_equal(d.own, kind == KINDS ? 0 : all[first].own[kind]);
                assert_int_equal(d.again, kind == KINDS ? 0 : all[auditor_of(&a, first)].again[kind]);
                assert_true(d.referee == NOBODY && d.wrong == NOBODY);
            }
    audit a = audit_of(begin(3, 0, 0), &forward);
    agree(&a);
    assert_int_equal(find_difference(&a, all).rank, NOBODY);
    assert_int_equal(find_difference(&a, all).all, 0);
}

static void expect_failure(int32_t rank, int32_t auditor, int32_t referee, int32_t wrong, const char *kind) {
    const tess_audit_failure *f = &world.failure;
    assert_int_equal(world.told, 1);
    assert_int_equal(f->struct_size, sizeof *f);
    assert_int_equal(f->rank, rank);
    assert_int_equal(f->auditor, auditor);
    assert_int_equal(f->referee, referee);
    assert_int_equal(f->wrong, wrong);
    assert_string_equal(f->kind, kind);
    assert_string_equal(f->block, "mid");
    assert_string_equal(f->unit, "the unit");
    assert_int_equal(f->step, engine.step.steps_done + 1);
}

/* Rank 1's work, which rank 2 makes again; rank 3 is asked. */
static tess_status one_differs(const tess__instr *in, int kind, uint64_t word) {
    audit a = audit_of(begin(RANKS, 4, 0), in);
    agree(&a);
    all[1].own[kind] = 0x111;
    all[2].again[kind] = 0x222;
    world.referee = 3;
    world.word[kind] = word;
    tess_status s = judge(&a, all);
    assert_int_equal(engine.audit.done, RANKS);
    assert_int_equal(engine.audit.failures, 1);
    return s;
}

static void test_audit_verdict__the_referees_word_decides(void **state) {
    (void)state;
    assert_int_equal(one_differs(&forward, OUTPUT, 0x111), TESS_E_MISMATCH);
    assert_string_equal(tess_last_error(),
                        "step 1, unit the unit, forward of block \"mid\": the output differs: rank 1 has "
                        "0000000000000111 and rank 3 agrees, rank 2 makes 0000000000000222: rank 2 is wrong "
                        "(TESSERA_AUDIT)");
    expect_failure(1, 2, 3, 2, "output");
    assert_int_equal(world.failure.backward, 0);
    assert_true(world.failure.digest == 0x111 && world.failure.digest_again == 0x222);
    assert_int_equal(one_differs(&backward, OUTPUT, 0x222), TESS_E_MISMATCH);
    assert_string_equal(
        tess_last_error(),
        "step 1, unit the unit, backward of block \"mid\": the gradient of its input differs: rank 1 has "
        "0000000000000111, rank 2 makes 0000000000000222 and rank 3 agrees: rank 1 is wrong "
        "(TESSERA_AUDIT)");
    expect_failure(1, 2, 3, 1, "gradient of its input");
    assert_int_equal(world.failure.backward, 1);
    assert_int_equal(one_differs(&backward, GRADIENTS, 0x333), TESS_E_MISMATCH);
    assert_string_equal(
        tess_last_error(),
        "step 1, unit the unit, backward of block \"mid\": the gradient of its parameters differs: rank 1 "
        "has 0000000000000111, rank 2 makes 0000000000000222, rank 3 agrees with neither "
        "(TESSERA_AUDIT)");
    expect_failure(1, 2, 3, -1, "gradient of its parameters");
    assert_int_equal(world.exchanges, 2);
    assert_string_equal(world.doing[0], "the word of an audit's referee");
    assert_string_equal(world.doing[1], "the verdict of an audit");
    assert_true(world.tags[0] == tess__spread(901 + 1) && world.tags[1] == tess__spread(901 + 2));
}

/* Which pass writes a block's output: forward, or backward of the last block with the flag. */
static void test_audit_verdict__a_late_result_is_compared_behind_backward(void **state) {
    (void)state;
    for (int late = 0; late < 2; late++)
        for (int is_backward = 0; is_backward < 2; is_backward++)
            for (int32_t block = 1; block < BLOCKS; block++) {
                char result[8] = { 1, 2, 3 };
                tess *t = begin(RANKS, 0, 0);
                tess_block_options *o = &t->plan.model.blocks[block].options;
                audit a = { .t = t, .block = block, .backward = is_backward };
                difference d = { .kind = OUTPUT };
                o->output_bytes = sizeof result;
                o->flags |= late ? TESS_BLOCK_LATE_RESULT : 0;
                uint64_t had = digest_output(&a, result);
                result[5]++;
                int is_late = late && block == BLOCKS - 1;
                assert_int_equal(digest_output(&a, result) != had, is_late == is_backward);
                assert_string_equal(kind_text(&a, &d), !is_backward ? "output"
                                                       : is_late    ? "result or the gradient of its input"
                                                                    : "gradient of its input");
            }
}

static void test_audit_verdict__two_ranks_have_nobody_to_ask(void **state) {
    (void)state;
    audit a = audit_of(begin(2, 0, 0), &forward);
    agree(&a);
    all[1].own[OUTPUT] = 0x111;
    all[0].again[OUTPUT] = 0x222;
    engine.settings.audit_recovers = engine.mirror.ready = 1; /* who is wrong is not known: nobody is left behind */
    assert_int_equal(judge(&a, all), TESS_E_MISMATCH);
    assert_non_null(strstr(tess_last_error(),
                           "rank 1 has 0000000000000111 and rank 0 makes 0000000000000222: one of the "
                           "two is wrong (TESSERA_AUDIT)"));
    expect_failure(1, 0, -1, -1, "output");
    assert_int_equal(world.exchanges, 1);
    assert_int_equal(world.again, 0);
    assert_string_equal(world.doing[0], "the verdict of an audit");
}

static void test_audit_verdict__who_says_that_its_input_changed_is_wrong(void **state) {
    (void)state;
    audit a = audit_of(begin(RANKS, 0, 0), &backward);
    agree(&a);
    all[3].changed = 1;
    assert_int_equal(judge(&a, all), TESS_E_MISMATCH);
    assert_non_null(
        strstr(tess_last_error(), "the input differs: rank 3 has it changed since forward: rank 3 is wrong"));
    expect_failure(3, 4, -1, 3, "input");
    assert_int_equal(world.exchanges, 1);
}

/* The referee is neither of the two, whatever the shift. */
static void test_audit_verdict__a_third_rank_is_asked(void **state) {
    (void)state;
    for (int32_t n = 3; n <= RANKS; n++)
        for (uint64_t round = 0; round < (uint64_t)n - 1; round++)
            for (int32_t r = 0; r < n; r++) {
                audit a = audit_of(begin(n, 0, 4 * round), &forward);
                difference d = { .rank = r, .kind = OUTPUT, .referee = NOBODY, .wrong = NOBODY, .own = 1, .again = 2 };
                const int32_t by = auditor_of(&a, r), next = (by + 1) % n == r ? (by + 2) % n : (by + 1) % n;
                if (next == 0) { /* this rank itself: tried below */
                    continue;
                }
                all[0].own[0] = 77;
                assert_int_equal(ask_referee(&a, &d, all), TESS_OK);
                assert_int_equal(d.referee, next);
                assert_true(next != by && next != r);
                assert_int_equal(all[0].own[0], 0); /* nothing of the round before goes out again */
                assert_int_equal(world.again, 0);
            }
    audit a = audit_of(begin(3, 0, 0), &forward);
    difference d = { .rank = 1, .kind = OUTPUT, .referee = NOBODY, .wrong = NOBODY, .own = 1, .again = 2 };
    world.answer = TESS_E_PEER; /* after its own work */
    static char work[64], sent[64 * 3];
    static void *places[TESS__N_ROLES][BLOCKS];
    for (int r = 0; r < TESS__N_ROLES; r++)
        engine.memory.address[r] = places[r];
    places[TESS__AUDIT_SENT][1] = sent;
    a.work = work;
    assert_int_equal(ask_referee(&a, &d, all), TESS_E_PEER);
    assert_int_equal(world.again, 1);
    assert_int_equal(d.referee, 0);
}

static void test_audit_verdict__without_a_difference_nothing_is_said(void **state) {
    (void)state;
    audit a = audit_of(begin(3, 1, 0), &forward);
    agree(&a);
    engine.audit.done = 4;
    assert_int_equal(judge(&a, all), TESS_OK);
    assert_int_equal(engine.audit.done, 7);
    assert_int_equal(engine.audit.failures, 0);
    assert_int_equal(world.exchanges + world.told, 0);
}

/* With TESSERA_ON_AUDIT=recover and images that are whole, the wrong rank ends, and the others go on without it. */
static void test_audit_verdict__the_wrong_rank_is_left_behind(void **state) {
    (void)state;
    for (int32_t rank = 0; rank < RANKS; rank++)
        for (int how = 0; how < 4; how++) { /* recovers, ready */
            audit a = audit_of(begin(RANKS, rank, 0), &backward);
            agree(&a);
            all[3].changed = 1;
            engine.settings.audit_recovers = how & 1;
            engine.mirror.ready = how >> 1;
            const int leaves = how == 3;
            assert_int_equal(judge(&a, all), leaves ? TESS_E_PEER : TESS_E_MISMATCH);
            assert_int_equal(engine.comms.lost_peer, leaves ? 4 : 0);
            assert_int_equal(world.killed, leaves && rank == 3 ? SIGKILL : 0);
            char want[1024] = "";
            if (leaves && (rank == 0 || rank == 3))
                snprintf(want, sizeof want, "%s: %s (TESSERA_ON_AUDIT=recover)", tess_last_error(),
                         rank ? "this rank ends itself" : "going on without it");
            assert_int_equal(world.level, leaves && rank == 0 ? TESS_LOG_WARNING : TESS_LOG_ERROR);
            assert_string_equal(world.reported, leaves && rank == 3 ? tess_last_error() : "");
            assert_string_equal(world.said, want);
        }
}

/* ---- before the first step ---- */

static void test_audit_verdict__what_cannot_be_audited_is_said(void **state) {
    (void)state;
    static tess__plugin plugin;
    tess *t = begin(2, 0, 0);
    assert_int_equal(tess__audit_check(t), TESS_OK);
    assert_string_equal(world.said, "");
    t->plan.model.blocks[0].options.flags = TESS_BLOCK_KEEP;
    t->plan.model.blocks[2].options.flags = 0;
    assert_int_equal(tess__audit_check(t), TESS_OK);
    assert_string_equal(world.said,
                        "audit: 2 of 3 blocks promise no bits (TESS_BLOCK_AUDIT) and are left out: in, out");
    assert_int_equal(world.level, TESS_LOG_WARNING);
    t = begin(2, 1, 0);
    t->plan.model.blocks[0].options.flags = 0;
    assert_int_equal(tess__audit_check(t), TESS_OK);
    assert_string_equal(world.said, ""); /* once for all ranks */
    for (int i = 1; i < 3; i++)
        t->plan.model.blocks[i].options.flags = 0;
    assert_int_equal(tess__audit_check(t), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(),
                        "TESSERA_AUDIT=1/4: no block promises the same bits on every rank (TESS_BLOCK_AUDIT)");
    plugin.name[0] = 'x';
    t->device.plugin = &plugin;
    t->plan.setup.env.mem = TESS_MEM_CUDA;
    assert_int_equal(tess__audit_check(t), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(), "TESSERA_AUDIT=1/4: device x has memory that the host does not read");
    t->plan.model.n_blocks = 0;
    assert_int_equal(tess__audit_check(t), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(), "TESSERA_AUDIT=1/4: this program declares no blocks (tess_block_add)");
    t->plan.setup.audit_every = 0;
    assert_int_equal(tess__audit_check(t), TESS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_audit_verdict__every_block_has_its_turn_once_in_so_many_passes),
        cmocka_unit_test(test_audit_verdict__over_the_rounds_each_audits_each_other),
        cmocka_unit_test(test_audit_verdict__the_first_difference_of_the_lowest_rank_counts),
        cmocka_unit_test(test_audit_verdict__the_referees_word_decides),
        cmocka_unit_test(test_audit_verdict__a_late_result_is_compared_behind_backward),
        cmocka_unit_test(test_audit_verdict__two_ranks_have_nobody_to_ask),
        cmocka_unit_test(test_audit_verdict__who_says_that_its_input_changed_is_wrong),
        cmocka_unit_test(test_audit_verdict__a_third_rank_is_asked),
        cmocka_unit_test(test_audit_verdict__without_a_difference_nothing_is_said),
        cmocka_unit_test(test_audit_verdict__the_wrong_rank_is_left_behind),
        cmocka_unit_test(test_audit_verdict__what_cannot_be_audited_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

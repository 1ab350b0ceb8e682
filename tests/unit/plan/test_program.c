/* SPDX-License-Identifier: BSD-3-Clause */
/* The program as a value: its hash and its words. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>

#include "tests/unit/plan_fixture.h"

enum { FIELDS = 13 };

/* One instruction and one buffer; field `changed` differs. */
static uint64_t hash_with(int changed) {
    const uint32_t x = 1;
    tess__program p = { .kind = changed == 0 ? 2 : 1 };
    tess__buffer b = { .role = (uint8_t)(changed == 1 ? 2 : x),
                       .domain = (uint8_t)(changed == 2 ? 2 : x),
                       .arena = (uint8_t)(changed == 3 ? 2 : x),
                       .category = (uint8_t)(changed == 4 ? 2 : x),
                       .index = changed == 5,
                       .bytes = changed == 6 ? 128 : 64,
                       .offset = changed == 7 ? 64 : 0 };
    int32_t at;
    assert_int_equal(tess__program_buffer(&p, &b, &at), TESS_OK);
    assert_int_equal(tess__program_instr(&p, changed == 8 ? TESS__REDUCE : TESS__GATHER, changed == 9, changed == 10, 0,
                                         changed == 11 ? 7 : 6),
                     TESS_OK);
    if (changed == 12)
        assert_int_equal(tess__program_instr(&p, TESS__FREE, 0, 0, 0, 0), TESS_OK);
    uint64_t h = tess__program_hash(&p);
    tess__program_free(&p);
    return h;
}

static void test_program__the_hash_changes_with_any_field(void **state) {
    (void)state;
    uint64_t plain = hash_with(-1);
    assert_true(plain == hash_with(-1));
    for (int i = 0; i < FIELDS; i++)
        for (int k = -1; k < i; k++)
            if (hash_with(i) == hash_with(k))
                fail_msg("fields %d and %d give the same hash", i, k);
}

/* The tag of one collective; field `changed` differs. */
static uint64_t tag_with(int changed) {
    tess__planned_collective c = { .op = changed == 0 ? TESS_ALL_REDUCE : TESS_REDUCE_SCATTER,
                                   .redop = changed == 1 ? TESS_MAX : TESS_SUM,
                                   .which = changed == 2 ? TESS__REPLICA : TESS__SHARD,
                                   .is_mean = changed == 3,
                                   .send_dtype = changed == 4 ? TESS_BF16 : TESS_F32,
                                   .recv_dtype = changed == 5 ? TESS_BF16 : TESS_F32,
                                   .members = changed == 6 ? 3 : 2,
                                   .scratch = -1,
                                   .count = changed == 7 ? 128 : 64 };
    tess__program p = { .kind = changed == 8 ? 2 : 1 };
    assert_int_equal(tess__program_collective(&p, changed == 9 ? TESS__REPLICATE : TESS__REDUCE, 0, changed == 10,
                                              changed == 11, &c),
                     TESS_OK);
    assert_int_equal(p.instrs[0].collective, 0);
    assert_int_equal(p.collectives[0].count, c.count);
    uint64_t tag = p.instrs[0].tag;
    tess__program_free(&p);
    return tag;
}

static void test_program__the_tag_changes_with_any_field_of_the_collective(void **state) {
    (void)state;
    for (int i = 0; i < 12; i++)
        for (int k = -1; k < i; k++)
            if (tag_with(i) == tag_with(k))
                fail_msg("fields %d and %d give the same tag", i, k);
}

static void test_program__clearing_keeps_nothing_but_memory(void **state) {
    (void)state;
    tess__program p = { .kind = 1 };
    for (int32_t i = 0; i < 1000; i++) {
        tess__buffer b = { .index = i };
        int32_t at = -1;
        assert_int_equal(tess__program_buffer(&p, &b, &at), TESS_OK);
        assert_int_equal(at, i);
        assert_int_equal(tess__program_instr(&p, TESS__ALLOC, 0, i, at, 0), TESS_OK);
        assert_int_equal(tess__program_event(&p, TESS__FORWARD_BEGIN, i), TESS_OK);
    }
    assert_int_equal(p.instrs[999].index, 999);
    assert_int_equal(p.events[999].scope, 999);
    tess__program_clear(&p);
    assert_true(p.n_instrs == 0 && p.n_buffers == 0 && p.n_events == 0);
    tess__program_free(&p);
    assert_null(p.instrs);
}

/* What the messages say of an instruction: the operation, the unit, the scope. */
static void test_program__instructions_read_as_what_they_do(void **state) {
    (void)state;
    plan p;
    char text[256];
    int gathers = 0, enters = 0, books = 0;
    plan_init(&p, 4);
    plan_scope(&p, "h.1");
    plan_param(&p, "h.1.w", 1000, 0);
    plan_layout(&p);
    assert_int_equal(tess__compile_pass(&p.compiler, TESS_PASS_TRAIN, NULL, 0, &p.program), TESS_OK);
    for (int32_t i = 0; i < p.program.n_instrs; i++) {
        tess__program_text(&p.program, &p.model, &p.layout, i, text, sizeof text);
        assert_null(strchr(text, '?'));
        gathers += strcmp(text, "all_gather of unit h.1 (1024 elements)") == 0;
        enters += strcmp(text, "enter backward of \"h.1\"") == 0;
        books += strcmp(text, "book unsharded gradient of unit h.1, 4096 bytes") == 0;
    }
    assert_true(gathers >= 1);
    assert_int_equal(enters, 1);
    assert_int_equal(books, 1);
    tess__program_text(&p.program, &p.model, &p.layout, 0, text, 8); /* too little room: cut, not written beyond */
    assert_int_equal(strlen(text), 7);
    plan_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_program__the_hash_changes_with_any_field),
        cmocka_unit_test(test_program__the_tag_changes_with_any_field_of_the_collective),
        cmocka_unit_test(test_program__clearing_keeps_nothing_but_memory),
        cmocka_unit_test(test_program__instructions_read_as_what_they_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* The kit's view of one collective: checks, sizes, announcements, splits. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kit/collective.h"
#include "kit/plugin_base.h"

static const kit_reach reach = { "net", 1u << TESS_MEM_HOST, "host memory" };
static float memory[64];

static tess_collective call_of(uint32_t op, const void *send, void *recv, uint64_t count) {
    const tess_collective c = { .struct_size = sizeof c,
                                .op = op,
                                .redop = op == TESS_REDUCE_SCATTER || op == TESS_ALL_REDUCE ? TESS_SUM : 0,
                                .send_dtype = TESS_F32,
                                .send_mem = TESS_MEM_HOST,
                                .recv_mem = TESS_MEM_HOST,
                                .send = send,
                                .recv = recv,
                                .count = count,
                                .tag = 5 };
    return kit_take_call(&c, sizeof c);
}

static tess_status check_on_rank_1_of_2(tess_collective c) {
    return kit_check_call(&reach, &c, 1, 2, 0, NULL);
}

static void test_check__in_place_only_where_plugin_h_says(void **state) {
    (void)state;
    assert_int_equal(check_on_rank_1_of_2(call_of(TESS_ALL_GATHER, memory + 8, memory, 8)), TESS_OK);
    assert_int_equal(check_on_rank_1_of_2(call_of(TESS_ALL_GATHER, memory + 7, memory, 8)), TESS_E_INVALID);
    assert_int_equal(check_on_rank_1_of_2(call_of(TESS_REDUCE_SCATTER, memory, memory + 8, 8)), TESS_E_INVALID);
    assert_int_equal(check_on_rank_1_of_2(call_of(TESS_REDUCE_SCATTER, memory, memory + 16, 8)), TESS_OK);
    assert_int_equal(check_on_rank_1_of_2(call_of(TESS_ALL_REDUCE, memory, memory, 8)), TESS_OK);
    assert_int_equal(check_on_rank_1_of_2(call_of(TESS_ALL_TO_ALL, memory, memory, 8)), TESS_E_INVALID);
}

static void test_check__sums_of_floats_become_any_of_the_three(void **state) {
    (void)state;
    static const uint32_t floats[] = { TESS_F16, TESS_BF16, TESS_F32 };
    for (int in = 0; in < 3; in++)
        for (int out = 0; out < 3; out++) {
            tess_collective c = call_of(TESS_REDUCE_SCATTER, memory, memory + 16, 8);
            c.send_dtype = floats[in], c.recv_dtype = floats[out];
            assert_int_equal(check_on_rank_1_of_2(c), TESS_OK);
            c.op = TESS_ALL_GATHER;
            assert_int_equal(check_on_rank_1_of_2(c), in == out ? TESS_OK : TESS_E_UNSUPPORTED);
        }
}

static void test_check__scratch_is_looked_at_only_when_running(void **state) {
    (void)state;
    tess_collective c = call_of(TESS_REDUCE_SCATTER, memory, memory + 16, 8);
    assert_int_equal(kit_check_call(&reach, &c, -1, 2, 64, NULL), TESS_OK);
    assert_int_equal(kit_check_call(&reach, &c, 0, 2, 64, NULL), TESS_E_INVALID);
    c.scratch = memory, c.scratch_bytes = 64;
    assert_int_equal(kit_check_call(&reach, &c, 0, 2, 64, NULL), TESS_OK);
}

static void compare(const kit_announcement *a, const kit_announcement *b, tess_status s, const char *text) {
    tess_error e = { .struct_size = sizeof e };
    assert_int_equal(kit_compare("net", a, 0, b, 3, &e), s);
    assert_string_equal(e.message, text);
    assert_int_equal(e.rank, s ? 3 : 0);
}

static void test_announcement__a_mismatch_names_both_sides(void **state) {
    (void)state;
    tess_collective c = call_of(TESS_ALL_GATHER, memory, memory, 5), d = c;
    kit_announcement a = kit_announce(&c, 1, 7), b = a;
    compare(&a, &b, TESS_OK, "");
    d.op = TESS_ALL_REDUCE, d.redop = TESS_MAX;
    b = kit_announce(&d, 1, 7);
    compare(
        &a, &b, TESS_E_MISMATCH,
        "net: ranks disagree: rank 0 does all_gather of 5 f32, tag 0x5; rank 3 does all_reduce max of 5 f32, tag 0x5");
    b = kit_announce(&c, 1, 8);
    compare(
        &a, &b, TESS_E_MISMATCH,
        "net: ranks disagree: rank 0 does all_gather of 5 f32, tag 0x5, number 7; rank 3 does all_gather of 5 f32, tag "
        "0x5, number 8");
    b = kit_announce_own(KIT_OP_FINALIZE, 2, 7);
    compare(&a, &b, TESS_E_MISMATCH,
            "net: ranks disagree: rank 0 does all_gather of 5 f32, tag 0x5; rank 3 does finalize");
}

static void test_announcement__covers_every_agreed_field(void **state) {
    (void)state;
    tess_collective c[2] = { call_of(TESS_ALL_REDUCE, memory, memory, 5), call_of(TESS_BROADCAST, memory, memory, 5) };
    const kit_announcement usual = kit_announce(c, 2, 7);
#define DIFFERS(i, change)                                                                                             \
    do {                                                                                                               \
        tess_collective odd[2] = { c[0], c[1] };                                                                       \
        odd[i].change;                                                                                                 \
        const kit_announcement other = kit_announce(odd, 2, 7);                                                        \
        assert_int_equal(kit_compare("net", &usual, 0, &other, 1, NULL), TESS_E_MISMATCH);                             \
    } while (0)
    DIFFERS(0, op = TESS_REDUCE_SCATTER);
    DIFFERS(0, redop = TESS_MIN);
    DIFFERS(0, send_dtype = TESS_BF16);
    DIFFERS(0, recv_dtype = TESS_BF16);
    DIFFERS(0, flags = KIT_ADD);
    DIFFERS(0, scale = 0.5);
    DIFFERS(0, count = 6);
    DIFFERS(0, tag = 6);
    DIFFERS(0, seq = 1);
    DIFFERS(1, root = 1);
    DIFFERS(1, tag = 6);
    const kit_announcement one = kit_announce(c, 1, 7);
    assert_int_equal(kit_compare("net", &usual, 0, &one, 1, NULL), TESS_E_MISMATCH);
}

static void test_split__orders_by_key_then_rank(void **state) {
    (void)state;
    const kit_choice all[] = { { 1, 5, 0 }, { 0, 0, 0 }, { 1, -2, 0 }, { 1, 5, 0 }, { -1, 0, 0 } };
    int32_t members[5], place;
    assert_int_equal(kit_split_members(all, 5, 1, 3, members, &place), 3);
    assert_int_equal(place, 2);
    assert_int_equal(members[0], 2);
    assert_int_equal(members[1], 0);
    assert_int_equal(members[2], 3);
    assert_int_equal(kit_split_members(all, 5, 7, 3, members, &place), 0);
    assert_int_equal(kit_split_members(all, 5, -1, 4, members, &place), 0); /* in no group */
}

static void test_place__is_one_of_the_ranks_of_a_named_group(void **state) {
    (void)state;
    tess_error e = { .struct_size = sizeof e };
    tess_comm_config c = { .struct_size = sizeof c, .nranks = 2, .rank = 1, .group = "g" };
    assert_int_equal(kit_check_place("net", &c, &e), TESS_OK);
    c.rank = 2;
    assert_int_equal(kit_check_place("net", &c, &e), TESS_E_INVALID);
    assert_string_equal(e.message, "net: rank 2 of 2 ranks");
    c.rank = -1;
    assert_int_equal(kit_check_place("net", &c, NULL), TESS_E_INVALID);
    c = (tess_comm_config){ .struct_size = sizeof c, .nranks = 1 };
    assert_int_equal(kit_check_place("net", &c, NULL), TESS_E_INVALID);
    c = (tess_comm_config){ .struct_size = sizeof c, .group = "g" };
    assert_int_equal(kit_check_place("net", &c, NULL), TESS_E_INVALID);
}

static void test_cpu_list__is_the_kernels_form(void **state) {
    (void)state;
    cpu_set_t set;
    assert_int_equal(kit_cpu_list("2,6-7", &set), 1);
    assert_int_equal(CPU_COUNT(&set), 3);
    assert_true(CPU_ISSET(2, &set) && CPU_ISSET(6, &set) && CPU_ISSET(7, &set));
    assert_int_equal(kit_cpu_list("0-1", &set), 1);
    assert_true(CPU_COUNT(&set) == 2 && CPU_ISSET(0, &set));
    static const char *const bad[] = { "", "x", "3-", "0-", "7-6", "-1", "1;2", "1,a" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(kit_cpu_list(bad[i], &set), 0);
    assert_int_equal(kit_cpu_list(NULL, &set), 0);
}

static void test_error_copy__stops_at_the_callers_size(void **state) {
    (void)state;
    const tess_error from = { .struct_size = sizeof from, .code = TESS_E_PEER, .rank = 3, .message = "long enough" };
    struct {
        tess_error error;
        char guard;
    } to = { .error = { .struct_size = offsetof(tess_error, message) + 5 } };
    memset(to.error.message, 'x', sizeof to.error.message);
    assert_int_equal(tess_plugin_copy_error(&to.error, &from), TESS_E_PEER);
    assert_memory_equal(to.error.message, "long\0xxx", 8);
    assert_int_equal(to.error.rank, 3);
    assert_int_equal(to.error.struct_size, offsetof(tess_error, message) + 5);
    assert_int_equal(tess_plugin_copy_error(NULL, &from), TESS_E_PEER);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check__in_place_only_where_plugin_h_says),
        cmocka_unit_test(test_check__sums_of_floats_become_any_of_the_three),
        cmocka_unit_test(test_check__scratch_is_looked_at_only_when_running),
        cmocka_unit_test(test_announcement__a_mismatch_names_both_sides),
        cmocka_unit_test(test_announcement__covers_every_agreed_field),
        cmocka_unit_test(test_split__orders_by_key_then_rank),
        cmocka_unit_test(test_place__is_one_of_the_ranks_of_a_named_group),
        cmocka_unit_test(test_cpu_list__is_the_kernels_form),
        cmocka_unit_test(test_error_copy__stops_at_the_callers_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

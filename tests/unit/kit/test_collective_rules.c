/* SPDX-License-Identifier: BSD-3-Clause */
/* The rules of one collective, case by case: what each refusal says, every place of send and recv against a rule of the
 * test's own, sizes, words, announcements and splits at their bounds. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "kit/collective.h"

#define MOST_COUNT (UINT64_C(1) << 48)
static const kit_reach reach = { "net", 1u << TESS_MEM_HOST | 1u << TESS_MEM_SHM, "host memory" };
static float memory[256];

static tess_collective call_of(uint32_t op) {
    const tess_collective c = { .struct_size = sizeof c,
                                .op = op,
                                .redop = op == TESS_REDUCE_SCATTER || op == TESS_ALL_REDUCE ? TESS_SUM : 0,
                                .send_dtype = TESS_F32,
                                .recv_dtype = TESS_F32,
                                .send_mem = TESS_MEM_HOST,
                                .recv_mem = TESS_MEM_SHM,
                                .send = memory,
                                .recv = memory + 128,
                                .count = 8,
                                .scale = 1 };
    return c;
}

static void refuses(const tess_collective *c, int32_t rank, uint64_t scratch, tess_status status, const char *why) {
    tess_error e = { .struct_size = sizeof e };
    assert_int_equal(kit_check_call(&reach, c, rank, 3, scratch, &e), status);
    assert_string_equal(e.message, why);
}

static void takes(const tess_collective *c) {
    for (int32_t rank = -1; rank < 3; rank++)
        refuses(c, rank, 0, TESS_OK, "");
}

#define REFUSED(op, change, status, why)                                                                               \
    do {                                                                                                               \
        tess_collective c = call_of(op);                                                                               \
        change;                                                                                                        \
        refuses(&c, -1, 0, status, why);                                                                               \
        refuses(&c, 1, 0, status, why);                                                                                \
    } while (0)

static void test_rules__what_cannot_be_done_is_said_when_planning_too(void **state) {
    (void)state;
    for (uint32_t op = TESS_ALL_GATHER; op <= TESS_BARRIER; op++) {
        const tess_collective c = call_of(op);
        takes(&c);
    }
    REFUSED(0, (void)0, TESS_E_UNSUPPORTED, "net: operation 0");
    REFUSED(TESS_ALL_TO_ALL_V + 1, (void)0, TESS_E_UNSUPPORTED, "net: operation 8");
    REFUSED(TESS_ALL_REDUCE, c.redop = 0, TESS_E_UNSUPPORTED, "net: reduction 0, expected sum, min or max");
    REFUSED(TESS_ALL_REDUCE, c.redop = TESS_MAX + 1, TESS_E_UNSUPPORTED, "net: reduction 4, expected sum, min or max");
    REFUSED(TESS_ALL_GATHER, c.send_dtype = 0, TESS_E_UNSUPPORTED, "net: all_gather of no dtype into f32");
    REFUSED(TESS_ALL_GATHER, c.recv_dtype = TESS_F64, TESS_E_UNSUPPORTED, "net: all_gather of f32 into f64");
    REFUSED(TESS_BROADCAST, c.recv_dtype = TESS_BF16, TESS_E_UNSUPPORTED, "net: broadcast of f32 into bf16");
    REFUSED(TESS_REDUCE_SCATTER, c.recv_dtype = TESS_F64, TESS_E_UNSUPPORTED, "net: sum of f32 into f64");
    REFUSED(TESS_REDUCE_SCATTER, (c.send_dtype = TESS_F64, c.redop = TESS_MIN), TESS_E_UNSUPPORTED,
            "net: min of f64 into f32");
    REFUSED(TESS_ALL_REDUCE, (c.flags = KIT_ADD, c.redop = TESS_MAX), TESS_E_UNSUPPORTED,
            "net: only a sum adds to what recv holds");
    REFUSED(TESS_ALL_REDUCE, (c.send_dtype = c.recv_dtype = TESS_I64, c.scale = 0.5), TESS_E_INVALID,
            "net: scale 0.5 on integers, expected 1");
    REFUSED(TESS_ALL_REDUCE, c.count = MOST_COUNT + 1, TESS_E_INVALID, "net: count 281474976710657");
    REFUSED(TESS_BROADCAST, c.root = -1, TESS_E_INVALID, "net: root -1 of 3 ranks");
    REFUSED(TESS_BROADCAST, c.root = 3, TESS_E_INVALID, "net: root 3 of 3 ranks");
    tess_collective most = call_of(TESS_ALL_GATHER), last = call_of(TESS_BROADCAST), other = call_of(TESS_ALL_GATHER);
    most.count = MOST_COUNT;
    refuses(&most, -1, 0, TESS_OK, "");
    last.root = 2;
    takes(&last);
    other.root = 77; /* means something to a broadcast alone */
    takes(&other);
    tess_collective barrier = { .struct_size = sizeof barrier, .op = TESS_BARRIER };
    takes(&barrier);
}

static void test_rules__memory_is_looked_at_where_there_is_something(void **state) {
    (void)state;
    tess_collective c = call_of(TESS_ALL_GATHER);
    static const uint32_t odd[] = { 0, TESS_MEM_PINNED, TESS_MEM_CUDA, 31, 32, 33 };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        char want[96];
        c.send_mem = odd[i], c.recv_mem = TESS_MEM_HOST;
        snprintf(want, sizeof want, "net: memory kinds %u and 1, expected host memory", odd[i]);
        refuses(&c, 0, 0, TESS_E_UNSUPPORTED, want);
        c.send_mem = TESS_MEM_HOST, c.recv_mem = odd[i];
        snprintf(want, sizeof want, "net: memory kinds 1 and %u, expected host memory", odd[i]);
        refuses(&c, 0, 0, TESS_E_UNSUPPORTED, want);
        refuses(&c, -1, 0, TESS_OK, "");
        c.count = 0; /* then there is none */
        refuses(&c, 0, 0, TESS_OK, "");
        c.count = 8;
    }
    c = call_of(TESS_ALL_GATHER);
    c.send = NULL;
    refuses(&c, 0, 0, TESS_E_INVALID, "net: send is null with count 8");
    c = call_of(TESS_ALL_GATHER);
    c.recv = NULL;
    refuses(&c, 0, 0, TESS_E_INVALID, "net: recv is null with count 8");
    c = call_of(TESS_BROADCAST);
    c.root = 1, c.recv = NULL; /* the root needs no place to receive, and the others none to send */
    refuses(&c, 1, 0, TESS_OK, "");
    refuses(&c, 0, 0, TESS_E_INVALID, "net: recv is null with count 8");
    c.recv = memory, c.send = NULL;
    refuses(&c, 0, 0, TESS_OK, "");
    refuses(&c, 1, 0, TESS_E_INVALID, "net: send is null with count 8");
    c = call_of(TESS_ALL_REDUCE);
    refuses(&c, 0, 65, TESS_E_INVALID, "net: 0 bytes of scratch, expected 65");
    c.scratch = memory + 200, c.scratch_bytes = 64;
    refuses(&c, 0, 65, TESS_E_INVALID, "net: 64 bytes of scratch, expected 65");
    refuses(&c, 0, 64, TESS_OK, "");
}

/* Whether [a, a + n) and [b, b + m) have an element in common. */
static int meet(int a, int n, int b, int m) {
    for (int i = a; i < a + n; i++)
        if (i >= b && i < b + m)
            return 1;
    return 0;
}

/* Places of send and recv, in elements, around each other: apart, or in place as plugin.h says. */
static int may_lie(const tess_collective *c, int send, int recv, int rank, int w) {
    const int n = (int)c->count;
    switch (c->op) {
    case TESS_ALL_GATHER: return send == recv + rank * n || !meet(send, n, recv, w * n);
    case TESS_ALL_TO_ALL: return (w == 1 && send == recv) || !meet(send, w * n, recv, w * n);
    case TESS_REDUCE_SCATTER: return !meet(send, w * n, recv, n);
    case TESS_ALL_REDUCE: return (send == recv && !(c->flags & KIT_ADD)) || !meet(send, n, recv, n);
    case TESS_BROADCAST: return rank != c->root || send == recv || !meet(send, n, recv, n);
    default: return 1;
    }
}

static void test_rules__send_and_recv_lie_apart_or_in_place(void **state) {
    (void)state;
    enum { AT = 100 };
    for (int w = 1; w <= 3; w++)
        for (int rank = 0; rank < w; rank++)
            for (uint32_t op = TESS_ALL_GATHER; op <= TESS_BARRIER; op++)
                for (int n = 1; n <= 3; n++)
                    for (int by = -10; by <= 10; by++)
                        for (uint32_t flags = 0; flags <= (op == TESS_ALL_REDUCE); flags++) {
                            tess_collective c = call_of(op);
                            tess_error e = { .struct_size = sizeof e };
                            c.flags = flags;
                            c.count = (uint64_t)n;
                            c.root = w - 1;
                            c.send = memory + AT;
                            c.recv = memory + AT + by;
                            const int may = may_lie(&c, AT, AT + by, rank, w);
                            if (kit_check_call(&reach, &c, rank, w, 0, &e) != (may ? TESS_OK : TESS_E_INVALID))
                                fail_msg("%s of %d by %d on rank %d of %d: %s", kit_op_name(op), n, by, rank, w,
                                         e.message);
                            assert_string_equal(e.message, may ? "" : "net: send and recv overlap other than in place");
                        }
    tess_collective narrow = call_of(TESS_ALL_REDUCE); /* what comes out is smaller: it is no place for both */
    narrow.recv_dtype = TESS_BF16;
    narrow.recv = memory;
    refuses(&narrow, 0, 0, TESS_E_INVALID, "net: send and recv overlap other than in place");
    tess_collective scatter = call_of(TESS_REDUCE_SCATTER);
    scatter.recv_dtype = TESS_BF16;
    scatter.send = memory + 4; /* eight of two bytes end where it begins */
    scatter.recv = memory;
    refuses(&scatter, 0, 0, TESS_OK, "");
    scatter.send = memory + 3;
    refuses(&scatter, 0, 0, TESS_E_INVALID, "net: send and recv overlap other than in place");
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++)
            for (int by = -4; by <= 4; by++)
                assert_int_equal(kit_overlap((char *)memory + 8, (uint64_t)a, (char *)memory + 8 + by, (uint64_t)b),
                                 meet(8, a, 8 + by, b));
}

static void test_rules__shards_end_at_64_elements(void **state) {
    (void)state;
    static const struct {
        uint64_t count;
        int32_t ranks;
        uint64_t shard;
    } cases[] = { { 0, 2, 0 },      { 1, 1, 1 },      { 63, 2, 63 },    { 64, 2, 64 },  { 65, 2, 64 },
                  { 128, 2, 64 },   { 129, 2, 128 },  { 130, 2, 128 },  { 192, 3, 64 }, { 193, 3, 128 },
                  { 1000, 4, 256 }, { 1024, 4, 256 }, { 1025, 4, 320 }, { 100, 3, 64 }, { 60, 3, 60 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_collective c = call_of(TESS_ALL_REDUCE);
        c.count = cases[i].count;
        assert_int_equal(kit_shard_elems(&c, cases[i].ranks), cases[i].shard);
        c.op = TESS_REDUCE_SCATTER;
        assert_int_equal(kit_shard_elems(&c, cases[i].ranks), cases[i].count);
    }
}

static void test_rules__a_call_is_taken_as_far_as_it_goes(void **state) {
    (void)state;
    tess_collective c = call_of(TESS_ALL_GATHER);
    c.tag = 77, c.scale = 0, c.recv_dtype = 0, c.seq = 9;
    tess_collective got = kit_take_call(&c, sizeof c);
    assert_true(got.recv_dtype == TESS_F32 && got.scale == 1 && got.tag == 77 && got.seq == 9);
    c.scale = 0.25, c.recv_dtype = TESS_BF16;
    got = kit_take_call(&c, sizeof c);
    assert_true(got.recv_dtype == TESS_BF16 && got.scale == 0.25);
    got = kit_take_call(&c, offsetof(tess_collective, tag));
    assert_true(got.tag == 0 && got.op == TESS_ALL_GATHER && got.count == 8);
    struct {
        tess_collective c;
        char more[16];
    } longer = { .c = c };
    got = kit_take_call(&longer.c, sizeof longer);
    assert_true(got.tag == 77);
}

/* Of three ranks; rank 1 sends 1 + 2 + 3 elements and gets 4 + 2. */
static void test_rules__parts_are_no_longer_than_count(void **state) {
    (void)state;
    uint64_t send[3] = { 1, 2, 3 }, recv[3] = { 4, 2, 0 };
    tess_collective c = call_of(TESS_ALL_TO_ALL_V);
    c.send = memory, c.recv = memory + 8, c.count = 6;
    assert_int_equal(kit_parts_before(send, 0), 0);
    assert_int_equal(kit_parts_before(send, 2), 3);
    refuses(&c, 1, 0, TESS_E_INVALID, "net: send_parts is null");
    c.send_parts = send;
    refuses(&c, 1, 0, TESS_E_INVALID, "net: recv_parts is null");
    c.recv_parts = recv;
    refuses(&c, 1, 0, TESS_OK, "");
    c.recv = memory + 6;
    refuses(&c, 1, 0, TESS_OK, "");
    c.recv = memory + 5;
    refuses(&c, 1, 0, TESS_E_INVALID, "net: send and recv overlap other than in place");
    c.recv = memory + 8, c.count = 5;
    refuses(&c, 1, 0, TESS_E_INVALID, "net: the parts are longer than count 5");
    c.count = 6, recv[0] = 5;
    refuses(&c, 1, 0, TESS_E_INVALID, "net: the parts are longer than count 6");
    recv[0] = UINT64_MAX, recv[2] = 2; /* in all 3 */
    refuses(&c, 1, 0, TESS_E_INVALID, "net: the parts are longer than count 6");
    recv[0] = 3, recv[1] = 1, recv[2] = 0;
    refuses(&c, 1, 0, TESS_E_INVALID, "net: rank 1 sends itself 2 elements and expects 1");
}

static void test_rules__caps_are_all_that_there_is(void **state) {
    (void)state;
    const tess_comm_caps c =
        kit_caps(TESS_COMM_ABORT, 6, "net-1 and more than the field has room for, by some words of text");
    assert_int_equal(c.caps, TESS_COMM_ABORT);
    assert_int_equal(c.op_mask, 0x7e);
    assert_int_equal(c.dtype_mask, (2u << TESS_F64) - (1u << TESS_U8));
    assert_int_equal(c.redop_mask, 0xe);
    assert_int_equal(c.mem_mask, 6);
    assert_int_equal(c.align, 1);
    assert_true(c.max_bytes == MOST_COUNT);
    assert_int_equal(strlen(c.wire_id), sizeof c.wire_id - 1);
    assert_int_equal(strncmp(c.wire_id, "net-1 and more", 14), 0);
}

static void test_rules__operations_have_names(void **state) {
    (void)state;
    static const struct {
        uint32_t op;
        const char *name;
    } names[] = { { 0, "an unknown operation" },
                  { TESS_ALL_GATHER, "all_gather" },
                  { TESS_REDUCE_SCATTER, "reduce_scatter" },
                  { TESS_ALL_REDUCE, "all_reduce" },
                  { TESS_BROADCAST, "broadcast" },
                  { TESS_ALL_TO_ALL, "all_to_all" },
                  { TESS_BARRIER, "barrier" },
                  { TESS_ALL_TO_ALL_V, "all_to_all_v" },
                  { TESS_ALL_TO_ALL_V + 1, "an unknown operation" },
                  { KIT_OP_JOIN - 1, "an unknown operation" },
                  { KIT_OP_JOIN, "init" },
                  { KIT_OP_SPLIT, "split" },
                  { KIT_OP_FINALIZE, "finalize" },
                  { KIT_OP_FINALIZE + 1, "an unknown operation" } };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_string_equal(kit_op_name(names[i].op), names[i].name);
}

/* ---- announcements ---- */

static void describes(const tess_collective *c, const char *want) {
    char text[88], cut[9];
    const kit_announcement a = kit_announce(c, 1, 3);
    assert_string_equal(kit_describe(&a, text, sizeof text), want);
    assert_int_equal(strlen(kit_describe(&a, cut, sizeof cut)), strlen(want) < 8 ? strlen(want) : 8);
    assert_int_equal(strncmp(cut, want, 8 < strlen(want) ? 8 : strlen(want)), 0);
}

static void test_rules__announcements_are_described(void **state) {
    (void)state;
    tess_collective c = call_of(TESS_REDUCE_SCATTER);
    c.tag = 0x1f;
    describes(&c, "reduce_scatter sum of 8 f32, tag 0x1f");
    c.redop = TESS_MIN, c.recv_dtype = TESS_BF16, c.count = 0;
    describes(&c, "reduce_scatter min of 0 f32 into bf16, tag 0x1f");
    c = call_of(TESS_ALL_TO_ALL);
    c.send_dtype = c.recv_dtype = TESS_U8;
    describes(&c, "all_to_all of 8 u8, tag 0");
    c = call_of(TESS_BARRIER);
    c.tag = 1;
    describes(&c, "barrier, tag 0x1");
    char text[32];
    kit_announcement own = kit_announce_own(KIT_OP_SPLIT, 5, 6);
    assert_string_equal(kit_describe(&own, text, sizeof text), "split");
    assert_true(own.op == KIT_OP_SPLIT && own.n == 1 && own.tag == 5 && own.seq == 6 && !own.count && !own.rest);
}

static void differ(tess_collective *mine, uint32_t n, tess_collective *theirs, uint32_t m, const char *want) {
    const kit_announcement a = kit_announce(mine, n, 3), b = kit_announce(theirs, m, 3);
    tess_error e = { .struct_size = sizeof e };
    assert_int_equal(kit_compare("net", &a, 1, &b, 2, &e), TESS_E_MISMATCH);
    assert_int_equal(e.rank, 2);
    assert_string_equal(e.message, want);
}

static void test_rules__what_the_short_form_leaves_out_is_added_where_it_differs(void **state) {
    (void)state;
    tess_collective a[2] = { call_of(TESS_BROADCAST), call_of(TESS_BARRIER) }, b[2] = { a[0], a[1] };
    b[0].root = 2;
    differ(a, 1, b, 1,
           "net: ranks disagree: rank 1 does broadcast of 8 f32, tag 0, root 0; rank 2 does broadcast of 8 f32, "
           "tag 0, root 2");
    b[0] = a[0];
    differ(a, 1, b, 2,
           "net: ranks disagree: rank 1 does broadcast of 8 f32, tag 0 and 0 more; rank 2 does broadcast of 8 "
           "f32, tag 0 and 1 more");
    b[0].seq = 5;
    differ(a, 1, b, 1,
           "net: ranks disagree: rank 1 does broadcast of 8 f32, tag 0, number 0; rank 2 does broadcast of 8 "
           "f32, tag 0, number 5");
    a[0] = b[0] = call_of(TESS_ALL_REDUCE);
    b[0].scale = 0.5;
    differ(a, 1, b, 1,
           "net: ranks disagree: rank 1 does all_reduce sum of 8 f32, tag 0, scale 1; rank 2 does all_reduce sum "
           "of 8 f32, tag 0, scale 0.5");
    b[0].scale = 1, b[0].flags = KIT_ADD;
    differ(a, 1, b, 1,
           "net: ranks disagree: rank 1 does all_reduce sum of 8 f32, tag 0, flags 0; rank 2 does all_reduce sum "
           "of 8 f32, tag 0, flags 1");
}

/* What does not concern an operation is not compared. */
static void test_rules__only_what_counts_is_announced(void **state) {
    (void)state;
    for (uint32_t op = TESS_ALL_GATHER; op <= TESS_BARRIER; op++) {
        tess_collective c = call_of(op), odd = c;
        odd.send = odd.recv = NULL;
        odd.scratch_bytes = 99;
        odd.send_mem = odd.recv_mem = 3;
        if (op != TESS_BROADCAST)
            odd.root = 2;
        if (!kit_reduces(&c))
            odd.scale = 7, odd.flags = KIT_ADD, odd.redop = TESS_MAX;
        if (op == TESS_BARRIER)
            odd.count = 5, odd.send_dtype = TESS_U8;
        const kit_announcement a = kit_announce(&c, 1, 3), b = kit_announce(&odd, 1, 3);
        assert_int_equal(kit_compare("net", &a, 0, &b, 1, NULL), TESS_OK);
        assert_true(a.n == 1 && a.seq == 3 && a.rest == 0 && a.op == op);
        assert_int_equal(a.count, op == TESS_BARRIER ? 0 : 8);
        assert_int_equal(a.redop, kit_reduces(&c) ? TESS_SUM : 0);
    }
    tess_collective three[3] = { call_of(TESS_BARRIER), call_of(TESS_ALL_GATHER), call_of(TESS_ALL_TO_ALL) };
    tess_collective turned[3] = { three[0], three[2], three[1] };
    const kit_announcement a = kit_announce(three, 3, 0), b = kit_announce(turned, 3, 0);
    assert_true(a.rest && b.rest && a.rest != b.rest && a.n == 3); /* their order counts */
}

/* ---- splits ---- */

/* All choices of four ranks among three colours and three keys, against a sort by (key, rank). */
static void test_rules__every_split_of_four(void **state) {
    (void)state;
    for (int all = 0; all < 9 * 9 * 9 * 9; all++) {
        kit_choice choice[4];
        for (int r = 0, left = all; r < 4; r++, left /= 9)
            choice[r] = (kit_choice){ .color = left % 3 - 1, .key = left / 3 % 3 - 1 };
        for (int32_t color = -1; color < 2; color++) {
            int32_t want[4], got[4], place, n = 0;
            for (int32_t key = -1; key < 2; key++)
                for (int32_t r = 0; r < 4; r++)
                    if (color >= 0 && choice[r].color == color && choice[r].key == key)
                        want[n++] = r;
            for (int32_t rank = 0; rank < 4; rank++) {
                int32_t at = 0;
                while (at < n && want[at] != rank)
                    at++;
                assert_int_equal(kit_split_members(choice, 4, color, rank, got, &place), n);
                assert_int_equal(place, at); /* n: it is none of them */
                assert_memory_equal(got, want, (size_t)n * sizeof *got);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules__what_cannot_be_done_is_said_when_planning_too),
        cmocka_unit_test(test_rules__memory_is_looked_at_where_there_is_something),
        cmocka_unit_test(test_rules__send_and_recv_lie_apart_or_in_place),
        cmocka_unit_test(test_rules__shards_end_at_64_elements),
        cmocka_unit_test(test_rules__a_call_is_taken_as_far_as_it_goes),
        cmocka_unit_test(test_rules__parts_are_no_longer_than_count),
        cmocka_unit_test(test_rules__caps_are_all_that_there_is),
        cmocka_unit_test(test_rules__operations_have_names),
        cmocka_unit_test(test_rules__announcements_are_described),
        cmocka_unit_test(test_rules__what_the_short_form_leaves_out_is_added_where_it_differs),
        cmocka_unit_test(test_rules__only_what_counts_is_announced),
        cmocka_unit_test(test_rules__every_split_of_four),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

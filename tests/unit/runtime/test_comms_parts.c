/* SPDX-License-Identifier: BSD-3-Clause */
/* The small parts of communicators. These tests hold who is in which group, and what a rank says that it does and
 * claims to have done. They hold keys, and the memory that communicators allocate, register and share. The plugin
 * writes down its calls. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/runtime/claims.h"
#include "core/runtime/comms.h"
#include "tests/unit/said.h"

static struct {
    tess_status alloc, reg, share, query;
    uint32_t mem_mask, caps;
    char doing[TESS__ACTIVITY];
    void *handle; /* that registrations give */
} world;
static tess__comms c;
static tess_comm *const first = (tess_comm *)&world, *const second = (tess_comm *)&world.query;

static void tell_doing(const char *text) {
    snprintf(world.doing, sizeof world.doing, "%s", text ? text : "(nothing)");
}
#define tess__control_doing(control, text) tell_doing(text)
#include "core/runtime/comms_state.c"
#include "core/runtime/comms_memory.c"
#include "core/runtime/claims.c"

static const char *name(const tess_comm *comm) {
    return comm == first ? "first" : comm == second ? "second" : comm ? "?" : "none";
}
static tess_status told(tess_error *e, tess_status s) {
    if (s)
        snprintf(e->message, sizeof e->message, "it is broken");
    return s;
}
static tess_status fake_query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    assert_true(ctx == &c && comm && out->struct_size == sizeof *out);
    out->mem_mask = world.mem_mask;
    out->caps = world.caps;
    return world.query;
}
static tess_status fake_alloc(tess_comm *comm, const tess_alloc_request *r, tess_buffer *out, tess_error *e) {
    say("alloc %s %d; ", name(comm), (int)r->bytes);
    *out = (tess_buffer){ .ptr = (void *)4096, .bytes = r->bytes, .reg = world.handle };
    return told(e, world.alloc);
}
static void fake_free(tess_comm *comm, tess_buffer *b) {
    say("free %s %d; ", name(comm), (int)b->bytes);
}
static tess_status fake_register(tess_comm *comm, tess_buffer *b, tess_error *e) {
    say("register %s; ", name(comm));
    b->reg = world.handle;
    return told(e, world.reg);
}
static void fake_deregister(tess_comm *comm, tess_buffer *b) {
    say("deregister %s %d; ", name(comm), (int)b->bytes);
}
static tess_status fake_share(tess_comm *comm, tess_buffer *b, tess_error *e) {
    say("share %s %d in '%s'; ", name(comm), (int)b->bytes, tess__comms_activity(&c));
    return told(e, world.share);
}

static tess_comm_ops ops;
static int begin(void **state) {
    static tess__plugin plugin = { .name = "net" };
    static tess__device device;
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&c, 0, sizeof c);
    ops = (tess_comm_ops){ .struct_size = sizeof ops,
                           .query = fake_query,
                           .mem_alloc = fake_alloc,
                           .mem_free = fake_free,
                           .mem_register = fake_register,
                           .mem_deregister = fake_deregister,
                           .mem_share = fake_share };
    plugin.ctx = &c;
    device.mem = TESS_MEM_CUDA;
    c.ops = &ops;
    c.plugin = &plugin;
    c.device = &device;
    c.control = (tess__control *)&world;
    c.world.rank = 3;
    c.world.nranks = 8;
    world.mem_mask = 1u << TESS_MEM_CUDA;
    world.handle = &world.handle;
    said_so_far[0] = 0;
    return 0;
}

/* ---- who is in a group ---- */

static void test_comms_parts__a_group_has_its_members(void **state) {
    (void)state;
    for (int shards = 1; shards <= 8; shards *= 2)
        for (int32_t rank = 0; rank < 8; rank++) {
            int found[TESS__N_COMMS] = { 0 };
            c.world.rank = rank;
            c.shard_ranks = shards;
            c.shard_rank = rank % shards;
            c.replica_rank = rank / shards;
            c.copy_groups = 3; /* members are three apart: ranks 0, 3, 6, or 1, 4, 7, or 2, 5 */
            for (int which = 0; which < TESS__N_COMMS; which++)
                c.list[which] = (tess_comm *)&c.list[which];
            const int size[TESS__N_COMMS] = { 8, shards, 8 / shards, rank % 3 == 2 ? 2 : 3, shards };
            for (int which = 0; which < TESS__N_COMMS; which++) {
                assert_int_equal(tess__comms_size(&c, which), size[which]);
                assert_int_equal(tess__comms_member(&c, which, -1), -1);
                for (int32_t i = 0; i < size[which]; i++) {
                    const int32_t r = tess__comms_member(&c, which, i);
                    assert_in_range(r, 0, 7);
                    assert_true(i == 0 || r > tess__comms_member(&c, which, i - 1));
                    found[which] += r == rank;
                    const int same = which == TESS__COPY      ? r % 3 == rank % 3
                                     : which == TESS__REPLICA ? r % shards == rank % shards
                                     : which == TESS__WORLD   ? 1
                                                              : r / shards == rank / shards;
                    assert_true(same);
                }
                assert_int_equal(found[which], 1);   /* this rank is in each of its own */
                c.list[which] = c.list[TESS__WORLD]; /* or the group is the world */
                assert_int_equal(tess__comms_size(&c, which), 8);
                assert_int_equal(tess__comms_member(&c, which, 5), 5);
                c.list[which] = (tess_comm *)&c.list[which];
            }
        }
}

static void test_comms_parts__a_communicator_of_several_groups_has_one_first_place(void **state) {
    tess_comm *list[] = { first, second, first, NULL, second };
    static const int stands[] = { 1, 1, 0, 0, 0 };
    (void)state;
    for (int i = 0; i < 5; i++)
        assert_int_equal(tess__comms_stands_first(list, i), stands[i]);
}

/* ---- what this rank does ---- */

static void test_comms_parts__what_a_rank_does_is_told(void **state) {
    char text[2 * TESS__ACTIVITY];
    (void)state;
    assert_string_equal(tess__comms_activity(&c), "");
    const char *before = tess__comms_doing(&c, "this");
    assert_string_equal(before, "this");
    assert_string_equal(world.doing, "this");
    const char *now = tess__comms_doing(&c, "that");
    assert_string_equal(before, "this"); /* who reads it at that moment reads a whole one */
    assert_ptr_equal(now, tess__comms_activity(&c));
    assert_string_equal(now, "that");
    tess__comms_idle(&c);
    assert_string_equal(tess__comms_activity(&c), "");
    assert_string_equal(now, "that");
    assert_string_equal(world.doing, "(nothing)");
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    assert_int_equal(strlen(tess__comms_doing(&c, text)), TESS__ACTIVITY - 1);
    c.control = NULL;
    assert_string_equal(tess__comms_doing(&c, "alone"), "alone");
    tess__comms_idle(&c);
    assert_int_equal(world.doing[0], 'x');
}

static void key(const char *want) {
    char out[40];
    tess__comms_rank_key(&c, "what", 6, out, sizeof out);
    assert_string_equal(out, want);
}

static void test_comms_parts__keys_are_of_one_engine_and_group(void **state) {
    static int32_t members[1];
    (void)state;
    key("what/6");
    c.seat.engine = 1;
    key("what/6");
    c.seat.engine = 2;
    key("e2/what/6");
    c.members = members;
    c.color = 5;
    key("e2.5/what/6");
    c.seat.engine = 0;
    key("e0.5/what/6");
}

/* ---- claims ---- */

static void differ_as(tess__history mine, tess__history theirs, const char *want) {
    assert_int_equal(tess__histories_differ(&c, &mine, 5, &theirs), TESS_E_MISMATCH);
    assert_string_equal(tess_last_error(), want);
}

static void test_comms_parts__claims_name_both_sides(void **state) {
    static int32_t members[] = { 10, 11, 12, 13, 14, 15 };
    (void)state;
    strcpy(c.common_text, "tess_step(lr 1)");
    tess__claim mine = tess__claim_of(&c, "the norm"), theirs = mine;
    assert_string_equal(mine.what, "the norm");
    assert_string_equal(mine.after, "tess_step(lr 1)");
    for (size_t i = strlen(mine.what); i < sizeof mine.what; i++)
        assert_int_equal(mine.what[i], 0); /* all of it is sent */
    strcpy(theirs.what, "the sum");
    assert_int_equal(tess__claims_differ(&c, &mine, 5, &theirs), TESS_E_MISMATCH);
    assert_string_equal(tess_last_error(), "the ranks call different things: rank 3 is in the norm, rank 5 in the sum");
    strcpy(theirs.what, "the norm");
    c.members = members;
    assert_int_equal(tess__claims_differ(&c, &mine, 5, &theirs), TESS_E_MISMATCH);
    assert_string_equal(tess_last_error(),
                        "the ranks call different things: rank 13 is in the norm, rank 15 in the norm");
    theirs.after[0] = 0;
    assert_int_equal(tess__claims_differ(&c, &mine, 5, &theirs), TESS_E_MISMATCH);
    assert_string_equal(tess_last_error(),
                        "the ranks stepped differently before the norm: rank 13 called tess_step(lr 1), "
                        "rank 15 no tess_step");
    mine.after[0] = 0;
    strcpy(theirs.after, "another");
    assert_int_equal(tess__claims_differ(&c, &mine, 5, &theirs), TESS_E_MISMATCH);
    assert_string_equal(tess_last_error(),
                        "the ranks stepped differently before the norm: rank 13 called no tess_step, "
                        "rank 15 another");
    memset(&theirs, 'x', sizeof theirs); /* a peer's texts end within their room */
    assert_int_equal(tess__claims_differ(&c, &mine, 5, &theirs), TESS_E_MISMATCH);
    assert_true(strlen(theirs.what) == sizeof theirs.what - 1 && strlen(theirs.after) == sizeof theirs.after - 1);
}

static void test_comms_parts__the_first_that_differs_is_named(void **state) {
    (void)state;
    c.n_collectives = 5;
    for (uint64_t i = 0; i < 5; i++) {
        c.recent_tags[i] = 100 + i;
        snprintf(c.recent_what[i], sizeof c.recent_what[i], "number %d", (int)i);
    }
    const tess__history mine = tess__history_of(&c, "now");
    assert_true(mine.posted == 5 && mine.tags[4] == 104);
    assert_string_equal(mine.what[4], "number 4");
    tess__history theirs = mine;
    strcpy(theirs.now.what, "then");
    const char *now = "the ranks call different things: rank 3 is in now, rank 5 in then";
    differ_as(mine, theirs, now); /* all that was posted is alike */
    for (int i = 0; i < 5; i++) {
        char want[160];
        tess__history other = theirs;
        other.tags[i] ^= 1;
        other.tags[4] ^= i == 4 ? 0 : 1;
        snprintf(other.what[i], sizeof other.what[i], "another");
        snprintf(want, sizeof want, "the ranks call different things: rank 3 is in number %d, rank 5 in another", i);
        differ_as(mine, other, want);
        differ_as(other, mine,
                  (snprintf(want, sizeof want,
                            "the ranks call different things: rank 3 is in another, rank 5 in number %d", i),
                   want));
        other.posted = (uint64_t)i; /* which it has not come to yet */
        other.tags[4] = mine.tags[4];
        differ_as(mine, other, now);
        other.posted = 5;
        other.tags[i] = 0; /* not known */
        differ_as(mine, other, now);
        memset(other.what[i], 'x', TESS__POSTED_TEXT);
        for (int k = 0; k < 5; k++)
            other.tags[k] = k == i ? 2 : 1;
        assert_int_equal(
            tess__histories_differ(&c, &(tess__history){ .posted = 5, .tags = { 1, 1, 1, 1, 1 } }, 5, &other),
            TESS_E_MISMATCH); /* whatever a peer sends */
        assert_int_equal(strlen(other.now.what), TESS__POSTED_TEXT - 1);
    }
    tess__history ours = mine; /* of a long run the last ones are known: here 4 to 19 */
    ours.posted = 18;
    theirs.posted = 20;
    for (uint64_t i = 0; i < TESS__RECENT_TAGS; i++) {
        ours.tags[i] = theirs.tags[i] = 200 + i;
        snprintf(ours.what[i], sizeof ours.what[i], "ours %d", (int)i);
        snprintf(theirs.what[i], sizeof theirs.what[i], "theirs %d", (int)i);
    }
    tess__history late = theirs;
    late.tags[5] ^= 1;
    differ_as(ours, late, "the ranks call different things: rank 3 is in ours 5, rank 5 in theirs 5");
    differ_as(late, ours, "the ranks call different things: rank 3 is in theirs 5, rank 5 in ours 5");
    tess__history near = ours;
    near.posted = 19;
    late.tags[3] ^= 1; /* of number 19, which stands where 3 stood */
    differ_as(near, late, "the ranks call different things: rank 3 is in ours 5, rank 5 in theirs 5");
    differ_as(late, near, "the ranks call different things: rank 3 is in theirs 5, rank 5 in ours 5");
    late = theirs;
    late.tags[1] ^= 1; /* of number 17 */
    differ_as(ours, late, "the ranks call different things: rank 3 is in ours 1, rank 5 in theirs 1");
    late = theirs;
    late.tags[2] ^= 1; /* of number 18, which this rank has not posted */
    differ_as(ours, late, now);
    late = theirs;
    late.posted = 19; /* one more than this rank: what stands there here is two rounds old */
    ours.tags[2] ^= 1;
    differ_as(ours, late, now);
    differ_as(late, ours, "the ranks call different things: rank 3 is in then, rank 5 in now");
    ours.tags[2] ^= 1;
    late = theirs;
    late.tags[4] ^= 1; /* the oldest that both know may not be the first */
    differ_as(ours, late, now);
}

/* ---- memory ---- */

static void test_comms_parts__who_allocates_reaches_the_device(void **state) {
    (void)state;
    assert_null(tess__comms_allocator(&c)); /* there is none yet */
    c.list[TESS__WORLD] = first;
    assert_ptr_equal(tess__comms_allocator(&c), first);
    world.caps = TESS_COMM_SHARES;
    assert_true(tess__comms_share_memory(&c));
    world.caps = ~(uint32_t)TESS_COMM_SHARES;
    assert_false(tess__comms_share_memory(&c));
    world.caps = TESS_COMM_SHARES;
    ops.mem_share = NULL;
    assert_false(tess__comms_share_memory(&c));
    ops.mem_share = fake_share;
    world.mem_mask = ~(1u << TESS_MEM_CUDA);
    assert_null(tess__comms_allocator(&c));
    assert_false(tess__comms_share_memory(&c));
    world.mem_mask = 1u << TESS_MEM_CUDA;
    world.query = TESS_E_DEVICE;
    assert_null(tess__comms_allocator(&c));
    world.query = TESS_OK;
    ops.mem_alloc = NULL;
    assert_null(tess__comms_allocator(&c));
}

static void test_comms_parts__registrations_are_found_until_they_end(void **state) {
    const tess_alloc_request r = { .bytes = 100 };
    tess_buffer b, own = { .ptr = (void *)8192, .bytes = 10 };
    char *const at = (char *)4096;
    (void)state;
    assert_int_equal(tess__comms_alloc(&c, first, &r, &b), TESS_OK);
    for (int i = -1; i <= 100; i++)
        assert_ptr_equal(tess__comms_registration(&c, first, at + i), i >= 0 && i < 100 ? world.handle : NULL);
    assert_null(tess__comms_registration(&c, second, at)); /* of another it says nothing */
    assert_null(tess__comms_registration(&c, NULL, NULL));
    c.list[TESS__SHARD] = second;
    world.handle = &world.mem_mask;
    assert_ptr_equal(tess__comms_register(&c, TESS__SHARD, first, &b), second);
    assert_ptr_equal(tess__comms_registration(&c, second, at + 99), &world.mem_mask);
    assert_ptr_equal(tess__comms_registration(&c, first, at + 99), &world.handle);
    assert_ptr_equal(tess__comms_register(&c, TESS__SHARD, first, &own), second);
    assert_ptr_equal(tess__comms_registration(&c, second, own.ptr), &world.mem_mask);
    tess__comms_deregister(&c, second, &b);
    assert_null(tess__comms_registration(&c, second, at));
    assert_ptr_equal(tess__comms_registration(&c, first, at), &world.handle);
    assert_ptr_equal(tess__comms_registration(&c, second, own.ptr), &world.mem_mask);
    tess__comms_free(&c, first, &b);
    assert_null(tess__comms_registration(&c, first, at));
    expect_said("alloc first 100; register second; register second; deregister second 100; free first 100; ");
    tess__comms_deregister(&c, second, &own);
    world.handle = NULL; /* a plugin that gives none */
    assert_int_equal(tess__comms_alloc(&c, first, &r, &b), TESS_OK);
    assert_null(c.registrations[0].comm);
    world.handle = &world;
    world.alloc = TESS_E_NOMEM;
    assert_int_equal(tess__comms_alloc(&c, first, &r, &b), TESS_E_NOMEM);
    assert_null(c.registrations[0].comm);
    world.alloc = TESS_OK;
    for (int i = 0; i < TESS__REGISTRATIONS + 1; i++) { /* one more than there is room for */
        own.ptr = (void *)(uintptr_t)(1 << 20 | i * 16);
        assert_ptr_equal(tess__comms_register(&c, TESS__SHARD, first, &own), second);
        assert_ptr_equal(tess__comms_registration(&c, second, own.ptr), i < TESS__REGISTRATIONS ? &world : NULL);
    }
    own.ptr = (void *)(uintptr_t)(1 << 20 | (TESS__REGISTRATIONS - 1) * 16);
    tess__comms_deregister(&c, second, &own);
    assert_null(c.registrations[TESS__REGISTRATIONS - 1].comm);
    assert_non_null(c.registrations[0].comm);
}

static void test_comms_parts__who_cannot_register_uses_memory_as_it_is(void **state) {
    tess_buffer b = { .ptr = (void *)4096, .bytes = 10 };
    (void)state;
    c.list[TESS__WORLD] = first;
    c.list[TESS__SHARD] = first;
    c.list[TESS__REPLICA] = second;
    assert_null(tess__comms_register(&c, TESS__SHARD, second, &b)); /* the world's turn is the one */
    assert_null(tess__comms_register(&c, TESS__WORLD, first, &b));  /* who allocated it knows it */
    assert_null(tess__comms_register(&c, TESS__COPY, first, &b));   /* there is none */
    expect_said("");
    world.reg = TESS_E_UNSUPPORTED;
    assert_null(tess__comms_register(&c, TESS__REPLICA, first, &b));
    assert_null(c.registrations[0].comm);
    expect_said("register second; ");
    ops.mem_register = NULL;
    assert_null(tess__comms_register(&c, TESS__REPLICA, first, &b));
    expect_said("");
}

static void test_comms_parts__sharing_is_said_while_it_goes_on(void **state) {
    tess_buffer b = { .ptr = (void *)4096, .bytes = 10 };
    (void)state;
    assert_int_equal(tess__comms_share(&c, first, &b), TESS_OK);
    expect_said("share first 10 in 'the sharing of memory'; ");
    assert_string_equal(tess__comms_activity(&c), "");
    assert_int_equal(tess__fail(TESS_E_INVALID, "before"), TESS_E_INVALID);
    world.share = TESS_E_UNSUPPORTED; /* which is no failure, and sets no message */
    assert_int_equal(tess__comms_share(&c, first, &b), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(), "before");
    assert_string_equal(tess__comms_activity(&c), "");
    world.share = TESS_E_PEER;
    assert_int_equal(tess__comms_share(&c, first, &b), TESS_E_PEER);
    assert_non_null(strstr(tess_last_error(), "it is broken"));
    assert_string_equal(tess__comms_activity(&c), "the sharing of memory"); /* where it failed */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_comms_parts__a_group_has_its_members, begin),
        cmocka_unit_test_setup(test_comms_parts__a_communicator_of_several_groups_has_one_first_place, begin),
        cmocka_unit_test_setup(test_comms_parts__what_a_rank_does_is_told, begin),
        cmocka_unit_test_setup(test_comms_parts__keys_are_of_one_engine_and_group, begin),
        cmocka_unit_test_setup(test_comms_parts__claims_name_both_sides, begin),
        cmocka_unit_test_setup(test_comms_parts__the_first_that_differs_is_named, begin),
        cmocka_unit_test_setup(test_comms_parts__who_allocates_reaches_the_device, begin),
        cmocka_unit_test_setup(test_comms_parts__registrations_are_found_until_they_end, begin),
        cmocka_unit_test_setup(test_comms_parts__who_cannot_register_uses_memory_as_it_is, begin),
        cmocka_unit_test_setup(test_comms_parts__sharing_is_said_while_it_goes_on, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* What a group hands on: to the engine that it opens, and to its communicator, with room for the largest collective so
 * far. All that core/group calls is written down here. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/options.h"
#include "core/base/status.h"
#include "core/engine/state.h"

enum { MEM = 7 }; /* the device's kind of memory */
static struct {
    tess_options opened;
    tess_setting settings[40];
    char texts[40][24];
    tess_collective run;
    char doing[96];
    int allocs, frees, copies, runs, needs, lacks_memory;
    tess_alloc_request asked;
    tess_need need;
    tess_status offers, memory;
    uint64_t copied;
    const char *env_of, *env_is; /* one option of the environment */
} seen;
static tess t;
static char room[64];

static const char *env(const char *key) {
    return seen.env_of && strcmp(seen.env_of, key) == 0 ? seen.env_is : NULL;
}
static tess_status open_engine(const tess_options *o, const tess__hooks *hooks, tess **out) {
    (void)hooks;
    seen.opened = *o;
    assert_true(o->n_settings <= 40);
    for (uint32_t i = 0; i < o->n_settings; i++)
        seen.settings[i] = o->settings[i];
    *out = &t;
    return TESS_OK;
}
static tess_status take_memory(const tess_alloc_request *r, tess_buffer *out) {
    seen.allocs++;
    seen.asked = *r;
    assert_true(out->ptr == NULL && out->bytes == 0); /* what was there has gone */
    if (seen.memory == TESS_OK)
        *out = (tess_buffer){ .struct_size = sizeof *out, .ptr = room, .bytes = r->bytes };
    return seen.memory;
}
static void give_memory(tess_buffer *b) {
    seen.frees++;
    assert_ptr_equal(b->ptr, room);
}
static tess_status run_collective(int which, const tess_collective *c, const char *doing) {
    assert_int_equal(which, TESS__WORLD);
    seen.runs++;
    seen.run = *c;
    snprintf(seen.doing, sizeof seen.doing, "%s", doing);
    return TESS_OK;
}
static tess_status copy(void *to, uint32_t to_mem, const void *from, uint32_t from_mem, uint64_t bytes) {
    assert_true(to_mem == MEM && from_mem == MEM && to != from);
    seen.copies++;
    seen.copied = bytes;
    return TESS_OK;
}
static tess_status need(void *ctx, const tess_plan_env *e, const tess_collective *c, tess_need *out) {
    assert_ptr_equal(ctx, &t);
    assert_int_equal(e->nranks, t.comms.world.nranks);
    assert_true(c->send_mem == MEM && c->recv_mem == MEM && c->send_dtype == c->recv_dtype && c->count);
    seen.needs++;
    out->device_bytes = seen.need.device_bytes;
    out->align = seen.need.align;
    return seen.offers;
}

static int32_t number_of(const tess *of, int32_t n) {
    assert_ptr_equal(of, &t);
    return n;
}
static void *take_zeroes(size_t n, size_t size) {
    return seen.lacks_memory ? NULL : calloc(n, size);
}

#define tess_close(e) number_of(e, TESS_E_LOST)
#define tess_rank(e) number_of(e, 5)
#define tess_ranks(e) number_of(e, 9)
#define calloc(n, size) take_zeroes(n, size)
#define tess__option_text env
#define tess__engine_open open_engine
#define tess__engine_check(e) ((void)(e), TESS_OK)
#define tess__engine_fail(e, s) ((void)(e), (s))
#define tess__device_alloc(d, r, out) ((void)(d), take_memory(r, out))
#define tess__device_free(d, b) ((void)(d), give_memory(b))
#define tess__comm_run(c, which, coll, doing) ((void)(c), run_collective(which, coll, doing))
#define tess__copy_now(e, to, tm, from, fm, n) ((void)(e), copy(to, tm, from, fm, n))
#define tess__group_open opens_group
#define tess_group_close closes_group
#define tess_group_rank rank_of_group
#define tess_group_ranks ranks_of_group
#define tess_group_all_reduce reduces
#define tess_group_broadcast broadcasts
#define tess_group_all_gather gathers
#define tess_group_exchange exchanges
#include "core/group/group.c"

static tess_group *a_group(int32_t ranks) {
    static tess__plugin plugin = { .name = "written" };
    static const tess_comm_ops ops = { .struct_size = sizeof ops, .need = need };
    memset(&seen, 0, sizeof seen);
    memset(&t, 0, sizeof t);
    plugin.ctx = &t;
    t.comms.plugin = &plugin;
    t.comms.ops = &ops;
    t.comms.world.nranks = ranks;
    t.device.mem = MEM;
    t.plan.setup.align = 64;
    return (tess_group *)&t;
}

static const char *setting(const char *key) {
    for (uint32_t i = seen.opened.n_settings; i-- > 0;) /* the last one counts */
        if (strcmp(seen.settings[i].key, key) == 0)
            return seen.settings[i].value;
    return NULL;
}

static void test_group_calls__an_engine_is_opened_bare(void **state) {
    (void)state;
    static const char *const bare_ones[][2] = {
        { "strategy", "full" },   { "offload", "none" },     { "precision", "fp32" },  { "wrap", "scopes" },
        { "optimizer", "none" },  { "activations", "keep" }, { "accum", "1" },         { "sync", "each" },
        { "checkpoint", "sync" }, { "threads", "1" },        { "deterministic", "0" }, { "spike", "0" }
    };
    const tess_setting mine[] = { { "heartbeat", "3" }, { "strategy", "none" } };
    tess_options o = { .struct_size = sizeof o, .comm = "shm", .device = "cpu", .n_settings = 2, .settings = mine };
    tess *out = NULL;
    a_group(1);
    seen.env_of = "heartbeat", seen.env_is = "9";
    assert_int_equal(opens_group(&o, NULL, &out), TESS_OK);
    assert_ptr_equal(out, &t);
    assert_string_equal(seen.opened.comm, "shm");
    assert_string_equal(seen.opened.device, "cpu");
    assert_int_equal(seen.opened.flags, TESS_OPTIONS_WIN);
    assert_int_equal(seen.opened.n_settings, 14);
    assert_string_equal(seen.settings[0].value, "9"); /* the environment's */
    for (size_t i = 0; i < sizeof bare_ones / sizeof bare_ones[0]; i++)
        assert_string_equal(setting(bare_ones[i][0]), bare_ones[i][1]);
    assert_false(seen.opened.plan_only);
    seen.env_of = "plan", seen.env_is = "x";
    assert_int_equal(opens_group(NULL, NULL, &out), TESS_OK);
    assert_true(seen.opened.plan_only && seen.opened.n_settings == 12 && !seen.opened.comm);
    seen.env_of = "device", seen.env_is = "cuda";
    assert_int_equal(opens_group(&o, NULL, &out), TESS_OK);
    assert_string_equal(seen.opened.device, "cuda");
    o.settings = NULL;
    assert_int_equal(opens_group(&o, NULL, &out), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "tess_group_open: no settings to read");
    o.n_settings = 0, o.plan_only = 1, seen.env_of = NULL;
    assert_int_equal(opens_group(&o, NULL, &out), TESS_OK);
    assert_true(seen.opened.plan_only && seen.opened.n_settings == 12);
    seen.lacks_memory = 1;
    assert_int_equal(opens_group(&o, NULL, &out), TESS_E_NOMEM);
    o.struct_size = 3;
    assert_int_equal(opens_group(&o, NULL, &out), TESS_E_INVALID);
}

static void test_group_calls__a_group_is_an_engine(void **state) {
    (void)state;
    tess_group *g = a_group(4);
    assert_int_equal(closes_group(g), TESS_E_LOST);
    assert_int_equal(rank_of_group(g), 5);
    assert_int_equal(ranks_of_group(g), 9);
}

static void test_group_calls__one_rank_copies_what_is_not_in_place(void **state) {
    (void)state;
    float a[4] = { 0 }, b[4] = { 0 };
    tess_group *g = a_group(1);
    assert_int_equal(gathers(g, a, b, 3, TESS_F32), TESS_OK);
    assert_true(seen.copies == 1 && seen.copied == 12);
    assert_int_equal(gathers(g, a, a, 3, TESS_F32), TESS_OK);
    assert_int_equal(gathers(g, a, b, 0, TESS_F32), TESS_OK);
    assert_int_equal(reduces(g, a, 4, TESS_F32, TESS_SUM), TESS_OK);
    assert_true(seen.copies == 1 && seen.needs == 0 && seen.runs == 0);
}

static void test_group_calls__a_plan_runs_nothing_but_checks(void **state) {
    (void)state;
    float a[4] = { 0 }, b[4] = { 0 };
    tess_group *g = a_group(1);
    t.settings.plan_only = 1;
    assert_int_equal(gathers(g, a, b, 4, TESS_F32), TESS_OK);
    assert_int_equal(gathers(g, NULL, b, 4, TESS_F32), TESS_E_INVALID);
    assert_int_equal(gathers(g, a, NULL, 4, TESS_F32), TESS_E_INVALID);
    assert_int_equal(gathers(g, NULL, NULL, 0, TESS_F32), TESS_OK);
    assert_int_equal(gathers(g, a, b, 4, 99), TESS_E_INVALID);
    assert_int_equal(seen.copies, 0);
}

static void test_group_calls__as_much_as_the_plugin_moves_at_once_and_no_more(void **state) {
    (void)state;
    double a[5] = { 0 };
    tess_group *g = a_group(2);
    t.plan.setup.most_bytes = 39; /* four of eight bytes, and a rest */
    assert_int_equal(reduces(g, a, 4, TESS_F64, TESS_SUM), TESS_OK);
    assert_int_equal(reduces(g, a, 5, TESS_F64, TESS_SUM), TESS_E_INVALID);
    assert_string_equal(tess_last_error(),
                        "tess_group_all_reduce (sum): 5 elements are more than comm written moves at once (39 bytes)");
    t.plan.setup.most_bytes = 40;
    assert_int_equal(reduces(g, a, 5, TESS_F64, TESS_SUM), TESS_OK);
    assert_int_equal(seen.runs, 2);
}

static void test_group_calls__room_is_that_of_the_largest_so_far(void **state) {
    (void)state;
    static const struct {
        uint64_t bytes, align, asked_align;
        int allocs, frees;
    } turn[] = { { 0, 0, 0, 0, 0 },      { 48, 0, 64, 1, 0 }, { 48, 0, 64, 1, 0 }, { 47, 4096, 64, 1, 0 },
                 { 49, 128, 128, 2, 1 }, { 0, 0, 128, 2, 1 }, { 64, 32, 64, 3, 2 } };
    float a[4] = { 0 };
    tess_group *g = a_group(3);
    for (size_t i = 0; i < sizeof turn / sizeof turn[0]; i++) {
        seen.need = (tess_need){ .device_bytes = turn[i].bytes, .align = turn[i].align };
        assert_int_equal(reduces(g, a, 4, TESS_F32, TESS_MAX), TESS_OK);
        assert_true(seen.allocs == turn[i].allocs && seen.frees == turn[i].frees);
        assert_int_equal(seen.asked.align, turn[i].asked_align);
        assert_int_equal(seen.run.scratch_bytes, turn[i].bytes);
        assert_ptr_equal(seen.run.scratch, turn[i].bytes ? room : NULL);
    }
    assert_true(seen.asked.mem == MEM && seen.asked.domain == TESS_DOMAIN_DEVICE &&
                seen.asked.category == TESS_CAT_COMM);
    assert_true(seen.asked.numa_node == -1 && seen.asked.bytes == 64);
    seen.need.device_bytes = 100;
    seen.memory = TESS_E_NOMEM;
    assert_int_equal(reduces(g, a, 4, TESS_F32, TESS_MAX), TESS_E_NOMEM);
    assert_true(seen.runs == 7 && seen.frees == 3);
    seen.memory = TESS_OK; /* nothing of what has gone is used, or freed again */
    assert_int_equal(reduces(g, a, 4, TESS_F32, TESS_MAX), TESS_OK);
    assert_true(seen.frees == 3 && seen.run.scratch == room && seen.run.scratch_bytes == 100);
    seen.offers = TESS_E_UNSUPPORTED;
    assert_int_equal(reduces(g, a, 4, TESS_BF16, TESS_MAX), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(), "tess_group_all_reduce (max): comm written does not offer it for bf16");
}

static uint64_t tag_of(const char *doing, uint32_t redop, uint32_t root) {
    return tess__hash_u64(tess__hash_text(TESS__HASH_START, doing), (uint64_t)redop << 32 | root);
}

static void test_group_calls__the_communicator_gets_what_was_asked(void **state) {
    (void)state;
    static const char *const of_op[] = { "", "sum", "min", "max", "average" };
    float a[8] = { 0 }, b[8] = { 0 };
    char doing[96];
    tess_group *g = a_group(4);
    for (uint32_t op = TESS_SUM; op <= TESS_AVG; op++) {
        const uint32_t redop = op == TESS_AVG ? TESS_SUM : op;
        assert_int_equal(reduces(g, a, 6, TESS_F32, op), TESS_OK);
        snprintf(doing, sizeof doing, "tess_group_all_reduce (%s) of 6 f32", of_op[op]);
        assert_string_equal(seen.doing, doing);
        assert_true(seen.run.op == TESS_ALL_REDUCE && seen.run.redop == redop && seen.run.count == 6);
        assert_true(seen.run.send == a && seen.run.recv == a && seen.run.send_dtype == TESS_F32);
        assert_true(seen.run.scale == (op == TESS_AVG ? 0.25 : 1.0));
        assert_true(seen.run.tag == tag_of(doing, redop, 0));
    }
    assert_int_equal(reduces(g, a, 6, TESS_F32, TESS_SUM - 1), TESS_E_INVALID);
    assert_int_equal(reduces(g, a, 6, TESS_F32, TESS_AVG + 1), TESS_E_INVALID);
    static const uint32_t integers[] = { TESS_U8, TESS_I8, TESS_I32, TESS_I64 };
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(reduces(g, a, 1, integers[i], TESS_AVG), TESS_E_INVALID);
        assert_int_equal(reduces(g, a, 1, integers[i], TESS_SUM), TESS_OK);
    }
    assert_int_equal(broadcasts(g, a, 2, TESS_F32, 3), TESS_OK);
    assert_true(seen.run.struct_size == sizeof seen.run && seen.run.scale == 1.0);
    assert_true(seen.run.op == TESS_BROADCAST && seen.run.root == 3 && seen.run.send == a && seen.run.recv == a);
    assert_true(seen.run.tag == tag_of("tess_group_broadcast of 2 f32", 0, 3));
    assert_int_equal(broadcasts(g, a, 2, TESS_F32, 0), TESS_OK);
    assert_int_equal(broadcasts(g, a, 2, TESS_F32, 4), TESS_E_INVALID);
    assert_int_equal(broadcasts(g, a, 2, TESS_F32, -1), TESS_E_INVALID);
    assert_int_equal(gathers(g, a, b, 2, TESS_F32), TESS_OK);
    assert_true(seen.run.op == TESS_ALL_GATHER && seen.run.send == a && seen.run.recv == b && seen.run.scale == 1.0);
    assert_int_equal(exchanges(g, a, b, 2, TESS_F32), TESS_OK);
    assert_true(seen.run.op == TESS_ALL_TO_ALL && seen.run.send == a && seen.run.recv == b && seen.run.scale == 1.0);
    assert_string_equal(seen.doing, "tess_group_exchange of 2 f32");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_group_calls__an_engine_is_opened_bare),
        cmocka_unit_test(test_group_calls__a_group_is_an_engine),
        cmocka_unit_test(test_group_calls__one_rank_copies_what_is_not_in_place),
        cmocka_unit_test(test_group_calls__a_plan_runs_nothing_but_checks),
        cmocka_unit_test(test_group_calls__as_much_as_the_plugin_moves_at_once_and_no_more),
        cmocka_unit_test(test_group_calls__room_is_that_of_the_largest_so_far),
        cmocka_unit_test(test_group_calls__the_communicator_gets_what_was_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

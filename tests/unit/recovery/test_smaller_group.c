/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks that are threads go on with fewer: what each carries over, from which image, under which number; the order in
 * which the new group is built; peaks and messages; and what is left where something fails on the way. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "thread_ranks.h"
#include "core/base/options.h"
#include "core/base/status.h"
#include "core/recovery/fits.h"
#include "core/recovery/smaller.h"

enum { OLD = 4, GRAIN = 4096 };
typedef struct {
    tess t;
    char said[512]; /* calls, each with a blank behind it */
    const char *fails;
    char *images, *beside;
    void *one[TESS__N_ROLES][1];
    uint64_t beside_bytes;
    int plans, freed; /* plans that this rank has made and not dropped; carried memory given back */
    tess_status got;
} member;
static member all[RANKS_MOST];
static tess__group group;
static tess__unit units[RANKS_MOST][4]; /* of each plan that a rank makes in turn */
static uint64_t image_bytes;

static member *member_of(const tess *t) {
    return (member *)((char *)(uintptr_t)t - offsetof(member, t));
}

static tess_status note(member *m, const char *what) {
    strcat(m->said, what);
    strcat(m->said, " ");
    return m->fails && !strcmp(m->fails, what) ? tess__fail(TESS_E_DEVICE, "failed") : TESS_OK;
}

static tess_status get_beside(tess__memory *memory, uint64_t bytes, tess_buffer *out) {
    member *m = member_of((const tess *)((const char *)memory - offsetof(tess, memory)));
    TRY(note(m, "beside"));
    m->beside_bytes = bytes;
    *out = (tess_buffer){ .ptr = m->beside, .bytes = bytes, .mem = TESS_MEM_HOST };
    return TESS_OK;
}

static void free_beside(tess__memory *memory, tess_buffer *b) {
    member *m = member_of((const tess *)((const char *)memory - offsetof(tess, memory)));
    m->freed += b->ptr != NULL;
    b->ptr = NULL;
}

static tess_status copy_host(tess *t, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem, uint64_t bytes) {
    RANKS_CHECK(dst_mem == TESS_MEM_HOST && src_mem == TESS_MEM_PINNED);
    TRY(note(member_of(t), "copy"));
    memcpy(dst, src, bytes);
    return TESS_OK;
}

static tess_status try_plan(const tess__plan *of, tess__plan *out) {
    tess *t = (tess *)((char *)out - offsetof(tess, plan));
    member *m = member_of(t);
    *out = (tess__plan){ .n_user = 9 };
    TRY(note(m, "try"));
    *out = *of;
    out->layout.units = &units[m - all][++m->plans];
    return TESS_OK;
}

static void drop_plan(tess__plan *p) {
    const int64_t rank = (p->layout.units - units[0]) / 4;
    RANKS_CHECK(p->layout.units && rank >= 0 && rank < RANKS_MOST);
    (void)note(&all[rank], p->layout.units == units[rank] ? "drop-old" : "drop");
    p->layout.units = NULL;
}

static tess_status set_fits(tess__setup *s, int32_t n) {
    tess *t = (tess *)((char *)s - offsetof(tess, plan.setup));
    RANKS_CHECK(n == t->comms.world.nranks);
    TRY(note(member_of(t), "fits"));
    s->accum *= s->nranks / n;
    s->nranks = n;
    return TESS_OK;
}

static const tess__given *use_given(const tess__given *now) {
    static _Thread_local const tess__given *used;
    const tess__given *before = used;
    used = now;
    return before;
}

#define NOTE(t, what) note(member_of(t), what)
#define OF(x, field) ((const tess *)((const char *)(x)-offsetof(tess, field)))
#define tess__comms_exchange ranks_exchange
#define tess__copy_now copy_host
#define tess__memory_beside get_beside
#define tess__memory_beside_free free_beside
#define tess__plan_drop drop_plan
#define tess__plan_try try_plan
#define tess__plan_remake(p) NOTE(OF(p, plan), "remake")
#define tess__fits_set set_fits
#define tess__given_use use_given
#define tess__planned_bytes(p, d) ((p)->user_bytes[d])
#define tess__images_check(t) ((void)NOTE(t, "check"))
#define tess__comms_create(c, s) NOTE(OF(c, comms), "create")
#define tess__handshake_programs(t, p, n) NOTE(t, (n) == TESS__N_PROGRAMS ? "handshake" : "handshake?")
#define tess__segments_make(s, p, rank) NOTE(OF(s, step), "segments")
#define tess__device_index(t) 3
#define tess__memory_obtain(m, d) NOTE(OF(m, memory), (d) == 3 ? "obtain" : "obtain?")
#define tess__memory_share(m) NOTE(OF(m, memory), "share")
#define tess__guard_create(t, g) NOTE(t, (g) == &(t)->pass.guard ? "guard" : "guard?")
#define tess__transfers_start(t, d) NOTE(t, (d) == 3 ? "start" : "start?")
#define tess__memory_drop(m) ((void)NOTE(OF(m, memory), "memory"))
#define tess__tables_destroy(t) ((void)NOTE(t, "tables-end"))
#define tess__tables_create(t) NOTE(t, "tables")
#include "core/recovery/smaller.c"

#define PACKED "check beside copy copy "
#define REBUILT "memory tables-end try fits remake tables create handshake segments obtain share guard start "

/* ---- a group of four that lost ranks ---- */

static char byte_of(int32_t rank, int64_t step, uint64_t i) {
    return (char)((i * 2654435761u + (uint64_t)step * 31 + (uint64_t)rank * 11) >> 5);
}

static void fill_image(member *m, int of_other, int slot, int32_t rank, int64_t step) {
    char *at = tess__image_at(&m->t, of_other, slot);
    for (uint64_t i = 0; i < image_bytes; i++)
        at[i] = byte_of(rank, step, i);
    (of_other ? m->t.mirror.copy : m->t.mirror.own)[slot] = step;
}

/* Rank `was` of the old group is `now` of the new one, and has images of steps 4 and 6, of its own and of the rank that
 * is two before it. */
static void make_member(int32_t now, int32_t n, int32_t was) {
    member *m = &all[now];
    char *images = m->images ? m->images : malloc(4 * image_bytes), *beside = m->beside ? m->beside : malloc(1 << 16);
    memset(m, 0, sizeof *m);
    memset(beside, 0xee, 1 << 16);
    m->images = images;
    m->beside = beside;
    m->t.plan.setup = (tess__setup){ .nranks = OLD, .shard_ranks = OLD, .replicas = 1, .mirror = 1, .accum = 1 };
    m->t.plan.setup.align = 64;
    m->t.plan.setup.granularity = GRAIN;
    m->t.plan.setup.env.mem = TESS_MEM_CUDA;
    m->t.plan.layout = (tess__layout){ .groups = &group, .n_groups = 1, .units = units[now] };
    m->t.plan.user_bytes[TESS_DOMAIN_DEVICE] = 1000;
    m->t.plan.user_bytes[TESS_DOMAIN_HOST] = 300;
    m->t.comms.world.rank = now;
    m->t.comms.world.nranks = n;
    m->t.memory.arenas[TESS_DOMAIN_HOST][TESS__RESIDENT].memory.mem = TESS_MEM_PINNED;
    for (int r = 0; r < TESS__N_ROLES; r++)
        m->t.memory.address[r] = m->one[r];
    m->one[TESS__MIRROR][0] = images;
    m->t.mirror.rank = was;
    for (int slot = 0; slot < 2; slot++) {
        fill_image(m, 0, slot, was, slot ? 4 : 6);
        fill_image(m, 1, slot, (was + 2) % OLD, slot ? 4 : 6);
    }
    m->t.mirror.slot = 1;
    m->t.mirror.taken = 6;
}

static void make_group(int32_t n, const int32_t *were) {
    group = (tess__group){ .shard_elems = 1000, .master = TESS_F32 };
    image_bytes = 4032;
    ranks_begin(n, 1);
    for (int32_t r = 0; r < n; r++)
        make_member(r, n, were[r]);
    assert_int_equal(tess__image_bytes(&all[0].t.plan.setup, &all[0].t.plan.layout), image_bytes);
}

static void *join(void *arg) {
    member *m = arg;
    m->said[0] = 0;
    m->got = tess__smaller_join(&m->t);
    return NULL;
}

static void join_all(void) {
    pthread_t thread[RANKS_MOST];
    for (int32_t r = 0; r < ranks.n; r++)
        assert_int_equal(pthread_create(&thread[r], NULL, join, &all[r]), 0);
    for (int32_t r = 0; r < ranks.n; r++)
        pthread_join(thread[r], NULL);
    assert_int_equal(ranks.wrong, 0);
}

static void expect_carried(const member *m, int copy, int32_t rank, int64_t step) {
    for (uint64_t i = 0; i < image_bytes; i++)
        if (m->beside[(copy ? image_bytes : 0) + i] != byte_of(rank, step, i))
            fail_msg("byte %d of rank %d's image", (int)i, rank);
}

static void end_all(void) {
    for (int32_t r = 0; r < ranks.n; r++) {
        tess__smaller_end(&all[r].t);
        assert_null(all[r].t.mirror.carry);
        all[r].freed = 0;
        tess__smaller_end(&all[r].t); /* once more is fine */
        assert_int_equal(all[r].freed, 0);
    }
}

/* ---- the tests ---- */

static void test_smaller_group__each_rank_carries_its_images_of_the_newest_step(void **state) {
    (void)state;
    static const int32_t were[] = { 0, 3 }; /* 1 and 2 are gone: 3 keeps 1's image, and 0 keeps 2's */
    make_group(2, were);
    join_all();
    for (int32_t r = 0; r < 2; r++) {
        member *m = &all[r];
        const tess__carry *c = m->t.mirror.carry;
        assert_int_equal(m->got, TESS_OK);
        assert_string_equal(m->said, PACKED REBUILT);
        assert_int_equal(c->step, 6);
        assert_int_equal(c->rank, were[r]);
        assert_int_equal(c->next, r);
        assert_true(c->has_own && c->has_copy);
        assert_int_equal(m->beside_bytes, 2 * GRAIN);
        expect_carried(m, 0, were[r], 6);
        expect_carried(m, 1, (were[r] + 2) % OLD, 6);
        for (int32_t old = 0; old < OLD; old++) {
            const int32_t now = old == 0 ? 0 : old == 3 ? 1 : -1;
            assert_int_equal(c->now[old], now);
            assert_int_equal(c->holding[old].own[0], now < 0 ? -1 : 6);
            assert_int_equal(c->holding[old].own[1], now < 0 ? -1 : 4);
            assert_int_equal(c->holding[old].copy[0], now < 0 ? -1 : 6);
            assert_int_equal(c->holding[old].copy[1], now < 0 ? -1 : 4);
        }
        assert_int_equal(c->plan.setup.nranks, OLD); /* of the group that the images are of */
        assert_int_equal(m->t.plan.setup.nranks, 2);
        assert_string_equal(m->t.settings.accum_text, " (2 ranks go on)");
        const tess__mirror *x = &m->t.mirror; /* no image of the new group yet */
        assert_true(x->own[0] == -1 && x->own[1] == -1 && x->copy[0] == -1 && x->copy[1] == -1);
        assert_true(x->taken == -1 && x->slot == 0);
    }
    end_all();
    for (int32_t r = 0; r < 2; r++)
        assert_string_equal(all[r].said, PACKED REBUILT "drop-old ");
}

static void test_smaller_group__an_image_that_is_torn_is_not_carried(void **state) {
    (void)state;
    static const int32_t were[] = { 0, 1, 3 };
    make_group(3, were);
    all[2].t.mirror.own[0] = -1;  /* 3 has none of step 6, but 1 keeps it */
    all[1].t.mirror.own[1] = -1;  /* and 1 none of step 4 */
    all[0].t.mirror.copy[1] = -1; /* nor has 0 of 2, which it keeps of step 6 */
    join_all();
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(all[r].got, TESS_OK);
        assert_int_equal(all[r].t.mirror.carry->step, 6);
        assert_int_equal(all[r].t.mirror.carry->has_own, r != 2);
        assert_true(all[r].t.mirror.carry->has_copy);
        expect_carried(&all[r], 1, (were[r] + 2) % OLD, 6);
        if (r != 2)
            expect_carried(&all[r], 0, were[r], 6);
    }
    assert_string_equal(all[2].said, "check beside copy " REBUILT);
    end_all();
    make_group(3, were);
    all[0].t.mirror.copy[0] = -1; /* 2's image of step 6 is left nowhere */
    join_all();
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(all[r].t.mirror.carry->step, 4);
        expect_carried(&all[r], 0, were[r], 4);
        expect_carried(&all[r], 1, (were[r] + 2) % OLD, 4);
    }
    end_all();
}

static void test_smaller_group__replicas_carry_no_copies(void **state) {
    (void)state;
    static const int32_t were[] = { 2 };
    make_group(1, were);
    all[0].t.plan.setup.shard_ranks = 1;
    all[0].t.plan.setup.replicas = 4;
    join_all();
    assert_int_equal(all[0].got, TESS_OK);
    assert_false(all[0].t.mirror.carry->has_copy);
    assert_int_equal(all[0].beside_bytes, GRAIN);
    assert_string_equal(all[0].said, "check beside copy " REBUILT);
    assert_string_equal(all[0].t.settings.accum_text, " (1 rank goes on)");
    end_all();
}

static void test_smaller_group__without_an_image_nothing_is_carried(void **state) {
    (void)state;
    static const int32_t were[] = { 0, 2 }; /* 1 and 3 kept each other's */
    make_group(2, were);
    join_all();
    for (int32_t r = 0; r < 2; r++) {
        assert_int_equal(all[r].got, TESS_E_PEER);
        assert_true(all[r].t.mirror.gone);
        assert_null(all[r].t.mirror.carry);
        assert_string_equal(all[r].said, "check ");
        assert_int_equal(all[r].freed, 0);
    }
}

static void test_smaller_group__numbers_that_cannot_be_are_named(void **state) {
    (void)state;
    static const int32_t were[] = { 0, 3 };
    char want[64];
    for (int i = 0; i < 4; i++) {
        make_group(1, were);
        all[0].t.mirror.rank = i == 0 ? -1 : i == 1 ? OLD : i == 2 ? 0 : OLD - 1;
        join_all();
        assert_int_equal(all[0].got, i < 2 ? TESS_E_INTERNAL : TESS_E_PEER);
        all[0].t.mirror.rank = i == 0 ? -1 : OLD;
        int32_t now[OLD];
        tess__holding holding[OLD];
        if (i < 2) { /* its message is another thread's: once more, here */
            assert_int_equal(gather_holdings(&all[0].t, OLD, now, holding), TESS_E_INTERNAL);
            snprintf(want, sizeof want, "rank 0 says that it was rank %d of 4", i ? OLD : -1);
            assert_string_equal(tess_last_error(), want);
        }
    }
}

/* Another rank is lost before the smaller group has gone back: what is carried stays, the plan is made once more. */
static void test_smaller_group__a_loss_on_the_way_begins_again_with_what_is_carried(void **state) {
    (void)state;
    static const int32_t were[] = { 0, 1, 3 };
    make_group(3, were);
    join_all();
    member *m = &all[0];
    m->t.comms.world.nranks = 2; /* of them, 3 is lost too: its image is with 1, and 2's with 0 */
    all[1].t.comms.world.nranks = 2;
    ranks_begin(2, 1);
    join_all();
    for (int32_t r = 0; r < 2; r++) {
        const tess__carry *c = all[r].t.mirror.carry;
        assert_int_equal(all[r].got, TESS_OK);
        assert_string_equal(all[r].said, "memory tables-end try drop fits remake tables create handshake segments "
                                         "obtain share guard start ");
        assert_int_equal(c->step, 6);
        assert_int_equal(c->rank, were[r]);
        assert_int_equal(c->now[3], -1);
        assert_int_equal(c->now[were[r]], r);
        assert_int_equal(c->holding[were[r]].own[0], 6); /* of what is carried, and nothing else */
        assert_int_equal(c->holding[were[r]].own[1], -1);
        assert_int_equal(c->holding[were[r]].copy[0], 6);
        assert_int_equal(c->holding[were[r]].copy[1], -1);
        assert_int_equal(all[r].freed, 0);
    }
    m->t.comms.world.rank = 0; /* and 1 as well, which carried its own image and 3's */
    m->t.comms.world.nranks = 1;
    ranks_begin(1, 1);
    join_all();
    assert_int_equal(m->got, TESS_E_PEER);
    assert_true(m->t.mirror.gone);
    assert_string_equal(m->said, "");
    tess__smaller_end(&m->t);
    tess__smaller_end(&all[1].t);
    tess__smaller_end(&all[2].t);
}

/* What a rank does not carry, it does not offer the next time either. */
static void test_smaller_group__what_is_not_carried_is_not_offered(void **state) {
    (void)state;
    static const int32_t were[] = { 0, 1, 3 };
    make_group(3, were);
    join_all();
    all[1].t.mirror.carry->has_own = all[1].t.mirror.carry->has_copy = 0; /* 3 has a copy of 1's image, and its own */
    ranks_begin(3, 1);
    join_all();
    for (int32_t r = 0; r < 3; r++) {
        const tess__holding *of = all[r].t.mirror.carry->holding;
        assert_int_equal(all[r].got, TESS_OK);
        for (int k = 0; k < 2; k++)
            assert_true(of[1].own[k] == -1 && of[1].copy[k] == -1 && of[2].own[k] == -1);
        assert_true(of[3].own[0] == 6 && of[3].copy[0] == 6);
    }
    end_all();
}

/* One rank has finished already when another is lost: all have images of the group that formed, and those count. */
static void test_smaller_group__when_one_has_finished_the_new_images_count(void **state) {
    (void)state;
    static const int32_t were[] = { 0, 1, 3 };
    make_group(3, were);
    join_all();
    for (int32_t r = 0; r < 3; r++) {
        member *m = &all[r];
        if (r == 2)
            tess__smaller_end(&m->t);
        m->t.plan.setup = (tess__setup){ .nranks = 3, .shard_ranks = 3, .replicas = 1, .mirror = 1, .accum = 2 };
        m->t.plan.setup.align = 64;
        m->t.plan.setup.granularity = GRAIN;
        m->t.plan.setup.env.mem = TESS_MEM_CUDA;
        m->t.mirror.rank = r == 2 ? 2 : 77; /* who has finished knows its number; the others learn it */
        for (int slot = 0; slot < 2; slot++) {
            fill_image(m, 0, slot, 10 + r, 8 + slot);
            fill_image(m, 1, slot, 10 + (r + 2) % 3, 8 + slot);
        }
    }
    member third = all[2]; /* the one in the middle is lost */
    third.t.comms.world.rank = 1;
    char *images = all[1].images, *beside = all[1].beside;
    tess__smaller_end(&all[1].t);
    all[1] = third;
    all[2].images = images;
    all[2].beside = beside;
    for (int r = 0; r < TESS__N_ROLES; r++)
        all[1].t.memory.address[r] = all[1].one[r];
    all[0].t.comms.world.nranks = all[1].t.comms.world.nranks = 2;
    all[0].freed = 0;
    ranks_begin(2, 1);
    join_all();
    assert_int_equal(all[0].freed, 1); /* what it carried of the group before that */
    for (int32_t r = 0; r < 2; r++) {
        const tess__carry *c = all[r].t.mirror.carry;
        assert_int_equal(all[r].got, TESS_OK);
        assert_int_equal(c->rank, r ? 2 : 0);
        assert_int_equal(c->step, 9);
        assert_int_equal(c->plan.setup.nranks, 3);
    }
    end_all();
}

/* The greatest of each kind of memory, with what is carried beside the old plan and the new one. */
static void test_smaller_group__peaks_count_what_is_carried(void **state) {
    (void)state;
    static const int32_t were[] = { 0, 3 };
    make_group(2, were);
    all[0].t.mirror.planned_peak[TESS_DOMAIN_DEVICE] = 1001; /* of a group before: more than now */
    all[1].t.mirror.planned_peak[TESS_DOMAIN_DEVICE] = 999;
    join_all();
    assert_int_equal(all[0].t.mirror.planned_peak[TESS_DOMAIN_DEVICE], 1001);
    assert_int_equal(all[1].t.mirror.planned_peak[TESS_DOMAIN_DEVICE], 1000);
    for (int32_t r = 0; r < 2; r++) {
        assert_int_equal(all[r].t.mirror.planned_peak[TESS_DOMAIN_HOST], 300 + 2 * GRAIN);
        assert_int_equal(all[r].t.mirror.planned_peak[TESS_DOMAIN_DISK], 0);
        assert_int_equal(all[r].t.mirror.planned_peak[0], 0);
        all[r].t.plan.user_bytes[TESS_DOMAIN_DISK] = 5;
        note_peaks(&all[r].t);
        assert_int_equal(all[r].t.mirror.planned_peak[TESS_DOMAIN_DISK], 5);
        assert_int_equal(all[r].t.mirror.planned_peak[TESS_DOMAIN_HOST], 300 + 2 * GRAIN);
    }
    end_all();
}

/* Each call that may fail ends the attempt: what comes before it has run, and nothing behind it. */
static void test_smaller_group__each_failure_on_the_way_ends_it(void **state) {
    (void)state;
    static const int32_t were[] = { 0 };
    static const char *const whole = "check beside copy " REBUILT;
    static const char *const steps[] = { "beside",    "copy",     "try",    "fits",  "remake", "tables", "create",
                                         "handshake", "segments", "obtain", "share", "guard",  "start" };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        make_group(1, were);
        member *m = &all[0];
        m->t.plan.setup.shard_ranks = 1;
        m->t.plan.setup.replicas = 4;
        m->fails = steps[i];
        join_all();
        assert_int_equal(m->got, TESS_E_DEVICE);
        assert_int_equal(strncmp(m->said, whole, strlen(m->said)), 0);
        assert_string_equal(m->said + strlen(m->said) - strlen(steps[i]) - 1,
                            strcat(strcpy((char[32]){ 0 }, steps[i]), " "));
        assert_int_equal(m->t.mirror.carry != NULL, i >= 2);
        assert_int_equal(m->freed, i == 1);
        if (i >= 2) {
            assert_int_equal(m->t.mirror.carry->next, 0);
            assert_ptr_equal(m->t.plan.layout.units, i == 2 ? NULL : &units[0][1]); /* two plans own nothing together */
            assert_int_equal(m->t.plan.n_user, 0);
            assert_string_equal(m->t.settings.accum_text, i < 5 ? "" : " (1 rank goes on)");
            tess__smaller_end(&m->t);
        }
    }
    ranks.fail_exchange = 1;
    make_group(1, were);
    ranks.fail_exchange = 1;
    join_all();
    assert_int_equal(all[0].got, TESS_E_PEER);
    assert_string_equal(all[0].said, "");
    assert_false(all[0].t.mirror.gone);
}

/* Every read of an option in between sees the program's own. */
static void test_smaller_group__options_are_the_engines_and_then_the_callers(void **state) {
    (void)state;
    static const int32_t were[] = { 0 };
    static const tess__given callers;
    make_group(1, were);
    all[0].t.plan.setup.replicas = 4;
    all[0].t.plan.setup.shard_ranks = 1;
    use_given(&callers);
    (void)join(&all[0]);
    assert_int_equal(all[0].got, TESS_OK);
    assert_ptr_equal(use_given(NULL), &callers);
    end_all();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smaller_group__each_rank_carries_its_images_of_the_newest_step),
        cmocka_unit_test(test_smaller_group__an_image_that_is_torn_is_not_carried),
        cmocka_unit_test(test_smaller_group__replicas_carry_no_copies),
        cmocka_unit_test(test_smaller_group__without_an_image_nothing_is_carried),
        cmocka_unit_test(test_smaller_group__numbers_that_cannot_be_are_named),
        cmocka_unit_test(test_smaller_group__a_loss_on_the_way_begins_again_with_what_is_carried),
        cmocka_unit_test(test_smaller_group__what_is_not_carried_is_not_offered),
        cmocka_unit_test(test_smaller_group__when_one_has_finished_the_new_images_count),
        cmocka_unit_test(test_smaller_group__peaks_count_what_is_carried),
        cmocka_unit_test(test_smaller_group__each_failure_on_the_way_ends_it),
        cmocka_unit_test(test_smaller_group__options_are_the_engines_and_then_the_callers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

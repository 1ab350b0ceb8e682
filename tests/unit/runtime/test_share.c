/* SPDX-License-Identifier: BSD-3-Clause */
/* Arenas are shared over a backend that can, once, and only what is the same and registered on all ranks. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/counted.h"

#define tess__comms_exchange fake_exchange
#define tess__comms_share_memory fake_can
#include "core/runtime/share.c"

enum { RANKS = 3 };

static tess_status answer;
static int shared;

static int can, exchanged;
static arena_state said[N_ARENAS];

int fake_can(const tess__comms *c) {
    (void)c;
    return can;
}
tess_status fake_exchange(tess__comms *c, const char *what, const void *mine, uint64_t bytes, void *out) {
    assert_string_equal(what, "the comparison of arenas");
    assert_int_equal(bytes, sizeof said);
    memcpy(said, mine, bytes);
    for (int32_t r = 0; r < c->world.nranks; r++)
        memcpy((char *)out + (uint64_t)r * bytes, mine, bytes);
    exchanged++;
    return TESS_OK;
}

static tess_status note_share(tess_comm *c, tess_buffer *b, tess_error *e) {
    (void)c, (void)e;
    assert_non_null(b->reg);
    shared++;
    return answer;
}

static const tess_comm_ops ops = { .struct_size = sizeof ops, .mem_share = note_share };
static const tess__plugin plugin = { .name = "fake", .ops = &ops };

/* Of memory with a step arena of the allocator's, registered with two groups. */
static tess__arena *make(tess__memory *m, tess__comms *c) {
    static char bytes[64];
    *c = (tess__comms){ .plugin = &plugin, .ops = &ops, .world = { .nranks = RANKS } };
    *m = (tess__memory){ .comms = c };
    tess__arena *a = &m->arenas[TESS_DOMAIN_DEVICE][TESS__STEP];
    a->memory = (tess_buffer){ .ptr = bytes, .bytes = sizeof bytes, .reg = bytes };
    a->comm = (tess_comm *)(void *)bytes;
    a->registered[0].comm = a->registered[2].comm = a->comm;
    a->registered[0].memory = a->registered[2].memory = a->memory;
    answer = TESS_OK;
    shared = 0;
    return a;
}

static void same_everywhere(arena_state (*all)[N_ARENAS], const tess__memory *m) {
    memset(all, 0, RANKS * sizeof *all);
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < N_ARENAS; i++)
            all[r][i] = arena_state_of(&m->arenas[TESS_DOMAIN_DEVICE][i]);
}

static void test_share__the_allocator_and_each_group_share_once(void **state) {
    (void)state;
    tess__memory m;
    tess__comms c;
    arena_state all[RANKS][N_ARENAS];
    tess__arena *a = make(&m, &c);
    same_everywhere(all, &m);
    assert_int_equal(share_alike(&m, (const void *)all), TESS_OK);
    assert_int_equal(shared, 3);
    assert_int_equal(a->shared, 1);
    same_everywhere(all, &m);
    assert_int_equal(share_alike(&m, (const void *)all), TESS_OK);
    assert_int_equal(shared, 3);
    for (int without = 0; without < 2; without++) { /* an arena of the device's, or one that is not registered */
        a = make(&m, &c);
        if (without)
            a->memory.reg = NULL;
        else
            a->comm = NULL;
        same_everywhere(all, &m);
        assert_int_equal(share_alike(&m, (const void *)all), TESS_OK);
        assert_int_equal(shared + a->shared, 0);
    }
}

static void test_share__a_backend_that_cannot_is_asked_once_and_a_failure_ends_it(void **state) {
    (void)state;
    tess__memory m;
    tess__comms c;
    arena_state all[RANKS][N_ARENAS];
    static const tess_status answers[] = { TESS_E_UNSUPPORTED, TESS_E_NOMEM };
    for (int i = 0; i < 2; i++) {
        tess__arena *a = make(&m, &c);
        answer = answers[i];
        same_everywhere(all, &m);
        assert_int_equal(share_alike(&m, (const void *)all), i ? TESS_E_NOMEM : TESS_OK);
        assert_int_equal(shared, 1);
        assert_int_equal(a->shared, -1);
        same_everywhere(all, &m);
        assert_int_equal(share_alike(&m, (const void *)all), TESS_OK);
        assert_int_equal(shared, 1);
    }
}

/* Whichever rank differs, and in whatever: bytes, places, registrations. */
static void test_share__an_arena_that_differs_on_any_rank_stays_its_own(void **state) {
    (void)state;
    tess__memory m;
    tess__comms c;
    for (int who = 0; who < RANKS; who++)
        for (int what = 0; what < 3; what++)
            for (int in_use = 0; in_use < 2; in_use++) {
                arena_state all[RANKS][N_ARENAS];
                tess__arena *a = make(&m, &c);
                c.world.rank = 1; /* which says nothing */
                same_everywhere(all, &m);
                arena_state *x = &all[who][TESS__STEP];
                *(what == 0 ? &x->bytes : &x->places) += what < 2;
                x->registered ^= what == 2 ? 4 : 0;
                all[(who + 1) % RANKS][TESS__STEP].shared = in_use ? 1 : (uint32_t)-1;
                assert_int_equal(share_alike(&m, (const void *)all), in_use ? TESS_E_INTERNAL : TESS_OK);
                assert_int_equal(shared + a->shared, 0);
            }
}

static void test_share__a_state_says_what_is_registered_and_what_rests_where(void **state) {
    (void)state;
    tess__memory m;
    tess__comms c;
    tess__arena *a = make(&m, &c);
    arena_state s = arena_state_of(a);
    assert_int_equal(s.bytes, 64);
    assert_int_equal(s.registered, 1 | 1 << 1 | 1 << 3);
    a->shared = 1;
    assert_int_equal(arena_state_of(a).shared, 1);
    a->memory.reg = NULL;
    assert_int_equal(arena_state_of(a).registered, 1 << 1 | 1 << 3);
    a->comm = NULL;
    assert_int_equal(arena_state_of(a).bytes, 0);
    tess__buffer b[] = { { .role = TESS__MASTER, .index = 1, .domain = TESS_DOMAIN_DEVICE, .bytes = 8, .offset = 64 },
                         { .role = TESS__MASTER, .index = 2, .domain = TESS_DOMAIN_DEVICE, .bytes = 8, .offset = 128 },
                         { .role = TESS__MASTER, .index = 3, .domain = TESS_DOMAIN_HOST, .bytes = 8, .offset = 0 } };
    b[0].arena = b[1].arena = b[2].arena = TESS__RESIDENT;
    tess__program p = { .buffers = b, .n_buffers = 3 };
    const uint64_t all = hash_places(&p);
    b[2].bytes++; /* the host's is not shared */
    b[2].index++;
    assert_int_equal(hash_places(&p), all);
    b[2].domain = TESS_DOMAIN_DEVICE;
    b[2].arena = TESS__PAGEABLE;
    assert_int_equal(hash_places(&p), all);
#define OTHER(field)                                                                                                   \
    do {                                                                                                               \
        b[1].field++;                                                                                                  \
        assert_int_not_equal(hash_places(&p), all);                                                                    \
        b[1].field--;                                                                                                  \
    } while (0)
    OTHER(role);
    OTHER(index);
    OTHER(bytes);
    OTHER(offset);
    p.n_buffers = 2; /* the last one counts */
    assert_int_equal(hash_places(&p), all);
    p.n_buffers = 1;
    assert_int_not_equal(hash_places(&p), all);
}

static void test_share__ranks_compare_what_they_have_first(void **state) {
    (void)state;
    tess__memory m;
    tess__comms c;
    tess__buffer b = { .role = TESS__MASTER, .domain = TESS_DOMAIN_DEVICE, .arena = TESS__RESIDENT, .bytes = 8 };
    tess__plan plan = { .resident = { .buffers = &b, .n_buffers = 1 } };
    tess__arena *a = make(&m, &c);
    m.plan = &plan;
    assert_int_equal(tess__memory_share(&m), TESS_OK);
    assert_int_equal(exchanged, 0); /* the backend cannot */
    can = 1;
    counted.refuse = 1;
    assert_int_equal(tess__memory_share(&m), TESS_E_NOMEM);
    assert_string_equal(tess_last_error(), "no memory to compare 3 ranks");
    counted.refuse = 0;
    assert_int_equal(tess__memory_share(&m), TESS_OK);
    assert_int_equal(exchanged, 1);
    assert_int_equal(a->shared, 1);
    for (int i = 0; i < N_ARENAS; i++) {
        const arena_state none = { .bytes = 0 };
        assert_true(said[i].places == (i == TESS__RESIDENT ? hash_places(&plan.resident) : 0));
        assert_true(i == TESS__STEP || said[i].bytes + said[i].registered + said[i].shared == 0);
        assert_true(i >= TESS__RESIDENT || memcmp(&said[i], &none, sizeof none) == 0);
    }
    assert_int_equal(said[TESS__STEP].bytes, 64);
    assert_int_equal(counted.live, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_share__the_allocator_and_each_group_share_once),
        cmocka_unit_test(test_share__a_backend_that_cannot_is_asked_once_and_a_failure_ends_it),
        cmocka_unit_test(test_share__an_arena_that_differs_on_any_rank_stays_its_own),
        cmocka_unit_test(test_share__ranks_compare_what_they_have_first),
        cmocka_unit_test(test_share__a_state_says_what_is_registered_and_what_rests_where),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

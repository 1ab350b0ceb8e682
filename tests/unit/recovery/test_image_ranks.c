/* SPDX-License-Identifier: BSD-3-Clause */
/* Images are taken and given back among ranks that are threads: who keeps which image, byte for byte, what each rank
 * posts, in which kind of memory it copies, and what is left where something fails on the way. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "thread_ranks.h"

static tess_status copy_among(tess *, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem, uint64_t bytes);
static tess_status note_announced(tess *);
static tess_status note_digest(tess *, int of_other, int slot);
static void note_imaged(tess__scaler *, int64_t step);
static tess_status note_sync(tess__streams *);
static void note_check(tess *);
#define tess__comm_run ranks_comm_run
#define tess__comms_exchange ranks_exchange
#define tess__comms_skip ranks_skip
#define tess__copy_now copy_among
#define tess__fits_announce note_announced
#define tess__image_digest note_digest
#define tess__images_check note_check
#define tess__scale_imaged note_imaged
#define tess__streams_sync note_sync
#include "core/recovery/mirror.c"

enum { LIVE = 4, IMAGES = 4, LIVE_ROOM = 1 << 20, SCRATCH = 640 };
typedef struct {
    tess t;
    char *live[LIVE]; /* two groups' masters, a state, the buffers; in which memory: */
    uint32_t mem[LIVE];
    char *images, *stage, *scratch;
    tess__buffer buffers[2];
    void *one[TESS__N_ROLES][2];
    tess_status got;
    int64_t step;
    int announced, digests, synced, checked, imaged; /* calls */
    int fail_copy;                                   /* the n-th of the next ones */
} member;
static member all[RANKS_MOST];
static tess__group groups[2];
static tess__layout layout;
static uint64_t image_bytes;

/* ---- what stands in for the engine ---- */

static member *member_of_engine(const tess *t) {
    return &all[t->comms.world.rank];
}

/* The kind of memory that a pointer lies in; 0: none of this rank. */
static uint32_t mem_of(const member *m, const char *at, uint64_t bytes) {
    for (int i = 0; i < LIVE; i++)
        if (m->live[i] && at >= m->live[i] && at + bytes <= m->live[i] + LIVE_ROOM)
            return m->mem[i];
    if (at >= m->images && at + bytes <= m->images + IMAGES * image_bytes)
        return tess__image_mem(&m->t);
    return at == m->stage && bytes <= TESS__MIRROR_CHUNK ? m->t.plan.setup.env.mem : 0;
}

static tess_status copy_among(tess *t, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem, uint64_t bytes) {
    member *m = member_of_engine(t);
    if (m->fail_copy && --m->fail_copy == 0)
        return tess__fail(TESS_E_DEVICE, "no copy");
    RANKS_CHECK(mem_of(m, dst, bytes) == dst_mem && mem_of(m, src, bytes) == src_mem);
    memmove(dst, src, bytes);
    return TESS_OK;
}

static tess_status note_announced(tess *t) {
    RANKS_CHECK(t->mirror.ready && t->comms.world.rank == 0 && t->mirror.taken < 0);
    member_of_engine(t)->announced++;
    return TESS_OK;
}

/* Comes when the image is whole, before it counts. */
static tess_status note_digest(tess *t, int of_other, int slot) {
    RANKS_CHECK(slot == t->mirror.slot && (of_other ? t->mirror.copy : t->mirror.own)[slot] == -1);
    member_of_engine(t)->digests += of_other ? 16 : 1;
    return TESS_OK;
}

static void note_imaged(tess__scaler *s, int64_t step) {
    const tess *t = (const tess *)((const char *)s - offsetof(tess, scaler));
    RANKS_CHECK(step == (int64_t)t->step.steps_done && t->mirror.own[t->mirror.slot] == step);
    member_of_engine(t)->imaged++;
}

static tess_status note_sync(tess__streams *s) {
    member_of_engine((const tess *)((const char *)s - offsetof(tess, streams)))->synced++;
    return TESS_OK;
}

static void note_check(tess *t) {
    member_of_engine(t)->checked++;
}

/* ---- a group of ranks ---- */

static const struct {
    int role;
    int32_t index;
} places[LIVE] = { { TESS__MASTER, 0 }, { TESS__STATE0, 0 }, { TESS__MASTER, 1 }, { TESS__BUFFERS, 0 } };

static void make_member(int32_t rank, int32_t n, int32_t shards, uint32_t mem) {
    member *m = &all[rank];
    memset(&m->t, 0, sizeof m->t);
    const int pageable = mem == TESS_MEM_HOST; /* where a rank has one memory, nothing is locked in it */
    m->t.plan.setup = (tess__setup){ .nranks = n, .shard_ranks = shards, .replicas = n / shards, .mirror = 1 };
    m->t.plan.setup.align = 64;
    m->t.plan.setup.env.mem = mem;
    m->t.plan.layout = layout;
    m->t.comms.world.rank = rank;
    m->t.comms.world.nranks = n;
    m->t.comms.replica_rank = rank / shards;
    m->t.memory.arenas[TESS_DOMAIN_HOST][TESS__PAGEABLE].memory.mem = TESS_MEM_HOST;
    m->t.memory.arenas[TESS_DOMAIN_HOST][TESS__RESIDENT].memory.mem = pageable ? TESS_MEM_SHM : TESS_MEM_PINNED;
    m->buffers[0] = (tess__buffer){ .role = TESS__MIRROR_STAGE, .bytes = 77 };
    m->buffers[1] = (tess__buffer){ .role = TESS__MIRROR_SCRATCH, .bytes = SCRATCH };
    m->t.plan.resident.buffers = m->buffers;
    m->t.plan.resident.n_buffers = 2;
    for (int r = 0; r < TESS__N_ROLES; r++)
        m->t.memory.address[r] = m->one[r];
    m->images = m->images ? m->images : malloc(IMAGES * image_bytes);
    m->stage = m->stage ? m->stage : malloc(TESS__MIRROR_CHUNK);
    m->scratch = m->scratch ? m->scratch : malloc(SCRATCH);
    m->one[TESS__MIRROR][0] = m->images;
    m->one[TESS__MIRROR_STAGE][0] = m->stage;
    m->one[TESS__MIRROR_SCRATCH][0] = m->scratch;
    for (int i = 0; i < LIVE; i++) {
        m->live[i] = m->live[i] ? m->live[i] : malloc(LIVE_ROOM);
        m->one[places[i].role][places[i].index] = m->live[i];
        m->mem[i] = mem;
    }
    m->mem[1] = TESS_MEM_HOST; /* states rest in pageable host memory, and the second group's masters in locked */
    m->mem[2] = pageable ? TESS_MEM_SHM : TESS_MEM_PINNED;
    tess__mirror_reset(&m->t.mirror);
    m->announced = m->digests = m->synced = m->checked = m->imaged = m->fail_copy = 0;
}

static void make_group(int32_t n, int32_t shards, uint32_t mem) {
    groups[0] = (tess__group){ .shard_elems = 150000, .master = TESS_F32, .param_rest.domain = TESS_DOMAIN_DEVICE };
    groups[0].step = (tess_grain){ .n_states = 1, .state = { { TESS_F32, 1, "" } } };
    groups[0].state_rest = (tess__rest){ .domain = TESS_DOMAIN_HOST, .pageable = 1 };
    groups[1] = (tess__group){ .shard_elems = 100, .master = TESS_BF16, .param_rest.domain = TESS_DOMAIN_HOST };
    layout = (tess__layout){ .groups = groups, .n_groups = 2, .buffer_bytes = 12 };
    const tess__setup s = { .align = 64 };
    image_bytes = tess__image_bytes(&s, &layout);
    assert_int_equal(image_bytes, 600000 + 600000 + 256 + 64); /* two pieces */
    for (int32_t r = 0; r < n; r++)
        make_member(r, n, shards, mem);
    ranks_begin(n, shards < n ? shards : n / 2);
}

static char byte_of(int32_t shard, int64_t step, int place, uint64_t i) {
    return (char)((i * 2654435761u + (uint64_t)place * 97 + (uint64_t)step * 31 + (uint64_t)shard * 11) >> 3);
}

/* Which shard a rank has: replicas have the same. */
static int32_t shard_of(int32_t rank) {
    return rank % all[rank].t.plan.setup.shard_ranks;
}

static const uint64_t live_bytes[LIVE] = { 600000, 600000, 200, 12 }, live_at[LIVE] = { 0, 600000, 1200000, 1200256 };

static void fill_live(member *m, int64_t step) {
    const int32_t rank = m->t.comms.world.rank;
    m->t.step.steps_done = (uint64_t)step;
    for (int p = 0; p < LIVE; p++)
        for (uint64_t i = 0; i < live_bytes[p]; i++)
            m->live[p][i] = byte_of(shard_of(rank), step, p, i);
}

static int is_live(const member *m, int32_t shard, int64_t step) {
    for (int p = 0; p < LIVE; p++)
        for (uint64_t i = 0; i < live_bytes[p]; i++)
            if (m->live[p][i] != byte_of(shard, step, p, i))
                return 0;
    return 1;
}

static int is_image(const char *image, int32_t shard, int64_t step) {
    for (int p = 0; p < LIVE; p++)
        for (uint64_t i = 0; i < live_bytes[p]; i++)
            if (image[live_at[p] + i] != byte_of(shard, step, p, i))
                return 0;
    return 1;
}

static void *take(void *arg) {
    member *m = arg;
    m->got = tess__mirror_take(&m->t);
    return NULL;
}

static void *tell(void *arg) {
    member *m = arg;
    m->got = announce(&m->t);
    return NULL;
}

static void *restore(void *arg) {
    member *m = arg;
    m->got = tess__mirror_restore(&m->t, &m->step);
    return NULL;
}

static void on_all(void *(*what)(void *)) {
    pthread_t thread[RANKS_MOST];
    for (int32_t r = 0; r < ranks.n; r++)
        assert_int_equal(pthread_create(&thread[r], NULL, what, &all[r]), 0);
    for (int32_t r = 0; r < ranks.n; r++)
        pthread_join(thread[r], NULL);
    assert_int_equal(ranks.wrong, 0);
}

/* Takes images of `step` into `slot`, and looks at all of them. `keeps`: whose each rank keeps; null: nobody's. */
static void take_all(int64_t step, int slot, const int32_t *keeps) {
    const uint64_t before = all[0].t.comms.n_collectives;
    for (int32_t r = 0; r < ranks.n; r++)
        fill_live(&all[r], step);
    on_all(take);
    for (int32_t r = 0; r < ranks.n; r++) {
        const member *m = &all[r];
        const tess__mirror *x = &m->t.mirror;
        assert_int_equal(m->got, TESS_OK);
        assert_true(is_image(m->images + (uint64_t)slot * image_bytes, shard_of(r), step));
        if (keeps)
            assert_true(is_image(m->images + (uint64_t)(2 + slot) * image_bytes, keeps[r], step));
        assert_int_equal(x->own[slot], step);
        assert_int_equal(x->copy[slot], step);
        assert_int_equal(x->slot, !slot);
        assert_int_equal(x->taken, step);
        assert_true(x->ready);
        assert_int_equal(m->t.comms.n_collectives, before + 3 * 2); /* three members at most, of two pieces each */
    }
}

static void lose(int32_t rank) {
    const tess__setup s = all[rank].t.plan.setup;
    const uint64_t number = all[rank].t.comms.n_collectives;
    make_member(rank, s.nranks, s.shard_ranks, s.env.mem);
    all[rank].t.comms.n_collectives = number;
    memset(all[rank].images, 0xee, IMAGES * image_bytes);
    for (int p = 0; p < LIVE; p++)
        memset(all[rank].live[p], 0xee, LIVE_ROOM);
}

/* All ranks are at `step` afterwards, and the next images go elsewhere. */
static void restore_all(int64_t step) {
    for (int32_t r = 0; r < ranks.n; r++)
        all[r].checked = 0;
    const uint64_t before = all[0].t.comms.n_collectives;
    on_all(restore);
    for (int32_t r = 0; r < ranks.n; r++) {
        const tess__mirror *x = &all[r].t.mirror;
        assert_int_equal(all[r].got, TESS_OK);
        assert_int_equal(all[r].step, step);
        assert_true(is_live(&all[r], shard_of(r), step));
        assert_int_equal(x->own[!x->slot], step);
        assert_int_equal(all[r].checked, 1); /* what memory has changed is not given back */
        assert_int_equal(all[r].t.comms.n_collectives, before + 3 * 2);
    }
}

/* ---- the tests ---- */

typedef struct {
    int32_t n, shards, keeps[RANKS_MOST], most_lost; /* keeps: whose image each rank keeps */
} case_of_ranks;
static const case_of_ranks cases[] = {
    { 2, 2, { 1, 0 }, 1 },
    { 3, 3, { 2, 0, 1 }, 1 },
    { 4, 4, { 2, 3, 0, 1 }, 1 },
    { 5, 5, { 4, 3, 0, 1, 2 }, 1 },
    { 6, 6, { 3, 4, 5, 0, 1, 2 }, 1 },
    { 7, 7, { 6, 4, 5, 0, 1, 2, 3 }, 1 },
    { 4, 2, { -1 }, 1 },
    { 6, 2, { -1 }, 2 },
    { 6, 3, { -1 }, 1 },
};
enum { CASES = sizeof cases / sizeof *cases };

static void test_image_ranks__each_rank_keeps_the_image_of_the_one_before_it(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++)
        for (uint32_t mem = TESS_MEM_HOST; mem <= TESS_MEM_CUDA; mem += TESS_MEM_CUDA - TESS_MEM_HOST) {
            const case_of_ranks *c = &cases[i];
            const int32_t *keeps = c->keeps[0] < 0 ? NULL : c->keeps;
            make_group(c->n, c->shards, mem);
            take_all(5, 0, keeps);
            assert_int_equal(ranks.exchanges, c->n); /* the first ones are told */
            assert_int_equal(ranks.posts, !keeps ? 0 : 2 * (c->n % 2 ? 9 + (c->n / 2 - 1) * 4 : c->n / 2 * 4));
            take_all(7, 1, keeps);
            take_all(9, 0, keeps);
            assert_int_equal(ranks.exchanges, c->n);
            for (int32_t r = 0; r < c->n; r++) {
                assert_int_equal(all[r].announced, r == 0);
                assert_int_equal(all[r].digests, 3 * 17);
                assert_int_equal(all[r].synced, 3); /* the device has ended what it does */
                assert_int_equal(all[r].imaged, 3);
            }
        }
}

static void test_image_ranks__lost_ranks_get_theirs_from_whoever_is_left(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++)
        for (int32_t lost = 0; lost < cases[i].n; lost++) {
            const case_of_ranks *c = &cases[i];
            make_group(c->n, c->shards, lost % 2 ? TESS_MEM_CUDA : TESS_MEM_HOST);
            take_all(5, 0, NULL);
            take_all(6, 1, NULL);
            for (int32_t k = 0; k < c->most_lost; k++) /* of one shard */
                lose((lost + k * c->shards) % c->n);
            restore_all(6);
            for (int32_t r = 0; r < c->n; r++) { /* who has an image gets none */
                const int is_new = all[r].t.mirror.own[0] == 6;
                assert_int_equal(is_new, r == lost || (c->most_lost == 2 && r == (lost + c->shards) % c->n));
                assert_int_equal(all[r].t.mirror.own[1], is_new ? -1 : 6);
            }
        }
}

/* A piece is told from another, and from that of another rank: who goes wrong does not take one for the other. */
static void test_image_ranks__no_two_pieces_have_one_tag(void **state) {
    (void)state;
    make_group(3, 3, TESS_MEM_HOST);
    take_all(5, 0, NULL);
    const ranks_meeting *m = &ranks.group[0];
    assert_int_equal(m->n_tags, 3 * 2);
    for (int i = 0; i < m->n_tags; i++)
        for (int k = 0; k < i; k++)
            assert_true(m->tags[i] != m->tags[k]);
}

/* Memory has changed images of ranks that live on: each comes back from whoever keeps its copy. Of replicas all lack
 * the same bytes, so that one sending is enough. */
static void test_image_ranks__images_that_have_changed_come_back(void **state) {
    static const int32_t n[] = { 2, 3, 6 };
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int changed = 1; changed < (n[i] > 2 ? 3 : 2); changed++) {
            make_group(n[i], i == 2 ? 2 : n[i], TESS_MEM_HOST);
            take_all(5, 0, NULL);
            take_all(6, 1, NULL);
            ranks.posts = 0;
            for (int32_t r = 0; r < changed; r++) { /* of one group, or of one shard */
                member *m = &all[i == 2 ? 2 * r : r];
                memset(m->images + image_bytes, 0xee, image_bytes);
                m->t.mirror.own[1] = -1;
            }
            restore_all(6);
            assert_int_equal(ranks.posts, 2 * (i == 2 ? 3 : changed * n[i]));
        }
}

/* Nobody lost anything: nothing is sent, and all go back. */
static void test_image_ranks__with_all_images_left_nothing_is_sent(void **state) {
    (void)state;
    make_group(4, 4, TESS_MEM_HOST);
    take_all(5, 0, NULL);
    take_all(6, 1, NULL);
    ranks.posts = 0;
    all[2].t.mirror.own[1] = -1; /* torn, and so is its copy */
    all[0].t.mirror.copy[1] = -1;
    for (int32_t r = 0; r < 4; r++)
        fill_live(&all[r], 8);
    restore_all(5);
    assert_int_equal(ranks.posts, 0);
    for (int32_t r = 0; r < 4; r++)
        assert_int_equal(all[r].t.mirror.slot, 1);
}

static void test_image_ranks__without_any_image_all_say_whose_is_gone(void **state) {
    (void)state;
    make_group(4, 4, TESS_MEM_HOST);
    take_all(5, 0, NULL);
    lose(1);
    lose(3); /* which kept the copy of 1 */
    on_all(restore);
    for (int32_t r = 0; r < 4; r++) {
        assert_int_equal(all[r].got, TESS_E_PEER);
        assert_int_equal(all[r].step, -1);
        assert_true(all[r].t.mirror.gone);
        assert_true(is_live(&all[r], r, 5) || r % 2);
    }
    member *m = &all[0];
    ranks.fail_exchange = 1; /* no answer is no lost image */
    m->t.mirror.gone = 0;
    on_all(restore);
    for (int32_t r = 0; r < 4; r++)
        assert_int_equal(all[r].got, TESS_E_PEER);
    assert_false(m->t.mirror.gone);
    assert_int_equal(m->step, -1);
    assert_int_equal(tess__image_gone(&m->t, 3), TESS_E_PEER);
    assert_string_equal(tess_last_error(),
                        "no image is left of rank 3's shard: it was lost with the rank that kept its copy");
}

/* What fails on the way leaves the other generation as it was, and what is torn does not count. */
static void test_image_ranks__what_is_torn_does_not_count(void **state) {
    (void)state;
    for (int where = 0; where < 5; where++) { /* each part of its own, and what is sent */
        make_group(2, 2, TESS_MEM_HOST);
        take_all(5, 0, NULL);
        take_all(6, 1, NULL);
        if (where < 4)
            all[0].fail_copy = all[1].fail_copy = where + 1;
        else
            ranks.fail_post = 1;
        for (int32_t r = 0; r < 2; r++)
            fill_live(&all[r], 7);
        on_all(take);
        for (int32_t r = 0; r < 2; r++) {
            const tess__mirror *x = &all[r].t.mirror;
            assert_int_equal(all[r].got, where < 4 ? TESS_E_DEVICE : TESS_E_PEER);
            assert_int_equal(x->own[0], where < 4 ? -1 : 7);
            assert_int_equal(x->copy[0], -1);
            assert_int_equal(x->own[1], 6);
            assert_int_equal(x->copy[1], 6);
            assert_int_equal(x->slot, 0);
            assert_int_equal(x->taken, 6);
        }
        ranks.fail_post = 0;
        restore_all(where < 4 ? 6 : 7); /* without a death each rank's own is enough */
    }
}

/* The first images are the group's when every rank has heard of them: rank 0 tells the launcher only then. */
static void test_image_ranks__the_first_ones_are_told_when_all_have_them(void **state) {
    (void)state;
    make_group(2, 2, TESS_MEM_HOST);
    ranks.fail_exchange = 1;
    for (int32_t r = 0; r < 2; r++)
        fill_live(&all[r], 0);
    on_all(take);
    for (int32_t r = 0; r < 2; r++) {
        assert_int_equal(all[r].got, TESS_E_PEER);
        assert_int_equal(all[r].announced, 0);
        assert_int_equal(all[r].t.mirror.taken, -1);
        assert_int_equal(all[r].t.mirror.own[0], 0);
        assert_int_equal(all[r].t.mirror.copy[0], 0);
        assert_true(all[r].t.mirror.ready); /* others may have heard it, and be lost now */
    }
    for (int differ = 0; differ < 2; differ++) { /* behind what all have in common, and in its last byte */
        static char common[2][4 * 13];
        make_group(2, 2, TESS_MEM_HOST);
        memset(common[1] + 13 - differ, 1, sizeof common[1] - 13);
        for (int32_t r = 0; r < 2; r++) {
            all[r].t.settings.options.common = common[r];
            all[r].t.plan.setup.common_bytes = 13;
        }
        on_all(tell);
        for (int32_t r = 0; r < 2; r++) {
            assert_int_equal(all[r].got, differ ? TESS_E_MISMATCH : TESS_OK);
            assert_int_equal(all[r].announced, !differ && r == 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_image_ranks__each_rank_keeps_the_image_of_the_one_before_it),
        cmocka_unit_test(test_image_ranks__lost_ranks_get_theirs_from_whoever_is_left),
        cmocka_unit_test(test_image_ranks__no_two_pieces_have_one_tag),
        cmocka_unit_test(test_image_ranks__images_that_have_changed_come_back),
        cmocka_unit_test(test_image_ranks__with_all_images_left_nothing_is_sent),
        cmocka_unit_test(test_image_ranks__without_any_image_all_say_whose_is_gone),
        cmocka_unit_test(test_image_ranks__what_is_torn_does_not_count),
        cmocka_unit_test(test_image_ranks__the_first_ones_are_told_when_all_have_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

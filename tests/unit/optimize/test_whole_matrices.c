/* SPDX-License-Identifier: BSD-3-Clause */
/* The step of whole matrices over layouts drawn by chance: each element meets its owner between two collectives, which
 * are played here, and comes back to its place. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "drawn_step.h"

enum { PIECES = STATES + 1 /* the update, and behind it the states that travel */ };

static void step_phase(int32_t n, uint32_t phase) {
    world.phase = phase;
    memset(world.seen, 0, sizeof world.seen);
    for (int32_t r = 0; r < n; r++)
        for (int32_t g = 0; g < GROUPS; g++) {
            const rank *x = &ranks[r];
            tess_status s = phase == TESS_PHASE_BEFORE
                                ? tess__update_make(&x->step, &x->memory, &plugin, g, NULL)
                                : tess__step_pieces(&x->step, &x->memory, &plugin, g, phase, NULL);
            assert_int_equal(s, TESS_OK);
        }
    for (int32_t k = 0; k < world.plan.model.n_params; k++)
        for (uint64_t i = 0; i < world.params[k].elems; i++)
            assert_int_equal(world.seen[k][i], 1);
}

static void gather(int32_t n, int32_t g, int piece) {
    const uint64_t shard = world.groups[g].shard_elems;
    for (int32_t to = 0; to < n; to++)
        for (int32_t from = 0; from < n; from++)
            memcpy(&ranks[to].update[g][piece][(uint64_t)from * shard],
                   &ranks[from].update[g][piece][(uint64_t)from * shard], shard * sizeof(float));
}

/* To the owners, and back: parts lie by rank, one behind the other, on both sides. */
static void exchange(int32_t n, int32_t g, int piece, int back) {
    uint64_t filled[RANKS] = { 0 };
    for (int32_t from = 0; from < n; from++) {
        const uint64_t *send, *recv, *unused;
        uint64_t at = 0;
        tess__parts_exchanged(&ranks[from].step, g, back, &send, &unused);
        for (int32_t to = 0; to < n; at += send[to++]) {
            rank *x = &ranks[to];
            float *place = !back ? x->update[g][piece] : piece ? x->parts[g][piece] : x->grad[g];
            const float *of = back ? ranks[from].update[g][piece] : ranks[from].parts[g][piece];
            tess__parts_exchanged(&x->step, g, back, &unused, &recv);
            assert_int_equal(recv[from], send[to]);
            memcpy(place + filled[to], of + at, send[to] * sizeof *place);
            filled[to] += send[to];
        }
    }
}

/* Each rank gets the sum of its shard, in which every rank but the owner has zeros. */
static void scatter(int32_t n, int32_t g, int piece) {
    const uint64_t shard = world.groups[g].shard_elems;
    for (int32_t to = 0; to < n; to++)
        for (uint64_t i = 0; i < shard; i++) {
            float sum = 0;
            for (int32_t from = 0; from < n; from++)
                sum += ranks[from].update[g][piece][(uint64_t)to * shard + i];
            (piece ? ranks[to].state[g][piece - 1] : ranks[to].grad[g])[i] = sum;
        }
}

static void travel(int32_t n, int parts, int back) {
    for (int32_t g = 0; n > 1 && g < GROUPS; g++)
        for (int piece = 0; piece < PIECES; piece++)
            if (piece == 2) /* state 1 stays */
                continue;
            else if (parts)
                exchange(n, g, piece, back);
            else
                back ? scatter(n, g, piece) : gather(n, g, piece);
    for (int32_t r = 0; parts && back && n > 1 && r < n; r++)
        for (int32_t g = 0; g < GROUPS; g++)
            for (int k = 0; k < STATES; k++)
                if (k != 1)
                    tess__parts_unpack(&ranks[r].step, g, ranks[r].parts[g][1 + k], ranks[r].state[g][k]);
}

static void check_same(float got, float want) {
    assert_memory_equal(&got, &want, sizeof got); /* no -0 either */
}

static void check_matrices(int32_t n) {
    for (int32_t g = 0; g < GROUPS; g++)
        for (uint64_t at = 0; at < world.groups[g].flat_elems; at++) {
            const rank *x = &ranks[at / world.groups[g].shard_elems];
            const uint64_t i = at % world.groups[g].shard_elems;
            const tess__param *p = owner_of(g, at);
            if (!p) {
                check_same(x->master[g][i], master_at(at));
                continue;
            }
            const uint64_t index = (at - p->offset) / (p->rows * p->cols);
            const float moved = 8 * scaled(at) + master_at(at) + (float)(100 * (index + 1));
            check_same(x->master[g][i], moved == 100 ? 0 : moved);
            for (int k = 0; k < STATES; k++)
                check_same(x->state[g][k][i], k == 1              ? state_at(at)
                                              : state_at(at) == 2 ? 0
                                                                  : state_at(at) + (float)(k + 1));
        }
    float nothing; /* behind each array nothing is written */
    memset(&nothing, 0x40, sizeof nothing);
    for (int32_t r = 0; r < n; r++)
        for (int32_t g = 0; g < GROUPS; g++) {
            check_same(ranks[r].master[g][world.groups[g].shard_elems], BEFORE);
            for (uint64_t i = world.groups[g].flat_elems; i < ROOM; i++)
                for (int piece = 0; piece < PIECES; piece++)
                    check_same(ranks[r].update[g][piece][i], nothing);
        }
}

static void test_whole_matrices__go_to_their_owners_and_come_back(void **state) {
    (void)state;
    tess__pool *pool = NULL;
    tess_error e = { .struct_size = sizeof e };
    assert_int_equal(tess__pool_create(3, "", &pool, &e), TESS_OK);
    for (unsigned seed = 0; seed < 16; seed++) {
        const int32_t n = 1 + (int32_t)seed % RANKS;
        const int parts = (int)seed / RANKS % 2;
        draw_layout(seed, n, 1, parts);
        world.pool = pool;
        for (int32_t r = 0; r < n; r++) {
            make_rank(r);
            memset(ranks[r].update, 0x40, sizeof ranks[r].update); /* what nobody writes is no result */
            memset(ranks[r].parts, 0x40, sizeof ranks[r].parts);
        }
        step_phase(n, TESS_PHASE_BEFORE);
        travel(n, parts, 0);
        for (int32_t r = 0; r < n; r++)
            for (int32_t g = 0; g < GROUPS; g++)
                assert_int_equal(tess__matrices_step(&ranks[r].step, &ranks[r].memory, &plugin, g, pool), TESS_OK);
        assert_null(tess__crash_now);
        travel(n, parts, 1);
        step_phase(n, TESS_PHASE_AFTER);
        check_matrices(n);
        assert_null(tess__crash_now);
        forget(n);
    }
    tess__pool_destroy(pool);
    draw_layout(1, 1, 1, 0);
    make_rank(0);
    world.fails_at = 1;
    assert_int_equal(tess__matrices_step(&ranks[0].step, &ranks[0].memory, &plugin, 0, NULL), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "optimizer fake: p0 is no matrix");
    forget(1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_matrices__go_to_their_owners_and_come_back),
    };
    ranks = calloc(RANKS, sizeof *ranks);
    const int failed = cmocka_run_group_tests_name("whole_matrices", tests, NULL, NULL);
    free(ranks);
    return failed;
}

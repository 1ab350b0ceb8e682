/* SPDX-License-Identifier: BSD-3-Clause */
/* What a load takes of a checkpoint's pieces, whatever their cuts: which values come to which place, what is left out,
 * and what of a piece that does not fit is said. Files and the engine are this test's. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "core/checkpoint/base_files.h"
#include "core/checkpoint/saved.h"
#include "core/checkpoint/store.h"
#include "core/engine/state.h"
#include "core/engine/values.h"
#include "core/kernels/kernels.h"

enum { ELEMS = 6, MOST = 8 };
static struct {
    tess__tensor list[MOST];
    uint64_t n;
    int reads;
    tess__owned owned; /* of every parameter and state */
    float room[32];
    uint32_t asked;
} world;
static tess engine;
static tess__param params[4];
static tess__group groups[2];

static int32_t find_param(const tess__model *m, const char *name) {
    for (int32_t i = 0; i < m->n_params; i++)
        if (!strcmp(m->params[i].name, name))
            return i;
    return -1;
}
static tess__owned owned_at(const tess *t, uint32_t of, int32_t param) {
    assert_ptr_equal(t, &engine);
    assert_in_range(param, 0, 3);
    world.asked = of;
    return world.owned;
}
static const tess__tensor *list_file(const tess__saved_file *f, uint64_t *n) {
    (void)f;
    *n = world.n;
    return world.list;
}
/* Element i of a tensor is 100 times its number and i more; bytes are those of the alphabet. */
static tess_status read_file(tess__saved_file *f, const tess__tensor *x, uint64_t first, uint64_t elems, void *out) {
    const int64_t number = x - world.list;
    (void)f;
    world.reads++;
    assert_true(first + elems <= x->elems);
    for (uint64_t i = 0; i < elems; i++)
        if (x->dtype == TESS_F32)
            ((float *)out)[i] = (float)(100 * (number + 1) + (int64_t)(first + i));
        else
            ((char *)out)[i] = (char)('a' + first + i);
    return TESS_OK;
}
#define tess__model_find_param find_param
#define tess__owned_at owned_at
#define tess__saved_file_list list_file
#define tess__saved_file_read read_file
/* What the others say; its own place is filled in. */
static const void *heard;
static tess_status exchange(tess__comms *c, const char *what, const void *mine, uint64_t bytes, void *all) {
    assert_string_equal(what, "tess_checkpoint_load");
    memcpy(all, heard, (size_t)c->world.nranks * bytes);
    memcpy((char *)all + (size_t)c->world.rank * bytes, mine, bytes);
    return TESS_OK;
}
#define tess__comms_exchange exchange
#include "core/saving/checkpoint_load.c"

static char names[4][16] = { "m.a", "m.tied", "m.frozen", "m.mean" };
static tess_checkpoint_load_options options;
static uint64_t taken[4 * (TESS__MAX_STATES + 1)];
static uint8_t in_base[4];

/* m.a of six elements, m.tied, which is the same, one frozen and a buffer; an optimizer of two states. */
static loading begin(void) {
    static char optimizer[] = "adamw";
    memset(&world, 0, sizeof world);
    memset(&engine, 0, sizeof engine);
    memset(taken, 0, sizeof taken);
    memset(in_base, 0, sizeof in_base);
    for (int i = 0; i < 4; i++)
        params[i] =
            (tess__param){ .name = names[i], .elems = ELEMS, .ndim = 1, .shape = { ELEMS }, .tied_to = i == 1 ? 0 : i };
    params[2].flags = TESS_FROZEN;
    params[2].group = 1;
    params[3].flags = TESS_BUFFER;
    groups[0] = (tess__group){ .trainable = 1, .step = { .n_states = 2, .kernel = 1 } };
    groups[0].step.state[0] = groups[0].step.state[1] = (tess_state){ TESS_F32, 1, "" };
    groups[1] = (tess__group){ .trainable = 0 };
    engine.plan.model = (tess__model){ .params = params, .n_params = 4 };
    engine.plan.layout = (tess__layout){ .groups = groups, .n_groups = 2, .n_states = 2 };
    engine.settings.optimizer = optimizer;
    engine.comms.world.rank = 3;
    for (int i = 0; i < 32; i++)
        world.room[i] = -1;
    world.owned = (tess__owned){
        .piece = { 0, 0, ELEMS }, .at = (char *)(world.room + 8), .mem = TESS_MEM_HOST, .dtype = TESS_F32
    };
    options = (tess_checkpoint_load_options){ .struct_size = sizeof options };
    loading l = { .t = &engine, .o = &options, .n_states = 2, .in_base = in_base, .taken = taken };
    strcpy(l.saved.path, "ckpt");
    return l;
}

static void add_piece(int kind, const char *param, uint64_t first, uint64_t elems, uint32_t dtype, tess_state state) {
    tess__tensor *x = &world.list[world.n++];
    tess__piece_name name = { .kind = kind, .first = first, .state = state };
    strcpy(name.name, param);
    *x = (tess__tensor){ .dtype = dtype, .ndim = 1, .elems = elems };
    assert_int_equal(tess__piece_name_write(&name, x->name), TESS_OK);
}
static const tess_state plain = { .every = 1 };

static void fails(loading *l, const char *format, const char *piece) {
    char want[256];
    assert_int_equal(take_file(l), TESS_E_DATA);
    snprintf(want, sizeof want, format, piece);
    assert_string_equal(tess_last_error(), want);
    assert_int_equal(world.reads, 0);
}

/* Every cut of the file against every cut of this rank. */
static void test_load_pieces__values_come_to_their_place_whatever_the_cuts(void **state) {
    (void)state;
    for (uint64_t first = 0; first <= ELEMS; first++)
        for (uint64_t n = 0; first + n <= ELEMS; n++)
            for (uint64_t mine = 0; mine <= ELEMS; mine++)
                for (uint64_t m = 0; mine + m <= ELEMS; m++)
                    for (int kind = TESS__PIECE_PARAM; kind <= TESS__PIECE_STATE0 + 1; kind++) {
                        if (kind == TESS__PIECE_PROGRAM)
                            continue;
                        loading l = begin();
                        uint64_t got = 0;
                        const int column = kind < TESS__PIECE_STATE0 ? 0 : kind - TESS__PIECE_STATE0 + 1;
                        const int index = kind == TESS__PIECE_BUFFER ? 3 : 0;
                        world.owned.piece = (tess__piece){ mine, 0, m };
                        add_piece(kind, names[index], first, n, TESS_F32, plain);
                        assert_int_equal(take_file(&l), TESS_OK);
                        for (uint64_t i = 0; i < m; i++) {
                            const int there = mine + i >= first && mine + i < first + n;
                            got += (uint64_t)there;
                            assert_true(world.room[8 + i] == (there ? 100.f + (float)(mine + i - first) : -1.f));
                        }
                        for (uint64_t i = 0; i < 32; i++)
                            assert_true((i >= 8 && i < 8 + m) || world.room[i] == -1);
                        for (int i = 0; i < 4 * (TESS__MAX_STATES + 1); i++)
                            assert_int_equal(taken[i], i == index * (TESS__MAX_STATES + 1) + column ? got : 0);
                        assert_int_equal(world.asked, column ? TESS_OF_MOMENT1 + (uint32_t)column - 1 : TESS_OF_PARAM);
                    }
    loading l = begin();
    world.owned.piece = (tess__piece){ 3, 0, 3 };
    add_piece(TESS__PIECE_PARAM, "m.a", 0, 3, TESS_U8, plain); /* another rank's, to whom its dtype is no good */
    assert_int_equal(take_file(&l), TESS_OK);
}

static void test_load_pieces__what_does_not_belong_is_named(void **state) {
    (void)state;
    loading l = begin();
    add_piece(TESS__PIECE_PARAM, "m.other", 0, 1, TESS_F32, plain);
    fails(&l, "ckpt: tensor '%s' belongs to nothing here", world.list[0].name);
    l = begin();
    add_piece(TESS__PIECE_PARAM, "m.tied", 0, 1, TESS_F32, plain); /* has no values of its own */
    fails(&l, "ckpt: tensor '%s' belongs to nothing here", world.list[0].name);
    l = begin();
    add_piece(TESS__PIECE_STATE0 + 2, "m.a", 0, 1, TESS_F32, plain);
    fails(&l, "ckpt: tensor '%s' belongs to nothing here", world.list[0].name);
    l = begin();
    add_piece(TESS__PIECE_PARAM, "m.a", 0, 1, TESS_F32, plain);
    strcpy(world.list[0].name, "nothing like it");
    fails(&l, "ckpt: tensor '%s' is no piece of a checkpoint", "nothing like it");
    static const struct {
        uint64_t first, elems;
    } beyond[] = { { ELEMS + 1, 0 }, { ELEMS, 1 }, { 0, ELEMS + 1 }, { 5, 2 }, { UINT64_MAX, 2 }, { 1, UINT64_MAX } };
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        l = begin();
        add_piece(TESS__PIECE_PARAM, "m.a", beyond[i].first, beyond[i].elems, TESS_F32, plain);
        fails(&l, "ckpt: tensor '%s' reaches beyond its parameter", world.list[0].name);
    }
}

static void test_load_pieces__states_that_are_not_asked_for_are_left_out(void **state) {
    (void)state;
    for (int how = 0; how < 3; how++) {
        loading l = begin();
        l.params_only = how == 0;
        add_piece(TESS__PIECE_STATE0, how == 0 ? "m.a" : how == 1 ? "m.frozen" : "m.mean", 0, ELEMS, TESS_F32, plain);
        assert_int_equal(take_file(&l), TESS_OK); /* frozen since, and no buffer has any */
        assert_int_equal(world.reads, 0);
        assert_true(world.room[8] == -1);
    }
}

/* By name, by how many elements a value is for, and by dtype, unless both are floats. */
static void test_load_pieces__a_state_is_that_of_the_optimizer(void **state) {
    (void)state;
    static const struct {
        tess_state own;
        uint32_t kernel; /* of the core's */
        tess_state saved;
        uint32_t dtype;
        int taken;
    } cases[] = { { { TESS_F32, 1, "" }, 1, { 0, 1, "" }, TESS_F32, 1 },
                  { { TESS_F32, 1, "sum" }, 1, { 0, 1, "" }, TESS_F32, 1 }, /* the core's have no names there */
                  { { TESS_F32, 1, "" }, 1, { 0, 1, "sum" }, TESS_F32, 0 },
                  { { TESS_F32, 1, "" }, 0, { 0, 1, "sum" }, TESS_F32, 0 },
                  { { TESS_F32, 1, "sum" }, 0, { 0, 1, "sum" }, TESS_F32, 1 },
                  { { TESS_F32, 1, "sum" }, 0, { 0, 1, "sums" }, TESS_F32, 0 },
                  { { TESS_F32, 1, "sum" }, 0, { 0, 1, "" }, TESS_F32, 0 },
                  { { TESS_F32, 2, "sum" }, 0, { 0, 2, "sum" }, TESS_F32, 1 },
                  { { TESS_F32, 2, "sum" }, 0, { 0, 3, "sum" }, TESS_F32, 0 },
                  { { TESS_U8, 1, "codes" }, 0, { 0, 1, "codes" }, TESS_U8, 1 },
                  { { TESS_U8, 1, "codes" }, 0, { 0, 1, "codes" }, TESS_F32, 0 },
                  { { TESS_F32, 1, "sum" }, 0, { 0, 1, "sum" }, TESS_U8, 0 } };
    for (size_t n = 0; n < 2 * sizeof cases / sizeof *cases; n++) {
        loading l = begin();
        const size_t i = n / 2;
        const int which = (int)(n % 2);
        groups[0].step.kernel = cases[i].kernel;
        groups[0].step.state[which] = cases[i].own;
        world.owned.dtype = cases[i].own.dtype;
        world.owned.piece.elems = ELEMS / cases[i].own.every;
        add_piece(TESS__PIECE_STATE0 + which, "m.a", 0, 1, cases[i].dtype, cases[i].saved);
        if (cases[i].taken) {
            assert_int_equal(take_file(&l), TESS_OK);
            assert_int_equal(taken[1 + which], 1);
        } else
            fails(&l, "ckpt: tensor '%s' is no state that optimizer adamw keeps of 'm.a' here", world.list[0].name);
    }
    loading l = begin();
    groups[0].step.n_states = 1; /* the other group of parameters has two */
    add_piece(TESS__PIECE_STATE0 + 1, "m.a", 0, 1, TESS_F32, plain);
    fails(&l, "ckpt: tensor '%s' is no state that optimizer adamw keeps of 'm.a' here", world.list[0].name);
    l = begin(); /* one value for four elements: two of six */
    const tess_state fourth = { TESS_F32, 4, "sum" };
    groups[0].step.kernel = 0;
    groups[0].step.state[0] = fourth;
    world.owned.piece.elems = 2;
    add_piece(TESS__PIECE_STATE0, "m.a", 0, 2, TESS_F32, fourth);
    assert_int_equal(take_file(&l), TESS_OK);
    assert_int_equal(taken[1], 2);
    l = begin();
    groups[0].step.kernel = 0;
    groups[0].step.state[0] = fourth;
    add_piece(TESS__PIECE_STATE0, "m.a", 0, 3, TESS_F32, fourth);
    fails(&l, "ckpt: tensor '%s' reaches beyond its parameter", world.list[0].name);
}

static void test_load_pieces__a_program_gets_its_own_bytes(void **state) {
    (void)state;
    for (uint64_t room = 0; room <= 5; room++) {
        char common[6] = "-----", own[6] = "-----";
        loading l = begin();
        options.common = common;
        options.common_bytes = room;
        options.own = own;
        options.own_bytes = room;
        add_piece(TESS__PIECE_PROGRAM, "common", 0, 3, TESS_U8, plain);
        add_piece(TESS__PIECE_PROGRAM, "rank-00002", 0, 5, TESS_U8, plain); /* another rank's */
        add_piece(TESS__PIECE_PROGRAM, "rank-00003", 0, 4, TESS_U8, plain);
        assert_int_equal(take_file(&l), TESS_OK);
        assert_true(l.common_bytes == 3 && l.own_bytes == 4); /* those that were saved */
        for (uint64_t i = 0; i < 5; i++) {
            assert_int_equal(common[i], i < room && i < 3 ? (int)('a' + i) : '-');
            assert_int_equal(own[i], i < room && i < 4 ? (int)('a' + i) : '-');
        }
        assert_int_equal(world.reads, 2);
    }
    loading l = begin();
    add_piece(TESS__PIECE_PROGRAM, "common", 0, 3, TESS_U8, plain);
    assert_int_equal(take_file(&l), TESS_OK); /* not wanted */
    assert_int_equal(l.common_bytes, 3);
    assert_int_equal(world.reads, 0);
}

static void lacks(loading *l, const char *why) {
    assert_int_equal(check_taken(l), TESS_E_DATA);
    assert_string_equal(tess_last_error(), why);
}

static void test_load_pieces__what_is_missing_of_a_shard_is_counted(void **state) {
    (void)state;
    enum { ROW = TESS__MAX_STATES + 1 };
    loading l = begin();
    taken[0] = taken[1] = taken[2] = taken[2 * ROW] = taken[3 * ROW] = ELEMS;
    assert_int_equal(check_taken(&l), TESS_OK); /* no states of what is frozen or a buffer, nothing of what is tied */
    taken[0]--;
    lacks(&l, "ckpt: the value of 'm.a' has 5 elements for this rank, expected 6");
    taken[0] += 2; /* and what came twice */
    lacks(&l, "ckpt: the value of 'm.a' has 7 elements for this rank, expected 6");
    taken[0] = ELEMS;
    taken[2] = 0;
    lacks(&l, "ckpt: optimizer state 2 of 2 of 'm.a' has 0 elements for this rank, expected 6");
    l.params_only = 1;
    assert_int_equal(check_taken(&l), TESS_OK);
    l.params_only = 0;
    groups[0].step.n_states = 1;
    assert_int_equal(check_taken(&l), TESS_OK);
    taken[2 * ROW] = 0;
    lacks(&l, "ckpt: the value of 'm.frozen' has 0 elements for this rank, expected 6");
    in_base[2] = 1; /* it lies in the base's files */
    assert_int_equal(check_taken(&l), TESS_OK);
    taken[3 * ROW] = 1;
    lacks(&l, "ckpt: the value of 'm.mean' has 1 elements for this rank, expected 6");
}

/* The first failure of all, whoever has it, and what that rank says of it. */
static void test_load_pieces__ranks_agree_on_the_first_failure(void **state) {
    (void)state;
    for (unsigned failed = 0; failed < 16; failed++) { /* a bit for each rank; this one is rank 3 */
        loading l = begin();
        load_outcome all[4] = { { .status = TESS_OK } }, out;
        int first = -1;
        char want[32] = "";
        for (int r = 3; r >= 0; r--)
            if (failed >> r & 1) {
                first = r;
                all[r].status = TESS_E_DATA;
                all[r].foreign = r;
                snprintf(all[r].message, sizeof all[r].message, "rank %d fails", r);
            }
        if (first >= 0)
            snprintf(want, sizeof want, "rank %d fails", first);
        engine.comms.world.nranks = 4;
        heard = all;
        l.foreign = 3;
        tess__fail(TESS_E_DATA, "rank 3 fails");
        assert_int_equal(agree_on_outcome(&l, failed >> 3 & 1 ? TESS_E_DATA : TESS_OK, &out), TESS_OK);
        assert_int_equal(out.status, first >= 0 ? TESS_E_DATA : TESS_OK);
        assert_string_equal(out.message, want);
        assert_true(first < 0 || out.foreign == first);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_pieces__values_come_to_their_place_whatever_the_cuts),
        cmocka_unit_test(test_load_pieces__what_does_not_belong_is_named),
        cmocka_unit_test(test_load_pieces__states_that_are_not_asked_for_are_left_out),
        cmocka_unit_test(test_load_pieces__a_state_is_that_of_the_optimizer),
        cmocka_unit_test(test_load_pieces__ranks_agree_on_the_first_failure),
        cmocka_unit_test(test_load_pieces__a_program_gets_its_own_bytes),
        cmocka_unit_test(test_load_pieces__what_is_missing_of_a_shard_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

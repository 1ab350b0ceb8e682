/* SPDX-License-Identifier: BSD-3-Clause */
/* An image that comes piece by piece is cut into shards: parameters, states of each element, and states of each block.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "core/engine/values.h"
#include "tests/support/toy.h"

static tess__owned pretended; /* what a rank owns; nothing: what the engine says */
static tess__owned owned_now(const tess *t, uint32_t of, int32_t param) {
    return pretended.piece.elems ? pretended : tess__owned_at(t, of, param);
}
#define tess__owned_at owned_now
#include "core/recovery/recut.c"

static char common[700]; /* of the program's own */
enum { PIECE = 512 };    /* of a block's values, too: every part of an image begins in one piece and ends in another */

typedef struct {
    const tess *t;
    const char *image;
    int blocks; /* states that have been compared */
} comparing;

/* Of all images, that of rank 0 gives these. */
static int is_of_rank_0(const tess__image_part *p) {
    return p->role == TESS__BUFFERS || p->role == TESS__COMMON;
}

static tess_status compare_part(void *user, const tess__image_part *p) {
    comparing *c = user;
    const tess__layout *l = &c->t->plan.layout;
    if (is_of_rank_0(p)) {
        assert_memory_equal(p->role == TESS__COMMON ? common : tess__address_of(c->t, p->role, p->index),
                            c->image + p->at, p->bytes);
        return TESS_OK;
    }
    const tess__group *g = &l->groups[p->index];
    uint64_t every = p->role == TESS__MASTER ? 1 : g->step.state[p->role - TESS__STATE0].every;
    const char *now = tess__address_of(c->t, p->role, p->index);
    for (int32_t i = 0; i < g->n_params; i++) {
        const tess__param *x = &c->t->plan.model.params[l->order[g->first_param + i]];
        uint64_t bytes = value_bytes(g, p), at = x->offset / every * bytes;
        assert_memory_equal(now + at, c->image + p->at + at, tess__values_of(x->elems, (uint32_t)every) * bytes);
    }
    c->blocks += every > 1 && p->bytes > PIECE;
    return TESS_OK;
}

static tess_status turn_those(void *user, const tess__image_part *p) {
    char *image = user;
    for (uint64_t i = 0; is_of_rank_0(p) && i < p->bytes; i++)
        image[p->at + i] ^= 0x55;
    return TESS_OK;
}

/* Each piece with what does not belong to it around it; in order, or the last one first. */
static void take_pieces(cutting *c, const char *image, uint64_t bytes, int backward) {
    const uint64_t n = (bytes + PIECE - 1) / PIECE;
    char *room = malloc(2 * bytes + PIECE);
    assert_non_null(room);
    memset(room, 0xee, 2 * bytes + PIECE);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t done = (backward ? n - 1 - i : i) * PIECE, size = bytes - done < PIECE ? bytes - done : PIECE;
        memcpy(room + bytes, image + done, size);
        memset(room + bytes + size, 0xee, PIECE - size);
        assert_int_equal(take_piece(c, done, room + bytes, TESS_MEM_HOST, size), TESS_OK);
    }
    free(room);
}

static void test_recut__pieces_of_an_image_come_to_their_places(void **state) {
    (void)state;
    const tess_options o = {
        .struct_size = sizeof o, .optimizer = "adamw8bit", .common = common, .common_bytes = sizeof common
    };
    tess *t = NULL;
    toy m;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, TOY_LARGE), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    uint64_t bytes = tess__image_bytes(&t->plan.setup, &t->plan.layout);
    char *image = malloc(bytes);
    assert_non_null(image);
    for (uint64_t i = 0; i < bytes; i++)
        image[i] = (char)((i * 2654435761u) >> 13);
    tess__carry carry = { .plan = t->plan };
    cutting c = { .t = t };
    t->mirror.carry = &carry;
    comparing x = { .t = t, .image = image };
    for (int backward = 0; backward < 2; backward++) {
        take_pieces(&c, image, bytes, backward);
        assert_int_equal(tess__image_each(&t->plan.setup, &t->plan.layout, compare_part, &x), TESS_OK);
    }
    c.rank = 1; /* another rank's statistics and bytes leave those of rank 0 as they are */
    assert_int_equal(tess__image_each(&t->plan.setup, &t->plan.layout, turn_those, image), TESS_OK);
    take_pieces(&c, image, bytes, 0);
    assert_int_equal(tess__image_each(&t->plan.setup, &t->plan.layout, turn_those, image), TESS_OK);
    t->mirror.carry = NULL;
    assert_int_equal(tess__image_each(&t->plan.setup, &t->plan.layout, compare_part, &x), TESS_OK);
    assert_true(x.blocks >= 2);
    for (int i = 0; i < 8; i++) /* a rank that owns values 5 to 7 takes them out of what comes */
        ((float *)(void *)image)[i] = (float)i;
    float own[5] = { -1, -1, -1, -1, -1 };
    pretended = (tess__owned){ .piece = { .in_param = 5, .elems = 3 }, .mem = TESS_MEM_HOST, .dtype = TESS_F32 };
    pretended.at = (char *)(own + 1);
    c.mem = TESS_MEM_HOST;
    assert_int_equal(place_values(&c, TESS_OF_PARAM, 0, 3, 3, image + 12), TESS_OK); /* 3 to 5 */
    assert_true(own[1] == 5 && own[2] == -1);
    assert_int_equal(place_values(&c, TESS_OF_PARAM, 0, 6, 2, image + 24), TESS_OK);
    assert_int_equal(place_values(&c, TESS_OF_PARAM, 0, 0, 5, image), TESS_OK); /* none of its own */
    assert_int_equal(place_values(&c, TESS_OF_PARAM, 0, 8, 5, image), TESS_OK);
    assert_true(own[0] == -1 && own[1] == 5 && own[2] == 6 && own[3] == 7 && own[4] == -1);
    pretended.piece.elems = 0;
    free(image);
    t->mirror.rank = 5; /* its number in the group that the images were of */
    assert_int_equal(tess__smaller_finish(t), TESS_OK);
    assert_int_equal(t->mirror.rank, 0);
    assert_int_equal(tess_close(t), TESS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_recut__pieces_of_an_image_come_to_their_places) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

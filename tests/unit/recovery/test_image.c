/* SPDX-License-Identifier: BSD-3-Clause */
/* Digests of images (TESSERA_AT_REST_DIGESTS): one changed bit of any part of any image is seen, that image alone is
 * forgotten, and the warning names its unit, step and owner. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/log.h"
#include "core/recovery/mirror.h"
#include "tests/support/toy.h"

enum { IMAGES = 4 /* two of this rank's own, two of another's */ };

typedef struct {
    tess *t;
    char *room;
    uint64_t bytes; /* of an image */
    int parts;
    int64_t forgotten; /* the image that is to be: 2 * of_other + slot; -1: none */
    tess__setup before;
} images;

static void open_images(images *x) {
    static char common[23]; /* no whole words */
    const tess_options o = { .struct_size = sizeof o, .optimizer = "adamw8bit", .common = common, .common_bytes = 23 };
    toy m;
    assert_int_equal(tess_open(&o, &x->t), TESS_OK);
    assert_int_equal(toy_declare(x->t, &m, TOY_STORED), TESS_OK);
    assert_int_equal(tess_shard(x->t, toy_fill, NULL), TESS_OK);
    x->before = x->t->plan.setup;
    x->t->plan.setup.mirror = 1; /* as if there were another rank, whose image this one keeps */
    x->t->plan.setup.nranks = 2;
    x->t->settings.digests_rest = 1;
    x->bytes = tess__image_bytes(&x->t->plan.setup, &x->t->plan.layout);
    x->room = malloc(IMAGES * x->bytes);
    assert_non_null(x->room);
    for (uint64_t i = 0; i < IMAGES * x->bytes; i++)
        x->room[i] = (char)((i * 2654435761u) >> 13);
    x->t->memory.address[TESS__MIRROR][0] = x->room;
}

static void close_images(images *x) {
    x->t->memory.address[TESS__MIRROR][0] = NULL;
    x->t->plan.setup = x->before;
    tess__image_digests_free(&x->t->mirror);
    assert_int_equal(tess_close(x->t), TESS_OK);
    free(x->room);
}

/* Own images of steps 0 and 1, kept ones of 2 and 3. */
static int64_t *step_of(images *x, int i) {
    return i < 2 ? &x->t->mirror.own[i] : &x->t->mirror.copy[i - 2];
}

static void check(images *x) {
    for (int i = 0; i < IMAGES; i++)
        *step_of(x, i) = i;
    tess__images_check(x->t);
    for (int i = 0; i < IMAGES; i++)
        assert_int_equal(*step_of(x, i), i == x->forgotten ? -1 : i);
}

static void digest_all(images *x) {
    for (int i = 0; i < IMAGES; i++)
        assert_int_equal(tess__image_digest(x->t, i / 2, i % 2), TESS_OK);
}

/* Its first and its last byte. */
static tess_status flip_part(void *user, const tess__image_part *p) {
    images *x = user;
    for (int i = 0; i < IMAGES; i++)
        for (int last = 0; last < 2; last++) {
            char *at = x->room + (uint64_t)i * x->bytes + p->at + (last ? p->bytes - 1 : 0);
            x->forgotten = i;
            *at ^= 8;
            check(x);
            *at ^= 8;
        }
    x->parts++;
    return TESS_OK;
}

static void test_image__any_bit_that_changes_is_seen_and_no_other_image_is_lost(void **state) {
    (void)state;
    images x = { .forgotten = -1 };
    int32_t least = tess__log_set_least(TESS_LOG_ERROR);
    open_images(&x);
    digest_all(&x);
    check(&x);
    assert_int_equal(tess__image_each(&x.t->plan.setup, &x.t->plan.layout, flip_part, &x), TESS_OK);
    assert_true(x.parts >= 5);
    x.forgotten = -1;
    check(&x);
    x.room[x.bytes] ^= 1; /* none is there to be changed */
    x.t->mirror.own[1] = -1;
    tess__images_check(x.t);
    assert_int_equal(x.t->mirror.own[1], -1);
    digest_all(&x); /* taken anew */
    check(&x);
    close_images(&x);
    tess__log_set_least(least);
}

static void test_image__without_digests_or_copies_none_is_taken(void **state) {
    (void)state;
    images x = { .forgotten = -1 };
    open_images(&x);
    x.t->settings.digests_rest = 0;
    digest_all(&x);
    for (int i = 0; i < IMAGES; i++)
        assert_null(x.t->mirror.digest[i / 2][i % 2]);
    x.room[0] ^= 1;
    check(&x);
    x.t->settings.digests_rest = 1;
    x.t->plan.setup.nranks = 1; /* replicas are the copies */
    digest_all(&x);
    assert_non_null(x.t->mirror.digest[0][1]);
    assert_null(x.t->mirror.digest[1][0]);
    close_images(&x);
}

/* What one check says on standard error. */
static void said(images *x, char *text, size_t capacity) {
    int kept = dup(STDERR_FILENO);
    FILE *f = tmpfile();
    assert_non_null(f);
    dup2(fileno(f), STDERR_FILENO);
    check(x);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(f);
    text[fread(text, 1, capacity - 1, f)] = 0;
    fclose(f);
}

typedef struct {
    uint64_t at[3]; /* of the first part, and of those that are of no unit */
    int n;
} unnamed;

static tess_status add_unnamed(void *user, const tess__image_part *p) {
    unnamed *u = user;
    if (p->role == TESS__BUFFERS || p->role == TESS__COMMON)
        u->at[++u->n] = p->at;
    return TESS_OK;
}

static void test_image__the_warning_names_unit_step_and_owner(void **state) {
    (void)state;
    images x = { .forgotten = 2 };
    char text[512], want[512];
    unnamed u = { .n = 0 };
    open_images(&x);
    digest_all(&x);
    assert_int_equal(tess__image_each(&x.t->plan.setup, &x.t->plan.layout, add_unnamed, &u), TESS_OK);
    assert_int_equal(u.n, 2);
    for (int i = 0; i < 3; i++) { /* buffers and the program's bytes are of no unit */
        const uint64_t at = 2 * x.bytes + u.at[i];
        x.room[at] ^= 1;
        said(&x, text, sizeof text);
        const tess__layout *l = &x.t->plan.layout;
        snprintf(
            want, sizeof want,
            "tessera: warning: rank 0, unit %s: the image of step 2 that it keeps for another rank is not what was "
            "taken: memory has changed, and it is not used (TESSERA_AT_REST_DIGESTS)\n",
            i ? "of no name" : l->units[l->groups[0].unit].name);
        assert_string_equal(text, want);
        x.room[at] ^= 1;
    }
    x.room[0] ^= 1; /* the first part that has changed is named, once */
    x.room[u.at[1]] ^= 1;
    x.forgotten = 0;
    said(&x, text, sizeof text);
    assert_non_null(strstr(text, ": the image of step 0 is not what"));
    assert_null(strstr(text, "of no name"));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    close_images(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_image__any_bit_that_changes_is_seen_and_no_other_image_is_lost),
        cmocka_unit_test(test_image__without_digests_or_copies_none_is_taken),
        cmocka_unit_test(test_image__the_warning_names_unit_step_and_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

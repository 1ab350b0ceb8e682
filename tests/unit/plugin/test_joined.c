/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tessera/plugin_helpers.h>

#include "tests/unit/counted.h"
#include "core/plugin/joined.c"

/* ---- where a selection is cut ------------------------------------------------------------------- */

static void assert_cut(const char *selection, const char *first, const char *last) {
    char *text = strdup(selection), *got = tess__joined_cut(text);
    assert_string_equal(text, first);
    if (last)
        assert_string_equal(got, last);
    else
        assert_null(got);
    free(text);
}

static void test_joined__a_plus_divides_before_a_name_alone(void **state) {
    (void)state;
    assert_cut("disk:/a/b+cpu", "disk:/a/b", "cpu");
    assert_cut("disk:/a/b,verify=0+cpu:params,grads", "disk:/a/b,verify=0", "cpu:params,grads");
    assert_cut("a+b+c:d", "a+b", "c:d");
    assert_cut("disk:/mnt/a+b/", "disk:/mnt/a+b/", NULL);
    assert_cut("disk:/mnt/a+b/c+cpu", "disk:/mnt/a+b/c", "cpu");
    assert_cut("/opt/c++/lib.so:x", "/opt/c++/lib.so:x", NULL);
    assert_cut("cpu:fraction=1e+0", "cpu:fraction=1e+0", NULL);
    assert_cut("cpu+", "cpu+", NULL);
    assert_cut("cpu", "cpu", NULL);
}

/* ---- two tables that say what they were asked --------------------------------------------------- */

typedef struct {
    uint32_t takes, rest; /* a bit for each kind of region, and where those rest */
    uint32_t asked;       /* regions of the last call */
    int closed;
    tess_status fails;
} partial;

static tess_status partial_place(void *ctx, const tess_plan_env *env, const tess_region *regions, uint32_t n,
                                 tess_placement *out, tess_error *error) {
    partial *x = ctx;
    (void)env;
    x->asked = n;
    if (x->fails)
        return tess_plugin_fail(error, x->fails, "no");
    for (uint32_t i = 0; i < n; i++) {
        const tess_region *r = TESS_AT(regions, i);
        tess_placement p = { .rest = x->takes >> r->region & 1 ? x->rest : TESS_REST_DEVICE, .align = 64 };
        p.host_bytes = p.rest == TESS_REST_DEVICE ? 0 : r->bytes;
        tess_plugin_give((char *)out + (size_t)i * out->struct_size, out->struct_size, &p, sizeof p);
    }
    return TESS_OK;
}

static void partial_close(void *ctx) {
    ((partial *)ctx)->closed++;
}

static tess_status opened_of;
static tess_status store_open(void *ctx, const tess_store_config *c, tess_store **out, uint64_t *obtained,
                              tess_error *error) {
    (void)c, (void)error;
    *out = ctx;
    *obtained = 7;
    return opened_of;
}
static tess_status store_post(tess_store *s, const tess_store_io *io, tess_request **out, tess_error *e) {
    (void)s, (void)io, (void)out, (void)e;
    return TESS_E_SYSTEM;
}
static tess_status store_wait(tess_store *s, tess_request *r, tess_error *e) {
    (void)s, (void)r, (void)e;
    return TESS_E_DATA;
}
static void store_close(tess_store *s) {
    (void)s;
}

static tess_status store_register(tess_store *s, void *memory, uint64_t bytes, tess_error *e) {
    (void)s, (void)memory, (void)bytes, (void)e;
    return TESS_E_UNSUPPORTED;
}

static const tess_offload_ops plain = { .struct_size = sizeof plain,
                                        .abi_major = TESS_ABI_MAJOR,
                                        .abi_minor = TESS_ABI_MINOR,
                                        .close = partial_close,
                                        .place = partial_place };
static const tess_offload_ops storing = { .struct_size = sizeof storing,
                                          .abi_major = TESS_ABI_MAJOR,
                                          .abi_minor = TESS_ABI_MINOR,
                                          .close = partial_close,
                                          .place = partial_place,
                                          .store_open = store_open,
                                          .store_post = store_post,
                                          .store_wait = store_wait,
                                          .store_close = store_close,
                                          .store_register = store_register,
                                          .store_deregister = store_close };

static tess__plugin *made(const char *name, const tess_offload_ops *ops, partial *x) {
    tess__plugin *p = (calloc)(1, sizeof *p); /* which its close frees */
    p->kind = TESS_KIND_OFFLOAD;
    strcpy(p->name, name);
    strcpy(p->version, "1.2.3");
    p->abi_major = TESS_ABI_MAJOR;
    p->abi_minor = TESS_ABI_MINOR;
    p->ops = ops;
    p->ctx = x;
    return p;
}

enum { N = 4 };
static void place(tess__plugin *p, tess_status expected, tess_placement out[N]) {
    tess_region regions[N] = { { .region = TESS_REGION_MASTER },
                               { .region = TESS_REGION_GRAD },
                               { .region = TESS_REGION_STATE },
                               { .region = TESS_REGION_ACTIVATION } };
    tess_plan_env env = { .struct_size = sizeof env };
    tess_error e = { .struct_size = sizeof e };
    for (int i = 0; i < N; i++) {
        regions[i].struct_size = sizeof *regions;
        regions[i].bytes = 100 + (uint64_t)i;
        out[i] = (tess_placement){ .struct_size = sizeof *out };
    }
    const tess_offload_ops *ops = p->ops;
    assert_int_equal(ops->place(p->ctx, &env, regions, N, out, &e), expected);
}

static void test_joined__the_second_places_what_the_first_leaves(void **state) {
    (void)state;
    partial a = { .takes = 1u << TESS_REGION_STATE, .rest = TESS_REST_STORE };
    partial b = { .takes = 1u << TESS_REGION_MASTER | 1u << TESS_REGION_STATE, .rest = TESS_REST_HOST };
    tess__plugin *p;
    tess_placement out[N];
    assert_int_equal(tess__joined_make(made("disk", &storing, &a), made("cpu", &plain, &b), &p), TESS_OK);
    assert_string_equal(p->name, "disk+cpu");
    assert_string_equal(p->version, "1.2.3+1.2.3");
    place(p, TESS_OK, out);
    const uint32_t rests[N] = { TESS_REST_HOST, TESS_REST_DEVICE, TESS_REST_STORE, TESS_REST_DEVICE };
    const uint64_t bytes[N] = { 100, 0, 102, 0 };
    for (int i = 0; i < N; i++) {
        assert_int_equal(out[i].rest, rests[i]);
        assert_int_equal(out[i].host_bytes, bytes[i]);
    }
    assert_int_equal(a.asked, N);
    assert_int_equal(b.asked, N - 1);
    b.fails = TESS_E_BUDGET;
    place(p, TESS_E_BUDGET, out);
    a.fails = TESS_E_UNSUPPORTED;
    place(p, TESS_E_UNSUPPORTED, out);
    tess__plugin_close(p);
    assert_int_equal(a.closed + b.closed, 2);
}

static void test_joined__the_store_is_of_the_one_that_has_it(void **state) {
    (void)state;
    for (int first = 0; first < 2; first++) {
        partial a = { .takes = 0 }, b = { .takes = 0 };
        tess__plugin *p;
        tess_store *store = NULL;
        uint64_t obtained = 0;
        assert_int_equal(
            tess__joined_make(made("a", first ? &storing : &plain, &a), made("b", first ? &plain : &storing, &b), &p),
            TESS_OK);
        const tess_offload_ops *ops = p->ops;
        assert_int_equal(ops->store_open(p->ctx, NULL, &store, &obtained, NULL), TESS_OK);
        assert_ptr_equal(store, first ? (void *)&a : (void *)&b);
        assert_int_equal(obtained, 7);
        assert_ptr_equal(ops->store_post, store_post);
        assert_ptr_equal(ops->store_wait, store_wait);
        assert_ptr_equal(ops->store_close, store_close);
        assert_ptr_equal(ops->store_register, store_register);
        assert_ptr_equal(ops->store_deregister, store_close);
        tess__plugin_close(p);
    }
}

/* ---- structs of other headers -------------------------------------------------------------------- */

typedef struct {
    tess_region r;
    uint64_t later;
} later_region;
typedef struct {
    tess_placement p;
    uint64_t later;
} later_placement;
static struct {
    uint64_t bytes[8];
    uint32_t n, size, out_size;
} seen;

/* The second one's: it sees whole regions, and places them by their bytes. */
static tess_status seeing_place(void *ctx, const tess_plan_env *env, const tess_region *regions, uint32_t n,
                                tess_placement *out, tess_error *error) {
    (void)ctx, (void)env, (void)error;
    seen.n = n;
    seen.size = regions->struct_size;
    seen.out_size = out->struct_size;
    for (uint32_t i = 0; i < n; i++) {
        const tess_placement p = { .rest = TESS_REST_HOST,
                                   .align = 8,
                                   .host_bytes = 1000 + TESS_AT(regions, i)->bytes };
        assert_int_equal(TESS_AT(regions, i)->struct_size, sizeof(tess_region));
        seen.bytes[i] = TESS_AT(regions, i)->bytes;
        tess_plugin_give((char *)out + (size_t)i * out->struct_size, out->struct_size, &p, sizeof p);
    }
    return TESS_OK;
}

static void test_joined__regions_of_a_later_header_are_told_apart(void **state) {
    (void)state;
    const tess_offload_ops seeing = { .struct_size = sizeof seeing, .close = partial_close, .place = seeing_place };
    partial a = { .takes = 1u << TESS_REGION_STATE, .rest = TESS_REST_STORE }, b = { .takes = 0 };
    later_region regions[5] = { 0 };
    later_placement out[5] = { 0 };
    tess__plugin *p;
    tess_error e = { .struct_size = sizeof e };
    for (int i = 0; i < 5; i++) {
        regions[i].r.struct_size = sizeof regions[0];
        regions[i].r.region = i % 2 ? TESS_REGION_STATE : TESS_REGION_GRAD;
        regions[i].r.bytes = 10 + (uint64_t)i;
        regions[i].later = 77;
        out[i].p.struct_size = sizeof out[0];
        out[i].later = 99;
    }
    assert_int_equal(tess__joined_make(made("a", &plain, &a), made("b", &seeing, &b), &p), TESS_OK);
    const tess_offload_ops *ops = p->ops;
    assert_int_equal(ops->place(p->ctx, NULL, &regions[0].r, 5, &out[0].p, &e), TESS_OK);
    assert_true(seen.n == 3 && seen.size == sizeof(tess_region) && seen.out_size == sizeof(tess_placement));
    for (int i = 0; i < 5; i++) {
        assert_int_equal(out[i].p.rest, i % 2 ? TESS_REST_STORE : TESS_REST_HOST);
        assert_int_equal(out[i].p.host_bytes, i % 2 ? 10 + i : 1010 + i);
        assert_int_equal(out[i].p.struct_size, sizeof out[0]);
        assert_int_equal(out[i].later, 0);
        if (i % 2 == 0)
            assert_int_equal(seen.bytes[i / 2], 10 + i);
    }
    seen.n = 55;
    assert_int_equal(ops->place(p->ctx, NULL, &regions[1].r, 1, &out[1].p, &e), TESS_OK); /* nothing is left */
    assert_int_equal(seen.n, 55);
    assert_int_equal(ops->place(p->ctx, NULL, NULL, 0, NULL, &e), TESS_OK); /* of none there is nothing to ask */
    assert_int_equal(a.asked, 0);
    const int live = counted.live;
    for (int n = 1; n <= 3; n++) {
        counted.refuse = n;
        assert_int_equal(ops->place(p->ctx, NULL, &regions[0].r, 5, &out[0].p, &e), TESS_E_NOMEM);
        assert_string_equal(e.message, "no memory to place 5 regions");
        assert_int_equal(counted.live, live);
    }
    tess__plugin_close(p);
}

static void test_joined__is_as_old_as_the_older_and_named_after_both(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        partial a = { .takes = 0 }, b = { .takes = 0 };
        tess__plugin *first = made("a-name-of-31-characters-at-most", &plain, &a), *second = made("b", &plain, &b), *p;
        strcpy(first->version, "12.34.56-rc.7+build");
        first->abi_major = (uint16_t)(1 + i % 2), second->abi_major = (uint16_t)(2 - i % 2);
        first->abi_minor = (uint16_t)(3 + i / 2), second->abi_minor = (uint16_t)(4 - i / 2);
        assert_int_equal(tess__joined_make(first, second, &p), TESS_OK);
        assert_true(p->abi_major == 1 && p->abi_minor == 3 && p->kind == TESS_KIND_OFFLOAD);
        assert_string_equal(p->name, "a-name-of-31-ch+b");
        assert_string_equal(p->version, "12.34.56-rc+1.2.3");
        tess__plugin_close(p);
        assert_true(a.closed == 1 && b.closed == 1);
    }
    for (int n = 1; n <= 2; n++) {
        partial a = { .takes = 0 }, b = { .takes = 0 };
        tess__plugin *p = (void *)&a;
        const int live = counted.live;
        counted.refuse = n;
        assert_int_equal(tess__joined_make(made("a", &plain, &a), made("b", &plain, &b), &p), TESS_E_NOMEM);
        assert_string_equal(tess_last_error(), "no memory for two offload plugins");
        assert_true(p == (void *)&a && a.closed == 1 && b.closed == 1 && counted.live == live);
    }
}

static void test_joined__none_or_two_stores(void **state) {
    (void)state;
    partial a = { .takes = 0 }, b = { .takes = 0 };
    tess__plugin *p = NULL;
    assert_int_equal(tess__joined_make(made("a", &storing, &a), made("b", &storing, &b), &p), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(), "offload a and b have a store each, and a rank has one");
    assert_null(p);
    assert_int_equal(a.closed + b.closed, 2);
    assert_int_equal(tess__joined_make(made("a", &plain, &a), made("b", &plain, &b), &p), TESS_OK);
    assert_false(TESS_CAN(tess_offload_ops, (const tess_offload_ops *)p->ops, store_close));
    tess__plugin_close(p);
}

static void test_joined__built_in_ones_are_opened_by_name(void **state) {
    (void)state;
    tess__plugin *p = NULL;
    tess_placement out[N];
    assert_int_equal(tess__plugin_open(TESS_KIND_OFFLOAD, "none+none+none", NULL, &p), TESS_OK);
    assert_string_equal(p->name, "none+none+none");
    place(p, TESS_OK, out);
    for (int i = 0; i < N; i++)
        assert_int_equal(out[i].rest, TESS_REST_DEVICE);
    tess__plugin_close(p);
    assert_int_equal(tess__plugin_open(TESS_KIND_OFFLOAD, "none+none:x", NULL, &p), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "offload none takes no arguments"));
    assert_int_equal(tess__plugin_open(TESS_KIND_WRAP, "none+none", NULL, &p), TESS_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined__a_plus_divides_before_a_name_alone),
        cmocka_unit_test(test_joined__the_second_places_what_the_first_leaves),
        cmocka_unit_test(test_joined__the_store_is_of_the_one_that_has_it),
        cmocka_unit_test(test_joined__regions_of_a_later_header_are_told_apart),
        cmocka_unit_test(test_joined__is_as_old_as_the_older_and_named_after_both),
        cmocka_unit_test(test_joined__none_or_two_stores),
        cmocka_unit_test(test_joined__built_in_ones_are_opened_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

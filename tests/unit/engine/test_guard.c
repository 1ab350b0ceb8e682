/* SPDX-License-Identifier: BSD-3-Clause */
/* The copies that TESSERA_STRICT=1 hands out, of a host and of a device that the host does not read. Each byte that is
 * written where or when it may not be is named by scope, parameter and call; no other is. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "core/engine/state.h"
#include "tests/unit/logged.h"
#include "tests/unit/refused.h"

enum { PARAMS = 5, FENCE = 4096, PARAM = TESS__GUARD_PARAM, GRAD = TESS__GUARD_GRAD };
static struct {
    int host_left, tables_left, rooms_left; /* allocations until one fails; -1: none does */
    tess_status device, fill, copy;
    int given, fills, copies, reads;
    uint64_t seen_bytes;
    tess_alloc_request asked;
    void *memory;
    int freed; /* of the device */
} world;
static tess t;

static void *next(int *left, void *(*make)(size_t, size_t), size_t a, size_t b) {
    if (*left == 0)
        return NULL;
    *left -= *left > 0;
    world.given++;
    return make(a, b);
}
static void *plain(size_t one, size_t n) {
    (void)one;
    world.seen_bytes = n;
    return malloc(n);
}
static void give_back(void *p) {
    world.given -= p != NULL;
    free(p);
}
static void *zeroed(size_t n, size_t size) {
    return calloc(n, size);
}
static void *aligned(size_t align, size_t n) {
    assert_true(align == 64 && n % 256 == 0);
    return aligned_alloc(align, n);
}
static tess_status alloc(const tess_alloc_request *r, tess_buffer *out) {
    world.asked = *r;
    if (world.device)
        return tess__fail(world.device, "no room there");
    world.memory = malloc(r->bytes);
    *out = (tess_buffer){ .ptr = world.memory, .bytes = r->bytes, .mem = r->mem };
    return TESS_OK;
}
static void free_device(void *p) {
    assert_ptr_equal(p, world.memory);
    world.freed++;
    free(p);
}
static tess_status fill(void *at, uint8_t byte, uint64_t n) {
    world.fills++;
    memset(at, byte, n);
    return world.fill ? tess__fail(world.fill, "no fill") : TESS_OK;
}
static tess_status copy(void *to, uint32_t to_mem, const void *from, uint32_t from_mem, uint64_t n) {
    assert_true(to_mem == t.device.mem && from_mem == t.device.mem);
    world.copies++;
    memcpy(to, from, n);
    return world.copy ? tess__fail(world.copy, "no copy") : TESS_OK;
}
static tess_status look(void *to, const void *from, uint64_t n) {
    world.reads++;
    assert_true(n <= world.seen_bytes);
    memcpy(to, from, n);
    return TESS_OK;
}
#define tess__device_alloc(d, r, out) ((void)(d), alloc(r, out))
#define tess__device_free(d, b) free_device((b)->ptr)
#define tess__device_fill(d, at, byte, n) ((void)(d), fill(at, byte, n))
#define tess__device_copy(d, to, to_mem, from, from_mem, n, s)                                                         \
    copy(to, to_mem, from, from_mem, (s) == NULL ? (n) : UINT64_MAX)
#define tess__streams_read(q, to, from, n) look(to, from, n)
#define calloc(n, size) next(&world.tables_left, zeroed, n, size)
#define malloc(n) next(&world.rooms_left, plain, 1, n)
#define aligned_alloc(align, n) next(&world.host_left, aligned, align, n)
#define free(p) give_back(p)
#include "core/engine/guard.c"
#undef calloc
#undef malloc
#undef aligned_alloc
#undef free

static tess__param params[PARAMS];
static tess__group groups[2];
static tess__scope scopes[2];
static char names[PARAMS][8] = { "w", "alias", "stat", "frozen", "last" }, scope_names[2][4] = { "h.0", "h.1" };
/* The engine's own values, of each parameter and kind. */
static char real[PARAMS][2][1024];

static void begin_on(uint32_t mem) {
    memset(&world, 0, sizeof world);
    memset(&logged, 0, sizeof logged);
    world.host_left = world.tables_left = world.rooms_left = -1;
    memset(&t, 0, sizeof t);
    for (int32_t i = 0; i < PARAMS; i++) {
        params[i] = (tess__param){ .name = names[i], .tied_to = i == 1 ? 0 : i, .elems = (uint64_t)(10 + i) };
        for (int k = 0; k < 2; k++)
            memset(real[i][k], 16 * (i + 1) + k, sizeof real[i][k]);
    }
    params[2].flags = TESS_BUFFER;
    params[3].flags = TESS_FROZEN;
    params[4].group = 1;
    groups[0] = (tess__group){ .compute = TESS_F32, .grad_local = TESS_F32 };
    groups[1] = (tess__group){ .compute = TESS_BF16, .grad_local = TESS_F64 };
    for (int i = 0; i < 2; i++)
        scopes[i] = (tess__scope){ .name = scope_names[i] };
    t.plan.model.params = params;
    t.plan.model.n_params = PARAMS;
    t.plan.model.scopes = scopes;
    t.plan.model.n_scopes = 2;
    t.plan.layout.groups = groups;
    t.settings.strict = 1;
    t.device.mem = mem;
}
static int begin(void **state) {
    (void)state;
    begin_on(TESS_MEM_HOST);
    return 0;
}

static uint64_t bytes_there(int32_t param, int kind) {
    return param == 4 ? 14 * (kind == PARAM ? 2u : 8u) : params[param].elems * 4;
}

static char *open_at(int32_t param, int kind) {
    void *out = NULL;
    assert_int_equal(tess__guard_open(&t, param, kind, real[param][kind], &out), TESS_OK);
    return out;
}

static tess_status close_at(int32_t param, int kind) {
    return tess__guard_close(&t, param, kind, real[param][kind], "the_call", 1);
}

static void make(void) {
    assert_int_equal(tess__guard_create(&t, &t.pass.guard), TESS_OK);
    assert_non_null(t.pass.guard);
}

static void end(void) {
    tess__guard_destroy(t.pass.guard);
    t.pass.guard = NULL;
    assert_int_equal(world.given, 0);
}

/* All that may be done with copies, and what of it comes back. */
static void uses(void) {
    static const struct {
        int32_t param;
        int kind, guarded;
    } cases[] = { { 0, PARAM, 1 }, { 0, GRAD, 1 }, { 2, PARAM, 0 }, { 2, GRAD, 0 },
                  { 3, PARAM, 1 }, { 3, GRAD, 0 }, { 4, PARAM, 1 }, { 4, GRAD, 1 } };
    make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int32_t p = cases[i].param;
        const int kind = cases[i].kind;
        const uint64_t n = bytes_there(p, kind);
        char *const own = real[p][kind];
        char *at = open_at(p, kind);
        assert_int_equal(at != own, cases[i].guarded);
        if (!cases[i].guarded) {
            assert_int_equal(close_at(p, kind), TESS_OK);
            continue;
        }
        assert_memory_equal(at, own, n);
        assert_int_equal(at[n] == (kind == PARAM ? (char)0xff : 0), 1); /* the fence is not the program's */
        if (kind == GRAD)
            memset(at, 1, n);
        const int copies = world.copies;
        assert_ptr_equal(open_at(p, kind), at); /* within the first */
        assert_int_equal(world.copies, copies);
        if (kind == GRAD)
            assert_int_equal(at[0], 1);
        assert_int_equal(close_at(p, kind), TESS_OK);
        assert_true(own[0] == 16 * (p + 1) + kind); /* nothing ends with the inner one */
        assert_int_equal(close_at(p, kind), TESS_OK);
        for (uint64_t b = 0; b < n; b++) { /* a gradient goes back, and a pointer is of no use from here on */
            assert_int_equal(own[b], kind == GRAD ? 1 : 16 * (p + 1));
            assert_int_equal((unsigned char)at[b], kind == PARAM ? 0xff : 0);
        }
        assert_int_equal(own[n], (char)(16 * (p + 1) + kind));
        assert_int_equal(close_at(p, kind), TESS_OK); /* once more is fine */
        assert_int_equal(tess__guard_check(&t, "a check"), TESS_OK);
        assert_ptr_equal(open_at(p, kind), at);
        assert_int_equal(close_at(p, kind), TESS_OK);
    }
    char *w = open_at(0, PARAM); /* tied parameters are one */
    void *out = NULL;
    assert_int_equal(tess__guard_open(&t, 1, PARAM, real[0][PARAM], &out), TESS_OK);
    assert_ptr_equal(out, w);
    assert_int_equal(tess__guard_close(&t, 1, PARAM, real[0][PARAM], "x", 0), TESS_OK);
    assert_int_equal(tess__guard_check(&t, "a check"), TESS_OK); /* an open one is the program's */
    assert_int_equal(close_at(0, PARAM), TESS_OK);
    assert_int_equal(tess__guard_open(&t, 0, GRAD, NULL, &out), TESS_OK); /* no gradient in this pass */
    assert_null(out);
    assert_int_equal(tess__guard_close(&t, 0, GRAD, NULL, "x", 0), TESS_OK);
    end();
}

static void test_guard__what_may_be_done_is_done(void **state) {
    (void)state;
    uses();
    assert_true(world.copies && !world.reads);
    begin_on(TESS_MEM_CUDA);
    uses();
    assert_true(world.reads && world.freed == 1);
}

/* A device's copies lie one behind another, each with its fence, in one allocation. */
static void test_guard__a_device_has_all_copies_in_one_piece(void **state) {
    (void)state;
    begin_on(TESS_MEM_CUDA);
    make();
    const uint64_t room = (FENCE + 255) / 256 * 256 + 256; /* of each: fewer than 256 bytes of values */
    assert_true(world.asked.bytes == 5 * room && world.asked.align == 256 && world.asked.mem == TESS_MEM_CUDA);
    assert_true(world.asked.domain == TESS_DOMAIN_DEVICE && world.asked.category == TESS_CAT_TEMPORARY);
    assert_true(world.asked.numa_node == -1 && world.asked.struct_size == sizeof world.asked);
    assert_true(world.fills == 5 && world.given == 4 && world.seen_bytes == room + 1);
    char *at = world.memory;
    assert_ptr_equal(open_at(0, PARAM), at);
    assert_ptr_equal(open_at(0, GRAD), at + room);
    assert_ptr_equal(open_at(3, PARAM), at + 2 * room);
    assert_ptr_equal(open_at(4, PARAM), at + 3 * room);
    assert_ptr_equal(open_at(4, GRAD), at + 4 * room);
    end();
    assert_int_equal(world.freed, 1);
    begin_on(TESS_MEM_CUDA);
    t.plan.model.n_params = 0; /* nothing to guard takes nothing */
    make();
    assert_true(world.asked.bytes == 0 && !world.memory);
    end();
    assert_int_equal(world.freed, 0);
}

static void test_guard__room_that_is_missing_is_said(void **state) {
    (void)state;
    t.settings.strict = 0;
    assert_int_equal(tess__guard_create(&t, &t.pass.guard), TESS_OK);
    assert_true(!t.pass.guard && !world.given);
    void *out = NULL;
    assert_int_equal(tess__guard_open(&t, 0, PARAM, real[0][0], &out), TESS_OK); /* then pointers are the engine's */
    assert_ptr_equal(out, real[0][0]);
    assert_int_equal(close_at(0, PARAM), TESS_OK);
    assert_int_equal(tess__guard_check(&t, "a check"), TESS_OK);
    tess__guard_destroy(NULL);
    for (int left = 0; left < 2; left++) {
        begin(NULL);
        world.tables_left = left;
        assert_int_equal(tess__guard_create(&t, &t.pass.guard), TESS_E_NOMEM);
        assert_string_equal(tess_last_error(), "no memory for the tables of TESSERA_STRICT=1");
        assert_true(!t.pass.guard && !world.given);
    }
    for (int left = 0; left < 5; left++) {
        begin(NULL);
        world.host_left = left;
        assert_int_equal(tess__guard_create(&t, &t.pass.guard), TESS_E_NOMEM);
        assert_string_equal(tess_last_error(), "no memory for the copies that TESSERA_STRICT=1 hands out");
        assert_true(!t.pass.guard && !world.given);
    }
    for (int left = 0; left < 2; left++) { /* a device's memory is scarce: strictness goes on without copies */
        begin_on(TESS_MEM_CUDA);
        world.rooms_left = left;
        assert_int_equal(tess__guard_create(&t, &t.pass.guard), TESS_OK);
        assert_true(!t.pass.guard && !world.given);
        expect_logged(1, TESS_LOG_WARNING,
                      "TESSERA_STRICT=1 does not watch pointers, as the copies that it hands out find "
                      "no room: no memory to look at 4352 bytes");
    }
    begin_on(TESS_MEM_CUDA);
    world.device = TESS_E_NOMEM;
    assert_int_equal(tess__guard_create(&t, &t.pass.guard), TESS_OK);
    assert_true(!t.pass.guard && !world.given && logged.n == 1 && !world.freed);
    begin_on(TESS_MEM_CUDA);
    world.device = TESS_E_DEVICE; /* but a device that is broken is no question of room */
    assert_int_equal(tess__guard_create(&t, &t.pass.guard), TESS_E_DEVICE);
    assert_true(!t.pass.guard && !world.given && !logged.n);
    begin_on(TESS_MEM_CUDA);
    world.fill = TESS_E_DEVICE;
    assert_int_equal(tess__guard_create(&t, &t.pass.guard), TESS_E_DEVICE);
    assert_true(!t.pass.guard && !world.given && world.freed == 1);
}

/* ---- what may not be done ---- */

static const uint32_t kinds_of_memory[] = { TESS_MEM_HOST, TESS_MEM_CUDA };
static const uint64_t in_fence[] = { 0, 1, 255, 2048, FENCE - 2, FENCE - 1 };

static void test_guard__each_byte_past_the_end_is_seen(void **state) {
    (void)state;
    for (int m = 0; m < 2; m++)
        for (size_t i = 0; i < sizeof in_fence / sizeof *in_fence; i++)
            for (int kind = 0; kind < 2; kind++) {
                begin_on(kinds_of_memory[m]);
                make();
                open_at(4, kind)[bytes_there(4, kind) + in_fence[i]] ^= 1;
                refuses(
                    close_at(4, kind),
                    "the_call of scope \"h.1\": the program wrote past the end of the %s \"last\", which is declared "
                    "with 14 elements (TESSERA_STRICT=1)",
                    kind == PARAM ? "parameter" : "gradient of");
                end();
            }
}

static void test_guard__a_parameter_is_read_only(void **state) {
    static const uint64_t places[] = { 0, 1, 20, 39 };
    (void)state;
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < 4; i++) {
            begin_on(kinds_of_memory[m]);
            make();
            open_at(0, PARAM)[places[i]] ^= 1;
            refuses(close_at(0, PARAM),
                    "the_call of scope \"h.1\": the program wrote to parameter \"w\", which is read-only "
                    "(TESSERA_STRICT=1)");
            end();
        }
}

/* Written between an end and the next begin: seen at that begin, or at a check before it. */
static void test_guard__a_pointer_that_has_ended_is_not_written(void **state) {
    static const char *const ends[2][2] = { { "the end", "tess_backward_end" }, { "forward or backward", "backward" } };
    (void)state;
    for (int m = 0; m < 2; m++)
        for (int blocks = 0; blocks < 2; blocks++)
            for (int kind = 0; kind < 2; kind++)
                for (int closed_before = 0; closed_before < 2; closed_before++)
                    for (int i = 0; i < 3; i++) {
                        begin_on(kinds_of_memory[m]);
                        t.plan.model.n_blocks = blocks;
                        make();
                        const uint64_t n = bytes_there(0, kind), places[] = { 0, n - 1, n + FENCE - 1 };
                        char *at = open_at(0, kind);
                        if (closed_before)
                            assert_int_equal(close_at(0, kind), TESS_OK);
                        else {
                            t.pass.guard->copies[kind].open = 0; /* as if no begin had come yet */
                            memset(at, kind == PARAM ? 0xff : 0, n);
                        }
                        at[places[i]] ^= 1;
                        void *out = NULL;
                        const char *format =
                                       "%s \"w\" was written after %s of scope \"%s\": its pointer held until then "
                                       "(seen in %s, TESSERA_STRICT=1)",
                                   *what = kind == PARAM ? "parameter" : "gradient of",
                                   *scope = closed_before ? "h.1" : "?";
                        refuses(tess__guard_check(&t, "a check"), format, what, ends[blocks][kind], scope, "a check");
                        refuses(tess__guard_open(&t, 0, kind, real[0][kind], &out), format, what, ends[blocks][kind],
                                scope, "the next begin");
                        at[places[i]] ^= 1;
                        assert_int_equal(tess__guard_check(&t, "a check"), TESS_OK);
                        end();
                    }
}

/* A check looks at the last one, too. */
static void test_guard__a_check_looks_at_all_of_them(void **state) {
    static const struct {
        int32_t param;
        int kind;
    } all[] = { { 0, PARAM }, { 0, GRAD }, { 3, PARAM }, { 4, PARAM }, { 4, GRAD } };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        begin(NULL);
        make();
        char *at = open_at(all[i].param, all[i].kind);
        assert_int_equal(close_at(all[i].param, all[i].kind), TESS_OK);
        assert_int_equal(tess__guard_check(&t, "a check"), TESS_OK);
        *at ^= 1;
        assert_int_equal(tess__guard_check(&t, "a check"), TESS_E_INVALID);
        assert_non_null(strstr(tess_last_error(), names[all[i].param]));
        end();
    }
}

static void test_guard__failures_of_the_device_are_the_calls(void **state) {
    void *out = NULL;
    (void)state;
    make();
    world.copy = TESS_E_DEVICE;
    assert_int_equal(tess__guard_open(&t, 0, GRAD, real[0][GRAD], &out), TESS_E_DEVICE);
    world.copy = TESS_OK;
    end();
    make();
    (void)open_at(0, GRAD);
    world.copy = TESS_E_DEVICE;
    assert_int_equal(close_at(0, GRAD), TESS_E_DEVICE);
    end();
    world.copy = TESS_OK;
    make();
    (void)open_at(0, GRAD);
    world.fill = TESS_E_DEVICE;
    assert_int_equal(close_at(0, GRAD), TESS_E_DEVICE);
    end();
}

/* ---- the NaN ---- */

static void test_guard__a_gradient_with_the_nan_of_released_memory_is_named(void **state) {
    (void)state;
    const char *want =
        "the_call of scope \"h.1\": the gradient of \"%s\" holds the NaN that TESSERA_STRICT=1 leaves in "
        "released memory: a pointer was used after its end, or past the end of a parameter";
    for (int i = 0; i < 14; i++) {
        begin(NULL);
        memset(real[4][GRAD], 0, sizeof real[4][GRAD]);
        memset(real[0][GRAD], 0, sizeof real[0][GRAD]);
        make();
        memset(open_at(4, GRAD) + 8 * i, 0xff, 8);
        refuses(close_at(4, GRAD), want, "last");
        if (i < 10) {
            memset(open_at(0, GRAD) + 4 * i, 0xff, 4);
            refuses(close_at(0, GRAD), want, "w");
        }
        end();
    }
    float f[3] = { 1, NAN, -INFINITY };
    double d[3] = { 1, (double)NAN, -INFINITY };
    uint16_t h[3] = { 0xffff, 0xffff, 0xffff };
    assert_false(tess__guard_in(f, 3, TESS_F32)); /* a NaN of one's own is another */
    assert_false(tess__guard_in(d, 3, TESS_F64));
    assert_false(tess__guard_in(h, 3, TESS_BF16)); /* gradients of 16 bits are looked at as they are summed */
    memset(&f[2], 0xff, sizeof f[2]);
    assert_true(tess__guard_in(f, 3, TESS_F32));
    assert_false(tess__guard_in(f, 2, TESS_F32));
    assert_false(tess__guard_in(f, 0, TESS_F32));
    const uint64_t widened = 0xffffffffe0000000u, other = 0xffffffffc0000000u; /* as a float's becomes a double */
    memcpy(&d[2], &widened, sizeof widened);
    assert_true(tess__guard_in(d, 3, TESS_F64));
    assert_false(tess__guard_in(d, 2, TESS_F64));
    memcpy(&d[2], &other, sizeof other);
    assert_false(tess__guard_in(d, 3, TESS_F64));
    memset(&d[1], 0xff, sizeof d[1]);
    assert_true(tess__guard_in(d, 3, TESS_F64));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_guard__what_may_be_done_is_done, begin),
        cmocka_unit_test_setup(test_guard__a_device_has_all_copies_in_one_piece, begin),
        cmocka_unit_test_setup(test_guard__room_that_is_missing_is_said, begin),
        cmocka_unit_test_setup(test_guard__each_byte_past_the_end_is_seen, begin),
        cmocka_unit_test_setup(test_guard__a_parameter_is_read_only, begin),
        cmocka_unit_test_setup(test_guard__a_pointer_that_has_ended_is_not_written, begin),
        cmocka_unit_test_setup(test_guard__a_check_looks_at_all_of_them, begin),
        cmocka_unit_test_setup(test_guard__failures_of_the_device_are_the_calls, begin),
        cmocka_unit_test_setup(test_guard__a_gradient_with_the_nan_of_released_memory_is_named, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

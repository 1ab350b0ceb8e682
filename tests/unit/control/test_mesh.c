/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/control/mesh.h"

static void be_rank(int rank, int ranks, const char *mesh) {
    char text[16];
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%d", ranks);
    setenv("WORLD_SIZE", text, 1);
    setenv("TESSERA_MESH", mesh, 1);
}

static void expect_group(const char *dimensions, int32_t color, int32_t key, int32_t ranks) {
    tess_group_options o = { .struct_size = sizeof o };
    assert_int_equal(tess_mesh_group(dimensions, &o), TESS_OK);
    assert_int_equal(o.color, color);
    assert_int_equal(o.key, key);
    assert_int_equal(o.ranks, ranks);
    assert_string_equal(o.name, dimensions);
}

/* Colors are the lowest rank of each group. */
static void test_mesh__a_rank_has_its_group_along_each_dimension(void **state) {
    (void)state;
    for (int rank = 0; rank < 12; rank++) {
        int dp = rank / 6, cp = rank / 2 % 3, tp = rank % 2;
        be_rank(rank, 12, "dp=2,cp=3,tp=2");
        expect_group("dp", rank - 6 * dp, dp, 2);
        expect_group("cp", rank - 2 * cp, cp, 3);
        expect_group("tp", rank - tp, tp, 2);
        expect_group("dp,cp", tp, 3 * dp + cp, 6);
        expect_group("tp,dp", 2 * cp, 2 * tp + dp, 4);
        expect_group("pp", rank, 0, 1);
    }
    be_rank(3, 4, "");
    expect_group("dp", 0, 3, 4);
    expect_group("tp", 3, 0, 1);
    be_rank(0, 1, "tp=1");
    expect_group("tp", 0, 0, 1);
}

static void test_mesh__neighbours_are_so_far_apart(void **state) {
    (void)state;
    static const struct {
        const char *dimensions;
        int32_t stride;
    } all[] = { { "dp", 6 }, { "cp", 2 }, { "tp", 1 }, { "dp,cp", 2 }, { "pp", 1 } };
    int32_t stride;
    be_rank(0, 12, "dp=2,cp=3,tp=2");
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_int_equal(tess__mesh_stride(all[i].dimensions, &stride), TESS_OK);
        assert_int_equal(stride, all[i].stride);
    }
    be_rank(0, 12, "");
    assert_int_equal(tess__mesh_stride("dp", &stride), TESS_OK);
    assert_int_equal(stride, 1);
}

static void test_mesh__what_is_none_is_refused(void **state) {
    (void)state;
    static const char *const wrong[] = { "dp",
                                         "dp=",
                                         "dp=0",
                                         "=2",
                                         "dp=2,",
                                         "dp=2,tp",
                                         "dp=2,dp=2",
                                         "dp=2x",
                                         "DP=2",
                                         "dp=-1",
                                         "dp=1048577",
                                         "dp=1024,tp=1025",
                                         ",",
                                         "dp=2,,tp=2",
                                         "abcdefghijklmnop=2",
                                         "a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1" };
    tess__mesh m;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (tess__mesh_parse("--mesh", wrong[i], &m) != TESS_E_INVALID || !strstr(tess_last_error(), wrong[i]))
            fail_msg("'%s' was taken: %s", wrong[i], tess_last_error());
    assert_int_equal(tess__mesh_parse("--mesh", "a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=3", &m), TESS_OK);
    assert_int_equal(m.n, 8);
    assert_int_equal(m.ranks, 3);
    tess_group_options o = { .struct_size = sizeof o }, old = { .struct_size = 8 };
    be_rank(0, 6, "dp=2,tp=2");
    assert_int_equal(tess_mesh_group("dp", &o), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "TESSERA_MESH=dp=2,tp=2 is a mesh of 4 ranks, here are 6");
    be_rank(0, 4, "dp=2,tp=2");
    assert_int_equal(tess_mesh_group("", &o), TESS_E_INVALID);
    assert_int_equal(tess_mesh_group("dp", &old), TESS_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mesh__a_rank_has_its_group_along_each_dimension),
        cmocka_unit_test(test_mesh__neighbours_are_so_far_apart),
        cmocka_unit_test(test_mesh__what_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* The built-in wrap policies over trees by chance, against their definitions. */
#include "drawn_view.h"

#include "core/builtin/builtins.h"
#include "tests/unit/counted.h"
#include "core/builtin/wrap_policies.c"

typedef tess_status open_fn(const tess_host *, const void **, void **, tess_error *);
static tess_error error;

static tess_status run(open_fn *open, const char *args, const drawn *d, int32_t *unit, int32_t *n) {
    const tess_host host = { .struct_size = sizeof host, .args = args };
    const void *table;
    void *ctx = NULL;
    error = (tess_error){ .struct_size = sizeof error };
    tess_status s = open(&host, &table, &ctx, &error);
    if (s)
        return s;
    const tess_wrap_ops *ops = table;
    s = ops->assign(ctx, &d->view, NULL, unit, n, NULL, NULL, &error);
    ops->close(ctx);
    assert_int_equal(counted.live, 0);
    return s;
}

static void gives(open_fn *open, const char *args, const drawn *d, const int32_t *want, int32_t n_want) {
    int32_t unit[PARAMS], n = -1;
    memset(unit, 0x55, sizeof unit); /* nothing of before may count */
    if (run(open, args, d, unit, &n))
        fail_msg("%s", error.message);
    assert_int_equal(n, n_want);
    assert_memory_equal(unit, want, d->view.n_params * sizeof *unit);
}

static void test_wrap_policies__units_are_as_defined(void **state) {
    (void)state;
    static drawn d;
    uint64_t seed = 77;
    for (int round = 0; round < 3000; round++) {
        int32_t want[PARAMS], n;
        char args[24];
        draw_view(&d, &seed);
        const uint32_t size = 1 + draw(&seed, round % 2 ? 60 : 600);
        snprintf(args, sizeof args, "%u", size);
        n = units_by_size(&d, size, want);
        gives(tess__wrap_size_open, args, &d, want, n);
        n = units_by_scope(&d, want);
        gives(tess__wrap_scopes_open, "", &d, want, n);
        n = one_unit(&d, want);
        gives(tess__wrap_none_open, "", &d, want, n);
    }
}

/* One level for each star; dots part levels. */
static int is_named(const char *name, const char *pattern) {
    for (; *pattern; pattern++) {
        if (*pattern == '*') {
            for (; *name && *name != '.'; name++)
                if (is_named(name, pattern + 1))
                    return 1;
        } else if (*name++ != *pattern)
            return 0;
    }
    return !*name;
}

static void test_wrap_policies__modules_are_chosen_by_name(void **state) {
    (void)state;
    static const char *const names[] = { "",     "h",    "h.0",     "h.0.attn", "h.1",
                                         "h.10", "head", "h.0.mlp", "wte",      "h.1.attn.q" };
    static const char *const args[] = {
        "h", "h.*", "*", "h.*.attn", "wte,h.1", "h.1,h.10,wte", "head,h.0.mlp", "h*", "h.*.*.*,x", "h.0.*"
    };
    static drawn d;
    uint64_t seed = 9;
    for (int round = 0; round < 2000; round++) {
        const char *text = args[draw(&seed, 10)];
        int is_unit[MODULES];
        int32_t label[PARAMS], want[PARAMS];
        draw_view(&d, &seed);
        for (uint32_t m = 0; m < d.view.n_modules; m++) {
            char list[64], *rest = list;
            d.modules[m].name = names[m ? 1 + draw(&seed, 9) : 0];
            snprintf(list, sizeof list, "%s", text);
            is_unit[m] = 0;
            for (char *p; (p = strsep(&rest, ","));)
                is_unit[m] |= is_named(d.modules[m].name, p);
        }
        label_modules(&d, is_unit, label);
        const int32_t n = units_of(&d, label, 1, want);
        gives(tess__wrap_module_open, text, &d, want, n);
    }
}

static void test_wrap_policies__arguments_that_are_none_are_refused(void **state) {
    (void)state;
    static const struct {
        open_fn *open;
        const char *args, *message;
    } bad[] = {
        { tess__wrap_scopes_open, "x", "takes nothing after the colon, got \"x\"" },
        { tess__wrap_none_open, "1", "takes nothing after the colon, got \"1\"" },
        { tess__wrap_size_open, "", "expects a number of elements after the colon, as in size:20000, got \"\"" },
        { tess__wrap_size_open, "0", "expects a number of elements after the colon, as in size:20000, got \"0\"" },
        { tess__wrap_size_open, "-1", "expects a number of elements after the colon, as in size:20000, got \"-1\"" },
        { tess__wrap_size_open, " 1", "expects a number of elements after the colon, as in size:20000, got \" 1\"" },
        { tess__wrap_size_open, ":", "expects a number of elements after the colon, as in size:20000, got \":\"" },
        { tess__wrap_size_open, "1k", "expects a number of elements after the colon, as in size:20000, got \"1k\"" },
        { tess__wrap_size_open, "18446744073709551615",
          "expects a number of elements after the colon, as in size:20000, got \"18446744073709551615\"" },
        { tess__wrap_module_open, "", "expects module names after the colon, as in module:h.*,head" },
        { tess__wrap_module_open, "a,,b", "has an empty pattern in \"a,,b\"" },
        { tess__wrap_module_open, ",a", "has an empty pattern in \",a\"" },
    };
    int32_t unit[PARAMS], n;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(run(bad[i].open, bad[i].args, NULL, unit, &n), TESS_E_INVALID);
        assert_string_equal(error.message, bad[i].message);
        assert_int_equal(counted.live, 0);
    }
}

static void test_wrap_policies__without_memory_they_say_so(void **state) {
    (void)state;
    static drawn d;
    uint64_t seed = 3;
    int32_t unit[PARAMS], n;
    draw_view(&d, &seed);
    for (uint32_t m = 0; m < d.view.n_modules; m++)
        d.modules[m].name = "h";
    for (int size = 0; size < 2; size++) {
        int tries = 0;
        for (tess_status s = TESS_E_NOMEM; s; tries++) {
            counted.refuse = tries + 1;
            s = run(size ? tess__wrap_size_open : tess__wrap_module_open, size ? "9" : "a,b", &d, unit, &n);
            assert_true(s == TESS_OK || s == TESS_E_NOMEM);
            assert_string_equal(error.message, s ? "no memory to choose units" : "");
            assert_int_equal(counted.live, 0);
        }
        assert_true(tries > 1 && counted.refuse); /* it ends well where nothing was refused */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrap_policies__units_are_as_defined),
        cmocka_unit_test(test_wrap_policies__modules_are_chosen_by_name),
        cmocka_unit_test(test_wrap_policies__arguments_that_are_none_are_refused),
        cmocka_unit_test(test_wrap_policies__without_memory_they_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

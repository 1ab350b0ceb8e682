/* SPDX-License-Identifier: BSD-3-Clause */
/* Models of modules that are drawn by chance, against a reckoning from their names alone. It says what each scope
 * hands out, the tree that wrap policies see, and the units that become of their answers. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/layout/module_tree.h"
#include "core/layout/wrap.h"
#include "tests/unit/drawn.h"
#include "tests/unit/no_steps.h"

enum { MOST = 40, NAME = 32 };

static tess__model model;
static char also[MOST][NAME]; /* by scope: the other module of its block; "" none */
static unsigned chance;
#define drawn(below) drawn32(&chance, below)
static int fails_at; /* which of the next allocations fails, from 1; 0: none */

/* The linker puts these between the core and the C library. */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *at, size_t n);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *at, size_t n);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t n);
static int may_have(void) {
    return !fails_at || --fails_at != 0;
}
void *__wrap_malloc(size_t n) {
    return may_have() ? __real_malloc(n) : NULL;
}
void *__wrap_calloc(size_t n, size_t size) {
    return may_have() ? __real_calloc(n, size) : NULL;
}
void *__wrap_realloc(void *at, size_t n) {
    return may_have() ? __real_realloc(at, n) : NULL;
}
char *__wrap_strdup(const char *text) {
    return may_have() ? __real_strdup(text) : NULL;
}
char *__wrap_strndup(const char *text, size_t n) {
    return may_have() ? __real_strndup(text, n) : NULL;
}

/* ---- declarations ---- */

static void draw_name(char *out, int depth) {
    out[0] = 0;
    for (int k = 0; k < depth; k++)
        sprintf(out + strlen(out), "%s%s", k ? "." : "", (const char *const[]){ "a", "b", "ab", "c" }[drawn(4)]);
}

static void draw_scope(int blocks) {
    char name[NAME], other[NAME] = "";
    int32_t at;
    draw_name(name, (int)drawn(4));
    if (blocks && drawn(3) == 0)
        draw_name(other, 1 + (int)drawn(2));
    tess_block_options o = { .struct_size = sizeof o,
                             .name = name,
                             .also = other[0] ? other : NULL,
                             .forward = no_block,
                             .backward = no_block };
    tess_status s = blocks ? tess__model_add_block(&model, &o, &at) : tess__model_add_scope(&model, name, 0, &at);
    if (!s)
        snprintf(also[at], NAME, "%s", other);
}

/* A declaration that cannot be is refused, and drawn again another time. A refused second module ends the model. */
static int draw_model(unsigned seed) {
    chance = seed * 2654435761u + 3;
    memset(also, 0, sizeof also);
    const int blocks = (int)drawn(2);
    for (int i = 1 + (int)drawn(8); i-- > 0;)
        draw_scope(blocks);
    for (int i = 1 + (int)drawn(20); i-- > 0;) {
        char name[NAME], end[8];
        const int64_t elems = 1 + drawn(9);
        static const uint32_t flags[] = { 0, 0, TESS_FROZEN, TESS_FROZEN, TESS_BUFFER };
        draw_name(name, (int)drawn(4));
        snprintf(end, sizeof end, "%sp%d", name[0] ? "." : "", i);
        strcat(name, end);
        tess_param_options o = { .struct_size = sizeof o, .dtype = TESS_F32, .name = name, .shape = &elems, .ndim = 1 };
        o.flags = flags[drawn(5)];
        assert_int_equal(tess__model_add_param(&model, &o, NULL), TESS_OK);
        if (drawn(4) == 0) {
            char of[NAME];
            snprintf(of, NAME, "%s", model.params[drawn((unsigned)model.n_params)].name);
            draw_name(name, (int)drawn(3));
            snprintf(end, sizeof end, "%st%d", name[0] ? "." : "", i);
            strcat(name, end);
            assert_int_equal(tess__model_tie(&model, name, of), TESS_OK);
        }
    }
    return tess__model_finish(&model) == TESS_OK;
}

/* ---- names ---- */

static int below(const char *name, const char *module) {
    const size_t n = strlen(module);
    return !n || strcmp(name, module) == 0 || (strncmp(name, module, n) == 0 && name[n] == '.');
}

/* The longest name of a scope, or of its other module, at or above a parameter. */
static int32_t home(const char *name) {
    int32_t best = -1;
    size_t most = 0;
    for (int32_t k = 0; k < model.n_scopes; k++)
        for (int other = 0; other < 2; other++) {
            const char *module = other ? also[k] : model.scopes[k].name;
            if ((other && !module[0]) || !below(name, module) || (best >= 0 && strlen(module) <= most))
                continue;
            best = k;
            most = strlen(module);
        }
    return best;
}

static void check_scopes(void) {
    for (int32_t k = 0; k < model.n_scopes; k++) {
        const tess__scope *s = &model.scopes[k];
        int32_t n = 0;
        for (int32_t i = 0; i < model.n_params; i++) {
            const char *name = model.params[i].name;
            const int mine = home(name) == k;
            const int under = s->block >= 0 && (below(name, s->name) || (also[k][0] && below(name, also[k])));
            assert_int_equal(model.params[i].scope, home(name));
            if (mine || under)
                assert_true(n < s->n_params && s->params[n++] == i);
        }
        assert_int_equal(s->n_params, n);
    }
}

/* ---- the tree ---- */

static char modules[200][NAME]; /* as they are met first */
static int n_modules;
static int listed[200]; /* depth first */
static int n_listed;

static void meet(const char *name, size_t n) {
    for (size_t end = 0; end <= n; end++) {
        char part[NAME];
        if (end != 0 && end != n && name[end] != '.')
            continue;
        snprintf(part, NAME, "%.*s", (int)end, name);
        int known = 0;
        for (int k = 0; k < n_modules; k++)
            known |= strcmp(modules[k], part) == 0;
        if (!known)
            strcpy(modules[n_modules++], part);
    }
}

static int is_child(const char *name, const char *of) {
    const char *rest = name + strlen(of) + (of[0] != 0);
    return name[0] && strcmp(name, of) != 0 && below(name, of) && !strchr(rest, '.');
}

static void list_from(int at) {
    listed[n_listed++] = at;
    for (int k = 0; k < n_modules; k++)
        if (is_child(modules[k], modules[at]))
            list_from(k);
}

static size_t module_part(const char *param) {
    const char *dot = strrchr(param, '.');
    return dot ? (size_t)(dot - param) : 0;
}

static void list_modules(void) {
    n_modules = n_listed = 0;
    meet("", 0);
    for (int32_t k = 0; k < model.n_scopes; k++)
        meet(model.scopes[k].name, strlen(model.scopes[k].name));
    for (int32_t i = 0; i < model.n_params; i++)
        meet(model.params[i].name, module_part(model.params[i].name));
    list_from(0);
    assert_int_equal(n_listed, n_modules);
}

static int in_module(int32_t i, const char *module) {
    const char *name = model.params[i].name;
    return strlen(module) == module_part(name) && strncmp(name, module, module_part(name)) == 0;
}

static const char *view_name(const tess__module_tree *t, int32_t k) {
    return t->view.modules[k].name;
}

/* Sums over all that lies in a module or below it; it is frozen throughout if all of that is. */
static void check_module(const tess__module_tree *t, int32_t k, int32_t first) {
    const tess_module_view *v = &t->view.modules[k];
    const char *name = modules[listed[k]];
    uint64_t own = 0, all = 0;
    int32_t n = 0, order = -1, any = 0, trained = 0;
    for (int32_t i = 0; i < model.n_params; i++) {
        const tess__param *p = &model.params[i];
        char module[NAME];
        snprintf(module, NAME, "%.*s", (int)module_part(p->name), p->name);
        if (p->flags & TESS_BUFFER)
            continue;
        n += in_module(i, name);
        own += in_module(i, name) && p->tied_to == i ? p->elems : 0;
        all += below(module, name) && p->tied_to == i ? p->elems : 0;
        any |= below(module, name);
        trained |= below(module, name) && !(p->flags & TESS_FROZEN);
    }
    for (int32_t s = 0; s < model.n_scopes; s++)
        order = strcmp(model.scopes[s].name, name) == 0 ? s : order;
    assert_string_equal(v->name, name);
    assert_true(v->struct_size == sizeof *v && v->first_param == first && v->n_params == n && v->order == order);
    assert_true(v->own_elems == own && v->subtree_elems == all);
    assert_int_equal(v->flags, (order >= 0 ? 1 : 0) | (any && !trained ? 2 : 0));
    assert_true(k ? is_child(name, view_name(t, v->parent)) : v->parent == -1);
}

static void check_param(const tess__module_tree *t, int32_t at) {
    const tess_param_view *v = &t->view.params[at];
    const tess__param *p = &model.params[t->param[at]];
    int32_t uses = 0;
    for (int32_t i = 0; i < model.n_params; i++)
        uses += model.params[i].tied_to == p->tied_to;
    assert_true(v->struct_size == sizeof *v && v->name == p->name && v->elems == p->elems && v->dtype == p->dtype);
    assert_true(v->shape == p->shape && v->ndim == p->ndim && v->compute_mask == p->compute_dtypes && v->group == 0);
    assert_int_equal(v->flags, (p->flags & TESS_FROZEN ? 1 : 0) | (uses > 1 ? 2 : 0));
    assert_string_equal(view_name(t, v->scope), model.scopes[p->scope].name);
    assert_int_equal(t->param[v->tied_to], p->tied_to);
}

static void check_tree(const tess__module_tree *t) {
    int32_t n = 0;
    list_modules();
    assert_true(t->view.struct_size == sizeof t->view && t->view.n_modules == (uint32_t)n_modules);
    for (int32_t k = 0; k < n_modules; k++) {
        check_module(t, k, n);
        for (int32_t i = 0; i < model.n_params; i++) /* in the order of their declaration */
            if (in_module(i, modules[listed[k]]) && !(model.params[i].flags & TESS_BUFFER))
                assert_int_equal(t->param[n++], i);
    }
    assert_int_equal(t->view.n_params, n);
    for (int32_t i = 0; i < n; i++)
        check_param(t, i);
}

static void test_model_drawn__is_as_the_names_say(void **state) {
    (void)state;
    int checked = 0;
    for (unsigned seed = 0; seed < 400; seed++) {
        tess__module_tree t;
        if (draw_model(seed)) {
            check_scopes();
            assert_int_equal(tess__module_tree_build(&model, &t), TESS_OK);
            check_tree(&t);
            tess__module_tree_free(&t);
            assert_true(!t.view.modules && !t.view.params && !t.param);
            checked++;
        } else
            assert_non_null(strstr(tess_last_error(), "lies in no declared scope"));
        tess__model_free(&model);
    }
    assert_true(checked > 100);
}

/* ---- units ---- */

static struct {
    int32_t units[MOST], n, asks, planned;
    tess_status s, plan;
} policy;

static tess_status assign(void *ctx, const tess_model_view *v, const tess_plan_env *env, int32_t *unit, int32_t *n,
                          tess_status (*plan)(void *, const int32_t *, int32_t, tess_plan_result *), void *host,
                          tess_error *e) {
    tess_plan_result result = { .struct_size = sizeof result };
    assert_true(ctx == &policy && !env && e->struct_size == sizeof *e && (plan != NULL) == (host != NULL));
    for (uint32_t i = 0; i < v->n_params; i++)
        unit[i] = policy.units[v->params[i].tied_to];
    *n = policy.n;
    if (policy.s)
        snprintf(e->message, sizeof e->message, "it does not fit");
    return plan && policy.asks ? plan(host, unit, policy.n, &result) : policy.s;
}
static const tess_wrap_ops ops = { .struct_size = sizeof ops, .assign = assign };

/* Units have numbers in the order in which scopes hand out their parameters; those of no parameter have none. */
static int32_t number_units(const tess__module_tree *t, int32_t *want) {
    int32_t number[MOST], of[MOST], n = 0;
    for (int32_t i = 0; i < MOST; i++)
        number[i] = of[i] = -1;
    for (uint32_t i = 0; i < t->view.n_params; i++)
        of[t->param[i]] = policy.units[t->view.params[i].tied_to];
    for (int32_t k = 0; k < model.n_scopes; k++)
        for (int32_t i = 0; i < model.n_params; i++)
            for (int32_t h = 0; h < model.scopes[k].n_params; h++)
                if (model.scopes[k].params[h] == i && of[i] >= 0 && number[of[i]] < 0)
                    number[of[i]] = n++;
    for (int32_t i = 0; i < model.n_params; i++)
        want[i] = of[i] < 0 ? -1 : number[of[i]];
    return n;
}

static tess_status take_plan(void *user, const int32_t *unit, int32_t n, tess_plan_result *out) {
    int32_t want[MOST];
    tess__module_tree t;
    assert_true(user == &policy && out->struct_size == sizeof *out);
    assert_int_equal(tess__module_tree_build(&model, &t), TESS_OK);
    assert_int_equal(n, number_units(&t, want));
    assert_memory_equal(unit, want, (size_t)model.n_params * sizeof *want);
    tess__module_tree_free(&t);
    policy.planned++;
    return policy.plan ? tess__fail(policy.plan, "no plan") : TESS_OK;
}

static tess_status apply(tess__wrap_plan_fn plan, int32_t *unit, int32_t *n) {
    return tess__wrap_apply_planned(&model, &ops, &policy, "mine", NULL, plan, plan ? &policy : NULL, unit, n);
}

static void test_model_drawn__units_are_numbered_as_they_are_met(void **state) {
    (void)state;
    for (unsigned seed = 0; seed < 200; seed++) {
        int32_t unit[MOST], want[MOST], n = 77;
        tess__module_tree t;
        if (draw_model(seed)) {
            assert_int_equal(tess__module_tree_build(&model, &t), TESS_OK);
            memset(&policy, 0, sizeof policy);
            policy.n = 1 + (int32_t)drawn(6), policy.asks = (int32_t)drawn(2);
            for (int i = 0; i < MOST; i++)
                policy.units[i] = (int32_t)drawn((unsigned)policy.n);
            assert_int_equal(apply(drawn(2) ? take_plan : NULL, unit, &n), TESS_OK);
            assert_int_equal(n, number_units(&t, want));
            assert_memory_equal(unit, want, (size_t)model.n_params * sizeof *want);
            if (t.view.n_params) { /* a unit that is none */
                char text[128];
                const int32_t bad = (int32_t)drawn(t.view.n_params), root = t.view.params[bad].tied_to;
                policy.asks = 0;
                policy.units[root] = drawn(2) ? -1 : policy.n;
                uint32_t first = 0;
                while (t.view.params[first].tied_to != root)
                    first++;
                snprintf(text, sizeof text, "wrap policy mine puts parameter \"%s\" in unit %d of %d",
                         t.view.params[first].name, (int)policy.units[root], (int)policy.n);
                assert_int_equal(apply(NULL, unit, &n), TESS_E_INVALID);
                assert_string_equal(tess_last_error(), text);
                policy.asks = 1, policy.planned = 0;
                assert_int_equal(apply(take_plan, unit, &n), TESS_E_INVALID);
                assert_int_equal(policy.planned, 0);
            }
            tess__module_tree_free(&t);
        }
        tess__model_free(&model);
    }
}

static void test_model_drawn__a_policy_or_its_plan_may_fail(void **state) {
    (void)state;
    int32_t unit[MOST], n = 5;
    for (unsigned seed = 0; !draw_model(seed); seed++)
        tess__model_free(&model);
    memset(&policy, 0, sizeof policy);
    policy.n = 1, policy.s = TESS_E_UNSUPPORTED;
    assert_int_equal(apply(NULL, unit, &n), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(), "wrap policy mine: it does not fit");
    policy.s = TESS_OK, policy.asks = 1, policy.plan = TESS_E_BUDGET;
    assert_int_equal(apply(take_plan, unit, &n), TESS_E_BUDGET);
    assert_int_equal(policy.planned, 1);
    assert_int_equal(n, 5);
    tess__model_free(&model);
}

/* Each allocation fails once: it is said, and nothing is left. */
static void test_model_drawn__without_memory_nothing_stays(void **state) {
    (void)state;
    static const tess_block_options block = {
        .struct_size = sizeof block, .name = "a", .also = "b", .forward = no_block, .backward = no_block
    };
    const int64_t four = 4;
    tess_param_options o = { .struct_size = sizeof o, .dtype = TESS_F32, .name = "a.p*", .stack = 3 };
    o.shape = &four, o.ndim = 1;
    int k = 1;
    memset(&policy, 0, sizeof policy);
    policy.n = 1;
    for (;; k++) {
        int32_t unit[MOST], n = 0;
        fails_at = k;
        tess_status s = tess__model_add_block(&model, &block, NULL);
        s = s ? s : tess__model_add_scope(&model, "c", 0, NULL);
        s = s ? s : tess__model_add_param(&model, &o, NULL);
        s = s ? s : tess__model_finish(&model);
        s = s ? s : apply(NULL, unit, &n);
        const int more = fails_at;
        fails_at = 0;
        tess__model_free(&model);
        if (more)
            break;
        assert_int_equal(s, TESS_E_NOMEM);
        assert_non_null(strstr(tess_last_error(), "no memory for "));
    }
    assert_true(k > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_drawn__is_as_the_names_say),
        cmocka_unit_test(test_model_drawn__units_are_numbered_as_they_are_met),
        cmocka_unit_test(test_model_drawn__a_policy_or_its_plan_may_fail),
        cmocka_unit_test(test_model_drawn__without_memory_nothing_stays),
    };
    tess__log_set_least(TESS_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* The search for advice over settings drawn by chance, with a planner that writes down what it is asked: what is tried
 * for which setting, at which cost, and that the answer is the best of all that was tried. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/readers/advise.h"
#include "tests/unit/drawn.h"

enum { MOST = 128, SEEDS = 400, UNITS = 2, MOST_TEXT = 48 };
enum { MOST_TRIED = 96, MOST_RANKS = 1 << 20, DOUBLINGS = 6 }; /* docs/advice.md */
typedef struct {
    tess__option_set set;
    uint64_t bytes[TESS__DOMAINS];
    double seconds;
    int failed, fits;
} asked;

static struct {
    tess__plan plan;
    tess__selection selection;
    tess__unit units[UNITS];
    tess__group groups[UNITS];
    tess__block block;
    asked list[MOST];
    int n;
    unsigned chance, seed;
    uint64_t budget[TESS__DOMAINS], need[TESS__DOMAINS];
    char texts[TESS__N_KINDS][MOST_TEXT];
} world;

#define drawn(below) drawn32(&world.chance, below)

/* ---- the planner ---- */

/* Each setting takes its part off the memory, by its words and the seed; some cannot be had. */
static unsigned word_of(const char *key, const char *value) {
    unsigned h = world.seed * 2654435761u + 1;
    for (; *key; key++)
        h = (h ^ (unsigned char)*key) * 16777619u;
    for (; *value; value++)
        h = (h ^ (unsigned char)*value) * 16777619u;
    return h ^ h >> 15;
}

static tess_status plan_drawn(void *user, const tess__option_set *c, uint64_t bytes[TESS__DOMAINS], double *seconds) {
    tess__advice inner = { .n = 3, .n_planned = 4 };
    assert_ptr_equal(user, &world);
    assert_in_range(world.n, 0, MOST - 1);
    assert_true(*seconds == -1 && c->n > 0 && c->n <= TESS__MOST_SETTINGS);
    tess__advise(&world.plan, &world.selection, plan_drawn, user,
                 &inner); /* an alternative gets no advice of its own */
    assert_true(inner.n == 0 && inner.n_planned == 0);
    asked *a = &world.list[world.n++];
    *a = (asked){ .set = *c, .seconds = -1 };
    unsigned all = 0;
    for (int d = 1; d < TESS__DOMAINS; d++)
        bytes[d] = world.need[d];
    for (int32_t i = 0; i < c->n; i++) {
        const unsigned w = word_of(c->set[i].key, c->set[i].value);
        all += w;
        a->failed |= w % 11 == 0;
        bytes[TESS_DOMAIN_DEVICE] = bytes[TESS_DOMAIN_DEVICE] * (5 + w % 8) / 12;
        bytes[TESS_DOMAIN_HOST] = w % 3 ? bytes[TESS_DOMAIN_HOST] + w % 5 * 1000 : bytes[TESS_DOMAIN_HOST] / 2;
    }
    bytes[TESS_DOMAIN_DISK] = all % 5 < 2 ? bytes[TESS_DOMAIN_DISK] / 2 : bytes[TESS_DOMAIN_DISK] + all % 5 * 100;
    if (bytes[TESS_DOMAIN_DEVICE] < world.need[TESS_DOMAIN_DEVICE])
        bytes[TESS_DOMAIN_DEVICE] = bytes[TESS_DOMAIN_DEVICE] / 8192 * 8192 + all % 2; /* some differ by a byte */
    *seconds = all % 3 ? (double)(all % 4) : -1;
    memcpy(a->bytes, bytes, sizeof a->bytes);
    a->seconds = *seconds;
    a->fits = !a->failed;
    for (int d = 1; d < TESS__DOMAINS; d++)
        a->fits &= !world.budget[d] || bytes[d] <= world.budget[d];
    return a->failed ? TESS_E_UNSUPPORTED : TESS_OK;
}

/* ---- a plan ---- */

static void draw_plan(unsigned seed) {
    memset(&world, 0, sizeof world);
    world.seed = seed;
    world.chance = seed * 747796405u + 3;
    tess__plan *p = &world.plan;
    tess__setup *s = &p->setup;
    static const char *const texts[][6] = { { "none", "cpu", "none", "disk:/x", "disk:/x+cpu",
                                              "disk:/of/so/many/bytes/that/it/has/no/room" },
                                            { "fp32", "bf16", "fp32", "other", "fp32", "bf16:x" },
                                            { "scopes", "auto", "auto", "auto", "scopes", "auto" } };
    static const uint32_t kinds[] = { TESS_KIND_OFFLOAD, TESS_KIND_PRECISION, TESS_KIND_WRAP };
    for (int k = 0; k < TESS__N_KINDS; k++)
        world.selection.text[k] = world.texts[k];
    for (int i = 0; i < 3; i++)
        strcpy(world.texts[kinds[i]], texts[i][drawn(6)]);
    char *store = world.texts[TESS_KIND_OFFLOAD];
    if (strlen(store) > 30)
        store[34 + drawn(3)] = 0; /* up to 35 bytes leave room for "+cpu" */
    *s = (tess__setup){ .granularity = 1, .align = 64, .nranks = 1 + (int32_t)drawn(4), .strategy = "full" };
    if (drawn(6) == 0)
        s->nranks = 1 << (16 + drawn(5));
    s->shard_ranks = drawn(2) ? s->nranks : 1;
    s->keep_forward = (int)drawn(2);
    s->accum = 1 + (int32_t)drawn(2);
    s->sync_each = (int)drawn(2);
    s->low_copy = (int)drawn(2);
    s->prefetch = (int32_t)drawn(2);
    s->prefetch_fixed = (int)drawn(2);
    s->activations = drawn(3) ? TESS__ACTIVATIONS_KEEP : TESS__ACTIVATIONS_RECOMPUTE;
    s->activation_spec = drawn(4) ? NULL : "auto";
    p->model.n_blocks = (int32_t)drawn(2);
    p->model.blocks = &world.block;
    world.block.options.selective_saved_bytes = drawn(2) * 100;
    p->layout = (tess__layout){ .units = world.units, .n_units = UNITS, .groups = world.groups, .n_groups = UNITS };
    for (int u = 0; u < UNITS; u++) {
        world.units[u] = (tess__unit){ .first_group = u, .n_groups = 1 };
        world.groups[u].used_elems = drawn(3) ? 2517 : 15 + drawn(2);
    }
    p->resident.step_bytes[TESS_DOMAIN_DEVICE] = world.need[TESS_DOMAIN_DEVICE] = 100000;
    p->resident.step_bytes[TESS_DOMAIN_HOST] = world.need[TESS_DOMAIN_HOST] = 5000;
    s->env.device_budget_bytes = world.budget[TESS_DOMAIN_DEVICE] = 5000 + drawn(90000);
    s->env.host_budget_bytes = world.budget[TESS_DOMAIN_HOST] =
        drawn(2) ? 0 : 4000 + drawn(3) * 1000 - drawn(2) + drawn(2) * drawn(2000);
    if (store[0] == 'd')
        p->resident.step_bytes[TESS_DOMAIN_DISK] = world.need[TESS_DOMAIN_DISK] = drawn(2) * 7000;
    s->disk_budget_bytes = world.budget[TESS_DOMAIN_DISK] = drawn(2) ? 0 : 6500 + drawn(1000);
}

/* ---- what is asked ---- */

/* It takes less of what is short. */
static int helps(const asked *a) {
    int less = 0;
    for (int d = 1; d < TESS__DOMAINS && !a->failed; d++)
        less |= world.budget[d] && world.need[d] > world.budget[d] && a->bytes[d] < world.need[d];
    return less;
}

static const char *value_in(const asked *a, const char *key) {
    return tess__change_value(&a->set, key);
}

static int cost_of(const char *key, const char *value) {
    static const struct {
        const char *key, *value;
        int cost;
    } costs[] = { { "precision", "", 1 },
                  { "low-copy", "0", 1 },
                  { "wrap", "", 2 },
                  { "sync", "each", 3 },
                  { "strategy", "full", 4 },
                  { "prefetch", "0", 5 },
                  { "activations", "selective", 6 },
                  { "activations", "auto:", 7 },
                  { "activations", "recompute", 8 },
                  { "activations", "offload", 12 },
                  { "offload", "", 16 },
                  { "ranks", "", 64 } };
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        if (strcmp(key, costs[i].key) == 0 && strncmp(value, costs[i].value, strlen(costs[i].value)) == 0)
            return costs[i].cost;
    fail_msg("%s=%s is asked", key, value);
    return 0;
}

static int includes(const tess__option_set *c, const tess__option_set *part) {
    for (int32_t i = 0; i < part->n; i++) {
        const char *value = tess__change_value(c, part->set[i].key);
        if (!value || strcmp(value, part->set[i].value) != 0)
            return 0;
    }
    return 1;
}

/* Each option once, at its stated cost; nothing that holds what fits already, but other sizes of units. */
static void check_asked(int at) {
    const asked *a = &world.list[at];
    int cost = 0;
    for (int32_t i = 0; i < a->set.n; i++) {
        cost += cost_of(a->set.set[i].key, a->set.set[i].value);
        for (int32_t k = 0; k < i; k++)
            assert_string_not_equal(a->set.set[i].key, a->set.set[k].key);
    }
    assert_int_equal(a->set.cost, cost);
    for (int i = 0; i < at && a->set.n == 1; i++) /* each by itself once */
        assert_false(world.list[i].set.n == 1 && includes(&a->set, &world.list[i].set));
    assert_false(value_in(a, "precision") && strcmp(value_in(a, "precision"), "fp32") == 0);
    assert_false(value_in(a, "precision") && strcmp(value_in(a, "precision"), "fp16") == 0); /* it scales losses */
    const char *offload = value_in(a, "offload"), *now = world.texts[TESS_KIND_OFFLOAD];
    if (offload && strcmp(now, "none") != 0) { /* what the user chose stays, and has company at most */
        assert_memory_equal(offload, now, strlen(now));
        assert_string_equal(offload + strlen(now), "+cpu");
    }
    assert_false(value_in(a, "precision") && strcmp(world.texts[TESS_KIND_PRECISION], "fp32") != 0);
    for (int i = 0; i < at; i++)
        if (world.list[i].fits && !value_in(a, "ranks"))
            assert_false(includes(&a->set, &world.list[i].set));
}

static const asked *find_asked(const char *key, const char *value) {
    for (int i = 0; i < world.n; i++)
        if (world.list[i].set.n == 1 && value_in(&world.list[i], key) &&
            strcmp(value_in(&world.list[i], key), value) == 0)
            return &world.list[i];
    return NULL;
}

static int was_asked(const char *key, const char *value) {
    return find_asked(key, value) != NULL;
}

/* A change is tried by itself where the setting leaves room for it, and nowhere else. */
static void check_rules(void) {
    const tess__setup *s = &world.plan.setup;
    const int blocks = world.plan.model.n_blocks && s->activations == TESS__ACTIVATIONS_KEEP && !s->activation_spec;
    char chosen[40];
    snprintf(chosen, sizeof chosen, "auto:%llu", (unsigned long long)world.budget[TESS_DOMAIN_DEVICE]);
    assert_int_equal(was_asked("low-copy", "0"), s->low_copy);
    assert_int_equal(was_asked("sync", "each"), s->accum > 1 && !s->sync_each);
    assert_int_equal(was_asked("strategy", "full"), s->keep_forward || s->shard_ranks < s->nranks);
    assert_int_equal(was_asked("prefetch", "0"), s->prefetch && s->prefetch_fixed);
    assert_int_equal(was_asked("activations", "recompute"), blocks);
    assert_int_equal(was_asked("activations", "offload"), blocks);
    assert_int_equal(was_asked("activations", "selective"), blocks && world.block.options.selective_saved_bytes);
    assert_int_equal(was_asked("activations", chosen), blocks);
    const char *store = world.texts[TESS_KIND_OFFLOAD];
    char both[MOST_TEXT + 8];
    snprintf(both, sizeof both, "%s+cpu", store);
    assert_int_equal(was_asked("offload", both),
                     world.need[TESS_DOMAIN_DISK] && !strchr(store, '+') && strlen(store) <= 35);
    const uint64_t a = world.groups[0].used_elems, b = world.groups[1].used_elems, largest = a > b ? a : b;
    const int is_scopes = strcmp(world.texts[TESS_KIND_WRAP], "scopes") == 0;
    assert_int_equal(was_asked("wrap", "scopes"), largest >= 16 && !is_scopes);
    assert_false(was_asked("wrap", world.texts[TESS_KIND_WRAP]));
    if (largest == 2517 && is_scopes) /* the next in line: a half, in two digits */
        assert_true(was_asked("wrap", "size:1200"));
}

/* Twice as many ranks, and twice as many again, while that helps and does not fit. */
static void check_ranks(void) {
    int64_t ranks = world.plan.setup.nranks;
    int goes_on = 1;
    char value[24];
    for (int i = 0; i < DOUBLINGS && goes_on && 2 * ranks <= MOST_RANKS; i++) {
        ranks *= 2;
        snprintf(value, sizeof value, "%lld", (long long)ranks);
        const asked *a = find_asked("ranks", value);
        assert_non_null(a);
        goes_on = helps(a) && !a->fits;
    }
    snprintf(value, sizeof value, "%lld", (long long)ranks * 2);
    assert_false(was_asked("ranks", value));
    int fit = 0, helped = 0, together = 0; /* together with what needs least, where nothing fits without */
    for (int i = 0; i < world.n; i++) {
        const asked *a = &world.list[i];
        const int has_ranks = value_in(a, "ranks") != NULL;
        together += has_ranks && a->set.n > 1;
        fit += a->fits && !(has_ranks && a->set.n > 1);
        helped += !has_ranks && helps(a) && a->set.n < TESS__MOST_SETTINGS;
    }
    assert_true(together == 0 || !fit);
    assert_true(together > 0 || fit || !helped || 2 * (int64_t)world.plan.setup.nranks > MOST_RANKS);
}

/* ---- sets of several ---- */

static uint64_t sum_of(const asked *a) {
    return a->bytes[TESS_DOMAIN_DEVICE] + a->bytes[TESS_DOMAIN_HOST];
}

/* Of the units that were tried and help, the first that takes at most a hundredth more than the best. */
static const asked *chosen_wrap(int singles) {
    uint64_t best = UINT64_MAX;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < singles; i++) {
            const asked *a = &world.list[i];
            if (!value_in(a, "wrap") || !helps(a))
                continue;
            if (pass && sum_of(a) <= best + best / 100)
                return a;
            best = sum_of(a) < best ? sum_of(a) : best;
        }
    return NULL;
}

/* Those that help, each by itself, or a precision with the copies that it would bring. */
static int choices_of(int singles, const asked *out[MOST]) {
    int n = 0;
    const asked *wrap = chosen_wrap(singles);
    for (int i = 0; i < singles; i++) {
        const asked *a = &world.list[i];
        const char *activations = value_in(a, "activations");
        if (value_in(a, "wrap") ? a == wrap : helps(a) && !(activations && strncmp(activations, "auto:", 5) == 0))
            out[n++] = a;
    }
    return n;
}

static int add_all(tess__option_set *c, const tess__option_set *one) {
    for (int32_t i = 0; i < one->n; i++) {
        if (tess__change_value(c, one->set[i].key) || c->n == TESS__MOST_SETTINGS)
            return 0;
        c->set[c->n++] = one->set[i];
    }
    return 1;
}

/* Whether it was tried, or a part of it that fits. */
static int is_answered(const tess__option_set *c) {
    for (int i = 0; i < world.n; i++)
        if ((world.list[i].fits || world.list[i].set.n == c->n) && includes(c, &world.list[i].set))
            return 1;
    return 0;
}

/* All sets of two and more that give each option one value, the cheapest first, where few fit. 0: many do. */
static int check_sets(void) {
    const asked *choices[MOST];
    int singles = 0, found = 0, cost = 0, n = 0;
    for (int i = 0; i < world.n; i++) {
        found += world.list[i].fits;
        if (world.list[i].set.n == 1 && !value_in(&world.list[i], "ranks"))
            singles = i + 1;
    }
    for (int i = singles; i < world.n && !value_in(&world.list[i], "ranks"); i++) {
        assert_in_range(world.list[i].set.cost, cost, 1000);
        cost = world.list[i].set.cost;
    }
    const int n_choices = choices_of(singles, choices);
    if (found >= TESS__MOST_REMEDIES || world.n >= MOST_TRIED || n_choices > 8)
        return 0;
    for (unsigned mask = 1; mask < 1u << n_choices; mask++) {
        tess__option_set c = { .n = 0 };
        int parts = 0, fit = 1;
        for (int i = 0; i < n_choices; i++)
            if (mask >> i & 1)
                parts++, fit = fit && add_all(&c, &choices[i]->set);
        n += parts > 1 && fit;
        if (parts > 1 && fit && !is_answered(&c))
            fail_msg("seed %u: a set of %d is not tried", world.seed, parts);
    }
    return n > 0;
}

/* ---- what is said ---- */

static uint64_t excess(const uint64_t bytes[TESS__DOMAINS]) {
    uint64_t over = 0;
    for (int d = 1; d < TESS__DOMAINS; d++)
        over += world.budget[d] && bytes[d] > world.budget[d] ? bytes[d] - world.budget[d] : 0;
    return over;
}

static int in_order(const tess__remedy *a, const tess__remedy *b) {
    if ((a->seconds < 0) != (b->seconds < 0))
        return b->seconds < 0;
    if (a->seconds >= 0 && a->seconds != b->seconds)
        return a->seconds < b->seconds;
    return a->change.cost < b->change.cost || (a->change.cost == b->change.cost && a->change.n <= b->change.n);
}

/* What fits and was found first, up to sixteen, the best four of them, in their order. */
static void check_remedies(const tess__advice *out) {
    int found = 0;
    for (int i = 0; i < world.n; i++)
        found += world.list[i].fits;
    assert_int_equal(out->n, found < TESS__MOST_REMEDIES ? found : TESS__MOST_REMEDIES);
    for (int32_t i = 0; i < out->n; i++) {
        const asked *from = NULL;
        for (int k = 0; k < world.n && !from; k++)
            if (world.list[k].fits && !memcmp(&world.list[k].set, &out->list[i].change, sizeof from->set))
                from = &world.list[k];
        assert_non_null(from);
        assert_memory_equal(from->bytes + 1, out->list[i].bytes + 1, sizeof from->bytes - sizeof from->bytes[0]);
        assert_true(from->seconds == out->list[i].seconds);
        assert_true(i == 0 || in_order(&out->list[i - 1], &out->list[i]));
    }
    int better = 0; /* none that was left out would come before the last */
    for (int k = 0; out->n == TESS__MOST_REMEDIES && k < world.n; k++) {
        tess__remedy r = { .change = world.list[k].set, .seconds = world.list[k].seconds };
        better += world.list[k].fits && !in_order(&out->list[out->n - 1], &r);
    }
    assert_true(better < TESS__MOST_REMEDIES);
}

/* Of what does not fit, the one that is over by the least, if it helps where memory is short; the first of equal ones.
 */
static void check_least(const tess__advice *out) {
    const asked *least = NULL;
    for (int i = 0; i < world.n; i++) {
        const asked *a = &world.list[i];
        if (a->fits || !helps(a))
            continue;
        least = !least || excess(a->bytes) < excess(least->bytes) ? a : least;
    }
    assert_int_equal(out->least.change.n > 0, least != NULL);
    if (least)
        assert_memory_equal(&out->least.change, &least->set, sizeof least->set);
}

static void test_advice_search__the_best_of_what_was_tried_is_said(void **state) {
    (void)state;
    int whole = 0, none = 0, sets = 0;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        tess__advice out;
        draw_plan(seed);
        const int32_t level = tess__log_set_least(TESS_LOG_DEBUG);
        tess__advise(&world.plan, &world.selection, plan_drawn, &world, &out);
        assert_int_equal(tess__log_set_least(level), TESS_LOG_DEBUG); /* as it was */
        assert_int_equal(out.n_planned, world.n);
        for (int i = 0; i < world.n; i++)
            check_asked(i);
        check_rules();
        if (world.n < MOST_TRIED)
            check_ranks();
        sets += check_sets();
        check_remedies(&out);
        check_least(&out);
        whole += out.n == TESS__MOST_REMEDIES;
        none += out.n == 0;
    }
    assert_true(whole > 8 && none > 2 && sets > 20); /* all of these were drawn */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_advice_search__the_best_of_what_was_tried_is_said),
    };
    return cmocka_run_group_tests_name("advice_search", tests, NULL, NULL);
}

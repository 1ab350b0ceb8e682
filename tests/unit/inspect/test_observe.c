/* SPDX-License-Identifier: BSD-3-Clause */
/* What an engine tells of itself, over an engine that is written down here with figures drawn by chance: statistics,
 * units, choices and numbers of microbatches against a reckoning of their own. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/gpu.h>
#include <tessera/inspect.h>

#include "core/base/status.h"
#include "core/engine/state.h"
#include "core/readers/planned.h"
#include "tests/unit/drawn.h"

enum { UNITS = 3, GROUPS = 5, PARAMS = 9, BUFFERS = 12, USERS = 3, ALIGN = 64 };
static tess t;
static struct {
    tess__unit units[UNITS];
    tess__group groups[GROUPS];
    tess__param params[PARAMS];
    int32_t order[PARAMS];
    tess__buffer resting[BUFFERS];
    tess__held held;
    tess__bytes live[UNITS];
    unsigned chance;
    uint64_t holds; /* what the program says that it has */
} world;

#define drawn(below) drawn32(&world.chance, below)

static void draw_words(uint64_t *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] = 1 + drawn(1u << 20);
}

static void draw_programs(void) {
    for (int i = 0; i < TESS__N_PROGRAMS; i++) {
        tess__program *p = &t.plan.programs[i];
        p->hash = 100 + (uint64_t)i;
        draw_words(p->live_peak_bytes, TESS__DOMAINS);
        draw_words(&p->category_bytes[0][0], (size_t)TESS__DOMAINS * 16);
        for (int d = 0; d < TESS__DOMAINS; d++)
            p->category_bytes[d][TESS_CAT_FRAGMENTATION] = 0; /* it is what is left */
        draw_words(p->step_bytes, TESS__DOMAINS);
    }
    draw_words(t.plan.resident.step_bytes, TESS__DOMAINS);
    t.plan.resident.buffers = world.resting;
    t.plan.resident.n_buffers = BUFFERS;
    for (int i = 0; i < BUFFERS; i++) {
        world.resting[i].domain = 1 + (uint32_t)drawn(3);
        world.resting[i].role = (int32_t)drawn(3) ? TESS__MASTER : TESS__SHARD_GRAD;
        world.resting[i].bytes = 1 + drawn(1000);
    }
}

static void draw_group(tess__group *g, int32_t first_param, int32_t n_params) {
    static const uint32_t dtypes[] = { TESS_F32, TESS_BF16, TESS_F64 };
    *g = (tess__group){ .first_param = first_param, .n_params = n_params, .pad = 64 };
    g->trainable = (int)drawn(3) > 0;
    g->shard_elems = 64 * (1 + drawn(9)) + drawn(2) * 32;
    g->flat_elems = 2 * g->shard_elems;
    g->master = dtypes[drawn(3)];
    g->compute = dtypes[drawn(3)];
    g->grad_local = dtypes[drawn(3)];
    g->grad_shard = dtypes[drawn(3)];
    g->low_copy = (int)drawn(2);
    g->in_place = (int)drawn(2);
    g->grad_in_place = (int)drawn(2);
    g->step.n_states = (uint32_t)drawn(3);
    g->step.state[0] = (tess_state){ TESS_F32, 1, "m" };
    g->step.state[1] = (tess_state){ TESS_U8, 64, "v" };
}

static void draw_layout(void) {
    static char names[UNITS][8] = { "root", "h.0", "h.1" };
    static const int32_t groups_of[UNITS] = { 1, 3, 1 }, params_of[GROUPS] = { 2, 1, 3, 1, 2 };
    int32_t g = 0, p = 0;
    for (int32_t u = 0; u < UNITS; u++) {
        world.units[u] = (tess__unit){ .name = names[u], .first_group = g, .n_groups = groups_of[u] };
        for (int32_t end = g + groups_of[u]; g < end; p += params_of[g++])
            draw_group(&world.groups[g], p, params_of[g]);
    }
    for (int32_t i = 0; i < PARAMS; i++) {
        world.order[i] = PARAMS - 1 - i;
        world.params[i].elems = 1 + drawn(1000);
    }
    t.plan.layout = (tess__layout){ .units = world.units, .groups = world.groups, .order = world.order };
    t.plan.layout.n_units = UNITS;
    t.plan.layout.n_groups = GROUPS;
    t.plan.layout.n_order = t.plan.model.n_params = PARAMS;
    t.plan.layout.param_elems = drawn(1u << 20);
    t.plan.model.params = world.params;
}

static uint64_t say_held(void *user, uint64_t *most) {
    assert_ptr_equal(user, &world);
    *most = world.holds;
    return world.holds;
}

static void draw_memory(void) {
    draw_words(t.memory.obtained_peak, TESS__DOMAINS);
    draw_words(t.memory.ledger.total, TESS__DOMAINS);
    draw_words(t.memory.ledger.most, TESS__DOMAINS);
    draw_words(&t.memory.ledger.at_most[0][0], (size_t)TESS__DOMAINS * 16);
    draw_words(t.mirror.planned_peak, TESS__DOMAINS);
    draw_words(&world.live[0][0][0], (size_t)UNITS * TESS__DOMAINS * 16);
    for (int d = 0; d < TESS__DOMAINS; d++)
        t.mirror.planned_peak[d] *= drawn(8); /* sometimes the most, sometimes not */
    t.memory.ledger.units = world.live;
    t.plan.n_user = USERS;
    for (int i = 0; i < USERS; i++)
        t.memory.user[i].bytes = t.plan.user_bytes[i] = 1 + drawn(5000);
    for (int d = 0; d < 3; d++) {
        t.selection.book.live[d] = 1 + drawn(900);
        t.selection.book.peak[d] = 1000 + drawn(900);
        for (int c = 0; c < 16; c++)
            t.selection.book.category_peak[d][c] = 1 + drawn(900);
    }
}

static void begin(unsigned seed) {
    memset(&t, 0, sizeof t);
    memset(&world, 0, sizeof world);
    world.chance = seed * 2654435761u + 17;
    t.sharded = 1;
    t.plan.setup = (tess__setup){ .align = ALIGN, .granularity = 4096, .nranks = 1, .shard_ranks = 1, .replicas = 1 };
    draw_programs();
    draw_layout();
    draw_memory();
    t.step.norm = 2.5;
    t.pass.n_recompiles = 1 + drawn(99);
    t.step.n_skipped = 100 + drawn(99);
    t.scaler.now = (tess__loss_scale){ .scale = 8, .skipped = 200 + drawn(99) };
    t.audit.done = 300 + drawn(99);
    t.audit.failures = 400 + drawn(99);
    t.comms.n_collectives = 500 + drawn(99);
}

/* ---- statistics ---- */

static const tess__program *fullest(int d) {
    int best = 0;
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        best = t.plan.programs[i].live_peak_bytes[d] > t.plan.programs[best].live_peak_bytes[d] ? i : best;
    return &t.plan.programs[best];
}

static uint64_t planned_peak(int d) {
    const uint64_t planned = tess__planned_bytes(&t.plan, (uint32_t)d), before = t.mirror.planned_peak[d];
    return planned > before ? planned : before;
}

/* Every category but what is lost between buffers is the fullest program's, and the program's own is beside
 * activations; all together are the planned peak. */
static void check_categories(const tess_stats *s, int d) {
    uint64_t sum = 0, own = 0;
    for (int i = 0; d == TESS_DOMAIN_DEVICE && i < USERS; i++)
        own += t.memory.user[i].bytes;
    for (int c = 1; c < 16; c++) {
        const uint64_t want = fullest(d)->category_bytes[d][c] + (c == TESS_CAT_ACTIVATION ? own : 0);
        if (c != TESS_CAT_FRAGMENTATION)
            assert_int_equal(s->category_peak_bytes[d][c], want);
        sum += s->category_peak_bytes[d][c];
    }
    assert_int_equal(sum, s->planned_peak_bytes[d]);
    assert_int_equal(s->category_peak_bytes[d][0], 0);
}

static void check_domain(const tess_stats *s, int d) {
    uint64_t resting = 0;
    for (int i = 0; i < BUFFERS; i++)
        if ((int)world.resting[i].domain == d && world.resting[i].role == TESS__MASTER)
            resting += world.resting[i].bytes;
    assert_int_equal(s->resting_bytes[d], resting);
    assert_int_equal(s->peak_bytes[d], t.memory.obtained_peak[d]);
    assert_int_equal(s->planned_peak_bytes[d], planned_peak(d));
    assert_int_equal(s->live_bytes[d], t.memory.ledger.total[d]);
    assert_int_equal(s->live_peak_bytes[d], t.memory.ledger.most[d]);
    assert_memory_equal(s->live_peak_category_bytes[d], t.memory.ledger.at_most[d], sizeof t.memory.ledger.at_most[d]);
    check_categories(s, d);
    assert_int_equal(s->plugin_bytes[d], t.selection.book.live[d]);
    assert_int_equal(s->plugin_peak_bytes[d], t.selection.book.peak[d]);
    for (int c = 0; c < 16; c++)
        assert_int_equal(s->plugin_category_bytes[d][c], c ? t.selection.book.category_peak[d][c] : 0);
}

static void check_disk(const tess_stats *s) {
    const int d = TESS_DOMAIN_DISK;
    uint64_t sum = 0;
    assert_int_equal(s->disk_peak_bytes, t.memory.obtained_peak[d]);
    assert_int_equal(s->disk_live_bytes, t.memory.ledger.total[d]);
    assert_int_equal(s->planned_disk_peak_bytes, planned_peak(d));
    for (int c = 1; c < 16; c++) {
        if (c != TESS_CAT_FRAGMENTATION)
            assert_int_equal(s->disk_category_bytes[c], fullest(d)->category_bytes[d][c]);
        sum += s->disk_category_bytes[c];
    }
    assert_int_equal(sum, s->planned_disk_peak_bytes);
}

static void test_observe__statistics_are_the_engines_figures(void **state) {
    (void)state;
    for (unsigned seed = 0; seed < 40; seed++) {
        tess_stats s = { .struct_size = sizeof s };
        begin(seed);
        assert_int_equal(tess_stats_get(&t, &s), TESS_OK);
        check_domain(&s, TESS_DOMAIN_DEVICE);
        check_domain(&s, TESS_DOMAIN_HOST);
        check_disk(&s);
        assert_true(s.n_recompiles == t.pass.n_recompiles && s.n_skipped == t.step.n_skipped && s.loss_scale == 8);
        assert_true(s.n_overflows == t.scaler.now.skipped && s.n_collectives == t.comms.n_collectives);
        assert_true(s.n_audits == t.audit.done && s.n_audit_failures == t.audit.failures);
        assert_true(s.n_units == UNITS && s.n_params == PARAMS && s.param_elems == t.plan.layout.param_elems);
        assert_true(s.program_hash == 100 + TESS__P_TRAIN && s.plugin_stated_bytes == 0 && s.grad_norm == -1);
        assert_true(s.held_bytes == 0 && s.held_peak_bytes == 0);
        assert_int_equal(s.whole_peak_bytes, t.memory.ledger.most[TESS_DOMAIN_DEVICE]);
        t.step.has_norm = 1;
        assert_int_equal(tess_stats_get(&t, &s), TESS_OK);
        assert_true(s.grad_norm == 2.5);
    }
}

static void test_observe__what_the_program_holds_is_asked_for(void **state) {
    (void)state;
    tess_stats s = { .struct_size = sizeof s };
    begin(1);
    t.memory.held = &world.held;
    world.held = (tess__held){ .fn = say_held, .user = &world };
    uint64_t booked = t.memory.ledger.total[TESS_DOMAIN_DEVICE], most = t.memory.ledger.most[TESS_DOMAIN_DEVICE],
             top = 0;
    for (world.holds = 5; world.holds < 1u << 24; world.holds *= 3) {
        top = world.holds;
        assert_int_equal(tess_stats_get(&t, &s), TESS_OK);
        assert_true(s.held_bytes == top && s.held_peak_bytes == top);
        assert_int_equal(s.whole_peak_bytes, booked + top > most ? booked + top : most);
    }
    world.holds = 1;
    assert_int_equal(tess_stats_get(&t, &s), TESS_OK);
    assert_true(s.held_bytes == 1 && s.held_peak_bytes == top);
    assert_int_equal(s.whole_peak_bytes, booked + top);
}

/* ---- units ---- */

static uint64_t up(uint64_t elems, uint32_t dtype) {
    const uint64_t bytes = elems * tess_dtype_bytes(dtype);
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void test_observe__a_unit_is_the_sum_of_its_groups(void **state) {
    (void)state;
    for (unsigned seed = 0; seed < 40; seed++) {
        begin(seed);
        for (int32_t u = 0; u < UNITS; u++) {
            tess_unit_info got = { .struct_size = sizeof got }, want = { .n_params = 0 };
            assert_int_equal(tess_ledger_unit(&t, u, &got), TESS_OK);
            for (int32_t i = 0; i < GROUPS; i++) {
                const tess__group *g = &world.groups[i];
                if (i < world.units[u].first_group || i >= world.units[u].first_group + world.units[u].n_groups)
                    continue;
                want.n_params += g->n_params;
                for (int32_t k = 0; k < g->n_params; k++)
                    want.elems += world.params[PARAMS - 1 - g->first_param - k].elems;
                want.shard_bytes += up(g->shard_elems, g->master);
                want.copy_bytes += g->low_copy ? up(g->shard_elems, g->compute) : 0;
                want.unsharded_bytes += g->in_place ? 0 : up(g->flat_elems, g->compute);
                want.gradient_bytes += g->trainable && !g->grad_in_place ? up(g->flat_elems, g->grad_local) : 0;
                want.shard_gradient_bytes += g->trainable ? up(g->shard_elems, g->grad_shard) : 0;
                want.state_bytes += g->trainable && g->step.n_states > 0 ? up(g->shard_elems, TESS_F32) : 0;
                want.state_bytes += g->trainable && g->step.n_states > 1 ? up((g->shard_elems + 63) / 64, TESS_U8) : 0;
            }
            assert_true(got.n_params == want.n_params && got.elems == want.elems);
            assert_true(got.shard_bytes == want.shard_bytes && got.copy_bytes == want.copy_bytes);
            assert_true(got.unsharded_bytes == want.unsharded_bytes && got.gradient_bytes == want.gradient_bytes);
            assert_true(got.shard_gradient_bytes == want.shard_gradient_bytes && got.state_bytes == want.state_bytes);
            for (int d = 0; d < 3; d++) /* domains of this struct */
                assert_memory_equal(got.live_bytes[d], world.live[u][d], sizeof got.live_bytes[d]);
            assert_string_equal(got.name, world.units[u].name);
        }
    }
}

/* ---- refusals ---- */

static void expect(tess_status s, const char *message) {
    assert_int_equal(s, TESS_E_INVALID);
    assert_string_equal(tess_last_error(), message);
}

static void test_observe__calls_without_what_they_need_are_refused(void **state) {
    (void)state;
    begin(1);
    tess_stats s = { .struct_size = sizeof s };
    tess_unit_info u = { .struct_size = sizeof u };
    tess_info i = { .struct_size = sizeof i };
    static const uint32_t sizes[] = { 7, (1 << 16) + 1 };
    expect(tess_ledger_unit(&t, UNITS, &u), "tess_ledger_unit: 3 is no unit; there are 3");
    expect(tess_ledger_unit(&t, -1, &u), "tess_ledger_unit: -1 is no unit; there are 3");
    expect(tess_stats_get(&t, NULL), "statistics exist after tess_shard only");
    expect(tess_ledger_unit(&t, 0, NULL), "tess_ledger_unit: struct_size is 0; set it to the size of the struct");
    expect(tess_info_get(NULL, &i), "tess_info_get: the engine or the place for the answer is missing");
    expect(tess_info_get(&t, NULL), "tess_info_get: the engine or the place for the answer is missing");
    for (int k = 0; k < 2; k++) {
        char message[160];
        s.struct_size = u.struct_size = i.struct_size = sizes[k];
        snprintf(message, sizeof message, "tess_stats_get: struct_size is %u; set it to sizeof(tess_stats)", sizes[k]);
        expect(tess_stats_get(&t, &s), message);
        snprintf(message, sizeof message, "tess_info_get: struct_size is %u; set it to sizeof(tess_info)", sizes[k]);
        expect(tess_info_get(&t, &i), message);
        snprintf(message, sizeof message, "tess_ledger_unit: struct_size is %u; set it to the size of the struct",
                 sizes[k]);
        expect(tess_ledger_unit(&t, 0, &u), message);
    }
    s.struct_size = u.struct_size = i.struct_size = 8; /* the least: nothing beyond it is written */
    s.peak_bytes[1] = u.elems = 4711;
    assert_int_equal(tess_stats_get(&t, &s), TESS_OK);
    assert_int_equal(tess_ledger_unit(&t, 0, &u), TESS_OK);
    assert_int_equal(tess_info_get(&t, &i), TESS_OK);
    assert_true(s.peak_bytes[1] == 4711 && u.elems == 4711);
    t.sharded = 0;
    s.struct_size = sizeof s;
    u.struct_size = sizeof u;
    expect(tess_stats_get(&t, &s), "statistics exist after tess_shard only");
    expect(tess_stats_get(NULL, &s), "statistics exist after tess_shard only");
    expect(tess_ledger_unit(&t, 0, &u), "tess_ledger_unit: the ledger begins with tess_shard");
    expect(tess_ledger_unit(NULL, 0, &u), "tess_ledger_unit: the ledger begins with tess_shard");
}

/* ---- choices ---- */

static void test_observe__info_is_what_was_chosen(void **state) {
    (void)state;
    tess_info i = { .struct_size = sizeof i };
    static char texts[TESS__N_KINDS][4];
    begin(1);
    for (int k = 0; k < TESS__N_KINDS; k++) {
        snprintf(texts[k], sizeof texts[k], "k%d", k);
        t.selection.text[k] = texts[k];
    }
    t.settings.strategy = "full";
    t.settings.optimizer = "adamw";
    t.settings.activations = "keep";
    t.plan.layout.n_states = 3;
    t.plan.setup = (tess__setup){ .nranks = 6,
                                  .shard_ranks = 3,
                                  .replicas = 2,
                                  .threads = 5,
                                  .accum = 7,
                                  .prefetch = 4,
                                  .sync_each = 2,
                                  .deterministic = 0,
                                  .n_states = 2,
                                  .mirror = 9,
                                  .disk_budget_bytes = 13,
                                  .env = { .mem = TESS_MEM_CUDA, .device_budget_bytes = 11, .host_budget_bytes = 12 } };
    t.comms.world.rank = 4;
    t.comms.world.local_rank = 1;
    t.settings.strict = 2;
    assert_int_equal(tess_info_get(&t, &i), TESS_OK);
    assert_true(i.comm == texts[TESS_KIND_COMM] && i.device == texts[TESS_KIND_DEVICE]);
    assert_true(i.offload == texts[TESS_KIND_OFFLOAD] && i.precision == texts[TESS_KIND_PRECISION]);
    assert_true(i.wrap == texts[TESS_KIND_WRAP] && !strcmp(i.strategy, "full") && !strcmp(i.optimizer, "adamw"));
    assert_true(!strcmp(i.activations, "keep") && i.memory == TESS_MEM_CUDA && i.rank == 4 && i.local_rank == 1);
    assert_true(i.ranks == 6 && i.shard_ranks == 3 && i.replicas == 2 && i.threads == 5 && i.accum == 7);
    assert_true(i.prefetch == 4 && i.sync_each == 1 && i.deterministic == 0 && i.strict == 1 && i.plan_only == 0);
    assert_true(i.n_states == 2 && i.mirror == 9 && i.joins == 0);
    assert_true(i.device_memory_bytes == 11 && i.host_memory_bytes == 12 && i.disk_memory_bytes == 13);
    static const tess_optimizer_ops ops;
    t.plan.setup.step = &ops; /* a plugin says how many states there are */
    t.plan.activations_text = "auto";
    t.plan.setup.sync_each = 0;
    t.plan.setup.deterministic = t.settings.plan_only = t.mirror.joins = 4;
    t.settings.strict = 0;
    assert_int_equal(tess_info_get(&t, &i), TESS_OK);
    assert_true(i.n_states == 3 && !strcmp(i.activations, "auto") && i.sync_each == 0 && i.strict == 0);
    assert_true(i.deterministic == 1 && i.plan_only == 1 && i.joins == 1);
    t.device.compute.handle = &i;
    assert_true(tess_stream_get(&t) == &i && !tess_stream_get(NULL));
    assert_true(tess_accum(&t) == 7 && tess_accum(NULL) == -1);
    assert_true(tess__plan_of(&t) == &t.plan && tess__selection_of(&t) == &t.selection &&
                tess__advice_of(&t) == &t.advice);
}

/* Microbatches of all ranks number the leaves of each step, every one once: rank by rank, or, reduced each, turn by
 * turn. */
static void test_observe__microbatches_number_the_leaves(void **state) {
    (void)state;
    for (int32_t ranks = 1; ranks < 5; ranks++)
        for (int32_t accum = 1; accum < 5; accum++)
            for (int each = 0; each < 2; each++)
                for (uint64_t leaf = 0, n = (uint64_t)(ranks * accum); leaf < 3 * n; leaf++) {
                    const uint64_t step = leaf / n, in_step = leaf % n;
                    const uint64_t rank = each ? in_step % (uint64_t)ranks : in_step / (uint64_t)accum;
                    const uint64_t turn = each ? in_step / (uint64_t)ranks : in_step % (uint64_t)accum;
                    t.plan.setup = (tess__setup){ .nranks = ranks, .accum = accum, .sync_each = each };
                    t.comms.world.rank = (int32_t)rank;
                    assert_int_equal(tess_microbatch(&t, step * (uint64_t)accum + turn), leaf);
                }
    assert_int_equal(tess_microbatch(NULL, 3), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_observe__statistics_are_the_engines_figures),
        cmocka_unit_test(test_observe__what_the_program_holds_is_asked_for),
        cmocka_unit_test(test_observe__a_unit_is_the_sum_of_its_groups),
        cmocka_unit_test(test_observe__calls_without_what_they_need_are_refused),
        cmocka_unit_test(test_observe__info_is_what_was_chosen),
        cmocka_unit_test(test_observe__microbatches_number_the_leaves),
    };
    return cmocka_run_group_tests_name("observe", tests, NULL, NULL);
}

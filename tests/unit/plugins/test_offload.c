/* SPDX-License-Identifier: BSD-3-Clause */
/* Shards, gradients, optimizer state and activations in host memory: the bits stay, and every byte is where the plan
 * says, in both domains. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/state.h"
#include "tests/support/toy.h"

static const tess_optimizer_options step_options = { .struct_size = sizeof step_options, .lr = 0.01f };

typedef struct {
    const char *variable, *value;
} setting;

static void set(const setting *s, int n) {
    for (int i = 0; i < n; i++)
        if (s[i].value)
            setenv(s[i].variable, s[i].value, 1);
}

static void unset(const setting *s, int n) {
    for (int i = 0; i < n; i++)
        unsetenv(s[i].variable);
}

static tess *open_toy(toy *m, int blocks) {
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .input_bytes = TOY_INPUT_BYTES };
    if (tess_open(&o, &t) != TESS_OK)
        fail_msg("%s", tess_last_error());
    assert_int_equal(toy_declare(t, m, blocks), TESS_OK);
    if (tess_shard(t, toy_fill, NULL) != TESS_OK)
        fail_msg("%s", tess_last_error());
    return t;
}

enum { HOOKS, BLOCKS, FUSED, CLIPPED };

static void check_bytes_between_steps(tess *t) {
    tess_stats s = { .struct_size = sizeof s };
    assert_int_equal(tess_stats_get(t, &s), TESS_OK);
    for (int d = 1; d < 3; d++)
        assert_int_equal(s.live_bytes[d], s.resting_bytes[d]);
}

/* What was obtained is what was planned, the categories add up to it, and between steps only what rests is live. */
static void check_bytes(tess *t, int how) {
    tess_stats s = { .struct_size = sizeof s };
    assert_int_equal(tess_stats_get(t, &s), TESS_OK);
    for (int d = 1; d < 3; d++) {
        uint64_t sum = 0;
        for (int c = 1; c < 16; c++)
            sum += s.category_peak_bytes[d][c];
        assert_int_equal(s.peak_bytes[d], s.planned_peak_bytes[d]);
        assert_int_equal(sum, s.planned_peak_bytes[d]);
        assert_int_equal(s.live_bytes[d], s.resting_bytes[d]);
        uint64_t planned_live = sum - s.category_peak_bytes[d][TESS_CAT_FRAGMENTATION];
        assert_true(t->memory.ledger.most[d] <= planned_live);
        if (how == CLIPPED) /* runs every program but the fused one */
            assert_int_equal(t->memory.ledger.most[d], planned_live);
    }
}

static tess_status train_one(tess *t, toy *m, int how, int accum, int step) {
    tess_optimizer_options o = step_options;
    o.clip_norm = how == CLIPPED ? 0.002f : 0;
    tess_status s = TESS_OK;
    double loss;
    for (int k = 0; !s && k < accum; k++) {
        int64_t g = (int64_t)step * accum + k;
        int last = k == accum - 1;
        s = how == HOOKS ? toy_pass(t, m, TESS_PASS_TRAIN, g, &loss)
                         : toy_run(t, TESS_PASS_TRAIN, g, how == FUSED && last ? &o : NULL, &loss);
    }
    return s || how == FUSED ? s : tess_step(t, &o);
}

static uint64_t digest_of(const setting *settings, int n, int how) {
    toy m;
    uint64_t digest = 0;
    double loss;
    set(settings, n);
    const char *accum = getenv("TESSERA_ACCUM");
    tess *t = open_toy(&m, how != HOOKS);
    for (int i = 0; i < 3; i++) {
        if (train_one(t, &m, how, accum ? atoi(accum) : 1, i) != TESS_OK)
            fail_msg("%s", tess_last_error());
        tess_status s =
            how == HOOKS ? toy_pass(t, &m, TESS_PASS_EVAL, 99, &loss) : toy_run(t, TESS_PASS_EVAL, 99, NULL, &loss);
        assert_int_equal(s, TESS_OK);
    }
    assert_int_equal(toy_digest(t, &digest), TESS_OK);
    check_bytes(t, how);
    assert_int_equal(tess_close(t), TESS_OK);
    unset(settings, n);
    return digest;
}

/* ---- what may combine at one rank ---- */

static const char *const offloads[] = {
    "none",           "cpu", "cpu:params", "cpu:grads", "cpu:optimizer", "cpu:grads,optimizer", "cpu:fraction=0.5",
    "cpu:pinned=8KiB"
};
static const char *const activations[] = { "keep", "recompute", "offload" };
static const char *const strategies[] = { "full", "grad_op", "none" };
static const struct {
    const char *precision, *accum, *sync, *deterministic, *prefetch;
} runs[] = {
    { "fp32", NULL, NULL, NULL, NULL }, { "fp32", "3", "each", NULL, NULL }, { "fp32", "3", "end", NULL, "0" },
    { "bf16", "4", "each", "1", NULL }, { "bf16", "2", "end", "1", NULL },   { "bf16", NULL, NULL, NULL, "0" }
};

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

/* One run with each of offloads × activations × strategies; all of them only in the first run, else a diagonal. */
static void check_run(int run, int how) {
    uint64_t plain = 0;
    for (int o = 0; o < COUNT(offloads); o++)
        for (int a = 0; a < (how == HOOKS ? 1 : COUNT(activations)); a++)
            for (int s = 0; s < COUNT(strategies); s++) {
                if (plain && (run || how < FUSED) && (o + a + s + run) % 3 != 0)
                    continue;
                const setting settings[] = {
                    { "TESSERA_PRECISION", runs[run].precision },
                    { "TESSERA_OFFLOAD", offloads[o] },
                    { "TESSERA_ACTIVATIONS", activations[a] },
                    { "TESSERA_STRATEGY", strategies[s] },
                    { "TESSERA_ACCUM", runs[run].accum },
                    { "TESSERA_SYNC", runs[run].sync },
                    { "TESSERA_DETERMINISTIC", runs[run].deterministic },
                    { "TESSERA_PREFETCH", runs[run].prefetch },
                };
                uint64_t digest = digest_of(settings, COUNT(settings), how);
                plain = plain ? plain : digest;
                if (digest != plain)
                    fail_msg("%s %s %s run %d how %d: other bits", offloads[o], activations[a], strategies[s], run,
                             how);
            }
}

static void test_offload__no_combination_changes_bits_or_breaks_the_plan(void **state) {
    (void)state;
    for (int run = 0; run < COUNT(runs); run++) /* the toy's hooks read fp32 only */
        for (int how = strcmp(runs[run].precision, "fp32") == 0 ? HOOKS : BLOCKS; how <= CLIPPED; how++)
            check_run(run, how);
}

/* ---- places ---- */

static uint64_t resting(const char *offload, uint32_t domain, uint32_t category) {
    toy m;
    uint64_t bytes = 0;
    setenv("TESSERA_OFFLOAD", offload, 1);
    tess *t = open_toy(&m, 1);
    for (int32_t i = 0; i < t->plan.resident.n_buffers; i++)
        if (t->plan.resident.buffers[i].domain == domain && t->plan.resident.buffers[i].category == category)
            bytes += t->plan.resident.buffers[i].bytes;
    assert_int_equal(tess_close(t), TESS_OK);
    unsetenv("TESSERA_OFFLOAD");
    return bytes;
}

/* The units whose parameters rest on the host. */
static uint64_t resting_units(const char *offload) {
    toy m;
    uint64_t units = 0;
    setenv("TESSERA_OFFLOAD", offload, 1);
    tess *t = open_toy(&m, 1);
    for (int32_t i = 0; i < t->plan.resident.n_buffers; i++) {
        const tess__buffer *b = &t->plan.resident.buffers[i];
        if (b->domain == TESS_DOMAIN_HOST && b->category == TESS_CAT_SHARD_PARAM)
            units |= UINT64_C(1) << b->unit;
    }
    assert_int_equal(tess_close(t), TESS_OK);
    unsetenv("TESSERA_OFFLOAD");
    return units;
}

static void test_offload__what_is_named_rests_on_the_host_and_nothing_else(void **state) {
    (void)state;
    uint64_t params = resting("none", 1, TESS_CAT_SHARD_PARAM), grads = resting("none", 1, TESS_CAT_SHARD_GRAD),
             states = resting("none", 1, TESS_CAT_OPTIMIZER);
    assert_true(params > 0 && grads > 0 && grads < params && states == 2 * grads); /* frozen: no gradient */
    assert_int_equal(resting("cpu", 2, TESS_CAT_SHARD_PARAM), params);
    assert_int_equal(resting("cpu", 2, TESS_CAT_SHARD_GRAD), grads);
    assert_int_equal(resting("cpu", 2, TESS_CAT_OPTIMIZER), states);
    assert_int_equal(resting("cpu", 1, TESS_CAT_SHARD_PARAM), 0);
    assert_int_equal(resting("cpu:optimizer", 2, TESS_CAT_OPTIMIZER), states);
    assert_int_equal(resting("cpu:optimizer", 2, TESS_CAT_SHARD_PARAM), 0);
    assert_int_equal(resting("cpu:optimizer", 1, TESS_CAT_SHARD_GRAD), grads);
}

/* Of the first u units, fraction · u rests there, rounded down. A bit for each unit. */
static void test_offload__a_fraction_takes_these_units(void **state) {
    (void)state;
    static const struct {
        const char *offload;
        uint64_t units;
    } cases[] = { { "cpu:fraction=0", 0 },
                  { "cpu:fraction=0.25", 1 << 3 },
                  { "cpu:fraction=0.4", 1 << 2 | 1 << 4 },
                  { "cpu:fraction=0.5", 1 << 1 | 1 << 3 },
                  { "cpu:fraction=0.99", 0x1e },
                  { "cpu:fraction=1", 0x1f } };
    for (int i = 0; i < COUNT(cases); i++) {
        uint64_t units = resting_units(cases[i].offload);
        if (units != cases[i].units)
            fail_msg("%s: units %#" PRIx64 " rest on the host, expected %#" PRIx64, cases[i].offload, units,
                     cases[i].units);
    }
}

/* The page-locked budget: what was locked is within it, and the rest rests in pageable memory. */
static void test_offload__locked_memory_stays_within_the_budget(void **state) {
    (void)state;
    toy m;
    setenv("TESSERA_OFFLOAD", "cpu:pinned=4KiB", 1);
    tess *t = open_toy(&m, 1);
    uint64_t locked = t->plan.resident.step_bytes[TESS_DOMAIN_HOST], pageable = t->plan.resident.pageable_bytes;
    assert_true(locked > 0 && locked <= 4096);
    assert_true(pageable > 0);
    assert_int_equal(t->memory.arena_bytes[TESS_DOMAIN_HOST][TESS__RESIDENT], 4096);
    assert_int_equal(t->memory.arenas[TESS_DOMAIN_HOST][TESS__PAGEABLE].memory.mem, TESS_MEM_HOST);
    assert_int_equal(tess_close(t), TESS_OK);
    setenv("TESSERA_OFFLOAD", "cpu:pinned=0", 1);
    t = open_toy(&m, 1);
    assert_int_equal(t->memory.arena_bytes[TESS_DOMAIN_HOST][TESS__RESIDENT], 0);
    assert_int_equal(t->plan.resident.pageable_bytes, locked + pageable);
    assert_int_equal(tess_close(t), TESS_OK);
    setenv("TESSERA_ACTIVATIONS", "offload", 1); /* they are within it too */
    t = open_toy(&m, 1);
    assert_true(t->plan.layout.activation_rest.pageable);
    assert_int_equal(t->memory.arenas[TESS_DOMAIN_HOST][TESS__STEP].memory.mem, TESS_MEM_HOST);
    assert_int_equal(tess_close(t), TESS_OK);
    unsetenv("TESSERA_ACTIVATIONS");
    unsetenv("TESSERA_OFFLOAD");
}

static void test_offload__host_memory_beyond_its_budget_is_refused(void **state) {
    (void)state;
    toy m;
    tess *t = NULL;
    setenv("TESSERA_OFFLOAD", "cpu", 1);
    setenv("TESSERA_HOST_MEMORY", "4KiB", 1);
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .input_bytes = TOY_INPUT_BYTES };
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, 1), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_E_BUDGET);
    assert_non_null(strstr(tess_last_error(), "TESSERA_HOST_MEMORY"));
    tess_close(t);
    unsetenv("TESSERA_HOST_MEMORY");
    unsetenv("TESSERA_OFFLOAD");
}

static tess_status sum_up(void *user, const tess_range *r, void *data) {
    double *sum = user;
    for (uint64_t i = 0; i < r->elems; i++)
        *sum += ((const float *)data)[i];
    return TESS_OK;
}

/* Gradients, moments and the norm are read from wherever they rest. */
static void test_offload__gradients_moments_and_norm_read_the_same(void **state) {
    (void)state;
    static const char *const where[] = { "none", "cpu" };
    double seen[2][4], loss;
    for (int i = 0; i < 2; i++) {
        toy m;
        float norm;
        setenv("TESSERA_OFFLOAD", where[i], 1);
        tess *t = open_toy(&m, 0);
        memset(seen[i], 0, sizeof seen[i]);
        assert_int_equal(toy_pass(t, &m, TESS_PASS_TRAIN, 0, &loss), TESS_OK);
        assert_int_equal(tess_grad_norm(t, &norm), TESS_OK);
        assert_int_equal(tess_each_owned(t, TESS_OF_GRAD, sum_up, &seen[i][0]), TESS_OK);
        assert_int_equal(tess_each_full(t, TESS_OF_GRAD, sum_up, &seen[i][1]), TESS_OK);
        assert_int_equal(tess_step(t, &step_options), TESS_OK);
        assert_int_equal(tess_each_owned(t, TESS_OF_MOMENT2, sum_up, &seen[i][2]), TESS_OK);
        assert_int_equal(tess_close(t), TESS_OK);
        seen[i][3] = norm;
        assert_true(norm > 0 && seen[i][2] > 0);
    }
    unsetenv("TESSERA_OFFLOAD");
    assert_memory_equal(seen[0], seen[1], sizeof seen[0]);
}

static const tess__program *program_of(tess *t, int which) {
    return &t->plan.programs[which];
}

static int count(const tess__program *p, uint8_t op, int flags) {
    int n = 0;
    for (int32_t i = 0; i < p->n_instrs; i++)
        n += p->instrs[i].op == op && (p->instrs[i].flags & flags) == flags;
    return n;
}

/* Bytes of a category alive at the fullest moment of that category. */
static uint64_t most_alive(const tess__program *p, uint32_t domain, uint32_t category) {
    uint64_t now = 0, most = 0;
    for (int32_t i = 0; i < p->n_instrs; i++) {
        if (p->instrs[i].op != TESS__ALLOC && p->instrs[i].op != TESS__FREE)
            continue;
        const tess__buffer *b = &p->buffers[p->instrs[i].buffer];
        if (b->domain == domain && b->category == category)
            now += p->instrs[i].op == TESS__ALLOC ? b->bytes : 0 - b->bytes;
        most = now > most ? now : most;
    }
    return most;
}

static void test_offload__the_step_of_a_unit_runs_on_the_host_while_backward_goes_on(void **state) {
    (void)state;
    toy m;
    setenv("TESSERA_OFFLOAD", "cpu", 1);
    tess *t = open_toy(&m, 1);
    const tess__program *p = program_of(t, TESS__P_FUSED);
    int trainable = 0, last_enter = 0, overlapped = 0;
    for (int32_t g = 0; g < t->plan.layout.n_groups; g++)
        trainable += t->plan.layout.groups[g].trainable;
    for (int32_t i = 0; i < p->n_instrs; i++)
        last_enter = p->instrs[i].op == TESS__ENTER ? i : last_enter;
    for (int32_t i = 0; i < last_enter; i++)
        overlapped += p->instrs[i].op == TESS__OPTIMIZE;
    assert_int_equal(count(p, TESS__OPTIMIZE, TESS__ASYNC), trainable);
    assert_int_equal(count(p, TESS__OPTIMIZE, 0), trainable);
    assert_true(overlapped >= 2);
    assert_int_equal(count(program_of(t, TESS__P_STEP), TESS__OPTIMIZE, TESS__ASYNC), 0);
    assert_int_equal(tess_close(t), TESS_OK);
    unsetenv("TESSERA_OFFLOAD");
}

/* Planning several ranks takes a backend that serves them, which a build with a C compiler alone may lack. */
static int has_comm(const char *name) {
    tess__plugin *plugin;
    if (tess__plugin_open(TESS_KIND_COMM, name, NULL, &plugin)) {
        print_message("no comm %s: %s\n", name, tess_last_error());
        return 0;
    }
    tess__plugin_close(plugin);
    return 1;
}

/* Twelve equal layers between an embedding and a head, planned for `ranks` with gloo. */
static tess *plan_layers(int32_t ranks, const char *precision) {
    tess *t = NULL;
    const int64_t small[] = { 256, 768 }, layer[] = { 768, 9232 };
    setenv("TESSERA_OFFLOAD", "cpu", 1);
    setenv("TESSERA_COMM", "gloo", 1);
    setenv("TESSERA_PRECISION", precision, 1);
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .plan_only = 1, .ranks = ranks };
    tess_param_options p = { .struct_size = sizeof p,
                             .dtype = TESS_F32,
                             .compute_dtypes = 1u << TESS_F32 | 1u << TESS_BF16,
                             .shape = small,
                             .ndim = 2 };
    tess_scope scope;
    if (tess_open(&o, &t) != TESS_OK)
        fail_msg("%s", tess_last_error());
    assert_int_equal(tess_scope_add(t, "embed", 0, &scope), TESS_OK);
    assert_int_equal(tess_scope_add(t, "h.*", 12, &scope), TESS_OK);
    assert_int_equal(tess_scope_add(t, "head", 0, &scope), TESS_OK);
    p.name = "embed.w";
    assert_int_equal(tess_param_add(t, &p, NULL), TESS_OK);
    p.name = "head.w";
    assert_int_equal(tess_param_add(t, &p, NULL), TESS_OK);
    p.name = "h.*.w", p.stack = 12, p.shape = layer;
    assert_int_equal(tess_param_add(t, &p, NULL), TESS_OK);
    assert_int_equal(tess_shard(t, NULL, NULL), TESS_E_PLANNED);
    unsetenv("TESSERA_OFFLOAD");
    unsetenv("TESSERA_COMM");
    unsetenv("TESSERA_PRECISION");
    return t;
}

/* On the device there is only what a unit needs while it runs, and what travels. */
static void test_offload__the_device_holds_two_units_and_little_on_its_way(void **state) {
    (void)state;
    static const char *const precisions[] = { "fp32", "bf16" };
    if (!has_comm("gloo"))
        skip();
    for (int i = 0; i < 2; i++)
        for (int32_t ranks = 2; ranks <= 4; ranks++) {
            tess *t = plan_layers(ranks, precisions[i]);
            const tess__program *p = program_of(t, TESS__P_TRAIN);
            const tess__group *largest = &t->plan.layout.groups[t->plan.model.params[2].group];
            uint64_t param = largest->flat_elems * (i ? 2 : 4), grad = largest->flat_elems * 4;
            assert_int_equal(most_alive(p, TESS_DOMAIN_DEVICE, TESS_CAT_FULL_PARAM), 2 * param);
            assert_true(most_alive(p, TESS_DOMAIN_DEVICE, TESS_CAT_FULL_GRAD) <= 2 * grad);
            uint64_t moving =
                most_alive(p, TESS_DOMAIN_DEVICE, TESS_CAT_COMM) + most_alive(p, TESS_DOMAIN_HOST, TESS_CAT_COMM);
            if (moving > grad + grad / 2)
                fail_msg("%s, %d ranks: %llu bytes on their way, a unit has %llu", precisions[i], ranks,
                         (unsigned long long)moving, (unsigned long long)grad);
            assert_true(count(p, TESS__PREFETCH, 0) >= 20);
            tess_close(t);
        }
}

/* Activations wait on the host: fewer are on the device, all that left come back. */
static void test_offload__activations_leave_the_device_until_backward(void **state) {
    (void)state;
    uint64_t most[2];
    for (int i = 0; i < 2; i++) {
        toy m;
        setenv("TESSERA_ACTIVATIONS", i ? "offload" : "keep", 1);
        tess *t = open_toy(&m, 1);
        const tess__program *p = program_of(t, TESS__P_TRAIN);
        most[i] = most_alive(p, TESS_DOMAIN_DEVICE, TESS_CAT_ACTIVATION);
        /* of five blocks, three saved buffers and two outputs */
        assert_int_equal(count(p, TESS__OFFLOAD, 0), i ? 5 : 0);
        assert_int_equal(count(p, TESS__RELOAD, 0), i ? 5 : 0);
        assert_int_equal(count(p, TESS__RELOAD, TESS__OUTPUTS), i ? 2 : 0);
        assert_int_equal(most_alive(p, TESS_DOMAIN_HOST, TESS_CAT_ACTIVATION), i ? 5 * 64 : 0);
        assert_int_equal(count(program_of(t, TESS__P_EVAL), TESS__OFFLOAD, 0), 0);
        assert_int_equal(tess_close(t), TESS_OK);
    }
    assert_true(most[1] < most[0]);
    unsetenv("TESSERA_ACTIVATIONS");
}

/* A pass that leaves out a scope, twice per step: what it sums on the host lies beside the plan, once. */
static double partial_step(tess *t, const toy *m) {
    static const int order[] = { 0, 1, 2, 4 };
    double sum = 0;
    const void *p[8];
    void *g[8];
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(tess_pass(t, TESS_PASS_TRAIN), TESS_OK);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(tess_forward_begin(t, m->scope[order[i]], p, m->n_params[order[i]]), TESS_OK);
            assert_int_equal(tess_forward_end(t, m->scope[order[i]]), TESS_OK);
        }
        for (int i = 4; i-- > 0;) {
            assert_int_equal(tess_backward_begin(t, m->scope[order[i]], p, g, m->n_params[order[i]]), TESS_OK);
            for (int k = 0; k < m->n_params[order[i]]; k++)
                if (g[k])
                    ((float *)g[k])[0] += (float)(i + k + pass) + ((const float *)p[k])[0];
            assert_int_equal(tess_backward_end(t, m->scope[order[i]]), TESS_OK);
        }
    }
    assert_int_equal(tess_each_owned(t, TESS_OF_GRAD, sum_up, &sum), TESS_OK);
    assert_int_equal(tess_step(t, &step_options), TESS_OK);
    return sum;
}

static void test_offload__a_departing_pass_gives_the_same_gradients(void **state) {
    (void)state;
    static const char *const where[] = { "none", "cpu", "cpu:grads", "cpu:fraction=0.5" };
    double sums[4][3];
    uint64_t digests[4];
    setenv("TESSERA_ACCUM", "2", 1);
    for (int i = 0; i < COUNT(where); i++) {
        toy m;
        setenv("TESSERA_OFFLOAD", where[i], 1);
        tess *t = open_toy(&m, 0);
        for (int k = 0; k < 3; k++)
            sums[i][k] = partial_step(t, &m);
        assert_int_equal(t->pass.n_recompiles, 1);
        assert_int_equal(toy_digest(t, &digests[i]), TESS_OK);
        check_bytes_between_steps(t);
        assert_int_equal(tess_close(t), TESS_OK);
        assert_memory_equal(sums[i], sums[0], sizeof sums[0]);
        assert_int_equal(digests[i], digests[0]);
    }
    unsetenv("TESSERA_OFFLOAD");
    unsetenv("TESSERA_ACCUM");
    assert_true(sums[0][0] != 0 && sums[0][0] != sums[0][1]);
}

/* What fails on a lane's thread is the engine's error, with its message. */
static void test_offload__a_failure_beside_the_engine_is_its_sticky_error(void **state) {
    (void)state;
    toy m;
    double loss;
    setenv("TESSERA_OFFLOAD", "cpu", 1);
    tess *t = open_toy(&m, 1);
    assert_int_equal(toy_run(t, TESS_PASS_TRAIN, 0, &step_options, &loss), TESS_OK);
    t->plan.layout.groups[1].master = TESS_I8; /* no such cast: the way up fails */
    tess_status s = toy_run(t, TESS_PASS_TRAIN, 1, &step_options, &loss);
    assert_true(s < 0);
    assert_non_null(strstr(tess_last_error(), "on the host: "));
    assert_int_equal(toy_run(t, TESS_PASS_TRAIN, 2, &step_options, &loss), s);
    assert_int_equal(tess_close(t), s);
    unsetenv("TESSERA_OFFLOAD");
}

/* ---- settings ---- */

static void refuse(const char *offload, const char *what, const char *word) {
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o };
    setenv("TESSERA_OFFLOAD", offload, 1);
    if (what)
        setenv("TESSERA_OFFLOAD_WHAT", what, 1);
    assert_int_equal(tess_open(&o, &t), TESS_E_INVALID);
    if (!strstr(tess_last_error(), word))
        fail_msg("\"%s\" does not say \"%s\"", tess_last_error(), word);
    unsetenv("TESSERA_OFFLOAD_WHAT");
    unsetenv("TESSERA_OFFLOAD");
}

static void test_offload__bad_settings_name_what_was_expected(void **state) {
    (void)state;
    refuse("cpu:everything", NULL, "\"everything\" is no setting");
    refuse("cpu:fraction=1.5", NULL, "fraction is \"1.5\", expected a finite number from 0 to 1");
    refuse("cpu:fraction=.", NULL, "expected a finite number from 0 to 1");
    refuse("cpu:fraction=1e1", NULL, "expected a finite number from 0 to 1");
    refuse("cpu:pinned=1MB", NULL, "pinned is \"1MB\"");
    refuse("cpu:pinned=99999999999999999999", NULL, "pinned is");
    refuse("cpu", "params,fraction=0.5", "TESSERA_OFFLOAD_WHAT");
    refuse("cpu", "moments", "TESSERA_OFFLOAD_WHAT is 'moments', expected words of params|grads|optimizer|all");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offload__no_combination_changes_bits_or_breaks_the_plan),
        cmocka_unit_test(test_offload__what_is_named_rests_on_the_host_and_nothing_else),
        cmocka_unit_test(test_offload__a_fraction_takes_these_units),
        cmocka_unit_test(test_offload__locked_memory_stays_within_the_budget),
        cmocka_unit_test(test_offload__host_memory_beyond_its_budget_is_refused),
        cmocka_unit_test(test_offload__gradients_moments_and_norm_read_the_same),
        cmocka_unit_test(test_offload__the_step_of_a_unit_runs_on_the_host_while_backward_goes_on),
        cmocka_unit_test(test_offload__the_device_holds_two_units_and_little_on_its_way),
        cmocka_unit_test(test_offload__activations_leave_the_device_until_backward),
        cmocka_unit_test(test_offload__a_departing_pass_gives_the_same_gradients),
        cmocka_unit_test(test_offload__a_failure_beside_the_engine_is_its_sticky_error),
        cmocka_unit_test(test_offload__bad_settings_name_what_was_expected),
    };
    return cmocka_run_group_tests_name("offload", tests, NULL, NULL);
}

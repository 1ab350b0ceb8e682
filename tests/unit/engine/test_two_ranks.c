/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks that are not alike: each says the same of the first difference. This program runs itself as the ranks. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/log.h"
#include "tests/support/ranks.h"
#include "tests/support/toy.h"

#define CHECK(x)                                                                                                       \
    do                                                                                                                 \
        if (!(x)) {                                                                                                    \
            fprintf(stderr, "rank %d, line %d: %s: %s\n", own_rank, __LINE__, #x, tess_last_error());                  \
            return 1;                                                                                                  \
        }                                                                                                              \
    while (0)

enum { ONE_MORE = 1 << 8 }; /* of toy_declare's flags: a scope behind the toy's */
static int own_rank;

static float own_momentum;
static char own_common[24];
static uint64_t own_common_bytes;

static const char *own_optimizer = "adamw";

static tess_status open_toy(tess **t, toy *m, uint32_t options, int flags) {
    tess_options o = { .struct_size = sizeof o, .optimizer = own_optimizer, .input_bytes = TOY_INPUT_BYTES };
    o.flags = options;
    o.momentum = own_momentum;
    o.common = own_common;
    o.common_bytes = own_common_bytes;
    tess_status s = tess_open(&o, t);
    if (!s)
        s = toy_declare(*t, m, flags & ~ONE_MORE);
    if (!s && flags & ONE_MORE)
        s = tess_scope_add(*t, "extra", 0, NULL);
    return s ? s : tess_shard(*t, toy_fill, NULL);
}

static int says(const char *text) {
    return strstr(tess_last_error(), text) != NULL;
}

/* ---- as a rank ---- */

/* WHO WHAT EXPECTED: that rank alone has VARIABLE=VALUE, or is another program. */
static int differ(int who, char *what, const char *expected) {
    tess *t = NULL;
    toy m;
    char *equals = strchr(what, '=');
    int flags = strcmp(what, "more") == 0 ? 0 : TOY_BLOCKS;
    uint32_t options = 0;
    if (own_rank == who && equals) {
        *equals = 0;
        setenv(what, equals + 1, 1);
    } else if (own_rank == who) {
        flags |= strcmp(what, "more") == 0 ? ONE_MORE : 0;
        flags = strcmp(what, "groups") == 0 ? flags | TOY_GROUPS : strcmp(what, "hooks") == 0 ? 0 : flags;
        own_momentum = strcmp(what, "momentum") == 0 ? 0.9f : 0;
        own_common_bytes = strcmp(what, "common") == 0 ? sizeof own_common : 0;
        options = strcmp(what, "promises") == 0 ? TESS_OPTIONS_STEP_IN_PASS | TESS_OPTIONS_NO_CLIP : 0;
    }
    tess_status s = open_toy(&t, &m, options, flags);
    if (!*expected)
        CHECK(!s);
    else
        CHECK((s == TESS_E_INVALID || s == TESS_E_MISMATCH) && says(expected));
    tess_close(t);
    return 0;
}

typedef struct {
    const char *name;
    float value;
    uint64_t at, elems; /* the element that got it; how many this rank has */
} poison;

static tess_status spoil(void *user, const tess_range *r, void *data) {
    poison *p = user;
    if (!r->elems || strcmp(r->name, p->name) != 0)
        return TESS_OK;
    uint64_t at = own_rank ? r->elems - 1 : 0;
    ((float *)data)[at] = p->value;
    p->at = r->first_elem + at;
    p->elems = r->elems;
    return TESS_OK;
}

/* WHO CLIP: of two gradients the last element that this rank has is not finite; of rank 0 the first. */
static int not_finite(int who, float clip) {
    tess *t = NULL;
    toy m;
    double loss;
    char expected[128];
    poison first = { "h.0.weight", NAN, 0, 0 }, second = { "h.1.weight", INFINITY, 0, 0 };
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f, .clip_norm = clip };
    CHECK(!open_toy(&t, &m, 0, TOY_LARGE));
    CHECK(!toy_pass(t, &m, TESS_PASS_TRAIN, own_rank, &loss));
    CHECK(!tess_step(t, &step));
    CHECK(!toy_pass(t, &m, TESS_PASS_TRAIN, own_rank, &loss));
    if (own_rank != who)
        first.name = second.name = "";
    CHECK(!tess_each_owned(t, TESS_OF_GRAD | TESS_OF_WRITE, spoil, &second));
    CHECK(!tess_each_owned(t, TESS_OF_GRAD | TESS_OF_WRITE, spoil, &first));
    if (tess_all_reduce(t, &first.at, 1, TESS_I64, TESS_MAX) != TESS_OK) { /* the other was so far ahead */
        CHECK(own_rank != who && says("failed: step 2") && says("\"h.0.weight\" is nan"));
        tess_close(t);
        return 0;
    }
    tess_status found = clip > 0 || own_rank == who ? TESS_E_NOT_FINITE : TESS_OK; /* without a norm: its owner alone */
    CHECK(tess_step(t, &step) == found);
    snprintf(expected, sizeof expected, "step 2%s: rank %d, unit h.0: element %llu of %s \"h.0.weight\" is nan",
             clip > 0 ? ": the gradient norm is nan" : " leaves values that are not finite", who,
             (unsigned long long)first.at, clip > 0 ? "the gradient of" : "parameter");
    CHECK(!first.at == !who && (!found || says(expected)));
    tess_close(t);
    return 0;
}

/* Where the run goes on, rank 0 says it, once. */
static int warned(void) {
    tess *t = NULL;
    toy m;
    double loss;
    char said[4096];
    poison bad = { own_rank == 1 ? "h.0.weight" : "", NAN, 0, 0 };
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f, .clip_norm = 1 };
    FILE *f = tmpfile();
    int kept = dup(2);
    setenv("TESSERA_ON_NAN", "warn", 1);
    setenv("TESSERA_LOG", "warning", 1);
    CHECK(f && !open_toy(&t, &m, 0, TOY_LARGE));
    dup2(fileno(f), 2);
    tess_status s = TESS_OK;
    for (int i = 0; i < 3 && !s; i++) {
        s = toy_pass(t, &m, TESS_PASS_TRAIN, own_rank, &loss);
        s = s ? s : tess_each_owned(t, TESS_OF_GRAD | TESS_OF_WRITE, spoil, &bad);
        s = s ? s : tess_step(t, &step);
    }
    dup2(kept, 2);
    rewind(f);
    said[fread(said, 1, sizeof said - 1, f)] = 0;
    const char *first = strstr(said, "the run goes on, and this is said once");
    CHECK(!s && (own_rank ? !*said : first && !strstr(first + 1, "not finite") && strstr(said, "rank 1, unit h.0")));
    fclose(f);
    tess_close(t);
    return 0;
}

/* WHO: one element of one matrix's gradient is infinite there. Behind Newton and Schulz's iteration all of the matrix
 * is NaN, so each rank finds its first element, or hears before that another has found one. */
static int not_finite_matrix(int who) {
    tess *t = NULL;
    toy m;
    double loss;
    char expected[160];
    poison first = { "h.0.weight", own_rank == who ? INFINITY : 0, 0, 0 };
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    own_optimizer = "muon";
    CHECK(!open_toy(&t, &m, 0, TOY_LARGE));
    CHECK(!toy_pass(t, &m, TESS_PASS_TRAIN, own_rank, &loss));
    CHECK(!tess_each_owned(t, TESS_OF_GRAD | TESS_OF_WRITE, spoil, &first));
    const tess_status s = tess_step(t, &step);
    snprintf(expected, sizeof expected,
             "step 1 leaves values that are not finite: rank %d, unit h.0: element %llu of parameter \"h.0.weight\" is",
             own_rank, (unsigned long long)(own_rank ? first.at + 1 - first.elems : 0));
    CHECK(s == TESS_E_NOT_FINITE ? says(expected) && says("nan")
                                 : s && says("failed: step 1 leaves values that are not finite: rank ") &&
                                       says(" of parameter \"h.0.weight\" is"));
    tess_close(t);
    return 0;
}

/* Gradients that are alike on every rank, so that their mean over a power of two ranks is exact. */
static tess_status pass_of_stacks(tess *t, tess_scope scope, int step) {
    enum { ELEMS = 5 * 24 * 40 };
    const void *p[2];
    void *g[2];
    tess_status s = tess_pass(t, TESS_PASS_TRAIN);
    s = s ? s : tess_forward_begin(t, scope, p, 2);
    s = s ? s : tess_forward_end(t, scope);
    s = s ? s : tess_backward_begin(t, scope, p, g, 2);
    for (int i = 0; !s && i < ELEMS; i++)
        ((float *)g[0])[i] += (float)((i * 37 + step * 11) % 101 - 50) / 64;
    for (int i = 0; !s && i < 24 * 56; i++)
        ((float *)g[1])[i] += (float)((i * 29 + step * 7) % 89 - 44) / 64;
    return s ? s : tess_backward_end(t, scope);
}

/* Prints a digest of five matrices in one parameter, and one in another, after three steps: shards cut the stack within
 * matrices of different owners. */
static int stacks(void) {
    static const int64_t shape[3] = { 5, 24, 40 }, other[2] = { 24, 56 };
    tess_param_options stack = { .struct_size = sizeof stack, .dtype = TESS_F32, .name = "s.stack", .shape = shape };
    tess_param_options plain = { .struct_size = sizeof plain, .dtype = TESS_F32, .name = "s.plain", .shape = other };
    tess_options o = { .struct_size = sizeof o, .optimizer = "muon" };
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    tess *t = NULL;
    tess_scope scope;
    uint64_t digest = 0;
    stack.compute_dtypes = plain.compute_dtypes = 1u << TESS_F32;
    stack.ndim = 3, plain.ndim = 2;
    CHECK(!tess_open(&o, &t) && !tess_scope_add(t, "s", 0, &scope));
    CHECK(!tess_param_add(t, &stack, NULL) && !tess_param_add(t, &plain, NULL) && !tess_shard(t, toy_fill, NULL));
    for (int i = 0; i < 3; i++)
        CHECK(!pass_of_stacks(t, scope, i) && !tess_step(t, &step));
    CHECK(!toy_digest(t, &digest));
    if (own_rank == 0)
        printf("%llx", (unsigned long long)digest);
    CHECK(!tess_close(t));
    return 0;
}

/* WHO WHAT: that rank alone does otherwise; each says what both sides are about to do. */
static int part_ways(int who, const char *what) {
    tess *t = NULL;
    toy m;
    double loss;
    float x[5] = { 0 };
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = own_rank == who ? 0.25f : 0.5f };
    CHECK(!open_toy(&t, &m, 0, 0));
    if (strcmp(what, "counts") == 0) {
        CHECK(tess_all_reduce(t, x, own_rank == who ? 5 : 3, TESS_F32, TESS_SUM) == TESS_E_MISMATCH);
        CHECK(says("tess_all_reduce (sum) of 5 f32") && says("tess_all_reduce (sum) of 3 f32"));
    } else if (strcmp(what, "i32") == 0 || !what[1]) { /* a dtype, or an operation */
        uint32_t dtype = strcmp(what, "i32") == 0 && own_rank == who ? TESS_I32 : TESS_F32;
        uint32_t op = !what[1] && own_rank == who ? (uint32_t)(what[0] - '0') : TESS_SUM;
        static const char *const names[] = { "", "sum", "min", "max", "average" };
        char mine[64];
        CHECK(tess_all_reduce(t, x, 3, dtype, op) == TESS_E_MISMATCH && says("tess_all_reduce (sum) of 3 f32"));
        snprintf(mine, sizeof mine, "tess_all_reduce (%s) of 3 %s", names[op], dtype == TESS_I32 ? "i32" : "f32");
        CHECK(says(mine));
    } else if (strcmp(what, "passes") == 0) {
        uint32_t kind = own_rank == who ? TESS_PASS_EVAL : TESS_PASS_TRAIN;
        CHECK(toy_pass(t, &m, kind, own_rank, &loss) == TESS_E_MISMATCH);
        CHECK(says("the broadcast of buffers") &&
              says("all_gather of unit embed.weight (128 elements) in a training pass"));
    } else {
        tess_status s = toy_pass(t, &m, TESS_PASS_TRAIN, own_rank, &loss);
        s = s ? s : tess_step(t, &step);
        s = s ? s : toy_pass(t, &m, TESS_PASS_TRAIN, own_rank, &loss);
        CHECK(s == TESS_E_MISMATCH && says("stepped differently before") && says("lr 0.25") && says("lr 0.5"));
    }
    CHECK(says("rank 0 ") && says("rank 1 "));
    tess_close(t);
    return 0;
}

static int save_step(tess *t, const char *dir, tess_status expected) {
    char own[8];
    snprintf(own, sizeof own, "own %d", own_rank);
    tess_checkpoint_options o = { .struct_size = sizeof o, .dir = dir, .common = "common", .own = own };
    o.common_bytes = own_rank == 0 ? 7 : 0;
    o.own_bytes = sizeof own;
    CHECK(tess_checkpoint_save(t, &o) == expected);
    return 0;
}

/* DIR: a save fails on the last rank, and on all; what was saved before loads. */
static int saves(const char *dir) {
    tess *t = NULL;
    toy m;
    double loss;
    uint64_t before = 0, after = 0;
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    char common[8] = "-------", own[8] = "", expected[8];
    tess_checkpoint_load_options load = { .struct_size = sizeof load, .path = dir, .common = common, .own = own };
    tess_checkpoint_info info = { .struct_size = sizeof info };
    load.common_bytes = 6; /* less than there is */
    load.own_bytes = sizeof own;
    CHECK(!open_toy(&t, &m, 0, 0));
    CHECK(!toy_pass(t, &m, TESS_PASS_TRAIN, own_rank, &loss) && !tess_step(t, &step));
    CHECK(!save_step(t, dir, TESS_OK) && !toy_digest(t, &before));
    CHECK(!toy_pass(t, &m, TESS_PASS_TRAIN, own_rank, &loss) && !tess_step(t, &step));
    int last = tess_ranks(t) - 1;
    struct rlimit all, none;
    CHECK(getrlimit(RLIMIT_FSIZE, &all) == 0);
    none = (struct rlimit){ 0, all.rlim_max };
    signal(SIGXFSZ, SIG_IGN);
    CHECK(own_rank != last || setrlimit(RLIMIT_FSIZE, &none) == 0);
    int wrong = save_step(t, dir, TESS_E_DATA);
    CHECK(own_rank != last || setrlimit(RLIMIT_FSIZE, &all) == 0);
    char file[80];
    snprintf(file, sizeof file, "/step-000002/data-1-%05d-of-%05d.safetensors: ", last, last + 1);
    CHECK(!wrong && says(file) && says("File too large"));
    CHECK(!tess_checkpoint_load(t, &load, &info) && info.step == 1 && info.ranks == last + 1);
    CHECK(!toy_digest(t, &after) && before == after);
    snprintf(expected, sizeof expected, "own %d", own_rank);
    CHECK(info.common_bytes == 7 && memcmp(common, "common-", 8) == 0);
    CHECK(info.own_bytes == sizeof own && strcmp(own, expected) == 0);
    CHECK(info.microbatches == (uint64_t)last + 1);
    CHECK(!tess_close(t));
    return 0;
}

/* DIR EXPECTED: what ranks that are not as many, or another model, say of it. */
static int loads(const char *dir, char *what, const char *expected) {
    tess *t = NULL;
    toy m;
    uint64_t digest = 0;
    tess_checkpoint_load_options load = { .struct_size = sizeof load, .path = dir };
    tess_checkpoint_info info = { .struct_size = sizeof info };
    CHECK(!open_toy(&t, &m, 0, strcmp(what, "large") == 0 ? TOY_LARGE : 0));
    tess_status s = tess_checkpoint_load(t, &load, &info);
    if (*expected) {
        CHECK(s && says(expected));
        return 0;
    }
    CHECK(!s && info.step == 1);
    CHECK(!toy_digest(t, &digest));
    if (own_rank == 0)
        printf("%llx", (unsigned long long)digest);
    CHECK(!tess_close(t));
    return 0;
}

static double last_end;

/* Collectives run one behind another; the engine's thread waits for none but these. */
static tess_status print_collective(void *user, const tess_span *s) {
    static const char *const waits[] = { "wait_all_gather", "wait_reduce_scatter", "all_reduce_norm" };
    int known = !s->wait;
    (void)user;
    for (int i = 0; s->wait && i < 3; i++)
        known |= strcmp(s->op, waits[i]) == 0;
    if (!known || s->seconds < 0 || (s->wait && s->seconds < 0.99e-6))
        return tess_fail(TESS_E_INVALID, "%s %s", s->op, s->unit);
    if (strcmp(s->lane, "communication") != 0)
        return TESS_OK;
    if (s->start < last_end - 1e-9)
        return tess_fail(TESS_E_INVALID, "%s begins before the one before it ends", s->op);
    last_end = s->start + s->seconds;
    if (own_rank == 0)
        printf("%s %s; ", s->op, s->unit);
    return TESS_OK;
}

static int spans(void) {
    tess *t = NULL;
    toy m;
    double loss;
    const tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f, .clip_norm = 1 };
    CHECK(!open_toy(&t, &m, 0, TOY_BLOCKS));
    CHECK(!tess_trace(t, 1000));
    CHECK(!toy_run(t, TESS_PASS_TRAIN, own_rank, &step, &loss));
    CHECK(!tess_trace_each(t, 0, print_collective, NULL));
    CHECK(!tess_close(t));
    return 0;
}

/* FILE: none passes a barrier before the slowest has come. Many values are summed in pieces, each once. */
static int barrier(const char *file) {
    tess *t = NULL;
    toy m;
    CHECK(!open_toy(&t, &m, 0, 0) && tess_rank(t) == own_rank && tess_ranks(t) == 2);
    CHECK(tess__log_rank() == own_rank);
    if (own_rank == 1) {
        usleep(200000);
        CHECK(access(file, F_OK) != 0 && fclose(fopen(file, "w")) == 0);
    }
    CHECK(!tess_barrier(t));
    CHECK(access(file, F_OK) == 0);
    enum { MANY = 100303, BEHIND = 64 }; /* more than goes at once, and a rest that is nearly as much as that */
    static double sums[MANY + BEHIND];
    for (int i = 0; i < MANY + BEHIND; i++)
        sums[i] = i + own_rank;
    CHECK(!tess_all_reduce(t, sums, MANY, TESS_F64, TESS_SUM));
    for (int i = 0; i < MANY; i++)
        CHECK(sums[i] == 2 * i + 1);
    for (int i = MANY; i < MANY + BEHIND; i++)
        CHECK(sums[i] == i + own_rank);
    CHECK(!tess_close(t));
    return 0;
}

static int be_rank(char **argv) {
    own_rank = atoi(getenv("RANK"));
    if (strcmp(argv[1], "differ") == 0)
        return differ(atoi(argv[2]), argv[3], argv[4]);
    if (strcmp(argv[1], "part-ways") == 0)
        return part_ways(atoi(argv[2]), argv[3]);
    if (strcmp(argv[1], "not-finite") == 0)
        return not_finite(atoi(argv[2]), (float)atof(argv[3]));
    if (strcmp(argv[1], "warned") == 0)
        return warned();
    if (strcmp(argv[1], "not-finite-matrix") == 0)
        return not_finite_matrix(atoi(argv[2]));
    if (strcmp(argv[1], "stacks") == 0)
        return stacks();
    if (strcmp(argv[1], "barrier") == 0)
        return barrier(argv[2]);
    if (strcmp(argv[1], "spans") == 0)
        return spans();
    return strcmp(argv[1], "loads") == 0 ? loads(argv[2], argv[3], argv[4]) : saves(argv[2]);
}

/* ---- as the test ---- */

/* Returns what rank 0 printed, until the call after the next. */
static char *expect_ranks(int n, const char *role, const char *one, const char *two, const char *three) {
    static char outputs[2][4096];
    static int turn;
    char *output = outputs[turn = !turn],
         *argv[] = { "/proc/self/exe", (char *)role, (char *)one, (char *)two, (char *)three, NULL };
    int code = ranks_run(n, argv, 60, output, sizeof outputs[0]);
    if (code)
        fail_msg("%s %s %s: exit code %d: %s", role, one, two, code, output);
    return output;
}

static void test_two_ranks__the_first_difference_is_named_on_all(void **state) {
    (void)state;
    expect_ranks(2, "differ", "9", "nothing", "");
    expect_ranks(2, "differ", "1", "TESSERA_THREADS=3",
                 "the ranks differ in compute threads or instruction set: rank 0 has ");
    expect_ranks(2, "differ", "1", "TESSERA_PRECISION=bf16", "the ranks differ in plugins: rank 0 has precision fp32");
    expect_ranks(3, "differ", "2", "TESSERA_PREFETCH=3", "prefetch 3");
    expect_ranks(2, "differ", "1", "momentum", "momentum 1"); /* sgd then keeps a state */
    expect_ranks(3, "differ", "2", "common", "common bytes 24");
    expect_ranks(3, "differ", "2", "TESSERA_ON_NAN=warn", "rank 2 has shard group 3");
    expect_ranks(3, "differ", "2", "groups", "declaration 2 is \"parameter h.0.bias");
}

static void test_two_ranks__models_and_programs_are_compared_item_by_item(void **state) {
    (void)state;
    expect_ranks(
        2, "differ", "1", "hooks",
        "the ranks declared different models; declaration 9 is \"block embed with 32 bytes of output, 32 saved\" "
        "on rank 0 and \"scope embed\" on rank 1");
    expect_ranks(2, "differ", "1", "more",
                 "declaration 14 is \"nothing more\" on rank 0 and \"scope extra\" on rank 1");
    expect_ranks(2, "differ", "0", "more",
                 "declaration 14 is \"scope extra\" on rank 0 and \"nothing more\" on rank 1");
    expect_ranks(3, "differ", "0", "promises", "the ranks compiled different programs; instruction ");
}

static void test_two_ranks__who_part_ways_are_named_with_what_they_do(void **state) {
    (void)state;
    for (int gloo = 0; gloo < 2; gloo++) {
        setenv("TESSERA_COMM", gloo ? "gloo" : "shm", 1);
        expect_ranks(2, "part-ways", gloo ? "1" : "0", "counts", "");
        static const char *const other[] = { "i32", "2", "3", "4" };
        for (int i = 0; i < 4; i++)
            expect_ranks(2, "part-ways", "1", other[i], "");
        expect_ranks(2, "part-ways", "1", "passes", "");
        expect_ranks(2, "part-ways", "0", "steps", "");
    }
    unsetenv("TESSERA_COMM");
}

static void test_two_ranks__who_has_the_value_that_is_not_finite_is_named(void **state) {
    (void)state;
    expect_ranks(3, "not-finite", "0", "1", "");
    expect_ranks(3, "not-finite", "1", "0", "");
    expect_ranks(3, "not-finite", "2", "1", "");
    expect_ranks(2, "warned", "", "", "");
}

static void test_two_ranks__what_newton_schulz_makes_nan_is_named_where_it_rests(void **state) {
    (void)state;
    expect_ranks(1, "not-finite-matrix", "0", "", "");
    expect_ranks(3, "not-finite-matrix", "0", "", "");
    expect_ranks(3, "not-finite-matrix", "2", "", "");
}

static void test_two_ranks__a_stack_of_matrices_has_the_same_bits_on_any_ranks(void **state) {
    (void)state;
    char one[64];
    snprintf(one, sizeof one, "%s", expect_ranks(1, "stacks", "", "", ""));
    assert_true(strlen(one) > 8);
    for (int gloo = 0; gloo < 2; gloo++)
        for (int n = 2; n <= 8; n *= 2) {
            setenv("TESSERA_COMM", gloo ? "gloo" : "shm", 1);
            assert_string_equal(expect_ranks(n, "stacks", "", "", ""), one);
        }
    unsetenv("TESSERA_COMM");
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static tess_status note_listed(void *user, const char *path, const tess_checkpoint_info *info) {
    struct stat st;
    char file[512];
    uint64_t bytes = 0;
    for (int r = 0; r < info->ranks; r++) {
        snprintf(file, sizeof file, "%s/data-1-%05d-of-%05d.safetensors", path, r, info->ranks);
        assert_int_equal(stat(file, &st), 0);
        bytes += (uint64_t)st.st_size;
    }
    assert_int_equal(info->bytes, bytes);
    assert_int_equal(info->step, 1);
    ++*(int *)user;
    return TESS_OK;
}

/* However shards were cut, and whichever replicas divided them. */
static void test_two_ranks__a_save_that_fails_on_one_fails_on_all(void **state) {
    (void)state;
    static const char *const strategies[] = { "full", "none", "hybrid:2" };
    for (int n = 2; n <= 4; n++) {
        char dir[] = "/tmp/tessera-test-XXXXXX";
        assert_non_null(mkdtemp(dir));
        setenv("TESSERA_STRATEGY", strategies[n - 2], 1);
        expect_ranks(n, "saves", dir, "", "");
        unsetenv("TESSERA_STRATEGY");
        int n_listed = 0;
        assert_int_equal(tess_checkpoint_list(dir, note_listed, &n_listed), TESS_OK);
        assert_int_equal(n_listed, 1);
        char *at_two = NULL;
        for (int loading = 1; loading <= 4; loading++) { /* any number of ranks has the same values */
            setenv("TESSERA_STRATEGY", strategies[(loading + n) % 2], 1);
            char *digest = expect_ranks(loading, "loads", dir, "", "");
            assert_string_equal(at_two ? at_two : digest, digest);
            at_two = digest;
        }
        unsetenv("TESSERA_STRATEGY");
        expect_ranks(2, "loads", dir, "large",
                     "a checkpoint of another model: 'embed.weight' has 91 elements there and 81963");
        setenv("TESSERA_DETERMINISTIC", "1", 1);
        expect_ranks(n == 4 ? 2 : 4, "loads", dir, "", "(TESSERA_DETERMINISTIC=1)");
        unsetenv("TESSERA_DETERMINISTIC");
        nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    }
}

static void test_two_ranks__a_barrier_waits_for_the_last(void **state) {
    char file[64];
    (void)state;
    snprintf(file, sizeof file, "/tmp/tessera-test-barrier-%d", (int)getpid());
    expect_ranks(2, "barrier", file, "", "");
    assert_int_equal(remove(file), 0);
}

static void test_two_ranks__a_trace_shows_each_collective(void **state) {
    (void)state;
    assert_string_equal(expect_ranks(2, "spans", "", "", ""),
                        "all_gather embed.weight; all_gather h.0; all_gather h.1; all_gather h.1; all_gather h.2; "
                        "all_gather head; all_gather embed.weight; all_gather h.2; reduce_scatter head; all_gather "
                        "h.1; all_gather h.1; reduce_scatter h.2; all_gather h.0; reduce_scatter h.1; all_gather "
                        "embed.weight; reduce_scatter h.0; reduce_scatter embed.weight; all_reduce_norm ; ");
}

int main(int argc, char **argv) {
    if (argc > 2)
        return be_rank(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks__the_first_difference_is_named_on_all),
        cmocka_unit_test(test_two_ranks__models_and_programs_are_compared_item_by_item),
        cmocka_unit_test(test_two_ranks__who_part_ways_are_named_with_what_they_do),
        cmocka_unit_test(test_two_ranks__who_has_the_value_that_is_not_finite_is_named),
        cmocka_unit_test(test_two_ranks__what_newton_schulz_makes_nan_is_named_where_it_rests),
        cmocka_unit_test(test_two_ranks__a_stack_of_matrices_has_the_same_bits_on_any_ranks),
        cmocka_unit_test(test_two_ranks__a_barrier_waits_for_the_last),
        cmocka_unit_test(test_two_ranks__a_trace_shows_each_collective),
        cmocka_unit_test(test_two_ranks__a_save_that_fails_on_one_fails_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Attention's kernels as a GPU runs them: against attention in fp64, and to the double's bits. With an argument, many
 * shapes. */
#include "against.h"
#include "tools/models/cuda/kernels.h"

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" /* a shape without a window or a cap */

_Static_assert(sizeof(attend_five_shared_128) == 80388, "tests/gpu/kernels says how much it is");

typedef struct {
    int batch, time, heads, kv_heads, size, window;
    double cap;
} shape;
typedef struct { /* one head's: what attention in fp64 takes */
    const shape *s;
    const uint16_t *qkv, *y, *dy, *dqkv;
    const float *lse;
    double *expected; /* of dqkv */
} problem;

static uint64_t width_of(const shape *s) {
    return (uint64_t)(s->heads + 2 * s->kv_heads) * (uint64_t)s->size;
}
static uint64_t place(const shape *s, int sample, int t, int head) {
    return ((uint64_t)sample * (uint64_t)s->time + (uint64_t)t) * width_of(s) + (uint64_t)(head * s->size);
}
static uint64_t place_y(const shape *s, int sample, int t, int head) {
    return (((uint64_t)sample * (uint64_t)s->time + (uint64_t)t) * (uint64_t)s->heads + (uint64_t)head) *
           (uint64_t)s->size;
}
static double dot(const uint16_t *x, const uint16_t *y, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)ops_of_half(x[i]) * (double)ops_of_half(y[i]);
    return sum;
}
static void expect_near(double got, double expected, double by, const char *what, const shape *s) {
    if (!(fabs(got - expected) <= by))
        fail_msg("%s: %g instead of %g; batch %d, time %d, heads %d of %d, size %d, window %d, cap %g", what, got,
                 expected, s->batch, s->time, s->heads, s->kv_heads, s->size, s->window, s->cap);
}

/* ---- attention in fp64 ----------------------------------------------------------------------------- */
static int first_key(const shape *s, int t) {
    return s->window && t >= s->window ? t - s->window + 1 : 0;
}

/* What a score becomes, and its slope. */
static double capped(const shape *s, double score, double *slope) {
    double t = s->cap > 0 ? tanh(score / s->cap) : 0;
    *slope = 1 - t * t;
    return s->cap > 0 ? s->cap * t : score;
}

/* Query t of a head: p, the shares of the keys that it sees. */
static void expect_row(const problem *a, int sample, int head, int t, double *p) {
    const shape *s = a->s;
    int kv = s->heads + head / (s->heads / s->kv_heads);
    int first = first_key(s, t);
    double scale = 1 / sqrt(s->size), most = -INFINITY, sum = 0, slope;
    for (int k = first; k <= t; k++) {
        p[k] = scale * dot(a->qkv + place(s, sample, t, head), a->qkv + place(s, sample, k, kv), s->size);
        p[k] = capped(s, p[k], &slope);
        most = fmax(most, p[k]);
    }
    for (int k = first; k <= t; k++)
        sum += exp(p[k] - most);
    for (int k = first; k <= t; k++)
        p[k] = exp(p[k] - most) / sum;
    expect_near((double)a->lse[(sample * s->heads + head) * s->time + t], most + log(sum), 1e-4, "lse", s);
    for (int c = 0; c < s->size; c++) {
        double y = 0;
        for (int k = first; k <= t; k++)
            y += p[k] * (double)ops_of_half(a->qkv[place(s, sample, k, kv + s->kv_heads) + (uint64_t)c]);
        expect_near((double)ops_of_half(a->y[place_y(s, sample, t, head) + (uint64_t)c]), y, 0.02, "y", s);
    }
}

static void add_gradient(const problem *a, int sample, int head, int t, const double *p) {
    const shape *s = a->s;
    int kv = s->heads + head / (s->heads / s->kv_heads), n = s->size;
    const uint16_t *q = a->qkv + place(s, sample, t, head), *dy = a->dy + place_y(s, sample, t, head);
    double delta = dot(dy, a->y + place_y(s, sample, t, head), n), slope;
    for (int k = first_key(s, t); k <= t; k++) {
        uint64_t key = place(s, sample, k, kv), value = place(s, sample, k, kv + s->kv_heads);
        capped(s, dot(q, a->qkv + key, n) / sqrt(n), &slope);
        double ds = p[k] * (dot(dy, a->qkv + value, n) - delta) / sqrt(n) * slope;
        for (int c = 0; c < n; c++) {
            a->expected[place(s, sample, t, head) + (uint64_t)c] += ds * (double)ops_of_half(a->qkv[key + (uint64_t)c]);
            a->expected[key + (uint64_t)c] += ds * (double)ops_of_half(q[c]);
            a->expected[value + (uint64_t)c] += p[k] * (double)ops_of_half(dy[c]);
        }
    }
}

static void expect_attention(problem *a) {
    const shape *s = a->s;
    uint64_t n = (uint64_t)s->batch * (uint64_t)s->time * width_of(s);
    double *p = calloc((size_t)s->time, sizeof *p);
    a->expected = calloc(n, sizeof(double));
    assert_true(p && a->expected);
    for (int sample = 0; sample < s->batch; sample++)
        for (int head = 0; head < s->heads; head++)
            for (int t = 0; t < s->time; t++) {
                expect_row(a, sample, head, t, p);
                add_gradient(a, sample, head, t, p);
            }
    for (uint64_t i = 0; i < n; i++)
        expect_near((double)ops_of_half(a->dqkv[i]), a->expected[i], 0.02 + 0.02 * fabs(a->expected[i]), "dqkv", s);
    free(a->expected);
    free(p);
}

/* ---- cases ----------------------------------------------------------------------------------------- */
/* Backward of one launch: blocks of queries and of keys (seven products), or of keys alone (five). */
static void launch_backward(const shape *s, ops_args_attend_backward *b, int size, int five) {
    uint64_t queries = (uint64_t)(s->batch * s->heads), keys = (uint64_t)(s->batch * s->kv_heads);
    char name[64];
    snprintf(name, sizeof name, five ? OPS_KERNEL_NAME(attend_five_) "%d" : OPS_KERNEL_NAME(attend_backward_) "%d",
             size);
    LAUNCH(name, *b,
           five ? keys * attend_five_tiles(s->time)
                : queries * attend_query_tiles(s->time, size) + keys * attend_key_tiles(s->time),
           five ? 32 * ATTEND_FIVE_WARPS(size) : TILE_THREADS);
}

static void attend_in(const shape *s, int five, uint32_t group) {
    static const int sizes[] = { 16, 32, 64, 96, 128 };
    uint64_t tokens = (uint64_t)s->batch * (uint64_t)s->time, ys = tokens * (uint64_t)(s->heads * s->size);
    uint64_t rows = tokens * (uint64_t)s->heads;
    int of = 0;
    char name[64], what[96];
    uint16_t *qkv = factors(tokens * width_of(s), 1, 2), *y = array(2 * ys), *dy = factors(ys, 1, 1);
    uint16_t *dqkv = array(2 * tokens * width_of(s));
    float *lse = array(sizeof(float) * tokens * (uint64_t)s->heads);
    ops_args_attend f = { .qkv = qkv, .y = y, .lse = lse, .batch = s->batch, .time = s->time, .heads = s->heads };
    ops_args_attend_sums sums = { y, dy, lse, array(2 * sizeof(float) * rows), (uint64_t)s->batch, (uint64_t)s->time };
    ops_args_attend_backward b = { .qkv = qkv, .dy = dy, .rows = sums.rows, .dqkv = dqkv, .batch = s->batch };
    sums.heads = (uint64_t)s->heads, sums.size = (uint64_t)s->size;
    f.kv_heads = s->kv_heads, f.size = s->size, f.vector = s->size % 8 == 0;
    b.group = group;
    if (five) {
        uint64_t heads = (uint64_t)(s->batch * s->heads);
        sums.n_turns = attend_five_turns(heads, (uint64_t)s->time);
        b.sums = array(sizeof(float) * attend_five_sums(heads, (uint64_t)s->time, s->size));
        b.turns = sums.turns = array(sizeof(uint32_t) * sums.n_turns);
    }
    b.time = s->time, b.heads = s->heads, b.kv_heads = s->kv_heads, b.size = s->size;
    b.vector = f.vector, f.sight = b.sight = attend_sight_of(s->window, (float)(1 / sqrt(s->size)), (float)s->cap);
    while (sizes[of] < s->size)
        of++;
    snprintf(name, sizeof name, OPS_KERNEL_NAME(attend_) "%d", sizes[of]);
    LAUNCH(name, f, (uint64_t)(s->batch * s->heads) * attend_query_tiles(s->time, s->size), TILE_THREADS);
    LAUNCH(OPS_KERNEL_NAME(attend_sums), sums, over(rows, OPS_ROWS_PER_BLOCK), OPS_BLOCK);
    launch_backward(s, &b, sizes[of], five);
    snprintf(what, sizeof what, "%d heads of %d, time %d", s->heads, s->size, s->time);
    expect_doubles_bits(what, 1);
    if (five) {
        expect_any_schedule(what, 2, 1);
        expect_any_schedule(what, EMULATED_RESIDENT, 3);
    }
    expect_attention(&(problem){ s, qkv, y, dy, dqkv, lse, NULL });
    forget_arrays();
}

static void attend(const shape *s) {
    attend_in(s, 0, 0);
}

static int all;
#define ATTEND(...)                                                                                                    \
    do {                                                                                                               \
        static const shape shapes[] = { __VA_ARGS__ };                                                                 \
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)                                                    \
            attend(&shapes[i]);                                                                                        \
    } while (0)

/* Of each kernel a shape of two tiles and a part, with heads that share keys. */
static void test_attend__each_size_is_attention(void **state) {
    (void)state;
    ATTEND({ 1, 130, 2, 1, 16 }, { 1, 66, 2, 1, 32 }, { 1, 129, 2, 1, 64 }, { 1, 65, 2, 1, 96 }, { 1, 65, 2, 1, 128 });
}

static void test_attend__odd_sizes_and_single_tokens(void **state) {
    (void)state;
    ATTEND({ 1, 66, 2, 1, 5 }, { 2, 1, 2, 2, 20 }, { 1, 1, 1, 1, 128 });
}

/* Windows that end within a tile, at its edge and in the next one, and one longer than the sample. */
static void test_attend__windows_and_caps(void **state) {
    (void)state;
    ATTEND({ 1, 200, 2, 1, 16, 50 }, { 1, 140, 1, 1, 32, 1 }, { 1, 150, 2, 2, 64, 64, 3 }, { 2, 70, 1, 1, 96, 65, 1.5 },
           { 1, 90, 2, 1, 128, 300, 2 }, { 1, 70, 2, 1, 16, 0, 0.5 });
}

/* Blocks of several tiles of keys add to the same queries: windows that leave out the first, heads that share keys, and
 * groups of heads, the last of which is smaller. */
static void test_attend__five_products_are_attention(void **state) {
    static const shape shapes[] = {
        { 1, 300, 2, 1, 64 }, { 1, 270, 2, 1, 128 }, { 2, 261, 2, 2, 40, 70, 3 }, { 1, 140, 2, 1, 100, 33 },
        { 1, 1, 2, 2, 64 },   { 1, 130, 1, 1, 33 },  { 1, 129, 4, 2, 64, 1 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        attend_in(&shapes[i], 1, i % 2 ? 2 : 64);
}

static void test_attend__many_shapes(void **state) {
    (void)state;
    if (!all)
        return;
    ATTEND({ 1, 100, 2, 2, 32 }, { 2, 70, 2, 1, 64 }, { 1, 65, 4, 2, 96 }, { 1, 129, 2, 1, 128 }, { 1, 64, 1, 1, 128 },
           { 1, 80, 2, 2, 20 }, { 1, 70, 3, 1, 80 }, { 1, 70, 2, 2, 100 }, { 1, 193, 1, 1, 64 }, { 1, 97, 6, 2, 24 },
           { 2, 257, 2, 1, 16 }, { 1, 200, 2, 1, 96 }, { 1, 200, 2, 1, 128 });
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attend__each_size_is_attention),
        cmocka_unit_test(test_attend__odd_sizes_and_single_tokens),
        cmocka_unit_test(test_attend__windows_and_caps),
        cmocka_unit_test(test_attend__five_products_are_attention),
        cmocka_unit_test(test_attend__many_shapes),
    };
    all = argc > 1;
    (void)argv;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

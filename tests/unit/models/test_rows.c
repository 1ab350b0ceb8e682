/* SPDX-License-Identifier: BSD-3-Clause */
/* The rows of decoders have the same bits for every instruction set this machine has and for any number of threads, at
 * sizes that are no multiples of anything, and write nothing beside their results. */
#include "rows_variant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kit/formulas.h"
#include "tools/models/lanes.h"

extern const rows_functions rows_table, rows_table_plain; /* the first is the models' own, chosen at run time */
#ifdef ROWS_X86
extern const rows_functions rows_table_avx2, rows_table_avx512;
#endif

typedef struct {
    const char *name;
    const rows_functions *f;
    int is_here;
} variant;

enum { VARIANTS = 4, GUARD = 64, THREADS = 3 };

#ifdef ROWS_X86
/* What x86-64-v4 has over v3, and so the flag of that variant. */
static int has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

static int list_variants(variant list[VARIANTS]) {
    int n = 0;
    list[n++] = (variant){ "plain", &rows_table_plain, 1 };
    list[n++] = (variant){ "the models' own", &rows_table, 1 };
#ifdef ROWS_X86
    list[n++] = (variant){ "avx2", &rows_table_avx2, __builtin_cpu_supports("avx2") };
    list[n++] = (variant){ "avx512", &rows_table_avx512, has_avx512() };
#endif
    return n;
}

/* ---- data ------------------------------------------------------------------------------------------- */
static uint64_t seed;

/* In ±2; one in 64 far smaller. */
static float some_float(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    float x = (float)((int64_t)(seed >> 32) - (1ll << 31)) * 0x1p-30f;
    return seed >> 20 & 63 ? x : x * 1e-30f;
}

static void fill_floats(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] = some_float();
}

static void fill(const decoder *d, void *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (d->half == LANES_F16)
            ((uint16_t *)x)[i] = tess_f16_of_f32(some_float());
        else if (d->half)
            ((uint16_t *)x)[i] = tess_bf16_of_f32(some_float());
        else
            ((float *)x)[i] = some_float();
}

/* What a case reads, of exactly that size, so that a sanitizer sees every step beside it. */
static void *input(const decoder *d, int64_t elems) {
    void *x = malloc((size_t)elems * d->elem);
    assert_non_null(x);
    fill(d, x, elems);
    return x;
}

static float *input_floats(int64_t elems) {
    float *x = malloc((size_t)elems * sizeof *x);
    assert_non_null(x);
    fill_floats(x, elems);
    return x;
}

/* A decoder of these sizes, as far as its rows look at it. */
static ops context;
static decoder decoder_of(int half, int llama, int64_t width) {
    decoder d = { .o = &context,
                  .half = half,
                  .about_zero = llama,
                  .behind = llama,
                  .width = width,
                  .elem = half ? 2 : 4,
                  .eps = 1e-5f };
    d.dtype = half == LANES_F16 ? TESS_F16 : half ? TESS_BF16 : TESS_F32;
    return d;
}

/* ---- one case by all variants ------------------------------------------------------------------------ */
typedef void (*case_fn)(const rows_functions *, decoder *, void *user, char *out);

static char *guarded(uint64_t bytes, uint64_t like) {
    char *room = malloc(bytes + 2 * GUARD);
    assert_non_null(room);
    memset(room, 0xa5, bytes + 2 * GUARD);
    seed = like; /* what an operator adds to is the same for each */
    for (uint64_t i = 0; i + 4 <= bytes; i += 4)
        memcpy(room + GUARD + i, &(float){ some_float() }, 4);
    return room;
}

static void assert_guards(const char *room, uint64_t bytes) {
    for (int i = 0; i < GUARD; i++) {
        assert_int_equal((uint8_t)room[i], 0xa5);
        assert_int_equal((uint8_t)room[GUARD + bytes + (uint64_t)i], 0xa5);
    }
}

/* The plain variant on one thread is what all others, on three, must equal. */
static void compare(const char *what, decoder *d, case_fn fn, void *user, uint64_t bytes) {
    variant list[VARIANTS];
    char *rooms[VARIANTS] = { NULL };
    int n = list_variants(list);
    uint64_t like = seed;
    for (int i = 0; i < n; i++) {
        if (!list[i].is_here)
            continue;
        rooms[i] = guarded(bytes, like);
        context = (ops){ .t = &ops_plain, .threads = i ? THREADS : 1 };
        fn(list[i].f, d, user, rooms[i] + GUARD);
        assert_guards(rooms[i], bytes);
        if (memcmp(rooms[i], rooms[0], bytes + 2 * GUARD) != 0)
            fail_msg("%s by %s is not what the plain variant gives: width %lld, half %d, llama %d", what, list[i].name,
                     (long long)d->width, d->half, d->about_zero);
    }
    for (int i = 0; i < n; i++)
        free(rooms[i]);
}

/* Cuts a case's results out of the room they are compared in. */
static void *result(char **at, uint64_t bytes) {
    void *p = *at;
    *at += bytes;
    return p;
}

static const int64_t widths[] = { 1, 7, 16, 17, 31, 33, 64, 130 };
enum { WIDTHS = sizeof widths / sizeof *widths, ROWS_OF_CASE = 37 };

/* Calls `fn` for both dtypes and both kinds of decoder, at every width. */
static void at_all_widths(void (*fn)(decoder *)) {
    for (int kind = 0; kind < 4; kind++)
        for (int i = 0; i < WIDTHS; i++) {
            decoder d = decoder_of(kind & 1, kind >> 1, widths[i]);
            fn(&d);
        }
}

/* ---- normalisation ----------------------------------------------------------------------------------- */
typedef struct {
    void *x, *w, *b, *dy, *beside;
} norm_case;

static void norm_run(const rows_functions *f, decoder *d, void *user, char *out) {
    const norm_case *c = user;
    uint64_t row = (uint64_t)(ROWS_OF_CASE * d->width) * d->elem, line = (uint64_t)d->width * sizeof(float);
    float *dw = result(&out, line), *db = result(&out, line), *stats = result(&out, ROWS_OF_CASE * 2 * sizeof(float));
    void *y = result(&out, row), *dx = result(&out, row);
    decoder_norm_of of = { ROWS_OF_CASE, d->width, c->x, c->w, d->about_zero ? NULL : c->b, stats };
    d->one_more = d->about_zero && d->width % 3 == 0;
    f->norm(d, &of, y);
    f->norm_backward(d, &of, c->dy, d->width % 2 ? NULL : c->beside, dx, dw, d->about_zero ? NULL : db);
}

static void norm_at(decoder *d) {
    int64_t n = ROWS_OF_CASE * d->width;
    norm_case c = { input(d, n), input(d, d->width), input(d, d->width), input(d, n), input(d, n) };
    uint64_t bytes = 2 * (uint64_t)n * d->elem + 2 * (uint64_t)d->width * sizeof(float);
    compare("norm", d, norm_run, &c, bytes + ROWS_OF_CASE * 2 * sizeof(float));
    free(c.x), free(c.w), free(c.b), free(c.dy), free(c.beside);
}

static void test_rows__norms_have_the_same_bits(void **state) {
    (void)state;
    at_all_widths(norm_at);
}

/* ---- elements ------------------------------------------------------------------------------------------ */
typedef struct {
    void *gate, *up, *dy;
    int64_t elems;
} element_case;

static void elements_run(const rows_functions *f, decoder *d, void *user, char *out) {
    const element_case *c = user;
    const void *gate = d->about_zero ? c->gate : NULL;
    uint64_t bytes = (uint64_t)c->elems * d->elem;
    const ops_dropout drop = { .seed = 5, .step = 2, .first_sample = 3, .layer = 1, .rate = 0.25f };
    char *y = result(&out, bytes), *dy = result(&out, bytes), *dgate = result(&out, bytes);
    f->act(d, gate, c->up, y, c->elems);
    memcpy(dy, c->dy, bytes);
    memcpy(dgate, c->gate, bytes);
    f->act_backward(d, d->about_zero ? dgate : NULL, c->up, dy, dgate, c->elems); /* the gate's gradient in its place */
    f->add(d, c->up, y, c->elems);
    f->dropout(d, y, 1, c->elems, &drop);
}

static void test_rows__activations_sums_and_masks_have_the_same_bits(void **state) {
    static const int64_t sizes[] = { 1, 5, 15, 16, 17, 250, 4096 + 5, 3 * 4096 + 100 };
    (void)state;
    for (int kind = 0; kind < 4; kind++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            decoder d = decoder_of(kind & 1, kind >> 1, sizes[i]);
            element_case c = { input(&d, sizes[i]), input(&d, sizes[i]), input(&d, sizes[i]), sizes[i] };
            compare("elements", &d, elements_run, &c, 3 * (uint64_t)sizes[i] * d.elem);
            free(c.gate), free(c.up), free(c.dy);
        }
}

/* ---- bias, embedding ------------------------------------------------------------------------------------ */
enum { TIME = 9, SAMPLES = 4, WORDS = 11 };
typedef struct {
    void *dy, *table, *position;
    int32_t *ids;
} embed_case;

static void embed_run(const rows_functions *f, decoder *d, void *user, char *out) {
    const embed_case *c = user;
    uint64_t line = (uint64_t)d->width * sizeof(float);
    float *db = result(&out, line), *dtable = result(&out, WORDS * line), *dposition = result(&out, TIME * line);
    void *y = result(&out, (uint64_t)(d->rows * d->width) * d->elem), *one = result(&out, (uint64_t)d->width * d->elem);
    f->bias_backward(d, c->dy, db, d->rows, d->width);
    f->embedding(d, c->ids, NULL, c->table, d->about_zero ? NULL : c->position, y);
    f->embedding_one(d, c->ids[3], 2, c->table, d->about_zero ? NULL : c->position, one);
    f->embedding_backward(d, c->ids, NULL, c->dy, dtable, d->about_zero ? NULL : dposition);
}

static void embed_at(decoder *d) {
    d->time = TIME, d->rows = TIME * SAMPLES;
    int64_t n = d->rows * d->width;
    embed_case c = { input(d, n), input(d, WORDS * d->width), input(d, TIME * d->width), malloc(sizeof(int32_t) * 36) };
    for (int i = 0; i < TIME * SAMPLES; i++)
        c.ids[i] = i * 7 % WORDS;
    uint64_t floats = (uint64_t)(d->width * (1 + WORDS + TIME)) * sizeof(float);
    compare("embedding", d, embed_run, &c, floats + (uint64_t)(n + d->width) * d->elem);
    free(c.dy), free(c.table), free(c.position), free(c.ids);
}

static void test_rows__embeddings_and_biases_have_the_same_bits(void **state) {
    (void)state;
    at_all_widths(embed_at);
}

/* ---- loss ------------------------------------------------------------------------------------------------ */
typedef struct {
    float *logits;
    int32_t labels[ROWS_OF_CASE];
} loss_case;

static void loss_run(const rows_functions *f, decoder *d, void *user, char *out) {
    const loss_case *c = user;
    int64_t n = ROWS_OF_CASE * d->vocabulary;
    double *loss = result(&out, ROWS_OF_CASE * sizeof(double));
    float *logits = result(&out, (uint64_t)n * sizeof(float));
    uint16_t *halves = result(&out, (uint64_t)n * sizeof(uint16_t));
    uint8_t *correct = result(&out, ROWS_OF_CASE);
    f->loss(d, c->logits, c->labels, ROWS_OF_CASE, loss, correct);
    memcpy(logits, c->logits, (size_t)n * sizeof *logits);
    f->loss_backward(d, logits, c->labels, ROWS_OF_CASE, ROWS_OF_CASE - 2, 0.125f, d->half ? halves : NULL);
}

static void test_rows__losses_have_the_same_bits(void **state) {
    static const int64_t vocabularies[] = { 1, 2, 16, 17, 255, 256, 300, 1000 };
    (void)state;
    for (int half = 0; half <= LANES_F16; half++)
        for (size_t i = 0; i < sizeof vocabularies / sizeof *vocabularies; i++) {
            decoder d = decoder_of(half, 0, vocabularies[i]);
            d.vocabulary = vocabularies[i];
            loss_case c = { .logits = input_floats(ROWS_OF_CASE * d.vocabulary) };
            for (int r = 0; r < ROWS_OF_CASE; r++)
                c.labels[r] = (int32_t)(r * 5 % d.vocabulary);
            compare("loss", &d, loss_run, &c, ROWS_OF_CASE * (sizeof(double) + 1 + 6 * (uint64_t)d.vocabulary));
            free(c.logits);
        }
}

/* ---- attention and turning ------------------------------------------------------------------------------- */
typedef struct {
    void *qkv, *dy;
    int64_t samples;
    decoder_sight sight;
} attention_case;

static void attention_run(const rows_functions *f, decoder *d, void *user, char *out) {
    const attention_case *c = user;
    int64_t rows = c->samples * d->time;
    uint64_t wide = (uint64_t)(rows * d->qkv_width) * d->elem, narrow = (uint64_t)(rows * d->q_width) * d->elem;
    float *lse = result(&out, (uint64_t)(rows * d->heads) * sizeof(float));
    void *qkv = result(&out, wide), *dqkv = result(&out, wide), *y = result(&out, narrow);
    assert_int_equal(f->tiles_create(d), TESS_OK);
    char *scratch = aligned_alloc(64, d->attention_bytes);
    assert_non_null(scratch);
    decoder_attention_scratch rest = { .rest = scratch },
                              first = { .first = scratch, .first_bytes = d->attention_bytes };
    memcpy(qkv, c->qkv, wide);
    f->rope(d, &c->sight, qkv, c->samples, 0);
    assert_int_equal(f->attention(d, &c->sight, c->samples, NULL, qkv, y, lse, &rest), TESS_OK);
    assert_int_equal(f->attention_backward(d, &c->sight, c->samples, NULL, qkv, y, lse, c->dy, dqkv, &first), TESS_OK);
    f->rope(d, &c->sight, dqkv, c->samples, 1);
    free(scratch);
    f->tiles_destroy(d->tiles);
}

static void attention_at(int half, int llama, int64_t time, int64_t size, int windows) {
    decoder d = decoder_of(half, llama, 2 * size);
    attention_case c = { .samples = time > 100 ? 1 : 2 };
    d.time = time, d.size = size, d.heads = 2, d.kv_heads = llama ? 1 : 2;
    d.q_width = d.heads * size, d.kv_width = d.kv_heads * size, d.qkv_width = d.q_width + 2 * d.kv_width;
    c.sight.turns = llama ? input_floats(time * size) : NULL, c.sight.scale = 1 / sqrtf((float)size);
    c.sight.window = windows ? time / 3 + 1 : 0, c.sight.cap = windows ? 1.5f : 0;
    int64_t rows = c.samples * time;
    c.qkv = input(&d, rows * d.qkv_width), c.dy = input(&d, rows * d.q_width);
    compare("attention", &d, attention_run, &c,
            (uint64_t)(rows * (2 * d.qkv_width + d.q_width)) * d.elem + (uint64_t)(rows * d.heads) * sizeof(float));
    free(c.qkv), free(c.dy), free(c.sight.turns);
}

static void test_rows__attention_has_the_same_bits(void **state) {
    static const int64_t times[] = { 1, 5, 63, 64, 65, 530 }, sizes[] = { 2, 6, 16, 18, 34 };
    (void)state;
    for (int kind = 0; kind < 12; kind++)
        for (size_t t = 0; t < sizeof times / sizeof *times; t++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
                if (times[t] < 100 || sizes[s] == 18) /* two spans of keys: once is enough */
                    attention_at(kind % 3, kind / 3 & 1, times[t], sizes[s], kind / 6);
}

static void rope_one_run(const rows_functions *f, decoder *d, void *user, char *out) {
    memcpy(out, user, (size_t)d->qkv_width * d->elem);
    f->rope_one(d, &d->sights[DECODER_FAR], out, 7);
}

static void test_rows__one_row_is_turned_with_the_same_bits(void **state) {
    (void)state;
    for (int half = 0; half <= LANES_F16; half++)
        for (int64_t size = 2; size < 80; size += 2) {
            decoder d = decoder_of(half, 1, 3 * size);
            d.time = 8, d.size = size, d.heads = 3, d.kv_heads = 1, d.q_width = 3 * size, d.kv_width = size;
            d.qkv_width = 5 * size;
            d.sights[DECODER_FAR].turns = input_floats(8 * size);
            void *qkv = input(&d, d.qkv_width);
            compare("one row's turn", &d, rope_one_run, qkv, (uint64_t)d.qkv_width * d.elem);
            free(qkv), free(d.sights[DECODER_FAR].turns);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows__norms_have_the_same_bits),
        cmocka_unit_test(test_rows__activations_sums_and_masks_have_the_same_bits),
        cmocka_unit_test(test_rows__embeddings_and_biases_have_the_same_bits),
        cmocka_unit_test(test_rows__losses_have_the_same_bits),
        cmocka_unit_test(test_rows__attention_has_the_same_bits),
        cmocka_unit_test(test_rows__one_row_is_turned_with_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

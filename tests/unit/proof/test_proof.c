/* SPDX-License-Identifier: BSD-3-Clause */
/* The ledger of digests of a program: what is in its lines, and that no line can be changed unseen. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TESSERA_VERSION "test"
#include "core/proof/proof.c"
#include "tests/support/toy.h"

enum { STEPS = 4, MOST = 16, ROOT = 24 };

typedef struct {
    char path[64];
    int n;
    char root[MOST][ROOT], digests[MOST][1024]; /* of the lines of steps */
    uint64_t step[MOST];
    int again[MOST], n_begin, n_end;
    const char *says; /* in its first line; null: anything */
} ledger;

static void name_file(ledger *l) {
    *l = (ledger){ .n = 0 };
    snprintf(l->path, sizeof l->path, "/tmp/tessera-test-XXXXXX");
    int fd = mkstemp(l->path);
    assert_true(fd >= 0);
    close(fd);
}

static tess_status take(void *user, const char *line, uint64_t number) {
    ledger *l = user;
    (void)number;
    l->n_begin += strncmp(line, "{\"type\":\"begin\"", 15) == 0;
    if (l->says && strncmp(line, "{\"type\":\"begin\"", 15) == 0)
        assert_non_null(strstr(line, l->says));
    l->n_end += strncmp(line, "{\"type\":\"end\"", 13) == 0;
    if (strncmp(line, "{\"type\":\"step\"", 14) != 0)
        return TESS_OK;
    l->step[l->n] = tess__chain_number(line, "step");
    l->again[l->n] = strstr(line, "\"again\":true") != NULL;
    snprintf(l->digests[l->n], sizeof l->digests[0], "%s", strstr(line, "\"digests\""));
    assert_int_equal(tess__chain_member(line, "root", l->root[l->n++], ROOT), 16);
    return TESS_OK;
}

static tess_status read_file(ledger *l, tess__chain_read_info *info) {
    int fd = open(l->path, O_RDONLY);
    l->n = l->n_begin = l->n_end = 0;
    tess_status s = tess__chain_read(fd, l->path, take, l, info);
    close(fd);
    return s;
}

static tess *open_toy(toy *m, const ledger *l, const char *optimizer, const char *words, int flags) {
    tess *t = NULL;
    const tess_setting settings[] = { { "ledger", l ? l->path : "" } };
    tess_options o = {
        .struct_size = sizeof o, .optimizer = optimizer, .own_states = 2, .input_bytes = TOY_INPUT_BYTES
    };
    o.settings = settings;
    o.n_settings = l != NULL;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, m, flags), TESS_OK);
    assert_int_equal(tess_proof_words(t, words), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    return t;
}

typedef struct {
    int32_t param;
    uint32_t bit;
} flip;

static tess_status flip_bit(void *user, const tess_range *r, void *data) {
    const flip *f = user;
    uint32_t *words = data;
    if (r->param == f->param)
        words[r->elems - 1] ^= 1u << f->bit;
    return TESS_OK;
}

static void train(tess *t, toy *m, int from, int to, const flip *before_third) {
    const tess_optimizer_options o = { .struct_size = sizeof o, .lr = 0.01f };
    double loss;
    for (int k = from; k < to; k++) {
        if (k == 2 && before_third)
            assert_int_equal(tess_each_owned(t, TESS_OF_PARAM | TESS_OF_WRITE, flip_bit, (void *)before_third),
                             TESS_OK);
        assert_int_equal(toy_pass(t, m, TESS_PASS_TRAIN, k, &loss), TESS_OK);
        assert_int_equal(tess_step(t, &o), TESS_OK);
    }
}

static void run(ledger *l, const flip *f) {
    toy m;
    tess__chain_read_info info;
    name_file(l);
    tess *t = open_toy(&m, l, "adamw", "seed=1", 0);
    train(t, &m, 0, STEPS, f);
    assert_int_equal(tess_close(t), TESS_OK);
    assert_int_equal(read_file(l, &info), TESS_OK);
    assert_int_equal(l->n, STEPS);
    assert_true(l->n_begin == 1 && l->n_end == 1 && !info.cut);
    remove(l->path);
}

static void test_ledger__the_same_run_has_the_same_roots_and_a_flipped_bit_shows_in_its_step(void **state) {
    (void)state;
    ledger a, b, flipped;
    run(&a, NULL);
    run(&b, NULL);
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(a.step[i], i + 1);
        assert_string_equal(a.root[i], b.root[i]);
        assert_true(i == 0 || strcmp(a.root[i], a.root[i - 1]) != 0);
    }
    for (int32_t param = 0; param < 5; param++) { /* the last of them frozen */
        run(&flipped, &(flip){ param, 3 });
        for (int i = 0; i < STEPS; i++)
            assert_int_equal(strcmp(flipped.root[i], a.root[i]) == 0, i < 2);
    }
}

static tess_status add_tenth(void *user, const tess_range *r, void *values, const float *grad, float *const *state) {
    float *param = values;
    (void)user;
    for (uint64_t i = 0; i < r->elems; i++) {
        param[i] -= 0.1f * grad[i];
        state[0][i] += 1;
    }
    return TESS_OK;
}

static void test_ledger__has_the_step_of_a_programs_own_optimizer(void **state) {
    (void)state;
    ledger l;
    toy m;
    double loss;
    tess__chain_read_info info;
    name_file(&l);
    tess *t = open_toy(&m, &l, "own", "", TOY_STORED);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(toy_pass(t, &m, TESS_PASS_TRAIN, 0, &loss), TESS_OK);
        assert_int_equal(tess_update(t, add_tenth, NULL), TESS_OK);
    }
    assert_int_equal(tess_close(t), TESS_OK);
    assert_int_equal(read_file(&l, &info), TESS_OK);
    assert_int_equal(l.n, 2);
    assert_string_not_equal(l.digests[0], l.digests[1]);
    assert_null(strstr(l.digests[0], "\"0000000000000000000000000000000000000000000000000000000000000000\""));
    remove(l.path);
}

static void test_ledger__a_run_that_resumes_goes_on_with_it_and_says_so(void **state) {
    (void)state;
    ledger l;
    toy m;
    tess__chain_read_info info;
    name_file(&l);
    for (int life = 0; life < 2; life++) { /* the second begins anew, and takes away what a death has cut */
        tess *t = open_toy(&m, &l, "adamw", life ? "seed=1 steps=9" : "seed=1 steps=4", 0);
        train(t, &m, 0, life ? STEPS : 2, NULL);
        tess_close(t);
        FILE *f = fopen(l.path, "a");
        fputs(life ? "" : "{\"type\":\"st", f);
        fclose(f);
        assert_int_equal(read_file(&l, &info), TESS_OK);
        assert_int_equal(info.cut, !life);
    }
    assert_int_equal(l.n, 2 + STEPS);
    assert_int_equal(l.n_begin, 2);
    for (int i = 0; i < l.n; i++)
        assert_int_equal(l.again[i], i == 2 || i == 3);
    assert_string_equal(l.root[0], l.root[2]);
    assert_string_equal(l.root[1], l.root[3]);
    remove(l.path);
}

static void test_ledger__of_another_run_is_refused(void **state) {
    (void)state;
    ledger l;
    toy m;
    double loss;
    name_file(&l);
    tess *t = open_toy(&m, &l, "adamw", "seed=1 lr=2", 0);
    train(t, &m, 0, 1, NULL);
    tess_close(t);
    t = open_toy(&m, &l, "adamw", "seed=1 lr=3", 0);
    assert_int_equal(toy_pass(t, &m, TESS_PASS_TRAIN, 0, &loss), TESS_E_DATA);
    assert_non_null(
        strstr(tess_last_error(), "line 1: it is the ledger of another run, with lr=2, and this one has lr=3"));
    tess_close(t);
    t = open_toy(&m, &l, "adamw", "seed=1 lr=2", TOY_STORED);
    assert_int_equal(toy_pass(t, &m, TESS_PASS_TRAIN, 0, &loss), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "another model"));
    tess_close(t);
    remove(l.path);
}

/* Every byte of the file is changed in turn, and every line is taken out. */
static void test_chain__names_the_first_line_that_was_changed(void **state) {
    (void)state;
    enum { ROOM = 1 << 16 };
    ledger l;
    toy m;
    tess__chain_read_info info;
    char *text = malloc(ROOM), want[64];
    name_file(&l);
    tess *t = open_toy(&m, &l, "adamw", "", 0);
    train(t, &m, 0, 1, NULL);
    tess_close(t);
    int fd = open(l.path, O_RDWR);
    ssize_t bytes = read(fd, text, ROOM);
    uint64_t line = 1;
    for (ssize_t i = 0; i < bytes; i++) {
        char other = text[i] == 'x' ? 'y' : 'x';
        assert_int_equal(pwrite(fd, &other, 1, i), 1);
        tess_status s = tess__chain_read(fd, l.path, take, &l, &info);
        snprintf(want, sizeof want, "line %d ", (int)line);
        int at_end = i == bytes - 1; /* without its line feed the last line is cut */
        assert_true(at_end ? !s && info.cut : s == TESS_E_DATA && strstr(tess_last_error(), want) != NULL);
        assert_int_equal(pwrite(fd, &text[i], 1, i), 1);
        line += text[i] == '\n';
        l.n = 0;
    }
    assert_int_equal(line, 4); /* begin, step, end */
    close(fd);
    remove(l.path);
    free(text);
}

/* Strategies keep gradients in several dtypes: each is digested as fp32, however a thread's part is cut into pieces. */
static void test_ledger__a_narrow_gradient_is_digested_as_fp32(void **state) {
    (void)state;
    enum { N = 5000, FIRST = 77 };
    static uint16_t narrow[N];
    static float wide[N];
    static const struct {
        uint64_t from, n;
    } parts[] = { { 0, N }, { 0, 2048 }, { 3, 2049 }, { 2047, 2 }, { 100, 4096 }, { N - 1, 1 }, { 9, 0 } };
    for (uint32_t i = 0; i < N; i++) {
        narrow[i] = (uint16_t)(i * 2654435761u >> 9);
        uint32_t bits = (uint32_t)narrow[i] << 16;
        memcpy(&wide[i], &bits, sizeof bits);
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint64_t got = 1, from = parts[i].from, n = parts[i].n;
        uint64_t want = 1 + tess__digest(wide + from, 4, FIRST + from, n, 5);
        values v = { .at = (char *)narrow, .dtype = TESS_BF16, .wide = 1, .first = FIRST, .seed = 5, .sum = &got };
        digest_part(&v, from, n);
        assert_int_equal(got, want);
        got = 1; /* parameters and states are digested as they are */
        v.wide = 0;
        want = 1 + tess__digest(narrow + from, 2, FIRST + from, n, 5);
        digest_part(&v, from, n);
        assert_int_equal(got, want);
        got = 1;
        v = (values){ .at = (char *)wide, .dtype = TESS_F32, .wide = 1, .first = FIRST, .seed = 5, .sum = &got };
        want = 1 + tess__digest(wide + from, 4, FIRST + from, n, 5);
        digest_part(&v, from, n);
        assert_int_equal(got, want);
    }
}

static tess_status note_saved(void *user, const char *line, uint64_t number) {
    char *path = user;
    (void)number;
    if (strncmp(line, "{\"type\":\"checkpoint\"", 20) == 0 && tess__chain_number(line, "step") == 2)
        assert_true(tess__chain_member(line, "path", path, 128) > 0);
    return TESS_OK;
}

/* With its whole path, so that it is found from elsewhere. A file that cannot grow ends the ledger and not the run. */
static void test_ledger__names_checkpoints(void **state) {
    (void)state;
    char path[128] = "", folder[] = "/tmp/tessera-test-XXXXXX", command[64];
    ledger l;
    toy m;
    tess__chain_read_info info;
    name_file(&l);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    const tess_checkpoint_options to = { .struct_size = sizeof to, .dir = "." };
    tess *t = open_toy(&m, &l, "adamw", "", 0);
    train(t, &m, 0, 2, NULL);
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    assert_int_equal(tess_checkpoint_wait(t, NULL), TESS_OK);
    train(t, &m, 2, 1, NULL);
    assert_int_equal(tess_close(t), TESS_OK);
    int fd = open(l.path, O_RDONLY);
    assert_int_equal(tess__chain_read(fd, l.path, note_saved, path, &info), TESS_OK);
    close(fd);
    assert_true(strncmp(path, folder, strlen(folder)) == 0 && strcmp(path + strlen(folder), "/step-000002") == 0);
    tess__proof_saved(NULL, path, 2); /* a run without a ledger */
    assert_int_equal(chdir("/"), 0);
    remove(l.path);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* By which the digests of a step are read. */
static void test_ledger__begins_with_the_kinds_and_units_of_its_digests(void **state) {
    (void)state;
    ledger l;
    toy m;
    tess__chain_read_info info;
    name_file(&l);
    tess *t = open_toy(&m, &l, "adamw", "", 0);
    train(t, &m, 0, 1, NULL);
    assert_int_equal(tess_close(t), TESS_OK);
    l.says = "\"kinds\":[\"parameter\",\"gradient\",\"exp_avg\",\"exp_avg_sq\"],\"units\":[\"embed\",\"h.0\",\"h.1\","
             "\"h.2\"";
    assert_int_equal(read_file(&l, &info), TESS_OK);
    assert_int_equal(l.n_begin, 1);
    remove(l.path);
}

static void open_refused(const char *path, const char *why) {
    const tess_setting settings[] = { { "ledger", path } };
    tess_options o = { .struct_size = sizeof o, .input_bytes = TOY_INPUT_BYTES, .settings = settings, .n_settings = 1 };
    double loss;
    char want[256];
    tess *t = NULL;
    toy m;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, 0), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    assert_int_equal(toy_pass(t, &m, TESS_PASS_TRAIN, 0, &loss), TESS_E_DATA); /* a run that only loads makes none */
    snprintf(want, sizeof want, "TESSERA_LEDGER=%s: %s", path, why);
    assert_string_equal(tess_last_error(), want);
    assert_int_equal(tess_close(t), TESS_E_DATA);
}

static void test_ledger__a_file_that_cannot_be_one_is_refused(void **state) {
    (void)state;
    ledger l;
    toy m;
    name_file(&l);
    tess *t = open_toy(&m, &l, "adamw", "", 0);
    train(t, &m, 0, 1, NULL);
    open_refused(l.path, "another run writes it");
    assert_int_equal(tess_close(t), TESS_OK);
    remove(l.path);
    open_refused("/dev/null", "it is no file that can be read again");
    open_refused("/no-such-folder/ledger", "No such file or directory");
}

static void test_ledger__without_the_option_nothing_is_there(void **state) {
    (void)state;
    ledger l;
    toy m, n;
    name_file(&l);
    tess *with = open_toy(&m, &l, "adamw", "", 0), *without = open_toy(&n, NULL, "adamw", "", 0);
    train(with, &m, 0, 1, NULL);
    train(without, &n, 0, 1, NULL);
    assert_non_null(with->proof);
    assert_null(without->proof);
    assert_int_equal(without->memory.booked[TESS__DIGESTS][0], 0);
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        assert_int_equal(with->plan.programs[i].n_instrs, without->plan.programs[i].n_instrs);
    tess_close(with);
    tess_close(without);
    remove(l.path);
}

/* Every kind of buffer that rests, with a bit flipped in its first, middle and last word. */
static void test_at_rest__a_bit_that_flips_between_steps_ends_the_run(void **state) {
    (void)state;
    static const char *const names[] = { "parameters", "low-precision copies", "optimizer states" };
    static const int roles[] = { TESS__MASTER, TESS__LOW_COPY, TESS__STATE0, TESS__STATE1 };
    int n_found = 0;
    for (int role = 0; role < 4; role++)
        for (int32_t g = 0; g < 4; g++)
            for (uint64_t place = 0; place < 3; place++) {
                const tess_setting settings[] = { { "at-rest-digests", "1" },
                                                  { "precision", "bf16" },
                                                  { "low-copy", "1" } };
                const tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
                tess_options o = { .struct_size = sizeof o, .input_bytes = TOY_INPUT_BYTES };
                toy m;
                tess *t = NULL;
                double loss;
                o.settings = settings;
                o.n_settings = 3;
                assert_int_equal(tess_open(&o, &t), TESS_OK);
                assert_int_equal(toy_declare(t, &m, 0), TESS_OK);
                assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
                train(t, &m, 0, 2, NULL);
                assert_true(g < t->plan.layout.n_groups);
                uint64_t words = t->memory.booked_bytes[roles[role]][g] ? t->plan.layout.groups[g].used_elems / 2 : 0;
                if (words) { /* 2 bytes of an element of the copy, 4 of all else: half the words are in both */
                    uint32_t *at = tess__address(&t->memory, roles[role], g);
                    at[place == 2 ? words - 1 : place * words / 2] ^= 1u << 30;
                    tess_status s = toy_pass(t, &m, TESS_PASS_TRAIN, 2, &loss);
                    s = s ? s : tess_step(t, &step);
                    assert_int_equal(s, TESS_E_MISMATCH);
                    assert_non_null(strstr(tess_last_error(), names[role < 2 ? role : 2]));
                    assert_non_null(strstr(tess_last_error(), "at rest are not what step 2 left"));
                    n_found++;
                }
                tess_close(t);
            }
    assert_true(n_found > 20);
}

static void test_at_rest__what_the_program_writes_is_no_alarm(void **state) {
    (void)state;
    const tess_setting settings[] = { { "at-rest-digests", "1" } };
    tess_options o = { .struct_size = sizeof o, .input_bytes = TOY_INPUT_BYTES };
    toy m;
    tess *t = NULL;
    double loss;
    int same;
    o.settings = settings;
    o.n_settings = 1;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, 0), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    for (int k = 0; k < 3; k++) {
        train(t, &m, 0, 2, NULL);
        assert_int_equal(toy_pass(t, &m, TESS_PASS_EVAL, k, &loss), TESS_OK);
        assert_int_equal(tess_each_owned(t, TESS_OF_PARAM | TESS_OF_WRITE, flip_bit, &(flip){ k, 1 }), TESS_OK);
        if (k) /* this refreshes copies, as a pass does */
            assert_int_equal(toy_summoned(t, &m, &same), TESS_OK);
        assert_int_equal(tess_each_owned(t, TESS_OF_MOMENT1 | TESS_OF_WRITE, flip_bit, &(flip){ k, 1 }), TESS_OK);
        if (k == 2)
            assert_int_equal(toy_summoned(t, &m, &same), TESS_OK);
    }
    train(t, &m, 0, 2, NULL);
    assert_int_equal(tess_close(t), TESS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger__the_same_run_has_the_same_roots_and_a_flipped_bit_shows_in_its_step),
        cmocka_unit_test(test_ledger__has_the_step_of_a_programs_own_optimizer),
        cmocka_unit_test(test_ledger__a_run_that_resumes_goes_on_with_it_and_says_so),
        cmocka_unit_test(test_ledger__of_another_run_is_refused),
        cmocka_unit_test(test_chain__names_the_first_line_that_was_changed),
        cmocka_unit_test(test_ledger__without_the_option_nothing_is_there),
        cmocka_unit_test(test_ledger__a_narrow_gradient_is_digested_as_fp32),
        cmocka_unit_test(test_ledger__names_checkpoints),
        cmocka_unit_test(test_ledger__begins_with_the_kinds_and_units_of_its_digests),
        cmocka_unit_test(test_ledger__a_file_that_cannot_be_one_is_refused),
        cmocka_unit_test(test_at_rest__a_bit_that_flips_between_steps_ends_the_run),
        cmocka_unit_test(test_at_rest__what_the_program_writes_is_no_alarm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

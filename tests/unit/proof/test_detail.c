/* SPDX-License-Identifier: BSD-3-Clause */
/* The digests in detail of one step (TESSERA_DETAIL) equal those that are kept: a digest of each rank's file, and one
 * file whole. Each way to train has other tensors on their way. This program runs itself as the ranks. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <inttypes.h>
#include <unistd.h>

#include "core/base/hash.h"
#include "tests/support/ranks.h"
#include "tests/support/toy.h"
#include "tests/unit/kept.h"
#include "tests/unit/scratch_dir.h"

enum { MOST_SETTINGS = 5 };
typedef struct {
    int ranks, flags; /* TOY_BLOCKS: by tess_run, whose last pass steps */
    const char *set[MOST_SETTINGS];
} way;

/* ---- as a rank ---- */

static int be_rank(int flags) {
    const char *accum = getenv("TESSERA_ACCUM");
    const tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f, .grad_scale = 1, .clip_norm = 1 };
    tess_options o = { .struct_size = sizeof o, .input_bytes = TOY_INPUT_BYTES };
    int passes = accum ? atoi(accum) : 1;
    tess *t = NULL;
    toy m;
    double loss;
    tess_status s = tess_open(&o, &t);
    s = s ? s : toy_declare(t, &m, flags);
    s = s ? s : tess_shard(t, toy_fill, NULL);
    for (int i = 0; i < 3 * passes && !s; i++) {
        int last = i % passes == passes - 1, g = i * tess_ranks(t) + tess_rank(t), fused = passes == 1;
        s = flags & TOY_BLOCKS ? toy_run(t, TESS_PASS_TRAIN, g, fused ? &step : NULL, &loss)
                               : toy_pass(t, &m, TESS_PASS_TRAIN, g, &loss);
        if (!s && last && (!(flags & TOY_BLOCKS) || !fused))
            s = tess_step(t, &step);
    }
    if (s)
        fprintf(stderr, "%s\n", tess_last_error());
    return tess_close(t) || s;
}

/* ---- as the test ---- */

static kept k;

static void print_file(const way *w, const char *dir, const char *name, int whole) {
    char path[400], text[KEPT_LINE];
    uint64_t h = TESS__HASH_START, lines = 0;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    for (int c; (c = fgetc(f)) != EOF; lines += c == '\n')
        h = tess__hash_u64(h, (uint64_t)c);
    rewind(f);
    while (whole && fgets(text, sizeof text, f)) {
        text[strcspn(text, "\n")] = 0;
        kept_line(&k, text);
    }
    fclose(f);
    assert_int_equal(unlink(path), 0);
    int at = snprintf(text, sizeof text, "%d ranks, %d:", w->ranks, w->flags);
    for (int i = 0; i < MOST_SETTINGS && w->set[i]; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, " %s", w->set[i]);
    snprintf(text + at, sizeof text - (size_t)at, ": %s has %" PRIu64 " lines, %016" PRIx64, name, lines, h);
    kept_line(&k, text);
}

/* VARIABLE=VALUE, for the ranks of the next run. */
static void give_settings(const way *w, int is_given) {
    for (int i = 0; i < MOST_SETTINGS && w->set[i]; i++) {
        char name[64];
        snprintf(name, sizeof name, "TESSERA_%.*s", (int)strcspn(w->set[i], "="), w->set[i]);
        if (is_given)
            setenv(name, strchr(w->set[i], '=') + 1, 1);
        else
            unsetenv(name);
    }
}

static void print_way(const way *w, const char *dir, int whole) {
    static char output[4096];
    char flags[8], *argv[] = { "/proc/self/exe", "rank", flags, NULL };
    struct dirent **files;
    snprintf(flags, sizeof flags, "%d", w->flags);
    give_settings(w, 1);
    int code = ranks_run(w->ranks, argv, 60, output, sizeof output);
    give_settings(w, 0);
    if (code)
        fail_msg("%s: exit code %d: %s", w->set[0], code, output);
    int n = scandir(dir, &files, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (files[i]->d_name[0] != '.')
            print_file(w, dir, files[i]->d_name, whole);
        free(files[i]);
    }
    free(files);
}

static void test_detail__equals_what_is_kept(void **state) {
    (void)state;
    static const way ways[] = {
        { 1, 0, { "ACCUM=2" } },
        { 1, TOY_BLOCKS, { "OPTIMIZER=sgd" } },
        { 2, TOY_BLOCKS, { "ACTIVATIONS=recompute", "ACCUM=2", "DETAIL_VALUES=h.0.weight" } },
        { 2, 0, { "PRECISION=bf16:grad=bf16", "LOW_COPY=1" } },
        { 4, TOY_BLOCKS, { "STRATEGY=hybrid:2", "ACCUM=2", "SYNC=end" } },
        { 2, TOY_BLOCKS, { "PRECISION=wire8" } },
        { 4, 0, { "PRECISION=wire8", "STRATEGY=hybrid:2" } },
        { 2, TOY_BLOCKS, { "OFFLOAD=cpu", "ACCUM=2" } },
        { 2, TOY_BLOCKS, { "OFFLOAD=disk:/tmp,what=all" } },
        { 2, 0, { "OPTIMIZER=muon:adamw=none" } },
        { 3, TOY_BLOCKS, { "OPTIMIZER=adamw8bit:least=0", "STRATEGY=grad_op" } },
    };
    scratch_dir dir;
    assert_int_equal(scratch_dir_make(&dir), 0);
    setenv("TESSERA_DETAIL", dir.path, 1);
    setenv("TESSERA_DETAIL_STEP", "2", 1);
    k = kept_open("proof/kept_detail.txt");
    for (int i = 0; i < (int)(sizeof ways / sizeof *ways); i++)
        print_way(&ways[i], dir.path, i == 1);
    kept_close(&k);
    scratch_dir_remove(&dir);
}

int main(int argc, char **argv) {
    if (argc > 2)
        return be_rank(atoi(argv[2]));
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_detail__equals_what_is_kept) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

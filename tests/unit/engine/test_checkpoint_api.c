/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints by the library's interface, at one rank: a run that goes on from one ends in the bits of a run that never
 * stopped, and the program's own bytes come back. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/checkpoint/data_writer.h"
#include "core/checkpoint/saved.h"
#include "core/checkpoint/store.h"
#include "tests/support/toy.h"

typedef struct {
    float *values;
    uint64_t n;
} copy;

static tess_status append(void *user, const tess_range *r, void *data) {
    copy *c = user;
    c->values = realloc(c->values, (c->n + r->elems) * sizeof(float));
    memcpy(c->values + c->n, data, r->elems * sizeof(float));
    c->n += r->elems;
    return TESS_OK;
}

static tess *open_toy(toy *m, uint32_t checkpoint) {
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .checkpoint = checkpoint };
    tess *t = NULL;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, m, 0), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    return t;
}

static void train(tess *t, toy *m, int first, int steps) {
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    double loss;
    for (int i = first; i < first + steps; i++) {
        assert_int_equal(toy_pass(t, m, TESS_PASS_TRAIN, i, &loss), TESS_OK);
        assert_int_equal(tess_step(t, &step), TESS_OK);
    }
}

static copy parameters_of(tess *t) {
    copy c = { 0 };
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM, append, &c), TESS_OK);
    assert_true(c.n > 0);
    return c;
}

static tess_status count(void *user, const char *path, const tess_checkpoint_info *info) {
    int *n = user;
    ++*n;
    assert_non_null(strstr(path, "step-000003"));
    assert_int_equal(info->step, 3);
    assert_int_equal(info->ranks, 1);
    return TESS_OK;
}

static void goes_on(uint32_t checkpoint) {
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX", command[128], common[5] = "", own[4] = "";
    tess_checkpoint_info info = { .struct_size = sizeof info };
    tess_checkpoint_options to = { .struct_size = sizeof to, .keep = 1, .common = "same", .own = "own" };
    toy m;
    assert_non_null(mkdtemp(folder));
    to.dir = folder, to.common_bytes = 5, to.own_bytes = 4;
    tess *t = open_toy(&m, checkpoint);
    train(t, &m, 0, 3);
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    train(t, &m, 3, 3);
    assert_int_equal(tess_checkpoint_wait(t, &info), TESS_OK);
    assert_int_equal(info.step, 3);
    copy whole = parameters_of(t);
    assert_int_equal(tess_close(t), TESS_OK);

    int n = 0;
    assert_int_equal(tess_checkpoint_list(folder, count, &n), TESS_OK);
    assert_int_equal(n, 1);

    tess_checkpoint_load_options from = { .struct_size = sizeof from, .path = folder, .common = common, .own = own };
    from.common_bytes = sizeof common, from.own_bytes = sizeof own;
    t = open_toy(&m, 0);
    assert_int_equal(tess_checkpoint_load(t, &from, &info), TESS_OK);
    assert_int_equal(info.step, 3);
    assert_string_equal(common, "same");
    assert_string_equal(own, "own");
    train(t, &m, 3, 3);
    copy resumed = parameters_of(t);
    assert_int_equal(tess_close(t), TESS_OK);
    assert_int_equal(resumed.n, whole.n);
    assert_memory_equal(resumed.values, whole.values, whole.n * sizeof(float));
    free(whole.values);
    free(resumed.values);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_checkpoint_api__run_goes_on_to_the_same_bits(void **state) {
    (void)state;
    goes_on(0);
    goes_on(1);
}

/* ---- frozen parameters ------------------------------------------------------------------------------- */
enum { FROZEN = 4 << 20, TRAINED = 4096 };

static tess *open_promising(uint32_t flags, const char *offload, tess_scope *scope) {
    static const int64_t frozen[] = { FROZEN }, trained[] = { TRAINED };
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .checkpoint = 1 };
    tess_param_options p = { .struct_size = sizeof p, .dtype = TESS_F32, .ndim = 1 };
    tess *t = NULL;
    o.flags = flags;
    o.offload = offload;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(tess_scope_add(t, "a", 0, scope), TESS_OK);
    p.name = "a.frozen", p.shape = frozen, p.flags = TESS_FROZEN;
    assert_int_equal(tess_param_add(t, &p, NULL), TESS_OK);
    p.name = "a.trained", p.shape = trained, p.flags = 0;
    assert_int_equal(tess_param_add(t, &p, NULL), TESS_OK);
    return t;
}

static tess *open_frozen(const char *offload, tess_scope *scope) {
    return open_promising(0, offload, scope);
}

static tess_status set_all(void *user, const tess_range *r, void *data) {
    for (uint64_t i = 0; i < r->elems; i++)
        ((float *)data)[i] = *(float *)user;
    return TESS_OK;
}

static tess_status all_are(void *user, const tess_range *r, void *data) {
    for (uint64_t i = 0; i < r->elems; i++)
        if (((float *)data)[i] != *(float *)user)
            return tess_fail(TESS_E_DATA, "element %llu of %s is %g", (unsigned long long)i, r->name,
                             (double)((float *)data)[i]);
    return TESS_OK;
}

/* They are saved from where they lie: no memory is planned for a copy, and a write of the program's waits. */
static void test_checkpoint_api__frozen_parameters_are_not_copied(void **state) {
    (void)state;
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX", command[128];
    tess_checkpoint_options to = { .struct_size = sizeof to };
    tess_checkpoint_load_options from = { .struct_size = sizeof from };
    tess_stats stats = { .struct_size = sizeof stats };
    float saved = 1, later = 2;
    tess_scope scope;
    assert_non_null(mkdtemp(folder));
    to.dir = from.path = folder;
    tess *t = open_frozen("none", &scope);
    assert_int_equal(tess_shard(t, set_all, &saved), TESS_OK);
    assert_int_equal(tess_stats_get(t, &stats), TESS_OK);
    assert_true(stats.planned_peak_bytes[TESS_DOMAIN_HOST] < 64 * TRAINED);
    assert_int_equal(stats.peak_bytes[TESS_DOMAIN_HOST], stats.planned_peak_bytes[TESS_DOMAIN_HOST]);
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM | TESS_OF_WRITE, set_all, &later), TESS_OK);
    assert_int_equal(tess_checkpoint_wait(t, NULL), TESS_OK);
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM, all_are, &later), TESS_OK);
    assert_int_equal(tess_checkpoint_load(t, &from, NULL), TESS_OK);
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM, all_are, &saved), TESS_OK);
    assert_int_equal(tess_close(t), TESS_OK);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* ---- the copy ------------------------------------------------------------------------------------------ */
typedef struct {
    float was;
    uint64_t n; /* elements that are not that any more */
} changes;

static tess_status count_changes(void *user, const tess_range *r, void *data) {
    changes *c = user;
    for (uint64_t i = 0; i < r->elems; i++)
        c->n += ((float *)data)[i] != c->was;
    return TESS_OK;
}

static uint64_t changed(tess *t, uint32_t of, float was) {
    changes c = { .was = was };
    assert_int_equal(tess_each_owned(t, of, count_changes, &c), TESS_OK);
    return c.n;
}

static void step_on(tess *t, tess_scope scope) {
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    float *params[2], *grads[2];
    assert_int_equal(tess_pass(t, TESS_PASS_TRAIN), TESS_OK);
    assert_int_equal(tess_forward_begin(t, scope, params, 2), TESS_OK);
    assert_int_equal(tess_forward_end(t, scope), TESS_OK);
    assert_int_equal(tess_backward_begin(t, scope, params, grads, 2), TESS_OK);
    for (int i = 0; i < TRAINED; i++)
        grads[1][i] = 1;
    assert_int_equal(tess_backward_end(t, scope), TESS_OK);
    assert_int_equal(tess_step(t, &step), TESS_OK);
}

/* The memory for it is what a step changes, the program's own bytes, and what its beginning on a block may skip. */
static void copies_what_a_step_changes(const char *offload) {
    enum { BESIDES = 2 * TESS_CHECKPOINT_BYTES + 4096 };
    tess_stats stats = { .struct_size = sizeof stats };
    tess_scope scope;
    float first = 1;
    tess *t = open_frozen(offload, &scope);
    assert_int_equal(tess_shard(t, set_all, &first), TESS_OK);
    assert_int_equal(tess_stats_get(t, &stats), TESS_OK);
    step_on(t, scope);
    uint64_t elems = changed(t, TESS_OF_PARAM, first) + changed(t, TESS_OF_MOMENT1, 0) + changed(t, TESS_OF_MOMENT2, 0);
    assert_int_equal(elems, 3 * TRAINED);
    assert_int_equal(stats.category_peak_bytes[TESS_DOMAIN_HOST][TESS_CAT_SNAPSHOT], 4 * elems + BESIDES);
    assert_int_equal(tess_close(t), TESS_OK);
}

static void test_checkpoint_api__a_save_copies_what_a_step_changes_and_no_more(void **state) {
    (void)state;
    char plugin[4096];
    const char *folder = getenv("TESSERA_PLUGIN_PATH");
    copies_what_a_step_changes("none");
    snprintf(plugin, sizeof plugin, "%s/libtessera-offload-cpu.so", folder ? folder : "");
    if (access(plugin, R_OK) == 0)
        copies_what_a_step_changes("cpu");
}

/* ---- a base apart ------------------------------------------------------------------------------------ */
static void write_base(const char *path, char first) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%c: what frozen parameters are made of", first);
    assert_int_equal(fclose(f), 0);
}

static uint64_t bytes_saved;
static tess_status note_bytes(void *user, const char *path, const tess_checkpoint_info *info) {
    (void)user, (void)path;
    bytes_saved = info->bytes;
    return TESS_OK;
}

static tess_status load_beside(float frozen, const char *folder, const char *const *base) {
    tess_scope scope;
    tess_checkpoint_load_options from = { .struct_size = sizeof from, .path = folder, .base = base };
    tess *t = open_frozen("none", &scope);
    assert_int_equal(tess_shard(t, set_all, &frozen), TESS_OK);
    tess_status status = tess_checkpoint_load(t, &from, NULL);
    if (status == TESS_OK) /* what was trained comes from the checkpoint, what is frozen from the fill */
        assert_int_equal(changed(t, TESS_OF_PARAM, frozen), TRAINED);
    assert_int_equal(tess_close(t), status);
    return status;
}

static void test_checkpoint_api__a_base_is_named_and_not_saved_again(void **state) {
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX", path[128], other[128], command[128];
    const char *const base[] = { path, NULL }, *const elsewhere[] = { other, NULL };
    float one = 1;
    tess_scope scope;
    (void)state;
    if (!tess__sum_known())
        skip();
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s.base", folder);
    snprintf(other, sizeof other, "%s.other", folder);
    write_base(path, 'a'), write_base(other, 'a');
    tess_checkpoint_options to = { .struct_size = sizeof to, .dir = folder, .base = base };
    tess *t = open_frozen("none", &scope);
    assert_int_equal(tess_shard(t, set_all, &one), TESS_OK);
    step_on(t, scope);
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    assert_int_equal(tess_checkpoint_wait(t, NULL), TESS_OK);
    assert_int_equal(tess_close(t), TESS_OK);
    assert_int_equal(tess_checkpoint_list(folder, note_bytes, NULL), TESS_OK);
    assert_in_range(bytes_saved, 3 * TRAINED * 4, FROZEN);

    assert_int_equal(load_beside(7, folder, base), TESS_OK);
    assert_int_equal(load_beside(7, folder, NULL), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), ".base (xxh128 "));
    assert_non_null(strstr(tess_last_error(), "), which this run does not name"));
    assert_int_equal(load_beside(7, folder, elsewhere), TESS_E_DATA);
    write_base(path, 'b');
    assert_int_equal(load_beside(7, folder, base), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), ": the base changed"));
    unlink(path), unlink(other);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* A promise that is not kept is one line, and the save that keeps it goes on from there. */
static void test_checkpoint_api__a_promised_base_must_be_named(void **state) {
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX", path[128], command[160];
    const char *const base[] = { path, NULL }, *const none[] = { NULL };
    float one = 1;
    tess_scope scope;
    (void)state;
    if (!tess__sum_known())
        skip();
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s.base", folder);
    write_base(path, 'a');
    tess_checkpoint_options to = { .struct_size = sizeof to, .dir = folder };
    tess *t = open_promising(TESS_OPTIONS_BASE_APART, "none", &scope);
    assert_int_equal(tess_shard(t, set_all, &one), TESS_OK);
    for (int i = 0; i < 2; i++) {
        to.base = i ? none : NULL;
        assert_int_equal(tess_checkpoint_save(t, &to), TESS_E_INVALID);
        assert_non_null(strstr(tess_last_error(), "without base: TESS_OPTIONS_BASE_APART promises it"));
    }
    step_on(t, scope);
    to.base = base;
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    assert_int_equal(tess_checkpoint_wait(t, NULL), TESS_OK);
    assert_int_equal(tess_close(t), TESS_OK);
    assert_int_equal(load_beside(7, folder, base), TESS_OK);
    snprintf(command, sizeof command, "rm -r %s %s", folder, path);
    assert_int_equal(system(command), 0);
}

static long page_faults(void) {
    struct rusage u;
    assert_int_equal(getrusage(RUSAGE_THREAD, &u), 0);
    return u.ru_minflt;
}

/* One parameter with AdamW's two states. */
static tess *open_one(int64_t elems, uint32_t checkpoint) {
    tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .checkpoint = checkpoint };
    tess_param_options p = {
        .struct_size = sizeof p, .dtype = TESS_F32, .ndim = 1, .name = "a.weight", .shape = &elems
    };
    tess_scope scope;
    tess *t = NULL;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(tess_scope_add(t, "a", 0, &scope), TESS_OK);
    assert_int_equal(tess_param_add(t, &p, NULL), TESS_OK);
    assert_int_equal(tess_shard(t, NULL, NULL), TESS_OK);
    return t;
}

/* What it copies into was touched when the engine began: else the first save would wait for the kernel to clear it. */
static void test_checkpoint_api__a_save_touches_no_new_memory(void **state) {
    (void)state;
    enum { ELEMS = 4 << 20, PAGES = 3 * 4 * ELEMS / 4096 };
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX", command[128];
    tess_checkpoint_options to = { .struct_size = sizeof to };
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* so that each page counts */
    assert_non_null(mkdtemp(folder));
    to.dir = folder;
    tess *t = open_one(ELEMS, 1);
    long before = page_faults();
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    assert_true(page_faults() - before < PAGES / 2);
    assert_int_equal(tess_close(t), TESS_OK);
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* ---- loading ------------------------------------------------------------------------------------------- */
static void test_checkpoint_api__parameters_alone_begin_anew(void **state) {
    (void)state;
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX", command[128];
    tess_checkpoint_options to = { .struct_size = sizeof to };
    tess_checkpoint_load_options from = { .struct_size = sizeof from, .flags = TESS_CHECKPOINT_PARAMS };
    toy m;
    assert_non_null(mkdtemp(folder));
    to.dir = from.path = folder;
    tess *t = open_toy(&m, 0);
    train(t, &m, 0, 2);
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    copy saved = parameters_of(t);
    assert_int_equal(tess_close(t), TESS_OK);
    t = open_toy(&m, 0);
    assert_int_equal(tess_checkpoint_load(t, &from, NULL), TESS_OK);
    copy loaded = parameters_of(t);
    assert_int_equal(loaded.n, saved.n);
    assert_memory_equal(loaded.values, saved.values, saved.n * sizeof(float));
    assert_int_equal(tess_steps_done(t), 0);
    assert_int_equal(changed(t, TESS_OF_MOMENT1, 0) + changed(t, TESS_OF_MOMENT2, 0), 0);
    assert_int_equal(tess_close(t), TESS_OK);
    free(saved.values);
    free(loaded.values);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_checkpoint_api__none_yet_is_fine_when_asked_for(void **state) {
    (void)state;
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX", path[64], command[128];
    tess_checkpoint_options to = { .struct_size = sizeof to, .dir = path };
    tess_checkpoint_load_options from = { .struct_size = sizeof from, .flags = TESS_CHECKPOINT_IF_ANY, .path = path };
    tess_checkpoint_info info = { .struct_size = sizeof info, .step = 7 };
    toy m;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/run", folder);
    tess *t = open_toy(&m, 0);
    for (int made = 0; made < 2; made++) { /* not there, and empty */
        info.step = 7;
        assert_int_equal(tess_checkpoint_load(t, &from, &info), TESS_OK);
        assert_int_equal(info.step, 0);
        snprintf(command, sizeof command, "mkdir -p %s", path);
        assert_int_equal(system(command), 0);
    }
    train(t, &m, 0, 2);
    assert_int_equal(tess_checkpoint_load(t, &from, &info), TESS_OK); /* and it changes nothing */
    assert_int_equal(tess_steps_done(t), 2);
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    assert_int_equal(tess_checkpoint_load(t, &from, &info), TESS_OK);
    assert_int_equal(info.step, 2);
    snprintf(command, sizeof command, "truncate -s 100 %s/step-*/*.safetensors", path);
    assert_int_equal(system(command), 0);
    assert_int_equal(tess_checkpoint_load(t, &from, &info), TESS_E_DATA); /* damage is no beginning */
    tess_close(t);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* The most that this process has had in memory; `anew`: from now on, where the kernel lets us. */
static long peak_kib(int anew) {
    char line[128];
    long kib = 0;
    FILE *f = anew ? fopen("/proc/self/clear_refs", "w") : NULL;
    if (f) {
        fputs("5", f);
        fclose(f);
    }
    f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (!kib && fgets(line, sizeof line, f))
        sscanf(line, "VmHWM: %ld kB", &kib);
    fclose(f);
    assert_true(kib > 0);
    return kib;
}

/* Pieces go straight to their place: nobody holds the file, or a parameter, beside the shard. */
static void test_checkpoint_api__a_load_needs_little_besides_the_shard(void **state) {
    (void)state;
    enum { ELEMS = 8 << 20, ALL_KIB = 3 * 4 * (ELEMS / 1024) };
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX", command[128];
#if defined(__SANITIZE_THREAD__)
    printf("ThreadSanitizer's shadow of memory counts as the process's own\n");
    skip();
#endif
    tess_checkpoint_options to = { .struct_size = sizeof to };
    tess_checkpoint_load_options from = { .struct_size = sizeof from };
    assert_non_null(mkdtemp(folder));
    to.dir = from.path = folder;
    tess *t = open_one(ELEMS, 0);
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    long before = peak_kib(1);
    assert_int_equal(tess_checkpoint_load(t, &from, NULL), TESS_OK);
    assert_true(peak_kib(0) - before < ALL_KIB / 6);
    assert_int_equal(tess_close(t), TESS_OK);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* Writes step 0 of a folder anew: of the tensor whose name begins so, no more than `elems`; all else as it is. */
static void cut_tensor(const char *folder, const char *name, uint64_t elems) {
    tess__saved s;
    tess__saved_file *f = NULL;
    tess__store store;
    tess__tensor list[8];
    tess__data_file made = { .bytes = 0 };
    tess__data_writer w;
    char dir[PATH_MAX], file[TESS__FILE_NAME];
    uint64_t n = 0, kept = 0, generation = 0;
    assert_int_equal(tess__step_dir(folder, 0, dir), TESS_OK);
    assert_int_equal(tess__saved_open(&tess__disk_real, dir, &s), TESS_OK);
    assert_int_equal(tess__saved_file_open(&s, 0, &f), TESS_OK);
    const tess__tensor *all = tess__saved_file_list(f, &n);
    assert_true(n <= 8);
    for (uint64_t i = 0; i < n; i++) {
        list[kept] = all[i];
        if (strncmp(all[i].name, name, strlen(name)) == 0)
            list[kept].shape[0] = (int64_t)elems;
        kept += list[kept].shape[0] > 0;
    }
    tess__safetensors_arrange(list, kept);
    assert_int_equal(tess__store_open(&tess__disk_real, folder, &store), TESS_OK);
    assert_int_equal(tess__store_begin(&store, 0, &generation), TESS_OK);
    tess__data_file_name(generation, 0, 1, file);
    assert_int_equal(tess__data_create(&tess__disk_real, dir, file, list, kept, &w), TESS_OK);
    for (uint64_t i = 0, j = 0; i < kept; i++) {
        for (j = 0; strcmp(all[j].name, list[i].name) != 0;)
            j++;
        char *data = malloc(all[j].bytes);
        assert_int_equal(tess__saved_file_read(f, &all[j], 0, all[j].elems, data), TESS_OK);
        assert_int_equal(tess__data_write(&w, data, list[i].bytes), TESS_OK);
        free(data);
    }
    assert_int_equal(tess__data_finish(&w, &made), TESS_OK);
    tess__manifest m = s.manifest;
    m.generation = generation, m.files = &made;
    assert_int_equal(tess__store_commit(&store, &m, 0), TESS_OK);
    free(made.sums);
    tess__store_close(&store);
    tess__saved_file_close(f);
    tess__saved_close(&s);
}

/* Every value and every state of this rank's shard must come: one line names the parameter and what is missing. */
static void test_checkpoint_api__what_is_missing_is_named(void **state) {
    (void)state;
    static const struct {
        const char *tensor, *said;
        uint64_t elems;
    } cuts[] = { { "state1/", "optimizer state 2 of 2 of 'a.weight' has 0 elements for this rank, expected 128", 0 },
                 { "state1/", "optimizer state 2 of 2 of 'a.weight' has 64 elements for this rank, expected 128", 64 },
                 { "state0/", "optimizer state 1 of 2 of 'a.weight' has 0 elements", 0 },
                 { "param/", "the value of 'a.weight' has 0 elements", 0 } };
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        char folder[] = "/tmp/tessera-checkpoint-XXXXXX", command[128];
        tess_checkpoint_options to = { .struct_size = sizeof to };
        tess_checkpoint_load_options from = { .struct_size = sizeof from };
        assert_non_null(mkdtemp(folder));
        to.dir = from.path = folder;
        tess *t = open_one(128, 0);
        assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
        assert_int_equal(tess_checkpoint_load(t, &from, NULL), TESS_OK);
        assert_int_equal(tess_close(t), TESS_OK);
        cut_tensor(folder, cuts[i].tensor, cuts[i].elems);
        char path[64];
        snprintf(path, sizeof path, "%s/step-000000", folder);
        from.path = path;
        t = open_one(128, 0);
        assert_int_equal(tess_checkpoint_load(t, &from, NULL), TESS_E_DATA);
        assert_non_null(strstr(tess_last_error(), cuts[i].said));
        assert_int_equal(tess_close(t), TESS_E_DATA);
        snprintf(command, sizeof command, "rm -r %s", folder);
        assert_int_equal(system(command), 0);
    }
}

/* ---- lineages ------------------------------------------------------------------------------------------ */
static tess_status add_step(void *user, const char *path, const tess_checkpoint_info *info) {
    (void)path;
    *(uint64_t *)user = *(uint64_t *)user * 10 + info->step; /* steps 1 and 2: 12 */
    return TESS_OK;
}

static uint64_t steps_in(const char *folder) {
    uint64_t steps = 0;
    assert_int_equal(tess_checkpoint_list(folder, add_step, &steps), TESS_OK);
    return steps;
}

static uint64_t load(tess *t, const char *path) {
    tess_checkpoint_load_options from = { .struct_size = sizeof from, .path = path };
    tess_checkpoint_info info = { .struct_size = sizeof info };
    assert_int_equal(tess_checkpoint_load(t, &from, &info), TESS_OK);
    return info.step;
}

/* A program that goes back, in its own life or in the next, leaves nothing behind unless it says so. */
static void test_checkpoint_api__a_run_that_goes_back_stays_there(void **state) {
    (void)state;
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX", command[128], path[64], aside[64];
    tess_checkpoint_options to = { .struct_size = sizeof to };
    toy m;
    assert_non_null(mkdtemp(folder));
    to.dir = folder;
    snprintf(path, sizeof path, "%s/step-000001", folder);
    snprintf(aside, sizeof aside, "%s/aside-1", folder);
    tess *t = open_toy(&m, 0);
    for (int i = 0; i < 3; i++) {
        train(t, &m, i, 1);
        assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    }
    assert_int_equal(load(t, path), 1);
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "step 3 and 1 other there would be left behind"));
    to.flags = TESS_CHECKPOINT_PREPARE;
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_E_DATA);
    assert_int_equal(load(t, folder), 3); /* and nothing is wrong with the engine, nor with this */
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    assert_int_equal(tess_close(t), TESS_OK);
    assert_int_equal(steps_in(folder), 123);

    t = open_toy(&m, 0);
    assert_int_equal(load(t, path), 1);
    to.on_newer = "aside";
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    assert_int_equal(steps_in(folder), 1); /* the flag is still set: nothing is saved yet */
    assert_int_equal(steps_in(aside), 23);
    to.flags = 0, to.keep = 1;
    train(t, &m, 1, 1);
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    assert_int_equal(tess_close(t), TESS_OK);
    assert_int_equal(steps_in(folder), 2);
    snprintf(command, sizeof command, "mv %s/step-000003 %s", aside, folder); /* of the lineage before */
    assert_int_equal(system(command), 0);
    t = open_toy(&m, 0);
    assert_int_equal(load(t, folder), 2);
    assert_int_equal(tess_close(t), TESS_OK);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* Each process goes on from the one before: what it saves is of the same line, which the next one loads and prunes. */
static void test_checkpoint_api__a_run_that_goes_on_is_one_line(void **state) {
    (void)state;
    static const uint64_t left[] = { 1, 12, 123, 4 };
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX", command[128], step_2[64];
    tess_checkpoint_options to = { .struct_size = sizeof to };
    toy m;
    assert_non_null(mkdtemp(folder));
    to.dir = folder;
    for (int i = 0; i < 4; i++) {
        tess *t = open_toy(&m, 0);
        if (i)
            assert_int_equal(load(t, folder), i);
        train(t, &m, i, 1);
        to.keep = i == 3;
        assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
        assert_int_equal(tess_close(t), TESS_OK);
        assert_int_equal(steps_in(folder), left[i]);
    }
    snprintf(step_2, sizeof step_2, "%s/step-000002", folder);
    assert_int_equal(access(step_2, F_OK), -1);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_checkpoint_api__a_fresh_run_leaves_no_other_behind(void **state) {
    (void)state;
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX", command[128];
    tess_checkpoint_options to = { .struct_size = sizeof to, .on_newer = "over" };
    toy m;
    assert_non_null(mkdtemp(folder));
    to.dir = folder;
    tess *t = open_toy(&m, 0);
    train(t, &m, 0, 1);
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_E_INVALID);
    assert_int_equal(tess_close(t), TESS_E_INVALID);
    to.on_newer = NULL;
    for (int i = 0; i < 2; i++) {
        t = open_toy(&m, 0);
        train(t, &m, 0, 2 - i);
        assert_int_equal(tess_checkpoint_save(t, &to), i ? TESS_E_DATA : TESS_OK);
        assert_int_equal(tess_close(t), TESS_OK);
        assert_int_equal(steps_in(folder), 2);
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_checkpoint_api__the_best_stays_beside_the_newest(void **state) {
    (void)state;
    static const double scores[] = { 3, 1, 1, 2 };
    const double nothing = NAN;
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX", command[128];
    tess_checkpoint_options to = { .struct_size = sizeof to, .keep = 1 };
    toy m;
    assert_non_null(mkdtemp(folder));
    to.dir = folder;
    tess *t = open_toy(&m, 0);
    for (int i = 0; i < 4; i++) {
        train(t, &m, i, 1);
        to.score = &scores[i];
        assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    }
    assert_int_equal(tess_checkpoint_wait(t, NULL), TESS_OK);
    assert_int_equal(steps_in(folder), 24);
    to.score = NULL;
    train(t, &m, 4, 1);
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_OK);
    assert_int_equal(tess_checkpoint_wait(t, NULL), TESS_OK);
    assert_int_equal(steps_in(folder), 25);
    to.score = &nothing;
    assert_int_equal(tess_checkpoint_save(t, &to), TESS_E_INVALID);
    assert_non_null(strstr(tess_last_error(), "the score is "));
    assert_int_equal(tess_close(t), TESS_E_INVALID);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_checkpoint_api__nothing_there_is_bad_data(void **state) {
    (void)state;
    tess_checkpoint_load_options from = { .struct_size = sizeof from, .path = "/tmp/no-such-checkpoint" };
    toy m;
    tess *t = open_toy(&m, 0);
    assert_int_equal(tess_checkpoint_load(t, &from, NULL), TESS_E_DATA);
    assert_int_equal(tess_close(t), TESS_E_DATA);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_api__run_goes_on_to_the_same_bits),
        cmocka_unit_test(test_checkpoint_api__frozen_parameters_are_not_copied),
        cmocka_unit_test(test_checkpoint_api__a_base_is_named_and_not_saved_again),
        cmocka_unit_test(test_checkpoint_api__a_promised_base_must_be_named),
        cmocka_unit_test(test_checkpoint_api__a_save_copies_what_a_step_changes_and_no_more),
        cmocka_unit_test(test_checkpoint_api__a_save_touches_no_new_memory),
        cmocka_unit_test(test_checkpoint_api__parameters_alone_begin_anew),
        cmocka_unit_test(test_checkpoint_api__none_yet_is_fine_when_asked_for),
        cmocka_unit_test(test_checkpoint_api__a_load_needs_little_besides_the_shard),
        cmocka_unit_test(test_checkpoint_api__what_is_missing_is_named),
        cmocka_unit_test(test_checkpoint_api__a_run_that_goes_back_stays_there),
        cmocka_unit_test(test_checkpoint_api__a_run_that_goes_on_is_one_line),
        cmocka_unit_test(test_checkpoint_api__a_fresh_run_leaves_no_other_behind),
        cmocka_unit_test(test_checkpoint_api__the_best_stays_beside_the_newest),
        cmocka_unit_test(test_checkpoint_api__nothing_there_is_bad_data),
    };
    return cmocka_run_group_tests_name("checkpoint_api", tests, NULL, NULL);
}

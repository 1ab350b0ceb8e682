/* SPDX-License-Identifier: BSD-3-Clause */
/* Each allocation fails once, wherever it is: the call says that there is no memory, leaves nothing behind, and the
 * next one works. The linker puts this file's malloc, calloc and realloc between the core and the C library. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/checkpoint/data_writer.h"
#include "core/checkpoint/saved.h"
#include "core/checkpoint/settle.h"
#include "core/control/control.h"
#include "core/control/kv_store.h"
#include "core/control/wire.h"
#include "tests/support/toy.h"

/* ---- allocations ---- */

static _Thread_local long fails_at, n_asked; /* 0: none; of this thread */

static int may_have(void) {
    return !fails_at || ++n_asked != fails_at;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n) {
    return may_have() ? __real_malloc(n) : NULL;
}
void *__wrap_calloc(size_t n, size_t size) {
    return may_have() ? __real_calloc(n, size) : NULL;
}
void *__wrap_realloc(void *p, size_t n) {
    return may_have() ? __real_realloc(p, n) : NULL;
}

/* Calls `work` with the first allocation failing, the second, and so on, until none of them fails. Returns how many
 * there were. `loud`: a failure must be said; else the call may do without what it did not get. */
static long fail_each(tess_status (*work)(void *user), void *user, int loud, long every) {
    long k = 1;
    for (;; k += every) {
        fails_at = k;
        n_asked = 0;
        tess_status s = work(user);
        long asked = n_asked;
        fails_at = 0;
        if (asked < k && s)
            fail_msg("without a failure: %s", tess_last_error());
        if (asked < k)
            return asked;
        if (s ? s != TESS_E_NOMEM : loud)
            fail_msg("allocation %ld: status %d: %s", k, (int)s, tess_last_error());
    }
}

/* ---- checkpoints ---- */

typedef struct {
    char *text;
    size_t bytes;
} written;

static written write_manifest(void) {
    enum { N = 40 };
    static tess__data_file files[N];
    static tess__tensor params[N];
    static uint8_t is_buffer[N], sums[N][TESS__SUM_BYTES];
    tess__manifest m = { .chunk_bytes = 1, .has_sums = 1, .n_files = N, .n_params = N, .files = files };
    written w = { NULL, 0 };
    m.params = params;
    m.is_buffer = is_buffer;
    for (int i = 0; i < N; i++) {
        files[i] = (tess__data_file){ .name = "f", .bytes = (uint64_t)i, .n_sums = (uint64_t)i, .sums = sums };
        params[i] = (tess__tensor){ .name = "p", .dtype = TESS_F32 };
    }
    assert_int_equal(tess__manifest_write(&m, "m", &w.text, &w.bytes), TESS_OK);
    return w;
}

static tess_status read_manifest(void *user) {
    const written *w = user;
    tess__manifest m = { .n_files = 7 };
    tess_status s = tess__manifest_read("m", w->text, w->bytes, &m);
    if (!s)
        tess__manifest_free(&m);
    else
        assert_int_equal(m.n_files, 7);
    return s;
}

typedef struct {
    char dir[64];
    uint64_t step;
} place;

static tess_status write_data(const tess__store *store, const tess__manifest *m, tess__data_file *out) {
    static char data[5 << 20];
    char dir[PATH_MAX], name[TESS__FILE_NAME];
    tess__tensor t = { .name = "param/p@0", .dtype = TESS_U8, .ndim = 1, .shape = { sizeof data } };
    tess__data_writer w;
    tess__safetensors_arrange(&t, 1);
    tess__data_file_name(m->generation, 0, 1, name);
    tess_status s = tess__step_dir(store->dir, m->step, dir);
    if (!s)
        s = tess__data_create(store->disk, dir, name, &t, 1, &w);
    if (s)
        return s;
    if ((s = tess__data_write(&w, data, sizeof data)))
        tess__data_drop(&w);
    return s ? s : tess__data_finish(&w, out);
}

/* The pruning of older steps and the removal of what is left over do without, and no save fails for them. */
static tess_status save(void *user) {
    place *p = user;
    tess__store store;
    tess__data_file file = { .bytes = 0 };
    tess__tensor param = { .name = "p", .dtype = TESS_U8, .ndim = 1, .shape = { 5 << 20 } };
    uint8_t is_buffer = 0;
    tess__past past = { .of = { .n = 1, .runs = { { 7, INT64_MAX } } }, .settled = 1 };
    tess__manifest m = {
        .step = ++p->step, .chunk_bytes = TESS__CHUNK_BYTES, .has_sums = tess__sum_known(), .n_files = 1
    };
    m.lineage = past.of;
    m.files = &file;
    m.n_params = 1;
    m.params = &param;
    m.is_buffer = &is_buffer;
    char said[512];
    tess_status s = tess__store_open(&tess__disk_real, p->dir, &store);
    if (s)
        return s;
    s = tess__store_settle(&store, &past, 0);
    if (!s)
        s = tess__store_begin(&store, m.step, &m.generation);
    if (!s)
        s = write_data(&store, &m, &file);
    snprintf(said, sizeof said, "%s", s ? tess_last_error() : "");
    if (!s)
        s = tess__store_commit(&store, &m, 2);
    else
        tess__store_abandon(&store, m.step, m.generation);
    tess__store_close(&store);
    free(file.sums);
    return s && *said ? tess__fail(s, "%s", said) : s;
}

static tess_status load(void *user) {
    const place *p = user;
    static char got[5 << 20];
    char path[PATH_MAX];
    uint64_t *steps, n, n_tensors;
    tess__saved saved;
    tess__saved_file *f;
    tess_status s = tess__store_line(&tess__disk_real, p->dir, &steps, &n);
    if (s)
        return s;
    assert_int_equal(n, 1);
    s = tess__step_dir(p->dir, steps[0], path);
    free(steps);
    if (s || (s = tess__saved_open(&tess__disk_real, path, &saved)))
        return s;
    if (!(s = tess__saved_file_open(&saved, 0, &f))) {
        const tess__tensor *t = tess__saved_file_list(f, &n_tensors);
        s = tess__saved_file_read(f, &t[0], 0, sizeof got, got);
        tess__saved_file_close(f);
    }
    tess__saved_close(&saved);
    return s;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static int entries(const char *path) {
    int n = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void test_no_memory__checkpoints_are_read_whole_or_not(void **state) {
    (void)state;
    written w = write_manifest();
    assert_true(fail_each(read_manifest, &w, 1, 1) > 40);
    free(w.text);
    place p = { "/tmp/tessera-test-XXXXXX", 0 };
    assert_non_null(mkdtemp(p.dir));
    fail_each(save, &p, 0, 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(save(&p), TESS_OK);
    uint64_t *steps, n;
    assert_int_equal(tess__store_list(&tess__disk_real, p.dir, &steps, &n), TESS_OK);
    assert_int_equal(n, 2);
    assert_int_equal(entries(p.dir), 2); /* the next start has removed what was left over */
    assert_int_equal(tess__store_remove(&tess__disk_real, p.dir, steps[0]), TESS_OK);
    free(steps);
    assert_true(fail_each(load, &p, 0, 1) > 5);
    nftw(p.dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---- the control plane ---- */

static tess_status use_wire(void *user) {
    static const unsigned char value[1000];
    const tess__message m = { .type = TESS__WIRE_SET, .key = "k", .key_bytes = 2, .value = value, .value_bytes = 1000 };
    (void)user;
    tess__outbox box;
    tess__outbox_init(&box);
    tess__blob *blob = tess__blob_new(value, 10);
    int failed = !blob || tess__outbox_push(&box, TESS__WIRE_OK, 1, 0, blob) || tess__outbox_copy(&box, &m);
    assert_int_equal(box.n, failed ? box.n : 2);
    tess__blob_drop(blob);
    tess__outbox_clear(&box);
    const char *why = "";
    tess__kv_store *store = failed ? NULL : tess__kv_store_create();
    tess_status s = store ? tess__kv_store_set(store, "k", value, 5, &why) : TESS_E_NOMEM;
    if (!s)
        s = tess__kv_store_set(store, "k", value, 7, &why);
    tess__kv_store_destroy(store);
    return s ? tess__fail(s, "no memory") : TESS_OK;
}

static tess_status open_control(void *user) {
    char path[64];
    int32_t port = 0;
    tess__kv_server *server = NULL;
    tess__control *control = NULL;
    const tess__kv_terms terms = { .job = "j" };
    (void)user;
    snprintf(path, sizeof path, "/tmp/test_no_memory-%d.sock", (int)getpid());
    tess__world w = { .nranks = 1, .first_nranks = 1 };
    tess_status s = tess__control_open(&w, &control); /* which needs no server */
    if (!s)
        s = tess__control_set(control, "k", "v", 1);
    tess__control_close(control, 1);
    if (!s)
        s = tess__kv_server_start(path, &port, 1, &terms, &server);
    tess__kv_server_stop(server);
    return s;
}

static void test_no_memory__the_control_plane_says_so(void **state) {
    (void)state;
    assert_true(fail_each(use_wire, NULL, 1, 1) > 5);
    assert_true(fail_each(open_control, NULL, 0, 1) > 10);
}

/* ---- the engine ---- */

static tess_status train(void *user) {
    const int blocks = *(int *)user;
    const tess_options o = { .struct_size = sizeof o, .optimizer = "adamw", .input_bytes = TOY_INPUT_BYTES };
    const tess_optimizer_options step = { .struct_size = sizeof step, .lr = 0.01f };
    toy m;
    tess *t = NULL;
    double loss;
    tess_status s = tess_open(&o, &t);
    if (!s)
        s = toy_declare(t, &m, blocks);
    if (!s)
        s = tess_shard(t, toy_fill, NULL);
    if (!s)
        s = blocks ? toy_run(t, TESS_PASS_TRAIN, 0, NULL, &loss) : toy_pass(t, &m, TESS_PASS_TRAIN, 0, &loss);
    if (!s)
        s = tess_step(t, &step);
    char said[512];
    snprintf(said, sizeof said, "%s", tess_last_error());
    long at = fails_at;
    fails_at = 0; /* what closes needs nothing */
    tess_status closed = tess_close(t);
    fails_at = at;
    assert_true(closed == TESS_OK || closed == s);
    return s ? tess__fail(s, "%s", said) : TESS_OK;
}

/* Saves a step and takes it back. */
static tess_status go_back(tess *t, const char *dir) {
    const tess_checkpoint_options save = { .struct_size = sizeof save, .dir = dir, .keep = 1, .on_newer = "aside" };
    const tess_checkpoint_load_options load = { .struct_size = sizeof load, .path = dir };
    tess_checkpoint_info info = { .struct_size = sizeof info };
    tess_status s = tess_checkpoint_save(t, &save);
    s = s ? s : tess_checkpoint_wait(t, NULL);
    return s ? s : tess_checkpoint_load(t, &load, &info);
}

static tess_status use_checkpoints(void *user) {
    const tess_options o = { .struct_size = sizeof o, .optimizer = "adamw" };
    toy m;
    tess *t = NULL;
    long at = fails_at;
    fails_at = 0;
    assert_int_equal(tess_open(&o, &t), TESS_OK);
    assert_int_equal(toy_declare(t, &m, 0), TESS_OK);
    assert_int_equal(tess_shard(t, toy_fill, NULL), TESS_OK);
    fails_at = at;
    n_asked = 0;
    tess_status s = go_back(t, user);
    char said[512];
    snprintf(said, sizeof said, "%s", tess_last_error());
    fails_at = 0;
    long asked = n_asked;
    tess_close(t);
    fails_at = at;
    n_asked = asked;
    return s ? tess__fail(s, "%s", said) : TESS_OK;
}

static void test_no_memory__an_engine_saves_and_loads_whole_or_not(void **state) {
    (void)state;
    char dir[] = "/tmp/tessera-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    assert_true(fail_each(use_checkpoints, dir, 0, 1) > 20);
    assert_int_equal(use_checkpoints(dir), TESS_OK);
    nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static void test_no_memory__an_engine_opens_whole_or_not(void **state) {
    (void)state;
    assert_true(fail_each(train, &(int){ TOY_BLOCKS }, 0, 1) > 100);
    assert_true(fail_each(train, &(int){ 0 }, 0, 1) > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_memory__checkpoints_are_read_whole_or_not),
        cmocka_unit_test(test_no_memory__the_control_plane_says_so),
        cmocka_unit_test(test_no_memory__an_engine_opens_whole_or_not),
        cmocka_unit_test(test_no_memory__an_engine_saves_and_loads_whole_or_not),
    };
    tess__log_set_least(TESS_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* What a directory of checkpoints holds, keeps and refuses; test_crashes.c has what a crash leaves of it. */
#include "save_fixture.h"

#include <dirent.h>
#include <unistd.h>

#include "core/base/log.h"
#include "core/checkpoint/settle.h"

static void test_store__a_failed_sync_gives_the_save_up_and_keeps_the_one_before(void **state) {
    (void)state;
    enum { SYNCS = 7, BEFORE_RENAME = 5 }; /* two writers with two each, the manifest; then both directories */
    for (int k = 1; k <= SYNCS; k++) {
        sim_disk *disk = sim_disk_create();
        const tess__disk *d = sim_disk_table(disk);
        tess__store store;
        assert_int_equal(tess__store_open(d, DIR_OF_ALL, &store), TESS_OK);
        assert_int_equal(save_step(&store, 10, 0, 2), TESS_OK);
        sim_disk_fail_sync(disk, k);
        assert_int_equal(save_step(&store, 20, 1, 2), TESS_E_DATA);
        if (k < BEFORE_RENAME) /* given up by its writers: nothing of it stays */
            assert_int_equal(sim_disk_files(disk), 3);
        assert_int_equal(newest(d), k <= BEFORE_RENAME ? 0 : 1);
        assert_int_equal(save_in(d, 10), 0);
        assert_int_equal(save_step(&store, 30, 2, 2), TESS_OK);
        assert_int_equal(newest(d), 2);
        tess__store_close(&store);
        sim_disk_destroy(disk);
    }
}

/* Two tensors in three chunks of a file: what lies on both sides of a chunk's end, a whole chunk, single elements. */
static void test_store__a_file_of_many_chunks_reads_from_any_place(void **state) {
    (void)state;
    enum { CHUNK = TESS__CHUNK_BYTES / 4, A = CHUNK + CHUNK / 2, B = CHUNK + 3 };
    sim_disk *disk = sim_disk_create();
    const tess__disk *d = sim_disk_table(disk);
    tess__tensor list[] = { { .name = "a", .dtype = TESS_F32, .ndim = 1, .shape = { A } },
                            { .name = "b", .dtype = TESS_F32, .ndim = 1, .shape = { B } } };
    float *data = malloc((A + B) * sizeof *data), *got = malloc((A + B) * sizeof *got);
    tess__data_writer w;
    tess__data_file file = { 0 };
    assert_true(data && got);
    for (int i = 0; i < A + B; i++)
        data[i] = (float)i;
    tess__safetensors_arrange(list, 2);
    assert_int_equal(tess__data_create(d, "/d", "x.safetensors", list, 2, &w), TESS_OK);
    assert_int_equal(tess__data_write(&w, data, 4 * 5), TESS_OK); /* from here on nothing lies on a block */
    assert_int_equal(tess__data_write(&w, data + 5, 4 * (A + B - 5)), TESS_OK);
    assert_int_equal(tess__data_finish(&w, &file), TESS_OK);
    assert_int_equal(file.n_sums, 3);
    tess__saved of = { .disk = d,
                       .path = "/d",
                       .manifest = { .chunk_bytes = TESS__CHUNK_BYTES, .has_sums = tess__sum_known() } };
    of.manifest.files = &file;
    of.manifest.n_files = 1;
    snprintf(file.name, sizeof file.name, "x.safetensors");
    tess__saved_file *f = NULL;
    uint64_t n = 0;
    assert_int_equal(tess__saved_file_open(&of, 0, &f), TESS_OK);
    const tess__tensor *t = tess__saved_file_list(f, &n);
    assert_int_equal(n, 2);
    uint64_t head = file.bytes - 4 * (uint64_t)(A + B), first_of_next = (TESS__CHUNK_BYTES - head) / 4;
    assert_int_equal(head % 4, 0);
    const struct {
        int tensor;
        uint64_t first, elems;
    } reads[] = { { 0, 0, A },
                  { 1, 0, B },
                  { 0, 0, 1 },
                  { 1, B - 1, 1 },
                  { 0, A - 1, 1 },
                  { 0, first_of_next - 1, 1 },
                  { 0, first_of_next, 1 },
                  { 0, first_of_next - 3, 7 },
                  { 0, first_of_next, A - first_of_next },
                  { 1, 0, 2 * (uint64_t)CHUNK - head / 4 - A },
                  { 1, 2 * (uint64_t)CHUNK - head / 4 - A, 2 } };
    for (size_t i = 0; i < sizeof reads / sizeof reads[0]; i++) {
        memset(got, 0xff, (A + B) * sizeof *got);
        assert_int_equal(tess__saved_file_read(f, &t[reads[i].tensor], reads[i].first, reads[i].elems, got), TESS_OK);
        assert_memory_equal(got, data + reads[i].tensor * A + reads[i].first, reads[i].elems * 4);
        assert_int_equal(((uint32_t *)got)[reads[i].elems], UINT32_MAX);
    }
    assert_int_equal(tess__saved_file_verify(f), TESS_OK);
    tess__saved_file_close(f);
    if (tess__sum_known()) { /* a bit of the last chunk: the others read, and the message says whose it is */
        assert_int_equal(sim_disk_flip(disk, "/d/x.safetensors", 8 * (file.bytes - 1)), 0);
        assert_int_equal(tess__saved_file_open(&of, 0, &f), TESS_OK);
        t = tess__saved_file_list(f, &n);
        assert_int_equal(tess__saved_file_read(f, &t[0], 0, A, got), TESS_OK);
        assert_int_equal(tess__saved_file_read(f, &t[1], 0, 9, got), TESS_OK);
        assert_int_equal(tess__saved_file_read(f, &t[1], B - 1, 1, got), TESS_E_DATA);
        assert_non_null(strstr(tess_last_error(), "/d/x.safetensors: tensor 'b': the checksum of "));
        assert_int_equal(tess__saved_file_verify(f), TESS_E_DATA);
        assert_non_null(strstr(tess_last_error(), "tensor 'b': the checksum of "));
        assert_non_null(strstr(tess_last_error(), " bytes at offset 8388608 is wrong"));
        tess__saved_file_close(f);
        assert_int_equal(sim_disk_flip(disk, "/d/x.safetensors", 8 * (uint64_t)TESS__CHUNK_BYTES),
                         0); /* and before it */
        assert_int_equal(tess__saved_file_open(&of, 0, &f), TESS_OK);
        assert_int_equal(tess__saved_file_verify(f), TESS_E_DATA);
        assert_string_equal(tess_last_error(),
                            "/d/x.safetensors: tensor 'a': the checksum of 4194304 bytes at offset 4194304 is wrong: "
                            "the file has been damaged");
        tess__saved_file_close(f);
    }
    free(file.sums); /* written where no checksums were known */
    file.sums = NULL;
    of.manifest.has_sums = 0;
    assert_int_equal(tess__saved_file_open(&of, 0, &f), TESS_OK);
    assert_int_equal(tess__saved_file_verify(f), TESS_OK);
    tess__saved_file_close(f);
    assert_int_equal(tess__saved_file_open(&of, 0, &f), TESS_OK); /* cut short while it is open */
    t = tess__saved_file_list(f, &n);
    assert_int_equal(sim_disk_truncate(disk, "/d/x.safetensors", file.bytes - 1), 0);
    assert_int_equal(tess__saved_file_read(f, &t[1], B - 1, 1, got), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "/d/x.safetensors: offset 8388608: the file ends too early");
    tess__saved_file_close(f);
    free(got);
    free(data);
    sim_disk_destroy(disk);
}

static void test_store__a_newer_format_and_a_foreign_file_are_named(void **state) {
    (void)state;
    tess__manifest m;
    static const char newer[] = "{\"format\":\"tessera-checkpoint\",\"version\":5,\"x\":1}";
    assert_int_equal(tess__manifest_read("a/manifest.json", newer, sizeof newer - 1, &m), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "a/manifest.json: format version 5 is newer"));
    assert_int_equal(tess__manifest_read("a/manifest.json", "{\"a\":1}", 7, &m), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "a/manifest.json: offset"));
    assert_int_equal(tess__manifest_read("a/manifest.json", "", 0, &m), TESS_E_DATA);
}

static void test_store__a_manifest_reads_as_it_was_written(void **state) {
    (void)state;
    tess__tensor params[] = { { .name = "a", .dtype = TESS_F32, .ndim = 2, .shape = { 3, 5 } },
                              { .name = "b", .dtype = TESS_BF16, .ndim = 0 } };
    uint8_t is_buffer[] = { 0, 1 };
    for (int flag = 0; flag < 2; flag++) {
        tess__manifest got,
            m = { .step = 1, .generation = 2, .order = 3, .ranks = 4, .microbatches = 5, .n_states = 6 };
        char *text;
        size_t bytes;
        m.chunk_bytes = 7;
        m.has_sums = flag;
        m.not_finite = !flag;
        m.params = params;
        m.is_buffer = is_buffer;
        m.n_params = 2;
        m.lineage = (tess__lineage){ .n = 2, .runs = { { 0xfedcba9876543210, 20 }, { 2, INT64_MAX } } };
        snprintf(m.writer, sizeof m.writer, "a \"writer\"");
        snprintf(m.strategy, sizeof m.strategy, "hybrid:2");
        snprintf(m.precision, sizeof m.precision, "bf16");
        snprintf(m.optimizer, sizeof m.optimizer, "adamw");
        assert_int_equal(tess__manifest_write(&m, "m", &text, &bytes), TESS_OK);
        assert_int_equal(tess__manifest_read("m", text, bytes, &got), TESS_OK);
        assert_true(got.step == 1 && got.generation == 2 && got.order == 3 && got.ranks == 4);
        assert_true(got.microbatches == 5 && got.n_states == 6 && got.chunk_bytes == 7 && got.n_files == 0);
        assert_int_equal(got.has_sums, flag);
        assert_int_equal(got.not_finite, !flag);
        assert_string_equal(got.writer, m.writer);
        assert_string_equal(got.strategy, m.strategy);
        assert_string_equal(got.precision, m.precision);
        assert_string_equal(got.optimizer, m.optimizer);
        assert_int_equal(got.lineage.n, 2);
        assert_memory_equal(got.lineage.runs, m.lineage.runs, 2 * sizeof m.lineage.runs[0]);
        assert_int_equal(got.n_params, 2);
        assert_int_equal(got.params[0].ndim, 2);
        assert_true(got.params[0].shape[0] == 3 && got.params[0].shape[1] == 5 && got.params[0].bytes == 60);
        assert_true(got.params[1].dtype == TESS_BF16 && got.params[1].ndim == 0 && got.params[1].bytes == 2);
        assert_true(!got.is_buffer[0] && got.is_buffer[1]);
        tess__manifest_free(&got);
        free(text);
    }
}

/* A name that leads out of the step's folder, a checksum that is none: refused, not followed. */
static void test_store__a_manifest_with_odd_names_or_sums_is_refused(void **state) {
    (void)state;
    uint8_t sums[1][TESS__SUM_BYTES] = { { 1 } };
    tess__data_file file = { .bytes = 8, .n_sums = 1, .sums = sums };
    tess__manifest got, m = { .chunk_bytes = 16, .has_sums = 1, .writer = "test", .files = &file, .n_files = 1 };
    static const struct {
        const char *name;
        tess_status status;
    } names[] = { { "a.b", TESS_OK },      { "a", TESS_OK },      { "a/b", TESS_E_DATA }, { "/b", TESS_E_DATA },
                  { "../b", TESS_E_DATA }, { "..", TESS_E_DATA }, { ".b", TESS_E_DATA },  { "", TESS_E_DATA } };
    char *text;
    size_t bytes;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(file.name, sizeof file.name, "%s", names[i].name);
        assert_int_equal(tess__manifest_write(&m, "m", &text, &bytes), TESS_OK);
        if (tess__manifest_read("m", text, bytes, &got) != names[i].status)
            fail_msg("'%s': %s", names[i].name, tess_last_error());
        if (!names[i].status)
            tess__manifest_free(&got);
        free(text);
    }
    static const char good[] = "0123456789abcdef0123456789abcdef";
    uint8_t sum[TESS__SUM_BYTES];
    char bad[33];
    assert_int_equal(tess__sum_parse(good, sum), 0);
    assert_int_equal(sum[0], 0x01);
    assert_int_equal(sum[15], 0xef);
    for (int i = 0; i < 32; i++)
        for (const char *c = "/:`gAF"; *c; c++) { /* what lies beside the digits */
            snprintf(bad, sizeof bad, "%s", good);
            bad[i] = *c;
            assert_int_not_equal(tess__sum_parse(bad, sum), 0);
        }
    assert_int_not_equal(tess__sum_parse(good + 1, sum), 0);
    assert_int_not_equal(tess__sum_parse("0123456789abcdef0123456789abcdef0", sum), 0);
}

/* ---- lineages ------------------------------------------------------------------------------------------ */
static const tess__lineage stranger = { .n = 1, .runs = { { 9, INT64_MAX } } };

static tess__entry entry_of(uint64_t step, const tess__lineage *of) {
    return (tess__entry){ .step = step, .reads = of != NULL, .lineage = of ? *of : (tess__lineage){ 0 } };
}

static void test_store__pruning_counts_neither_newer_steps_nor_anothers(void **state) {
    (void)state;
    const tess__entry all[] = { entry_of(5, NULL),        entry_of(10, &first_run),  entry_of(15, &stranger),
                                entry_of(20, &first_run), entry_of(25, &second_run), entry_of(27, &second_run),
                                entry_of(30, &first_run) };
    uint64_t doomed[7];
    assert_int_equal(tess__store_doomed(all, 7, &second_run, 25, 1, doomed), 2);
    assert_int_equal(doomed[0], 10);
    assert_int_equal(doomed[1], 20);
    assert_int_equal(tess__store_doomed(all, 7, &second_run, 25, 3, doomed), 0);
    assert_int_equal(tess__store_doomed(all, 7, &second_run, 27, 3, doomed), 1);
    assert_int_equal(doomed[0], 10);
    assert_int_equal(tess__store_doomed(all, 7, &stranger, 30, 1, doomed), 0);
}

/* The best by score stays beside the newest. One of another run, one that is newer and one that is not finite do not
 * count; of equal ones the first does. */
static void test_store__prune_keeps_the_best_of_its_own_lineage(void **state) {
    (void)state;
    static const tess__lineage stranger = { .n = 1, .runs = { { 7, INT64_MAX } } };
    tess__entry all[] = { entry_of(10, &first_run), entry_of(20, &first_run), entry_of(30, &first_run),
                          entry_of(40, &first_run), entry_of(50, &stranger),  entry_of(60, &first_run) };
    const double scores[] = { 3, 2, 2, 1.5, 1, 0.5 };
    uint64_t doomed[6];
    assert_null(tess__store_best(all, 6, &first_run, 60));
    for (int i = 0; i < 6; i++) {
        all[i].has_score = 1;
        all[i].score = scores[i];
    }
    all[3].not_finite = 1;
    assert_ptr_equal(tess__store_best(all, 6, &first_run, 40), &all[1]);
    assert_ptr_equal(tess__store_best(all, 6, &first_run, 60), &all[5]);
    assert_int_equal(tess__store_doomed(all, 6, &first_run, 40, 1, doomed), 1);
    assert_int_equal(doomed[0], 10);
    assert_int_equal(tess__store_doomed(all, 6, &first_run, 60, 1, doomed), 3);
}

static void save_all(tess__store *store, const uint64_t *list, int n) {
    keep = 0;
    for (int i = 0; i < n; i++)
        assert_int_equal(save_step(store, list[i], i, 1), TESS_OK);
    keep = 2;
}

static uint64_t steps_in(const tess__disk *d, const char *dir) { /* 10 and 20: 1020 */
    uint64_t *list = NULL, n = 0, all = 0;
    assert_int_equal(tess__store_list(d, dir, &list, &n), TESS_OK);
    for (uint64_t i = 0; i < n; i++)
        all = all * 100 + list[i];
    free(list);
    return all;
}

static tess__past past_of(const tess__lineage *of, uint64_t step) {
    tess__past p = { .of = *of };
    p.of.runs[p.of.n - 1].until = step;
    return p;
}

static void test_store__a_run_settles_where_it_leaves_nothing_behind(void **state) {
    (void)state;
    static const uint64_t saved[] = { 10, 20, 30, 40 };
    sim_disk *disk = sim_disk_create();
    const tess__disk *d = sim_disk_table(disk);
    tess__past fresh = { .settled = 0 }, newest = past_of(&first_run, 40), back = past_of(&first_run, 20);
    tess__past other = past_of(&stranger, 50), passed = past_of(&first_run, 30);
    tess__store store;
    passed.passed = 40;
    assert_int_equal(tess__store_open(d, DIR_OF_ALL, &store), TESS_OK);
    save_all(&store, saved, 4);
    assert_int_equal(tess__store_settle(&store, &newest, 0), TESS_OK);
    assert_int_equal(tess__lineage_id(&newest.of), 1);
    assert_int_equal(tess__store_settle(&store, &passed, 0), TESS_OK); /* 40 is its own, and does not load */
    assert_int_equal(tess__lineage_id(&passed.of), 1);
    assert_int_equal(tess__store_settle(&store, &fresh, 0), TESS_E_DATA);
    assert_int_equal(tess__store_settle(&store, &other, 0), TESS_E_DATA);
    assert_int_equal(tess__store_settle(&store, &back, 0), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "step 40 and 1 other there would be left behind"));
    assert_non_null(strstr(tess_last_error(), "--on-newer aside"));
    assert_int_equal(steps_in(d, DIR_OF_ALL), 10203040);
    assert_false(fresh.settled || other.settled || back.settled);

    assert_int_equal(tess__store_settle(&store, &back, 1), TESS_OK);
    assert_int_equal(steps_in(d, DIR_OF_ALL), 1020);
    assert_int_equal(steps_in(d, DIR_OF_ALL "/aside-1"), 3040);
    assert_int_equal(back.of.n, 2);
    assert_int_not_equal(tess__lineage_id(&back.of), 1);
    assert_true(tess__lineage_has(&back.of, 1, 20) && !tess__lineage_has(&back.of, 1, 21));
    assert_int_equal(tess__store_settle(&store, &other, 1), TESS_OK);
    assert_int_equal(steps_in(d, DIR_OF_ALL), 0);
    assert_int_equal(steps_in(d, DIR_OF_ALL "/aside-2"), 1020);
    tess__store_close(&store);
    sim_disk_destroy(disk);
}

static void write_text(const tess__disk *d, const char *path, const char *text) {
    int file = d->open(d->self, path, TESS__DISK_CREATE);
    assert_true(file >= 0);
    assert_int_equal(tess__disk_write_all(d, file, text, strlen(text), 0), 0);
    d->close(d->self, file);
}

/* Its data files have names that this version might have left over. */
static void test_store__what_a_newer_format_holds_stays(void **state) {
    (void)state;
    static const uint64_t saved[] = { 10, 20, 30 };
    sim_disk *disk = sim_disk_create();
    const tess__disk *d = sim_disk_table(disk);
    tess__past past = past_of(&first_run, 10);
    tess__store store;
    assert_int_equal(tess__store_open(d, DIR_OF_ALL, &store), TESS_OK);
    save_all(&store, saved, 3);
    tess__store_close(&store);
    write_text(d, DIR_OF_ALL "/step-000020/manifest.json", "{\"format\":\"tessera-checkpoint\",\"version\":5,\"x\":1}");
    int files = sim_disk_files(disk);
    assert_int_equal(tess__store_open(d, DIR_OF_ALL, &store), TESS_OK);
    assert_int_equal(sim_disk_files(disk), files);
    assert_int_equal(save_step(&store, 20, 7, 1), TESS_E_DATA); /* nor is it replaced */
    assert_non_null(strstr(tess_last_error(), "step-000020: a newer tessera wrote it"));
    assert_int_equal(sim_disk_files(disk), files);
    keep = 1;
    assert_int_equal(save_step(&store, 40, 8, 1), TESS_OK); /* nor pruned */
    keep = 2;
    assert_int_equal(steps_in(d, DIR_OF_ALL), 2040);
    assert_int_equal(tess__store_settle(&store, &past, 1), TESS_OK);
    assert_int_equal(steps_in(d, DIR_OF_ALL "/aside-1"), 2040);
    assert_int_equal(sim_disk_files(disk), 4);
    tess__store_close(&store);
    sim_disk_destroy(disk);
}

static void test_store__a_renamed_folder_is_no_checkpoint(void **state) {
    (void)state;
    static const uint64_t saved[] = { 10, 20 };
    sim_disk *disk = sim_disk_create();
    const tess__disk *d = sim_disk_table(disk);
    tess__store store;
    tess__manifest m;
    assert_int_equal(tess__store_open(d, DIR_OF_ALL, &store), TESS_OK);
    save_all(&store, saved, 2);
    assert_int_equal(d->rename(d->self, DIR_OF_ALL "/step-000010", DIR_OF_ALL "/step-000030"), 0);
    assert_int_equal(tess__saved_manifest(d, DIR_OF_ALL "/step-000030", &m), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "renamed: its manifest is of step 10"));
    assert_int_equal(save_step(&store, 30, 7, 1), TESS_E_DATA);
    tess__store_close(&store);
    sim_disk_destroy(disk);
}

static void test_store__a_file_is_no_directory(void **state) {
    (void)state;
    char path[] = "/tmp/tessera-test-XXXXXX", text[128];
    tess__store store;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(tess__store_open(&tess__disk_real, path, &store), TESS_E_DATA);
    snprintf(text, sizeof text, "%s: cannot be made a directory: a file is there", path);
    assert_string_equal(tess_last_error(), text);
    remove(path);
}

static void test_store__a_second_run_on_one_directory_is_refused(void **state) {
    (void)state;
    char dir[] = "/tmp/tessera-test-XXXXXX";
    tess__store one, two;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(tess__store_open(&tess__disk_real, dir, &one), TESS_OK);
    assert_int_equal(tess__store_open(&tess__disk_real, dir, &two), TESS_E_DATA);
    assert_non_null(strstr(tess_last_error(), "another run saves there"));
    tess__store_close(&one);
    assert_int_equal(tess__store_open(&tess__disk_real, dir, &two), TESS_OK);
    tess__store_close(&two);
    assert_int_equal(tess__disk_real.remove(NULL, dir), 0); /* it left nothing there */
}

static int open_files(void) {
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

static void test_store__saving_and_listing_leave_no_file_open(void **state) {
    (void)state;
    char dir[] = "/tmp/tessera-test-XXXXXX", path[PATH_MAX];
    tess__store store;
    tess__saved saved;
    assert_non_null(mkdtemp(dir));
    int before = open_files();
    assert_int_equal(tess__store_open(&tess__disk_real, dir, &store), TESS_OK);
    for (int save = 0; save < 3; save++) {
        uint64_t *list = NULL, n = 0;
        assert_int_equal(save_step(&store, 10 + (uint64_t)save, save, 2), TESS_OK); /* the last prunes */
        assert_int_equal(open_files(), before + 1);
        assert_int_equal(tess__store_list(&tess__disk_real, dir, &list, &n), TESS_OK);
        assert_int_equal(n, save < 2 ? save + 1 : 2);
        assert_int_equal(tess__step_dir(dir, list[0], path), TESS_OK);
        assert_int_equal(tess__saved_open(&tess__disk_real, path, &saved), TESS_OK);
        tess__saved_close(&saved);
        free(list);
        assert_int_equal(open_files(), before + 1);
    }
    for (uint64_t step = 11; step < 13; step++)
        assert_int_equal(tess__store_remove(&tess__disk_real, dir, step), TESS_OK);
    tess__store_close(&store);
    assert_int_equal(open_files(), before);
    assert_int_equal(tess__disk_real.remove(NULL, dir), 0);
}

static void test_store__names_of_pieces_come_back(void **state) {
    (void)state;
    char text[TESS__TENSOR_NAME];
    tess__piece_name got, odd = { .kind = TESS__PIECE_STATE0 + 1, .first = 4096, .name = "a/b@3.weight" };
    assert_int_equal(tess__piece_name_write(&odd, text), TESS_OK);
    assert_string_equal(text, "state1/a/b@3.weight@4096");
    assert_int_equal(tess__piece_name_read(text, &got), 0);
    assert_int_equal(got.kind, odd.kind);
    assert_int_equal(got.first, 4096);
    assert_string_equal(got.name, odd.name);
    tess__piece_name named = odd;
    named.state = (tess_state){ .every = 256, .name = "exp_avg_most" };
    assert_int_equal(tess__piece_name_write(&named, text), TESS_OK);
    assert_string_equal(text, "state1.exp_avg_most:256/a/b@3.weight@4096");
    assert_int_equal(tess__piece_name_read(text, &got), 0);
    assert_int_equal(got.kind, odd.kind);
    assert_int_equal(got.state.every, 256);
    assert_string_equal(got.state.name, "exp_avg_most");
    assert_int_equal(tess__piece_name_read("state1.exp_avg/x@1", &got), -1);
    assert_int_equal(tess__piece_name_read("state1.exp_avg:0/x@1", &got), -1);
    assert_int_equal(tess__piece_name_read("param.exp_avg:1/x@1", &got), -1);
    assert_int_equal(tess__piece_name_read("h.0.weight", &got), -1);
    assert_int_equal(tess__piece_name_read("param/x@", &got), -1);
    assert_int_equal(tess__piece_name_read("stat/x@1", &got), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store__a_failed_sync_gives_the_save_up_and_keeps_the_one_before),
        cmocka_unit_test(test_store__a_file_of_many_chunks_reads_from_any_place),
        cmocka_unit_test(test_store__a_newer_format_and_a_foreign_file_are_named),
        cmocka_unit_test(test_store__a_manifest_reads_as_it_was_written),
        cmocka_unit_test(test_store__a_manifest_with_odd_names_or_sums_is_refused),
        cmocka_unit_test(test_store__pruning_counts_neither_newer_steps_nor_anothers),
        cmocka_unit_test(test_store__prune_keeps_the_best_of_its_own_lineage),
        cmocka_unit_test(test_store__a_run_settles_where_it_leaves_nothing_behind),
        cmocka_unit_test(test_store__what_a_newer_format_holds_stays),
        cmocka_unit_test(test_store__a_renamed_folder_is_no_checkpoint),
        cmocka_unit_test(test_store__a_file_is_no_directory),
        cmocka_unit_test(test_store__a_second_run_on_one_directory_is_refused),
        cmocka_unit_test(test_store__saving_and_listing_leave_no_file_open),
        cmocka_unit_test(test_store__names_of_pieces_come_back),
    };
    tess__log_set_least(TESS_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

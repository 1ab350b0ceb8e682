/* SPDX-License-Identifier: BSD-3-Clause */
/* What a selection means, where plugins are searched, what they receive. Unfit files are in conformance/bad. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/plugin/open.h"
#include "core/plugin/plugin_check.h"

static char scratch[] = "/tmp/tessera-loader-XXXXXX";
static char bad_dir[2048]; /* the modules of conformance/bad, good.so among them */
static char out_text[8192];

static void place(const char *variant, const char *to) {
    static char bytes[1 << 20];
    char from[2200], name[300];
    snprintf(from, sizeof from, "%s/%s.so", bad_dir, variant);
    snprintf(name, sizeof name, "%s/%s", scratch, to);
    FILE *in = fopen(from, "rb"), *out = fopen(name, "wb");
    assert_non_null(in);
    assert_non_null(out);
    size_t n = fread(bytes, 1, sizeof bytes, in);
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

static void folder(const char *name) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    assert_int_equal(mkdir(path, 0755), 0);
}

static void search(const char *folders) { /* "one:two" below the scratch directory */
    char path[2048] = "", copy[1024];
    snprintf(copy, sizeof copy, "%s", folders);
    for (char *word = strtok(copy, ":"); word; word = strtok(NULL, ":"))
        snprintf(path + strlen(path), sizeof path - strlen(path), "%s%s/%s", *path ? ":" : "", scratch, word);
    setenv("TESSERA_PLUGIN_PATH", path, 1);
}

static tess__plugin *opened(uint32_t kind, const char *selection) {
    tess__plugin *plugin = NULL;
    tess_status s = tess__plugin_open(kind, selection, NULL, &plugin);
    if (s)
        print_error("%s\n", tess_last_error());
    assert_int_equal(s, TESS_OK);
    assert_int_equal(plugin->kind, kind);
    return plugin;
}

static void refused(uint32_t kind, const char *selection, const char *words) {
    tess__plugin *plugin = (void *)1;
    assert_int_equal(tess__plugin_open(kind, selection, NULL, &plugin), TESS_E_INVALID);
    assert_ptr_equal(plugin, (void *)1);
    if (!strstr(tess_last_error(), words))
        print_error("'%s' is not in: %s\n", words, tess_last_error());
    assert_non_null(strstr(tess_last_error(), words));
}

/* Standard error of what lies between the two. */
static FILE *aside;
static int saved;
static void listen(void) {
    aside = tmpfile();
    saved = dup(STDERR_FILENO);
    assert_non_null(aside);
    dup2(fileno(aside), STDERR_FILENO);
}
static const char *heard(void) {
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(aside);
    out_text[fread(out_text, 1, sizeof out_text - 1, aside)] = 0;
    fclose(aside);
    return out_text;
}

/* ---- selections -------------------------------------------------------------------------------- */

static void test_loader__name_of_a_built_in_plugin_opens_it(void **state) {
    (void)state;
    tess__plugin *plugin = opened(TESS_KIND_COMM, "self");
    assert_string_equal(plugin->name, "self");
    assert_string_equal(plugin->path, "");
    assert_string_equal(plugin->args, "");
    assert_null(plugin->library);
    /* Its name may begin the variables of others. */
    setenv("TESSERA_SELF_X", "1", 1);
    tess__plugin_close(opened(TESS_KIND_COMM, "self"));
    unsetenv("TESSERA_SELF_X");
    assert_int_equal(plugin->abi_major, TESS_ABI_MAJOR);
    assert_non_null(((const tess_comm_ops *)plugin->ops)->init);
    tess__plugin_close(plugin);
    tess__plugin_close(NULL);
}

static void test_loader__text_that_is_no_name_is_refused(void **state) {
    (void)state;
    refused(TESS_KIND_COMM, "", "comm plugin: empty name, expected [a-z0-9_-]+ or a path with a slash");
    refused(TESS_KIND_COMM, NULL, "empty name");
    refused(TESS_KIND_WRAP, ":x", "wrap plugin: empty name");
    refused(TESS_KIND_COMM, "Self", "comm plugin 'Self': not a plugin's name");
    refused(TESS_KIND_COMM, "lib.so", "a path needs a slash");
    refused(TESS_KIND_COMM, "self ", "not a plugin's name");
    refused(TESS_KIND_COMM, "abcdefghijklmnopqrstuvwxyz012345", "at most 31 characters");
    refused(TESS_KIND_COMM, "..", "not a plugin's name");
    refused(TESS_KIND_COMM, "../self", "comm plugin '../self': no such file");
    refused(TESS_KIND_COMM, "/", "/ is a directory, not a file");
    refused(9, "self", "unknown kind of plugin: 9");
}

static void test_loader__unknown_name_lists_where_it_looked_and_the_nearest(void **state) {
    (void)state;
    search("two:none");
    refused(TESS_KIND_COMM, "slef",
            "comm plugin 'slef' not found; did you mean self? (looked for "
            "libtessera-comm-slef.so; built in are self; ");
    char words[300];
    snprintf(words, sizeof words, "%s/two: has no such file; %s/none: no such directory", scratch, scratch);
    assert_non_null(strstr(tess_last_error(), words));
    refused(TESS_KIND_COMM, "smaple", "did you mean sample?");
    refused(TESS_KIND_COMM, "qqqqqq", "comm plugin 'qqqqqq' not found (looked for");
}

static void test_loader__path_opens_with_args_behind_the_file(void **state) {
    (void)state;
    static const struct {
        const char *file, *args;
    } cases[] = {
        { "plain.so", "" },     { "plain.so:", "" }, { "plain.so:a:b", "a:b" }, { "plain.so:/mnt/x", "/mnt/x" },
        { "noend:x=1", "x=1" },
    };
    place("good", "plain.so");
    place("good", "noend");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char selection[300];
        snprintf(selection, sizeof selection, "%s/%s", scratch, cases[i].file);
        tess__plugin *plugin = opened(TESS_KIND_COMM, selection);
        assert_string_equal(plugin->args, cases[i].args);
        assert_string_equal(plugin->host->args, cases[i].args);
        assert_ptr_equal(plugin->ctx, plugin->args); /* what the sample makes of it */
        tess__plugin_close(plugin);
    }
}

static void test_loader__relative_path_starts_at_the_working_directory(void **state) {
    (void)state;
    char before[2048];
    place("good", "here.so");
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(scratch), 0);
    tess__plugin *plugin = opened(TESS_KIND_COMM, "./here.so:args");
    assert_int_equal(chdir(before), 0);
    char real[300];
    snprintf(real, sizeof real, "%s/here.so", scratch);
    assert_string_equal(plugin->path, real);
    tess__plugin_close(plugin);
}

/* ---- the search -------------------------------------------------------------------------------- */

static void test_loader__name_is_found_in_the_plugin_path(void **state) {
    (void)state;
    search("one:two");
    tess__plugin *plugin = opened(TESS_KIND_COMM, "sample:/mnt/x:y");
    char real[300];
    snprintf(real, sizeof real, "%s/two/libtessera-comm-sample.so", scratch);
    assert_string_equal(plugin->path, real);
    assert_string_equal(plugin->args, "/mnt/x:y");
    assert_string_equal(plugin->version, "1.2.3");
    tess__plugin_close(plugin);
}

static void test_loader__unfit_candidate_is_passed_over_with_a_warning(void **state) {
    (void)state;
    search("broken:two");
    listen();
    tess__plugin *plugin = NULL;
    tess_status s = tess__plugin_open(TESS_KIND_COMM, "sample", NULL, &plugin);
    heard();
    assert_int_equal(s, TESS_OK);
    assert_non_null(strstr(out_text, "warning: comm plugin 'sample' is "));
    assert_non_null(strstr(out_text, "/two/libtessera-comm-sample.so; passed over: "));
    assert_non_null(strstr(out_text, "/broken/libtessera-comm-sample.so: bad magic"));
    tess__plugin_close(plugin);
}

static void test_loader__all_candidates_unfit_is_an_error_that_lists_them(void **state) {
    (void)state;
    tess__plugin *plugin = NULL;
    search("old:broken");
    assert_int_equal(tess__plugin_open(TESS_KIND_COMM, "sample", NULL, &plugin), TESS_E_VERSION);
    assert_non_null(strstr(tess_last_error(), "comm plugin 'sample' cannot be used: "));
    assert_non_null(strstr(tess_last_error(), "/old/libtessera-comm-sample.so: plugin ABI 2."));
    assert_non_null(strstr(tess_last_error(), "; "));
    assert_non_null(strstr(tess_last_error(), "/broken/libtessera-comm-sample.so: bad magic"));
    assert_null(strchr(tess_last_error(), '\n'));
}

static void test_loader__working_directory_is_never_searched(void **state) {
    (void)state;
    char before[2048], two[300];
    assert_non_null(getcwd(before, sizeof before));
    snprintf(two, sizeof two, "%s/two", scratch);
    assert_int_equal(chdir(two), 0);
    setenv("TESSERA_PLUGIN_PATH", ":.::../two:", 1);
    refused(TESS_KIND_COMM, "sample", "comm plugin 'sample' not found");
    assert_non_null(strstr(tess_last_error(), "; .: not an absolute path; ../two: not an absolute path"));
    unsetenv("TESSERA_PLUGIN_PATH");
    refused(TESS_KIND_COMM, "sample", "comm plugin 'sample' not found");
    assert_int_equal(chdir(before), 0);
}

static void test_loader__open_directory_of_the_path_is_not_searched(void **state) {
    (void)state;
    char wide[300];
    search("wide");
    snprintf(wide, sizeof wide, "%s/wide", scratch);
    assert_int_equal(chmod(wide, 0777), 0);
    refused(TESS_KIND_COMM, "sample", "/wide can be written by others (mode 0777)");
    assert_int_equal(chmod(wide, 0755), 0);
    tess__plugin_close(opened(TESS_KIND_COMM, "sample"));
}

/* ---- options and services ---------------------------------------------------------------------- */

static void test_loader__options_set_wrongly_are_the_users_error(void **state) {
    (void)state;
    search("two");
    setenv("TESSERA_SAMPLE_PROT", "1", 1);
    refused(TESS_KIND_COMM, "sample",
            "TESSERA_SAMPLE_PROT is set, but comm plugin sample has no such option; did you "
            "mean TESSERA_SAMPLE_PORT?");
    unsetenv("TESSERA_SAMPLE_PROT");
    setenv("TESSERA_SAMPLE_PORT", "high", 1);
    refused(TESS_KIND_COMM, "sample", "TESSERA_SAMPLE_PORT is 'high', expected an integer");
    setenv("TESSERA_SAMPLE_PORT", "7", 1);
    tess__plugin *plugin = opened(TESS_KIND_COMM, "sample");
    assert_string_equal(plugin->host->option(plugin->host->host, "sample-port"), "7");
    assert_null(plugin->host->option(plugin->host->host, "sample-mode"));
    unsetenv("TESSERA_SAMPLE_PORT");
    tess__plugin_close(plugin);
}

static char logged[256];
static void keep_log(void *host, int32_t level, const char *plugin, const char *message) {
    snprintf(logged, sizeof logged, "%s %d %s %s", (const char *)host, level, plugin, message);
}

static void test_loader__services_reach_the_plugin_and_gaps_are_filled(void **state) {
    (void)state;
    tess_host services = {
        .struct_size = sizeof services, .host = (void *)"mine", .log = keep_log, .numa_node = 1, .max_helper_threads = 3
    };
    tess__plugin *plugin = NULL;
    search("two");
    assert_int_equal(tess__plugin_open(TESS_KIND_COMM, "sample:log", &services, &plugin), TESS_OK);
    assert_string_equal(logged, "mine 1 sample hello");
    const tess_host *h = plugin->host;
    assert_int_equal(h->struct_size, sizeof *h);
    assert_int_equal(h->abi_major, TESS_ABI_MAJOR);
    assert_int_equal(h->numa_node, 1);
    assert_int_equal(h->max_helper_threads, 3);
    assert_string_equal(h->helper_cpus, "");
    assert_int_equal(h->aborting(h->host), 0);
    assert_int_equal(h->kv_set(h->host, "k", "v", 1), TESS_E_UNSUPPORTED);
    void *memory = NULL;
    assert_int_equal(h->mem_alloc(h->host, TESS_DOMAIN_HOST, TESS_CAT_COMM, 100, 64, &memory), TESS_OK);
    assert_int_equal((uintptr_t)memory % 64, 0);
    h->mem_free(h->host, memory);
    tess__plugin_close(plugin);
}

static void test_loader__without_services_a_plugin_logs_to_standard_error(void **state) {
    (void)state;
    search("two");
    listen();
    tess__plugin *plugin = NULL;
    tess_status s = tess__plugin_open(TESS_KIND_COMM, "sample:log", NULL, &plugin);
    heard();
    assert_int_equal(s, TESS_OK);
    assert_string_equal(out_text, "tessera: warning: sample: hello\n");
    tess__plugin_close(plugin);
}

/* ---- the table --------------------------------------------------------------------------------- */

static void test_loader__each_mandatory_slot_is_missed_by_name(void **state) {
    (void)state;
    static const struct {
        uint32_t kind;
        const char *slots; /* the mandatory ones, in the table's order */
    } kinds[] = {
        { TESS_KIND_COMM, "query need init destroy post test wait request_free abort" },
        { TESS_KIND_DEVICE, "describe create destroy mem_alloc mem_free copy fill kernel kernel_need" },
        { TESS_KIND_PRECISION, "choose" },
        { TESS_KIND_WRAP, "assign" },
        { TESS_KIND_OFFLOAD, "place" },
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        tess__common_ops empty = { .struct_size = sizeof empty, .abi_major = TESS_ABI_MAJOR };
        char reason[TESS_REASON_BYTES], want[100];
        assert_int_equal(tess__ops_check(kinds[i].kind, &empty, reason), TESS_E_INVALID);
        snprintf(want, sizeof want, "mandatory slot %.*s is missing", (int)strcspn(kinds[i].slots, " "),
                 kinds[i].slots);
        assert_string_equal(reason, want);
    }
    /* Take one slot at a time from a full table. */
    union {
        tess_device_ops ops;
        void (*words[sizeof(tess_device_ops) / sizeof(void *)])(void);
    } t;
    char reason[TESS_REASON_BYTES], rest[100];
    snprintf(rest, sizeof rest, "%s", kinds[1].slots);
    size_t missed = 0;
    for (size_t w = 2; w < sizeof t.words / sizeof t.words[0]; w++) {
        for (size_t k = 0; k < sizeof t.words / sizeof t.words[0]; k++)
            t.words[k] = (void (*)(void))tess_last_error;
        t.ops.struct_size = sizeof t.ops, t.ops.abi_major = TESS_ABI_MAJOR, t.ops.abi_minor = 0;
        assert_int_equal(tess__ops_check(TESS_KIND_DEVICE, &t.ops, reason), TESS_OK);
        t.words[w] = NULL;
        missed += tess__ops_check(TESS_KIND_DEVICE, &t.ops, reason) != TESS_OK;
    }
    assert_int_equal(missed, 9 + 6); /* the mandatory ones, and those that streams and events need */
}

/* ---- the list ---------------------------------------------------------------------------------- */

static tess_status collect(void *user, const tess__plugin_row *row, tess__plugin **opened) {
    (void)opened;
    char *text = user;
    const char *file = strrchr(row->path, '/');
    size_t n = strlen(text);
    if (row->kind == TESS_KIND_COMM)
        snprintf(text + n, 4096 - n, "%s|%s|%d|%s\n", row->name, file ? file : "", row->usable, row->reason);
    return TESS_OK;
}

static void test_loader__list_has_built_in_ones_files_and_reasons(void **state) {
    (void)state;
    char text[4096] = "";
    search("broken:two:again");
    assert_int_equal(tess__plugin_list(0, NULL, collect, text), TESS_OK);
    const char *want = "self||1|\n"
                       "sample|/libtessera-comm-sample.so|0|bad magic in the descriptor, expected TESSPLG\n"
                       "sample|/libtessera-comm-sample.so|1|\n"
                       "sample|/libtessera-comm-sample.so|0|hidden by one of the same name found before\n";
    assert_memory_equal(text, want, strlen(want));
}

static tess_status stop(void *user, const tess__plugin_row *row, tess__plugin **opened) {
    (void)row, (void)opened;
    ++*(int *)user;
    return TESS_E_SYSTEM;
}

static void test_loader__list_stops_when_the_caller_says_so(void **state) {
    (void)state;
    int calls = 0;
    assert_int_equal(tess__plugin_list(0, NULL, stop, &calls), TESS_E_SYSTEM);
    assert_int_equal(calls, 1);
}

static int remove_one(const char *name, const struct stat *s, int type, struct FTW *ftw) {
    (void)s, (void)type, (void)ftw;
    return remove(name);
}

static int setup(void **state) {
    (void)state;
    static const char *const folders[] = { "one", "two", "again", "broken", "old", "wide" };
    char self[2048];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    umask(022);
    if (n <= 0 || !mkdtemp(scratch))
        return -1;
    self[n] = 0;
    *strrchr(self, '/') = 0;
    snprintf(bad_dir, sizeof bad_dir, "%.2000s/../conformance/bad/plugins", self);
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        folder(folders[i]);
    place("good", "two/libtessera-comm-sample.so");
    place("good", "again/libtessera-comm-sample.so");
    place("good", "wide/libtessera-comm-sample.so");
    place("wrong_magic", "broken/libtessera-comm-sample.so");
    place("wrong_major", "old/libtessera-comm-sample.so");
    return 0;
}

static int teardown(void **state) {
    (void)state;
    return nftw(scratch, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void) {
    unsetenv("TESSERA_LOG");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loader__name_of_a_built_in_plugin_opens_it),
        cmocka_unit_test(test_loader__text_that_is_no_name_is_refused),
        cmocka_unit_test(test_loader__unknown_name_lists_where_it_looked_and_the_nearest),
        cmocka_unit_test(test_loader__path_opens_with_args_behind_the_file),
        cmocka_unit_test(test_loader__relative_path_starts_at_the_working_directory),
        cmocka_unit_test(test_loader__name_is_found_in_the_plugin_path),
        cmocka_unit_test(test_loader__unfit_candidate_is_passed_over_with_a_warning),
        cmocka_unit_test(test_loader__all_candidates_unfit_is_an_error_that_lists_them),
        cmocka_unit_test(test_loader__working_directory_is_never_searched),
        cmocka_unit_test(test_loader__open_directory_of_the_path_is_not_searched),
        cmocka_unit_test(test_loader__options_set_wrongly_are_the_users_error),
        cmocka_unit_test(test_loader__services_reach_the_plugin_and_gaps_are_filled),
        cmocka_unit_test(test_loader__without_services_a_plugin_logs_to_standard_error),
        cmocka_unit_test(test_loader__each_mandatory_slot_is_missed_by_name),
        cmocka_unit_test(test_loader__list_has_built_in_ones_files_and_reasons),
        cmocka_unit_test(test_loader__list_stops_when_the_caller_says_so),
    };
    return cmocka_run_group_tests_name("loader", tests, setup, teardown);
}

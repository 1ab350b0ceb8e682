/* SPDX-License-Identifier: BSD-3-Clause */
/* Every way a plugin file can be unfit, its exact status, and the words that name the fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fenv.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <cmocka.h>

#include "core/plugin/open.h"

static char scratch[] = "/tmp/tessera-bad-XXXXXX"; /* mode 0700, below a sticky directory */
static char path[4096];

static const char *in_scratch(const char *name) {
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    return path;
}

static const char *variant(const char *name) {
    snprintf(path, sizeof path, "%s/%s.so", BAD_PLUGIN_DIR, name);
    return path;
}

static void copy_bytes(const char *from, const char *to, size_t most) {
    static char bytes[1 << 20];
    FILE *in = fopen(from, "rb");
    assert_non_null(in);
    size_t n = fread(bytes, 1, sizeof bytes, in);
    fclose(in);
    FILE *out = fopen(to, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, n < most ? n : most, out), n < most ? n : most);
    assert_int_equal(fclose(out), 0);
}

static size_t file_bytes(const char *name) {
    struct stat s;
    assert_int_equal(stat(name, &s), 0);
    return (size_t)s.st_size;
}

static void copy_good(char to[4096], const char *name) {
    char good[4096];
    snprintf(good, sizeof good, "%s/good.so", BAD_PLUGIN_DIR);
    snprintf(to, 4096, "%s/%s", scratch, name);
    copy_bytes(good, to, SIZE_MAX);
}

static void assert_refused(const char *selection, tess_status status, const char *words) {
    tess__plugin *plugin = (void *)1;
    assert_int_equal(tess__plugin_open(TESS_KIND_COMM, selection, NULL, &plugin), status);
    assert_ptr_equal(plugin, (void *)1);
    const char *message = tess_last_error();
    if (!strstr(message, words))
        print_error("'%s' is not in: %s\n", words, message);
    assert_non_null(strstr(message, words));
    assert_null(strchr(message, '\n'));
}

static void assert_accepted(const char *selection) {
    tess__plugin *plugin = NULL;
    tess_status s = tess__plugin_open(TESS_KIND_COMM, selection, NULL, &plugin);
    if (s)
        print_error("%s\n", tess_last_error());
    assert_int_equal(s, TESS_OK);
    assert_string_equal(plugin->name, "sample");
    assert_string_equal(plugin->version, "1.2.3");
    tess__plugin_close(plugin);
}

/* ---- faults compiled in ------------------------------------------------------------------------ */

static void test_bad_plugins__each_variant_is_refused_by_name_of_its_fault(void **state) {
    (void)state;
    static const struct {
        const char *name;
        tess_status status;
        const char *words;
    } cases[] = {
        { "wrong_magic", TESS_E_INVALID, "bad magic" },
        { "wrong_major", TESS_E_VERSION, "plugin ABI 2." },
        { "newer_core", TESS_E_VERSION, "needs a core of ABI 1.900 or newer, this one has 1." },
        { "small_note", TESS_E_INVALID, "a descriptor of 96 bytes, expected at least 128" },
        { "wrong_kind", TESS_E_INVALID, "plugin sample is not of kind comm (its kinds: 0x10)" },
        { "bad_name", TESS_E_INVALID, "its name is not [a-z0-9_-]+" },
        { "endless_name", TESS_E_INVALID, "the descriptor's texts do not end" },
        { "other_section", TESS_E_INVALID, "no plugin: it has no section .tessera.plugin" },
        { "no_open", TESS_E_INVALID, "symbol tess_plugin_open_v1 is missing" },
        { "open_fails", TESS_E_DEVICE, "open failed: no card in slot 3 (TESS_E_DEVICE)" },
        { "open_pending", TESS_E_INVALID, "open returned 1, expected 0 or a negative status" },
        { "open_gives_nothing", TESS_E_INVALID, "open gave no table" },
        { "missing_post", TESS_E_INVALID, "mandatory slot post is missing" },
        { "short_table", TESS_E_INVALID, "mandatory slot post is missing" },
        { "tiny_table", TESS_E_INVALID, "a table of 4 bytes" },
        { "table_major", TESS_E_VERSION, "a table of ABI 3." },
        { "alloc_without_free", TESS_E_INVALID, "mandatory slot mem_free is missing beside mem_alloc" },
        { "declares_type", TESS_E_INVALID, "declares option 'sample-level' of unknown type 99" },
        { "declares_fallback", TESS_E_INVALID,
          "declares option 'sample-level' with the fallback 'x', expected an integer from 1 to 8" },
        { "declares_endless", TESS_E_INVALID, "and texts that end" },
        { "declares_core", TESS_E_INVALID, "declares option 'timeout', which begins with neither" },
        { "declares_stranger", TESS_E_INVALID, "declares option 'other-port', which begins with neither" },
        { "declares_choice", TESS_E_INVALID, "declares option 'sample-level' without choices" },
        { "declares_odd", TESS_E_INVALID, "section .tessera.options has 928 bytes of type 1, in options of" },
        { "declares_short", TESS_E_INVALID, "in options of 96; expected at least 448 for each" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_refused(variant(cases[i].name), cases[i].status, cases[i].words);
}

static void test_bad_plugins__good_one_and_longer_table_are_accepted(void **state) {
    (void)state;
    assert_accepted(variant("good"));
    assert_accepted(variant("longer_table"));
}

static int said;
static void count_words(void *host, int32_t level, const char *plugin, const char *message) {
    (void)host, (void)level, (void)plugin, (void)message;
    said++;
}

/* Opens the variant, whose open says a word. */
static tess_status open_with(const char *name, const char *variable, const char *text) {
    const tess_host services = { .struct_size = sizeof services, .log = count_words, .args = "" };
    tess__plugin *plugin = NULL;
    char selection[4200];
    said = 0;
    snprintf(selection, sizeof selection, "%s:log", variant(name));
    setenv(variable, text, 1);
    tess_status s = tess__plugin_open(TESS_KIND_COMM, selection, &services, &plugin);
    unsetenv(variable);
    tess__plugin_close(plugin);
    return s;
}

static void assert_bad_value(const char *name, const char *variable, const char *text, int words,
                             const char *expected) {
    assert_int_equal(open_with(name, variable, text), TESS_E_INVALID);
    assert_int_equal(said, words);
    if (!strstr(tess_last_error(), expected))
        print_error("'%s' is not in: %s\n", expected, tess_last_error());
    assert_non_null(strstr(tess_last_error(), expected));
}

static void test_bad_plugins__declared_value_is_judged_before_open_runs(void **state) {
    (void)state;
    assert_bad_value("declares", "TESSERA_SAMPLE_LEVEL", "9", 0,
                     "TESSERA_SAMPLE_LEVEL is '9', expected an integer from 1 to 8");
    assert_bad_value("declares", "TESSERA_SAMPLE_LEVLE", "3", 0,
                     "TESSERA_SAMPLE_LEVLE is set, but comm plugin sample has no such option; did you mean "
                     "TESSERA_SAMPLE_LEVEL?");
    assert_int_equal(open_with("declares", "TESSERA_SAMPLE_LEVEL", "8"), TESS_OK);
    assert_int_equal(said, 1);
    assert_bad_value("good", "TESSERA_SAMPLE_MODE", "loud", 0,
                     "TESSERA_SAMPLE_MODE is 'loud', expected one of calm|wild");
    assert_int_equal(open_with("good", "TESSERA_SAMPLE_MODE", "wild"), TESS_OK);
    /* Longer options are walked by their size, and a later header's type is the plugin's to judge. */
    assert_bad_value("declares_longer", "TESSERA_SAMPLE_LEVEL", "0", 0, "expected an integer from 1 to 8");
    assert_int_equal(open_with("declares_longer", "TESSERA_SAMPLE_DEPTH", "any"), TESS_OK);
    assert_int_equal(open_with("declares_later", "TESSERA_SAMPLE_LEVEL", "red"), TESS_OK);
}

static int loud_open(void) {
    tess__plugin *plugin = NULL;
    tess_status s = tess__plugin_open(TESS_KIND_COMM, variant("changes_mode"), NULL, &plugin);
    tess__plugin_close(plugin);
    return s;
}

static void test_bad_plugins__changed_float_mode_is_restored_and_named(void **state) {
    (void)state;
    char text[2048];
    FILE *aside = tmpfile();
    int saved = dup(STDERR_FILENO), rounding = fegetround();
#if defined(__SSE2__)
    unsigned before = _mm_getcsr() & ~0x3fu;
#endif
    dup2(fileno(aside), STDERR_FILENO);
    int s = loud_open();
    dup2(saved, STDERR_FILENO);
    close(saved);
#if defined(__SSE2__)
    assert_int_equal(_mm_getcsr() & ~0x3fu, before);
#endif
    assert_int_equal(fegetround(), rounding);
    assert_int_equal(s, TESS_OK);
    rewind(aside);
    text[fread(text, 1, sizeof text - 1, aside)] = 0;
    fclose(aside);
    assert_non_null(strstr(text, "plugin sample ("));
    assert_non_null(strstr(text, "changes_mode.so) changed the thread's rounding or denormal mode"));
}

/* ---- faults of the file ------------------------------------------------------------------------ */

static void test_bad_plugins__every_truncation_is_a_message(void **state) {
    (void)state;
    char good[4096];
    snprintf(good, sizeof good, "%s", variant("good"));
    size_t whole = file_bytes(good);
    char cut[4096];
    snprintf(cut, sizeof cut, "%s/cut.so", scratch);
    for (size_t n = 0; n < whole; n += 64) {
        copy_bytes(good, cut, n);
        assert_refused(cut, TESS_E_INVALID, n < 4 ? "not an ELF file" : "truncated");
    }
    copy_bytes(good, cut, whole - 1);
    assert_refused(cut, TESS_E_INVALID, "truncated");
    copy_bytes(good, cut, whole);
    assert_accepted(cut);
}

static void write_file(const char *name, const void *bytes, size_t n) {
    FILE *out = fopen(name, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
}

static void test_bad_plugins__file_that_is_no_shared_object_here_is_refused(void **state) {
    (void)state;
    char name[4096];
    snprintf(name, sizeof name, "%s", in_scratch("text.so"));
    write_file(name, "#!/bin/sh\nexit 0\n", 17);
    assert_refused(name, TESS_E_INVALID, "not an ELF file");
    write_file(name, "", 0);
    assert_refused(name, TESS_E_INVALID, "not an ELF file");

    copy_good(name, "machine.so");
    FILE *f = fopen(name, "r+b");
    fseek(f, 18, SEEK_SET); /* e_machine */
    fwrite("\x08\x00", 1, 2, f);
    fclose(f);
    assert_refused(name, TESS_E_INVALID, "for another machine: ELF machine 8");

    copy_good(name, "relocatable.so");
    f = fopen(name, "r+b");
    fseek(f, 16, SEEK_SET); /* e_type */
    fwrite("\x01\x00", 1, 2, f);
    fclose(f);
    assert_refused(name, TESS_E_INVALID, "not a shared object: ELF type 1, expected 3");
}

static void test_bad_plugins__missing_file_and_directory_are_told_apart(void **state) {
    (void)state;
    assert_refused(in_scratch("nowhere.so"), TESS_E_INVALID, "no such file");
    assert_refused(in_scratch("no/where.so"), TESS_E_INVALID, "no such file");
    assert_int_equal(mkdir(in_scratch("folder.so"), 0700), 0);
    assert_refused(in_scratch("folder.so"), TESS_E_INVALID, "folder.so is a directory, not a file");
    assert_int_equal(mkfifo(in_scratch("pipe.so"), 0600), 0);
    assert_refused(in_scratch("pipe.so"), TESS_E_INVALID, "pipe.so is not a regular file");
    char name[4096], below[4200];
    copy_good(name, "file.so");
    snprintf(below, sizeof below, "%s/x.so", name);
    assert_refused(below, TESS_E_INVALID, "file.so is not a directory");
}

/* ---- who can change it ------------------------------------------------------------------------- */

static void test_bad_plugins__file_that_others_can_write_is_refused(void **state) {
    (void)state;
    char name[4096];
    copy_good(name, "open.so");
    assert_int_equal(chmod(name, 0666), 0);
    assert_refused(name, TESS_E_INVALID, "open.so can be written by others (mode 0666)");
    assert_int_equal(chmod(name, 0444), 0);
    assert_accepted(name);
}

static void test_bad_plugins__group_counts_as_others_unless_it_is_the_owners_own(void **state) {
    (void)state;
    char name[4096];
    if (geteuid() != 0) {
        print_message("skipped: only root can give a file to another group\n");
        skip();
    }
    copy_good(name, "group.so");
    assert_int_equal(chown(name, 0, 12345), 0);
    assert_int_equal(chmod(name, 0664), 0);
    assert_refused(name, TESS_E_INVALID, "group.so can be written by others (mode 0664)");
    assert_int_equal(chown(name, 0, 0), 0);
    assert_accepted(name);
}

static void test_bad_plugins__file_or_link_of_another_user_is_refused(void **state) {
    (void)state;
    char name[4096], link[4096];
    if (geteuid() != 0) {
        print_message("skipped: only root can give a file to another user\n");
        skip();
    }
    copy_good(name, "theirs.so");
    assert_int_equal(chown(name, 12345, 0), 0);
    assert_refused(name, TESS_E_INVALID, "theirs.so belongs to user 12345, who is neither root nor you");
    assert_int_equal(chown(name, 0, 0), 0);
    snprintf(link, sizeof link, "%s/their_link.so", scratch);
    assert_int_equal(symlink(name, link), 0);
    assert_int_equal(lchown(link, 12345, 0), 0);
    assert_refused(link, TESS_E_INVALID, "their_link.so belongs to user 12345");
}

static void make_open_folder(const char *folder, const char *sub, mode_t mode) {
    char name[256];
    assert_int_equal(mkdir(in_scratch(folder), 0755), 0);
    if (sub) {
        snprintf(name, sizeof name, "%s/%s", folder, sub);
        assert_int_equal(mkdir(in_scratch(name), 0755), 0);
    }
    snprintf(name, sizeof name, "%s%s%s/x.so", folder, sub ? "/" : "", sub ? sub : "");
    copy_good((char[4096]){ 0 }, name);
    assert_int_equal(chmod(in_scratch(folder), mode), 0);
}

static void test_bad_plugins__directory_that_others_can_write_is_refused(void **state) {
    (void)state;
    make_open_folder("wide", NULL, 0777);
    assert_refused(in_scratch("wide/x.so"), TESS_E_INVALID, "/wide can be written by others (mode 0777)");
    make_open_folder("sticky", NULL, 01777);
    assert_refused(in_scratch("sticky/x.so"), TESS_E_INVALID, "/sticky can be written by others (mode 1777)");
    make_open_folder("above", "sub", 0777);
    assert_refused(in_scratch("above/sub/x.so"), TESS_E_INVALID, "/above can be written by others (mode 0777)");
    make_open_folder("above_sticky", "sub", 01777);
    assert_accepted(in_scratch("above_sticky/sub/x.so"));
}

static void test_bad_plugins__link_is_followed_and_its_end_checked(void **state) {
    (void)state;
    char name[4096], link[4096];
    copy_good(name, "end.so");
    snprintf(link, sizeof link, "%s/link.so", scratch);
    assert_int_equal(symlink("end.so", link), 0);
    assert_accepted(link);
    assert_int_equal(chmod(name, 0646), 0);
    assert_refused(link, TESS_E_INVALID, "end.so can be written by others (mode 0646)");
    /* A link that lies in an open directory could be pointed elsewhere. */
    assert_int_equal(chmod(name, 0644), 0);
    assert_int_equal(mkdir(in_scratch("swap"), 0755), 0);
    snprintf(link, sizeof link, "%s/swap/link.so", scratch);
    assert_int_equal(symlink("../end.so", link), 0);
    assert_accepted(link);
    assert_int_equal(chmod(in_scratch("swap"), 0777), 0);
    assert_refused(link, TESS_E_INVALID, "/swap can be written by others (mode 0777)");
    snprintf(link, sizeof link, "%s/round.so", scratch);
    assert_int_equal(symlink("round.so", link), 0);
    assert_refused(link, TESS_E_INVALID, "more than 40 symbolic links");
    snprintf(link, sizeof link, "%s/dangling.so", scratch);
    assert_int_equal(symlink("gone", link), 0);
    assert_refused(link, TESS_E_INVALID, "no such file");
}

static int remove_one(const char *name, const struct stat *s, int type, struct FTW *ftw) {
    (void)s, (void)type, (void)ftw;
    return remove(name);
}

static int setup(void **state) {
    (void)state;
    umask(022);
    return mkdtemp(scratch) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    return nftw(scratch, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void) {
    unsetenv("TESSERA_LOG");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_plugins__each_variant_is_refused_by_name_of_its_fault),
        cmocka_unit_test(test_bad_plugins__good_one_and_longer_table_are_accepted),
        cmocka_unit_test(test_bad_plugins__declared_value_is_judged_before_open_runs),
        cmocka_unit_test(test_bad_plugins__changed_float_mode_is_restored_and_named),
        cmocka_unit_test(test_bad_plugins__every_truncation_is_a_message),
        cmocka_unit_test(test_bad_plugins__file_that_is_no_shared_object_here_is_refused),
        cmocka_unit_test(test_bad_plugins__missing_file_and_directory_are_told_apart),
        cmocka_unit_test(test_bad_plugins__file_that_others_can_write_is_refused),
        cmocka_unit_test(test_bad_plugins__group_counts_as_others_unless_it_is_the_owners_own),
        cmocka_unit_test(test_bad_plugins__file_or_link_of_another_user_is_refused),
        cmocka_unit_test(test_bad_plugins__directory_that_others_can_write_is_refused),
        cmocka_unit_test(test_bad_plugins__link_is_followed_and_its_end_checked),
    };
    return cmocka_run_group_tests_name("bad plugins", tests, setup, teardown);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Lines of a ledger by themselves: what ends one, what a reader takes and refuses, and how its members are found. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/hash.h"
#include "core/base/status.h"

static struct { int dup_fails, open_fails, read_fails, opened; } disk;
static int dup_disk(int fd) {
    errno = EMFILE;
    int copy = disk.dup_fails ? -1 : dup(fd);
    disk.opened += copy >= 0;
    return copy;
}
static FILE *open_disk(int fd) {
    errno = ENOMEM;
    return disk.open_fails ? NULL : fdopen(fd, "r");
}
static int close_fd(int fd) {
    disk.opened--;
    return close(fd);
}
static int close_file(FILE *f) {
    disk.opened--;
    return fclose(f);
}
static int failed(FILE *f) {
    errno = EIO;
    return disk.read_fails || ferror(f);
}
#define dup(fd) dup_disk(fd)
#define fdopen(fd, mode) open_disk(fd)
#define close(fd) close_fd(fd)
#define fclose(f) close_file(f)
#define ferror(f) failed(f)
#include "core/proof/chain.c"
#undef dup
#undef close

enum { MOST = 512 };
static char read_lines_text[MOST];
static uint64_t stops_at;

static tess_status take(void *user, const char *line, uint64_t number) {
    assert_ptr_equal(user, &disk);
    size_t at = strlen(read_lines_text);
    snprintf(read_lines_text + at, MOST - at, "%d %s\n", (int)number, line);
    return number == stops_at ? tess__fail(TESS_E_INVALID, "enough") : TESS_OK;
}

/* Lines as they are written, each from its beginning to before its chain. */
static size_t write_lines(char *out, int n, const char *const *lines) {
    uint64_t chain = tess__chain_start();
    size_t all = 0;
    for (int i = 0; i < n; i++) {
        strcpy(out + all, lines[i]);
        all += tess__chain_end(out + all, strlen(lines[i]), &chain);
    }
    return all;
}

static tess_status read_text(const char *text, size_t bytes, tess__chain_read_info *info) {
    int fd = memfd_create("ledger", 0);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, bytes), bytes);
    read_lines_text[0] = 0;
    *info = (tess__chain_read_info){ .lines = 77 };
    tess_status s = tess__chain_read(fd, "the path", take, &disk, info);
    assert_int_equal(disk.opened, 0);
    assert_true(lseek(fd, 0, SEEK_CUR) >= 0); /* it is open still */
    close(fd);
    return s;
}

static const char *const three[] = { "{\"type\":\"begin\",\"format\":1", "{\"a\":\"x\"",
                                     "{\"type\":\"end\",\"step\":1" };

/* FNV-1a over all bytes of the lines before their chains; reckoned apart from this program. */
static void test_chain__is_carried_from_line_to_line(void **state) {
    (void)state;
    char text[MOST];
    tess__chain_read_info info;
    size_t bytes = write_lines(text, 3, three);
    assert_string_equal(text, "{\"type\":\"begin\",\"format\":1,\"chain\":\"d09f3f0f4f84cb11\"}\n"
                              "{\"a\":\"x\",\"chain\":\"a8f52bfd153f6775\"}\n"
                              "{\"type\":\"end\",\"step\":1,\"chain\":\"4e92cc67efcd71be\"}\n");
    assert_int_equal(read_text(text, bytes, &info), TESS_OK);
    assert_string_equal(read_lines_text,
                        "1 {\"type\":\"begin\",\"format\":1}\n2 {\"a\":\"x\"}\n3 {\"type\":\"end\",\"step\":1}\n");
    assert_true(info.lines == 3 && info.bytes == bytes && !info.cut && info.chain == UINT64_C(0x4e92cc67efcd71be));
    assert_int_equal(read_text(text, 0, &info), TESS_OK);
    assert_true(info.lines == 0 && info.bytes == 0 && !info.cut && info.chain == tess__chain_start());
}

/* Wherever a death cuts the file, the lines before are read. */
static void test_chain__reads_the_lines_before_a_cut(void **state) {
    (void)state;
    char text[MOST];
    tess__chain_read_info info;
    size_t bytes = write_lines(text, 3, three);
    for (size_t n = 1; n <= bytes; n++) {
        size_t lines = 0, whole = 0;
        for (size_t i = 0; i < n; i++)
            if (text[i] == '\n')
                lines++, whole = i + 1;
        assert_int_equal(read_text(text, n, &info), TESS_OK);
        assert_true(info.lines == lines && info.bytes == whole && info.cut == (whole < n));
    }
}

static void refused(const char *text, size_t bytes, const char *why) {
    tess__chain_read_info info;
    assert_int_equal(read_text(text, bytes, &info), TESS_E_DATA);
    assert_string_equal(tess_last_error(), why);
    assert_int_equal(info.lines, 77); /* nothing is said of it */
}

static void test_chain__refuses_what_is_none(void **state) {
    (void)state;
    static const char *const no_begin[] = { "{\"type\":\"step\",\"format\":1" }, *const other[] = {
        "{\"type\":\"begin\",\"format\":2"
    };
    char text[MOST];
    size_t bytes = write_lines(text, 1, no_begin);
    refused(text, bytes, "the path: line 1 begins no ledger that this version reads");
    bytes = write_lines(text, 1, other);
    refused(text, bytes, "the path: line 1 begins no ledger that this version reads");
    refused("{}\n", 3, "the path: line 1 is none of a ledger of digests");
    bytes = write_lines(text, 2, three);
    text[60] = 0;
    refused(text, bytes, "the path: line 2 is none of a ledger of digests");
    bytes = write_lines(text, 3, three);
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != '\n') {
            char want[128];
            int line = 1;
            for (size_t k = 0; k < i; k++)
                line += text[k] == '\n';
            snprintf(want, sizeof want,
                     "the path: line %d is not as it was written: it, or a line before it, was changed or removed",
                     line);
            text[i] ^= 1;
            if (text[i] != '\n')
                refused(text, bytes, want);
            text[i] ^= 1;
        }
    stops_at = 2;
    tess__chain_read_info info;
    assert_int_equal(read_text(text, bytes, &info), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "enough");
    assert_int_equal(info.lines, 77);
    stops_at = 0;
    disk.dup_fails = 1;
    refused(text, bytes, "the path: Too many open files");
    disk.dup_fails = 0, disk.open_fails = 1;
    refused(text, bytes, "the path: Cannot allocate memory");
    disk.open_fails = 0, disk.read_fails = 1;
    refused(text, bytes, "the path: Input/output error");
    disk.read_fails = 0;
}

static void test_chain__finds_the_members_of_a_line(void **state) {
    (void)state;
    static const char line[] = "{\"n\":12,\"text\":\"a\\\"b\\\\\",\"empty\":\"\",\"list\":[3,4],\"last\":7}";
    static const struct {
        const char *key, *value;
        long bytes;
        uint64_t number;
    } members[] = { { "n", "12", 2, 12 },   { "text", "a\"b\\", 4, 0 }, { "empty", "", 0, 0 },
                    { "list", "[3", 2, 0 }, { "last", "7", 1, 7 },      { "none", NULL, -1, 0 } };
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        for (size_t room = 0; room < 8; room++) {
            char out[8] = "zzzzzzz", want[8] = "zzzzzzz";
            assert_int_equal(tess__chain_member(line, members[i].key, out, room), members[i].bytes);
            if (room && members[i].value) /* as snprintf */
                snprintf(want, room, "%s", members[i].value);
            if (members[i].value && room)
                assert_string_equal(out, want);
            else
                assert_string_equal(out, "zzzzzzz");
        }
        assert_int_equal(tess__chain_number(line, members[i].key), members[i].number);
    }
    char out[8];
    assert_int_equal(tess__chain_member("{\"cut\":\"ab\\", "cut", out, sizeof out), 3); /* a line that breaks off */
    assert_int_equal(tess__chain_member("{\"cut\":12", "cut", out, sizeof out), 2);
}

static void test_chain__compares_words_by_their_keys(void **state) {
    (void)state;
    static const struct {
        const char *a, *b, *in_a, *in_b;
    } pairs[] = { { "", "", NULL, NULL },
                  { "lr=1 seed=2", "seed=2 lr=1", NULL, NULL },
                  { "lr=1", "", NULL, NULL },
                  { "", "lr=1", NULL, NULL },
                  { "lr=1", "lr=2", "lr=1", "lr=2" },
                  { "lr=1", "lr=12", "lr=1", "lr=12" },
                  { "lr=12", "lr=1", "lr=12", "lr=1" },
                  { "a=1 lr=3 b=2", "b=2 lr=4 a=1", "lr=3", "lr=4" },
                  { "l=1", "lr=2", NULL, NULL },
                  { "lr=1", "l=2", NULL, NULL },
                  { "steps=4 x=1", "steps=9 x=1", NULL, NULL },
                  { "steps=4 x=1", "steps=9 x=2", "x=1", "x=2" },
                  { "step=4", "step=5", "step=4", "step=5" },
                  { "fast slow", "fast", NULL, NULL },
                  { "x=long", "y=1 x=short", "x=lo", "x=sh" } };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const size_t room = i == 14 ? 5 : 64;
        char a[64] = "", b[64] = "";
        assert_int_equal(tess__chain_differ(pairs[i].a, pairs[i].b, a, b, room), pairs[i].in_a != NULL);
        assert_string_equal(a, pairs[i].in_a ? pairs[i].in_a : "");
        assert_string_equal(b, pairs[i].in_b ? pairs[i].in_b : "");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain__is_carried_from_line_to_line),
        cmocka_unit_test(test_chain__reads_the_lines_before_a_cut),
        cmocka_unit_test(test_chain__refuses_what_is_none),
        cmocka_unit_test(test_chain__finds_the_members_of_a_line),
        cmocka_unit_test(test_chain__compares_words_by_their_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

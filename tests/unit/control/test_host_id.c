/* SPDX-License-Identifier: BSD-3-Clause */
/* Which ranks share a host: one kernel, by its boot, and one network namespace; without /proc, one name. Then how hosts
 * are counted. The system's answers are the test's own. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { FD = 0 }; /* the least there is */
static struct {
    const char *boot, *space, *name; /* boot, space null: not to be read */
    int opens, opened;
} system_is;

static int open_boot(const char *path, int flags) {
    assert_true(flags == (O_RDONLY | O_CLOEXEC) && strcmp(path, "/proc/sys/kernel/random/boot_id") == 0);
    system_is.opened += system_is.opens;
    return system_is.opens ? FD : -1;
}
static ssize_t give(const char *text, char *to, size_t n) {
    size_t length = text ? strlen(text) : 0;
    memset(to, '?', n); /* whatever was there */
    if (!text)
        return -1;
    memcpy(to, text, length < n ? length : n);
    return (ssize_t)(length < n ? length : n);
}
static ssize_t read_boot(int fd, char *to, size_t n) {
    assert_true(fd == FD && system_is.opened == 1 && n == 63);
    return give(system_is.boot, to, n);
}
static int close_boot(int fd) {
    assert_int_equal(fd, FD);
    return --system_is.opened;
}
static ssize_t read_link(const char *path, char *to, size_t n) {
    assert_true(strcmp(path, "/proc/self/ns/net") == 0 && n == 63);
    return give(system_is.space, to, n);
}
static int host_name(char *to, size_t n) {
    assert_int_equal(n, 255);
    strcpy(to, system_is.name);
    return 0;
}
#define open(path, flags) open_boot(path, flags)
#define read(fd, to, n) read_boot(fd, to, n)
#define close(fd) close_boot(fd)
#define readlink(path, to, n) read_link(path, to, n)
#define gethostname(to, n) host_name(to, n)
#include "core/control/host_id.c"

static uint64_t id_of(const char *boot, const char *space, const char *name) {
    system_is.opens = boot != NULL;
    system_is.boot = boot && *boot ? boot : NULL;
    system_is.space = space;
    system_is.name = name;
    uint64_t id = tess__host_id();
    assert_int_equal(system_is.opened, 0);
    return id;
}

static void test_host_id__a_boot_and_a_network_namespace_make_a_host(void **state) {
    char longest[65] = "";
    (void)state;
    const uint64_t id = id_of("boot 1", "net:[1]", "a");
    assert_true(id == id_of("boot 1", "net:[1]", "b")); /* two may have one name, and one two */
    assert_true(id != id_of("boot 2", "net:[1]", "a") && id != id_of("boot 1", "net:[2]", "a"));
    memset(longest, 'x', 64);
    assert_true(id_of(longest, longest, "a") == id_of(longest, longest, "b")); /* and ends where its room does */
    const uint64_t nothing = id_of("boot 1", NULL, "a");
    assert_true(nothing != id && nothing == id_of("boot 1", NULL, "b"));
    for (int empty = 0; empty < 2; empty++) { /* not there, or without a word */
        const char *boot = empty ? "" : NULL;
        assert_true(id_of(boot, NULL, "a") != id_of(boot, NULL, "b"));
        assert_true(id_of(boot, NULL, "a") == id_of(boot, NULL, "a"));
        assert_true(id_of(boot, "net:[1]", "a") != id_of(boot, "net:[2]", "a"));
    }
}

static void test_host_id__the_most_ranks_of_a_host(void **state) {
    static const uint64_t ids[6] = { 7, 5, 7, 5, 5, 3 };
    (void)state;
    static const int32_t most[7] = { 0, 1, 1, 2, 2, 3, 3 };
    for (int32_t n = 0; n <= 6; n++)
        assert_int_equal(tess__most_on_a_host(ids, n), most[n]);
    assert_int_equal(tess__most_on_a_host(ids + 3, 2), 2);
}

/* The layout is who shares a host with whom, whatever the hosts' numbers. */
static void test_host_id__layouts_are_told_apart(void **state) {
    static const uint64_t ids[][4] = { { 1, 1, 2, 2 }, { 9, 9, 8, 8 }, { 1, 2, 1, 2 }, { 1, 2, 2, 1 },
                                       { 1, 1, 1, 2 }, { 1, 2, 3, 3 }, { 1, 1, 1, 1 } };
    (void)state;
    for (int i = 0; i < 7; i++)
        for (int k = 0; k < i; k++)
            assert_int_equal(tess__layout_of_hosts(ids[i], 4) == tess__layout_of_hosts(ids[k], 4), i == 1 && k == 0);
    assert_true(tess__layout_of_hosts(ids[6], 3) != tess__layout_of_hosts(ids[6], 4));
    static const uint64_t spread[] = { 7, 5, 5, 7, 3, 5 }, firsts[] = { 0, 1, 1, 0, 4, 1 };
    uint64_t h = tess__hash_u64(TESS__HASH_START, 6); /* each counts as the first rank of its host */
    for (int i = 0; i < 6; i++)
        h = tess__hash_u64(h, firsts[i]);
    assert_true(tess__layout_of_hosts(spread, 6) == h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_id__a_boot_and_a_network_namespace_make_a_host),
        cmocka_unit_test(test_host_id__the_most_ranks_of_a_host),
        cmocka_unit_test(test_host_id__layouts_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

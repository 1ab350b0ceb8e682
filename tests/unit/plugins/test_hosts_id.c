/* SPDX-License-Identifier: BSD-3-Clause */
/* By which comm-hosts takes two ranks for neighbours: one kernel and one network namespace. The system's answers are
 * the test's own. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static struct {
    const char *boot, *space; /* null: not to be read */
    int fd, opened;           /* as the system numbers it */
} world;

static int open_boot(const char *path, int flags) {
    assert_int_equal(flags, O_RDONLY | O_CLOEXEC);
    assert_string_equal(path, "/proc/sys/kernel/random/boot_id");
    world.opened += world.boot != NULL;
    return world.boot ? world.fd : -1;
}
static ssize_t read_boot(int fd, void *to, size_t n) {
    assert_true(fd == world.fd && n >= 64);
    memcpy(to, world.boot, strlen(world.boot));
    return (ssize_t)strlen(world.boot);
}
static int close_boot(int fd) {
    assert_int_equal(fd, world.fd);
    return --world.opened;
}
static ssize_t read_link(const char *path, char *to, size_t n) {
    assert_string_equal(path, "/proc/self/ns/net");
    assert_true(n >= 64);
    if (!world.space)
        return -1;
    memcpy(to, world.space, strlen(world.space));
    return (ssize_t)strlen(world.space);
}
#define open(path, flags) open_boot(path, flags)
#define read(fd, to, n) read_boot(fd, to, n)
#define close(fd) close_boot(fd)
#define readlink(path, to, n) read_link(path, to, n)
#include "plugins/comm-hosts/layout.c"

/* What another call left on the stack has no part in it. */
__attribute__((noinline)) static void leave(int byte) {
    char room[4096];
    memset(room, byte, sizeof room);
    __asm__ volatile("" : : "r"(room) : "memory");
}

static uint64_t id_of(const char *boot, const char *space) {
    world.boot = boot;
    world.space = space;
    leave(world.fd + 1);
    uint64_t id = hosts_id();
    assert_int_equal(world.opened, 0);
    assert_true(id != 0);
    return id;
}

static void test_hosts_id__a_kernel_and_a_network_namespace_make_a_host(void **state) {
    (void)state;
    static const char *const what[] = { "a", "b", "ab", "ba", NULL };
    uint64_t seen[25];
    for (world.fd = 0; world.fd < 4; world.fd += 3) /* also where it is the first of the process */
        for (int i = 0; i < 25; i++) {
            uint64_t id = id_of(what[i / 5], what[i % 5]);
            assert_true(world.fd == 0 || id == seen[i]); /* the same in every process */
            seen[i] = id;
        }
    for (int i = 0; i < 4; i++) /* another kernel or another namespace is another host */
        for (int k = 0; k < i; k++)
            for (int n = 0; n < 5; n++)
                assert_true(seen[5 * i + n] != seen[5 * k + n] && seen[5 * n + i] != seen[5 * n + k]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_id__a_kernel_and_a_network_namespace_make_a_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

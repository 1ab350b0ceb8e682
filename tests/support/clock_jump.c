/* SPDX-License-Identifier: BSD-3-Clause */
/* LD_PRELOAD for tests/e2e/test_net_faults.sh: a host whose wall clock jumps. The file that TESSERA_TEST_CLOCK names
 * holds the seconds, as eight bytes, by which the clock is off; whoever writes them there makes it jump. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *jump_s;
static int (*real_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("TESSERA_TEST_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = fd >= 0 ? mmap(NULL, sizeof *jump_s, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    if (at != MAP_FAILED)
        jump_s = at;
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t which, struct timespec *out) {
    if (!real_clock)
        *(void **)&real_clock = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real_clock(which, out);
    if (result == 0 && which == CLOCK_REALTIME && jump_s)
        out->tv_sec += *jump_s;
    return result;
}

__attribute__((visibility("default"))) int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *out = (struct timeval){ .tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000 };
    return 0;
}

__attribute__((visibility("default"))) time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

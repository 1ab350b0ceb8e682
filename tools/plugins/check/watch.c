/* SPDX-License-Identifier: BSD-3-Clause */
/* State of a check's own process: memory that ends at a guard page, the thread's state, threads and files. */
#include <dirent.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "check.h"
#include "tools/support/witness.h"

void *check_at_edge(check *c, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
    char *p = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check_that(c, p != MAP_FAILED && mprotect(p + room, page, PROT_NONE) == 0, "no memory for the check");
    return p + room - bytes;
}

/* A listing of /proc/self/task may leave one out while another ends. */
int check_threads(void) {
    tool_witness now;
    tool_witness_read(&now);
    return (int)now.threads;
}

int check_files(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n - 1; /* without the directory itself */
}

uint64_t check_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

float check_random_float(uint64_t *state) {
    float unit = (float)(int32_t)(check_random(state) >> 32) * 0x1p-31f;
    for (uint64_t halvings = check_random(state) % 24; halvings > 0; halvings--)
        unit *= 0.5f;
    return unit * 64;
}

enum { MXCSR_FLAGS = 0x3f, FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x40, ROUNDING = 0x6000 };

void check_thread_look(check_thread_state *out) {
    memset(out, 0, sizeof *out);
    sigset_t mask;
    memset(&mask, 0, sizeof mask);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    memcpy(out->mask, &mask, sizeof mask < sizeof out->mask ? sizeof mask : sizeof out->mask);
    sched_getaffinity(0, sizeof out->affinity, (void *)out->affinity);
    out->rounding = fegetround();
#if defined(__SSE2__)
    out->fp_mode = _mm_getcsr() & ~(unsigned)MXCSR_FLAGS;
#elif defined(__aarch64__)
    out->fp_mode = (unsigned)__builtin_aarch64_get_fpcr();
#endif
}

const char *check_thread_changed(const check_thread_state *before) {
    check_thread_state now;
    check_thread_look(&now);
    if (memcmp(now.mask, before->mask, sizeof now.mask) != 0)
        return "the signal mask";
    if (memcmp(now.affinity, before->affinity, sizeof now.affinity) != 0)
        return "the affinity";
#if defined(__SSE2__)
    if ((now.fp_mode ^ before->fp_mode) & FLUSH_TO_ZERO)
        return "the denormal mode (flush to zero, as -ffast-math sets it)";
    if ((now.fp_mode ^ before->fp_mode) & DENORMALS_ARE_ZERO)
        return "the denormal mode (denormals are zero, as -ffast-math sets it)";
#endif
    if (now.rounding != before->rounding)
        return "the rounding mode";
    return now.fp_mode != before->fp_mode ? "the floating-point mode" : NULL;
}

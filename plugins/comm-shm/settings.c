#include "settings.h"

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* "2,6-7" as in the kernel's lists. An empty or unreadable list means any CPU. */
static int parse_cpus(const char *text, cpu_set_t *out) {
    CPU_ZERO(out);
    while (text && *text) {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        if (end == text)
            return 0;
        if (*end == '-') {
            text = end + 1;
            last = strtol(text, &end, 10);
            if (end == text)
                return 0;
        }
        if (first < 0 || last < first || last >= CPU_SETSIZE || (*end && *end != ','))
            return 0;
        for (long cpu = first; cpu <= last; cpu++)
            CPU_SET((size_t)cpu, out);
        text = *end == ',' ? end + 1 : end;
    }
    return CPU_COUNT(out) > 0;
}

void shm_settings_init(struct shm_settings *s, const tess_host *host) {
    memset(s, 0, sizeof *s);
    memcpy(&s->host, host, host->struct_size < sizeof s->host ? host->struct_size : sizeof s->host);
    s->pin = parse_cpus(s->host.helper_cpus, &s->cpus);
}

void shm_enter_thread(const struct shm_settings *s, const char *name) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    pthread_setname_np(pthread_self(), name);
    if (s->pin)
        sched_setaffinity(0, sizeof s->cpus, &s->cpus);
    /* Threads inherit the creator's modes; sums must not depend on them. */
    fesetenv(FE_DFL_ENV);
}

int shm_aborting(const struct shm_settings *s) {
    return s->host.aborting && s->host.aborting(s->host.host) != 0;
}

int64_t shm_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

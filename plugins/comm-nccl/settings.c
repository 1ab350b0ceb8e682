#include "settings.h"

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <strings.h>
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

static const char *text_of(const struct nccl_settings *s, const char *key) {
    const char *text = s->host.option ? s->host.option(s->host.host, key) : NULL;
    return text ? text : "";
}

/* The core has checked that a flag is one of 0, 1, no, yes, off, on, false, true. */
static int is_on(const char *text) {
    return strcmp(text, "1") == 0 || strcasecmp(text, "yes") == 0 || strcasecmp(text, "on") == 0 ||
           strcasecmp(text, "true") == 0;
}

tess_status nccl_settings_init(struct nccl_settings *s, const tess_host *host, struct nccl_failure *f) {
    memset(s, 0, sizeof *s);
    memcpy(&s->host, host, host->struct_size < sizeof s->host ? host->struct_size : sizeof s->host);
    s->pin = parse_cpus(s->host.helper_cpus, &s->cpus);
    s->deterministic = is_on(text_of(s, "deterministic"));
    s->compares = strcmp(text_of(s, "nccl-compare"), "off") != 0;
    if (s->host.args && *s->host.args)
        return nccl_fail(f, TESS_E_INVALID, -1, "nccl: takes no arguments, found \"%.100s\"", s->host.args);
    return TESS_OK;
}

void nccl_enter_thread(const struct nccl_settings *s, const char *name) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    pthread_setname_np(pthread_self(), name);
    if (s->pin)
        sched_setaffinity(0, sizeof s->cpus, &s->cpus);
    fesetenv(FE_DFL_ENV);
}

int nccl_aborting(const struct nccl_settings *s) {
    return s->host.aborting && s->host.aborting(s->host.host) != 0;
}

void nccl_warn(const struct nccl_settings *s, const char *format, ...) {
    char text[240];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (s->host.log)
        s->host.log(s->host.host, 1, "nccl", text);
}

int64_t nccl_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void nccl_nap(int64_t ns) {
    struct timespec t = { ns / 1000000000, ns % 1000000000 };
    nanosleep(&t, NULL);
}

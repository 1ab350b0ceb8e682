/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "plugin_base.h"

#include <fenv.h>
#include <signal.h>
#include <stdlib.h>

/* ---- clock --------------------------------------------------------------------------------------- */

int64_t kit_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t kit_until_ns(int64_t timeout_ns) {
    const int64_t century_ns = INT64_C(3000000000000000000);
    return timeout_ns < 0 || timeout_ns > century_ns ? INT64_MAX : kit_now_ns() + timeout_ns;
}

void kit_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &clock);
    pthread_condattr_destroy(&clock);
}

int kit_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_ns) {
    const struct timespec until = { until_ns / 1000000000, until_ns % 1000000000 };
    if (until_ns == INT64_MAX)
        return pthread_cond_wait(cond, lock) != 0;
    return pthread_cond_timedwait(cond, lock, &until) != 0;
}

void kit_nap(int64_t ns) {
    const struct timespec t = { ns / 1000000000, ns % 1000000000 };
    nanosleep(&t, NULL);
}

/* ---- threads ------------------------------------------------------------------------------------- */

int kit_cpu_list(const char *text, cpu_set_t *out) {
    CPU_ZERO(out);
    while (text && *text) {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        int bad = end == text;
        if (*end == '-') {
            text = end + 1;
            last = strtol(text, &end, 10);
            bad |= end == text;
        }
        if (bad || first < 0 || last < first || last >= CPU_SETSIZE || (*end && *end != ','))
            return 0;
        for (long cpu = first; cpu <= last; cpu++)
            CPU_SET((size_t)cpu, out);
        text = *end == ',' ? end + 1 : end;
    }
    return CPU_COUNT(out) > 0;
}

void kit_thread_enter(const tess_host *host, const char *name) {
    cpu_set_t cpus;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    pthread_setname_np(pthread_self(), name);
    if (kit_cpu_list(host->helper_cpus, &cpus))
        sched_setaffinity(0, sizeof cpus, &cpus);
    fesetenv(FE_DFL_ENV); /* a thread inherits its creator's modes; sums must not depend on them */
}

typedef struct {
    const tess_host *host;
    const char *name;
    void (*run)(void *);
    void *arg;
} thread_start;

static void *thread_run(void *arg) {
    thread_start s = *(thread_start *)arg;
    free(arg);
    kit_thread_enter(s.host, s.name);
    s.run(s.arg);
    return NULL;
}

tess_status kit_thread_start(pthread_t *out, const tess_host *host, const char *plugin, const char *name,
                             void (*run)(void *), void *arg, tess_error *error) {
    sigset_t all, before;
    thread_start *s = malloc(sizeof *s);
    if (!s)
        return tess_plugin_fail(error, TESS_E_NOMEM, "%s: no memory for a thread", plugin);
    *s = (thread_start){ host, name, run, arg };
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(out, NULL, thread_run, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed)
        return TESS_OK;
    free(s);
    return tess_plugin_fail(error, TESS_E_SYSTEM, "%s: cannot start a thread: %s", plugin, strerror(failed));
}

/* ---- host ---------------------------------------------------------------------------------------- */

int kit_aborting(const tess_host *host) {
    return host->aborting(host->host) != 0;
}

void kit_log(const tess_host *host, int32_t level, const char *plugin, const char *format, ...) {
    char text[240];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    host->log(host->host, level, plugin, text);
}

kit_joining kit_joining_begin(const tess_host *host, const char *plugin, const char *group, int64_t timeout_ns) {
    return (kit_joining){ host, plugin, group, timeout_ns, kit_until_ns(timeout_ns > 0 ? timeout_ns : -1) };
}

tess_status kit_joining_check(const kit_joining *j, int32_t rank, tess_error *error) {
    if (kit_aborting(j->host))
        return tess_plugin_fail(error, TESS_E_ABORTED, "%s: the run was aborted while this rank joined group '%.80s'",
                                j->plugin, j->group);
    if (kit_now_ns() <= j->until_ns)
        return TESS_OK;
    return tess_plugin_fail_of(error, TESS_E_TIMEOUT, rank, "%s: rank %d has not joined group '%.80s' within %.1f s",
                               j->plugin, (int)rank, j->group, (double)j->timeout_ns * 1e-9);
}

enum { KEY_BYTES = 256 };
static const char *key_of(const kit_joining *j, const char *name, int32_t rank, char key[KEY_BYTES]) {
    snprintf(key, KEY_BYTES, "%.200s/%.30s/%d", j->group, name, (int)rank);
    return key;
}

tess_status kit_joining_set(const kit_joining *j, const char *name, int32_t rank, const void *value, uint64_t bytes,
                            tess_error *error) {
    char key[KEY_BYTES];
    tess_status s = j->host->kv_set(j->host->host, key_of(j, name, rank, key), value, bytes);
    return s < 0 ? tess_plugin_fail(error, s, "%s: the key-value store refuses '%.100s'", j->plugin, key) : TESS_OK;
}

tess_status kit_joining_get(const kit_joining *j, const char *name, int32_t rank, void *out, uint64_t bytes,
                            tess_error *error) {
    enum { TURN_NS = 20000000 };
    char key[KEY_BYTES];
    for (;;) {
        uint64_t got = bytes;
        tess_status s = j->host->kv_get(j->host->host, key_of(j, name, rank, key), out, &got, TURN_NS);
        if (s == TESS_E_TIMEOUT && (s = kit_joining_check(j, rank, error)) == TESS_OK)
            continue;
        if (s == TESS_E_INVALID || (s == TESS_OK && got != bytes))
            return tess_plugin_fail_of(error, TESS_E_VERSION, rank,
                                       "%s: rank %d has another version of this plugin: '%.60s' has another size",
                                       j->plugin, (int)rank, key);
        if (s == TESS_OK || s == TESS_E_TIMEOUT || (s == TESS_E_ABORTED && kit_aborting(j->host)))
            return s == TESS_OK ? s : kit_joining_check(j, rank, error);
        return tess_plugin_fail_of(error, s, rank, "%s: the key-value store failed while waiting for rank %d",
                                   j->plugin, (int)rank);
    }
}

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

/* ---- options ------------------------------------------------------------------------------------- */

static const char *name_of(const kit_options *k, uint32_t i) {
    return k->specs[i].key + strlen(k->prefix);
}

/* Finds the option of that name; n: none. */
static uint32_t find_option(const kit_options *k, const char *name, size_t bytes) {
    uint32_t i = 0;
    while (i < k->n && (strlen(name_of(k, i)) != bytes || memcmp(name_of(k, i), name, bytes) != 0))
        i++;
    return i;
}

/* Finds the list option that has the word; n: none. */
static uint32_t find_list(const kit_options *k, const char *word, size_t bytes) {
    uint32_t i = 0;
    while (i < k->n && (k->specs[i].type != TESS_OPTION_LIST || tess_option_word(word, bytes, k->specs[i].choices) < 0))
        i++;
    return i;
}

/* Appends to a text that may be full. */
static void append_text(char *out, size_t room, const char *text) {
    const size_t used = strlen(out), left = room - 1 - used, bytes = strlen(text) < left ? strlen(text) : left;
    memcpy(out + used, text, bytes);
    out[used + bytes] = 0;
}

static tess_status not_a_setting(const kit_options *k, const char *text, size_t bytes, tess_error *e) {
    char known[160] = "";
    for (uint32_t i = 0; i < k->n; i++) {
        const tess_option_spec *o = &k->specs[i];
        append_text(known, sizeof known, *known ? ", " : "");
        append_text(known, sizeof known, o->type == TESS_OPTION_LIST ? o->choices : name_of(k, i));
        append_text(known, sizeof known, o->type == TESS_OPTION_LIST || o->type == TESS_OPTION_FLAG ? "" : "=…");
    }
    return tess_plugin_fail(e, TESS_E_INVALID, "%s: \"%.*s\" is no setting, expected %s", k->plugin,
                            (int)(bytes < 60 ? bytes : 60), text, known);
}

static tess_status bad_setting(const kit_options *k, uint32_t i, const char *text, tess_error *e) {
    char expected[200];
    return tess_plugin_fail(e, TESS_E_INVALID, "%s: %s is \"%.60s\", expected %s", k->plugin, name_of(k, i), text,
                            tess_option_expected(&k->specs[i], expected, sizeof expected));
}

/* Takes `bytes` bytes of text for option i, behind what a list has so far. */
static tess_status take_text(const kit_options *k, uint32_t i, const char *text, size_t bytes, kit_option *o,
                             tess_error *e) {
    const size_t used = strlen(o->text);
    if (used + bytes + 2 > sizeof o->text)
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: %s has %zu bytes, at most %zu are taken", k->plugin,
                                name_of(k, i), used + bytes, sizeof o->text - 2);
    snprintf(o->text + used, sizeof o->text - used, "%s%.*s", used ? "," : "", (int)bytes, text);
    o->is_set = 1;
    return TESS_OK;
}

/* Takes one item behind the colon; *bytes becomes all that is left when the option takes the rest. */
static tess_status take_item(const kit_options *k, const char *item, size_t *bytes, kit_option *out, tess_error *e) {
    const char *equals = (const char *)memchr(item, '=', *bytes);
    const size_t name = equals ? (size_t)(equals - item) : *bytes;
    uint32_t i = find_option(k, item, name);
    if (!equals && i < k->n && k->specs[i].type == TESS_OPTION_FLAG)
        return take_text(k, i, "1", 1, &out[i], e);
    if (!equals)
        i = find_list(k, item, *bytes);
    if (i == k->n)
        return not_a_setting(k, item, *bytes, e);
    if (!equals)
        return take_text(k, i, item, *bytes, &out[i], e);
    if (k->rest && strcmp(name_of(k, i), k->rest) == 0)
        *bytes = strlen(item);
    *out[i].text = 0; /* the last one wins */
    return take_text(k, i, equals + 1, *bytes - name - 1, &out[i], e);
}

static tess_status take_args(const kit_options *k, const char *args, kit_option *out, tess_error *e) {
    while (*args) {
        size_t bytes = strcspn(args, ",");
        tess_status s = take_item(k, args, &bytes, out, e);
        if (s < 0)
            return s;
        args += bytes + (args[bytes] == ',');
    }
    return TESS_OK;
}

tess_status kit_options_read(const kit_options *k, const tess_host *host, kit_option *out, tess_error *e) {
    memset(out, 0, k->n * sizeof *out);
    tess_status s = take_args(k, host->args, out, e);
    for (uint32_t i = 0; i < k->n && s == TESS_OK; i++) {
        const tess_option_spec *spec = &k->specs[i];
        const char *text = out[i].is_set ? NULL : host->option(host->host, spec->key);
        if (text)
            s = take_text(k, i, text, strlen(text), &out[i], e);
        if (!out[i].is_set)
            snprintf(out[i].text, sizeof out[i].text, "%s", spec->fallback);
        if (s == TESS_OK && (out[i].is_set || *spec->fallback) && !tess_option_parse(spec, out[i].text, &out[i].value))
            s = bad_setting(k, i, out[i].text, e);
    }
    return s;
}

int kit_core_flag(const tess_host *host, const char *key, int fallback) {
    const char *text = host->option(host->host, key);
    uint64_t on;
    return text && tess_option_parse_flag(text, &on) ? (int)on : fallback;
}

double kit_core_real(const tess_host *host, const char *key, double fallback) {
    const char *text = host->option(host->host, key);
    double value;
    return text && tess_option_parse_real(text, &value) ? value : fallback;
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

/* Returns the next turn's length. A turn that is shorter than the way to the store and back never gets an answer, so
 * each is twice the one before. None passes the time limit by more than the shortest turn. */
static int64_t next_turn_ns(const kit_joining *j, int64_t before_ns) {
    const int64_t least_ns = 20000000, most_ns = 1000000000;
    const int64_t left_ns = j->until_ns - kit_now_ns(), wanted_ns = before_ns ? 2 * before_ns : least_ns;
    const int64_t turn_ns = wanted_ns < most_ns ? wanted_ns : most_ns;
    return turn_ns < left_ns ? turn_ns : left_ns > least_ns ? left_ns : least_ns;
}

tess_status kit_joining_get(const kit_joining *j, const char *name, int32_t rank, void *out, uint64_t bytes,
                            tess_error *error) {
    char key[KEY_BYTES];
    for (int64_t turn_ns = 0;;) {
        uint64_t got = bytes;
        turn_ns = next_turn_ns(j, turn_ns);
        tess_status s = j->host->kv_get(j->host->host, key_of(j, name, rank, key), out, &got, turn_ns);
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

/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank's side of a check: the host table, the plugin, and the end of the check. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "core/builtin/builtins.h"
#include "core/plugin/open.h"
#include "core/plugin/plugin_book.h"
#include "core/plugin/plugin_host.h"
#include "tools/support/options.h"
#include "core/plugin/plugin_check.h"
#include "tools/support/say.h"

int64_t check_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void check_sleep_ms(int ms) {
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

/* ---- the end ----------------------------------------------------------------------------------- */

static void end(check *c, int outcome, int code, const char *format, va_list args) __attribute__((noreturn));
static void end(check *c, int outcome, int code, const char *format, va_list args) {
    check_rank_report *r = &c->shared->ranks[c->rank];
    static atomic_int ending;
    if (atomic_exchange(&ending, 1)) /* another thread is ending the check */
        for (;;)
            check_sleep_ms(1000);
    r->said_ns = check_now_ns();
    vsnprintf(r->said, sizeof r->said, format, args);
    atomic_store(&r->outcome, outcome);
    fflush(NULL);
    _exit(code);
}

void check_fail(check *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    end(c, CHECK_FAILED, CHECK_EXIT_FAILED, format, args);
}

void check_skip(check *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    end(c, CHECK_SKIPPED, CHECK_EXIT_SKIPPED, format, args);
}

void check_note(check *c, const char *format, ...) {
    check_rank_report *r = &c->shared->ranks[c->rank];
    va_list args;
    va_start(args, format);
    vsnprintf(r->note, sizeof r->note, format, args);
    va_end(args);
}

const char *check_status(tess_status s) {
    return tool_status_name(s);
}

void check_doing(check *c, const char *slot) {
    check_rank_report *r = &c->shared->ranks[c->rank];
    uint64_t words[4] = { 0 };
    size_t n = strlen(slot);
    memcpy(words, slot, n < 31 ? n : 31);
    for (int i = 0; i < 4; i++)
        atomic_store_explicit(&r->doing[i], words[i], memory_order_relaxed);
}

/* ---- the host table ---------------------------------------------------------------------------- */

static void host_log(void *host, int32_t level, const char *plugin, const char *message) {
    (void)host, (void)level;
    fprintf(stderr, "%s: %s\n", plugin ? plugin : "plugin", message ? message : "");
}

static const char *host_option(void *host, const char *key) {
    (void)host;
    return key ? tool_option_text(key) : NULL;
}

static tess_status host_kv_set(void *host, const char *key, const void *value, uint64_t bytes) {
    check *c = host;
    int i = atomic_fetch_add(&c->shared->used, 1);
    if (i >= CHECK_KEYS || bytes > CHECK_VALUE_BYTES || strlen(key) >= sizeof c->shared->entries[0].key)
        return TESS_E_NOMEM;
    check_entry *e = &c->shared->entries[i];
    strcpy(e->key, key);
    memcpy(e->value, value, bytes);
    e->bytes = bytes;
    atomic_store(&e->ready, 1);
    return TESS_OK;
}

/* Returns the newest value of a key, or null. */
static check_entry *find(check *c, const char *key) {
    int used = atomic_load(&c->shared->used);
    for (int i = (used < CHECK_KEYS ? used : CHECK_KEYS) - 1; i >= 0; i--)
        if (atomic_load(&c->shared->entries[i].ready) && strcmp(c->shared->entries[i].key, key) == 0)
            return &c->shared->entries[i];
    return NULL;
}

static tess_status host_kv_get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    check *c = host;
    for (int64_t late = check_now_ns() + timeout_ns;; check_sleep_ms(1)) {
        check_entry *e = find(c, key);
        if (e && *bytes < e->bytes)
            return TESS_E_INVALID;
        if (e) {
            memcpy(value, e->value, e->bytes);
            *bytes = e->bytes;
            return TESS_OK;
        }
        if (atomic_load(&c->shared->ranks[c->rank].aborting))
            return TESS_E_ABORTED;
        if (timeout_ns >= 0 && check_now_ns() > late)
            return TESS_E_TIMEOUT;
    }
}

static int32_t host_aborting(void *host) {
    check *c = host;
    return atomic_load(&c->shared->ranks[c->rank].aborting);
}

static tess__plugin_book book; /* counts the plugin's host->mem_alloc */

void check_taken(uint64_t *now, uint64_t *peak) {
    *now = atomic_load(&book.live[TESS_DOMAIN_HOST]);
    *peak = atomic_load(&book.peak[TESS_DOMAIN_HOST]);
}

static tess_status host_mem_alloc(void *host, uint32_t domain, uint32_t category, uint64_t bytes, uint64_t align,
                                  void **out) {
    check *c = host;
    tess_status s = tess__plugin_book_alloc(&book, domain, category, bytes, align, out);
    check_that(c, s != TESS_E_INVALID, "asks host->mem_alloc for category %u and alignment %llu, which it refuses",
               category, (unsigned long long)align);
    return s;
}

static void host_mem_free(void *host, void *ptr) {
    (void)host;
    tess__plugin_book_free(ptr);
}

/* A plugin that wraps another opens it here, with the same services. */
static tess_status host_plugin_open(void *host, uint32_t kind, const char *selection, const void **ops, void **ctx,
                                    void **handle, tess_error *error) {
    check *c = host;
    return tess__plugin_host_open(&c->host, kind, selection, ops, ctx, handle, error);
}

void check_host(check *c) {
    c->host = (tess_host){ .struct_size = sizeof(tess_host),
                           .abi_major = TESS_ABI_MAJOR,
                           .abi_minor = TESS_ABI_MINOR,
                           .host = c,
                           .log = host_log,
                           .option = host_option,
                           .kv_set = host_kv_set,
                           .kv_get = host_kv_get,
                           .aborting = host_aborting,
                           .mem_alloc = host_mem_alloc,
                           .mem_free = host_mem_free,
                           .args = c->args,
                           .helper_cpus = "",
                           .numa_node = -1,
                           .max_helper_threads = -1,
                           .plugin_open = host_plugin_open,
                           .plugin_close = tess__plugin_host_close,
                           .profiler = tess__plugin_host_profiler() };
}

/* ---- the plugin -------------------------------------------------------------------------------- */

static const tess__builtin *builtin_of(const check *c) {
    for (const tess__builtin *b = tess__builtins; b->kind; b++)
        if (b->kind == c->kind && strcmp(b->name, c->builtin) == 0)
            return b;
    return NULL;
}

void check_load(check *c) {
    if (!*c->path) {
        check_that(c, builtin_of(c), "no built-in %s plugin '%s'", tess__kind_name(c->kind), c->builtin);
        return;
    }
    check_doing(c, "its start-up code");
    c->library = dlopen(c->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    check_that(c, c->library, "cannot be loaded: %s", dlerror());
    check_doing(c, "");
}

tess_status check_call_open(check *c, const tess_host *host, uint32_t kind, const void **ops, void **ctx,
                            tess_error *e) {
    tess_status s;
    if (!*c->path) {
        s = builtin_of(c)->open(host, ops, ctx, e);
    } else {
        check_open_fn open;
        void *symbol = dlsym(c->library, "tess_plugin_open_v1");
        check_that(c, symbol, "symbol tess_plugin_open_v1 is missing");
        memcpy(&open, &symbol, sizeof symbol); /* ISO C has no cast from data to function pointers */
        s = open(host, kind, ops, ctx, e);
    }
    return s;
}

void check_table(check *c, const void *ops, const char *what) {
    char reason[TESS_REASON_BYTES] = "";
    tess_status s = tess__ops_check(c->kind, ops, reason);
    check_that(c, s == TESS_OK, "%s%s%s", what, *what ? ": " : "", reason);
}

const void *check_open(check *c) {
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    const void *ops = NULL;
    check_load(c);
    check_doing(c, "open");
    tess_status s = check_call_open(c, &c->host, c->kind, &ops, &c->ctx, &e);
    check_doing(c, "");
    e.message[sizeof e.message - 1] = 0;
    check_that(c, s == TESS_OK, "open gave %s: %s", check_status(s), e.message);
    check_table(c, ops, "");
    c->ops = ops;
    return ops;
}

void check_close(check *c) {
    const check_any_ops *ops = c->ops;
    check_doing(c, "close");
    if (ops && TESS_CAN(check_any_ops, ops, close))
        ops->close(c->ctx);
    check_doing(c, "");
    c->ops = NULL;
}

/* ---- shared by the ranks ----------------------------------------------------------------------- */

void check_set_aborting(check *c) {
    atomic_store(&c->shared->ranks[c->rank].aborting, 1);
}
void check_flag_set(check *c, int flag, int64_t value) {
    atomic_store(&c->shared->flags[flag], value);
}
int64_t check_flag_get(check *c, int flag) {
    return atomic_load(&c->shared->flags[flag]);
}
void check_flag_wait(check *c, int flag, int64_t at_least) {
    while (check_flag_get(c, flag) < at_least)
        check_sleep_ms(1);
}
void check_meet(check *c) {
    int round = atomic_fetch_add(&c->shared->met, 1) / c->nranks + 1;
    while (atomic_load(&c->shared->met) < round * c->nranks)
        check_sleep_ms(1);
}

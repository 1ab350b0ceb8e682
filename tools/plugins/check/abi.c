/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks of loading and opening: host tables and error structs of other sizes, many opens, and host services that
 * fail. */
#include <dlfcn.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "tools/plugins/plugin_known.h"
#include "tools/support/options.h"
#include <tessera/tessera.h>
#include "suites.h"

enum { NO_SUCH_KIND = 29 };

/* ---- loading ----------------------------------------------------------------------------------- */

static void look_at_signals(struct sigaction out[32]) {
    memset(out, 0, 32 * sizeof *out);
    for (int s = 1; s < 32; s++)
        sigaction(s, NULL, &out[s]);
}

static void load(check *c) {
    static struct sigaction before[32], after[32];
    check_thread_state thread;
    tess_plugin_note note;
    char reason[PLUGIN_REASON_BYTES] = "";
    int threads = check_threads();
    look_at_signals(before);
    check_thread_look(&thread);
    check_load(c);
    const char *changed = check_thread_changed(&thread);
    check_that(c, !changed, "changes %s while it is loaded", changed);
    check_that(c, check_threads() == threads, "starts a thread while it is loaded");
    look_at_signals(after);
    for (int s = 1; s < 32; s++)
        check_that(c, before[s].sa_handler == after[s].sa_handler, "changes what signal %d does while it is loaded", s);
    if (!*c->path)
        return;
    const tess_plugin_note *loaded = dlsym(c->library, "tess_plugin_note_v1");
    check_that(c, loaded, "symbol tess_plugin_note_v1 is missing");
    check_that(c, plugin_read_note(c->path, &note, reason) == TESS_OK, "%s", reason);
    check_that(c, memcmp(loaded, &note, sizeof note) == 0,
               "tess_plugin_note_v1 is not what section .tessera.plugin says");
    check_that(c, dlsym(c->library, "tess_plugin_open_v1"), "symbol tess_plugin_open_v1 is missing");
}

/* ---- opening ----------------------------------------------------------------------------------- */

static int store_calls;
static tess_status no_store_set(void *host, const char *key, const void *value, uint64_t bytes) {
    (void)host, (void)key, (void)value, (void)bytes;
    store_calls++;
    return TESS_E_UNSUPPORTED;
}
static tess_status no_store_get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    (void)host, (void)key, (void)value, (void)bytes, (void)timeout_ns;
    store_calls++;
    return TESS_E_UNSUPPORTED;
}

static void open_is_local(check *c) {
    int64_t begin = check_now_ns();
    check_thread_state thread;
    c->host.kv_set = no_store_set;
    c->host.kv_get = no_store_get;
    check_load(c);
    int threads = check_threads();
    check_thread_look(&thread);
    check_open(c);
    check_that(c, store_calls == 0, "open uses the key-value store, which there is none of while plugins are listed");
    check_that(c, check_threads() == threads, "open starts a thread, which is for init or create");
    const char *changed = check_thread_changed(&thread);
    check_that(c, !changed, "open changes %s of the calling thread", changed);
    check_that(c, check_now_ns() - begin < 10 * CHECK_SECOND_NS, "open took more than 10 s");
}

static const char *name_of(const check *c) {
    const tess_plugin_note *note = c->library ? dlsym(c->library, "tess_plugin_note_v1") : NULL;
    return note ? note->name : c->builtin;
}

static void options_are_good(check *c, const tess_option_spec *list, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        check_that(c, *list[i].help, "option %s: no help", list[i].key);
    tess_status s = n ? tool_options_declare(plugin_kind_word(c->kind), name_of(c), list, n) : TESS_OK;
    check_that(c, s == TESS_OK, "%s", tess_last_error());
    check_note(c, "%u options", n);
}

/* The section ".tessera.options" is read before any code of the plugin runs. */
static void options_declared(check *c) {
    char reason[PLUGIN_REASON_BYTES] = "";
    tess_option_spec *list = NULL;
    uint32_t n = 0;
    if (!*c->path)
        check_skip(c, "built in: no file");
    tess_status s = plugin_read_options(c->path, &list, &n, reason);
    check_that(c, s == TESS_OK, "%s", reason);
    if (!n)
        check_skip(c, "declares no options");
    check_load(c);
    options_are_good(c, list, n);
    free(list);
}

/* Opens the plugin with `host` and closes it again. */
static void open_with(check *c, const tess_host *host, const char *what) {
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    const void *ops = NULL;
    void *ctx = NULL;
    char slot[64];
    snprintf(slot, sizeof slot, "open with %s", what);
    check_doing(c, slot);
    tess_status s = check_call_open(c, host, c->kind, &ops, &ctx, &e);
    e.message[sizeof e.message - 1] = 0;
    check_that(c, s == TESS_OK, "open with %s gave %s: %s", what, check_status(s), e.message);
    check_table(c, ops, slot);
    c->ops = ops;
    c->ctx = ctx;
    check_close(c);
}

/* Opens the plugin with a host table of minor version 0 that ends at the edge of readable memory. */
static void shorter_host(check *c) {
    check_load(c);
    tess_host *host = check_at_edge(c, sizeof *host);
    *host = c->host;
    host->abi_minor = 0;
    open_with(c, host, "a short host table");
}

/* Garbage that resembles slots lies behind the end that struct_size gives. The plugin must not read it. */
static void poisoned_host(check *c) {
    struct {
        tess_host host;
        uint64_t tail[32];
    } *table = check_at_edge(c, sizeof *table);
    check_load(c);
    memset(table, 0xa5, sizeof *table);
    table->host = c->host;
    open_with(c, &table->host, "garbage behind host table");
}

static void longer_host(check *c) {
    struct {
        tess_host host;
        uint64_t tail[32];
    } *table = check_at_edge(c, sizeof *table);
    check_load(c);
    memset(table, 0x5a, sizeof *table);
    table->host = c->host;
    table->host.struct_size = sizeof *table;
    table->host.abi_minor = 900;
    open_with(c, &table->host, "a longer host table");
}

/* For a kind that it does not offer, open must return a failure and fill the error struct up to its size. */
static void unknown_kind(check *c) {
    const void *ops = (const void *)1;
    void *ctx = (void *)2;
    if (!*c->path)
        check_skip(c, "built in: opened by kind");
    check_load(c);
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    check_doing(c, "open of an unknown kind");
    tess_status s = check_call_open(c, &c->host, NO_SUCH_KIND, &ops, &ctx, &e);
    check_that(c, s == TESS_E_UNSUPPORTED, "open of an unknown kind gave %s, expected TESS_E_UNSUPPORTED",
               check_status(s));
    check_that(c, ops == (const void *)1 && ctx == (void *)2, "open failed and wrote its outputs all the same");
    check_that(c, e.code == s && memchr(e.message, 0, sizeof e.message) && *e.message && !strchr(e.message, '\n'),
               "open failed without its code and one line of message");
    check_that(c, e.struct_size == sizeof e, "open changed the error's struct_size");
    check_doing(c, "open without an error struct");
    s = check_call_open(c, &c->host, NO_SUCH_KIND, &ops, &ctx, NULL);
    check_that(c, s == TESS_E_UNSUPPORTED, "open of an unknown kind without an error struct gave %s", check_status(s));
}

static void other_error_sizes(check *c) {
    const void *ops = NULL;
    void *ctx = NULL;
    if (!*c->path)
        check_skip(c, "built in: opened by kind");
    check_load(c);
    for (uint32_t size = sizeof(uint32_t); size <= sizeof(tess_error); size *= 2) {
        tess_error *e = check_at_edge(c, size);
        memset(e, 0, size);
        memcpy(e, &size, sizeof size);
        check_doing(c, "open with a short tess_error");
        tess_status s = check_call_open(c, &c->host, NO_SUCH_KIND, &ops, &ctx, e);
        check_that(c, e->struct_size == size, "open changed the error's struct_size");
        if (size <= offsetof(tess_error, message))
            continue;
        check_that(c, e->code == s && *e->message && memchr(e->message, 0, size - offsetof(tess_error, message)),
                   "an error struct of %u bytes is not filled as far as it goes", size);
    }
    struct {
        tess_error e;
        unsigned char tail[64];
    } longer;
    memset(&longer, 0x5a, sizeof longer);
    longer.e.struct_size = sizeof longer;
    tess_status s = check_call_open(c, &c->host, NO_SUCH_KIND, &ops, &ctx, &longer.e);
    check_that(c, s < 0 && longer.e.code == s, "a longer error struct is not filled: code %d, expected %d",
               longer.e.code, s);
}

static void repeated_open(check *c) {
    enum { TIMES = 3 };
    const void *ops[TIMES];
    void *ctx[TIMES];
    check_load(c);
    for (int i = 0; i < TIMES; i++) {
        tess_error e = { .struct_size = sizeof e };
        check_doing(c, "open while it is open");
        tess_status s = check_call_open(c, &c->host, c->kind, &ops[i], &ctx[i], &e);
        check_that(c, s == TESS_OK, "open number %d, with the others open, gave %s: %s", i + 1, check_status(s),
                   e.message);
        check_that(c, ops[i] == ops[0] || ((const check_any_ops *)ops[i])->struct_size > 0, "no table");
    }
    for (int i = 0; i < TIMES; i++) { /* in order of opening, so that the last is not closed first */
        c->ops = ops[i];
        c->ctx = ctx[i];
        check_close(c);
    }
    check_open(c);
}

/* Returns the bytes that malloc has given out, or 0 if the library does not count them (sanitizers). */
static size_t allocated(void) {
    const struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* Repeats open and close, because a leak grows with every round. */
static void nothing_left_behind(check *c) {
    enum { LEFT_BYTES = 64 << 10 }; /* smaller growth may be a library's cache */
    check_open(c);
    check_close(c);
    int threads = check_threads(), files = check_files();
    const size_t bytes = allocated();
    for (int i = 0; i < 20; i++) {
        check_open(c);
        check_close(c);
    }
    const size_t more = allocated() - bytes;
    for (int tries = 0; tries < 200 && check_threads() > threads; tries++)
        check_sleep_ms(10);
    check_that(c, check_threads() <= threads, "20 times open and close leave %d threads more",
               check_threads() - threads);
    check_that(c, check_files() <= files, "20 times open and close leave %d open files more", check_files() - files);
    check_that(c, (int64_t)more <= LEFT_BYTES, "20 times open and close leave %zu KiB of memory more", more >> 10);
}

static tess_status no_memory(void *host, uint32_t domain, uint32_t category, uint64_t bytes, uint64_t align,
                             void **out) {
    (void)host, (void)domain, (void)category, (void)bytes, (void)align, (void)out;
    return TESS_E_NOMEM;
}

static void failing_services(check *c) {
    tess_error e = { .struct_size = sizeof e };
    const void *ops = NULL;
    void *ctx = NULL;
    c->host.mem_alloc = no_memory;
    c->host.kv_set = no_store_set;
    c->host.kv_get = no_store_get;
    check_load(c);
    tess_status s = check_call_open(c, &c->host, c->kind, &ops, &ctx, &e);
    check_that(c, s == TESS_OK || s == TESS_E_NOMEM, "open without memory gave %s, expected TESS_E_NOMEM or TESS_OK",
               check_status(s));
    check_that(c, s == TESS_OK || *e.message, "open failed without a message");
    c->ops = s == TESS_OK ? ops : NULL;
    c->ctx = ctx;
}

/* Any text behind the colon must give either an open plugin or a message. */
static void odd_arguments(check *c) {
    static char endless[70000];
    memset(endless, 'x', sizeof endless - 1);
    const char *const odd[] = { "%s%n", "=", ",,,", "no-such-setting=1", "\xff\xfe", "-1", endless };
    check_load(c);
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        tess_error e = { .struct_size = sizeof e };
        const void *ops = NULL;
        void *ctx = NULL;
        c->host.args = odd[i];
        check_doing(c, "open with odd arguments");
        tess_status s = check_call_open(c, &c->host, c->kind, &ops, &ctx, &e);
        check_that(c, s <= 0, "open with arguments '%.20s' gave %s", odd[i], check_status(s));
        check_that(c, s == TESS_OK || (*e.message && memchr(e.message, 0, sizeof e.message)),
                   "open with arguments '%.20s' failed with %s and no message", odd[i], check_status(s));
        c->ops = s == TESS_OK ? ops : NULL;
        c->ctx = ctx;
        check_close(c);
    }
    c->host.args = c->args;
}

static void table(check *c) {
    const check_any_ops *ops = check_open(c);
    check_that(c, ops->abi_major == TESS_ABI_MAJOR, "a table of ABI %u.%u", ops->abi_major, ops->abi_minor);
    check_that(c, ops->struct_size % sizeof(void *) == 0, "a table of %u bytes, which cuts a slot", ops->struct_size);
    check_note(c, "a table of %u bytes", ops->struct_size);
}

const check_case check_cases_abi[] = {
    { "load", 1, load, 0, 1 },
    { "table", 1, table, 0, 1 },
    { "open_is_local", 1, open_is_local, 0, 0 },
    { "options_declared", 1, options_declared, 0, 0 },
    { "shorter_host", 1, shorter_host, 0, 0 },
    { "poisoned_host", 1, poisoned_host, 0, 0 },
    { "longer_host", 1, longer_host, 0, 0 },
    { "unknown_kind", 1, unknown_kind, 0, 0 },
    { "other_error_sizes", 1, other_error_sizes, 0, 0 },
    { "repeated_open", 1, repeated_open, 0, 0 },
    { "nothing_left_behind", 1, nothing_left_behind, 0, 0 },
    { "failing_services", 1, failing_services, 0, 0 },
    { "odd_arguments", 1, odd_arguments, 0, 0 },
    { 0 },
};

/* SPDX-License-Identifier: BSD-3-Clause */
/* One comm plugin with one fault, chosen by a macro at compile time; with none it is a good one. What each variant must
 * lead to is in test_bad_plugins.c. The slots do nothing: none of them is ever called. */
#include <tessera/plugin.h>

#include <string.h>
#if defined(CHANGES_MODE) && defined(__SSE2__)
#include <xmmintrin.h>
#endif
#if defined(CHANGES_MODE)
#include <fenv.h>
#endif

#ifndef NOTE_MAGIC
#define NOTE_MAGIC "TESSPLG"
#endif
#ifndef NOTE_MAJOR
#define NOTE_MAJOR TESS_ABI_MAJOR
#endif
#ifndef NOTE_MINOR
#define NOTE_MINOR TESS_ABI_MINOR
#endif
#ifndef NOTE_CORE_MINOR
#define NOTE_CORE_MINOR 0
#endif
#ifndef NOTE_SIZE
#define NOTE_SIZE sizeof(tess_plugin_note)
#endif
#ifndef NOTE_KIND
#define NOTE_KIND TESS_KIND_COMM
#endif
#ifndef NOTE_NAME
#define NOTE_NAME "sample"
#endif
#ifndef NOTE_SECTION
#define NOTE_SECTION ".tessera.plugin"
#endif
#ifndef TABLE_MAJOR
#define TABLE_MAJOR TESS_ABI_MAJOR
#endif

__attribute__((section(NOTE_SECTION), used)) const tess_plugin_note tess_plugin_note_v1 = {
    .magic = NOTE_MAGIC,
    .struct_size = NOTE_SIZE,
    .abi_major = NOTE_MAJOR,
    .abi_minor = NOTE_MINOR,
    .core_minor_min = NOTE_CORE_MINOR,
    .kinds = 1u << NOTE_KIND,
    .name = NOTE_NAME,
    .version = "1.2.3",
    .license = "Apache-2.0",
};

#ifdef CHANGES_MODE
__attribute__((constructor)) static void change_mode(void) {
#if defined(__SSE2__)
    _mm_setcsr(_mm_getcsr() | 0xe040); /* towards zero; flush to zero, denormals are zero */
#else
    fesetround(FE_TOWARDZERO);
#endif
}
#endif

static tess_status query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    (void)ctx, (void)comm, (void)out;
    return TESS_E_UNSUPPORTED;
}
static tess_status need(void *ctx, const tess_plan_env *env, const tess_collective *op, tess_need *out) {
    (void)ctx, (void)env, (void)op, (void)out;
    return TESS_E_UNSUPPORTED;
}
static tess_status init(void *ctx, const tess_comm_config *config, tess_comm **out, tess_error *error) {
    (void)ctx, (void)config, (void)out, (void)error;
    return TESS_E_UNSUPPORTED;
}
static void destroy(tess_comm *comm) {
    (void)comm;
}
static tess_status post(tess_comm *comm, const tess_collective *op, uint32_t n, tess_request **out, tess_error *error) {
    (void)comm, (void)op, (void)n, (void)out, (void)error;
    return TESS_E_UNSUPPORTED;
}
static tess_status test(tess_request *request, tess_error *error) {
    (void)request, (void)error;
    return TESS_E_UNSUPPORTED;
}
static tess_status wait(tess_request *request, int64_t timeout_ns, tess_error *error) {
    (void)request, (void)timeout_ns, (void)error;
    return TESS_E_UNSUPPORTED;
}
static void request_free(tess_request *request) {
    (void)request;
}
static tess_status abort_comm(tess_comm *comm, tess_status why) {
    (void)comm, (void)why;
    return TESS_OK;
}
static tess_status mem_alloc(tess_comm *comm, const tess_alloc_request *request, tess_buffer *out, tess_error *error) {
    (void)comm, (void)request, (void)out, (void)error;
    return TESS_E_UNSUPPORTED;
}

static void close_plugin(void *ctx) {
    (void)ctx;
}

#define IN_SECTION __attribute__((section(".tessera.options"), used))
#ifdef DECLARED_TYPE
#ifndef DECLARED_FALLBACK
#define DECLARED_FALLBACK "7"
#endif
#ifndef DECLARED_KEY
#define DECLARED_KEY "sample-level"
#endif
#ifndef DECLARED_SECOND
#define DECLARED_SECOND "sample-depth"
#endif
#ifndef DECLARED_SIZE
#define DECLARED_SIZE sizeof(declared)
#endif
typedef struct {
    tess_option_spec spec;
#ifdef DECLARED_LONGER
    uint64_t later[3];
#endif
} declared;
static const declared declared_options[] IN_SECTION = {
    { .spec = { .struct_size = DECLARED_SIZE,
                .type = DECLARED_TYPE,
                .least = 1,
                .most = 8,
                .key = DECLARED_KEY,
                .fallback = DECLARED_FALLBACK,
#ifdef DECLARED_ENDLESS
                .choices = { [0 ... 159] = 'x' },
#endif
                .help = "a level" } },
    { .spec = { .struct_size = DECLARED_SIZE, .type = TESS_OPTION_TEXT, .key = DECLARED_SECOND, .help = "a text" } },
};
#ifdef DECLARED_ODD
static const uint64_t declared_more IN_SECTION = 1;
#endif
#else
static const tess_option_spec options[] IN_SECTION = {
    { sizeof options[0], TESS_OPTION_INT, 0, 0, "sample-port", "7", "", "a number" },
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "sample-mode", "calm", "calm|wild", "a choice" },
};
#endif

/* A later header's table: what it appends must not disturb an older core. */
static const struct {
    tess_comm_ops ops;
    void (*later[4])(void);
} table = {
    .ops = {
#if defined(LONGER_TABLE)
        .struct_size = sizeof table,
#elif defined(SHORT_TABLE) /* ends before `abort`, `post` and the rest */
        .struct_size = offsetof(tess_comm_ops, abort),
#elif defined(TINY_TABLE)
        .struct_size = 4,
#else
        .struct_size = sizeof(tess_comm_ops),
#endif
        .abi_major = TABLE_MAJOR,
        .abi_minor = TESS_ABI_MINOR,
        .close = close_plugin,
        .query = query,
        .need = need,
        .init = init,
        .destroy = destroy,
        .abort = abort_comm,
#ifdef ALLOC_WITHOUT_FREE
        .mem_alloc = mem_alloc,
#endif
#ifndef MISSING_POST
        .post = post,
#endif
        .test = test,
        .wait = wait,
        .request_free = request_free,
    },
};

#ifdef NO_OPEN
#define tess_plugin_open_v1 open_of_another_name
tess_status open_of_another_name(const tess_host *, uint32_t, const void **, void **, tess_error *);
#endif

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **ops, void **ctx, tess_error *error) {
    (void)host, (void)kind, (void)ops, (void)ctx, (void)error, (void)mem_alloc, (void)post, (void)table;
#if defined(OPEN_FAILS)
    error->code = TESS_E_DEVICE;
    strcpy(error->message, "no card\nin slot 3");
    return TESS_E_DEVICE;
#elif defined(OPEN_PENDING)
    return TESS_PENDING;
#elif defined(OPEN_GIVES_NOTHING)
    return TESS_OK;
#else
    if (strncmp(host->args, "log", 3) == 0)
        host->log(host->host, 1, "sample", "hello");
    *ops = &table.ops;
    *ctx = (void *)host->args;
    return TESS_OK;
#endif
}

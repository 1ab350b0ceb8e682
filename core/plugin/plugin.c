/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin.h"

#include <dlfcn.h>
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "elf_note.h"
#include "base/log.h"
#include "plugin_host.h"
#include "plugin_options.h"
#include "base/status.h"
#include "trusted_path.h"

#define REFUSE(status, ...) (snprintf(reason, TESS_REASON_BYTES, __VA_ARGS__), (status))

tess_status tess__plugin_file_check(uint32_t kind, const char *path, char real[4096], tess_plugin_note *note,
                                    char reason[TESS_REASON_BYTES]) {
    tess_status s = tess__trusted_path(path, TESS_PATH_FILE, real, reason, TESS_REASON_BYTES);
    if (s == TESS_OK)
        s = tess__elf_note_file(real, note, reason, TESS_REASON_BYTES);
    return s ? s : tess__note_check(note, kind, reason);
}

/* ---- what it says -------------------------------------------------------------------------------- */

static const char *text_after(const char *text, const char *word, const char *end) {
    size_t n = strlen(word), m = strlen(end);
    return strncmp(text, word, n) == 0 && strncmp(text + n, end, m) == 0 ? text + n + m : text;
}

tess_status tess__plugin_failed(tess_status s, uint32_t kind, const tess__plugin *p, const tess_error *e) {
    const char *message = text_after(text_after(e->message, tess__kind_name(kind), " "), p->name, ": ");
    return tess__fail(s, "%s %s: %s", tess__kind_name(kind), p->name, message);
}

/* ---- running its code -------------------------------------------------------------------------- */

/* The thread's rounding and flushing of denormals, which a library's start-up code may change unasked. */
typedef struct {
    int rounding;
    unsigned mxcsr;
} float_mode;
enum { MXCSR_FLAGS = 0x3f }; /* sticky exception flags, which are no mode */

static float_mode float_mode_get(void) {
    float_mode m = { .rounding = fegetround() };
#if defined(__SSE2__)
    m.mxcsr = _mm_getcsr() & ~(unsigned)MXCSR_FLAGS;
#elif defined(__aarch64__)
    m.mxcsr = (unsigned)__builtin_aarch64_get_fpcr();
#endif
    return m;
}

static void float_mode_restore(float_mode was, const char *name, const char *path) {
    float_mode now = float_mode_get();
    if (now.rounding == was.rounding && now.mxcsr == was.mxcsr)
        return;
    fesetround(was.rounding);
#if defined(__SSE2__)
    _mm_setcsr((_mm_getcsr() & MXCSR_FLAGS) | was.mxcsr);
#elif defined(__aarch64__)
    __builtin_aarch64_set_fpcr(was.mxcsr);
#endif
    tess__log(TESS_LOG_WARNING,
              "plugin %s (%s) changed the thread's rounding or denormal mode while it was loaded; restored", name,
              path);
}

typedef struct { /* one of the two */
    tess_status (*file)(const tess_host *, uint32_t kind, const void **ops, void **ctx, tess_error *);
    tess_status (*builtin)(const tess_host *, const void **ops, void **ctx, tess_error *);
} opener;

static tess_status load_library(const tess_plugin_note *note, tess__plugin *p, opener *o,
                                char reason[TESS_REASON_BYTES]) {
    p->library = dlopen(p->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!p->library)
        return REFUSE(TESS_E_INVALID, "%s", dlerror());
    const tess_plugin_note *loaded = dlsym(p->library, "tess_plugin_note_v1");
    if (!loaded)
        return REFUSE(TESS_E_INVALID, "symbol tess_plugin_note_v1 is missing");
    if (memcmp(loaded, note, sizeof *note) != 0)
        return REFUSE(TESS_E_INVALID, "tess_plugin_note_v1 is not what section .tessera.plugin says");
    void *symbol = dlsym(p->library, "tess_plugin_open_v1");
    if (!symbol)
        return REFUSE(TESS_E_INVALID, "symbol tess_plugin_open_v1 is missing");
    memcpy(&o->file, &symbol, sizeof symbol); /* ISO C has no cast for this */
    return TESS_OK;
}

static void close_ops(const tess__common_ops *ops, void *ctx) {
    if (ops && TESS_CAN(tess__common_ops, ops, close))
        ops->close(ctx);
}

static tess_status run_open(tess__plugin *p, opener o, char reason[TESS_REASON_BYTES]) {
    tess_error error = { .struct_size = sizeof error, .rank = -1 };
    const void *ops = NULL;
    void *ctx = NULL;
    tess_status s = o.builtin ? o.builtin(p->host, &ops, &ctx, &error) : o.file(p->host, p->kind, &ops, &ctx, &error);
    error.message[sizeof error.message - 1] = 0;
    if (s > 0)
        return REFUSE(TESS_E_INVALID, "open returned %d, expected 0 or a negative status", s);
    if (s < 0)
        return REFUSE(s, "open failed: %s (%s)", *error.message ? error.message : "no message", tess__status_name(s));
    s = tess__ops_check(p->kind, ops, reason);
    p->ops = ops;
    p->ctx = ctx;
    if (s && ops && ((const tess__common_ops *)ops)->abi_major == TESS_ABI_MAJOR)
        close_ops(ops, ctx);
    return s;
}

static tess_status run_file(const tess_plugin_note *note, tess__plugin *p, char reason[TESS_REASON_BYTES]) {
    opener o = { NULL, NULL };
    float_mode was = float_mode_get();
    tess_status s = load_library(note, p, &o, reason);
    if (s == TESS_OK)
        s = run_open(p, o, reason);
    float_mode_restore(was, p->name, p->path);
    return s;
}

static tess__plugin *plugin_new(uint32_t kind, const char *args, const tess_host *services) {
    tess__plugin *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->kind = kind;
    p->args = strdup(args);
    p->host = p->args ? tess__plugin_host_new(services, p->args) : NULL;
    if (!p->host) {
        free(p->args);
        free(p);
        return NULL;
    }
    return p;
}

static void plugin_free(tess__plugin *p) {
    free(p->host);
    free(p->options);
    free(p->args);
    free(p);
}

void tess__plugin_close(tess__plugin *p) {
    if (!p)
        return;
    close_ops(p->ops, p->ctx);
    plugin_free(p);
}

/* Checks the file and registers its options; none of its code runs. */
static tess_status read_file(uint32_t kind, const char *path, tess_plugin_note *note, tess__plugin *p,
                             char reason[TESS_REASON_BYTES]) {
    TRY(tess__plugin_file_check(kind, path, p->path, note, reason));
    memcpy(p->name, note->name, sizeof p->name);
    memcpy(p->version, note->version, sizeof p->version);
    p->abi_major = note->abi_major;
    p->abi_minor = note->abi_minor;
    return tess__plugin_options(p, note, reason);
}

tess_status tess__plugin_file_options(uint32_t kind, const char *path, char reason[TESS_REASON_BYTES]) {
    tess_plugin_note note;
    tess__plugin *p = calloc(1, sizeof *p); /* never opened, so without a host */
    if (!p)
        return REFUSE(TESS_E_NOMEM, "no memory");
    p->kind = kind;
    const tess_status s = read_file(kind, path, &note, p, reason);
    plugin_free(p);
    return s;
}

tess_status tess__plugin_file_open(uint32_t kind, const char *path, const char *args, const tess_host *services,
                                   tess__plugin **out, char reason[TESS_REASON_BYTES]) {
    tess_plugin_note note;
    tess__plugin *p = plugin_new(kind, args, services);
    if (!p)
        return REFUSE(TESS_E_NOMEM, "no memory");
    tess_status s = read_file(kind, path, &note, p, reason);
    if (s == TESS_OK)
        s = run_file(&note, p, reason);
    if (s)
        plugin_free(p);
    else
        *out = p;
    return s;
}

tess_status tess__plugin_builtin_open(const tess__builtin *b, const char *args, const tess_host *services,
                                      tess__plugin **out, char reason[TESS_REASON_BYTES]) {
    tess__plugin *p = plugin_new(b->kind, args, services);
    if (!p)
        return REFUSE(TESS_E_NOMEM, "no memory");
    snprintf(p->name, sizeof p->name, "%s", b->name);
    snprintf(p->version, sizeof p->version, "%s", TESSERA_VERSION);
    p->abi_major = TESS_ABI_MAJOR;
    p->abi_minor = TESS_ABI_MINOR;
    opener o = { NULL, b->open };
    tess_status s = run_open(p, o, reason);
    if (s)
        plugin_free(p);
    else
        *out = p;
    return s;
}

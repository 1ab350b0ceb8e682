/* Finding, checking and opening plugins: DESIGN section 5, "Loader". */
#ifndef TESS_LOADER_H
#define TESS_LOADER_H
#include <tessera/tessera.h>

typedef struct {
    uint32_t kind;
    char name[32], version[24];
    uint16_t abi_major, abi_minor;
    const void *ops; /* tess_comm_ops and so on; at least the mandatory slots are there */
    void *ctx;
    char path[4096]; /* "" when built in */
    char *args;      /* text after the colon; "" if none */
    void *library;
    tess_host *host; /* this plugin's host table: the caller's services with its own args */
} tess__plugin;

/** A kind's word in variables and file names: "comm", "device"; null for an unknown kind. */
const char *tess__kind_name(uint32_t kind);
/** Opens the plugin `selection` names ("gloo", "size:20000", "/path/lib.so", "./lib.so:args"). `services` is the core's
 * host table, copied; its log, option, kv and abort services reach the plugin. Fails with TESS_E_INVALID or
 * TESS_E_VERSION and a message listing every candidate with its reason. */
tess_status tess__plugin_open(uint32_t kind, const char *selection, const tess_host *services, tess__plugin **out);
void tess__plugin_close(tess__plugin *); /* close(ctx), never dlclose; null is fine */

/* One row of `tessera plugins list`. */
typedef struct {
    uint32_t kind;
    char name[32], version[24], path[4096];
    uint16_t abi_major, abi_minor;
    int usable;
    char reason[512]; /* why not usable */
} tess__plugin_row;
/** Calls `row` for every plugin of every kind: built-in ones and all files found in the search path. */
tess_status tess__plugin_list(tess_status (*row)(void *user, const tess__plugin_row *), void *user);

/* What is compiled in. The core names no other plugin. */
typedef struct {
    uint32_t kind;
    const char *name, *help;
    tess_status (*open)(const tess_host *, const void **ops, void **ctx, tess_error *);
} tess__builtin;
extern const tess__builtin tess__builtins[]; /* builtins.c; ends with kind 0 */
#endif

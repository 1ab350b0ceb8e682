/* SPDX-License-Identifier: BSD-3-Clause */
/* Finding, checking and opening plugins: docs/plugins.md. */
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
    tess_option_spec *options;
    uint32_t n_options;
} tess__plugin;

/** A kind's word in variables and file names: "comm", "device"; null for an unknown kind. */
const char *tess__kind_name(uint32_t kind);
/** Fails with what a plugin said, behind its kind and name: "device cuda: GPU 0: …", whether it named itself or not. */
tess_status tess__plugin_failed(tess_status, uint32_t kind, const tess__plugin *, const tess_error *);

/** Opens the plugin `selection` names ("gloo", "size:20000", "/path/lib.so", "./lib.so:args"). The text before the
 * first colon, or all, is a name when it has no slash; else the value is a path, with args after ".so:" or after the
 * first colon behind the last slash. Offload plugins may be several, "disk:DIR+cpu:params" (joined.h). `services` is
 * the core's host table, copied; what it leaves null gets a default, and null is fine. The plugin's options are
 * registered (options.h). Fails with TESS_E_INVALID, TESS_E_VERSION or what the plugin's open returned, and one line
 * with every candidate and its reason. */
tess_status tess__plugin_open(uint32_t kind, const char *selection, const tess_host *services, tess__plugin **out);
/** tess_host.plugin_open and .plugin_close, for those who make a host table. `services` null: the defaults. */
tess_status tess__plugin_host_open(const tess_host *services, uint32_t kind, const char *selection, const void **ops,
                                   void **ctx, void **handle, tess_error *);
void tess__plugin_host_close(void *host, void *handle);
/** Returns `given`, or the defaults, with plugin_open and plugin_close where it has none. */
tess_host tess__plugin_services(const tess_host *given);
void tess__plugin_close(tess__plugin *); /* close(ctx), never dlclose; null is fine */

/* One row of `tessera plugins list`. */
typedef struct {
    uint32_t kind;
    char name[32], version[24], path[4096];
    uint16_t abi_major, abi_minor;
    int usable;
    int64_t answer;   /* of tess__plugin_ask */
    char reason[512]; /* why not usable */
} tess__plugin_row;
/** `opened`: a usable file's plugin; null for a built-in one, which the callee may open. It is closed afterwards unless
 * the callee took it and left null. */
typedef tess_status tess__plugin_row_fn(void *user, const tess__plugin_row *, tess__plugin **opened);
/** Calls `row` for every plugin of one kind, or with 0 of every kind: built-in ones and all files found in the search
 * path. Each file is opened with `services`, in a child process first, to know whether it can be used. Stops at the
 * first status that is not 0 and returns it. */
tess_status tess__plugin_list(uint32_t kind, const tess_host *services, tess__plugin_row_fn *row, void *user);
/** The same, but files are opened in the child alone, which asks `ask` of each; `opened` is null. So what a plugin
 * links does not come into this process before the plugin is chosen. Here its options are known. */
tess_status tess__plugin_ask(uint32_t kind, const tess_host *services, int64_t (*ask)(void *user, const tess__plugin *),
                             tess__plugin_row_fn *row, void *user);
#endif

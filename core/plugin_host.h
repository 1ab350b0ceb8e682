/* The table of services that one plugin receives. */
#ifndef TESS_PLUGIN_HOST_H
#define TESS_PLUGIN_HOST_H
#include <tessera/tessera.h>

/** A copy of `services` (null: none) with `args`, which must outlive it. What it lacks gets a default: log and option
 * of the core, plain memory, no key-value store (TESS_E_UNSUPPORTED), never aborting. Null without memory; free() it.
 */
tess_host *tess__plugin_host_new(const tess_host *services, const char *args);

/** What tess_host.plugin_open does, for whoever makes a host table: opens with `services` (null: the defaults). */
tess_status tess__plugin_host_open(const tess_host *services, uint32_t kind, const char *selection, const void **ops,
                                   void **ctx, void **handle, tess_error *);
void tess__plugin_host_close(void *host, void *handle); /* fits tess_host.plugin_close */
#endif

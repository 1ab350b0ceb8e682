/* SPDX-License-Identifier: BSD-3-Clause */
/* Layer 1 of the kit, for every plugin: threads, the clock, and the wait for other ranks' keys.
 * Compiled into the plugin, no part of the ABI. C11, and C++17 through the header; beyond plugin.h only libc. */
#ifndef TESS_KIT_PLUGIN_BASE_H
#define TESS_KIT_PLUGIN_BASE_H
#include <pthread.h>
#include <sched.h>
#include <tessera/plugin_helpers.h>
#include <time.h>
#ifdef __cplusplus
extern "C" {
#endif

/* ---- clock --------------------------------------------------------------------------------------- */

int64_t kit_now_ns(void); /* monotonic */
/** The time `timeout_ns` from now, INT64_MAX for a negative timeout or one beyond a century. */
int64_t kit_until_ns(int64_t timeout_ns);
/** Waits on a condition that uses the monotonic clock. 1: `until_ns` is over. */
int kit_cond_wait(pthread_cond_t *, pthread_mutex_t *, int64_t until_ns);
void kit_cond_init(pthread_cond_t *); /* for kit_cond_wait */
void kit_nap(int64_t ns);

/* ---- threads ------------------------------------------------------------------------------------- */

/** Reads a CPU list of the kernel's form, "2,6-7". 1: it names CPUs; 0: it is empty or not a list. */
int kit_cpu_list(const char *text, cpu_set_t *out);
/** The first call of a plugin's thread: no signals, its name, the host's helper CPUs, the default floating-point mode.
 */
void kit_thread_enter(const tess_host *, const char *name);
/** Starts a thread that begins with kit_thread_enter; no signal can reach it before. `plugin` is for the message;
 * `name` lives as long as the thread. */
tess_status kit_thread_start(pthread_t *, const tess_host *, const char *plugin, const char *name, void (*run)(void *),
                             void *arg, tess_error *);

/* ---- host ---------------------------------------------------------------------------------------- */

int kit_aborting(const tess_host *);
__attribute__((format(printf, 4, 5))) void kit_log(const tess_host *, int32_t level, const char *plugin,
                                                   const char *format, ...);

/** One rank's way into a group: for whom it waits, how long, and the keys it reads. */
typedef struct {
    const tess_host *host;
    const char *plugin, *group; /* for messages and keys */
    int64_t timeout_ns, until_ns;
} kit_joining;

kit_joining kit_joining_begin(const tess_host *, const char *plugin, const char *group, int64_t timeout_ns);
/** TESS_OK: go on waiting for `rank` (-1: nobody in particular). TESS_E_ABORTED, TESS_E_TIMEOUT. */
tess_status kit_joining_check(const kit_joining *, int32_t rank, tess_error *);
/** Publishes `value` under GROUP/`name`/`rank`. */
tess_status kit_joining_set(const kit_joining *, const char *name, int32_t rank, const void *value, uint64_t bytes,
                            tess_error *);
/** Waits for the value of `rank` under GROUP/`name`/`rank`; it has `bytes` bytes, else TESS_E_VERSION. */
tess_status kit_joining_get(const kit_joining *, const char *name, int32_t rank, void *out, uint64_t bytes,
                            tess_error *);
#ifdef __cplusplus
}
#endif
#endif

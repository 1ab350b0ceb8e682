/* SPDX-License-Identifier: BSD-3-Clause */
/* Layer 1 of the kit, for every plugin: threads, the clock, typed options, and the wait for other ranks' keys.
 * Compiled into the plugin, no part of the ABI. C11, and C++17 through the header; beyond plugin.h only libc. */
#ifndef TESS_KIT_PLUGIN_BASE_H
#define TESS_KIT_PLUGIN_BASE_H
#include <pthread.h>
#include <sched.h>
#include <tessera/plugin_helpers.h>
#include <tessera/plugin_options.h>
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

/* ---- options ------------------------------------------------------------------------------------- */

/** A plugin's declared options, and how they may stand behind the colon of its TESSERA_<KIND>. There an option goes by
 * its key without `prefix`: "name=value", joined by commas. A word alone switches a flag of that name on, or is one of
 * the words of the list option, which then replace the variable's. */
typedef struct {
    const char *plugin, *prefix;   /* "offload cpu", for messages; "offload-", of each key */
    const tess_option_spec *specs; /* of TESS_OPTIONS */
    uint32_t n;
    const char *rest; /* the name of a text that goes on to the end, commas included; null: none */
} kit_options;
enum { KIT_OPTION_BYTES = 256 };
typedef struct {
    int is_set; /* by the user; else it is the fallback, or nothing where that is "" */
    tess_option_value value;
    char text[KIT_OPTION_BYTES];
} kit_option;

/** Reads all of them into out[n]: from the text behind the colon, else the variable, else the fallback. TESS_E_INVALID
 * names the setting and what was expected; of a variable, the core has refused that before. */
tess_status kit_options_read(const kit_options *, const tess_host *, kit_option *out, tess_error *);
/** An option of the core, which has checked it: `fallback` when it is unset. */
int kit_core_flag(const tess_host *, const char *key, int fallback);
double kit_core_real(const tess_host *, const char *key, double fallback);

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

/* What one opened plugin has: the host's services and the CPUs its threads belong on. */
#ifndef SHM_SETTINGS_H
#define SHM_SETTINGS_H
#include <sched.h>
#include <tessera/plugin.h>

struct shm_settings {
    tess_host host;
    cpu_set_t cpus;
    int pin; /* cpus says something */
};

void shm_settings_init(struct shm_settings *, const tess_host *);
/* For each of our threads, first thing: no signals, the helper CPUs, the default floating-point mode. */
void shm_enter_thread(const struct shm_settings *, const char *name);
int shm_aborting(const struct shm_settings *);
int64_t shm_now_ns(void);
#endif

/* What one opened plugin has: the host's services, its options, the CPUs its threads belong on. */
#ifndef NCCL_SETTINGS_H
#define NCCL_SETTINGS_H
#include "failure.h"

#include <sched.h>

struct nccl_settings {
    tess_host host;
    cpu_set_t cpus;
    int pin;           /* cpus says something */
    int deterministic; /* TESSERA_DETERMINISTIC: sums in the engine's tree */
    int compares;      /* what ranks post, before it is called done */
};

tess_status nccl_settings_init(struct nccl_settings *, const tess_host *, struct nccl_failure *);
/* For each of our threads, first thing: no signals, the helper CPUs, the default floating-point mode. */
void nccl_enter_thread(const struct nccl_settings *, const char *name);
int nccl_aborting(const struct nccl_settings *);
void nccl_warn(const struct nccl_settings *, const char *format, ...) __attribute__((format(printf, 2, 3)));
int64_t nccl_now_ns(void);
void nccl_nap(int64_t ns);
#endif

/* comm=auto: which plugin it is; and which ranks share a host. */
#ifndef TESS_COMM_CHOICE_H
#define TESS_COMM_CHOICE_H
#include <tessera/tessera.h>

/** A number equal on processes that run on one host and can reach each other there: one kernel, one network namespace.
 */
uint64_t tess__host_id(void);
/** Of each rank's host id, the most ranks with the same: the same answer on every rank. */
int32_t tess__most_on_a_host(const uint64_t *ids, int32_t n);
/** The usable comm plugin that serves these ranks and this device's memory with the least time for gathering 16 MiB, by
 * its own `cost` or, without one, as over a network of 1 GB/s per host; the first by name when equal. `services` as in
 * tess__plugin_open. TESS_E_INVALID: there is none. */
tess_status tess__comm_choose(const tess_host *services, const tess_plan_env *, char name[32]);
#endif

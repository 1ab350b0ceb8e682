/* SPDX-License-Identifier: BSD-3-Clause */
/* Which ranks share a host. */
#ifndef TESS_HOST_ID_H
#define TESS_HOST_ID_H
#include <stdint.h>

/** A number equal on processes that run on one host and can reach each other there: one kernel, one network namespace.
 */
uint64_t tess__host_id(void);
/** The largest number of ranks with one host id; the same answer on every rank. */
int32_t tess__most_on_a_host(const uint64_t *ids, int32_t n);
/** A hash of which ranks share a host: of the layout alone, whatever the hosts' ids are. */
uint64_t tess__layout_of_hosts(const uint64_t *ids, int32_t n);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* The layout says which ranks share a host, and if their sums can cross hosts as aligned subtrees (docs/numbers.md,
 * "Tree"). */
#ifndef HOSTS_LAYOUT_H
#define HOSTS_LAYOUT_H
#include <stdint.h>

enum { HOSTS_ONE = 1, HOSTS_FLAT, HOSTS_TWO_STEPS };
typedef struct {
    int kind;            /* one host; the backend between hosts alone; two steps */
    int32_t hosts, each; /* two steps: rank = host * each + local */
    int32_t last;        /* ranks on the last host: 1 to `each` */
    int32_t host, local; /* this rank's; `local` is its index on its host, in flat layouts too */
    int32_t sharing;     /* ranks on this rank's host */
    const char *why;     /* flat although ranks share hosts: why; else null */
} hosts_layout;

/** `ids`: of each rank, equal on ranks of one host. The same kind on every rank. */
hosts_layout hosts_layout_of(const uint64_t *ids, int32_t n, int32_t rank);
/** Returns 1 if hosts with `each` contiguous ranks, and a last host with the rest of n, form aligned subtrees. */
int hosts_fit_tree(int32_t n, int32_t each);

/* ---- rails --------------------------------------------------------------------------------------- */

/* There are `each` rails. A rail has one rank of every host: rank `local` of a full host is on rail `local`. The ranks
 * of a smaller last host are on the last rails; on each other rail one of them stands in, without a block of its own.
 */

/** Returns how many rounds a rank of that host needs, one rail per round: 1 on a full host. */
int32_t hosts_rounds(const hosts_layout *, int32_t host);
/** The round of a rail on that host. */
int32_t hosts_round_of(const hosts_layout *, int32_t host, int32_t rail);
/** The rail of a rank in a round, -1: none. Round 0 is the one with its own block. */
int32_t hosts_rail(const hosts_layout *, int32_t host, int32_t local, int32_t round);
/** The local rank that is on a rail on that host. */
int32_t hosts_local_on(const hosts_layout *, int32_t host, int32_t rail);
/** Returns 0 if the host's rank on that rail is a placeholder without a block. */
int hosts_has_block(const hosts_layout *, int32_t host, int32_t rail);
/** The first of as many neighbouring blocks as this rank's host has ranks. In this round local rank i carries block i
 * of them over its rail where that is one of `host`. */
int32_t hosts_window(const hosts_layout *, int32_t host, int32_t round);

/** A number equal on processes that run on one host and can reach each other there. */
uint64_t hosts_id(void);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Which ranks share a host, and whether their sums can cross hosts as aligned subtrees (docs/numbers.md, "Tree"). */
#ifndef HOSTS_LAYOUT_H
#define HOSTS_LAYOUT_H
#include <stdint.h>

enum { HOSTS_ONE = 1, HOSTS_FLAT, HOSTS_TWO_STEPS };
typedef struct {
    int kind;            /* one host; the backend between hosts alone; two steps */
    int32_t hosts, each; /* two steps: rank = host * each + local */
    int32_t host, local; /* of this rank; in any kind `local` is its number among those of its host */
    int32_t sharing;     /* ranks on this rank's host */
    const char *why;     /* flat although ranks share hosts: why; else null */
} hosts_layout;

/** `ids`: of each rank, equal on ranks of one host. The same kind on every rank. */
hosts_layout hosts_layout_of(const uint64_t *ids, int32_t n, int32_t rank);
/** 1: `each` contiguous ranks on every host are an aligned subtree of n. */
int hosts_fit_tree(int32_t n, int32_t each);
/** A number equal on processes that run on one host and can reach each other there. */
uint64_t hosts_id(void);
#endif

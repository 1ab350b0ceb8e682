/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera run --hosts: which hosts, and how many ranks on each. */
#ifndef TOOL_HOSTS_H
#define TOOL_HOSTS_H
#include <stdint.h>

enum { HOSTS_MAX = 1024, HOST_NAME_BYTES = 256, HOST_RANKS_MAX = 4096 };
typedef struct {
    char name[HOST_NAME_BYTES];
    int32_t ranks; /* 0: not said */
} host_entry;
typedef struct {
    host_entry *all;
    int32_t n;
} host_list;

/** "a:4,b,[fd77::1]:2": 0, or -1 with one line in `why`. Names that an agent could take for an option are refused. */
int hosts_parse(const char *text, host_list *, char why[256]);
/** A file with a host in each line, as above or "a slots=4"; # begins a comment. 0, or -1 with one line in `why`. */
int hosts_read(const char *path, host_list *, char why[256]);
void hosts_free(host_list *);
#endif

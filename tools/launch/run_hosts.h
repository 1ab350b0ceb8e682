/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera run --hosts: from a list of hosts to the agents that start `tessera run --nnodes` on each. */
#ifndef TOOL_RUN_HOSTS_H
#define TOOL_RUN_HOSTS_H
#include "hosts.h"
#include "launch.h"

typedef struct {
    host_list hosts;
    int32_t each;           /* ranks of a host that says no number; 0: none was given */
    const char *agent;      /* the command, in words; null: ssh */
    const char *rendezvous; /* HOST:PORT as given; null: the first host and the default port */
} run_hosts_options;

enum { RUN_HOSTS_PORT = 29400 };

/** Runs `launch->argv` on all hosts; returns the exit code. */
int run_hosts(const launch_options *launch, const run_hosts_options *);
#endif

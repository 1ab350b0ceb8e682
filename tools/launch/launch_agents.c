/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera run --hosts: one agent (ssh, unless said otherwise) for each host, which runs this command there. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/support/say.h"
#include "launch_internal.h"
#include "tools/commands.h"

enum { SSH_FAILED = 255, NOT_STARTED = 126 };

static void hang_up(launch_rank *agent) {
    if (agent->orders >= 0)
        close(agent->orders);
    agent->orders = -1;
}

/* A pipe takes so little at once; one that is full or broken has nobody at its end. */
static void say(launch_rank *agent, const char *text) {
    if (agent->orders >= 0 && write(agent->orders, text, strlen(text)) < 0 && errno != EAGAIN)
        hang_up(agent);
}

static int start_agent(launch *l, int32_t index, char **environment) {
    int fds[2];
    char secret[LAUNCH_SECRET_BYTES + 2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
        tool_say(SAY_ERROR, "cannot start the agent of host %s: %s", l->options->agents[index].host, strerror(errno));
        return TOOL_CONFIG;
    }
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    l->ranks[index].orders = fds[1];
    const launch_process process = {
        .index = index, .argv = l->options->agents[index].argv, .environment = environment, .in = fds[0]
    };
    int code = launch_start_process(l, &process);
    close(fds[0]);
    snprintf(secret, sizeof secret, "%s\n", l->options->secret);
    say(&l->ranks[index], secret);
    explicit_bzero(secret, sizeof secret);
    return code;
}

int launch_start_agents(launch *l) {
    char **environment = launch_environment_without_secret();
    int code = 0;
    if (!environment) {
        tool_say(SAY_ERROR, "no memory to start %d agents", (int)l->options->ranks);
        return TOOL_MEMORY;
    }
    for (int32_t i = 0; i < l->options->ranks && !code; i++)
        code = start_agent(l, i, environment);
    free(environment);
    return code;
}

void launch_agent_signal(launch *l, int32_t index, int signal) {
    launch_rank *agent = &l->ranks[index];
    char line[16];
    snprintf(line, sizeof line, "%d\n", signal);
    say(agent, line);
    if (signal != SIGKILL)
        return;
    launch_agent_ended(l, index);
    kill(-agent->pid, SIGTERM); /* ssh says goodbye */
}

void launch_agent_ended(launch *l, int32_t index) {
    hang_up(&l->ranks[index]);
}

int launch_agent_explain(const launch *l, int32_t index) {
    const launch_rank *agent = &l->ranks[index];
    const char *host = l->options->agents[index].host, *program = l->options->agents[index].argv[0];
    if (agent->signal)
        tool_say(SAY_ERROR, "host %s was lost: its agent %s was killed by signal %d (%s)", host, program, agent->signal,
                 strsignal(agent->signal));
    else if (agent->exit_code == SSH_FAILED || agent->exit_code == NOT_STARTED || agent->exit_code == NOT_STARTED + 1)
        tool_say(SAY_ERROR, "host %s was lost: its agent %s ended with code %d", host, program, agent->exit_code);
    else
        return 0;
    return 1;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/commands.h"
#include "launch_internal.h"
#include "tools/support/say.h"
#include "tools/support/progress.h"
#include "tools/support/world.h"

#define SECOND_NS 1000000000ll
enum { KILL_AFTER_S = 3, STRANGER_GRACE_S = 1, LAST_WORDS_S = 1, AGENTS_GRACE_S = 2, SILENCE_TURN_MS = 500 };

/* ---- signals ------------------------------------------------------------------------------------ */

static const int passed_on[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };

/* A signal that was ignored when we started (nohup, a background job) stays ignored. */
static int take_signals(launch *l) {
    sigset_t set;
    struct sigaction ignore = { .sa_handler = SIG_IGN }, now;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTSTP);
    sigaddset(&set, SIGCONT);
    for (size_t i = 0; i < sizeof passed_on / sizeof passed_on[0]; i++)
        if (sigaction(passed_on[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaddset(&set, passed_on[i]);
    sigaction(SIGPIPE, &ignore, &l->old_pipe);
    sigprocmask(SIG_BLOCK, &set, &l->old_mask);
    l->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return l->signal_fd >= 0 ? 0 : -1;
}

static void give_signals_back(launch *l) {
    if (l->signal_fd >= 0)
        close(l->signal_fd);
    sigaction(SIGPIPE, &l->old_pipe, NULL);
    sigprocmask(SIG_SETMASK, &l->old_mask, NULL);
}

static void signal_one(launch *l, int32_t r, int signal) {
    if (l->options->agents)
        launch_agent_signal(l, r, signal);
    else
        kill(-l->ranks[r].pid, signal);
}

static void signal_all(launch *l, int signal) {
    for (int32_t r = 0; r < l->options->ranks; r++)
        if (l->ranks[r].pid)
            signal_one(l, r, signal);
}

/* ---- stopping ----------------------------------------------------------------------------------- */

static void begin_stop(launch *l) {
    if (!l->stop_ns)
        l->stop_ns = tool_now_ns();
}

/* Returns 0 if another host has the server, because only the server knows who joined. */
static int anyone_joined(const launch *l) {
    for (int32_t r = 0; l->server && r < l->options->ranks; r++)
        if (launch_server_joined(l, r))
            return 1;
    return !l->server;
}

/* Ranks on the control plane know what happened and end by themselves; programs that never join have to be asked. A
 * stopped process must run to hear it. */
static void press(launch *l, int64_t now_ns) {
    int64_t grace_ns = l->grace_ns;
    if (l->options->agents) /* adds time in which each agent stops its own ranks */
        grace_ns += AGENTS_GRACE_S * SECOND_NS;
    if (grace_ns > STRANGER_GRACE_S * SECOND_NS && !anyone_joined(l))
        grace_ns = STRANGER_GRACE_S * SECOND_NS;
    for (int32_t r = 0; r < l->options->ranks && l->stop_ns; r++) {
        launch_rank *rank = &l->ranks[r];
        if (!rank->pid)
            continue;
        if (!rank->term_ns && now_ns - l->stop_ns >= grace_ns) {
            rank->term_ns = now_ns;
            signal_one(l, r, SIGTERM);
            signal_one(l, r, SIGCONT);
        } else if (rank->term_ns && !rank->killed && now_ns - rank->term_ns >= KILL_AFTER_S * SECOND_NS) {
            rank->killed = 1;
            signal_one(l, r, SIGKILL);
        } else if (rank->killed && now_ns - rank->term_ns >= 2 * KILL_AFTER_S * SECOND_NS)
            kill(-rank->pid, SIGKILL); /* an agent that did not end with its command */
    }
}

/* The first signal is passed on, so that the ranks can end as they see fit; the second kills. */
static void interrupt(launch *l, int signal) {
    int again = l->interrupted;
    l->interrupted = signal;
    begin_stop(l);
    for (int32_t r = 0; r < l->options->ranks; r++)
        l->ranks[r].term_ns = tool_now_ns() + l->grace_ns;
    signal_all(l, again ? SIGKILL : signal == SIGPIPE ? SIGTERM : signal);
    signal_all(l, SIGCONT);
}

static void handle_signals(launch *l) {
    struct signalfd_siginfo info;
    while (read(l->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        int signal = (int)info.ssi_signo;
        if (signal == SIGTSTP) {
            signal_all(l, SIGSTOP);
            raise(SIGSTOP);
        } else if (signal == SIGCONT)
            signal_all(l, SIGCONT);
        else if (signal != SIGCHLD)
            interrupt(l, signal);
    }
}

static void handle_order(launch *l) {
    int signal = launch_follow_order(l);
    if (signal == SIGCONT)
        signal_all(l, SIGCONT);
    else if (signal)
        interrupt(l, signal);
}

/* ---- ends --------------------------------------------------------------------------------------- */

static void note_end(launch *l, int32_t r, int status) {
    launch_rank *rank = &l->ranks[r];
    char why[96];
    rank->pid = 0;
    l->n_running--;
    if (WIFSIGNALED(status)) {
        rank->signal = WTERMSIG(status);
        rank->exit_code = TOOL_PEER;
        snprintf(why, sizeof why, "killed by signal %d (%s)", rank->signal, strsignal(rank->signal));
    } else {
        rank->exit_code = WEXITSTATUS(status);
        snprintf(why, sizeof why, "exited with code %d", rank->exit_code);
    }
    rank->failed = rank->exit_code != 0;
    if (rank->left || (rank->failed && launch_survives(l, r, why)))
        return;
    launch_server_ended(l, r, !rank->failed, why);
    if (!rank->failed)
        return;
    if (l->first_failed < 0)
        l->first_failed = r;
    begin_stop(l);
}

/* A zombie keeps its process number, so the launcher can safely kill the rest of its process group by that number. */
static void reap(launch *l) {
    for (int32_t r = 0; r < l->options->ranks; r++) {
        launch_rank *rank = &l->ranks[r];
        siginfo_t info = { .si_pid = 0 };
        int status = 0;
        if (!rank->pid || waitid(P_PID, (id_t)rank->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || !info.si_pid)
            continue;
        kill(-rank->pid, SIGKILL);
        launch_agent_ended(l, r);
        if (waitpid(rank->pid, &status, 0) == rank->pid)
            note_end(l, r, status);
    }
}

/* Returns the host whose ranks failed first, because the ranks of other hosts ended as a consequence. */
static int32_t culprit_host(const launch *l) {
    for (int32_t r = 0; r < l->options->ranks; r++)
        if (l->ranks[r].failed && !l->ranks[r].term_ns && l->ranks[r].exit_code != TOOL_PEER)
            return r;
    return l->first_failed;
}

/* Returns the rank that failed first. It asks the control plane, because the order of exits may mislead. */
static int32_t culprit(const launch *l) {
    if (l->options->agents)
        return culprit_host(l);
    int32_t r = launch_server_culprit(l);
    return r >= 0 && r < l->options->ranks && l->ranks[r].failed ? r : l->first_failed;
}

static void count_lost(const launch *l) {
    for (int32_t r = 0; l->options->lost && r < l->options->ranks; r++)
        *l->options->lost += l->ranks[r].signal && !l->ranks[r].term_ns && !l->ranks[r].killed && !l->ranks[r].left;
}

static int conclude(const launch *l) {
    const int lost = l->sinks[0].broken;
    count_lost(l);
    if (lost && lost != EPIPE) { /* a reader that went away is no mistake */
        tool_say(SAY_ERROR, "cannot write to standard output: %s", strerror(lost));
        return TOOL_CONFIG;
    }
    if (l->first_failed < 0)
        return TOOL_OK;
    if (l->interrupted)
        return 128 + l->interrupted;
    int32_t r = culprit(l);
    if (l->options->agents)
        return launch_agent_explain(l, r) ? TOOL_PEER : l->ranks[r].exit_code;
    const launch_rank *rank = &l->ranks[r];
    int name = (int)(l->options->first_rank + r);
    if (rank->signal)
        tool_say(SAY_ERROR, "rank %d was killed by signal %d (%s)%s", name, rank->signal, strsignal(rank->signal),
                 rank->term_ns ? ", having been stopped" : "");
    else if (!l->options->ranks_explain)
        tool_say(SAY_ERROR, "rank %d exited with code %d", name, rank->exit_code);
    return rank->exit_code;
}

/* ---- the whole ---------------------------------------------------------------------------------- */

static void wait_turn(launch *l) {
    l->fds[0] = (struct pollfd){ .fd = l->signal_fd, .events = POLLIN };
    l->fds[1] = (struct pollfd){ .fd = l->orders_fd, .events = POLLIN };
    nfds_t n = 2 + launch_output_poll(l, l->fds + 2);
    if (poll(l->fds, n, l->stop_ns ? 50 : l->server ? SILENCE_TURN_MS : -1) < 0)
        return;
    launch_output_turn(l, l->fds + 2);
    if (l->fds[0].revents)
        handle_signals(l);
    if (l->fds[1].revents)
        handle_order(l);
    if (l->sinks[0].broken && !l->interrupted)
        interrupt(l, SIGPIPE); /* nobody reads the output any more, so the launcher ends like any filter */
}

static void run(launch *l) {
    while (l->n_running > 0) {
        wait_turn(l);
        reap(l);
        launch_end_silent(l);
        press(l, tool_now_ns());
    }
    launch_output_drain(l);
    int64_t end_ns = tool_now_ns() + LAST_WORDS_S * SECOND_NS;
    while (launch_output_pending(l) && (!l->interrupted || tool_now_ns() < end_ns))
        wait_turn(l);
}

static int start(launch *l) {
    int32_t port = 0;
    if (take_signals(l) != 0) {
        tool_say(SAY_ERROR, "cannot prepare to start ranks: %s", strerror(errno));
        return TOOL_CONFIG;
    }
    int code = launch_read_seconds("grace", 5, 86400, &l->grace_ns);
    if (code)
        return code;
    if (l->options->agents)
        return launch_start_agents(l);
    code = launch_follow_secret(l);
    if (!code)
        code = launch_server_start(l, &port);
    return code ? code : launch_start_all(l, port);
}

/* Keeps the server for other hosts until their ranks end or, after a failure, have heard of it. */
static void await_other_hosts(launch *l) {
    int64_t end_ns = l->first_failed < 0 && !l->interrupted ? INT64_MAX : tool_now_ns() + l->grace_ns;
    while (launch_server_connected(l) > 0 && tool_now_ns() < end_ns) {
        struct pollfd wait[] = { { .fd = l->signal_fd, .events = POLLIN }, { .fd = l->orders_fd, .events = POLLIN } };
        if (poll(wait, 2, 20) > 0) {
            handle_signals(l);
            if (wait[1].revents)
                handle_order(l);
        }
        if (l->interrupted && end_ns == INT64_MAX)
            end_ns = tool_now_ns() + l->grace_ns;
    }
}

static int launch_and_wait(launch *l) {
    int code = start(l);
    if (code && l->n_running) {
        signal_all(l, SIGKILL);
        begin_stop(l);
    }
    if (l->signal_fd >= 0)
        run(l);
    if (!code)
        code = conclude(l);
    if (l->server && launch_several_hosts(l))
        await_other_hosts(l);
    launch_server_stop(l);
    launch_plan_free(l);
    give_signals_back(l);
    return code;
}

/* Pipes must not take the numbers of streams that were closed on us. */
static void fill_standard_streams(void) {
    int fd;
    do
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd <= 2);
    if (fd > 2)
        close(fd);
}

int launch_start_ranks(const launch_options *options) {
    fill_standard_streams();
    size_t n = (size_t)options->ranks;
    launch l = { .options = options,
                 .first_failed = -1,
                 .signal_fd = -1,
                 .secret_fd = -1,
                 .orders_fd = -1,
                 .recovery = { .n_members = options->ranks },
                 .sinks = { { .fd = 1 }, { .fd = 2 } } };
    int code = TOOL_MEMORY;
    l.ranks = calloc(n, sizeof *l.ranks);
    l.fds = calloc(2 * n + 4, sizeof *l.fds);
    for (size_t r = 0; l.ranks && r < n; r++)
        l.ranks[r].streams[0].fd = l.ranks[r].streams[1].fd = l.ranks[r].orders = -1;
    if (l.ranks && l.fds)
        code = launch_and_wait(&l);
    else
        tool_say(SAY_ERROR, "no memory to start %zu ranks", n);
    if (l.ranks)
        launch_output_close(&l);
    free(l.ranks);
    free(l.fds);
    return code;
}

int launch_self(const launch_options *options) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0) {
        tool_say(SAY_ERROR, "cannot find this program's file: %s", strerror(errno));
        return TOOL_CONFIG;
    }
    path[length] = 0;
    launch_options self = *options;
    self.program = path;
    return launch_start_ranks(&self);
}

int launch_wanted(const char *command, int64_t ranks) {
    const char *text = getenv("WORLD_SIZE");
    tool_world world;
    if (!text || !*text) {
        /* Slurm's and Open MPI's tasks are ranks already. */
        if (tool_world_read(&world) != TESS_OK || (world.ranks == 1 && !getenv("OMPI_COMM_WORLD_RANK")))
            return ranks > 1;
        if (world.ranks == ranks)
            return 0;
        fprintf(stderr, "tessera %s: -n %lld differs from the %d ranks that the launcher started\n", command,
                (long long)ranks, (int)world.ranks);
        return -1;
    }
    char *end;
    if (strtoll(text, &end, 10) == ranks && !*end)
        return getenv("RANK") ? 0 : ranks > 1;
    fprintf(stderr, "tessera %s: -n %lld differs from WORLD_SIZE, which is '%.40s'\n", command, (long long)ranks, text);
    return -1;
}

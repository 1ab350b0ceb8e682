/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "binding.h"
#include "tools/commands.h"
#include "launch_internal.h"
#include "tools/support/say.h"
#include "tools/support/options.h"
#include "tools/support/spinning.h"

extern char **environ;

/* ---- environment -------------------------------------------------------------------------------- */

enum { N_OURS = 18, N_LEFT_OUT = 4, OURS_MAX = 320 };
typedef struct { /* a rank's environment: ours, then what we have ourselves */
    char ours[N_OURS][OURS_MAX];
    const char *left_out[N_LEFT_OUT];
    int n_ours, n_left_out;
    char **list;
} rank_environment;

static int is_ours(const rank_environment *e, const char *entry) {
    size_t name = strcspn(entry, "=") + 1;
    for (int i = 0; i < e->n_ours; i++)
        if (strncmp(e->ours[i], entry, name) == 0)
            return 1;
    for (int i = 0; i < e->n_left_out; i++)
        if (strlen(e->left_out[i]) == name - 1 && strncmp(e->left_out[i], entry, name - 1) == 0)
            return 1;
    return 0;
}

static void leave_out(rank_environment *e, const char *name) {
    e->left_out[e->n_left_out++] = name;
}

static void add(rank_environment *e, const char *name, const char *value) {
    snprintf(e->ours[e->n_ours++], OURS_MAX, "%s=%s", name, value);
}

static void add_int(rank_environment *e, const char *name, int32_t value) {
    char text[16];
    snprintf(text, sizeof text, "%d", (int)value);
    add(e, name, text);
}

static int merge(rank_environment *e) {
    size_t n = 0, at = 0;
    while (environ[n])
        n++;
    e->list = calloc(n + N_OURS + 1, sizeof *e->list);
    if (!e->list)
        return -1;
    for (int i = 0; i < e->n_ours; i++)
        e->list[at++] = e->ours[i];
    for (size_t i = 0; i < n; i++)
        if (!is_ours(e, environ[i]))
            e->list[at++] = environ[i];
    return 0;
}

char **launch_environment_without_secret(void) {
    rank_environment e = { .n_ours = 0 };
    leave_out(&e, "TESSERA_SECRET_FILE");
    leave_out(&e, "TESSERA_SECRET");
    leave_out(&e, "TESSERA_SECRET_FD");
    return merge(&e) == 0 ? e.list : NULL;
}

struct launch_plan { /* what all ranks share */
    char kv[280];
    int32_t port, cores_each, bound;
    launch_binding *bindings;
};
typedef launch_plan plan;

static void describe_meeting(const launch *l, const plan *p, rank_environment *e) {
    int several = launch_several_hosts(l);
    add(e, "MASTER_ADDR", several ? l->options->host : "127.0.0.1");
    add_int(e, "MASTER_PORT", p->port);
    add(e, "TESSERA_KV", p->kv);
    if (several) {
        add_int(e, "TESSERA_SECRET_FD", l->secret_fd);
        leave_out(e, "TESSERA_SECRET_FILE");
        leave_out(e, "TESSERA_SECRET");
    }
}

static int describe_rank(const launch *l, const plan *p, int32_t rank, rank_environment *e) {
    int64_t threads = 0;
    e->n_ours = e->n_left_out = 0;
    add_int(e, "RANK", l->options->first_rank + rank);
    add_int(e, "WORLD_SIZE", launch_several_hosts(l) ? l->options->world : l->options->ranks);
    add_int(e, "LOCAL_RANK", rank);
    add_int(e, "LOCAL_WORLD_SIZE", l->options->ranks);
    describe_meeting(l, p, e);
    leave_out(e, "TESSERA_RANKS"); /* it concerns the launcher alone, and may be MIN:MAX */
    leave_out(e, "TESSERA_GRACE"); /* no rank reads it */
    if (p->bound && !getenv("TESSERA_HELPER_CPUS"))
        add(e, "TESSERA_HELPER_CPUS", p->bindings[rank].list);
    if (!getenv("OMP_NUM_THREADS"))
        add_int(e, "OMP_NUM_THREADS", p->cores_each);
    tool_option_int("threads", &threads);
    if (tool_spinning_hurts(threads * l->options->ranks))
        add_int(e, TOOL_SPIN_VARIABLE, TOOL_SPIN_COUNT);
    if (l->options->mesh)
        add(e, "TESSERA_MESH", l->options->mesh);
    if (l->options->restart_file)
        add(e, "TESSERA_RESTART_FILE", l->options->restart_file);
    if (l->options->restarts) {
        add_int(e, "TESSERA_RESTART", l->options->restarts);
        add_int(e, "TESSERA_RESTART_RANKS", l->options->restart_ranks);
    }
    if (l->recovery.generation)
        add_int(e, "TESSERA_GENERATION", l->recovery.generation);
    if (l->options->least && l->options->least < l->options->ranks)
        add_int(e, "TESSERA_RANKS_LEAST", l->options->least);
    return merge(e);
}

/* A port for programs that meet at MASTER_PORT by themselves; nothing of ours listens there. */
static int32_t free_port(void) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof at;
    int32_t port = 29500;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 &&
        getsockname(fd, (struct sockaddr *)&at, &size) == 0)
        port = ntohs(at.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

/* ---- the child ---------------------------------------------------------------------------------- */

typedef struct {
    const launch *l;
    const launch_process *process;
    pid_t parent;
    int out, err, report;
} child_setup;

/* Runs after fork and before exec, where another thread may have held any lock: only system calls. */
static void become_rank(const child_setup *c) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != c->parent)
        _exit(TOOL_PEER);
    if (c->process->cpus)
        sched_setaffinity(0, sizeof(cpu_set_t), c->process->cpus);
    if ((c->process->in >= 0 && dup2(c->process->in, 0) < 0) || (c->out >= 0 && dup2(c->out, 1) < 0) ||
        (c->err >= 0 && dup2(c->err, 2) < 0))
        _exit(TOOL_CONFIG);
    if (c->l->secret_fd >= 0)
        fcntl(c->l->secret_fd, F_SETFD, 0);
    if (c->l->options->prefix)
        signal(SIGPIPE, SIG_IGN);
    else
        sigaction(SIGPIPE, &c->l->old_pipe, NULL);
    sigprocmask(SIG_SETMASK, &c->l->old_mask, NULL);
    environ = c->process->environment;
    if (c->process->program)
        execv(c->process->program, c->process->argv);
    else
        execvp(c->process->argv[0], c->process->argv);
    int error = errno;
    ssize_t ignored = write(c->report, &error, sizeof error);
    (void)ignored;
    _exit(127);
}

/* ---- the parent --------------------------------------------------------------------------------- */

static void close_all(const int *fds, int n) {
    for (int i = 0; i < n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* The child says over its pipe why it could not become the program; nothing when it did. One that is stopped before it
 * could is waited for no longer: the rendezvous finds it missing. */
static int await_exec(int fd) {
    enum { PATIENCE_MS = 1000 };
    struct pollfd p = { .fd = fd, .events = POLLIN };
    int error = 0;
    ssize_t got;
    if (poll(&p, 1, PATIENCE_MS) == 0)
        return 0;
    do
        got = read(fd, &error, sizeof error);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof error ? error : 0;
}

/* fds: report r/w, out r/w, err r/w. Returns an errno. */
static int fork_process(launch *l, child_setup *c, int *fds) {
    launch_rank *r = &l->ranks[c->process->index];
    int piped = l->options->prefix || l->options->agents != NULL;
    if (pipe2(fds, O_CLOEXEC) != 0 || (piped && (pipe2(fds + 2, O_CLOEXEC) != 0 || pipe2(fds + 4, O_CLOEXEC) != 0)))
        return errno;
    c->report = fds[1];
    c->out = fds[3];
    c->err = fds[5];
    pid_t pid = fork();
    if (pid < 0)
        return errno;
    if (pid == 0)
        become_rank(c);
    setpgid(pid, pid);
    r->pid = pid;
    r->started = 1;
    r->failed = r->exit_code = r->signal = r->killed = r->silent = 0;
    r->term_ns = 0;
    r->generation = l->recovery.generation;
    l->n_running++;
    close(fds[1]);
    fds[1] = -1;
    int error = await_exec(fds[0]);
    if (piped && !error) {
        launch_stream_open(&r->streams[0], c->process->index, 0, fds[2]);
        launch_stream_open(&r->streams[1], c->process->index, 1, fds[4]);
        fds[2] = fds[4] = -1;
    }
    return error;
}

int launch_start_process(launch *l, const launch_process *p) {
    int fds[6] = { -1, -1, -1, -1, -1, -1 };
    child_setup c = { .l = l, .process = p, .parent = getpid() };
    int error = fork_process(l, &c, fds);
    close_all(fds, 6);
    if (!error)
        return 0;
    tool_say(SAY_ERROR, "cannot start '%s': %s", p->program ? p->program : p->argv[0], strerror(error));
    return TOOL_CONFIG;
}

/* Rank 0 reads what we read, unless that is a terminal, for which a process group of its own would be stopped, or what
 * an agent tells us. */
static int start_rank(launch *l, const plan *p, int32_t rank, int null_fd) {
    rank_environment e;
    int reads = l->options->first_rank + rank == 0 && !l->options->follow && !isatty(0);
    if (describe_rank(l, p, rank, &e) != 0) {
        tool_say(SAY_ERROR, "no memory to start rank %d", (int)(l->options->first_rank + rank));
        return TOOL_MEMORY;
    }
    const launch_process process = { .index = rank,
                                     .program = l->options->program,
                                     .argv = l->options->argv,
                                     .environment = e.list,
                                     .cpus = p->bound ? &p->bindings[rank].set : NULL,
                                     .in = reads ? -1 : null_fd };
    int code = launch_start_process(l, &process);
    free(e.list);
    return code;
}

static void choose_cores(const launch *l, plan *p) {
    int32_t n = l->options->ranks;
    int real = 0;
    if (l->options->bind) {
        p->cores_each = launch_binding_split(n, p->bindings, &real);
        p->bound = p->cores_each > 0 && real;
    }
    if (p->cores_each == 0)
        p->cores_each = launch_binding_cores() / n;
    if (p->cores_each == 0)
        p->cores_each = 1;
    for (int32_t r = 0; r < n && p->bound; r++)
        tool_say(SAY_DEBUG, "rank %d runs on CPUs %s", (int)(l->options->first_rank + r), p->bindings[r].list);
}

/* Programs that meet by themselves across hosts take the port behind ours. */
static void choose_meeting(const launch *l, plan *p, int32_t kv_port) {
    if (launch_several_hosts(l)) {
        int is_v6 = strchr(l->options->host, ':') != NULL;
        p->port = kv_port < 65535 ? kv_port + 1 : kv_port - 1;
        snprintf(p->kv, sizeof p->kv, is_v6 ? "[%s]:%d" : "%s:%d", l->options->host, (int)kv_port);
    } else {
        p->port = free_port();
        snprintf(p->kv, sizeof p->kv, "%s", l->path);
    }
}

static int start_some(launch *l, int32_t first, int32_t n) {
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC), code = 0;
    if (null_fd < 0) {
        tool_say(SAY_ERROR, "cannot prepare %d ranks: %s", (int)n, strerror(errno));
        return TOOL_CONFIG;
    }
    for (int32_t r = first; r < first + n && !code; r++)
        code = start_rank(l, l->plan, r, null_fd);
    close(null_fd);
    return code;
}

int launch_start_all(launch *l, int32_t kv_port) {
    plan *p = l->plan = calloc(1, sizeof *l->plan);
    if (p)
        p->bindings = calloc((size_t)l->options->ranks, sizeof *p->bindings);
    if (!p || !p->bindings) {
        tool_say(SAY_ERROR, "cannot prepare %d ranks: %s", (int)l->options->ranks, strerror(errno));
        return TOOL_CONFIG;
    }
    choose_meeting(l, p, kv_port);
    choose_cores(l, p);
    return start_some(l, 0, l->options->ranks);
}

int launch_start_again(launch *l, int32_t rank) {
    return start_some(l, rank, 1);
}

void launch_plan_free(launch *l) {
    if (l->plan)
        free(l->plan->bindings);
    free(l->plan);
    l->plan = NULL;
}

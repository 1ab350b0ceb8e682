/* SPDX-License-Identifier: BSD-3-Clause */
/* launch.c waits and stops, launch_start.c starts processes, launch_output.c puts their output together. */
#ifndef TOOL_LAUNCH_INTERNAL_H
#define TOOL_LAUNCH_INTERNAL_H
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/types.h>

#include "launch.h"

typedef struct {  /* one of a rank's two streams */
    int fd;       /* -1: ended, or not ours */
    int32_t rank; /* index of launch.ranks */
    int to;       /* index of launch_sink */
    char *data;
    size_t bytes, capacity;
} launch_stream;

enum { LAUNCH_RECENT_LINES = 16, LAUNCH_LINE_BYTES = 512 };
typedef struct {                  /* a line that was written to standard error */
    char text[LAUNCH_LINE_BYTES]; /* its beginning */
    size_t bytes;
    double at; /* seconds */
    int32_t rank;
} launch_line;

typedef struct {    /* standard output or error */
    int fd, broken; /* broken: the error of a write */
    char *data;
    size_t start, bytes, capacity; /* bytes from start on are to be written */
    launch_line recent[LAUNCH_RECENT_LINES];
    uint32_t n_recent;
} launch_sink;

typedef struct {
    pid_t pid; /* 0: not started, or ended */
    int started, failed, exit_code, signal;
    int32_t generation; /* the generation that it was started in */
    int64_t term_ns;    /* time of the request to end; 0: none yet */
    int killed;
    int silent; /* 1: ended because its heartbeat had stopped */
    int left;   /* 1: it has left the group, so its exit status does not matter */
    launch_stream streams[2];
    int orders;                   /* the agent's standard input; -1: none */
    char held[LAUNCH_LINE_BYTES]; /* the last line of standard error, when another rank has just written the same */
    size_t held_bytes;
} launch_rank;

/* The key-value server of the core's control plane, which launch_server.c starts, asks and stops. */
struct tess__kv_server;

enum { LAUNCH_FITS_MOST = 64 };
typedef struct { /* numbers of ranks with which a group can continue, largest first */
    int32_t n, ranks[LAUNCH_FITS_MOST];
    int32_t stride;   /* ranks that are equal modulo it keep each other's images; 0: unknown */
    int32_t replicas; /* 1: those ranks are replicas, which hold the same data */
} launch_fits;

enum { LAUNCH_OLD_SERVERS = 4, LAUNCH_MOST_ATTEMPTS = 8, LAUNCH_RECOVERIES_PER_HOUR = 60 };
typedef struct {        /* lost ranks that were replaced, while the others wait in tess_recover */
    int32_t generation; /* recoveries so far */
    int32_t attempts; /* in a row, without an image that is whole in between; a loss ends those that recover as well */
    struct tess__kv_server *old[LAUNCH_OLD_SERVERS]; /* ranks may still ask them who was lost */
    int64_t recent_ns[LAUNCH_RECOVERIES_PER_HOUR];
    int32_t replaced;  /* ranks replaced so far */
    int32_t whole;     /* the newest generation that had images */
    int32_t *members;  /* ranks of a smaller group, ascending; null: all */
    int32_t n_members; /* their number, also when `members` is null */
    launch_fits fits;  /* reported by the newest whole group */
} launch_recovery;

enum { LAUNCH_PATH_BYTES = 108 };       /* capacity of a Unix socket's address */
typedef struct launch_plan launch_plan; /* what all ranks share */

typedef struct {
    const launch_options *options;
    launch_plan *plan;
    launch_recovery recovery;
    launch_rank *ranks;
    launch_sink sinks[2];
    struct pollfd *fds;
    struct tess__kv_server *server; /* null: on another host */
    char path[LAUNCH_PATH_BYTES];   /* the server's socket, on one host */
    char secret[LAUNCH_SECRET_BYTES];
    int secret_fd; /* -1: none */
    int32_t n_running, first_failed;
    int signal_fd, interrupted;
    int orders_fd;             /* standard input, when an agent started us; else -1 */
    int64_t stop_ns, grace_ns; /* stop_ns 0: nothing is wrong */
    sigset_t old_mask;
    struct sigaction old_pipe;
} launch;

/* launch_start.c. 0, or an exit code after one line on standard error. */
int launch_start_all(launch *, int32_t kv_port);

/** One in the place of an ended one. The same. */
int launch_start_again(launch *, int32_t rank);
void launch_plan_free(launch *);

/* launch_recover.c: 1 when the others go on without rank r, which has ended, or with another process in its place; 0:
 * the run is to end. `why` is for the ranks that it leaves. */
int launch_survives(launch *, int32_t r, const char *why);
/** If lost ranks can be replaced, ends those without a sign of life, so that they cannot come back. */
void launch_end_silent(launch *);

typedef struct { /* one process of launch.ranks */
    int32_t index;
    const char *program; /* null: argv[0], searched in PATH */
    char *const *argv;
    char **environment;
    const void *cpus; /* a cpu_set_t; null: not bound */
    int in;           /* -1: ours */
} launch_process;
/** 0, or an exit code after one line on standard error. */
int launch_start_process(launch *, const launch_process *);
/** Our environment without the variables that hold a secret, to be freed; null: no memory. */
char **launch_environment_without_secret(void);

/* launch_agents.c: `tessera run --hosts`. 0, or an exit code after one line. */
int launch_start_agents(launch *);
/** Has the agent's command pass on a signal. SIGKILL also ends the agent. */
void launch_agent_signal(launch *, int32_t index, int signal);
void launch_agent_ended(launch *, int32_t index);
/** The line about an agent that ended without a word; 1: there was one. */
int launch_agent_explain(const launch *, int32_t index);

/* launch_follow.c: the agent's command reads the secret and signals from its standard input. */
int launch_follow_secret(launch *);
/** Returns a signal to pass on; 0: none. */
int launch_follow_order(launch *);

/* launch_server.c: the key-value server, here or on another host. 0, or an exit code after one line. */
int launch_server_start(launch *, int32_t *port);
/** Starts the next generation's server for its members and keeps the old one. */
int launch_server_renew(launch *);
void launch_server_stop(launch *);
int launch_several_hosts(const launch *);
/** Seconds of an option, as the server reads its own, in ns. The same. */
int launch_read_seconds(const char *key, double fallback, double most, int64_t *out_ns);
/* These tell the server and ask it, when it is here; r: index of launch.ranks. */
/** Tells the server that rank r has ended; `orderly`: with exit code 0. */
void launch_server_ended(launch *, int32_t r, int orderly, const char *why);
/** Returns when the server has read all that came before, so that it tells the truth of ranks that have ended. */
void launch_server_catch_up(launch *);
int launch_server_joined(const launch *, int32_t r); /* true once the rank has joined */
/** True if the rank's heartbeat has stopped at its generation's server or a later one that it joined. */
int launch_server_silent(const launch *, int32_t r);
int32_t launch_server_culprit(const launch *); /* index of the first cause; negative: none, or no rank of ours */
/** True, with its reason, if the rank was the first cause and has ended itself as a lost one. */
int launch_server_last_word(const launch *, int32_t rank, char *out, size_t n);
int32_t launch_server_connected(const launch *); /* ranks, now */
int launch_server_ready(const launch *);         /* true if the group can continue without lost ranks */
int launch_server_closing(const launch *);       /* true if the group has finished its work */
/** Copies what the group has reported and returns 1; 0: nothing yet. */
int launch_server_fits(const launch *, launch_fits *);

/* launch_output.c */
void launch_stream_open(launch_stream *, int32_t rank, int to, int fd);
/** Fills in what to poll for, two entries per rank and one per sink; returns how many. */
nfds_t launch_output_poll(launch *, struct pollfd *);
/** Reads and writes what poll said is possible. */
void launch_output_turn(launch *, const struct pollfd *);
void launch_output_end(launch *, int32_t r); /* ends that rank's output */
/** Takes what ended ranks left in their pipes. */
void launch_output_drain(launch *);
int launch_output_pending(const launch *);
void launch_output_close(launch *);
#endif

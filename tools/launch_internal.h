/* launch.c waits and stops, launch_start.c starts processes, launch_output.c puts their output together. */
#ifndef TOOL_LAUNCH_INTERNAL_H
#define TOOL_LAUNCH_INTERNAL_H
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/types.h>

#include "control.h"
#include "launch.h"

typedef struct { /* one of a rank's two streams */
    int fd;      /* -1: ended, or not ours */
    int32_t rank;
    int to; /* index of launch_sink */
    char *data;
    size_t bytes, capacity;
} launch_stream;

typedef struct { /* standard output or error */
    int fd, broken;
    char *data;
    size_t start, bytes, capacity; /* bytes from start on are to be written */
} launch_sink;

typedef struct {
    pid_t pid; /* 0: not started, or ended */
    int started, failed, exit_code, signal;
    int64_t term_ns; /* when it was asked to end; 0: not yet */
    int killed;
    launch_stream streams[2];
} launch_rank;

typedef struct {
    const launch_options *options;
    launch_rank *ranks;
    launch_sink sinks[2];
    struct pollfd *fds;
    tess__kv_server *server;
    int32_t n_running, first_failed;
    int signal_fd, interrupted;
    int64_t stop_ns, grace_ns; /* stop_ns 0: nothing is wrong */
    sigset_t old_mask;
    struct sigaction old_pipe;
} launch;

/* launch_start.c. 0, or an exit code after one line on standard error. */
int launch_start_all(launch *, int32_t kv_port, const char *secret);

/* launch_output.c */
void launch_stream_open(launch *, launch_stream *, int32_t rank, int to, int fd);
/** Fills in what to poll for, two entries per rank and one per sink; returns how many. */
nfds_t launch_output_poll(launch *, struct pollfd *);
/** Reads and writes what poll said is possible. */
void launch_output_turn(launch *, const struct pollfd *);
/** Takes what ended ranks left in their pipes. */
void launch_output_drain(launch *);
int launch_output_pending(const launch *);
void launch_output_close(launch *);
#endif

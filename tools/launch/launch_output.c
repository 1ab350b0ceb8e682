/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launch_internal.h"
#include "tools/support/progress.h"

enum {
    READ_SIZE = 64 << 10,
    LINE_MAX_BYTES = 1 << 20,  /* longer lines are cut */
    QUEUE_MAX_BYTES = 4 << 20, /* reading pauses until some has been written */
    WRITE_SIZE = 4096          /* a ready pipe accepts this much without blocking */
};

void launch_stream_open(launch_stream *s, int32_t rank, int to, int fd) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    *s = (launch_stream){ .fd = fd, .rank = rank, .to = to };
}

static int reserve(char **data, size_t *capacity, size_t bytes) {
    if (*capacity >= bytes)
        return 0;
    size_t larger = *capacity ? *capacity : READ_SIZE;
    while (larger < bytes)
        larger *= 2;
    char *moved = realloc(*data, larger);
    if (!moved)
        return -1;
    *data = moved;
    *capacity = larger;
    return 0;
}

/* The message of a line: without the name of the program, "tessera[3]: " or "gpt: ". */
static launch_line message_of(const launch_line *l) {
    launch_line m = *l;
    const char *colon = memmem(l->text, l->bytes, ": ", 2);
    if (colon) {
        m.bytes -= (size_t)(colon + 2 - l->text);
        memmove(m.text, colon + 2, m.bytes);
    }
    return m;
}

/* The same, or the echo of it on another rank: "rank 1 failed in …: the same; this rank was in …". */
static int says_the_same(const launch_line *a, const launch_line *b) {
    enum { LEAST = 24 }; /* bytes: shorter messages may be equal by chance */
    launch_line x = message_of(a), y = message_of(b);
    return (x.bytes >= LEAST && memmem(y.text, y.bytes, x.text, x.bytes)) ||
           (y.bytes >= LEAST && memmem(x.text, x.bytes, y.text, y.bytes));
}

/* Another rank has written it to standard error a moment ago. */
static int is_repeated(launch_sink *sink, int32_t rank, const char *line, size_t bytes) {
    const double moment = 2;
    launch_line own = { .at = tool_seconds(), .rank = rank };
    own.bytes = bytes < sizeof own.text ? bytes : sizeof own.text;
    memcpy(own.text, line, own.bytes);
    for (int i = 0; i < LAUNCH_RECENT_LINES; i++) {
        const launch_line *old = &sink->recent[i];
        if (old->bytes && old->rank != rank && own.at - old->at < moment && says_the_same(old, &own))
            return 1;
    }
    sink->recent[sink->n_recent++ % LAUNCH_RECENT_LINES] = own;
    return 0;
}

/* Lines that an agent's command hands on have the ranks in front already; its own get the host's name. */
static size_t prefix_of(const launch *l, int32_t rank, const char *line, size_t bytes, char *out, size_t room) {
    const launch_options *o = l->options;
    int n = 0;
    if (!o->agents)
        n = snprintf(out, room, "[%d] ", (int)(o->first_rank + rank));
    else if (o->prefix && (bytes < 2 || line[0] != '[' || line[1] < '0' || line[1] > '9'))
        n = snprintf(out, room, "%.200s: ", o->agents[rank].host);
    return (size_t)n;
}

static void write_line(launch *l, int to, int32_t rank, const char *line, size_t bytes) {
    launch_sink *sink = &l->sinks[to];
    char prefix[256];
    size_t n = prefix_of(l, rank, line, bytes, prefix, sizeof prefix);
    if (sink->start > sink->bytes) { /* most is written, so the rest moves to the front */
        memcpy(sink->data, sink->data + sink->start, sink->bytes);
        sink->start = 0;
    }
    if (sink->broken || reserve(&sink->data, &sink->capacity, sink->start + sink->bytes + n + bytes + 1) != 0)
        return;
    char *at = sink->data + sink->start + sink->bytes;
    memcpy(at, prefix, n);
    memcpy(at + n, line, bytes);
    at[n + bytes] = '\n';
    sink->bytes += n + bytes + 1;
}

static void write_held(launch *l, launch_rank *rank, int32_t r) {
    if (rank->held_bytes)
        write_line(l, 1, r, rank->held, rank->held_bytes);
    rank->held_bytes = 0;
}

/* A mistake that all ranks make is one line: a repeated one waits for the rank's next line or its end, and is dropped
 * when the rank fails with it. */
static void put_line(launch *l, const launch_stream *s, const char *line, size_t bytes) {
    launch_rank *rank = &l->ranks[s->rank];
    if (s->to == 1) {
        write_held(l, rank, s->rank);
        if (is_repeated(&l->sinks[1], s->rank, line, bytes) && bytes <= sizeof rank->held) {
            memcpy(rank->held, line, bytes);
            rank->held_bytes = bytes;
            return;
        }
    }
    write_line(l, s->to, s->rank, line, bytes);
}

/* Hands over whole lines; at the end, and when a line is too long, what there is. */
static void take_lines(launch *l, launch_stream *s, int all) {
    size_t start = 0;
    char *end;
    while (start < s->bytes && (end = memchr(s->data + start, '\n', s->bytes - start))) {
        put_line(l, s, s->data + start, (size_t)(end - s->data) - start);
        start = (size_t)(end - s->data) + 1;
    }
    size_t rest = s->bytes - start;
    if (rest && (all || rest >= LINE_MAX_BYTES)) {
        put_line(l, s, s->data + start, rest);
        rest = 0;
    }
    if (rest && start)
        memmove(s->data, s->data + start, rest);
    s->bytes = rest;
}

static void close_stream(launch *l, launch_stream *s) {
    take_lines(l, s, 1);
    if (s->fd >= 0)
        close(s->fd);
    free(s->data);
    s->fd = -1;
    s->data = NULL;
    s->capacity = 0;
}

/* 1: there may be more. */
static int read_stream(launch *l, launch_stream *s) {
    if (reserve(&s->data, &s->capacity, s->bytes + READ_SIZE) != 0) {
        close_stream(l, s);
        return 0;
    }
    ssize_t got = read(s->fd, s->data + s->bytes, READ_SIZE);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0) {
        close_stream(l, s);
        return 0;
    }
    s->bytes += (size_t)got;
    take_lines(l, s, 0);
    return 1;
}

/* Up to the last line's end, so that the two streams mix by lines where they share a terminal. */
static void write_some(launch_sink *sink) {
    size_t n = sink->bytes < WRITE_SIZE ? sink->bytes : WRITE_SIZE;
    const char *first = sink->data + sink->start, *end = memrchr(first, '\n', n);
    if (end)
        n = (size_t)(end - first) + 1;
    ssize_t put = write(sink->fd, first, n);
    if (put < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (put < 0) {
        sink->broken = errno;
        sink->bytes = 0;
        return;
    }
    sink->start += (size_t)put;
    sink->bytes -= (size_t)put;
    if (sink->bytes == 0)
        sink->start = 0;
}

nfds_t launch_output_poll(launch *l, struct pollfd *fds) {
    nfds_t n = 0;
    for (int32_t r = 0; r < l->options->ranks; r++)
        for (int i = 0; i < 2; i++) {
            const launch_stream *s = &l->ranks[r].streams[i];
            int full = l->sinks[s->to].bytes > QUEUE_MAX_BYTES;
            fds[n++] = (struct pollfd){ .fd = full ? -1 : s->fd, .events = POLLIN };
        }
    for (int i = 0; i < 2; i++)
        fds[n++] = (struct pollfd){ .fd = l->sinks[i].bytes ? l->sinks[i].fd : -1, .events = POLLOUT };
    return n;
}

void launch_output_turn(launch *l, const struct pollfd *fds) {
    for (int32_t r = 0; r < l->options->ranks; r++)
        for (int i = 0; i < 2; i++, fds++)
            if (fds->revents && l->ranks[r].streams[i].fd >= 0)
                read_stream(l, &l->ranks[r].streams[i]);
    for (int i = 0; i < 2; i++)
        if (fds[i].revents && l->sinks[i].bytes)
            write_some(&l->sinks[i]);
}

void launch_output_end(launch *l, int32_t r) {
    for (int i = 0; i < 2; i++) {
        launch_stream *s = &l->ranks[r].streams[i];
        while (s->fd >= 0 && read_stream(l, s))
            ;
        if (s->fd >= 0)
            close_stream(l, s);
    }
}

void launch_output_drain(launch *l) {
    for (int32_t r = 0; r < l->options->ranks; r++)
        launch_output_end(l, r);
    for (int32_t r = 0; r < l->options->ranks; r++)
        if (!l->ranks[r].failed)
            write_held(l, &l->ranks[r], r);
}

int launch_output_pending(const launch *l) {
    return l->sinks[0].bytes || l->sinks[1].bytes;
}

void launch_output_close(launch *l) {
    for (int32_t r = 0; r < l->options->ranks; r++)
        for (int i = 0; i < 2; i++)
            close_stream(l, &l->ranks[r].streams[i]);
    for (int i = 0; i < 2; i++)
        free(l->sinks[i].data);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Pairs of sockets between the ranks of a communicator, and moving bytes over them until somebody aborts. */
#include "nccl_double.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Abstract names: nothing is left in the file system. Only processes of this user are let in. */
static socklen_t address_of(const ncclComm *c, int rank, struct sockaddr_un *out) {
    *out = (struct sockaddr_un){ .sun_family = AF_UNIX };
    int n = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "%s-%d", c->name, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int is_mine(int fd) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == getuid();
}

static int listen_here(const ncclComm *c) {
    struct sockaddr_un at;
    socklen_t size = address_of(c, c->rank, &at);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && (bind(fd, (struct sockaddr *)&at, size) || listen(fd, 2 * NCCL_RANKS))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* First words on a connection. */
struct hello {
    int32_t rank, nranks, channel, device;
};

/* All of `bytes`, or -1; gives up when aborted. */
static int transfer(ncclComm *c, int fd, void *data, size_t bytes, int out) {
    for (size_t at = 0; at < bytes;) {
        struct pollfd p[2] = { { .fd = fd, .events = out ? POLLOUT : POLLIN }, { .fd = c->wake, .events = POLLIN } };
        poll(p, 2, -1);
        if (p[1].revents)
            return -1;
        ssize_t n = out ? send(fd, (char *)data + at, bytes - at, MSG_NOSIGNAL | MSG_DONTWAIT)
                        : recv(fd, (char *)data + at, bytes - at, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return -1;
        at += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int call_up(ncclComm *c, int rank) {
    struct sockaddr_un at;
    socklen_t size = address_of(c, rank, &at);
    while (!nccl__is_aborted(c)) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return -1;
        if (connect(fd, (struct sockaddr *)&at, size) == 0 && is_mine(fd))
            return fd;
        close(fd);
        usleep(2000);
    }
    return -1;
}

static int answer(ncclComm *c, int listener) {
    struct pollfd p[2] = { { .fd = listener, .events = POLLIN }, { .fd = c->wake, .events = POLLIN } };
    poll(p, 2, -1);
    int fd = p[1].revents ? -1 : accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0 && !is_mine(fd)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* By the host's number. */
static int gpu_of(const ncclComm *c) {
    return c->device + (int)double__number("FIRST", 0);
}

/* From 2.30 on, where it is asked for. */
static int takes_two_on_one(void) {
    const char *asked = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return double__number("NCCL_VERSION", NCCL_VERSION_CODE) >= NCCL_VERSION(2, 30, 0) && asked && *asked == '1';
}

/* Each side says who it is; two ranks on one device are refused. */
static ncclResult_t greet(ncclComm *c, int fd, int channel, struct hello *them) {
    struct hello us = { c->rank, c->nranks, channel, gpu_of(c) };
    if (transfer(c, fd, &us, sizeof us, 1) || transfer(c, fd, them, sizeof *them, 0))
        return nccl__is_aborted(c) ? ncclInProgress : ncclRemoteError;
    if (them->nranks != c->nranks || them->rank < 0 || them->rank >= c->nranks || them->channel < 0 ||
        them->channel >= NCCL_CHANNELS)
        return ncclInvalidUsage;
    return them->device == gpu_of(c) && !takes_two_on_one() ? ncclInvalidUsage : ncclSuccess;
}

ncclResult_t nccl__connect(ncclComm *c) {
    int listener = listen_here(c);
    ncclResult_t result = listener < 0 ? ncclSystemError : ncclSuccess;
    struct hello them;
    for (int i = 0; result == ncclSuccess && i < c->rank * NCCL_CHANNELS; i++) {
        int peer = i / NCCL_CHANNELS, channel = i % NCCL_CHANNELS, fd = call_up(c, peer);
        if (fd < 0)
            result = nccl__is_aborted(c) ? ncclInProgress : ncclSystemError;
        else
            result = greet(c, c->socket[channel][peer] = fd, channel, &them);
    }
    for (int i = 0; result == ncclSuccess && i < (c->nranks - 1 - c->rank) * NCCL_CHANNELS; i++) {
        int fd = answer(c, listener);
        if (fd < 0) {
            result = nccl__is_aborted(c) ? ncclInProgress : ncclSystemError;
            break;
        }
        /* The caller speaks of one channel; the answer says the same, whatever it is. */
        struct hello us = { c->rank, c->nranks, 0, gpu_of(c) };
        if (transfer(c, fd, &them, sizeof them, 0) || transfer(c, fd, &us, sizeof us, 1))
            result = nccl__is_aborted(c) ? ncclInProgress : ncclRemoteError;
        else if (them.nranks != c->nranks || them.rank <= c->rank || them.rank >= c->nranks ||
                 (them.device == gpu_of(c) && !takes_two_on_one()) || them.channel < 0 || them.channel >= NCCL_CHANNELS)
            result = ncclInvalidUsage;
        if (result == ncclSuccess)
            c->socket[them.channel][them.rank] = fd;
        else
            close(fd);
    }
    if (listener >= 0)
        close(listener);
    return result;
}

void nccl__disconnect(ncclComm *c) {
    for (int channel = 0; channel < NCCL_CHANNELS; channel++)
        for (int peer = 0; peer < c->nranks; peer++)
            if (c->socket[channel][peer] >= 0)
                close(c->socket[channel][peer]);
    close(c->wake);
}

/* ---- moving bytes ------------------------------------------------------------------------------- */

static void wait_for_abort(ncclComm *c) {
    struct pollfd p = { .fd = c->wake, .events = POLLIN };
    while (poll(&p, 1, -1) < 1)
        ;
}

/* As NCCL over a network, which sees that the connection broke, or as over shared memory, which sees nothing. */
static int lost(ncclComm *c) {
    const char *how = double__variable("NCCL_DEATH");
    if (!how || strcmp(how, "hang") != 0)
        nccl__set_state(c, ncclRemoteError);
    wait_for_abort(c);
    return -1;
}

static int differ(ncclComm *c, const nccl_move *m, uint64_t what) {
    fprintf(stderr, "doubles: NCCL: rank %d expects %llu bytes of %#llx from rank %d, which sends %llu of %#llx\n",
            c->rank, (unsigned long long)m->bytes, (unsigned long long)what, m->peer, (unsigned long long)m->head[1],
            (unsigned long long)m->head[0]);
    wait_for_abort(c);
    return -1;
}

/* One step of one move. 1: progress; 0: not now; -1: the peer is gone; -2: it sends something else. */
static int advance(int fd, nccl_move *m) {
    enum { HEAD = sizeof m->head };
    char *data = m->send ? (char *)(uintptr_t)m->send : m->recv;
    uint64_t got[2];
    ssize_t n;
    if (m->recv && m->head_at == 0) { /* the head at once: it is far smaller than any buffer */
        n = recv(fd, got, HEAD, MSG_DONTWAIT | MSG_PEEK);
        if (n > 0 && n < HEAD)
            return 0;
        if (n == HEAD) {
            n = recv(fd, got, HEAD, MSG_DONTWAIT);
            m->head_at = HEAD;
            int same = memcmp(got, m->head, HEAD) == 0;
            memcpy(m->head, got, HEAD);
            return same ? 1 : -2;
        }
    } else if (m->send && m->head_at < HEAD) {
        n = send(fd, (char *)m->head + m->head_at, HEAD - m->head_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        m->head_at += n > 0 ? (uint64_t)n : 0;
    } else if (m->send) {
        n = send(fd, data + m->at, m->bytes - m->at, MSG_NOSIGNAL | MSG_DONTWAIT);
        m->at += n > 0 ? (uint64_t)n : 0;
    } else {
        n = recv(fd, data + m->at, m->bytes - m->at, MSG_DONTWAIT);
        m->at += n > 0 ? (uint64_t)n : 0;
    }
    return n > 0 ? 1 : n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

static int is_over(const nccl_move *m) {
    return m->head_at == sizeof m->head && m->at == m->bytes;
}

int nccl__exchange(ncclComm *c, int channel, uint64_t what, nccl_move *moves, int n) {
    for (int i = 0; i < n; i++)
        moves[i].head[0] = what, moves[i].head[1] = moves[i].bytes, moves[i].head_at = moves[i].at = 0;
    for (;;) {
        struct pollfd p[2 * NCCL_RANKS + 1];
        nccl_move *of[2 * NCCL_RANKS + 1];
        int n_polled = 0;
        char busy[2][NCCL_RANKS] = { 0 };
        for (int i = 0; i < n; i++) {
            nccl_move *m = &moves[i];
            char *first = &busy[m->send != NULL][m->peer];
            if (is_over(m) || *first)
                continue;
            *first = 1;
            of[n_polled] = m;
            p[n_polled++] = (struct pollfd){ .fd = c->socket[channel][m->peer], .events = m->send ? POLLOUT : POLLIN };
        }
        if (!n_polled)
            return 0;
        p[n_polled] = (struct pollfd){ .fd = c->wake, .events = POLLIN };
        poll(p, (nfds_t)n_polled + 1, -1);
        if (p[n_polled].revents)
            return -1;
        for (int i = 0; i < n_polled; i++) {
            int went = p[i].revents ? advance(p[i].fd, of[i]) : 0;
            if (went == -1)
                return lost(c);
            if (went == -2)
                return differ(c, of[i], what);
        }
    }
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* A switch in user space between network namespaces, each with an eth0 on a port of it, with faults.
 * net_switch serve SOCKET NAMESPACE…: runs until a signal; net_switch tell SOCKET ORDER…: changes it (fabric.h). */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "fabric.h"
#include "tap.h"

enum { FRAMES_A_TURN = 64, ORDER_BYTES = 4096 };

static switch_fabric fabric;
static struct pollfd fds[SWITCH_PORTS + 1]; /* the orders' socket is the last */
static volatile sig_atomic_t ended;

static void end(int signal_number) {
    (void)signal_number;
    ended = 1;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int orders_socket(const char *path, int listens) {
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (strlen(path) >= sizeof at.sun_path)
        errno = ENAMETOOLONG;
    else if (fd >= 0) {
        memcpy(at.sun_path, path, strlen(path));
        if (listens ? bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 8) == 0
                    : connect(fd, (struct sockaddr *)&at, sizeof at) == 0)
            return fd;
    }
    fprintf(stderr, "net_switch: %s: %s\n", path, strerror(errno));
    return -1;
}

/* ---- serve ----------------------------------------------------------------------------------------- */

static void take_order(int listener) {
    char text[ORDER_BYTES], answer[ORDER_BYTES] = "+";
    int fd = accept(listener, NULL, NULL);
    ssize_t got = fd >= 0 ? recv(fd, text, sizeof text - 1, 0) : -1;
    if (got > 0) {
        text[got] = 0;
        if (switch_fabric_order(&fabric, text, answer + 1, sizeof answer - 1) != 0)
            answer[0] = '-';
        send(fd, answer, strlen(answer), MSG_NOSIGNAL);
    }
    if (fd >= 0)
        close(fd);
}

static void take_frames(int port) {
    static unsigned char frame[SWITCH_FRAME];
    for (int i = 0; i < FRAMES_A_TURN; i++) {
        ssize_t got = read(fds[port].fd, frame, sizeof frame);
        if (got <= 0)
            return;
        switch_fabric_take(&fabric, port, now_ns(), frame, (size_t)got);
    }
}

/* A device that is down refuses frames, as a cable into nothing loses them. */
static void send_due(void) {
    switch_frame *frame;
    while ((frame = switch_queue_take(&fabric.queue, now_ns()))) {
        ssize_t ignored = write(fds[frame->port].fd, frame->data, frame->bytes);
        (void)ignored;
        free(frame);
    }
}

static void turn(void) {
    int64_t due_ns = switch_queue_due(&fabric.queue), left_ns = due_ns == INT64_MAX ? 1000000000 : due_ns - now_ns();
    left_ns = left_ns < 0 ? 0 : left_ns;
    struct timespec timeout = { .tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000 };
    if (ppoll(fds, (nfds_t)fabric.n + 1, &timeout, NULL) > 0) {
        for (int port = 0; port < fabric.n; port++)
            if (fds[port].revents)
                take_frames(port);
        if (fds[fabric.n].revents)
            take_order(fds[fabric.n].fd);
    }
    send_due();
    if (fabric.capture)
        fflush(fabric.capture);
}

static int serve(const char *path, char **namespaces, int n) {
    int orders = n > 0 && n <= SWITCH_PORTS ? orders_socket(path, 1) : -1;
    if (orders < 0)
        return 1;
    signal(SIGTERM, end);
    signal(SIGINT, end);
    switch_fabric_init(&fabric, n);
    for (int i = 0; i < n; i++) {
        fds[i] = (struct pollfd){ .fd = switch_tap_open(namespaces[i], i), .events = POLLIN };
        if (fds[i].fd < 0)
            return 1;
    }
    fds[n] = (struct pollfd){ .fd = orders, .events = POLLIN };
    prctl(PR_SET_TIMERSLACK, 1000ul);      /* a delay is as long as it says */
    prctl(PR_SET_PDEATHSIG, SIGTERM, 0ul); /* a test that is killed leaves no switch */
    puts("ready");
    fflush(stdout);
    while (!ended)
        turn();
    switch_fabric_clear(&fabric);
    return 0;
}

/* ---- tell ------------------------------------------------------------------------------------------ */

static int tell(const char *path, char **words, int n) {
    char text[ORDER_BYTES] = "";
    size_t at = 0;
    for (int i = 0; i < n && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", i ? " " : "", words[i]);
    int fd = orders_socket(path, 0);
    if (fd < 0 || at >= sizeof text || send(fd, text, at, MSG_NOSIGNAL) < 0)
        return 1;
    ssize_t got = recv(fd, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = 0;
    int good = text[0] == '+';
    fprintf(good ? stdout : stderr, "%s%s\n", good ? "" : "net_switch: ", *text ? text + 1 : "no answer");
    return good ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc > 3 && strcmp(argv[1], "serve") == 0)
        return serve(argv[2], argv + 3, argc - 3);
    if (argc > 3 && strcmp(argv[1], "tell") == 0)
        return tell(argv[2], argv + 3, argc - 3);
    fprintf(stderr, "net_switch serve SOCKET NAMESPACE... | net_switch tell SOCKET ORDER...\n");
    return 2;
}

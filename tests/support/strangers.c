/* SPDX-License-Identifier: BSD-3-Clause */
/* strangers ADDRESS PORT COUNT EVERY_US CAPTURE: connections of those who do not know the secret, one every EVERY_US
 * microseconds: garbage, silence, a byte, a plain hello, TLS with another secret, and what a capture file has of real
 * ranks, replayed and reflected. They go to PORT and, each second one, to whatever else listens on ADDRESS here.
 * Prints how many there were of each kind. Ends early when the run has ended. Fails when anybody was answered with a
 * control frame. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "core/control/link.h"
#include "core/control/wire.h"
#include "strangers_capture.h"

enum { GARBAGE, SILENT, ONE_BYTE, PLAIN_HELLO, OTHER_SECRET, REPLAYED, REFLECTED, KINDS };
enum { KEPT = 256, MORE_PORTS = 64, REFUSED_MAX = 200 };
static const char *const names[KINDS] = { "garbage",      "silent",   "one byte", "plain hello",
                                          "other secret", "replayed", "reflected" };
static struct in_addr address;
static int control_port, elsewhere, answered;
static long counts[KINDS], refused;
static recorded hello, proof;
static tess__link_key *other_key;
static tess__link kept[KEPT]; /* stay open until others take their places */
static unsigned next_kept;

static void pause_us(long us) {
    nanosleep(&(struct timespec){ .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 }, NULL);
}

/* ---- where to -------------------------------------------------------------------------------------- */

/* What else listens on the address: gloo, while ranks connect. */
static int other_ports(int *ports) {
    char line[256];
    unsigned at, port, state;
    int n = 0;
    FILE *f = fopen("/proc/net/tcp", "re");
    while (f && n < MORE_PORTS && fgets(line, sizeof line, f))
        if (sscanf(line, " %*d: %8x:%4x %*8x:%*4x %2x", &at, &port, &state) == 3 && state == 10 &&
            at == address.s_addr && (int)port != control_port)
            ports[n++] = (int)port;
    if (f)
        fclose(f);
    return n;
}

static int pick_port(int turn) {
    int ports[MORE_PORTS], n = turn % 2 ? other_ports(ports) : 0;
    elsewhere = n > 0;
    return n > 0 ? ports[turn / 2 % n] : control_port;
}

static int reach(int port) {
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = address };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&to, sizeof to) == 0)
        return fd;
    refused++;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* ---- what is said ---------------------------------------------------------------------------------- */

static void keep(int fd) {
    tess__link *place = &kept[next_kept++ % KEPT];
    tess__link_close(place);
    place->fd = fd;
}

static void say(int fd, const void *data, size_t bytes) {
    ssize_t ignored = send(fd, data, bytes, MSG_NOSIGNAL);
    (void)ignored;
}

/* What comes back within 20 ms. Nobody may be told a control frame. */
static size_t listen_for(int fd, unsigned char *to, size_t most) {
    struct pollfd wait = { .fd = fd, .events = POLLIN };
    ssize_t got = poll(&wait, 1, 20) > 0 ? recv(fd, to, most, MSG_DONTWAIT) : 0;
    answered += got > 0 && memmem(to, (size_t)got, "TSSK", 4) != NULL;
    return got > 0 ? (size_t)got : 0;
}

static void say_garbage(int fd) {
    unsigned char noise[400];
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (unsigned char)rand();
    say(fd, noise, (size_t)rand() % sizeof noise);
}

static void say_plain_hello(int fd) {
    unsigned char text[2048], frame[TESS__WIRE_HEADER + 2] = "TSSK\1\0\0\0\1"; /* as rank 0 of 2 ranks */
    frame[20] = 2;
    frame[TESS__WIRE_HEADER] = '2';
    say(fd, frame, sizeof frame);
    listen_for(fd, text, sizeof text);
}

static void say_with_other_secret(int fd) {
    tess__link link;
    unsigned char text[2048];
    struct iovec part = { "hello", 5 };
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (tess__link_open(&link, dup(fd), other_key) != 0)
        return;
    for (int i = 0; i < 3 && tess__link_send(&link, &part, 1) == 0; i++)
        pause_us(2000);
    answered += tess__link_recv(&link, text, sizeof text) > 0;
    tess__link_close(&link);
}

/* Begins as a real rank did; reflected: goes on with what the other side says. */
static void say_again(int fd, int reflects) {
    unsigned char text[4096];
    const recorded *r = elsewhere ? &proof : &hello;
    if (elsewhere || !reflects)
        say(fd, r->data, reflects ? 0 : r->bytes);
    else
        say(fd, hello.data, hello.bytes);
    size_t got = listen_for(fd, text, sizeof text);
    if (reflects)
        say(fd, text, got);
    listen_for(fd, text, sizeof text);
}

/* 1: somebody was there. */
static int visit(int turn) {
    int kind = turn / 2 % KINDS, fd = reach(pick_port(turn));
    if (fd < 0)
        return 0;
    counts[kind]++;
    switch (kind) {
    case GARBAGE: say_garbage(fd); break;
    case ONE_BYTE: say(fd, "\x16", 1); break;
    case PLAIN_HELLO: say_plain_hello(fd); break;
    case OTHER_SECRET: say_with_other_secret(fd); break;
    case REPLAYED: say_again(fd, 0); break;
    case REFLECTED: say_again(fd, 1); break;
    default: break;
    }
    if (kind == SILENT || kind == ONE_BYTE)
        keep(fd);
    else
        close(fd);
    return 1;
}

int main(int argc, char **argv) {
    long others = 0, visits = 0, wanted = argc > 3 ? atol(argv[3]) : 0;
    const int64_t begin_ns = tess__now_ns();
    if (argc != 6 || inet_pton(AF_INET, argv[1], &address) != 1)
        return 2;
    control_port = atoi(argv[2]);
    int have_proof = recorded_find(argv[5], 0, "TGA2", &proof) == 0;
    if (recorded_find(argv[5], control_port, "\x16\x03\x01", &hello) != 0 ||
        tess__link_key_create("another secret of this length", 0, &other_key) != TESS_OK) {
        fprintf(stderr, "strangers: no handshake with port %d in %s\n", control_port, argv[5]);
        return 1;
    }
    for (int i = 0; i < KEPT; i++)
        kept[i].fd = -1;
    for (int i = 0; visits < wanted && refused < REFUSED_MAX; i++, pause_us(atol(argv[4]))) {
        visits += visit(i);
        others += elsewhere;
    }
    for (int kind = 0; kind < KINDS; kind++)
        printf("%s %ld, ", names[kind], counts[kind]);
    printf("visits %ld in %.1f s, refused %ld; to gloo's ports %ld, with its proofs %s; answered %d\n", visits,
           (double)(tess__now_ns() - begin_ns) / 1e9, refused, others, have_proof ? "yes" : "no", answered);
    return answered ? 1 : 0;
}

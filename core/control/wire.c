/* SPDX-License-Identifier: BSD-3-Clause */
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "local.h"
#include "base/options.h"
#include "base/status.h"

enum { MAGIC = 0x4b535354 /* "TSSK" */, VERSION = 1, READ_SIZE = 64 << 10, LEAST_ROOM = 4 << 10, READS = 4 };

/* A body of a few words lies in the chunk, and spent chunks are kept: heartbeats and news of what a rank is doing
 * allocate nothing once the first have gone out. */
enum { SMALL = 640, MOST_SPARE = 8 };
struct tess__chunk {
    tess__chunk *next;
    tess__blob *body; /* null: the body, if any, is `small` */
    size_t sent;
    uint32_t small_bytes;
    unsigned char header[TESS__WIRE_HEADER], small[SMALL];
};

static size_t body_bytes(const tess__chunk *chunk) {
    return chunk->body ? chunk->body->bytes : chunk->small_bytes;
}

void tess__wire_put_u32(unsigned char *at, uint32_t value) {
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

uint32_t tess__wire_get_u32(const unsigned char *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void put_header(unsigned char *at, const tess__message *message) {
    memset(at, 0, TESS__WIRE_HEADER);
    tess__wire_put_u32(at, MAGIC);
    tess__wire_put_u32(at + 4, VERSION);
    tess__wire_put_u32(at + 8, message->type);
    tess__wire_put_u32(at + 12, message->id);
    tess__wire_put_u32(at + 16, (uint32_t)message->arg);
    tess__wire_put_u32(at + 20, message->key_bytes);
    tess__wire_put_u32(at + 24, message->value_bytes);
}

tess__blob *tess__blob_new(const void *data, uint64_t bytes) {
    if (bytes > UINT32_MAX)
        return NULL;
    tess__blob *blob = calloc(1, sizeof *blob + bytes);
    if (!blob)
        return NULL;
    blob->refs = 1;
    blob->bytes = (uint32_t)bytes;
    if (data && bytes)
        memcpy(blob->data, data, bytes);
    return blob;
}

void tess__blob_drop(tess__blob *blob) {
    if (blob && --blob->refs == 0)
        free(blob);
}

void tess__outbox_init(tess__outbox *box) {
    box->first = NULL;
    box->end = &box->first;
    box->n = 0;
    box->spare = NULL;
    box->n_spare = 0;
}

void tess__outbox_reserve(tess__outbox *box) {
    while (box->n_spare < MOST_SPARE) {
        tess__chunk *chunk = malloc(sizeof *chunk);
        if (!chunk)
            return;
        chunk->next = box->spare;
        box->spare = chunk;
        box->n_spare++;
    }
}

static void drop_first(tess__outbox *box) {
    tess__chunk *chunk = box->first;
    box->first = chunk->next;
    if (!box->first)
        box->end = &box->first;
    box->n--;
    tess__blob_drop(chunk->body);
    if (box->n_spare == MOST_SPARE) {
        free(chunk);
        return;
    }
    chunk->next = box->spare;
    box->spare = chunk;
    box->n_spare++;
}

void tess__outbox_clear(tess__outbox *box) {
    while (box->first)
        drop_first(box);
    while (box->spare) {
        tess__chunk *chunk = box->spare;
        box->spare = chunk->next;
        free(chunk);
    }
    box->n_spare = 0;
}

static tess__chunk *append_chunk(tess__outbox *box, const tess__message *message, tess__blob *body) {
    tess__chunk *chunk = box->spare;
    if (chunk) {
        box->spare = chunk->next;
        box->n_spare--;
    } else if (!(chunk = malloc(sizeof *chunk))) {
        return NULL;
    }
    chunk->next = NULL;
    chunk->body = body;
    chunk->sent = chunk->small_bytes = 0;
    put_header(chunk->header, message);
    *box->end = chunk;
    box->end = &chunk->next;
    box->n++;
    return chunk;
}

int tess__outbox_push(tess__outbox *box, uint32_t type, uint32_t id, int32_t arg, tess__blob *value) {
    tess__message message = { .type = type, .id = id, .arg = arg, .value_bytes = value ? value->bytes : 0 };
    if (!append_chunk(box, &message, value))
        return -1;
    if (value)
        value->refs++;
    return 0;
}

static void copy_body(unsigned char *to, const tess__message *message) {
    if (message->key_bytes)
        memcpy(to, message->key, message->key_bytes);
    if (message->value_bytes)
        memcpy(to + message->key_bytes, message->value, message->value_bytes);
}

int tess__outbox_copy(tess__outbox *box, const tess__message *message) {
    uint64_t bytes = (uint64_t)message->key_bytes + message->value_bytes;
    tess__blob *body = NULL;
    if (bytes > SMALL && !(body = tess__blob_new(NULL, bytes)))
        return -1;
    tess__chunk *chunk = append_chunk(box, message, body);
    if (!chunk) {
        tess__blob_drop(body);
        return -1;
    }
    copy_body(body ? body->data : chunk->small, message);
    chunk->small_bytes = body ? 0 : (uint32_t)bytes;
    return 0;
}

static ssize_t send_chunk(tess__link *link, const tess__chunk *chunk) {
    struct iovec parts[2];
    int n = 0;
    size_t body = body_bytes(chunk), skip = chunk->sent;
    const unsigned char *from = chunk->body ? chunk->body->data : chunk->small;
    if (skip < TESS__WIRE_HEADER)
        parts[n++] = (struct iovec){ (void *)(chunk->header + skip), TESS__WIRE_HEADER - skip };
    skip = skip < TESS__WIRE_HEADER ? 0 : skip - TESS__WIRE_HEADER;
    if (skip < body)
        parts[n++] = (struct iovec){ (void *)(from + skip), body - skip };
    return tess__link_send(link, parts, n);
}

int tess__outbox_flush(tess__outbox *box, tess__link *link) {
    while (box->first) {
        tess__chunk *chunk = box->first;
        ssize_t sent = send_chunk(link, chunk);
        if (sent <= 0)
            return (int)sent;
        chunk->sent += (size_t)sent;
        if (chunk->sent == TESS__WIRE_HEADER + body_bytes(chunk))
            drop_first(box);
    }
    return 1;
}

/* Capacity follows what has arrived, not what a header announces. Small messages leave it at READ_SIZE: the server has
 * such a buffer for each rank. */
static int make_room(tess__inbox *box) {
    if (box->start) {
        memmove(box->data, box->data + box->start, box->bytes);
        box->start = 0;
    }
    if (box->capacity - box->bytes >= LEAST_ROOM)
        return 0;
    const size_t capacity = box->capacity ? box->capacity * 2 : READ_SIZE;
    unsigned char *data = realloc(box->data, capacity);
    if (!data)
        return -1;
    box->data = data;
    box->capacity = capacity;
    return 0;
}

int tess__inbox_read(tess__inbox *box, tess__link *link) {
    int got_some = 0;
    for (int i = 0; i < READS; i++) {
        if (make_room(box) != 0)
            return -1;
        const size_t room = box->capacity - box->bytes;
        ssize_t got = tess__link_recv(link, box->data + box->bytes, room < READ_SIZE ? room : READ_SIZE);
        if (got == 0)
            return got_some;
        if (got < 0)
            return got_some ? 1 : -1; /* what came before the end is read first; the next call finds the end again */
        box->bytes += (size_t)got;
        got_some = 1;
    }
    return got_some;
}

static int key_is_sound(const unsigned char *key, size_t bytes) {
    return bytes == 0 || (bytes <= 256 && memchr(key, 0, bytes) == key + bytes - 1);
}

int tess__inbox_next(const tess__inbox *box, size_t limit, tess__message *out) {
    if (box->bytes == 0)
        return 0;
    const unsigned char *at = box->data + box->start;
    if (box->bytes >= 4 && tess__wire_get_u32(at) != MAGIC)
        return -1;
    if (box->bytes < TESS__WIRE_HEADER)
        return 0;
    *out = (tess__message){ .type = tess__wire_get_u32(at + 8),
                            .id = tess__wire_get_u32(at + 12),
                            .arg = (int32_t)tess__wire_get_u32(at + 16),
                            .key_bytes = tess__wire_get_u32(at + 20),
                            .value_bytes = tess__wire_get_u32(at + 24),
                            .key = "" };
    uint64_t payload = (uint64_t)out->key_bytes + out->value_bytes;
    if (tess__wire_get_u32(at + 4) != VERSION || out->type == 0 || out->type >= TESS__WIRE_LAST || payload > limit)
        return -1;
    if (box->bytes < TESS__WIRE_HEADER + payload)
        return 0;
    if (!key_is_sound(at + TESS__WIRE_HEADER, out->key_bytes))
        return -1;
    if (out->key_bytes)
        out->key = (const char *)at + TESS__WIRE_HEADER;
    out->value = at + TESS__WIRE_HEADER + out->key_bytes;
    return 1;
}

void tess__inbox_drop(tess__inbox *box, const tess__message *message) {
    size_t bytes = TESS__WIRE_HEADER + (size_t)message->key_bytes + message->value_bytes;
    box->start += bytes;
    box->bytes -= bytes;
    if (box->bytes == 0)
        box->start = 0;
    if (box->bytes == 0 && box->capacity > 16 * READ_SIZE)
        tess__inbox_clear(box);
}

void tess__inbox_clear(tess__inbox *box) {
    free(box->data);
    *box = (tess__inbox){ 0 };
}

static struct addrinfo *resolve_address(const char *address, int32_t port, int passive) {
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0) };
    struct addrinfo *found = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", (int)port);
    return getaddrinfo(address, service, &hints, &found) == 0 ? found : NULL;
}

static int bind_one(const struct addrinfo *to, int *fd) {
    int one = 1, s = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        return errno;
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(s, to->ai_addr, to->ai_addrlen) == 0 && listen(s, 1024) == 0) {
        *fd = s;
        return 0;
    }
    int error = errno;
    close(s);
    return error;
}

static int32_t bound_port(int fd) {
    struct sockaddr_in6 at; /* an address of IPv4 is shorter, and has its port at the same place */
    socklen_t size = sizeof at;
    return getsockname(fd, (struct sockaddr *)&at, &size) == 0 ? ntohs(at.sin6_port) : 0;
}

int tess__wire_is_local(const char *address) {
    return *address == '/';
}

tess_status tess__wire_listen(const char *address, int32_t *port, const char *setting, int *fd) {
    if (tess__wire_is_local(address))
        return tess__local_listen(address, fd);
    struct addrinfo *list = resolve_address(address, *port, 1);
    if (!list)
        return tess__fail(TESS_E_INVALID, "cannot listen on '%s': this is no address of a host", address);
    int error = 0;
    for (const struct addrinfo *to = list; to; to = to->ai_next)
        if ((error = bind_one(to, fd)) == 0)
            break;
    freeaddrinfo(list);
    if (error == EADDRINUSE)
        return tess__fail(TESS_E_INVALID, "port %d on %s is in use by another program; set %s to a free one",
                          (int)*port, address, setting);
    if (error)
        return tess__fail(TESS_E_INVALID, "cannot listen on %s port %d: %s", address, (int)*port, strerror(error));
    *port = bound_port(*fd);
    return TESS_OK;
}

static int await_connection(int fd, int64_t deadline_ns) {
    for (;;) {
        int64_t left_ms = (deadline_ns - tess__now_ns()) / 1000000;
        struct pollfd wait = { .fd = fd, .events = POLLOUT };
        int n = poll(&wait, 1, left_ms < 0 ? 0 : (int)left_ms);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : ETIMEDOUT;
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
        return error;
    }
}

static int connect_one(const struct addrinfo *to, int64_t deadline_ns, int *fd) {
    int one = 1, s = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        return errno;
    int error = connect(s, to->ai_addr, to->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS || error == EINTR)
        error = await_connection(s, deadline_ns);
    if (error) {
        close(s);
        return error;
    }
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    *fd = s;
    return 0;
}

/* Tells whether a connection has met itself, which happens at a local port that nobody listens on: the kernel may
 * pick that port as our own. */
static int meets_itself(int fd) {
    struct sockaddr_storage ours, theirs;
    socklen_t a = sizeof ours, b = sizeof theirs;
    memset(&ours, 0, sizeof ours);
    memset(&theirs, 0, sizeof theirs);
    if (getsockname(fd, (struct sockaddr *)&ours, &a) != 0 || getpeername(fd, (struct sockaddr *)&theirs, &b) != 0)
        return 0;
    return a == b && memcmp(&ours, &theirs, a) == 0;
}

int tess__wire_connect(const char *address, int32_t port, int64_t deadline_ns, int *fd) {
    if (tess__wire_is_local(address))
        return tess__local_connect(address, fd);
    struct addrinfo *list = resolve_address(address, port, 0);
    if (!list)
        return EHOSTUNREACH;
    int error = 0, s = -1;
    for (const struct addrinfo *to = list; to; to = to->ai_next)
        if ((error = connect_one(to, deadline_ns, &s)) == 0)
            break;
    freeaddrinfo(list);
    if (error == 0 && meets_itself(s)) {
        close(s);
        error = ECONNREFUSED;
    }
    if (error == 0)
        *fd = s;
    return error;
}

static int address_is_loopback(const struct sockaddr *at) {
    if (at->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)at)->sin_addr.s_addr) >> 24 == 127;
    if (at->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)at)->sin6_addr);
    return 0;
}

int tess__wire_is_loopback(const char *address) {
    struct addrinfo *list = resolve_address(address, 1, 0);
    int loopback = list != NULL;
    for (const struct addrinfo *to = list; to; to = to->ai_next)
        loopback = loopback && address_is_loopback(to->ai_addr);
    if (list)
        freeaddrinfo(list);
    return loopback;
}

void tess__wire_own_address(int fd, char *out, size_t size) {
    struct sockaddr_storage at;
    socklen_t bytes = sizeof at;
    *out = 0;
    if (getsockname(fd, (struct sockaddr *)&at, &bytes) != 0 || (at.ss_family != AF_INET && at.ss_family != AF_INET6) ||
        getnameinfo((struct sockaddr *)&at, bytes, out, (socklen_t)size, NULL, 0, NI_NUMERICHOST) != 0)
        *out = 0;
}

/* Connecting a datagram socket sends nothing: it only looks the way up. */
int tess__wire_route(const char *address, char *out, size_t size) {
    struct addrinfo *list = resolve_address(address, 1, 0);
    *out = 0;
    for (const struct addrinfo *to = list; to && !*out; to = to->ai_next) {
        int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, to->ai_addr, to->ai_addrlen) == 0)
            tess__wire_own_address(fd, out, size);
        if (fd >= 0)
            close(fd);
    }
    if (list)
        freeaddrinfo(list);
    return *out ? 0 : -1;
}

int64_t tess__now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

tess_status tess__seconds_option(const char *key, double fallback, double most, int64_t *out_ns) {
    double seconds = fallback;
    tess_status status = tess__option_real(key, &seconds);
    if (status != TESS_OK)
        return status;
    char variable[80];
    if (!(seconds >= 0 && seconds <= most))
        return tess__fail(TESS_E_INVALID, "%s is %g, expected seconds from 0 to %g",
                          tess__option_variable(key, variable), seconds, most);
    *out_ns = (int64_t)llround(seconds * 1e9);
    return TESS_OK;
}

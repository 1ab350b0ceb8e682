/* SPDX-License-Identifier: BSD-3-Clause */
/* The messages between ranks and the key-value server: a 32-byte header, a key, a value; little endian.
 * Sockets are non-blocking, closed on exec, and never raise SIGPIPE. */
#ifndef TESS_WIRE_H
#define TESS_WIRE_H
#include <stddef.h>
#include <stdint.h>

#include <tessera/tessera.h>

#include "link.h"

enum {                       /* to the server */
       TESS__WIRE_HELLO = 1, /* arg: rank; key: "nranks"; value: the job's name, or nothing */
       TESS__WIRE_SET,       /* id */
       TESS__WIRE_GET,       /* id */
       TESS__WIRE_CANCEL,    /* id of a GET that nobody waits for any more */
       TESS__WIRE_EXCHANGE,  /* id; arg: of how many ranks, whose numbers begin the value; 0: of all */
       TESS__WIRE_DOING,     /* value: text */
       TESS__WIRE_REPORT,    /* arg: status, LOST: it ends itself; id: 1 + the rank that it lost, 0 none; value: text */
       TESS__WIRE_GOODBYE,   /* answered with GOODBYE; arg 1: the connection stays open for BACK */
       TESS__WIRE_BEAT,      /* answered with BEAT; with an id it is the answer to the server's, which has that id */
       /* from the server */
       TESS__WIRE_WELCOME,  /* the hello is accepted */
       TESS__WIRE_READY,    /* every rank is here; value: the server's address for ranks beside it, or nothing */
       TESS__WIRE_REFUSED,  /* arg: status; value: why; then the connection ends */
       TESS__WIRE_OK,       /* id; value: what was asked for */
       TESS__WIRE_ERROR,    /* id; arg: status; value: why */
       TESS__WIRE_LOST,     /* arg: rank; value: the first cause */
       TESS__WIRE_DEPARTED, /* arg: rank */
       TESS__WIRE_BACK,     /* both ways: a rank that said goodbye and stayed connected takes part again; arg: rank */
       TESS__WIRE_DROP,     /* to the server: id; the key is gone */
       TESS__WIRE_LAST
};
enum { TESS__WIRE_HEADER = 32, TESS__WIRE_TEXT_MAX = 512, TESS__WIRE_ADDRESS_MAX = 64 };

typedef struct {
    uint32_t type, id;
    int32_t arg;
    uint32_t key_bytes, value_bytes; /* the key counts its final null */
    const char *key;                 /* "" when there is none */
    const unsigned char *value;
} tess__message;

void tess__wire_put_u32(unsigned char *at, uint32_t value);
uint32_t tess__wire_get_u32(const unsigned char *at);

/* Reference counted, so that one value can wait in many outboxes. Not for several threads at once. */
typedef struct {
    uint32_t refs, bytes;
    unsigned char data[];
} tess__blob;
tess__blob *tess__blob_new(const void *data, uint64_t bytes); /* null data: zeroed; null: no memory */
void tess__blob_drop(tess__blob *or_null);

typedef struct tess__chunk tess__chunk;
typedef struct {
    tess__chunk *first, **end;
    uint32_t n, n_spare;
    tess__chunk *spare;
} tess__outbox;
void tess__outbox_init(tess__outbox *);
/** Room for small messages that pile up while this thread gets no processor, so that none is allocated within a step.
 */
void tess__outbox_reserve(tess__outbox *);
void tess__outbox_clear(tess__outbox *);
/** Queues a message without a key; keeps a reference to the value. 0, or -1: no memory. */
int tess__outbox_push(tess__outbox *, uint32_t type, uint32_t id, int32_t arg, tess__blob *value_or_null);
/** Queues a message, copying key and value. */
int tess__outbox_copy(tess__outbox *, const tess__message *);
/** 1: all sent, 0: the rest must wait, -1: the connection is gone. */
int tess__outbox_flush(tess__outbox *, tess__link *);

typedef struct {
    unsigned char *data;
    size_t start, bytes, capacity; /* bytes from start on are unread */
} tess__inbox;
/** Reads what is there, at most about 256 KiB. 1: something came, 0: nothing, -1: the connection has ended. */
int tess__inbox_read(tess__inbox *, tess__link *);
/** The next whole message of at most `limit` bytes. 1: *out points into the inbox until tess__inbox_drop; 0: not all
 * here yet; -1: this is not our protocol, or too large. */
int tess__inbox_next(const tess__inbox *, size_t limit, tess__message *out);
void tess__inbox_drop(tess__inbox *, const tess__message *);
void tess__inbox_clear(tess__inbox *);

/* An address that begins with / is the path of a Unix socket. `setting`: where the user chose the port, for messages.
 */
tess_status tess__wire_listen(const char *address, int32_t *port, const char *setting, int *fd);
/** One attempt that ends by `deadline_ns` (tess__now_ns). 0 and *fd, or an errno; EAI failures are EHOSTUNREACH. */
int tess__wire_connect(const char *address, int32_t port, int64_t deadline_ns, int *fd);
int tess__wire_is_local(const char *address);    /* a Unix socket */
int tess__wire_is_loopback(const char *address); /* resolves names; 0 when it cannot */
/** The numeric address that this host has on the way to `address`, which may be its own. 0, or -1: no such way. */
int tess__wire_route(const char *address, char *out, size_t size);
/** Numeric address of a connection's end here; "" when it is no network's. */
void tess__wire_own_address(int fd, char *out, size_t size);
int64_t tess__now_ns(void);
/** Reads a variable of seconds, "2.5"; `fallback` when unset. TESS_E_INVALID when it is no number in 0 … most. */
tess_status tess__seconds_option(const char *key, double fallback, double most, int64_t *out_ns);
#endif

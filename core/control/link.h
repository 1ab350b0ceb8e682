/* SPDX-License-Identifier: BSD-3-Clause */
/* One connection's bytes: a socket, as it is or under TLS 1.3 with the job's secret as external pre-shared key. */
#ifndef TESS_LINK_H
#define TESS_LINK_H
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <tessera/tessera.h>

typedef struct tess__link_key tess__link_key;
/** For one side of any number of connections. TESS_E_UNSUPPORTED: built without OpenSSL. */
tess_status tess__link_key_create(const char *secret, int listens, tess__link_key **out);
void tess__link_key_destroy(tess__link_key *); /* null is fine */

typedef struct {
    int fd;           /* -1: none */
    void *tls;        /* null: as it is */
    int awaits_input; /* what is to be sent must wait for the other side */
    int refused;      /* the two did not come to terms: another secret, or no TLS */
} tess__link;
/** Takes fd. Null key: the bytes as they are. 0, or -1: no memory, and fd is closed. */
int tess__link_open(tess__link *, int fd, tess__link_key *or_null);
void tess__link_close(tess__link *);
/** Bytes sent or received; 0: not now; -1: the connection has ended, or the other side does not have the secret. */
ssize_t tess__link_send(tess__link *, const struct iovec *parts, int n);
ssize_t tess__link_recv(tess__link *, void *to, size_t bytes);

/** The events to poll for. */
short tess__link_events(const tess__link *, int has_output);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#include "link.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/status.h"

static ssize_t moved_bytes(ssize_t n) {
    if (n > 0)
        return n;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}

short tess__link_events(const tess__link *link, int has_output) {
    return (short)(POLLIN | (has_output && !link->awaits_input ? POLLOUT : 0));
}

/* ---- TLS ---------------------------------------------------------------------------------------- */

#ifdef TESSERA_HAVE_OPENSSL
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>

enum { KEY_BYTES = 32, RECORD_BYTES = 16 << 10 };
static const unsigned char identity[] = "tessera/1";

struct tess__link_key {
    SSL_CTX *context;
    BIO_METHOD *method;
    int listens;
    unsigned char bytes[KEY_BYTES];
};

/* OpenSSL's own BIO of a socket raises SIGPIPE. */
static int bio_write(BIO *bio, const char *data, int bytes) {
    int fd = (int)(intptr_t)BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t sent = send(fd, data, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (moved_bytes(sent) == 0)
        BIO_set_retry_write(bio);
    return sent > 0 ? (int)sent : -1;
}

static int bio_read(BIO *bio, char *to, int bytes) {
    int fd = (int)(intptr_t)BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t got = recv(fd, to, (size_t)bytes, MSG_DONTWAIT);
    if (moved_bytes(got) == 0)
        BIO_set_retry_read(bio);
    return got > 0 ? (int)got : got == 0 ? 0 : -1;
}

static long bio_control(BIO *bio, int command, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

/* A session that both sides make of the key takes the place of a certificate. */
static SSL_SESSION *session_of(SSL *tls) {
    static const unsigned char suite[] = { 0x13, 0x01 }; /* TLS_AES_128_GCM_SHA256 */
    const tess__link_key *key = SSL_CTX_get_app_data(SSL_get_SSL_CTX(tls));
    const SSL_CIPHER *cipher = SSL_CIPHER_find(tls, suite);
    SSL_SESSION *session = SSL_SESSION_new();
    if (session && cipher && SSL_SESSION_set1_master_key(session, key->bytes, KEY_BYTES) &&
        SSL_SESSION_set_cipher(session, cipher) && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static int use_session(SSL *tls, const EVP_MD *digest, const unsigned char **id, size_t *bytes, SSL_SESSION **out) {
    (void)digest;
    *id = identity;
    *bytes = sizeof identity - 1;
    *out = session_of(tls);
    return *out != NULL;
}

static int find_session(SSL *tls, const unsigned char *id, size_t bytes, SSL_SESSION **out) {
    int known = bytes == sizeof identity - 1 && memcmp(id, identity, bytes) == 0;
    *out = known ? session_of(tls) : NULL;
    return !known || *out != NULL;
}

static int configure_key(tess__link_key *key) {
    SSL_CTX *context = key->context;
    if (!context || !key->method || !SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") || !SSL_CTX_set_num_tickets(context, 0))
        return -1;
    SSL_CTX_set_app_data(context, key);
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(context, key->listens ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_psk_use_session_callback(context, use_session);
    SSL_CTX_set_psk_find_session_callback(context, find_session);
    return BIO_meth_set_write(key->method, bio_write) && BIO_meth_set_read(key->method, bio_read) &&
                   BIO_meth_set_ctrl(key->method, bio_control)
               ? 0
               : -1;
}

tess_status tess__link_key_create(const char *secret, int listens, tess__link_key **out) {
    static const char label[] = "tessera control plane 1";
    tess__link_key *key = calloc(1, sizeof *key);
    unsigned bytes = KEY_BYTES;
    if (!key)
        return tess__fail(TESS_E_NOMEM, "no memory for TLS");
    key->listens = listens;
    key->context = SSL_CTX_new(TLS_method());
    key->method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tessera");
    if (configure_key(key) != 0 || !HMAC(EVP_sha256(), secret, (int)strlen(secret), (const unsigned char *)label,
                                         sizeof label - 1, key->bytes, &bytes)) {
        tess__link_key_destroy(key);
        return tess__fail(TESS_E_SYSTEM, "OpenSSL cannot be set up for TLS 1.3");
    }
    *out = key;
    return TESS_OK;
}

void tess__link_key_destroy(tess__link_key *key) {
    if (!key)
        return;
    SSL_CTX_free(key->context);
    BIO_meth_free(key->method);
    explicit_bzero(key->bytes, sizeof key->bytes);
    free(key);
}

static int open_tls(tess__link *link, tess__link_key *key) {
    SSL *tls = SSL_new(key->context);
    BIO *bio = tls ? BIO_new(key->method) : NULL;
    if (!bio) {
        SSL_free(tls);
        return -1;
    }
    BIO_set_data(bio, (void *)(intptr_t)link->fd);
    BIO_set_init(bio, 1);
    SSL_set_bio(tls, bio, bio);
    if (key->listens)
        SSL_set_accept_state(tls);
    else
        SSL_set_connect_state(tls);
    link->tls = tls;
    return 0;
}

static void close_tls(tess__link *link) {
    SSL_free(link->tls);
}

/* Whether the other side has proven that it has the secret. Only a session of the key counts, no certificate. */
static int is_proven(const tess__link *link) {
    return SSL_is_init_finished(link->tls) && SSL_session_reused(link->tls);
}

static ssize_t check_tls_result(tess__link *link, int result) {
    int why = result > 0 ? SSL_ERROR_NONE : SSL_get_error(link->tls, result);
    link->awaits_input = why == SSL_ERROR_WANT_READ;
    link->refused |= why == SSL_ERROR_SSL; /* later calls fail too, and say less */
    ERR_clear_error();
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
        return 0;
    return result > 0 && is_proven(link) ? result : -1;
}

/* Sends through TLS. Bytes that could not go come again, so what is gathered depends only on what has been sent. */
static ssize_t send_tls(tess__link *link, const struct iovec *parts, int n) {
    unsigned char record[RECORD_BYTES];
    size_t bytes = 0;
    for (int i = 0; i < n && bytes < sizeof record; i++) {
        size_t part = parts[i].iov_len < sizeof record - bytes ? parts[i].iov_len : sizeof record - bytes;
        if (part) /* an empty part may be nowhere */
            memcpy(record + bytes, parts[i].iov_base, part);
        bytes += part;
    }
    return check_tls_result(link, SSL_write(link->tls, record, (int)bytes));
}

static ssize_t recv_tls(tess__link *link, void *to, size_t bytes) {
    ssize_t got = check_tls_result(link, SSL_read(link->tls, to, bytes > RECORD_BYTES ? RECORD_BYTES : (int)bytes));
    link->awaits_input = !SSL_is_init_finished(link->tls);
    return got;
}

/* ---- without ------------------------------------------------------------------------------------ */
#else

tess_status tess__link_key_create(const char *secret, int listens, tess__link_key **out) {
    (void)secret, (void)listens, (void)out;
    return tess__fail(TESS_E_UNSUPPORTED, "this build has no TLS (OpenSSL 3, libssl-dev): ranks must be on one host");
}
void tess__link_key_destroy(tess__link_key *key) {
    (void)key;
}
static int open_tls(tess__link *link, tess__link_key *key) {
    (void)link, (void)key;
    return -1;
}
static void close_tls(tess__link *link) {
    (void)link;
}

static ssize_t send_tls(tess__link *link, const struct iovec *parts, int n) {
    (void)link, (void)parts, (void)n;
    return -1;
}
static ssize_t recv_tls(tess__link *link, void *to, size_t bytes) {
    (void)link, (void)to, (void)bytes;
    return -1;
}
#endif

/* ---- either ------------------------------------------------------------------------------------- */

int tess__link_open(tess__link *link, int fd, tess__link_key *key) {
    *link = (tess__link){ .fd = fd };
    if (!key || open_tls(link, key) == 0)
        return 0;
    tess__link_close(link);
    return -1;
}

void tess__link_close(tess__link *link) {
    if (link->tls)
        close_tls(link);
    if (link->fd >= 0)
        close(link->fd);
    *link = (tess__link){ .fd = -1 };
}

ssize_t tess__link_send(tess__link *link, const struct iovec *parts, int n) {
    if (link->tls)
        return send_tls(link, parts, n);
    struct msghdr out = { .msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)n };
    return moved_bytes(sendmsg(link->fd, &out, MSG_NOSIGNAL | MSG_DONTWAIT));
}

ssize_t tess__link_recv(tess__link *link, void *to, size_t bytes) {
    return link->tls ? recv_tls(link, to, bytes) : moved_bytes(recv(link->fd, to, bytes, MSG_DONTWAIT));
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* A key for TLS: how OpenSSL is set up, and that each of its refusals is an error that leaves nothing behind. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <openssl/bio.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <stdio.h>

#include "tests/unit/counted.h"

static int refuses, asked, held; /* refuses: the call of that number; held: contexts and methods that were not freed */

static int goes(int done) {
    return done && ++asked != refuses;
}
static void *keep(void *p) {
    held++;
    return p;
}
static SSL_CTX *new_context(const SSL_METHOD *method) {
    return goes(1) ? keep(SSL_CTX_new(method)) : NULL;
}
static BIO_METHOD *new_method(int type, const char *name) {
    assert_true(type & BIO_TYPE_SOURCE_SINK);
    return goes(1) ? keep(BIO_meth_new(type, name)) : NULL;
}
static void drop_context(SSL_CTX *c) {
    held -= c != NULL;
    SSL_CTX_free(c);
}
static void drop_method(BIO_METHOD *m) {
    held -= m != NULL;
    BIO_meth_free(m);
}
static unsigned char *mac(const EVP_MD *md, const void *key, int n, const unsigned char *data, size_t bytes,
                          unsigned char *out, unsigned *out_bytes) {
    assert_int_equal(*out_bytes, 32);
    return goes(1) ? HMAC(md, key, n, data, bytes, out, out_bytes) : NULL;
}
static long least_version(SSL_CTX *c, int version) {
    return goes(1) ? SSL_CTX_ctrl(c, SSL_CTRL_SET_MIN_PROTO_VERSION, version, NULL) : 0;
}
#undef SSL_CTX_set_min_proto_version
#define SSL_CTX_set_min_proto_version least_version
#define SSL_CTX_set_ciphersuites(c, text) goes(SSL_CTX_set_ciphersuites(c, text))
#define SSL_CTX_set_num_tickets(c, n) goes(SSL_CTX_set_num_tickets(c, n))
#define SSL_CTX_new new_context
#define SSL_CTX_free drop_context
#define BIO_meth_new new_method
#define BIO_meth_free drop_method
#define BIO_meth_set_write(m, f) goes(BIO_meth_set_write(m, f))
#define BIO_meth_set_read(m, f) goes(BIO_meth_set_read(m, f))
#define BIO_meth_set_ctrl(m, f) goes(BIO_meth_set_ctrl(m, f))
#define HMAC mac
#define TESSERA_HAVE_OPENSSL 1
#include "core/control/link.c"

static void test_link_key__is_tls_1_3_with_one_suite_and_no_tickets(void **state) {
    (void)state;
    for (int listens = 0; listens < 2; listens++) {
        tess__link_key *key = NULL;
        refuses = asked = 0;
        assert_int_equal(tess__link_key_create("secret", listens, &key), TESS_OK);
        SSL_CTX *c = key->context;
        assert_int_equal(SSL_CTX_ctrl(c, SSL_CTRL_GET_MIN_PROTO_VERSION, 0, NULL), TLS1_3_VERSION);
        const STACK_OF(SSL_CIPHER) *suites = SSL_CTX_get_ciphers(c);
        int of_1_3 = 0;
        for (int i = 0; i < sk_SSL_CIPHER_num(suites); i++) {
            const SSL_CIPHER *s = sk_SSL_CIPHER_value(suites, i);
            if (strcmp(SSL_CIPHER_get_version(s), "TLSv1.3") == 0) {
                assert_string_equal(SSL_CIPHER_get_name(s), "TLS_AES_128_GCM_SHA256");
                of_1_3++;
            }
        }
        assert_int_equal(of_1_3, 1);
        assert_int_equal(SSL_CTX_get_num_tickets(c), 0);
        assert_int_equal(SSL_CTX_get_session_cache_mode(c), SSL_SESS_CACHE_OFF);
        const uint64_t no = SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION;
        assert_true((SSL_CTX_get_options(c) & no) == no);
        const long mode = SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER;
        assert_true((SSL_CTX_get_mode(c) & mode) == mode);
        assert_int_equal(SSL_CTX_get_verify_mode(c), listens ? SSL_VERIFY_NONE : SSL_VERIFY_PEER);
        assert_ptr_equal(SSL_CTX_get_app_data(c), key);
        assert_int_equal(held, 2);
        tess__link_key_destroy(key);
        assert_int_equal(held, 0);
        assert_int_equal(counted.live, 0);
    }
    tess__link_key_destroy(NULL);
}

static void test_link_key__is_the_secrets_alone(void **state) {
    (void)state;
    tess__link_key *a = NULL, *b = NULL, *c = NULL;
    assert_int_equal(tess__link_key_create("secret", 0, &a), TESS_OK);
    assert_int_equal(tess__link_key_create("secret", 1, &b), TESS_OK);
    assert_int_equal(tess__link_key_create("secret2", 0, &c), TESS_OK);
    assert_memory_equal(a->bytes, b->bytes, sizeof a->bytes);
    assert_memory_not_equal(a->bytes, c->bytes, sizeof a->bytes);
    tess__link_key_destroy(a), tess__link_key_destroy(b), tess__link_key_destroy(c);
}

static void test_link_key__each_refusal_is_an_error(void **state) {
    (void)state;
    tess_status s = TESS_E_SYSTEM;
    tess__link_key *key;
    int n = 1;
    for (; s; n++) {
        key = (void *)&n;
        refuses = n, asked = 0;
        s = tess__link_key_create("secret", 1, &key);
        if (!s)
            break;
        assert_int_equal(s, TESS_E_SYSTEM);
        assert_string_equal(tess_last_error(), "OpenSSL cannot be set up for TLS 1.3");
        assert_ptr_equal(key, &n);
        assert_true(held == 0 && counted.live == 0);
    }
    assert_true(n > 1 && asked < refuses); /* it is done where nothing was refused */
    tess__link_key_destroy(key);
    counted.refuse = 1;
    assert_int_equal(tess__link_key_create("secret", 1, &key), TESS_E_NOMEM);
    assert_string_equal(tess_last_error(), "no memory for TLS");
    assert_int_equal(held, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link_key__is_tls_1_3_with_one_suite_and_no_tickets),
        cmocka_unit_test(test_link_key__is_the_secrets_alone),
        cmocka_unit_test(test_link_key__each_refusal_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

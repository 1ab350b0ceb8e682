/* SPDX-License-Identifier: BSD-3-Clause */
/* What the key-value server answers to each word of a set, a get and an exchange. The ranks are sockets of this test.
 */
#include <stdlib.h>

#include "core/control/kv_store.h"
#include "kv_world.h"
#include "tests/unit/heap_held.h"

static void ask(world *w, int r, uint32_t type, uint32_t id, const char *key, const void *value, uint32_t bytes) {
    send_all(w->fd[r], &(tess__message){ .type = type,
                                         .id = id,
                                         .key = key,
                                         .key_bytes = (uint32_t)strlen(key) + 1,
                                         .value = value,
                                         .value_bytes = bytes });
}

/* The next answer of this rank's, whatever it is. */
static void expect_answer(world *w, int r, uint32_t type, uint32_t id, int32_t arg, const void *value, uint32_t bytes) {
    tess__message got;
    for (;;) {
        struct pollfd wait = { .fd = w->fd[r], .events = POLLIN };
        if (tess__inbox_next(&w->box[r], 64 << 20, &got) == 1)
            break;
        assert_int_equal(poll(&wait, 1, 5000), 1);
        assert_true(tess__inbox_read(&w->box[r], &(tess__link){ .fd = w->fd[r] }) >= 0);
    }
    assert_int_equal(got.type, type);
    assert_int_equal(got.id, id);
    assert_int_equal(got.arg, arg);
    assert_int_equal(got.value_bytes, bytes);
    if (bytes)
        assert_memory_equal(got.value, value, bytes);
    tess__inbox_drop(&w->box[r], &got);
}

static void expect_error(world *w, int r, uint32_t id, int32_t status, const char *text) {
    expect_answer(w, r, TESS__WIRE_ERROR, id, status, text, (uint32_t)strlen(text));
}

static void test_server_answers__sets_answer_the_gets_that_wait(void **state) {
    (void)state;
    world w;
    open_world(&w);
    ask(&w, 1, TESS__WIRE_GET, 7, "a", NULL, 0);
    ask(&w, 1, TESS__WIRE_GET, 8, "b", NULL, 0);
    ask(&w, 1, TESS__WIRE_GET, 9, "a", NULL, 0);
    ask(&w, 1, TESS__WIRE_GET, 10, "a", NULL, 0);
    ask(&w, 1, TESS__WIRE_CANCEL, 9, "", NULL, 0);
    ask(&w, 1, TESS__WIRE_CANCEL, 99, "", NULL, 0); /* that never was */
    ask(&w, 1, TESS__WIRE_SET, 11, "c", NULL, 0);
    expect_answer(&w, 1, TESS__WIRE_OK, 11, 0, NULL, 0); /* all of it has been read */
    ask(&w, 0, TESS__WIRE_SET, 1, "a", "one", 3);
    expect_answer(&w, 0, TESS__WIRE_OK, 1, 0, NULL, 0);
    expect_answer(&w, 1, TESS__WIRE_OK, 10, 0, "one", 3);
    expect_answer(&w, 1, TESS__WIRE_OK, 7, 0, "one", 3);
    ask(&w, 0, TESS__WIRE_SET, 2, "a", "three", 5);
    expect_answer(&w, 0, TESS__WIRE_OK, 2, 0, NULL, 0);
    ask(&w, 2, TESS__WIRE_GET, 3, "a", NULL, 0);
    expect_answer(&w, 2, TESS__WIRE_OK, 3, 0, "three", 5);
    ask(&w, 2, TESS__WIRE_DROP, 4, "a", NULL, 0);
    expect_answer(&w, 2, TESS__WIRE_OK, 4, 0, NULL, 0);
    ask(&w, 2, TESS__WIRE_DROP, 5, "a", NULL, 0);
    expect_answer(&w, 2, TESS__WIRE_OK, 5, 0, NULL, 0);
    ask(&w, 2, TESS__WIRE_GET, 6, "a", NULL, 0);
    ask(&w, 2, TESS__WIRE_GET, 7, "c", NULL, 0);
    expect_answer(&w, 2, TESS__WIRE_OK, 7, 0, NULL, 0); /* 6 waits */
    ask(&w, 0, TESS__WIRE_SET, 3, "b", "", 0);
    expect_answer(&w, 0, TESS__WIRE_OK, 3, 0, NULL, 0);
    expect_answer(&w, 1, TESS__WIRE_OK, 8, 0, NULL, 0);
    ask(&w, 0, TESS__WIRE_SET, 4, "", "x", 1);
    expect_error(&w, 0, 4, TESS_E_INVALID, "the key is empty or longer than 255 bytes");
    close_world(&w);
}

static void test_server_answers__each_gets_all_in_the_order_of_ranks(void **state) {
    (void)state;
    static const int orders[][RANKS] = { { 0, 1, 2 }, { 2, 1, 0 }, { 1, 2, 0 } };
    world w;
    open_world(&w);
    for (uint32_t i = 0; i < 3; i++) {
        for (int k = 0; k < RANKS; k++) {
            char mine[2] = { (char)('a' + orders[i][k]), (char)('0' + (int)i) };
            ask(&w, orders[i][k], TESS__WIRE_EXCHANGE, 10 + i, "x", mine, 2);
        }
        char all[6] = { 'a', (char)('0' + i), 'b', (char)('0' + i), 'c', (char)('0' + i) };
        for (int r = 0; r < RANKS; r++)
            expect_answer(&w, r, TESS__WIRE_OK, 10 + i, 0, all, 6);
    }
    for (int r = 0; r < RANKS; r++)
        ask(&w, r, TESS__WIRE_EXCHANGE, 20, "nothing", NULL, 0);
    for (int r = 0; r < RANKS; r++)
        expect_answer(&w, r, TESS__WIRE_OK, 20, 0, NULL, 0);
    close_world(&w);
}

static void test_server_answers__what_cannot_complete_is_said_to_all_who_wait(void **state) {
    (void)state;
    static const char sizes[] = "exchange 'x': rank 1 passes 4 bytes, rank 2 3";
    static const char keys[] = "the ranks disagree about what comes next: rank 0 is at 'x', rank 2 at 'y'";
    static const char twice[] = "an exchange is under way already";
    world w;
    open_world(&w);
    ask(&w, 1, TESS__WIRE_EXCHANGE, 1, "x", "four", 4);
    ask(&w, 1, TESS__WIRE_EXCHANGE, 2, "z", "four", 4);
    expect_error(&w, 1, 2, TESS_E_INVALID, twice);
    ask(&w, 2, TESS__WIRE_EXCHANGE, 3, "x", "tri", 3);
    expect_error(&w, 1, 1, TESS_E_MISMATCH, sizes);
    expect_error(&w, 2, 3, TESS_E_MISMATCH, sizes);

    ask(&w, 0, TESS__WIRE_EXCHANGE, 4, "x", "four", 4);
    ask(&w, 1, TESS__WIRE_EXCHANGE, 5, "x", "four", 4);
    ask(&w, 2, TESS__WIRE_SET, 6, "k", NULL, 0); /* it may still come */
    expect_answer(&w, 2, TESS__WIRE_OK, 6, 0, NULL, 0);
    ask(&w, 2, TESS__WIRE_EXCHANGE, 7, "y", "four", 4);
    expect_error(&w, 0, 4, TESS_E_MISMATCH, keys);
    expect_error(&w, 1, 5, TESS_E_MISMATCH, keys);
    expect_error(&w, 2, 7, TESS_E_MISMATCH, keys);

    for (int r = 0; r < RANKS; r++) /* and the world still works */
        ask(&w, r, TESS__WIRE_EXCHANGE, 8, "x", "1", 1);
    for (int r = 0; r < RANKS; r++)
        expect_answer(&w, r, TESS__WIRE_OK, 8, 0, "111", 3);
    close_world(&w);
}

/* The numbers of `n` ranks, then bytes. */
static void ask_among(world *w, int from, uint32_t id, const char *key, int32_t n, const int32_t *ranks,
                      const char *bytes) {
    unsigned char value[64];
    for (int32_t i = 0; i < n; i++)
        tess__wire_put_u32(value + 4 * i, (uint32_t)ranks[i]);
    memcpy(value + 4 * n, bytes, strlen(bytes));
    tess__message m = { .type = TESS__WIRE_EXCHANGE,
                        .id = id,
                        .arg = n,
                        .key = key,
                        .key_bytes = (uint32_t)strlen(key) + 1,
                        .value = value,
                        .value_bytes = (uint32_t)(4 * (size_t)n + strlen(bytes)) };
    send_all(w->fd[from], &m);
}

static void test_server_answers__some_ranks_exchange_in_their_order_and_wait_for_no_other(void **state) {
    (void)state;
    static const int32_t pair[] = { 2, 0 }, other[] = { 1, 2 }, twice[] = { 0, 0 }, unknown[] = { 0, 3 };
    static const char circle[] = "the ranks disagree about what comes next: rank 0 is at 'a', rank 2 at 'b'";
    static const char none[] = "the ranks of an exchange are not such, or this is none";
    world w;
    open_world(&w);
    ask_among(&w, 0, 1, "a", 2, pair, "zero");
    ask_among(&w, 2, 2, "a", 2, pair, "two!");
    expect_answer(&w, 0, TESS__WIRE_OK, 1, 0, "two!zero", 8);
    expect_answer(&w, 2, TESS__WIRE_OK, 2, 0, "two!zero", 8);

    ask_among(&w, 0, 3, "a", 2, pair, "x"); /* 0 waits for 2, 2 for 1, and 1 for all */
    ask_among(&w, 2, 4, "b", 2, other, "x");
    ask(&w, 1, TESS__WIRE_SET, 5, "k", NULL, 0); /* it may still come */
    expect_answer(&w, 1, TESS__WIRE_OK, 5, 0, NULL, 0);
    ask(&w, 1, TESS__WIRE_EXCHANGE, 6, "c", "x", 1);
    expect_error(&w, 0, 3, TESS_E_MISMATCH, circle);
    expect_error(&w, 2, 4, TESS_E_MISMATCH, circle);
    expect_error(&w, 1, 6, TESS_E_MISMATCH, circle);

    ask_among(&w, 0, 7, "a", 2, pair, "x"); /* rank 1 waits in vain for nobody: 2 ends its wait */
    ask_among(&w, 1, 8, "b", 2, other, "y");
    ask_among(&w, 2, 9, "b", 2, other, "z");
    expect_answer(&w, 1, TESS__WIRE_OK, 8, 0, "yz", 2);
    expect_answer(&w, 2, TESS__WIRE_OK, 9, 0, "yz", 2);
    ask_among(&w, 1, 10, "a", 2, pair, "x");
    expect_error(&w, 1, 10, TESS_E_MISMATCH, "this rank does not belong to the exchange");

    ask_among(&w, 1, 11, "d", 2, twice, "x");
    expect_error(&w, 1, 11, TESS_E_INVALID, none);
    ask_among(&w, 1, 12, "d", 2, unknown, "x");
    expect_error(&w, 1, 12, TESS_E_INVALID, none);
    ask_among(&w, 1, 13, "d", 2, pair, "x"); /* of which it is none */
    expect_error(&w, 1, 13, TESS_E_INVALID, none);
    close_world(&w);
}

/* A list that is too long, less than nothing, or that its bytes cannot hold, from whoever does not keep to the
 * protocol. */
static void test_server_answers__a_list_of_ranks_fits_its_message(void **state) {
    (void)state;
    static const struct {
        int32_t n;
        uint32_t bytes;
        const char *why;
    } lists[] = {
        { -1, 8, "an exchange among ranks that are not listed" },
        { 2, 7, "an exchange among ranks that are not listed" },
        { TESS__KV_MEMBERS_MAX + 1, 4 * (TESS__KV_MEMBERS_MAX + 1), "an exchange among ranks that are not listed" },
        { TESS__KV_MEMBERS_MAX, 4 * TESS__KV_MEMBERS_MAX, "the ranks of an exchange are not such, or this is none" }
    };
    static unsigned char value[4 * (TESS__KV_MEMBERS_MAX + 1)];
    world w;
    open_world(&w);
    for (uint32_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        tess__message m = { .type = TESS__WIRE_EXCHANGE,
                            .id = 1 + i,
                            .arg = lists[i].n,
                            .key = "k",
                            .key_bytes = 2,
                            .value = value,
                            .value_bytes = lists[i].bytes };
        send_all(w.fd[0], &m);
        expect_error(&w, 0, 1 + i, TESS_E_INVALID, lists[i].why);
    }
    close_world(&w);
}

static void test_server_answers__all_ranks_together_have_64_mib(void **state) {
    (void)state;
    enum { MOST = (64 << 20) / 17 }; /* of each of 17 ranks; of whom one comes */
    static unsigned char value[MOST + 1];
    tess__kv_server *server = start_here(17);
    world w = { .fd = { connect_here() } };
    char text[128];
    say_hello(w.fd[0], 3, "17", "");
    tess__message got;
    expect_message(w.fd[0], &w.box[0], TESS__WIRE_WELCOME, &got);
    tess__inbox_drop(&w.box[0], &got);
    ask(&w, 0, TESS__WIRE_EXCHANGE, 1, "x", value, MOST + 1);
    snprintf(text, sizeof text, "exchange 'x': %d bytes from each of 17 ranks are more than 64 MiB", MOST + 1);
    expect_error(&w, 0, 1, TESS_E_INVALID, text);
    ask(&w, 0, TESS__WIRE_EXCHANGE, 2, "x", value, MOST);
    ask(&w, 0, TESS__WIRE_SET, 3, "k", NULL, 0);
    expect_answer(&w, 0, TESS__WIRE_OK, 3, 0, NULL, 0);
    close(w.fd[0]);
    tess__inbox_clear(&w.box[0]);
    tess__kv_server_stop(server);
}

static void test_server_answers__who_said_goodbye_is_not_waited_for(void **state) {
    (void)state;
    static const char ended[] = "rank 2 has ended, while others wait for it at 'x'";
    world w;
    open_world(&w);
    ask(&w, 0, TESS__WIRE_EXCHANGE, 1, "x", "1", 1);
    ask(&w, 0, TESS__WIRE_GET, 2, "k", NULL, 0);
    ask(&w, 1, TESS__WIRE_SET, 1, "k", NULL, 0);
    expect_answer(&w, 1, TESS__WIRE_OK, 1, 0, NULL, 0);
    expect_answer(&w, 0, TESS__WIRE_OK, 2, 0, NULL, 0);
    send_all(w.fd[2], &(tess__message){ .type = TESS__WIRE_GOODBYE, .arg = 1 }); /* and stays connected */
    expect_answer(&w, 2, TESS__WIRE_GOODBYE, 0, 0, NULL, 0);
    expect_error(&w, 0, 1, TESS_E_PEER, ended);
    for (int r = 0; r < RANKS; r++)
        expect_answer(&w, r, TESS__WIRE_DEPARTED, 0, 2, NULL, 0);
    assert_int_equal(tess__kv_server_connected(w.server), 2);
    ask(&w, 0, TESS__WIRE_EXCHANGE, 3, "x", "1", 1);
    expect_error(&w, 0, 3, TESS_E_PEER, ended);
    ask(&w, 0, TESS__WIRE_EXCHANGE, 4, "open/x", "1", 1); /* for which it may come back */
    ask(&w, 1, TESS__WIRE_EXCHANGE, 5, "open/x", "2", 1);
    ask(&w, 2, TESS__WIRE_BACK, 0, "", NULL, 0);
    for (int r = 0; r < RANKS; r++)
        expect_answer(&w, r, TESS__WIRE_BACK, 0, 2, NULL, 0);
    assert_int_equal(tess__kv_server_connected(w.server), 3);
    ask(&w, 2, TESS__WIRE_BACK, 0, "", NULL, 0); /* again, for nothing */
    ask(&w, 2, TESS__WIRE_EXCHANGE, 6, "open/x", "3", 1);
    for (int r = 0; r < RANKS; r++)
        expect_answer(&w, r, TESS__WIRE_OK, (uint32_t[]){ 4, 5, 6 }[r], 0, "123", 3);
    assert_int_equal(tess__kv_server_connected(w.server), 3);

    ask(&w, 0, TESS__WIRE_EXCHANGE, 7, "open/y", "1", 1);
    send_all(w.fd[2], &(tess__message){ .type = TESS__WIRE_GOODBYE }); /* and does not stay */
    expect_answer(&w, 2, TESS__WIRE_GOODBYE, 0, 0, NULL, 0);
    expect_error(&w, 0, 7, TESS_E_PEER, "rank 2 has ended, while others wait for it at 'open/y'");
    close_world(&w);
}

static void test_server_answers__what_the_launcher_asks_is_answered(void **state) {
    (void)state;
    tess__kv_fits fits = { .stride = 2, .replicas = 1, .n = 2, .fits = { 2, 1 } }, got = { .stride = 9 };
    world w;
    open_world(&w);
    assert_false(tess__kv_server_fits(w.server, &got) || tess__kv_server_ready(w.server));
    assert_int_equal(got.stride, 9);
    ask(&w, 0, TESS__WIRE_SET, 1, TESS__KV_READY, &fits, sizeof fits - 1); /* of another version */
    expect_answer(&w, 0, TESS__WIRE_OK, 1, 0, NULL, 0);
    assert_false(tess__kv_server_ready(w.server) || tess__kv_server_closing(w.server));
    ask(&w, 0, TESS__WIRE_SET, 1, TESS__KV_READY, &fits, sizeof fits);
    expect_answer(&w, 0, TESS__WIRE_OK, 1, 0, NULL, 0);
    assert_true(tess__kv_server_ready(w.server) && tess__kv_server_fits(w.server, &got));
    assert_memory_equal(&got, &fits, sizeof fits);
    fits.n = 1;
    ask(&w, 0, TESS__WIRE_SET, 2, TESS__KV_READY, &fits, sizeof fits); /* it was said once */
    expect_answer(&w, 0, TESS__WIRE_OK, 2, 0, NULL, 0);
    assert_true(tess__kv_server_fits(w.server, &got));
    assert_int_equal(got.n, 2);
    assert_false(tess__kv_server_closing(w.server));
    ask(&w, 0, TESS__WIRE_SET, 3, TESS__KV_READY, NULL, 0);
    expect_answer(&w, 0, TESS__WIRE_OK, 3, 0, NULL, 0);
    assert_true(tess__kv_server_closing(w.server) && tess__kv_server_ready(w.server));
    assert_int_equal(tess__kv_server_culprit(w.server), -1);
    assert_false(tess__kv_server_joined(w.server, -1) || tess__kv_server_joined(w.server, RANKS));
    assert_false(tess__kv_server_silent(w.server, 0) || tess__kv_server_silent(w.server, -1));
    close_world(&w);
}

/* A number of sizes that cannot be is as good as nothing said. */
static void test_server_answers__only_so_many_sizes_fit(void **state) {
    (void)state;
    static const int32_t n[] = { -1, 0, TESS__KV_FITS_MAX, TESS__KV_FITS_MAX + 1 };
    for (int i = 0; i < 4; i++) {
        tess__kv_fits fits = { .stride = 2, .n = n[i] }, got = { .stride = 9 };
        world w;
        open_world(&w);
        ask(&w, 0, TESS__WIRE_SET, 1, TESS__KV_READY, &fits, sizeof fits);
        expect_answer(&w, 0, TESS__WIRE_OK, 1, 0, NULL, 0);
        assert_true(tess__kv_server_ready(w.server) && tess__kv_server_fits(w.server, &got));
        assert_int_equal(got.stride, i == 1 || i == 2 ? 2 : 0);
        close_world(&w);
    }
}

static void use_world(void) {
    world w;
    open_world(&w);
    ask(&w, 1, TESS__WIRE_GET, 1, "a", NULL, 0);
    ask(&w, 1, TESS__WIRE_GET, 2, "b", NULL, 0);
    ask(&w, 1, TESS__WIRE_CANCEL, 2, "", NULL, 0);
    ask(&w, 0, TESS__WIRE_SET, 1, "a", "one", 3);
    expect_answer(&w, 0, TESS__WIRE_OK, 1, 0, NULL, 0);
    expect_answer(&w, 1, TESS__WIRE_OK, 1, 0, "one", 3);
    for (int r = 0; r < RANKS; r++)
        ask(&w, r, TESS__WIRE_EXCHANGE, 20, "x", "1", 1);
    for (int r = 0; r < RANKS; r++)
        expect_answer(&w, r, TESS__WIRE_OK, 20, 0, "111", 3);
    ask(&w, 1, TESS__WIRE_GET, 3, "never", NULL, 0);
    ask(&w, 2, TESS__WIRE_EXCHANGE, 21, "never", "1", 1);
    tess__kv_server_rank_ended(w.server, 1, 0, "killed");
    close_world(&w);
}

/* The first time leaves what the C library keeps for threads. */
static void test_server_answers__a_server_gives_back_what_it_held(void **state) {
    (void)state;
    use_world();
    const size_t before = heap_held();
    for (int i = 0; i < 128; i++)
        use_world();
    assert_int_equal(heap_held(), before);
}

/* Rank 1 of four is not among those who go on: their numbers are new ones, and the launcher's stay the old ones. */
static void test_server_answers__a_smaller_group_is_numbered_anew(void **state) {
    (void)state;
    static const int32_t members[] = { 2, 0, 3 };
    const tess__kv_terms terms = { .launcher = 1, .members = members, .world = 4 };
    static const char *const refusals[] = { "its rank 4 is not in 0 to 3 (RANK)", "its rank -1 is not in 0 to 3 (RANK)",
                                            "the others have gone on without it",
                                            "it belongs to a world of 3 ranks, here are 4 (WORLD_SIZE)",
                                            "rank 3 has joined already (two processes with the same RANK?)" };
    static const int ranks[] = { 4, -1, 1, 2, 3 };
    world w = { .fd = { -1, -1, -1 } };
    int32_t port = 0;
    assert_int_equal(tess__kv_server_start(place(), &port, 3, &terms, &w.server), TESS_OK);
    w.fd[2] = connect_here();
    say_hello(w.fd[2], 3, "4", "");
    expect_answer(&w, 2, TESS__WIRE_WELCOME, 0, 2, "3", 1);
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        world x = { .fd = { connect_here() } };
        say_hello(x.fd[0], ranks[i], i == 3 ? "3" : "4", "");
        expect_answer(&x, 0, TESS__WIRE_REFUSED, 0, TESS_E_INVALID, refusals[i], (uint32_t)strlen(refusals[i]));
        close(x.fd[0]);
        tess__inbox_clear(&x.box[0]);
    }
    w.fd[0] = connect_here();
    say_hello(w.fd[0], 2, "4", "");
    expect_answer(&w, 0, TESS__WIRE_WELCOME, 0, 0, "3", 1);
    assert_true(tess__kv_server_joined(w.server, 2) && tess__kv_server_joined(w.server, 3));
    assert_false(tess__kv_server_joined(w.server, 0) || tess__kv_server_joined(w.server, 1));
    tess__kv_server_rank_ended(w.server, 1, 0, "killed"); /* who is not of the group is no news */
    tess__kv_server_rank_ended(w.server, 3, 0, "killed");
    expect_answer(&w, 0, TESS__WIRE_LOST, 0, 2, "rank 2 was lost: killed", 23);
    assert_int_equal(tess__kv_server_culprit(w.server), 3);
    close_world(&w);
}

static void test_server_answers__a_store_counts_what_it_holds(void **state) {
    (void)state;
    static char value[4 << 20];
    const char *why;
    char key[16], long_key[258];
    tess__kv_store *store = tess__kv_store_create();
    memset(long_key, 'k', 256);
    long_key[256] = 0;
    assert_int_equal(tess__kv_store_set(store, long_key, "", 0, &why), TESS_E_INVALID);
    long_key[255] = 0;
    assert_int_equal(tess__kv_store_set(store, long_key, "", 0, &why), TESS_OK);
    for (int turn = 0; turn < 2; turn++) { /* what is dropped makes room again */
        for (int i = 0; i < 64; i++) {
            snprintf(key, sizeof key, "%d", i);
            assert_int_equal(tess__kv_store_set(store, key, value, sizeof value, &why), TESS_OK);
        }
        assert_int_equal(tess__kv_store_set(store, "one more", value, 1, &why), TESS_E_NOMEM);
        assert_string_equal(why, "the key-value store is full");
        assert_null(tess__kv_store_get(store, "one more"));
        assert_int_equal(tess__kv_store_set(store, "0", value, sizeof value, &why), TESS_OK); /* in its own place */
        assert_int_equal(tess__kv_store_set(store, "0", value, 7, &why), TESS_OK);
        assert_int_equal(tess__kv_store_get(store, "0")->bytes, 7);
        assert_int_equal(tess__kv_store_set(store, "one more", value, sizeof value - 7, &why), TESS_OK);
        assert_int_equal(tess__kv_store_set(store, "another", value, 1, &why), TESS_E_NOMEM);
        for (int i = 0; i < 64; i++) {
            snprintf(key, sizeof key, "%d", i);
            tess__kv_store_drop(store, key);
            assert_null(tess__kv_store_get(store, key));
        }
        tess__kv_store_drop(store, "one more");
        tess__kv_store_drop(store, "never there");
    }
    assert_int_equal(tess__kv_store_set(store, "k", value, sizeof value + 1, &why), TESS_E_INVALID);
    assert_string_equal(why, "the value is larger than 4 MiB");
    tess__kv_store_destroy(store);
    tess__kv_store_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_server_answers__sets_answer_the_gets_that_wait),
        cmocka_unit_test(test_server_answers__each_gets_all_in_the_order_of_ranks),
        cmocka_unit_test(test_server_answers__what_cannot_complete_is_said_to_all_who_wait),
        cmocka_unit_test(test_server_answers__some_ranks_exchange_in_their_order_and_wait_for_no_other),
        cmocka_unit_test(test_server_answers__a_list_of_ranks_fits_its_message),
        cmocka_unit_test(test_server_answers__all_ranks_together_have_64_mib),
        cmocka_unit_test(test_server_answers__who_said_goodbye_is_not_waited_for),
        cmocka_unit_test(test_server_answers__what_the_launcher_asks_is_answered),
        cmocka_unit_test(test_server_answers__only_so_many_sizes_fit),
        cmocka_unit_test(test_server_answers__a_server_gives_back_what_it_held),
        cmocka_unit_test(test_server_answers__a_smaller_group_is_numbered_anew),
        cmocka_unit_test(test_server_answers__a_store_counts_what_it_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

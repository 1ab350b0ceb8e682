/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank's end of the control plane alone: its thread's turns, what it says and tells, and the order in which it opens,
 * says goodbye, stays and closes. All that it calls is written down. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "core/base/thread.h"
#include "core/control/control_state.h"
#include "control_calls.h"

typedef struct { /* a turn of the thread */
    short wake, events;
    int read, next, flush; /* what the inbox and the outbox say */
    int64_t after_ns;      /* the clock moves so far before it */
} turn;
enum { READY = 1, REFUSED, CAUSE, LATE, HEARD, GONE, IDLE };
static struct {
    turn turns[8];
    int n_turns, at, tells;
    int waits[8], n_waits; /* what happens in each wait */
    int64_t now_ns, deadline_ns;
    int signal, on_thread;
    int32_t told_rank;
    char told[TESS__WIRE_TEXT_MAX], doing[256];
} world;
static tess__control c, *opened;
static atomic_uchar departed[4];

static int take_turn(struct pollfd *fds, nfds_t n, int ms) {
    tess__control *own = opened ? opened : &c;
    assert_int_equal(n, 2);
    assert_true(fds[0].fd == own->wake_fd && fds[0].events == POLLIN);
    assert_true(fds[1].fd == (own->connected ? own->link.fd : -1));
    assert_int_equal(ms, own->connected ? TESS__KV_TICK_MS : -1);
    own->stop = world.at + 1 == world.n_turns; /* it ends with this one */
    const turn *now = &world.turns[world.at++];
    fds[0].revents = now->wake;
    fds[1].revents = now->events;
    world.now_ns += now->after_ns;
    say("| ");
    return (now->wake != 0) + (now->events != 0);
}
static int inbox_read(void) {
    return note("read", world.turns[world.at - 1].read);
}
static int inbox_next(size_t limit) {
    assert_int_equal(limit, (64 << 20) + 1024);
    return world.at ? world.turns[world.at - 1].next : 0;
}
static int flush(void) {
    return note("flush", world.turns[world.at - 1].flush);
}
static int push(uint32_t type, uint32_t id, int32_t arg) {
    return type == TESS__WIRE_GOODBYE ? note(arg ? "goodbye-and-stay" : "goodbye", 0)
           : type == TESS__WIRE_BACK  ? note("back", 0)
           : type == TESS__WIRE_BEAT  ? note(id ? "beat-back" : "beat", 0)
                                      : note("push?", 0);
}
static int copy(const tess__message *m) {
    if (m->type == TESS__WIRE_DOING) {
        snprintf(world.doing, sizeof world.doing, "%.*s", (int)m->value_bytes, (const char *)m->value);
        return note("doing", 0);
    }
    assert_int_equal(m->type, TESS__WIRE_REPORT);
    return noted(&calls.fails, 1, "report %d %d %u '%.*s'", m->arg, (int)m->id, m->value_bytes, (int)m->value_bytes,
                 (const char *)m->value);
}
static int await(int64_t deadline_ns) {
    tess__control *own = opened ? opened : &c;
    assert_in_range(world.n_waits, 0, 7);
    world.deadline_ns = deadline_ns;
    const int what = world.waits[world.n_waits++];
    own->ready |= what == READY;
    own->goodbye_heard |= what == HEARD;
    own->connected &= what != GONE;
    if (what == REFUSED) {
        own->refused = TESS_E_VERSION;
        strcpy(own->refusal, "another version");
    }
    if (what == CAUSE)
        tess__control_set_cause(own, 1, "rank 1 was lost: why");
    return what == LATE;
}
static void *get_memory(size_t n, size_t size) {
    return fails(size == sizeof(tess__control) ? "control" : "departed") ? NULL : calloc(n, size);
}
static int make_eventfd(int flags) {
    assert_int_equal(flags, EFD_CLOEXEC | EFD_NONBLOCK);
    return note("eventfd", 5);
}
static tess_status connect_control(tess__control *control) {
    opened = control;
    control->link.fd = 6;
    return note("connect", 0) ? tess__fail(TESS_E_PEER, "nobody is there") : TESS_OK;
}
static int start(void *(*work)(void *), const tess__control *control) {
    assert_true(work && control == opened);
    return note("thread", 0) ? EAGAIN : 0;
}
static int control_process(int what, unsigned long arg) {
    if (what == PR_GET_PDEATHSIG)
        *(int *)(uintptr_t)arg = world.signal;
    else
        say(what == PR_SET_PDEATHSIG && !arg ? "outlive; " : "prctl?; ");
    return fails("prctl") ? -1 : 0;
}
static int broadcast(void) {
    return note("tell", 0);
}
#define tess__now_ns() (world.now_ns)
#define poll(fds, n, ms) take_turn(fds, n, ms)
#define read(fd, to, n) (*(to) = 0, note("wake-read", (int)(n)))
#define tess__inbox_read(in, link) inbox_read()
#define tess__inbox_next(box, limit, m) ((void)(m), inbox_next(limit))
#define tess__inbox_drop(box, m) ((void)0)
#define tess__outbox_push(out, type, id, arg, value) push(type, id, arg)
#define tess__outbox_copy(out, m) copy(m)
#define tess__outbox_flush(out, link) flush()
#define tess__control_wake(control) ((void)note("wake", 0))
#define tess__control_wait(control, deadline_ns) await(deadline_ns)
#define tess__link_close(link) ((void)note("close-link", 0))
#define tess__link_key_destroy(k) ((void)note((k) ? "free-key" : "no-key", 0))
#define tess__kv_server_stop(s) ((void)note((s) ? "stop-server" : "no-server", 0))
#define tess__kv_store_destroy(s) ((void)note((s) ? "free-store" : "no-store", 0))
#define tess__kv_server_linger(s, until) say("linger %d s; ", (int)(((until)-world.now_ns) / 1000000000))
#define tess__control_connect(control) connect_control(control)
#define tess__thread_start(thread, work, control) start(work, control)
#define tess__wire_own_address(fd, out, n) (*(out) = 0)
#define pthread_cond_broadcast(x) broadcast()
#define pthread_equal(a, b) (world.on_thread)
#define eventfd(n, flags) make_eventfd(flags)
#define close(fd) note((fd) == 5 ? "close-wake" : "close?", 0)
#define calloc(n, size) get_memory(n, size)
#define prctl(what, arg) control_process(what, (unsigned long)(arg))
#define setvbuf(file, buffer, how, n) note((how) == _IOLBF && (file) == stdout ? "lines" : "lines?", 0)
#include "core/control/control.c"
#undef calloc

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&c, 0, sizeof c);
    memset(departed, 0, sizeof departed);
    begin_calls(5 * SECOND_NS, 60 * SECOND_NS);
    opened = NULL;
    pthread_mutex_init(&c.lock, NULL);
    pthread_mutex_init(&c.calls, NULL);
    c.wake_fd = 5;
    c.link.fd = 6;
    c.world.rank = 2;
    c.world.nranks = 4;
    c.departed = departed;
    c.cause_rank = -1;
    c.connected = c.threaded = 1;
    world.now_ns = c.heard_ns = c.turn_ns = c.beat_ns = c.doing_ns = 100 * SECOND_NS;
    return 0;
}

static void is_unlocked(void) {
    assert_int_equal(pthread_mutex_trylock(&c.lock), 0);
    pthread_mutex_unlock(&c.lock);
    assert_int_equal(pthread_mutex_trylock(&c.calls), 0);
    pthread_mutex_unlock(&c.calls);
}

/* ---- turns of the thread ---- */

static void turns(int n, const char *want) {
    world.n_turns = n;
    world.at = 0;
    c.stop = n == 0;
    (void)control_work(&c);
    expect_said(want);
    is_unlocked();
}

static void test_rank_control__a_turn_sends_what_waits(void **state) {
    (void)state;
    turns(1, "| flush; "); /* the time of a turn is over */
    world.turns[0].wake = POLLIN;
    turns(1, "| wake-read; flush; ");
    turns(0, ""); /* and one that is to stop does nothing more */
}

static void test_rank_control__each_event_has_its_end(void **state) {
    static const short read_at[] = { POLLIN, POLLERR, POLLHUP, POLLIN | POLLOUT };
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        begin(NULL);
        world.turns[0].events = read_at[i];
        world.turns[0].read = 1;
        world.now_ns += 5;
        turns(1, "| read; flush; ");
        assert_true(c.heard_ns == world.now_ns); /* a sign of life */
        begin(NULL);
        world.turns[0].events = read_at[i]; /* nothing came after all */
        world.now_ns += 5;
        turns(1, "| read; flush; ");
        assert_true(c.heard_ns == world.now_ns - 5);
    }
    begin(NULL);
    world.turns[0].events = POLLOUT;
    turns(1, "| flush; ");
    world.turns[0].flush = -1; /* its end shows in the next turn, behind its last words */
    turns(1, "| flush; clear-out; ");
    c.goodbye_sent = 1;
    world.turns[0].flush = 0;
    turns(1, "| flush; tell; ");
    begin(NULL);
    world.turns[0].events = POLLIN;
    world.turns[0].read = -1;
    world.turns[1].wake = POLLIN; /* from then on only a wake-up is waited for */
    turns(2, "| read; tell; | wake-read; ");
    assert_string_equal(c.cause_text, "rank 0 was lost: its connection closed without goodbye (killed?)");
    begin(NULL);
    world.turns[0].events = POLLIN;
    world.turns[0].read = 1;
    world.turns[0].next = -1;
    turns(1, "| read; tell; ");
    assert_string_equal(c.cause_text, "rank 0 was lost: it sent what is no message");
}

static void test_rank_control__beats_keep_their_time(void **state) {
    static const struct {
        int64_t heartbeat_ns, every_ns;
    } cases[] = { { 0, SECOND_NS },
                  { 400000000, 100000000 },
                  { 4 * SECOND_NS - 4, SECOND_NS - 1 },
                  { 4 * SECOND_NS, SECOND_NS },
                  { 40 * SECOND_NS, SECOND_NS } };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(NULL);
        c.heartbeat_ns = cases[i].heartbeat_ns;
        publish_state(&c, world.now_ns + cases[i].every_ns - 1);
        expect_said("");
        publish_state(&c, world.now_ns + cases[i].every_ns);
        expect_said("beat; ");
        assert_true(c.beat_ns == world.now_ns + cases[i].every_ns);
        publish_state(&c, world.now_ns + 2 * cases[i].every_ns - 1);
        expect_said("");
    }
}

/* ---- what the rank does ---- */

static void test_rank_control__the_activity_is_published_when_it_has_changed(void **state) {
    char text[2 * TESS__KV_DOING_MAX];
    (void)state;
    for (size_t n = 0; n < sizeof text; n++) {
        begin(NULL);
        memset(text, 'a' + (int)(n % 26), n);
        text[n] = 0;
        strcpy(c.doing_sent, "x");
        memset(world.doing, '.', sizeof world.doing);
        tess__control_doing(&c, text);
        assert_true(c.doing_turn % 2 == 0 && c.doing_turn > 0);
        publish_state(&c, world.now_ns + 94999999);
        expect_said("");
        world.now_ns += 95000000;
        publish_state(&c, world.now_ns);
        expect_said("doing; ");
        text[TESS__KV_DOING_MAX - 1] = 0; /* as much as there is room for */
        assert_string_equal(world.doing, text);
        assert_string_equal(c.doing_sent, text);
        assert_true(c.doing_ns == world.now_ns);
        publish_state(&c, world.now_ns + 95000000);
        expect_said("");
    }
    tess__control_doing(&c, "a long text that was there before");
    tess__control_doing(&c, "short");
    publish_doing(&c);
    assert_string_equal(world.doing, "short");
    tess__control_doing(&c, NULL);
    publish_doing(&c);
    assert_string_equal(world.doing, "");
    said_so_far[0] = 0;
    tess__control_doing(&c, "half wri");
    c.doing_turn++; /* is being written right now */
    publish_doing(&c);
    expect_said("");
    c.doing_turn++;
    publish_doing(&c);
    expect_said("doing; ");
}

/* ---- news ---- */

static void take_news(void *user, int32_t rank, const char *why) {
    assert_ptr_equal(user, &world.told);
    world.tells++;
    world.told_rank = rank;
    snprintf(world.told, sizeof world.told, "%s", why);
    assert_int_equal(pthread_mutex_trylock(&c.lock), 0); /* it may ask */
    pthread_mutex_unlock(&c.lock);
    assert_int_not_equal(pthread_mutex_trylock(&c.calls), 0); /* and no unregistration comes in between */
}

static void test_rank_control__a_loss_is_told_once(void **state) {
    (void)state;
    tess__control_on_lost(&c, take_news, world.told);
    expect_said("wake; ");
    turns(1, "| flush; ");
    assert_int_equal(world.tells, 0);
    tess__control_set_cause(&c, 3, "rank 3 was lost");
    tess__control_set_cause(&c, 1, "rank 1 was lost");
    assert_int_equal(tess__control_aborting(&c), 1);
    said_so_far[0] = 0;
    turns(2, "| flush; | flush; ");
    assert_true(world.tells == 1 && world.told_rank == 3);
    assert_string_equal(world.told, "rank 3 was lost");
    tess__control_on_lost(&c, take_news, world.told); /* who registers again has heard it */
    said_so_far[0] = 0;
    turns(1, "| flush; ");
    assert_int_equal(world.tells, 1);
    begin(NULL);
    tess__control_set_cause(&c, 3, "rank 3 was lost"); /* before anybody listens */
    c.threaded = 0;
    said_so_far[0] = 0;
    run_callback(&c);
    run_callback(&c);
    assert_int_equal(world.tells, 0);
    tess__control_on_lost(&c, take_news, world.told);
    expect_said(""); /* there is no thread to be woken */
    run_callback(&c);
    assert_int_equal(world.tells, 1);
    begin(NULL);
    c.has_cause = 1; /* no news: nothing is looked at */
    c.on_lost = take_news;
    run_callback(&c);
    assert_int_equal(world.tells, 0);
}

static void test_rank_control__the_cause_can_be_asked_for(void **state) {
    tess_error e;
    char text[TESS__WIRE_TEXT_MAX] = "x";
    (void)state;
    memset(&e, 0x5a, sizeof e);
    assert_int_equal(tess__control_cause(&c, &e), TESS_OK);
    assert_int_equal(e.code, 0x5a5a5a5a); /* written where there is one only */
    tess__control_cause_text(&c, text, sizeof text);
    assert_string_equal(text, "");
    assert_false(tess__control_was_lost(&c));
    tess__control_set_cause(&c, 3, "rank 3 was lost: why");
    assert_int_equal(tess__control_cause(&c, NULL), TESS_E_PEER);
    assert_int_equal(tess__control_cause(&c, &e), TESS_E_PEER);
    assert_true(e.code == TESS_E_PEER && e.native == 0 && e.rank == 3);
    assert_string_equal(e.message, "rank 3 was lost: why");
    tess__control_cause_text(&c, text, sizeof text);
    assert_string_equal(text, "rank 3 was lost: why");
    static const struct {
        int32_t rank;
        const char *text;
        int lost;
    } cases[] = { { 3, "rank 3 was lost", 1 }, { 0, "rank 0 was lost: why", 1 },  { 3, "rank 3 failed: why", 0 },
                  { 3, "rank 3 was here", 0 }, { -1, "rank 3 was lost: why", 0 }, { 3, "the launcher was lost", 0 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        c.cause_rank = cases[i].rank;
        strcpy(c.cause_text, cases[i].text);
        assert_int_equal(tess__control_was_lost(&c), cases[i].lost);
        is_unlocked();
    }
    c.has_cause = 0;
    c.cause_rank = 3;
    strcpy(c.cause_text, "rank 3 was lost");
    assert_false(tess__control_was_lost(&c));
    departed[3] = departed[0] = 1;
    for (int32_t r = -1; r < 5; r++)
        assert_int_equal(tess__control_departed(&c, r), r == 0 || r == 3);
    assert_null(tess__control_address(&c));
    strcpy(c.address, "192.0.2.1");
    assert_ptr_equal(tess__control_address(&c), c.address);
    int32_t rank = -1, n = -1;
    tess__control_place(&c, &rank, &n);
    assert_true(rank == 2 && n == 4);
}

/* ---- reports ---- */

static void test_rank_control__a_report_waits_for_the_first_cause(void **state) {
    (void)state;
    c.heartbeat_ns = 3 * SECOND_NS;
    tess__control_doing(&c, "a step");
    world.waits[0] = IDLE;
    world.waits[1] = CAUSE;
    tess__control_report(&c, TESS_E_DEVICE, 1, "it broke");
    char want[128];
    snprintf(want, sizeof want, "doing; report %d 2 8 'it broke'; wake; ", TESS_E_DEVICE);
    expect_said(want);
    assert_string_equal(world.doing, "a step");
    assert_true(world.n_waits == 2 && world.deadline_ns == world.now_ns + 7 * SECOND_NS);
    tess__control_report(&c, TESS_E_DEVICE, 1, "it broke"); /* there is one already */
    expect_said("");
    assert_int_equal(world.n_waits, 2);
    begin(NULL);
    world.waits[0] = LATE; /* nobody answers */
    tess__control_report(&c, TESS_E_DEVICE, -1, "it broke");
    snprintf(want, sizeof want, "report %d 0 8 'it broke'; wake; ", TESS_E_DEVICE);
    expect_said(want);
    assert_int_equal(world.n_waits, 1);
    begin(NULL);
    world.on_thread = 1; /* which must not wait for itself */
    tess__control_report(&c, TESS_E_DEVICE, -1, "it broke");
    expect_said(want);
    assert_int_equal(world.n_waits, 0);
    begin(NULL);
    calls.fails = "report";
    world.waits[0] = LATE;
    tess__control_report(&c, TESS_E_DEVICE, -1, "it broke");
    assert_null(strstr(said_so_far, "wake"));
    is_unlocked();
    static char text[2 * TESS__WIRE_TEXT_MAX];
    memset(text, 'x', sizeof text - 1);
    begin(NULL);
    world.waits[0] = LATE;
    tess__control_report(&c, TESS_E_DEVICE, -1, text);
    assert_non_null(strstr(said_so_far, " 0 511 'xxx"));
    for (int i = 0; i < 2; i++) { /* a rank without a server decides itself */
        begin(NULL);
        *(i ? &c.threaded : &c.connected) = 0;
        tess__control_report(&c, TESS_E_DEVICE, 1, i ? text : "it broke");
        expect_said("");
        assert_true(c.has_cause && c.cause_rank == 2 && world.n_waits == 0);
        assert_int_equal(strlen(c.cause_text), i ? strlen("rank 2 failed: ") + 480 : strlen("rank 2 failed: it broke"));
        assert_int_equal(strncmp(c.cause_text, "rank 2 failed: ", 15), 0);
        tess__control_report(&c, TESS_E_DEVICE, 1, "another");
        assert_null(strstr(c.cause_text, "another"));
    }
}

/* ---- goodbye ---- */

static void test_rank_control__who_stays_may_come_back(void **state) {
    (void)state;
    world.waits[0] = IDLE;
    world.waits[1] = HEARD;
    assert_int_equal(tess__control_park(&c), TESS_OK);
    expect_said("goodbye-and-stay; wake; ");
    assert_true(c.goodbye_sent && world.n_waits == 2 && world.deadline_ns == world.now_ns + SECOND_NS);
    assert_int_equal(tess__control_return(&c), TESS_OK);
    expect_said("back; wake; ");
    assert_true(!c.goodbye_sent && !c.goodbye_heard);
    c.server = (void *)&world;
    world.n_waits = 0;
    assert_int_equal(tess__control_park(&c), TESS_OK);
    expect_said("goodbye-and-stay; wake; linger 5 s; ");
    is_unlocked();
    static const int ends[] = { LATE, GONE };
    for (int i = 0; i < 2; i++) { /* nobody heard it */
        begin(NULL);
        c.server = (void *)&world;
        world.waits[0] = ends[i];
        assert_int_equal(tess__control_park(&c), TESS_E_PEER);
        expect_said("goodbye-and-stay; wake; ");
        assert_int_equal(world.n_waits, 1);
        is_unlocked();
    }
    begin(NULL);
    calls.fails = "goodbye-and-stay";
    assert_int_equal(tess__control_park(&c), TESS_E_PEER);
    assert_true(!c.goodbye_sent && world.n_waits == 0);
    begin(NULL);
    c.threaded = 0; /* one rank has nothing to park */
    assert_int_equal(tess__control_park(&c), TESS_E_UNSUPPORTED);
    for (int i = 0; i < 3; i++) {
        begin(NULL);
        c.goodbye_sent = c.goodbye_heard = 1;
        c.connected = i != 0;
        c.has_cause = i == 1;
        calls.fails = i == 2 ? "back" : NULL;
        assert_int_equal(tess__control_return(&c), TESS_E_PEER);
        expect_said(i == 2 ? "back; " : "");
        assert_true(c.goodbye_sent && c.goodbye_heard);
        is_unlocked();
    }
    begin(NULL); /* a loss is no time for goodbyes, and who hears of one while it waits has not parked */
    c.has_cause = 1;
    assert_int_equal(tess__control_park(&c), TESS_E_PEER);
    expect_said("");
    begin(NULL);
    c.goodbye_heard = 1;
    c.has_cause = 1;
    assert_int_equal(tess__control_park(&c), TESS_E_PEER);
}

/* ---- open and close ---- */

static const tess__world ranks = { .rank = 2, .nranks = 4, .address = "10.0.0.1", .port = 29500 };
#define GIVEN_BACK(store, server) "close-link; no-key; close-wake; clear-out; clear-in; " server store
#define ENDED "close-link; " GIVEN_BACK("no-store; ", "no-server; ")

static void opens(const tess__world *w, tess_status want, const char *said) {
    tess__control *out = (void *)&world;
    said_so_far[0] = 0;
    opened = NULL;
    world.n_waits = 0;
    assert_int_equal(tess__control_open(w, &out), want);
    expect_said(said);
    if (want) {
        assert_ptr_equal(out, &world); /* outputs are written on success only */
        return;
    }
    assert_true(out->connected == (out->store == NULL) && out->cause_rank == -1);
    assert_int_equal(out->world.rank, w->rank);
    if (out->threaded)
        assert_true(out->heard_ns == world.now_ns && out->turn_ns == world.now_ns && out->beat_ns == world.now_ns);
    tess__control_close(out, 0);
}

#define OPENED "eventfd; heartbeat; rendezvous-timeout; connect; thread; "

static void test_rank_control__opening_ends_when_all_are_there(void **state) {
    (void)state;
    world.waits[0] = IDLE;
    world.waits[1] = READY;
    opens(&ranks, TESS_OK, OPENED);
    expect_said("wake; join; " ENDED);
    assert_true(world.n_waits == 2 && world.deadline_ns == world.now_ns + 65 * SECOND_NS);
    tess__world launched = ranks;
    launched.launched = 1;
    launched.nranks = 1;
    launched.rank = 0;
    opens(&launched, TESS_OK, "eventfd; lines; heartbeat; rendezvous-timeout; connect; thread; ");
    world.signal = SIGTERM; /* `tessera run` has it terminated, and it can say itself why */
    opens(&launched, TESS_OK, "eventfd; lines; outlive; heartbeat; rendezvous-timeout; connect; thread; ");
    world.signal = SIGKILL;
    opens(&launched, TESS_OK, "eventfd; lines; heartbeat; rendezvous-timeout; connect; thread; ");
    world.signal = SIGTERM;
    calls.fails = "prctl";
    opens(&launched, TESS_OK, "eventfd; lines; heartbeat; rendezvous-timeout; connect; thread; ");
    calls.fails = NULL;
    tess__world alone = { .nranks = 1 };
    opens(&alone, TESS_OK, "eventfd; ");
    expect_said("close-link; " GIVEN_BACK("free-store; ", "no-server; "));
}

static void test_rank_control__what_ends_an_opening_is_its_failure(void **state) {
    (void)state;
    world.waits[0] = REFUSED;
    opens(&ranks, TESS_E_VERSION, OPENED "wake; join; " ENDED);
    assert_string_equal(tess_last_error(), "another version");
    world.waits[0] = CAUSE;
    opens(&ranks, TESS_E_PEER, OPENED "wake; join; " ENDED);
    assert_string_equal(tess_last_error(), "rank 1 was lost: why");
    world.waits[0] = LATE;
    opens(&ranks, TESS_E_TIMEOUT, OPENED "wake; join; " ENDED);
    assert_string_equal(tess_last_error(),
                        "the key-value server at 10.0.0.1 port 29500 has not gathered 4 ranks within 65 s");
    static const struct {
        const char *fails, *said;
        tess_status status;
        const char *text;
    } cases[] = {
        { "heartbeat", "eventfd; heartbeat; " ENDED, TESS_E_DEVICE, "heartbeat failed" },
        { "rendezvous-timeout", "eventfd; heartbeat; rendezvous-timeout; " ENDED, TESS_E_DEVICE,
          "rendezvous-timeout failed" },
        { "connect", "eventfd; heartbeat; rendezvous-timeout; connect; " ENDED, TESS_E_PEER, "nobody is there" },
        { "control", "", TESS_E_NOMEM, "no memory for the control plane of 4 ranks" },
        { "departed", "eventfd; " GIVEN_BACK("no-store; ", "no-server; "), TESS_E_NOMEM,
          "no memory for the control plane of 4 ranks" },
        { "eventfd", "eventfd; close-link; no-key; clear-out; clear-in; no-server; no-store; ", TESS_E_NOMEM,
          "no memory for the control plane of 4 ranks" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        calls.fails = cases[i].fails;
        opens(&ranks, cases[i].status, cases[i].said);
        assert_string_equal(tess_last_error(), cases[i].text);
    }
    char want[160];
    snprintf(want, sizeof want, "cannot start the control plane's thread: %s", strerror(EAGAIN));
    calls.fails = "thread";
    opens(&ranks, TESS_E_SYSTEM, OPENED ENDED);
    assert_string_equal(tess_last_error(), want);
    calls.fails = "store";
    opens(&(tess__world){ .nranks = 1 }, TESS_E_NOMEM, "eventfd; " GIVEN_BACK("no-store; ", "no-server; "));
    calls.fails = NULL;
    static const int32_t bad[][2] = { { 0, 0 }, { -1, 4 }, { 4, 4 }, { 0, -1 } };
    for (int i = 0; i < 4; i++) {
        opens(&(tess__world){ .rank = bad[i][0], .nranks = bad[i][1] }, TESS_E_INVALID, "");
        snprintf(want, sizeof want, "rank %d of %d ranks cannot be", bad[i][0], bad[i][1]);
        assert_string_equal(tess_last_error(), want);
    }
}

static tess__control *open_one(void) {
    tess__control *out = NULL;
    begin(NULL);
    world.waits[0] = READY;
    assert_int_equal(tess__control_open(&ranks, &out), TESS_OK);
    said_so_far[0] = 0;
    world.n_waits = 0;
    return out;
}

static void test_rank_control__who_closes_in_order_says_goodbye(void **state) {
    (void)state;
    tess__control *own = open_one();
    world.waits[0] = HEARD;
    tess__control_close(own, 1);
    expect_said("goodbye; wake; wake; join; " ENDED);
    own = open_one();
    own->server = (void *)&world; /* the others' goodbyes are waited for; less long where there will be none */
    own->key = (void *)&world;
    world.waits[0] = HEARD;
    tess__control_close(own, 1);
    expect_said("goodbye; wake; wake; join; close-link; linger 5 s; close-link; free-key; close-wake; clear-out; "
                "clear-in; stop-server; no-store; ");
    own = open_one();
    own->server = (void *)&world;
    tess__control_close(own, 0);
    expect_said("wake; join; close-link; linger 1 s; " GIVEN_BACK("no-store; ", "stop-server; "));
    own = open_one();
    own->connected = 0; /* to whom? */
    tess__control_close(own, 1);
    expect_said("wake; join; " ENDED);
    tess__control_close(NULL, 1);
    expect_said("");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_rank_control__a_turn_sends_what_waits, begin),
        cmocka_unit_test_setup(test_rank_control__each_event_has_its_end, begin),
        cmocka_unit_test_setup(test_rank_control__beats_keep_their_time, begin),
        cmocka_unit_test_setup(test_rank_control__the_activity_is_published_when_it_has_changed, begin),
        cmocka_unit_test_setup(test_rank_control__a_loss_is_told_once, begin),
        cmocka_unit_test_setup(test_rank_control__the_cause_can_be_asked_for, begin),
        cmocka_unit_test_setup(test_rank_control__a_report_waits_for_the_first_cause, begin),
        cmocka_unit_test_setup(test_rank_control__who_stays_may_come_back, begin),
        cmocka_unit_test_setup(test_rank_control__opening_ends_when_all_are_there, begin),
        cmocka_unit_test_setup(test_rank_control__what_ends_an_opening_is_its_failure, begin),
        cmocka_unit_test_setup(test_rank_control__who_closes_in_order_says_goodbye, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

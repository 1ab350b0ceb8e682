/* SPDX-License-Identifier: BSD-3-Clause */
// Meshes of several ranks in one process: messages, goodbyes, what a rank hears when another one ends, and silence.
// The test says when the kernel last heard of a host, and how late it is.
#include "gloo_ranks.h"
#include "plugins/comm-gloo/operations.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>

extern "C" {
#include <cmocka.h> // last: it defines "fail"
}

using namespace tess_gloo;

// ---- the kernel's word, and the clock ----------------------------------------------------------------

static std::atomic<int> silent_port{ 0 };          // the rank that listens there …
static std::atomic<int> ack_ms{ 0 }, data_ms{ 0 }; // … was last heard of so long ago
static std::atomic<int64_t> late_ns{ 0 }, period_ns{ 0 };
enum class Timer { kUsual, kRefused, kOther, kZero }; // kOther: a descriptor that is no timer; kZero: it has number 0
static Timer timer;

extern "C" {
int __real_getsockopt(int, int, int, void *, socklen_t *);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes) {
    const int s = __real_getsockopt(fd, level, name, value, bytes);
    if (s != 0 || level != IPPROTO_TCP || name != TCP_INFO)
        return s;
    auto *info = static_cast<struct tcp_info *>(value);
    struct sockaddr_in peer {};
    socklen_t size = sizeof peer;
    getpeername(fd, reinterpret_cast<struct sockaddr *>(&peer), &size);
    const bool silent = ntohs(peer.sin_port) == silent_port;
    info->tcpi_last_ack_recv = silent ? ack_ms.load() : 0;
    info->tcpi_last_data_recv = silent ? data_ms.load() : 0;
    return s;
}
int __real_timerfd_create(int, int);
int __wrap_timerfd_create(int clock, int flags) {
    if (timer == Timer::kRefused) {
        errno = EMFILE;
        return -1;
    }
    if (timer == Timer::kOther)
        return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const int fd = __real_timerfd_create(clock, flags);
    if (timer != Timer::kZero)
        return fd;
    dup2(fd, 0);
    close(fd);
    return 0;
}
int __real_timerfd_settime(int, int, const struct itimerspec *, struct itimerspec *);
int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *every, struct itimerspec *before) {
    const bool same = memcmp(&every->it_interval, &every->it_value, sizeof every->it_value) == 0;
    period_ns = same && flags == 0 ? every->it_value.tv_sec * INT64_C(1000000000) + every->it_value.tv_nsec : -1;
    return __real_timerfd_settime(fd, flags, every, before);
}
int64_t __real_kit_now_ns(void);
int64_t __wrap_kit_now_ns(void) {
    return __real_kit_now_ns() + late_ns;
}
}

static void fall_silent(const Card &card, int last_ack_ms, int last_data_ms) {
    ack_ms = last_ack_ms, data_ms = last_data_ms;
    silent_port = ntohs(reinterpret_cast<const struct sockaddr_in &>(card.address).sin_port);
}

namespace {

void assert_met(const Group &group) {
    assert_string_equal(group.failure().c_str(), "");
}

void assert_failed(const Failure &f, tess_status code, int rank, const char *message) {
    if (f.code != code || f.rank != rank || std::string(f.message).find(message) != 0)
        fail_msg("status %d, rank %d: %s", f.code, f.rank, f.message);
}

// ---- messages ---------------------------------------------------------------------------------------

Header header_of(int from, int to, uint64_t turn) {
    return kit_announce_own(KIT_OP_FINALIZE, static_cast<uint64_t>(100 * from + to), turn);
}

void send_header(Group &group, int from, int to, uint64_t turn) {
    Message &m = group[from].outgoing(to);
    m.header = header_of(from, to, turn);
    memset(m.payload, 16 * from + to + 1, sizeof m.payload);
    group[from].send_header(to, turn == 0 ? 3 : 0);
}

// A payload has the bytes that were sent with it, and no more; every second turn is in the same place.
void assert_heard(Group &group, int at, int from, uint64_t turn) {
    group[at].await_header(from);
    const Message &m = group[at].incoming(from);
    const Header wanted = header_of(from, at, turn);
    assert_memory_equal(&m.header, &wanted, sizeof wanted);
    const unsigned char byte = static_cast<unsigned char>(16 * from + at + 1);
    for (int i = 0; i < 4; i++)
        assert_int_equal(m.payload[i], turn % 2 == 0 && i < 3 ? byte : 0);
}

void test_gloo_mesh__headers_come_to_whom_they_were_sent(void **) {
    Group group(3);
    assert_met(group);
    for (uint64_t turn = 0; turn < 4; turn++) {
        for (int from = 0; from < 3; from++)
            for (int to = 0; to < 3; to++)
                if (to != from)
                    send_header(group, from, to, turn);
        for (int at = 0; at < 3; at++) {
            for (int from = 2; from >= 0; from--)
                if (from != at)
                    assert_heard(group, at, from, turn);
            group[at].wait_sends(kHeaderSlot);
            group[at].release_headers();
        }
    }
}

// On one slot in order; slots do not wait for each other.
void test_gloo_mesh__data_comes_in_order(void **) {
    Group group(2);
    assert_met(group);
    std::vector<int> sent(3000, 7), got(3000, 0), other_sent(10, 9), other_got(10, 0);
    sent[1000] = 8;
    Call receiving([&] {
        group[1].post_recv(kOtherDataSlot, 0, other_got.data(), 40);
        group[1].post_recv(kDataSlot, 0, got.data(), 4000);
        group[1].post_recv(kDataSlot, 0, got.data() + 1000, 8000);
        group[1].wait_recv(kDataSlot, 0);
        group[1].wait_recv(kDataSlot, 0);
        group[1].wait_recv(kOtherDataSlot, 0);
    });
    group[0].post_send(kDataSlot, 1, sent.data(), 4000);
    group[0].post_send(kDataSlot, 1, sent.data() + 1000, 8000);
    group[0].post_send(kOtherDataSlot, 1, other_sent.data(), 40);
    group[0].wait_sends(kDataSlot);
    group[0].wait_sends(kOtherDataSlot);
    assert_failed(receiving.join(), TESS_OK, -1, "");
    assert_true(sent == got);
    assert_true(other_sent == other_got);
}

// Each waits for all; then the connections may close in any order.
void test_gloo_mesh__goodbyes_are_waited_for(void **) {
    Group group(3);
    assert_met(group);
    group[0].send_byes();
    group[1].send_byes();
    Call leaving([&] { group[0].await_byes(); });
    pause_ms(30);
    assert_false(leaving.ended());
    group[2].send_byes();
    assert_failed(leaving.join(), TESS_OK, -1, "");
    group.end(0);
    for (int r = 1; r < 3; r++)
        assert_failed(failure_in([&] { group[r].await_byes(); }), TESS_OK, -1, "");
}

// ---- waking -------------------------------------------------------------------------------------------

void test_gloo_mesh__a_stop_ends_every_wait(void **) {
    static const std::function<void(Mesh &)> waits[] = {
        [](Mesh &mesh) { mesh.await_header(1); },
        [](Mesh &mesh) { mesh.await_byes(); },
        [](Mesh &mesh) {
            mesh.post_send(kDataSlot, 1, &mesh, 1); // which nobody receives
            mesh.wait_sends(kDataSlot);
        },
    };
    for (const auto &wait : waits) {
        Group group(2);
        assert_met(group);
        Call waiting([&] { wait(group[0]); });
        for (int i = 0; i < 3; i++) { // a wake alone ends none
            pause_ms(10);
            assert_false(waiting.ended());
            group[0].wake();
        }
        group.stop(0);
        assert_true(becomes([&] { // it may be between its look and its wait
            group[0].wake();
            return waiting.ended();
        }));
        assert_failed(waiting.join(), TESS_E_ABORTED, -1, "stopped");
        assert_failed(failure_in([&] { wait(group[0]); }), TESS_E_ABORTED, -1, "stopped");
    }
}

void test_gloo_mesh__who_watches_is_woken(void **) {
    Group group(2);
    assert_met(group);
    Call watching([&] { group[0].watch(); });
    pause_ms(20);
    assert_false(watching.ended());
    group[0].wake();
    assert_true(becomes([&] { return watching.ended(); }));
}

// ---- ends ---------------------------------------------------------------------------------------------

void test_gloo_mesh__who_has_ended_is_named(void **) {
    Group group(3);
    assert_met(group);
    for (int r = 0; r < 3; r++)
        assert_int_equal(group[r].dead_peer(), -1);
    Call watching([&] { group[0].watch(); }), awaiting([&] { group[0].await_header(2); });
    assert_true(becomes([&] { return group[0].waiting_for() == 2; }));
    pause_ms(20);
    assert_false(watching.ended() || awaiting.ended());
    group.end(2);
    assert_true(becomes([&] { return watching.ended(); }));
    assert_failed(awaiting.join(), TESS_E_PEER, 2, "connection to rank 2 lost: ");
    assert_true(becomes([&] { return group[1].dead_peer() == 2; }));
    assert_int_equal(group[0].dead_peer(), 2);
    assert_failed(group[0].why(-1, "it closed"), TESS_E_PEER, 2, "connection to rank 2 lost: it closed");
    assert_failed(group[0].why(1, "it closed"), TESS_E_PEER, 1, "connection to rank 1 lost: it closed");
    assert_failed(group[1].why(0, "it closed"), TESS_E_PEER, 0, "connection to rank 0 lost: it closed");
    char byte = 0;
    assert_failed(failure_in([&] { group[0].post_send(kDataSlot, 2, &byte, 1); }), TESS_E_PEER, 2,
                  "connection to rank 2 lost: ");
    assert_failed(failure_in([&] { group[0].post_recv(kDataSlot, 2, &byte, 1); }), TESS_E_PEER, 2,
                  "connection to rank 2 lost: ");
    send_header(group, 1, 0, 0); // the others go on
    assert_heard(group, 0, 1, 0);
}

// Who was stopped does not blame the other, whose end may be the stop's echo.
void test_gloo_mesh__an_end_behind_a_stop_is_nobodys_fault(void **) {
    Group group(2);
    assert_met(group);
    Call awaiting([&] { group[0].await_header(1); });
    pause_ms(20);
    assert_false(awaiting.ended());
    group.stop(0);
    group.end(1);
    assert_failed(awaiting.join(), TESS_E_ABORTED, -1, "stopped");
}

void test_gloo_mesh__pairs_close_for_the_others_when_their_sockets_are_released(void **) {
    for (int closing = 0; closing < 3; closing++) {
        Group group(3);
        assert_met(group);
        group[closing].close_pairs();
        pause_ms(30);
        for (int r = 0; r < 3; r++)
            assert_int_equal(group[r].dead_peer(), -1);
        group[closing].release_sockets();
        for (int r = 0; r < 3; r++)
            if (r != closing)
                assert_true(becomes([&] { return group[r].dead_peer() == closing; }));
    }
}

void test_gloo_mesh__without_a_connection_nothing_closes(void **) {
    auto store = std::make_shared<Host::Store>();
    Rank rank(store, 0, 2, {});
    rank.mesh->close_pairs();
    rank.mesh->release_sockets();
    rank.mesh->wake();
    assert_int_equal(rank.mesh->dead_peer(), -1);
    assert_int_equal(rank.mesh->waiting_for(), -1);
}

// ---- headers behind an end ----------------------------------------------------------------------------

void test_gloo_mesh__a_header_is_heard_behind_its_ranks_end(void **) {
    Group group(3);
    assert_met(group);
    send_header(group, 1, 0, 0);
    group[1].wait_sends(kHeaderSlot);
    group.end(1);
    assert_true(becomes([&] { return group[0].dead_peer() == 1; }));
    assert_true(group[0].header_came(1));
    assert_false(group[0].header_came(1)); // there was one
    std::atomic<int> came{ -1 };
    Call hearing([&] { came = group[0].header_came(2); });
    for (int i = 0; i < 3; i++) {
        pause_ms(10);
        group[0].wake(); // a wake alone does not end it
    }
    assert_int_equal(came, -1);
    group[0].lose_patience();
    assert_true(becomes([&] { return hearing.ended(); }));
    assert_int_equal(came, 0);
    send_header(group, 2, 0, 0);
    assert_false(group[0].header_came(2));
}

tess_collective barrier(uint64_t tag) {
    tess_collective c{};
    c.struct_size = sizeof c, c.op = TESS_BARRIER, c.scale = 1, c.tag = tag;
    return c;
}

void announce_barrier(Group &group, int from, uint64_t tag) {
    const tess_collective c = barrier(tag);
    group[from].outgoing(0).header = kit_announce(&c, 1, 0);
    group[from].send_header(0, 0);
}

// Rank 0 of four is in a barrier, has heard ranks 1 and 3 and waits for rank 2, where rank 3 has ended: it is stopped,
// and looks for a better reason.
Failure reason(uint64_t tag_1, uint64_t tag_3, const std::function<void(Group &)> &then) {
    Group group(4);
    assert_met(group);
    Operations operations(&group[0], 0, 4, [] { return nullptr; });
    announce_barrier(group, 1, tag_1);
    announce_barrier(group, 3, tag_3);
    const tess_collective mine = barrier(5);
    Call running([&] { operations.run(mine, 0); });
    group[3].await_header(0);
    group[3].wait_sends(kHeaderSlot);
    group.end(3);
    while (group[0].dead_peer() != 3)
        pause_ms(1);
    pause_ms(20);
    assert_false(running.ended());
    group.stop(0);
    group[0].wake();
    then(group);
    if (!becomes([&] { return running.ended(); })) {
        group[0].lose_patience();
        running.join();
        fail_msg("no reason was found");
    }
    return running.join();
}

void test_gloo_mesh__a_difference_explains_an_end(void **) {
    const auto nothing = [](Group &) {};
    const auto comes = [](uint64_t tag) { return [tag](Group &group) { announce_barrier(group, 2, tag); }; };
    const auto patience_ends = [](Group &group) { group[0].lose_patience(); };
    assert_failed(reason(5, 6, nothing), TESS_E_MISMATCH, 3, "gloo: ");
    assert_failed(reason(6, 6, nothing), TESS_E_MISMATCH, 1, "gloo: ");
    assert_failed(reason(5, 5, comes(6)), TESS_E_MISMATCH, 2, "gloo: ");
    assert_failed(reason(5, 5, comes(5)), TESS_E_ABORTED, -1, "stopped");
    assert_failed(reason(5, 5, patience_ends), TESS_E_ABORTED, -1, "stopped");
}

// ---- silence ------------------------------------------------------------------------------------------

struct Speaks { // again, when a test has ended
    ~Speaks() { silent_port = 0, late_ns = 0; }
};

double ms_since(int64_t begin_ns) {
    return static_cast<double>(__real_kit_now_ns() - begin_ns) * 1e-6;
}

void test_gloo_mesh__a_silent_host_is_named_for_all_that_ended_with_it(void **) {
    Speaks again;
    const int64_t begin_ns = __real_kit_now_ns();
    Group group(3, "0.2");
    assert_met(group);
    fall_silent(group.card_0(), 201, 10000);
    group[1].watch();
    if (ms_since(begin_ns) < 200)
        fail_msg("lost after %.3g ms", ms_since(begin_ns));
    const char *const said = "rank 0 cannot be reached: its host acknowledged nothing for 0.2 s";
    assert_true(becomes([&] { return group[1].why(-1, "it closed").code == TESS_E_PEER; }));
    assert_failed(group[1].why(-1, "it closed"), TESS_E_PEER, 0, said);
    assert_failed(group[1].why(2, "it closed"), TESS_E_PEER, 0, said);
    assert_failed(failure_in([&] { group[1].await_header(0); }), TESS_E_PEER, 0, said);
    // Rank 0 hears everybody, and then that both have closed.
    assert_true(becomes([&] { return group[0].dead_peer() == 1; }));
    assert_failed(group[0].why(-1, "it closed"), TESS_E_PEER, 1, "connection to rank 1 lost: it closed");
}

// What came last counts, whether data or an acknowledgement; the limit itself is no silence.
void test_gloo_mesh__who_was_heard_of_is_not_silent(void **) {
    Speaks again;
    static const int heard_ms[][2] = { { 200, 200 }, { 0, 10000 }, { 10000, 0 } };
    for (const auto &ms : heard_ms) {
        Group group(2, "0.2");
        assert_met(group);
        fall_silent(group.card_0(), ms[0], ms[1]);
        pause_ms(400);
        assert_int_equal(group[1].dead_peer(), -1);
        silent_port = 0;
    }
}

void test_gloo_mesh__without_a_limit_silence_lasts(void **) {
    Speaks again;
    Group group(2, "0");
    assert_met(group);
    fall_silent(group.card_0(), 100000, 100000);
    pause_ms(100);
    assert_int_equal(group[1].dead_peer(), -1);
}

void test_gloo_mesh__hosts_are_looked_at_eight_times_within_the_limit(void **) {
    static const struct {
        const char *heartbeat;
        int64_t ns;
    } rows[] = { { "0.2", 25000000 }, { "20", INT64_C(2500000000) }, { "72000", INT64_C(9000000000000) } };
    for (const auto &row : rows) {
        Group group(2, row.heartbeat);
        assert_met(group);
        assert_int_equal(period_ns, row.ns);
    }
}

void test_gloo_mesh__a_timer_that_is_refused_is_named(void **) {
    timer = Timer::kRefused;
    assert_string_equal(Group(2, "1").failure().c_str(), "gloo: no timer: Too many open files");
    timer = Timer::kOther;
    assert_string_equal(Group(2, "1").failure().c_str(), "gloo: no timer: Invalid argument");
    timer = Timer::kUsual;
}

// Where standard input was closed.
void test_gloo_mesh__a_timer_may_have_the_number_zero(void **) {
    Speaks again;
    auto store = std::make_shared<Host::Store>();
    Rank zero(store, 0, 2, { { "heartbeat", "0" } }), one(store, 1, 2, { { "heartbeat", "0.2" } });
    timer = Timer::kZero;
    Call meeting([&] { zero.mesh->connect("group"); });
    one.mesh->connect("group");
    timer = Timer::kUsual;
    assert_failed(meeting.join(), TESS_OK, -1, "");
    fall_silent(store->card("group/gloo/0"), 1000, 1000);
    one.mesh->watch();
    assert_int_equal(one.mesh->dead_peer(), 0);
}

// A process that was stopped has heard nothing meanwhile: that is nobody's silence.
void test_gloo_mesh__time_in_which_this_process_stood_is_not_silence(void **) {
    Speaks again;
    Group group(2, "0.4");
    assert_met(group);
    pause_ms(100);
    const int64_t begin_ns = __real_kit_now_ns();
    late_ns = INT64_C(10000000000);
    fall_silent(group.card_0(), 10000, 10000);
    group[1].watch();
    if (ms_since(begin_ns) < 400)
        fail_msg("lost after %.3g ms", ms_since(begin_ns));
    assert_int_equal(group[1].dead_peer(), 0);
}

} // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gloo_mesh__headers_come_to_whom_they_were_sent),
        cmocka_unit_test(test_gloo_mesh__data_comes_in_order),
        cmocka_unit_test(test_gloo_mesh__goodbyes_are_waited_for),
        cmocka_unit_test(test_gloo_mesh__a_stop_ends_every_wait),
        cmocka_unit_test(test_gloo_mesh__who_watches_is_woken),
        cmocka_unit_test(test_gloo_mesh__who_has_ended_is_named),
        cmocka_unit_test(test_gloo_mesh__an_end_behind_a_stop_is_nobodys_fault),
        cmocka_unit_test(test_gloo_mesh__pairs_close_for_the_others_when_their_sockets_are_released),
        cmocka_unit_test(test_gloo_mesh__without_a_connection_nothing_closes),
        cmocka_unit_test(test_gloo_mesh__a_header_is_heard_behind_its_ranks_end),
        cmocka_unit_test(test_gloo_mesh__a_difference_explains_an_end),
        cmocka_unit_test(test_gloo_mesh__a_silent_host_is_named_for_all_that_ended_with_it),
        cmocka_unit_test(test_gloo_mesh__who_was_heard_of_is_not_silent),
        cmocka_unit_test(test_gloo_mesh__without_a_limit_silence_lasts),
        cmocka_unit_test(test_gloo_mesh__hosts_are_looked_at_eight_times_within_the_limit),
        cmocka_unit_test(test_gloo_mesh__a_timer_that_is_refused_is_named),
        cmocka_unit_test(test_gloo_mesh__a_timer_may_have_the_number_zero),
        cmocka_unit_test(test_gloo_mesh__time_in_which_this_process_stood_is_not_silence),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

/* SPDX-License-Identifier: BSD-3-Clause */
// A pair of comm-gloo: what it takes for silence, and that nothing is thrown on Gloo's I/O thread, which would end the
// process; and the visitors of that thread.
#include "plugins/comm-gloo/pair.h"
#include "plugins/comm-gloo/visitor.h"

#include <arpa/inet.h>
#include <gloo/transport/tcp/loop.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <future>
#include <mutex>
#include <thread>

extern "C" {
#include <cmocka.h> // last: it defines "fail"
}

using namespace tess_gloo;

// ---- the kernel's word ------------------------------------------------------------------------------

static int info_status, ack_ms, data_ms; // when it last heard of the other side

extern "C" {
int __real_getsockopt(int, int, int, void *, socklen_t *);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes) {
    if (level != IPPROTO_TCP || name != TCP_INFO)
        return __real_getsockopt(fd, level, name, value, bytes);
    auto *info = static_cast<struct tcp_info *>(value);
    info->tcpi_last_ack_recv = static_cast<uint32_t>(ack_ms);
    info->tcpi_last_data_recv = static_cast<uint32_t>(data_ms);
    return info_status;
}
}

namespace {

// Both ends of a connection over loopback.
struct Ends {
    int here = -1, there = -1;
    Ends() {
        struct sockaddr_in at {};
        socklen_t size = sizeof at;
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        auto *address = reinterpret_cast<struct sockaddr *>(&at);
        assert_int_equal(bind(listener, address, size), 0);
        assert_int_equal(listen(listener, 1), 0);
        assert_int_equal(getsockname(listener, address, &size), 0);
        here = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(here, address, size);
        there = accept(listener, nullptr, nullptr);
        assert_true(there >= 0);
        close(listener);
    }
};

// Gloo's function is public in the handler that its loop knows.
void deliver(ProvenPair &pair) {
    gloo::transport::tcp::Handler &handler = pair;
#if __has_include(<gloo/transport/tcp/listener.h>)
    gloo::transport::tcp::Loop &unused = *reinterpret_cast<gloo::transport::tcp::Loop *>(&pair);
    handler.handleEvents(unused, EPOLLIN);
#else
    handler.handleEvents(EPOLLIN);
#endif
}

// A pair of rank 0 with rank 1.
struct Two {
    gloo::transport::tcp::attr where;
    std::shared_ptr<gloo::transport::Device> created;
    gloo::transport::tcp::Device &device;
    std::shared_ptr<gloo::transport::tcp::Context> context;
    Ends ends;
    std::unique_ptr<ProvenPair> pair;

    Two()
        : where("127.0.0.1"), created(gloo::transport::tcp::CreateDevice(where)),
          device(static_cast<gloo::transport::tcp::Device &>(*created)),
          context(std::static_pointer_cast<gloo::transport::tcp::Context>(device.createContext(0, 2))) {
        on_loop(device, [this] { pair.reset(new ProvenPair(context.get(), &device, 1, std::chrono::hours(1))); });
    }
    ~Two() {
        close(ends.there);
        pair.reset();
    }
    bool is_silent(int64_t limit_ms, int64_t awake_ms) {
        bool silent = false;
        on_loop(device, [&] { silent = pair->is_silent(limit_ms, awake_ms); });
        return silent;
    }
    void assert_ended() const {
        char byte;
        assert_int_equal(recv(ends.there, &byte, 1, 0), 0);
    }
};

void test_gloo_pair__event_behind_the_end_is_ignored(void **) {
    Two two;
    two.pair->adopt(two.ends.here);
    const int shared = two.pair->share();
    assert_true(shared >= 0);
    bool thrown = false;
    on_loop(two.device, [&] {
        two.pair->give_up("it cannot be reached");
        try {
            deliver(*two.pair);
        } catch (const std::exception &) {
            thrown = true;
        }
    });
    assert_false(thrown);
    assert_int_equal(two.pair->share(), -1);
    char byte;
    assert_int_equal(recv(two.ends.there, &byte, 1, MSG_DONTWAIT), -1); // no end yet: the socket is shared
    assert_int_equal(errno, EAGAIN);
    close(shared);
    two.assert_ended();
}

// A message into a slot for which nothing was posted ends the pair: the process and its other pairs go on.
void test_gloo_pair__a_message_that_fits_nothing_ends_the_pair(void **) {
    Two two;
    gloo::transport::tcp::Op op;
    two.pair->adopt(two.ends.here);
    op.preamble.nbytes = sizeof op.preamble + 8;
    op.preamble.opcode = gloo::transport::tcp::Op::SEND_UNBOUND_BUFFER;
    op.preamble.slot = 77;
    op.preamble.length = 8;
    assert_int_equal(send(two.ends.there, &op.preamble, sizeof op.preamble, MSG_NOSIGNAL), sizeof op.preamble);
    two.assert_ended();
    assert_int_equal(two.pair->share(), -1);
}

// What a pair cannot take over is closed.
void test_gloo_pair__a_socket_that_is_not_taken_is_closed(void **) {
    Two two;
    int pipes[2];
    bool thrown = false;
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    try {
        two.pair->adopt(pipes[0]);
    } catch (const std::exception &) {
        thrown = true;
    }
    assert_true(thrown);
    assert_int_equal(fcntl(pipes[0], F_GETFD), -1);
    close(pipes[1]);
    assert_int_equal(two.pair->share(), -1);
    two.pair->adopt(two.ends.here); // another one is
    const int shared = two.pair->share();
    assert_true(shared >= 0);
    close(shared);
}

void test_gloo_pair__an_idle_connection_is_probed(void **) {
    Two two;
    int value = 0;
    socklen_t size = sizeof value;
    const auto option = [&](int level, int name) {
        assert_int_equal(__real_getsockopt(two.ends.here, level, name, &value, &size), 0);
        return value;
    };
    two.pair->adopt(two.ends.here);
    assert_int_equal(option(IPPROTO_TCP, TCP_NODELAY), 1);
    assert_int_equal(option(SOL_SOCKET, SO_KEEPALIVE), 1);
    assert_int_equal(option(IPPROTO_TCP, TCP_KEEPIDLE), 1);
    assert_int_equal(option(IPPROTO_TCP, TCP_KEEPINTVL), 1);
}

// ---- silence ------------------------------------------------------------------------------------------

// Both must be longer ago than the limit, and so must this process's waking.
void test_gloo_pair__silence_is_longer_than_the_limit(void **) {
    static const struct {
        int ack_ms, data_ms, awake_ms, silent;
    } rows[] = { { 101, 101, 101, 1 }, { 100, 101, 101, 0 }, { 101, 100, 101, 0 },
                 { 101, 101, 100, 0 }, { 900, 101, 900, 1 }, { 0, 0, 900, 0 } };
    Two two;
    two.pair->adopt(two.ends.here);
    for (const auto &row : rows) {
        ack_ms = row.ack_ms, data_ms = row.data_ms;
        assert_int_equal(two.is_silent(100, row.awake_ms), row.silent);
    }
}

struct Opened : gloo::transport::tcp::Pair { // its lock, which is its heirs' own
    static std::mutex &lock_of(gloo::transport::tcp::Pair &pair) { return pair.*(&Opened::m_); }
};

// Where the kernel cannot be asked there is no silence; and nobody waits for the pair's lock to ask.
void test_gloo_pair__who_cannot_be_asked_is_not_silent(void **) {
    Two two;
    ack_ms = data_ms = 1000;
    assert_false(two.is_silent(100, 1000)); // not connected yet
    two.pair->adopt(two.ends.here);
    assert_true(two.is_silent(100, 1000));
    info_status = -1;
    assert_false(two.is_silent(100, 1000));
    info_status = 0;
    std::promise<void> held, looked;
    std::thread holder([&] {
        std::lock_guard<std::mutex> lock(Opened::lock_of(*two.pair));
        held.set_value();
        looked.get_future().wait();
    });
    held.get_future().wait();
    const bool silent = two.is_silent(100, 1000);
    looked.set_value();
    holder.join();
    assert_false(silent);
    assert_true(two.is_silent(100, 1000));
    on_loop(two.device, [&] {
        two.pair->give_up("it cannot be reached");
        two.pair->give_up("once more"); // of which nothing comes
    });
    assert_false(two.is_silent(100, 1000));
}

// ---- visitors -----------------------------------------------------------------------------------------

class Counting final : public Visitor {
  public:
    Counting(Device &device, int fd) : Visitor(device, fd) { enter(); }
    ~Counting() override { leave(); }
    void go() { leave(); }
    std::atomic<uint64_t> first{ 0 }, second{ 9 };
    std::atomic<int> turns{ 0 };

  private:
    void turn() override {
        first = read_count();
        second = read_count(); // which has not fired again
        turns++;
    }
};

void test_gloo_pair__a_visitor_reads_what_fired(void **) {
    Two two;
    const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    Counting visitor(two.device, fd);
    assert_int_equal(eventfd_write(fd, 5), 0);
    while (visitor.turns == 0)
        usleep(100);
    assert_int_equal(visitor.first, 5);
    assert_int_equal(visitor.second, 0);
    visitor.go();
    const int turns = visitor.turns;
    assert_int_equal(eventfd_write(fd, 5), 0);
    on_loop(two.device, [] {}); // the thread has come round
    assert_int_equal(visitor.turns, turns);
    {
        Counting none(two.device, -1); // and is never registered
    }
}

void test_gloo_pair__a_call_on_the_loop_runs_once_and_throws_here(void **) {
    Two two;
    int calls = 0;
    on_loop(two.device, [&] { calls++; });
    assert_int_equal(calls, 1);
    bool thrown = false;
    try {
        on_loop(two.device, [] { throw std::bad_alloc(); });
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    assert_true(thrown);
}

} // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gloo_pair__event_behind_the_end_is_ignored),
        cmocka_unit_test(test_gloo_pair__a_message_that_fits_nothing_ends_the_pair),
        cmocka_unit_test(test_gloo_pair__a_socket_that_is_not_taken_is_closed),
        cmocka_unit_test(test_gloo_pair__an_idle_connection_is_probed),
        cmocka_unit_test(test_gloo_pair__silence_is_longer_than_the_limit),
        cmocka_unit_test(test_gloo_pair__who_cannot_be_asked_is_not_silent),
        cmocka_unit_test(test_gloo_pair__a_visitor_reads_what_fired),
        cmocka_unit_test(test_gloo_pair__a_call_on_the_loop_runs_once_and_throws_here),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

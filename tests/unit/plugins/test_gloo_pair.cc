/* SPDX-License-Identifier: BSD-3-Clause */
// A pair that has given up meets an event that Gloo's I/O thread had taken before: nothing is thrown on that thread,
// which would end the process.
#include "plugins/comm-gloo/pair.h"
#include "plugins/comm-gloo/visitor.h"

#include <arpa/inet.h>
#include <gloo/transport/tcp/loop.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>

extern "C" {
#include <cmocka.h> // last: it defines "fail"
}

using namespace tess_gloo;

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

void test_gloo_pair__event_behind_the_end_is_ignored(void **) {
    gloo::transport::tcp::attr where;
    where.hostname = "127.0.0.1";
    auto created = gloo::transport::tcp::CreateDevice(where);
    auto &device = static_cast<gloo::transport::tcp::Device &>(*created);
    auto context = std::static_pointer_cast<gloo::transport::tcp::Context>(device.createContext(0, 2));
    Ends ends;
    std::unique_ptr<ProvenPair> pair;
    on_loop(device, [&] { pair.reset(new ProvenPair(context.get(), &device, 1, std::chrono::hours(1))); });
    pair->adopt(ends.here);
    const int shared = pair->share();
    assert_true(shared >= 0);
    bool thrown = false;
    on_loop(device, [&] {
        pair->give_up("it cannot be reached");
        try {
            deliver(*pair);
        } catch (const std::exception &) {
            thrown = true;
        }
    });
    assert_false(thrown);
    assert_int_equal(pair->share(), -1);
    char byte;
    assert_int_equal(recv(ends.there, &byte, 1, MSG_DONTWAIT), -1); // no end yet: the socket is shared
    assert_int_equal(errno, EAGAIN);
    close(shared);
    assert_int_equal(recv(ends.there, &byte, 1, 0), 0);
    close(ends.there);
    pair.reset();
}

} // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gloo_pair__event_behind_the_end_is_ignored),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

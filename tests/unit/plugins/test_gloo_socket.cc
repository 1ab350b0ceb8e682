/* SPDX-License-Identifier: BSD-3-Clause */
// Addresses of interfaces and hosts as comm-gloo finds and names them, and what goes through its sockets without a
// wait.
#include "plugins/comm-gloo/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cerrno>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" {
#include <cmocka.h> // last: it defines "fail"
}

using namespace tess_gloo;

namespace {

// ---- the interfaces that the system has ------------------------------------------------------------

std::vector<struct ifaddrs> interfaces;
int interfaces_status, lists_out;

struct sockaddr_storage address_of(const char *text, uint16_t port) {
    struct sockaddr_storage s {};
    auto *v4 = reinterpret_cast<struct sockaddr_in *>(&s);
    auto *v6 = reinterpret_cast<struct sockaddr_in6 *>(&s);
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        s.ss_family = AF_INET;
        v4->sin_port = htons(port);
        return s;
    }
    memset(&s, 0, sizeof s);
    assert_int_equal(inet_pton(AF_INET6, text, &v6->sin6_addr), 1);
    s.ss_family = AF_INET6;
    v6->sin6_port = htons(port);
    return s;
}

void assert_same(const struct sockaddr_storage &a, const struct sockaddr_storage &b) {
    assert_memory_equal(&a, &b, address_bytes(b));
}

} // namespace

extern "C" int __wrap_getifaddrs(struct ifaddrs **out) {
    if (interfaces_status != 0)
        return interfaces_status;
    for (size_t i = 0; i < interfaces.size(); i++)
        interfaces[i].ifa_next = i + 1 < interfaces.size() ? &interfaces[i + 1] : nullptr;
    *out = interfaces.empty() ? nullptr : interfaces.data();
    lists_out++;
    return 0;
}
extern "C" void __wrap_freeifaddrs(struct ifaddrs *) {
    lists_out--;
}

namespace {

// In whatever order they stand: IPv4, then IPv6 that is routed, then that of the link.
void test_gloo_socket__an_interface_has_its_best_address(void **) {
    static const char *const texts[] = { "fe80::1", "2001:db8::7", "10.1.2.3" };
    static const int orders[][3] = { { 0, 1, 2 }, { 2, 1, 0 }, { 1, 2, 0 }, { 0, 2, 1 } };
    struct sockaddr_storage at[3], other = address_of("10.9.9.9", 0), odd{}, found;
    char name[] = "eth0", another[] = "eth1";
    odd.ss_family = AF_UNIX;
    for (int i = 0; i < 3; i++)
        at[i] = address_of(texts[i], 0);
    for (int best = 2; best >= 0; best--)
        for (const auto &order : orders) {
            interfaces.clear();
            const auto add = [](char *of, void *address) {
                interfaces.push_back({});
                interfaces.back().ifa_name = of;
                interfaces.back().ifa_addr = static_cast<struct sockaddr *>(address);
            };
            add(another, &other);
            add(name, nullptr);
            for (int i : order)
                if (i <= best)
                    add(name, &at[i]);
            add(name, &odd);
            memset(&found, 0x55, sizeof found);
            assert_int_equal(find_interface("eth0", &found), 0);
            assert_same(found, at[best]);
            assert_int_equal(lists_out, 0);
        }
    assert_int_equal(find_interface("eth1", &found), 0);
    assert_same(found, other);
    assert_int_equal(find_interface("eth", &found), -1);
    interfaces.resize(2); // eth0 without an address
    assert_int_equal(find_interface("eth0", &found), -1);
    interfaces.clear();
    assert_int_equal(find_interface("eth0", &found), -1);
    assert_int_equal(lists_out, 0);
    interfaces_status = -1;
    assert_int_equal(find_interface("eth0", &found), -1);
    interfaces_status = 0;
    assert_int_equal(lists_out, 0);
}

void test_gloo_socket__a_host_has_an_address(void **) {
    struct sockaddr_storage found;
    for (const char *text : { "127.0.0.1", "::1", "10.1.2.3" }) {
        memset(&found, 0x55, sizeof found);
        assert_int_equal(find_address(text, &found), 0);
        assert_same(found, address_of(text, 0));
    }
    assert_int_equal(find_address("", &found), -1);
}

void test_gloo_socket__addresses_are_named(void **) {
    struct sockaddr_storage none {};
    none.ss_family = AF_UNIX;
    assert_int_equal(address_bytes(address_of("10.1.2.3", 0)), sizeof(struct sockaddr_in));
    assert_int_equal(address_bytes(address_of("::1", 0)), sizeof(struct sockaddr_in6));
    assert_int_equal(address_bytes(none), 0);
    assert_string_equal(address_text(address_of("10.1.2.3", 80)).c_str(), "10.1.2.3 port 80");
    assert_string_equal(address_text(address_of("2001:db8::7", 65535)).c_str(), "2001:db8::7 port 65535");
    assert_string_equal(address_text(none).c_str(), "? port ?");
}

// What moved; 0: nothing, for now; -1: the other side is gone.
void test_gloo_socket__nothing_waits(void **) {
    int ends[2];
    char byte = 7, room[8] = { 0 };
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    Socket here(ends[0]), there(ends[1]);
    assert_int_equal(recv_some(here, room, sizeof room), 0);
    assert_int_equal(send_some(there, "abc", 3), 3);
    assert_int_equal(recv_some(here, room, sizeof room), 3);
    assert_string_equal(room, "abc");
    while (send_some(here, &byte, 1) == 1) {
    }
    assert_int_equal(send_some(here, &byte, 1), 0); // there is no room
    shutdown(there.get(), SHUT_WR);
    assert_int_equal(recv_some(here, room, sizeof room), -1);
    there = Socket();
    assert_int_equal(send_some(here, &byte, 1), -1); // and no signal
}

} // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gloo_socket__an_interface_has_its_best_address),
        cmocka_unit_test(test_gloo_socket__a_host_has_an_address),
        cmocka_unit_test(test_gloo_socket__addresses_are_named),
        cmocka_unit_test(test_gloo_socket__nothing_waits),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

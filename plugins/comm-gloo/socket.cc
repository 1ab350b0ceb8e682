/* SPDX-License-Identifier: BSD-3-Clause */
#include "socket.h"
#include <cerrno>
#include <cstring>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

namespace tess_gloo {

int find_address(const std::string &host, struct sockaddr_storage *out) {
    struct addrinfo hints {
    }, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0)
        return -1;
    memset(out, 0, sizeof *out);
    memcpy(out, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return 0;
}

// Ranks addresses: IPv4 first, then routable IPv6, then link-local IPv6.
static int rank_of(const struct sockaddr *address) {
    if (address == nullptr)
        return 0;
    if (address->sa_family == AF_INET)
        return 3;
    if (address->sa_family != AF_INET6)
        return 0;
    return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const struct sockaddr_in6 *>(address)->sin6_addr) ? 1 : 2;
}

int find_interface(const std::string &name, struct sockaddr_storage *out) {
    struct ifaddrs *list = nullptr;
    int best = 0;
    if (getifaddrs(&list) != 0)
        return -1;
    memset(out, 0, sizeof *out);
    for (const struct ifaddrs *i = list; i != nullptr; i = i->ifa_next)
        if (name == i->ifa_name && rank_of(i->ifa_addr) > best) {
            best = rank_of(i->ifa_addr);
            memcpy(out, i->ifa_addr,
                   i->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
        }
    freeifaddrs(list);
    return best > 0 ? 0 : -1;
}

socklen_t address_bytes(const struct sockaddr_storage &address) {
    return address.ss_family == AF_INET    ? sizeof(struct sockaddr_in)
           : address.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                           : 0;
}

std::string address_text(const struct sockaddr_storage &address) {
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    getnameinfo(reinterpret_cast<const struct sockaddr *>(&address), address_bytes(address), host, sizeof host, port,
                sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    return std::string(host) + " port " + port;
}

static ssize_t moved_bytes(ssize_t n) {
    if (n > 0)
        return n;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}

ssize_t send_some(const Socket &socket, const void *data, size_t bytes) {
    return moved_bytes(send(socket.get(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT));
}

ssize_t recv_some(const Socket &socket, void *data, size_t bytes) {
    return moved_bytes(recv(socket.get(), data, bytes, MSG_DONTWAIT));
}

} // namespace tess_gloo

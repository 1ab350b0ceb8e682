/* SPDX-License-Identifier: BSD-3-Clause */
// The port on which a rank waits for the ranks above it. Who cannot prove to be one of them is dropped.
#pragma once
#include "proof.h"
#include "socket.h"
#include <functional>
#include <list>
#include <poll.h>
#include <vector>

namespace tess_gloo {

class Reception {
  public:
    // The card of a rank, null while it is not here.
    using Cards = std::function<const Card *(uint32_t rank)>;
    // A proven connection of that rank; a later one replaces an earlier one.
    using Arrived = std::function<void(uint32_t rank, Socket)>;

    Reception(const std::string &group, uint32_t rank, const struct sockaddr_storage &address); // throws Failure
    const struct sockaddr_storage &address() const { return address_; }                         // includes the port

    void poll_for(std::vector<struct pollfd> *) const; // appends what to wait for
    void turn(int64_t now_ns, const Bytes32 &own_key, const Cards &, const Arrived &);

  private:
    struct Guest {
        Socket socket;
        int64_t since_ns = 0;
        Bytes32 nonce{};
        size_t bytes = 0;
        Answer answer{};
    };
    void accept_all(int64_t now_ns);
    void greet(Socket, int64_t now_ns);
    bool advance(Guest &, const Bytes32 &own_key, const Cards &, const Arrived &); // false: it goes
    bool judge(Guest &, const Bytes32 &own_key, const Card &);

    const std::string &group_;
    const uint32_t rank_;
    struct sockaddr_storage address_;
    Socket listener_;
    std::list<Guest> guests_;
};

} // namespace tess_gloo

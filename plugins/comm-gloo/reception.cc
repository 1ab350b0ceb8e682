/* SPDX-License-Identifier: BSD-3-Clause */
#include "reception.h"
#include "failure.h"
#include <cerrno>
#include <netinet/in.h>

namespace tess_gloo {

constexpr size_t kGuests = 128; // limits connections without a proof; a new one replaces the oldest
constexpr int64_t kPatienceNs = INT64_C(5000000000);
constexpr int kBacklog = 1024;

Reception::Reception(const std::string &group, uint32_t rank, const struct sockaddr_storage &address)
    : group_(group), rank_(rank), address_(address),
      listener_(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    auto *at = reinterpret_cast<struct sockaddr *>(&address_);
    socklen_t size = address_bytes(address_);
    if (!listener_ || bind(listener_.get(), at, size) != 0 || ::listen(listener_.get(), kBacklog) != 0 ||
        getsockname(listener_.get(), at, &size) != 0)
        throw Failure(TESS_E_SYSTEM, -1, "gloo cannot listen on %s (TESSERA_INTERFACE, TESSERA_GLOO_HOSTNAME): %s",
                      address_text(address).c_str(), strerror(errno));
}

void Reception::poll_for(std::vector<struct pollfd> *fds) const {
    fds->push_back({ listener_.get(), POLLIN, 0 });
    for (const Guest &guest : guests_)
        fds->push_back({ guest.socket.get(), POLLIN, 0 });
}

void Reception::turn(int64_t now_ns, const Bytes32 &own_key, const Cards &cards, const Arrived &arrived) {
    accept_all(now_ns);
    for (auto guest = guests_.begin(); guest != guests_.end();) {
        const bool stays = now_ns - guest->since_ns < kPatienceNs && advance(*guest, own_key, cards, arrived);
        guest = stays ? std::next(guest) : guests_.erase(guest);
    }
}

void Reception::accept_all(int64_t now_ns) {
    for (size_t i = 0; i < kGuests; i++) {
        Socket socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!socket)
            return;
        if (guests_.size() == kGuests)
            guests_.pop_front();
        greet(std::move(socket), now_ns);
    }
}

void Reception::greet(Socket socket, int64_t now_ns) {
    Guest guest;
    guest.nonce = random_bytes();
    guest.since_ns = now_ns;
    guest.socket = std::move(socket);
    const Greeting greeting = { Greeting::kMagic, guest.nonce };
    if (send_some(guest.socket, &greeting, sizeof greeting) == sizeof greeting)
        guests_.push_back(std::move(guest));
}

bool Reception::advance(Guest &guest, const Bytes32 &own_key, const Cards &cards, const Arrived &arrived) {
    auto *at = reinterpret_cast<unsigned char *>(&guest.answer) + guest.bytes;
    const size_t wanted = sizeof guest.answer - guest.bytes;
    const ssize_t got = wanted > 0 ? recv_some(guest.socket, at, wanted) : 0;
    if (got < 0)
        return false;
    guest.bytes += static_cast<size_t>(got);
    if (guest.bytes >= sizeof guest.answer.magic && guest.answer.magic != Answer::kMagic)
        return false;
    if (guest.bytes < sizeof guest.answer)
        return true;
    if (guest.answer.rank <= rank_)
        return false;
    const Card *card = cards(guest.answer.rank);
    if (card == nullptr)
        return true; // keeps it: the peer may be a rank whose card has not been read yet
    if (judge(guest, own_key, *card))
        arrived(guest.answer.rank, std::move(guest.socket));
    return false;
}

bool Reception::judge(Guest &guest, const Bytes32 &own_key, const Card &card) {
    const Meeting meeting = { group_, own_key, card.key, rank_, guest.answer.rank, guest.nonce, guest.answer.nonce };
    if (!same(prove(meeting, Side::kConnects), guest.answer.proof))
        return false;
    const Bytes32 proof = prove(meeting, Side::kListens);
    return send_some(guest.socket, proof.data(), proof.size()) == static_cast<ssize_t>(proof.size());
}

} // namespace tess_gloo

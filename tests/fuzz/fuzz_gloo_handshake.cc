/* SPDX-License-Identifier: BSD-3-Clause */
// libFuzzer: any bytes at the port where a rank of comm-gloo waits for the ranks above it, in any pieces. The right
// answer to its greeting is made and the input laid over it: it comes in if and only if nothing was changed.
#include "plugins/comm-gloo/reception.h"
#include <cstdlib>
#include <cstring>
#include <netinet/in.h>

using namespace tess_gloo;

namespace {

constexpr uint32_t kOwn = 1, kThere = 3, kMissing = 5; // ranks: this one, the highest with a card, one without
constexpr int64_t kSecond = INT64_C(1000000000);
const std::string group = "world";

struct Port {
    struct sockaddr_storage address {};
    Bytes32 own_key{};
    Card cards[kThere + 1]{};
    Port() {
        auto *at = reinterpret_cast<struct sockaddr_in *>(&address);
        at->sin_family = AF_INET;
        at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        own_key.fill(7);
        for (uint32_t r = 0; r <= kThere; r++)
            cards[r].key.fill(static_cast<unsigned char>(r));
    }
    const Card *card_of(uint32_t rank) const { return rank <= kThere ? &cards[rank] : nullptr; }
};

Port port;
Reception reception(group, kOwn, port.address);

// Whoever connects resets its end, so that no port is kept for a minute. None: this machine has no port left for now.
Socket knock() {
    Socket guest(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const struct linger now = { 1, 0 };
    const auto *at = reinterpret_cast<const struct sockaddr *>(&reception.address());
    if (!guest || setsockopt(guest.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now) != 0)
        abort();
    return connect(guest.get(), at, sizeof(struct sockaddr_in)) == 0 ? std::move(guest) : Socket();
}

Answer right_answer(const Greeting &greeting, uint32_t rank) {
    Answer answer = { Answer::kMagic, rank, {}, {} };
    const Bytes32 &key = port.cards[rank <= kThere ? rank : 0].key;
    const Meeting meeting = { group, port.own_key, key, kOwn, rank, greeting.nonce, answer.nonce };
    answer.proof = prove(meeting, Side::kConnects);
    return answer;
}

struct Visit {
    Socket guest = knock();
    int arrived = 0;
    uint32_t rank = 0;

    void turn(int64_t now_ns) {
        reception.turn(
            now_ns, port.own_key, [](uint32_t r) { return port.card_of(r); },
            [this](uint32_t r, Socket) { arrived++, rank = r; });
    }
    Greeting greeting() {
        Greeting g{};
        if (recv(guest.get(), &g, sizeof g, MSG_WAITALL) != sizeof g || g.magic != Greeting::kMagic)
            abort();
        return g;
    }
    // In pieces of as many bytes as `piece` says, none larger than what is left.
    void say(const unsigned char *data, size_t bytes, size_t piece) {
        for (size_t done = 0; done < bytes; done += piece) {
            const size_t n = bytes - done < piece ? bytes - done : piece;
            if (send(guest.get(), data + done, n, MSG_NOSIGNAL) != static_cast<ssize_t>(n))
                return; // it has hung up
            turn(kSecond);
        }
    }
};

} // namespace

// [rank of the answer][bytes a piece][bytes laid over the answer, and what follows it]
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2)
        return 0;
    const uint32_t rank = data[0] % (kMissing + 1);
    Visit visit;
    if (!visit.guest)
        return 0;
    visit.turn(0);
    const Answer answer = right_answer(visit.greeting(), rank);
    std::vector<unsigned char> said(sizeof answer);
    memcpy(said.data(), &answer, sizeof answer);
    bool changed = false;
    for (size_t i = 0; i + 2 < size && i < sizeof answer; i++) {
        said[i] ^= data[i + 2];
        changed |= data[i + 2] != 0;
    }
    if (size - 2 > sizeof answer)
        said.insert(said.end(), data + 2 + sizeof answer, data + size);
    visit.say(said.data(), said.size(), 1 + data[1] % 80);
    const bool welcome = !changed && rank > kOwn && rank <= kThere;
    if (visit.arrived != (welcome ? 1 : 0) || (welcome && visit.rank != rank))
        abort();
    visit.turn(10 * kSecond); // whoever is still there has had its time
    std::vector<struct pollfd> fds;
    reception.poll_for(&fds);
    if (fds.size() != 1 || visit.arrived > 1)
        abort();
    return 0;
}

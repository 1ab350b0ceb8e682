/* SPDX-License-Identifier: BSD-3-Clause */
#include "rendezvous.h"
#include "failure.h"
#include "plugin_base.h"
#include <algorithm>
#include <cerrno>
#include <dirent.h>
#include <sys/resource.h>

namespace tess_gloo {

constexpr int64_t kMs = 1000000;
constexpr int64_t kRetryNs = 50 * kMs, kAttemptNs = 5000 * kMs;
// Limits how long one wait for a card may delay the open connections. It grows each time, because a remote or busy
// store answers late even if the card exists. An attempt's steps all fit into kAttemptNs.
constexpr int64_t kFetchNs = 20 * kMs, kFetchMostNs = 640 * kMs;
constexpr int kTurnMs = 50;

Rendezvous::Rendezvous(Settings &settings, const std::string &group, int rank, int size, const std::atomic<bool> &stop,
                       std::atomic<int> &waiting_for)
    : settings_(settings), group_(group), rank_(rank), size_(size), stop_(stop), waiting_for_(waiting_for),
      reception_(group_, static_cast<uint32_t>(rank), settings.address()), fetch_ns_(kFetchNs), cards_(size),
      done_(size) {
    Card &mine = cards_[rank_];
    mine.magic = Card::kMagic;
    mine.nranks = static_cast<uint32_t>(size_);
    mine.address = reception_.address();
    mine.key = random_bytes();
}

// A rank that cannot accept its last peers would let them wait.
void Rendezvous::check_files() const {
    struct rlimit limit {};
    uint64_t needed = static_cast<uint64_t>(size_);
    if (DIR *dir = opendir("/proc/self/fd")) {
        while (readdir(dir) != nullptr)
            needed++;
        closedir(dir);
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && needed > limit.rlim_cur)
        throw Failure(TESS_E_SYSTEM, -1, "a group of %d ranks needs %llu files open at once, ulimit -n allows %llu: %s",
                      size_, static_cast<unsigned long long>(needed), static_cast<unsigned long long>(limit.rlim_cur),
                      strerror(EMFILE));
}

std::vector<Socket> Rendezvous::run() {
    check_files();
    publish();
    while ((waiting_for_ = missing()) >= 0) {
        if (stop_)
            throw Failure(TESS_E_ABORTED, -1, "stopped");
        const bool all_here = n_cards_ == size_;
        if (!all_here)
            fetch();
        turn(all_here ? kTurnMs : 0);
    }
    return std::move(done_);
}

int Rendezvous::missing() const {
    for (int peer = 0; peer < size_; peer++)
        if (peer != rank_ && !done_[peer])
            return peer;
    return -1;
}

// ---- cards ----------------------------------------------------------------------------------------

void Rendezvous::publish() {
    const tess_host &host = settings_.host();
    const std::string key = group_ + "/gloo/" + std::to_string(rank_);
    const tess_status s = host.kv_set(host.host, key.c_str(), &cards_[rank_], sizeof(Card));
    if (s != TESS_OK)
        throw Failure(s, -1, "the key-value store refused this rank's address, status %d", s);
}

// The next card, in the order of ranks.
void Rendezvous::fetch() {
    if (n_cards_ == rank_ && ++n_cards_ == size_)
        return;
    const tess_host &host = settings_.host();
    const std::string key = group_ + "/gloo/" + std::to_string(n_cards_);
    Card card{};
    uint64_t bytes = sizeof card;
    const tess_status s = host.kv_get(host.host, key.c_str(), &card, &bytes, fetch_ns_);
    if (s == TESS_E_TIMEOUT) {
        fetch_ns_ = std::min(2 * fetch_ns_, kFetchMostNs);
        return;
    }
    if (s != TESS_OK)
        throw Failure(s, -1, "the key-value store gave status %d for '%s'", s, key.c_str());
    if (bytes != sizeof card || card.magic != Card::kMagic || address_bytes(card.address) == 0)
        throw Failure(TESS_E_PEER, n_cards_, "rank %d published no address", n_cards_);
    take_card(n_cards_++, card);
}

void Rendezvous::take_card(int peer, const Card &card) {
    if (card.nranks != static_cast<uint32_t>(size_))
        throw Failure(TESS_E_MISMATCH, peer, "rank %d is in a group of %u ranks, this rank in one of %d", peer,
                      card.nranks, size_);
    cards_[peer] = card;
    if (peer > rank_)
        return; // higher ranks connect to this one
    links_.emplace_back();
    links_.back().peer = peer;
    links_.back().begin_ns = kit_now_ns();
}

// ---- links to the ranks below ---------------------------------------------------------------------

void Rendezvous::turn(int timeout_ms) {
    for (Link &link : links_)
        if (!link.socket && kit_now_ns() - link.attempt_ns >= kRetryNs)
            attempt(link);
    std::vector<struct pollfd> fds;
    for (const Link &link : links_)
        if (link.socket)
            fds.push_back({ link.socket.get(), static_cast<short>(link.reached ? POLLIN : POLLOUT), 0 });
    reception_.poll_for(&fds);
    poll(fds.data(), fds.size(), timeout_ms);
    for (auto link = links_.begin(); link != links_.end();) {
        if (!link->socket || !advance(*link)) {
            check_reach(*link, kit_now_ns());
            ++link;
            continue;
        }
        done_[link->peer] = std::move(link->socket);
        link = links_.erase(link);
    }
    const auto card_of = [this](uint32_t rank) {
        return rank < cards_.size() && cards_[rank].nranks != 0 ? &cards_[rank] : nullptr;
    };
    reception_.turn(kit_now_ns(), cards_[rank_].key, card_of,
                    [this](uint32_t rank, Socket socket) { done_[rank] = std::move(socket); });
}

void Rendezvous::attempt(Link &link) {
    const struct sockaddr_storage &to = cards_[link.peer].address;
    link.attempt_ns = kit_now_ns();
    link.answered = false;
    link.bytes = 0;
    link.socket.reset(socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!link.socket)
        throw Failure(TESS_E_SYSTEM, -1, "no socket for a connection to rank %d: %s", link.peer, strerror(errno));
    if (connect(link.socket.get(), reinterpret_cast<const struct sockaddr *>(&to), address_bytes(to)) != 0 &&
        errno != EINPROGRESS && errno != EINTR)
        give_up(link, errno);
}

void Rendezvous::give_up(Link &link, int error) {
    link.socket.reset();
    link.error = error;
    if (link.reached)
        link.begin_ns = kit_now_ns();
    link.reached = false;
}

bool Rendezvous::reach(Link &link) {
    struct pollfd wait = { link.socket.get(), POLLOUT, 0 };
    if (poll(&wait, 1, 0) <= 0)
        return false;
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(link.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error)
        give_up(link, error);
    link.reached = error == 0;
    return link.reached;
}

bool Rendezvous::read(Link &link, void *to, size_t bytes) {
    const ssize_t got = recv_some(link.socket, static_cast<unsigned char *>(to) + link.bytes, bytes - link.bytes);
    if (got < 0)
        give_up(link, ECONNRESET);
    else
        link.bytes += static_cast<size_t>(got);
    return got >= 0 && link.bytes == bytes;
}

bool Rendezvous::advance(Link &link) {
    if (kit_now_ns() - link.attempt_ns > kAttemptNs) {
        give_up(link, ETIMEDOUT);
        return false;
    }
    if (!link.reached && !reach(link))
        return false;
    if (!link.answered) {
        if (!read(link, &link.greeting, sizeof link.greeting))
            return false;
        answer(link);
        if (!link.socket)
            return false;
    }
    if (!read(link, &link.proof, sizeof link.proof))
        return false;
    if (same(link.proof, link.expected))
        return true;
    give_up(link, EPROTO);
    return false;
}

void Rendezvous::answer(Link &link) {
    if (link.greeting.magic != Greeting::kMagic)
        return give_up(link, EPROTO);
    const uint32_t low = static_cast<uint32_t>(link.peer), high = static_cast<uint32_t>(rank_);
    const Meeting meeting = {
        group_, cards_[low].key, cards_[high].key, low, high, link.greeting.nonce, random_bytes()
    };
    const Answer answer = { Answer::kMagic, high, meeting.high_nonce, prove(meeting, Side::kConnects) };
    link.expected = prove(meeting, Side::kListens);
    link.answered = true;
    link.bytes = 0;
    if (send_some(link.socket, &answer, sizeof answer) != sizeof answer)
        give_up(link, ECONNRESET);
}

// The peer published its address, so it is there: when its host does not answer, the two cannot talk.
void Rendezvous::check_reach(const Link &link, int64_t now) const {
    const int64_t limit_ns = settings_.silence_ns();
    if (link.reached || limit_ns == 0 || now - link.begin_ns <= limit_ns)
        return;
    throw Failure(TESS_E_PEER, link.peer, "rank %d cannot be reached from rank %d at %s within %.3g s: %s", link.peer,
                  rank_, address_text(cards_[link.peer].address).c_str(), static_cast<double>(limit_ns) * 1e-9,
                  link.error ? strerror(link.error) : "no answer");
}

} // namespace tess_gloo

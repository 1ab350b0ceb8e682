/* SPDX-License-Identifier: BSD-3-Clause */
// How ranks of comm-gloo meet: settings, cards, who is let in and who is left, and the times it all may take. The test
// moves the clock.
#include "gloo_ranks.h"
#include "plugins/comm-gloo/rendezvous.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <gloo/transport/device.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" {
#include <cmocka.h> // last: it defines "fail"
}

using namespace tess_gloo;

static std::atomic<int64_t> late_ns{ 0 }, stood_ns{ 0 }; // stood_ns: the clock stands there; 0: it goes
static std::atomic<bool> no_epoll{ false };
static bool no_random, no_hmac;

extern "C" {
__attribute__((visibility("default"))) int epoll_create(int) noexcept { // which Gloo's device calls
    errno = EMFILE;
    return no_epoll ? -1 : epoll_create1(0);
}
ssize_t __real_getrandom(void *, size_t, unsigned);
ssize_t __wrap_getrandom(void *to, size_t bytes, unsigned flags) {
    return no_random ? static_cast<ssize_t>(bytes) - 1 : __real_getrandom(to, bytes, flags);
}
decltype(HMAC) __real_HMAC;
unsigned char *__wrap_HMAC(const EVP_MD *md, const void *key, int key_bytes, const unsigned char *text, size_t bytes,
                           unsigned char *out, unsigned *size) {
    return no_hmac ? nullptr : __real_HMAC(md, key, key_bytes, text, bytes, out, size);
}
int64_t __real_kit_now_ns(void);
int64_t __wrap_kit_now_ns(void) {
    return stood_ns != 0 ? stood_ns.load() : __real_kit_now_ns() + late_ns;
}
}

namespace {

constexpr int64_t kMs = 1000000;

void assert_failed(const Failure &f, tess_status code, int rank, const std::string &message) {
    if (f.code != code || f.rank != rank || message != f.message)
        fail_msg("status %d, rank %d: %s", f.code, f.rank, f.message);
}

std::shared_ptr<Host::Store> no_store() {
    return std::make_shared<Host::Store>();
}

// ---- settings ---------------------------------------------------------------------------------------

Failure failure_with(const Host::Text &options) {
    return failure_in([&] {
        Host host(no_store(), options);
        Settings(&host.table).address();
    });
}

std::string address_with(const Host::Text &options) {
    Host host(no_store(), options);
    return address_text(Settings(&host.table).address());
}

// The plugin's own options come before what the core knows.
void test_gloo_meeting__a_rank_listens_where_it_is_told(void **) {
    assert_string_equal(address_with({}).c_str(), "127.0.0.1 port 0");
    assert_string_equal(address_with({ { "address", "127.0.0.2" } }).c_str(), "127.0.0.2 port 0");
    assert_string_equal(address_with({ { "address", "127.0.0.2" }, { "gloo-hostname", "127.0.0.3" } }).c_str(),
                        "127.0.0.3 port 0");
    assert_string_equal(address_with({ { "address", "127.0.0.2" }, { "interface", "lo" } }).c_str(),
                        "127.0.0.1 port 0");
    assert_string_equal(address_with({ { "interface", "nowhere" }, { "gloo-interface", "lo" } }).c_str(),
                        "127.0.0.1 port 0");
    assert_string_equal(address_with({ { "interface", "nowhere" }, { "gloo-hostname", "127.0.0.3" } }).c_str(),
                        "127.0.0.3 port 0");
}

void test_gloo_meeting__an_address_that_is_not_here_is_named(void **) {
    assert_failed(failure_with({ { "gloo-interface", "nowhere" } }), TESS_E_INVALID, -1,
                  "gloo cannot listen on interface 'nowhere' (TESSERA_INTERFACE, TESSERA_GLOO_INTERFACE): no such "
                  "address here");
    assert_failed(failure_with({ { "interface", "nowhere" } }), TESS_E_INVALID, -1,
                  "gloo cannot listen on interface 'nowhere' (TESSERA_INTERFACE, TESSERA_GLOO_INTERFACE): no such "
                  "address here");
    assert_failed(failure_with({ { "gloo-hostname", "1.2.3.4.5" } }), TESS_E_INVALID, -1,
                  "gloo cannot listen on host '1.2.3.4.5' (TESSERA_GLOO_HOSTNAME): no such address here");
}

void test_gloo_meeting__a_heartbeat_is_the_silence_that_counts(void **) {
    static const struct {
        const char *text;
        int64_t ns;
    } rows[] = { { "0.25", 250 * kMs }, { "0", 0 },         { "-1", 0 }, { "86399", INT64_C(86399000) * kMs },
                 { "86400", 0 },        { "x", 5000 * kMs } };
    for (const auto &row : rows) {
        Host host(no_store(), { { "heartbeat", row.text } });
        assert_int_equal(Settings(&host.table).silence_ns(), row.ns);
    }
    Host host(no_store(), {});
    assert_int_equal(Settings(&host.table).silence_ns(), 5000 * kMs);
}

int open_files() { // with what it takes to count them
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir) != nullptr)
        n++;
    closedir(dir);
    return n;
}

struct FileLimit { // while it stands
    explicit FileLimit(int n) {
        getrlimit(RLIMIT_NOFILE, &before);
        struct rlimit now = before;
        now.rlim_cur = static_cast<rlim_t>(n);
        setrlimit(RLIMIT_NOFILE, &now);
    }
    ~FileLimit() { setrlimit(RLIMIT_NOFILE, &before); }
    struct rlimit before {};
};

void test_gloo_meeting__a_device_that_cannot_be_made_is_asked_for_again(void **) {
    Host host(no_store(), {});
    Settings settings(&host.table);
    no_epoll = true;
    const Failure f = failure_in([&] { settings.device(); });
    no_epoll = false;
    assert_int_equal(f.code, TESS_E_SYSTEM);
    assert_int_equal(f.rank, -1);
    assert_ptr_equal(strstr(f.message, "gloo cannot make its device: "), f.message);
    const auto device = settings.device();
    assert_non_null(device.get());
    assert_ptr_equal(settings.device().get(), device.get());
}

// ---- a rank that meets the others -------------------------------------------------------------------

struct SecondOfTwo { // rank 1 of two
    explicit SecondOfTwo(const char *heartbeat = "5")
        : host(store, { { "heartbeat", heartbeat } }), settings(&host.table) {}
    std::vector<Socket> run(int rank = 1, int size = 2) {
        return Rendezvous(settings, "group", rank, size, stop, waiting_for).run();
    }
    Failure failure() {
        return failure_in([&] { run(); });
    }
    void publish_0(const Card &card, size_t bytes = sizeof(Card)) { publish(0, card, bytes); }
    void publish(int rank, const Card &card, size_t bytes = sizeof(Card)) {
        store->set("group/gloo/" + std::to_string(rank), std::string(reinterpret_cast<const char *>(&card), bytes));
    }
    std::shared_ptr<Host::Store> store = no_store();
    Host host;
    Settings settings;
    std::atomic<bool> stop{ false };
    std::atomic<int> waiting_for{ -1 };
};

struct Listener { // in the place of rank 0
    explicit Listener(int backlog = 8) : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        auto &at = reinterpret_cast<struct sockaddr_in &>(card.address);
        socklen_t size = sizeof at;
        card.magic = Card::kMagic, card.nranks = 2;
        at.sin_family = AF_INET, at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        bind(socket.get(), reinterpret_cast<struct sockaddr *>(&at), size);
        if (backlog > 0)
            listen(socket.get(), backlog);
        getsockname(socket.get(), reinterpret_cast<struct sockaddr *>(&at), &size);
    }
    bool somebody(int ms) const {
        struct pollfd wait = { socket.get(), POLLIN, 0 };
        return poll(&wait, 1, ms) == 1;
    }
    Socket come() const {
        Socket s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        connect(s.get(), reinterpret_cast<const struct sockaddr *>(&card.address), sizeof(struct sockaddr_in));
        return s;
    }
    Socket accept() const { return Socket(accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
    Card card{};
    Socket socket;
};

void test_gloo_meeting__bad_cards_are_refused(void **) {
    const auto failure_of_card = [](const std::function<void(Card *)> &change, size_t bytes) {
        SecondOfTwo m;
        Listener nobody(0);
        change(&nobody.card);
        m.publish_0(nobody.card, bytes);
        return m.failure();
    };
    const auto nothing = [](Card *) {};
    assert_failed(failure_of_card(nothing, sizeof(Card) - 1), TESS_E_PEER, 0, "rank 0 published no address");
    assert_failed(failure_of_card([](Card *c) { c->magic++; }, sizeof(Card)), TESS_E_PEER, 0,
                  "rank 0 published no address");
    assert_failed(failure_of_card([](Card *c) { c->address.ss_family = AF_UNIX; }, sizeof(Card)), TESS_E_PEER, 0,
                  "rank 0 published no address");
    assert_failed(failure_of_card([](Card *c) { c->nranks = 3; }, sizeof(Card)), TESS_E_MISMATCH, 0,
                  "rank 0 is in a group of 3 ranks, this rank in one of 2");
}

void test_gloo_meeting__a_store_that_refuses_is_named(void **) {
    SecondOfTwo m;
    m.host.get_status = TESS_E_DEVICE;
    assert_failed(m.failure(), TESS_E_DEVICE, -1, "the key-value store gave status -8 for 'group/gloo/0'");
    m.host.set_status = TESS_E_NOMEM;
    assert_failed(m.failure(), TESS_E_NOMEM, -1, "the key-value store refused this rank's address, status -3");
}

// Longer each time, up to a limit: what is late is asked for less often, and the open connections wait little.
void test_gloo_meeting__a_late_card_is_asked_for_again(void **) {
    SecondOfTwo m;
    m.host.get_status = TESS_E_TIMEOUT;
    Call meeting([&] { m.run(); });
    const auto asked = [&] {
        std::lock_guard<std::mutex> held(m.store->lock);
        return m.host.timeouts_ns.size();
    };
    assert_true(becomes([&] { return asked() >= 8; }));
    assert_int_equal(m.waiting_for, 0);
    m.stop = true;
    assert_failed(meeting.join(), TESS_E_ABORTED, -1, "stopped");
    for (int i = 0; i < 8; i++)
        assert_int_equal(m.host.timeouts_ns[i], (INT64_C(20) << std::min(i, 5)) * kMs);
}

void test_gloo_meeting__a_rank_needs_a_file_for_each_other(void **) {
    SecondOfTwo m;
    m.stop = true;
    m.settings.device();
    const int needed = open_files() + 1 + 40; // with where it listens
    for (int given = needed - 1; given <= needed; given++) {
        FileLimit limit(given);
        const Failure f = failure_in([&] { m.run(1, 40); });
        if (given == needed)
            assert_failed(f, TESS_E_ABORTED, -1, "stopped");
        else
            assert_failed(f, TESS_E_SYSTEM, -1,
                          "a group of 40 ranks needs " + std::to_string(needed) +
                              " files open at once, ulimit -n allows " + std::to_string(given) +
                              ": Too many open files");
    }
}

// ---- links ------------------------------------------------------------------------------------------

void test_gloo_meeting__who_cannot_be_reached_is_named_with_the_reason(void **) {
    SecondOfTwo m("0.3");
    const Listener nobody(0);
    const int64_t begin_ns = __real_kit_now_ns();
    m.publish_0(nobody.card);
    assert_failed(m.failure(), TESS_E_PEER, 0,
                  "rank 0 cannot be reached from rank 1 at " + address_text(nobody.card.address) +
                      " within 0.3 s: Connection refused");
    assert_true(__real_kit_now_ns() - begin_ns > 300 * kMs);
}

// Its port is there and its queue is full: an attempt gets no answer.
void test_gloo_meeting__who_does_not_answer_is_named(void **) {
    SecondOfTwo m("0.3");
    const Listener busy(8);
    listen(busy.socket.get(), 0);
    const Socket first = busy.come(), second = busy.come();
    m.publish_0(busy.card);
    assert_failed(m.failure(), TESS_E_PEER, 0,
                  "rank 0 cannot be reached from rank 1 at " + address_text(busy.card.address) +
                      " within 0.3 s: no answer");
}

// Higher ranks come to lower ones, never the other way.
void test_gloo_meeting__a_rank_waits_for_those_above(void **) {
    SecondOfTwo m("0.1");
    const Listener above;
    m.publish(1, above.card);
    Call meeting([&] { m.run(0, 2); });
    assert_false(above.somebody(300));
    assert_false(meeting.ended());
    assert_int_equal(m.waiting_for, 1);
    m.stop = true;
    assert_failed(meeting.join(), TESS_E_ABORTED, -1, "stopped");
}

void test_gloo_meeting__who_greets_otherwise_is_left(void **) {
    SecondOfTwo m("0");
    const Listener listener;
    const Greeting greeting = { Greeting::kMagic + 1, {} };
    char more;
    m.publish_0(listener.card);
    Call meeting([&] { m.run(); });
    for (int i = 0; i < 2; i++) { // and tried again
        assert_true(listener.somebody(20000));
        const Socket rank = listener.accept();
        assert_int_equal(send(rank.get(), &greeting, sizeof greeting, MSG_NOSIGNAL), sizeof greeting);
        assert_int_equal(recv(rank.get(), &more, 1, 0), 0);
    }
    m.stop = true;
    assert_failed(meeting.join(), TESS_E_ABORTED, -1, "stopped");
}

// The time begins anew where it was reached.
void test_gloo_meeting__who_was_reached_and_is_gone_is_named(void **) {
    SecondOfTwo m("0.3");
    auto listener = std::make_unique<Listener>();
    const struct sockaddr_storage address = listener->card.address;
    m.publish_0(listener->card);
    Call meeting([&] { m.run(); });
    assert_true(listener->somebody(20000));
    Socket reached = listener->accept();
    const int64_t begin_ns = __real_kit_now_ns();
    reached.reset();
    listener.reset();
    assert_failed(meeting.join(), TESS_E_PEER, 0,
                  "rank 0 cannot be reached from rank 1 at " + address_text(address) +
                      " within 0.3 s: Connection refused");
    assert_true(__real_kit_now_ns() - begin_ns > 300 * kMs);
}

void test_gloo_meeting__without_a_heartbeat_a_rank_is_tried_until_a_stop(void **) {
    SecondOfTwo m("0");
    const Listener nobody(0);
    m.publish_0(nobody.card);
    Call meeting([&] { m.run(); });
    late_ns = INT64_C(3600000) * kMs;
    pause_ms(100);
    assert_false(meeting.ended());
    assert_int_equal(m.waiting_for, 0);
    m.stop = true;
    assert_failed(meeting.join(), TESS_E_ABORTED, -1, "stopped");
    late_ns = 0;
}

// An attempt has five seconds, whatever has been said so far; the next one begins anew.
void test_gloo_meeting__who_says_nothing_is_tried_again(void **) {
    for (size_t says : { 0, 20, 36 }) {
        SecondOfTwo m("0");
        const Listener listener;
        const Greeting greeting = { Greeting::kMagic, {} };
        m.publish_0(listener.card);
        const int64_t begin_ns = stood_ns = __real_kit_now_ns();
        Call meeting([&] { m.run(); });
        assert_true(listener.somebody(20000));
        const Socket first = listener.accept();
        assert_int_equal(send(first.get(), &greeting, says, MSG_NOSIGNAL), says);
        assert_false(listener.somebody(50));
        stood_ns = begin_ns + 5000 * kMs;
        assert_false(listener.somebody(100));
        stood_ns = begin_ns + 5000 * kMs + 1;
        assert_true(listener.somebody(20000));
        const Socket second = listener.accept();
        assert_int_equal(send(second.get(), &greeting, sizeof greeting, MSG_NOSIGNAL), sizeof greeting);
        Answer answer{};
        assert_int_equal(recv(second.get(), &answer, sizeof answer, MSG_WAITALL), sizeof answer);
        assert_int_equal(answer.magic, Answer::kMagic);
        assert_int_equal(answer.rank, 1);
        m.stop = true;
        assert_failed(meeting.join(), TESS_E_ABORTED, -1, "stopped");
    }
    stood_ns = 0;
}

// ---- the port of a rank -----------------------------------------------------------------------------

// Rank 1's port, and one who comes to it.
struct Port {
    Port() : reception(group, 1, local()), key(random_bytes()) {
        card.magic = Card::kMagic, card.nranks = 8, card.key = random_bytes();
    }
    static struct sockaddr_storage local() {
        struct sockaddr_storage at;
        find_address("127.0.0.1", &at);
        return at;
    }
    Socket come() const {
        Socket s(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        connect(s.get(), reinterpret_cast<const struct sockaddr *>(&reception.address()), sizeof(struct sockaddr_in));
        return s;
    }
    void turn(int64_t now_ns = 0) {
        std::vector<struct pollfd> fds;
        reception.poll_for(&fds);
        poll(fds.data(), fds.size(), 100);
        reception.turn(
            now_ns, key, [this](uint32_t rank) { return rank < known ? &card : nullptr; },
            [this](uint32_t rank, Socket) { arrived.push_back(rank); });
    }
    // Who is let go reads the end behind its greeting, who stays nothing.
    static bool stays(const Socket &guest) {
        char greeting[64];
        struct pollfd wait = { guest.get(), POLLIN, 0 };
        while (poll(&wait, 1, 20) > 0)
            if (recv(guest.get(), greeting, sizeof greeting, MSG_DONTWAIT) <= 0)
                return false;
        return true;
    }
    Greeting greeted(const Socket &guest) {
        Greeting g{};
        turn();
        assert_int_equal(recv(guest.get(), &g, sizeof g, MSG_WAITALL), sizeof g);
        assert_int_equal(g.magic, Greeting::kMagic);
        return g;
    }
    Answer answer(uint32_t rank, const Greeting &greeting) {
        Answer a = { Answer::kMagic, rank, random_bytes(), {} };
        a.proof = prove({ group, key, card.key, 1, rank, greeting.nonce, a.nonce }, Side::kConnects);
        return a;
    }
    const std::string group = "group";
    Reception reception;
    Bytes32 key;
    Card card{};
    uint32_t known = 8; // ranks below it have cards
    std::vector<uint32_t> arrived;
};

bool say(const Socket &guest, const void *data, size_t bytes) {
    return send(guest.get(), data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

void test_gloo_meeting__who_proves_its_rank_is_let_in(void **) {
    Port port;
    const Socket guest = port.come();
    const Greeting greeting = port.greeted(guest);
    const Answer answer = port.answer(2, greeting);
    port.known = 2;                                  // its card is not here yet
    for (size_t i = 0; i < sizeof answer; i += 24) { // in pieces
        assert_true(say(guest, reinterpret_cast<const char *>(&answer) + i, 24));
        port.turn();
        assert_true(Port::stays(guest));
    }
    const std::vector<char> more(65536); // is not read here
    assert_true(say(guest, more.data(), more.size()));
    for (int i = 0; i < 3; i++)
        port.turn();
    assert_true(Port::stays(guest));
    assert_true(port.arrived.empty());
    port.known = 3;
    port.turn();
    assert_true(port.arrived == std::vector<uint32_t>{ 2 });
    Bytes32 proof{};
    assert_int_equal(recv(guest.get(), proof.data(), proof.size(), MSG_WAITALL), proof.size());
    assert_true(proof == prove({ port.group, port.key, port.card.key, 1, 2, greeting.nonce, answer.nonce }, //
                               Side::kListens));
}

void test_gloo_meeting__who_proves_nothing_is_let_go(void **) {
    static const std::function<void(Port &, Answer &)> faults[] = {
        [](Port &, Answer &a) { a.magic++; },         [](Port &, Answer &a) { a.proof[31] ^= 1; },
        [](Port &, Answer &a) { a.proof[0] ^= 128; }, [](Port &, Answer &a) { a.nonce[0] ^= 1; },
        [](Port &, Answer &a) { a.rank = 3; },        [](Port &p, Answer &) { p.card.key[7] ^= 1; },
        [](Port &p, Answer &) { p.key[7] ^= 1; },
    };
    for (const auto &fault : faults) {
        Port port;
        const Socket guest = port.come();
        Answer answer = port.answer(2, port.greeted(guest));
        fault(port, answer);
        assert_true(say(guest, &answer, sizeof answer));
        port.turn();
        assert_false(Port::stays(guest));
        assert_true(port.arrived.empty());
    }
    for (uint32_t rank = 0; rank < 2; rank++) { // with a proof: only ranks above come here
        Port port;
        const Socket guest = port.come();
        const Answer answer = port.answer(rank, port.greeted(guest));
        assert_true(say(guest, &answer, sizeof answer));
        port.turn();
        assert_false(Port::stays(guest));
        assert_true(port.arrived.empty());
    }
}

// Four bytes tell a stranger; three do not.
void test_gloo_meeting__a_stranger_is_let_go_at_its_first_word(void **) {
    Port port;
    const Socket guest = port.come();
    port.greeted(guest);
    assert_true(say(guest, "GET", 3));
    port.turn();
    assert_true(Port::stays(guest));
    assert_true(say(guest, " ", 1));
    port.turn();
    assert_false(Port::stays(guest));
}

void test_gloo_meeting__a_guest_has_five_seconds(void **) {
    Port port;
    const Socket guest = port.come();
    port.greeted(guest);
    port.turn(5000 * kMs - 1);
    assert_true(Port::stays(guest));
    port.turn(5000 * kMs);
    assert_false(Port::stays(guest));
}

// Of 128 guests the oldest makes room; no more are greeted at once.
void test_gloo_meeting__strangers_do_not_fill_the_house(void **) {
    Port port;
    std::vector<Socket> guests;
    for (int i = 0; i < 129; i++)
        guests.push_back(port.come());
    port.greeted(guests[127]);
    assert_true(Port::stays(guests[0]));
    port.greeted(guests[128]);
    assert_false(Port::stays(guests[0]));
    assert_true(Port::stays(guests[1]));
    assert_true(Port::stays(guests[128]));
    std::vector<struct pollfd> fds;
    port.reception.poll_for(&fds);
    assert_int_equal(fds.size(), 129);
    for (const auto &fd : fds)
        assert_int_equal(fd.events, POLLIN);
}

void test_gloo_meeting__a_port_that_is_taken_is_named(void **) {
    const Port port;
    const std::string group = "group";
    const struct sockaddr_storage taken = port.reception.address();
    assert_failed(failure_in([&] { Reception(group, 1, taken); }), TESS_E_SYSTEM, -1,
                  "gloo cannot listen on " + address_text(taken) +
                      " (TESSERA_INTERFACE, TESSERA_GLOO_HOSTNAME): Address already in use");
}

// Whatever differs, the proof does.
void test_gloo_meeting__a_proof_is_of_everything(void **) {
    const std::string group = "group", other = "groux";
    Bytes32 keys[2] = { random_bytes(), random_bytes() }, nonces[2] = { random_bytes(), random_bytes() };
    const auto proof = [&](const std::string &g, uint32_t low, uint32_t high, Side side) {
        return prove({ g, keys[0], keys[1], low, high, nonces[0], nonces[1] }, side);
    };
    const Bytes32 first = proof(group, 1, 2, Side::kConnects);
    assert_true(same(first, proof(group, 1, 2, Side::kConnects)));
    assert_false(same(first, proof(other, 1, 2, Side::kConnects)));
    assert_false(same(first, proof(group, 0, 2, Side::kConnects)));
    assert_false(same(first, proof(group, 1, 3, Side::kConnects)));
    assert_false(same(first, proof(group, 1, 2, Side::kListens)));
    for (Bytes32 *part : { &keys[0], &keys[1], &nonces[0], &nonces[1] }) {
        (*part)[31] ^= 1;
        assert_false(same(first, proof(group, 1, 2, Side::kConnects)));
        (*part)[31] ^= 1;
    }
    assert_false(same(keys[0], random_bytes()));
    no_hmac = true;
    assert_failed(failure_in([&] { proof(group, 1, 2, Side::kConnects); }), TESS_E_SYSTEM, -1,
                  "gloo: OpenSSL computes no HMAC");
    no_hmac = false, no_random = true;
    assert_failed(failure_in([&] { random_bytes(); }), TESS_E_SYSTEM, -1, "gloo: the system gives no random bytes");
    no_random = false;
}

} // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gloo_meeting__a_rank_listens_where_it_is_told),
        cmocka_unit_test(test_gloo_meeting__an_address_that_is_not_here_is_named),
        cmocka_unit_test(test_gloo_meeting__a_heartbeat_is_the_silence_that_counts),
        cmocka_unit_test(test_gloo_meeting__a_device_that_cannot_be_made_is_asked_for_again),
        cmocka_unit_test(test_gloo_meeting__bad_cards_are_refused),
        cmocka_unit_test(test_gloo_meeting__a_store_that_refuses_is_named),
        cmocka_unit_test(test_gloo_meeting__a_late_card_is_asked_for_again),
        cmocka_unit_test(test_gloo_meeting__a_rank_needs_a_file_for_each_other),
        cmocka_unit_test(test_gloo_meeting__who_cannot_be_reached_is_named_with_the_reason),
        cmocka_unit_test(test_gloo_meeting__who_does_not_answer_is_named),
        cmocka_unit_test(test_gloo_meeting__a_rank_waits_for_those_above),
        cmocka_unit_test(test_gloo_meeting__who_greets_otherwise_is_left),
        cmocka_unit_test(test_gloo_meeting__who_was_reached_and_is_gone_is_named),
        cmocka_unit_test(test_gloo_meeting__without_a_heartbeat_a_rank_is_tried_until_a_stop),
        cmocka_unit_test(test_gloo_meeting__who_says_nothing_is_tried_again),
        cmocka_unit_test(test_gloo_meeting__who_proves_its_rank_is_let_in),
        cmocka_unit_test(test_gloo_meeting__who_proves_nothing_is_let_go),
        cmocka_unit_test(test_gloo_meeting__a_stranger_is_let_go_at_its_first_word),
        cmocka_unit_test(test_gloo_meeting__a_guest_has_five_seconds),
        cmocka_unit_test(test_gloo_meeting__strangers_do_not_fill_the_house),
        cmocka_unit_test(test_gloo_meeting__a_port_that_is_taken_is_named),
        cmocka_unit_test(test_gloo_meeting__a_proof_is_of_everything),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

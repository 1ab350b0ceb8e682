/* SPDX-License-Identifier: BSD-3-Clause */
// How ranks of comm-gloo part: what the others hear of an abort, a mismatch, an end and a goodbye, and when.
#include "gloo_ranks.h"
#include "plugins/comm-gloo/communicator.h"

#include <dirent.h>
#include <unistd.h>

#include <cinttypes>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>

extern "C" {
#include <cmocka.h> // last: it defines "fail"
}

using namespace tess_gloo;

namespace {

constexpr int64_t kLongNs = INT64_C(20000000000); // what a busy machine may need

struct Member {
    Member(std::shared_ptr<Host::Store> store, int rank, int size)
        : host(std::move(store), { { "heartbeat", "0" } }), settings(new Settings(&host.table)) {
        tess_comm_config config{};
        config.struct_size = sizeof config, config.rank = rank, config.nranks = size;
        comm.reset(new Communicator(settings, config, "group"));
    }
    Host host;
    std::shared_ptr<Settings> settings;
    std::unique_ptr<Communicator> comm;
};

class World {
  public:
    explicit World(int size) {
        auto store = std::make_shared<Host::Store>();
        std::vector<std::unique_ptr<Call>> starting;
        for (int r = 0; r < size; r++)
            members_.emplace_back(new Member(store, r, size));
        for (const auto &m : members_)
            starting.emplace_back(new Call([&m] { m->comm->start(kLongNs); }));
        for (const auto &call : starting)
            if (call->join().code != TESS_OK)
                failure = call->join().message;
    }
    Communicator *operator[](int r) { return members_[r]->comm.get(); }
    void destroy(int r) { members_[r]->comm.reset(); }
    std::string failure;

  private:
    std::vector<std::unique_ptr<Member>> members_;
};

void assert_met(const World &world) {
    assert_string_equal(world.failure.c_str(), "");
}

void assert_failed(const tess_error &e, tess_status code, int rank, const char *message) {
    if (e.code != code || e.rank != rank || strstr(e.message, message) != e.message)
        fail_msg("status %d, rank %d: %s", e.code, e.rank, e.message);
}

tess_request *post_barrier(Communicator *comm, uint64_t tag = 0) {
    tess_collective c{};
    tess_request *request = nullptr;
    tess_error e{};
    c.struct_size = sizeof c, c.op = TESS_BARRIER, c.scale = 1, c.tag = tag;
    e.struct_size = sizeof e;
    if (kit_slot_post(comm, &c, 1, &request, &e) != TESS_OK)
        fail_msg("status %d: %s", e.code, e.message);
    return request;
}

tess_error outcome(tess_request *request) {
    tess_error e{};
    e.struct_size = sizeof e, e.rank = -1;
    e.code = kit_slot_wait(request, kLongNs, &e);
    kit_slot_request_free(request);
    return e;
}

tess_error health(Communicator *comm) {
    tess_error e{};
    e.struct_size = sizeof e, e.rank = -1;
    e.code = kit_slot_health(comm, &e);
    return e;
}

int sockets() {
    int n = 0;
    char to[64];
    DIR *dir = opendir("/proc/self/fd");
    while (const struct dirent *entry = readdir(dir)) {
        const ssize_t bytes = readlinkat(dirfd(dir), entry->d_name, to, sizeof to);
        n += bytes > 7 && memcmp(to, "socket:", 7) == 0;
    }
    closedir(dir);
    return n;
}

// ---- threads ----------------------------------------------------------------------------------------

// The threads of that name which block these signals.
int threads_named(const char *name, uint64_t blocked) {
    int n = 0;
    DIR *dir = opendir("/proc/self/task");
    while (const struct dirent *entry = readdir(dir)) {
        std::ifstream status(std::string("/proc/self/task/") + entry->d_name + "/status");
        std::string line, own_name;
        for (uint64_t mask; std::getline(status, line);)
            if (line.find("Name:\t") == 0)
                own_name = line.substr(6);
            else if (sscanf(line.c_str(), "SigBlk: %" SCNx64, &mask) == 1)
                n += own_name == name && (mask & blocked) == blocked;
    }
    closedir(dir);
    return n;
}

// No signal of the program's reaches them. The watcher that has seen the other's end may end too.
void test_gloo_parting__threads_have_names_and_no_signals(void **) {
    const uint64_t blocked = UINT64_C(1) << (SIGPIPE - 1) | UINT64_C(1) << (SIGTERM - 1) | UINT64_C(1) << (SIGINT - 1);
    World world(2);
    assert_met(world);
    for (const char *name : { "tess-gloo-io", "tess-gloo-work", "tess-gloo-watch" })
        assert_true(becomes([&] { return threads_named(name, blocked) == 2; }));
    for (int r = 0; r < 2; r++) {
        world.destroy(r);
        for (const char *name : { "tess-gloo-work", "tess-gloo-watch" })
            assert_true(becomes([&] { return threads_named(name, 0) <= 1 - r; }));
    }
}

// ---- aborts -----------------------------------------------------------------------------------------

// The others need not wait until the communicator is destroyed.
void test_gloo_parting__an_abort_is_heard_at_once(void **) {
    World world(3);
    assert_met(world);
    tess_request *waiting[2] = { post_barrier(world[1]), post_barrier(world[2]) };
    assert_int_equal(kit_slot_abort(world[0], TESS_E_ABORTED), TESS_OK);
    assert_failed(outcome(waiting[0]), TESS_E_PEER, 0, "connection to rank 0 lost: ");
    assert_failed(outcome(waiting[1]), TESS_E_PEER, 0, "connection to rank 0 lost: ");
    assert_int_equal(health(world[0]).code, TESS_E_ABORTED);
}

void test_gloo_parting__one_rank_alone_may_abort(void **) {
    World world(1);
    assert_met(world);
    assert_int_equal(outcome(post_barrier(world[0])).code, TESS_OK);
    assert_int_equal(kit_slot_abort(world[0], TESS_E_ABORTED), TESS_OK);
    assert_int_equal(health(world[0]).code, TESS_E_ABORTED);
}

// A rank that has lost one is not lost to the others: they name the one that ended.
void test_gloo_parting__who_has_lost_a_rank_stays_for_the_others(void **) {
    World world(3);
    assert_met(world);
    const int before = sockets();
    tess_request *waiting = post_barrier(world[0]);
    world.destroy(2);
    assert_failed(outcome(waiting), TESS_E_PEER, 2, "connection to rank 2 lost: ");
    assert_true(becomes([&] { return health(world[1]).code != TESS_OK; }));
    assert_failed(health(world[1]), TESS_E_PEER, 2, "connection to rank 2 lost: it closed");
    assert_true(becomes([&] { return sockets() == before - 4; })); // both ends of two connections
    pause_ms(20);
    assert_int_equal(sockets(), before - 4);
    assert_int_equal(kit_slot_abort(world[0], TESS_E_ABORTED), TESS_OK);
    assert_int_equal(kit_slot_abort(world[1], TESS_E_ABORTED), TESS_OK);
    assert_true(becomes([&] { return sockets() == before - 6; }));
}

// ---- mismatches -------------------------------------------------------------------------------------

// The connections stay open, so that all read the headers; with the abort they are given back.
void test_gloo_parting__a_mismatch_keeps_connections_until_the_abort(void **) {
    World world(3);
    assert_met(world);
    const int before = sockets();
    tess_request *waiting[3];
    for (int r = 0; r < 3; r++)
        waiting[r] = post_barrier(world[r], r == 1 ? 8 : 7);
    for (int r = 0; r < 3; r++)
        assert_failed(outcome(waiting[r]), TESS_E_MISMATCH, r == 1 ? 0 : 1, "gloo: ");
    pause_ms(20);
    assert_int_equal(sockets(), before);
    assert_int_equal(kit_slot_abort(world[0], TESS_E_ABORTED), TESS_OK);
    assert_true(becomes([&] { return sockets() == before - 4; })); // the others close theirs
    assert_int_equal(kit_slot_abort(world[1], TESS_E_ABORTED), TESS_OK);
    assert_true(becomes([&] { return sockets() == before - 6; }));
}

// ---- ends -------------------------------------------------------------------------------------------

// Nothing is in flight: the end is noticed all the same, and the next post is refused with it.
void test_gloo_parting__an_end_is_noticed_between_collectives(void **) {
    World world(2);
    assert_met(world);
    assert_int_equal(health(world[0]).code, TESS_OK);
    world.destroy(1);
    assert_true(becomes([&] { return health(world[0]).code != TESS_OK; }));
    assert_failed(health(world[0]), TESS_E_PEER, 1, "connection to rank 1 lost: it closed");
    tess_collective c{};
    tess_request *request = nullptr;
    tess_error e{};
    c.struct_size = sizeof c, c.op = TESS_BARRIER, c.scale = 1;
    e.struct_size = sizeof e;
    assert_int_equal(kit_slot_post(world[0], &c, 1, &request, &e), TESS_E_PEER);
}

// Behind a goodbye an end is no loss, in whatever order.
void test_gloo_parting__after_a_goodbye_an_end_is_no_loss(void **) {
    World world(3);
    assert_met(world);
    std::vector<std::unique_ptr<Call>> leaving;
    for (int r = 0; r < 3; r++)
        leaving.emplace_back(new Call([&world, r] {
            tess_error e{};
            e.struct_size = sizeof e;
            if (kit_slot_finalize(world[r], kLongNs, &e) != TESS_OK)
                throw Failure(e);
        }));
    for (const auto &call : leaving)
        assert_string_equal(call->join().message, "");
    world.destroy(1);
    pause_ms(50);
    assert_int_equal(health(world[0]).code, TESS_OK);
    assert_int_equal(health(world[2]).code, TESS_OK);
}

} // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gloo_parting__threads_have_names_and_no_signals),
        cmocka_unit_test(test_gloo_parting__an_abort_is_heard_at_once),
        cmocka_unit_test(test_gloo_parting__one_rank_alone_may_abort),
        cmocka_unit_test(test_gloo_parting__who_has_lost_a_rank_stays_for_the_others),
        cmocka_unit_test(test_gloo_parting__a_mismatch_keeps_connections_until_the_abort),
        cmocka_unit_test(test_gloo_parting__an_end_is_noticed_between_collectives),
        cmocka_unit_test(test_gloo_parting__after_a_goodbye_an_end_is_no_loss),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

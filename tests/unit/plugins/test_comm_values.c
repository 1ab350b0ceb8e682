/* SPDX-License-Identifier: BSD-3-Clause */
/* comm-shm and comm-gloo among threads: every collective has its values, small and large, on one to five ranks, in
 * memory of the plugin's own too, and in groups that are split off. */
#include "tests/unit/plugins/comm_ranks.h"

static void each_number(const char *comm) {
    if (!open_library(comm)) {
        printf("without comm-%s, which is not built\n", comm);
        return;
    }
    for (int n = 1; n <= 5; n++) {
        rank_state ranks[RANKS] = { 0 };
        run_ranks(ranks, n, n, work_all);
    }
}

static void test_comm_values__shm(void **state) {
    (void)state;
    each_number("shm");
}

static void test_comm_values__gloo(void **state) {
    (void)state;
    each_number("gloo");
}

/* Even and odd ranks, in order and turned round; rank 0 in none. */
static void work_split(rank_state *r, tess_comm *comm) {
    for (int turned = 0; turned < 2; turned++) {
        char name[16];
        snprintf(name, sizeof name, "s%d.%d", turned, r->rank % 2);
        const tess_comm_config config = {
            .struct_size = sizeof config, .group = name, .timeout_ns = 20000000000, .device = -1
        };
        tess_comm *child = NULL;
        int of[RANKS], n = 0, self = 0;
        for (int i = 1; i < r->n; i++) {
            const int other = turned ? r->n - i : i;
            self = other == r->rank ? n : self;
            if (other % 2 == r->rank % 2)
                of[n++] = other;
        }
        CHECK(r->ops->split(comm, r->rank ? r->rank % 2 : -1, turned ? -r->rank : 0, &config, &child, &r->error) ==
              TESS_OK);
        CHECK(!child == !r->rank);
        if (!child)
            continue;
        try_all(r, child, self, n, of);
        CHECK(r->ops->finalize(child, 20000000000, &r->error) == TESS_OK);
        r->ops->destroy(child);
    }
}

static void test_comm_values__groups(void **state) {
    (void)state;
    static const char *const comms[] = { "shm", "gloo" };
    for (int i = 0; i < 2; i++)
        if (open_library(comms[i])) {
            rank_state ranks[RANKS] = { 0 };
            run_ranks(ranks, 6, 6, work_split);
        }
}

/* Reductions and gathers that ranks read where they lie. */
static void work_in_arena(rank_state *r, tess_comm *comm) {
    const uint64_t count = 20000, n = (uint64_t)r->n;
    tess_alloc_request ask = { .struct_size = sizeof ask, .mem = TESS_MEM_HOST, .align = 4096 };
    tess_buffer b = { .struct_size = sizeof b };
    ask.bytes = 8 * count * n;
    CHECK(r->ops->mem_alloc(comm, &ask, &b, &r->error) == TESS_OK && b.bytes >= ask.bytes);
    float *send = b.ptr, *recv = send + count * n;
    for (int turn = 0; turn < 3; turn++) {
        tess_collective c = {
            .op = TESS_REDUCE_SCATTER, .redop = TESS_SUM, .send_dtype = TESS_F32, .recv_dtype = TESS_F32
        };
        c.send = send;
        c.recv = recv;
        c.send_reg = c.recv_reg = b.reg;
        c.count = count;
        c.scale = 1;
        for (uint64_t i = 0; i < count * n; i++)
            send[i] = (float)value(r->rank + turn, i);
        CHECK(call(r, comm, r->n, &c) == TESS_OK);
        uint64_t bad = 0;
        for (uint64_t i = 0; i < count; i++) {
            double sum = 0;
            for (int s = 0; s < r->n; s++)
                sum += value(s + turn, (uint64_t)r->rank * count + i);
            bad += (double)recv[i] != sum;
        }
        CHECK(bad == 0);
        c.op = TESS_ALL_GATHER; /* in place */
        c.redop = 0;
        c.send = send + (uint64_t)r->rank * count;
        c.recv = send;
        for (uint64_t i = 0; i < count; i++)
            send[(uint64_t)r->rank * count + i] = (float)value(r->rank - turn, i);
        CHECK(call(r, comm, r->n, &c) == TESS_OK);
        for (uint64_t i = 0; i < count * n; i++)
            bad += (double)send[i] != value((int)(i / count) - turn, i % count);
        CHECK(bad == 0);
    }
    r->ops->mem_free(comm, &b);
}

static void test_comm_values__memory_of_its_own(void **state) {
    (void)state;
    for (int n = 2; n <= 4; n++) {
        rank_state ranks[RANKS] = { 0 };
        if (open_library("shm"))
            run_ranks(ranks, n, n, work_in_arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_values__shm),
        cmocka_unit_test(test_comm_values__gloo),
        cmocka_unit_test(test_comm_values__groups),
        cmocka_unit_test(test_comm_values__memory_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

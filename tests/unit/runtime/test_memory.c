/* SPDX-License-Identifier: BSD-3-Clause */
/* The arenas of a plan made by hand, over a device and a communicator of the test's own that write down their calls:
 * what is asked of whom, what is zero at first, what budgets allow, and that all comes back where it came from. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "core/runtime/memory.h"
#include "tests/unit/said.h"

struct tess_comm {
    int unused;
};
enum { KIB = 1024, STRIDE = 3 };

static struct {
    int live, no_room; /* no_room: the n-th allocation from now fails */
    int32_t node;
    tess_status describe, fill;
    int nodes_asked, syncs, tables, no_table; /* no_table: the n-th from now is not there */
    tess_store_config store;
    int stores, tells;
    const void *told; /* where a step's requests lie, as the store was told */
    uint64_t told_bytes;
    uint64_t held_least;
    char name_asked[32];
} world;
static struct tess_comm comms[4];
static tess__memory m;
static tess__plan plan;
static tess__comms comm;
static tess__device device;
static tess__streams streams;

static const char *kind(uint32_t mem) {
    return mem == TESS_MEM_HOST ? "host" : mem == TESS_MEM_PINNED ? "pinned" : "cuda";
}
static tess_status give(const char *who, const tess_alloc_request *r, tess_buffer *out, tess_error *e) {
    assert_true(r->struct_size == sizeof *r && out->struct_size == sizeof *out);
    say("%s: %s of domain %u, %u, node %d, %uK by %u%s; ", who, kind(r->mem), r->domain, r->category, r->numa_node,
        (unsigned)(r->bytes / KIB), (unsigned)r->align, r->flags & TESS_ALLOC_MAY_UNPIN ? ", may unpin" : "");
    if (world.no_room && --world.no_room == 0) {
        snprintf(e->message, sizeof e->message, "no room");
        return TESS_E_NOMEM;
    }
    *out = (tess_buffer){ .struct_size = sizeof *out, .mem = r->mem, .ptr = malloc(r->bytes), .bytes = r->bytes };
    memset(out->ptr, 'x', r->bytes);
    world.live++;
    return TESS_OK;
}
static void take(const char *who, tess_buffer *b) {
    say("%s takes %s %uK; ", who, kind(b->mem), (unsigned)(b->bytes / KIB));
    world.live--;
    free(b->ptr);
}
static tess_status device_alloc(tess_device *d, const tess_alloc_request *r, tess_buffer *out, tess_error *e) {
    (void)d;
    return give("device", r, out, e);
}
static void device_free(tess_device *d, tess_buffer *b) {
    (void)d;
    take("device", b);
}
static tess_status device_fill(tess_device *d, void *at, uint8_t byte, uint64_t bytes, const tess_stream *s,
                               tess_error *e) {
    (void)d, (void)e;
    assert_ptr_equal(s, &device.compute);
    say("fill %uK with %u; ", (unsigned)(bytes / KIB), byte);
    memset(at, byte, bytes);
    return world.fill;
}
static tess_status device_describe(void *ctx, int32_t index, tess_device_info *out, tess_error *e) {
    (void)ctx, (void)e;
    assert_int_equal(index, 5);
    out->numa_node = world.node;
    memset(out->id, 'z', sizeof out->id);
    return world.describe;
}
static tess_status comm_query(void *ctx, tess_comm *c, tess_comm_caps *out) {
    (void)ctx;
    assert_ptr_equal(c, &comms[0]);
    out->mem_mask = 1u << TESS_MEM_CUDA;
    return TESS_OK;
}
static tess_status comm_alloc(tess_comm *c, const tess_alloc_request *r, tess_buffer *out, tess_error *e) {
    assert_ptr_equal(c, &comms[0]);
    tess_status s = give("comm", r, out, e);
    out->reg = &comms[0];
    return s;
}
static void comm_free(tess_comm *c, tess_buffer *b) {
    assert_ptr_equal(c, &comms[0]);
    take("comm", b);
}
static tess_status comm_register(tess_comm *c, tess_buffer *b, tess_error *e) {
    (void)e;
    assert_true(!b->reg && b->ptr);
    say("register %d; ", (int)(c - comms));
    b->reg = c;
    return TESS_OK;
}
static void comm_deregister(tess_comm *c, tess_buffer *b) {
    assert_ptr_equal(b->reg, c);
    say("deregister %d; ", (int)(c - comms));
}
static const tess_device_ops device_ops = { .struct_size = sizeof device_ops,
                                            .describe = device_describe,
                                            .mem_alloc = device_alloc,
                                            .mem_free = device_free,
                                            .fill = device_fill };
static const tess_comm_ops comm_ops = { .struct_size = sizeof comm_ops,
                                        .query = comm_query,
                                        .mem_alloc = comm_alloc,
                                        .mem_free = comm_free,
                                        .mem_register = comm_register,
                                        .mem_deregister = comm_deregister };
static const tess__plugin device_plugin = { .kind = TESS_KIND_DEVICE, .name = "fake", .ops = &device_ops },
                          comm_plugin = { .kind = TESS_KIND_COMM, .name = "fake", .ops = &comm_ops };

static int32_t nearest(const char *id, const char *cpus) {
    assert_string_equal(cpus, "");
    world.nodes_asked++;
    assert_true(!*id || strnlen(id, 52) == 51); /* a name that fills its room ends there */
    snprintf(world.name_asked, sizeof world.name_asked, "%.3s", id);
    return 7;
}
static uint64_t measured(int role, int32_t index, const tess__instr *in) {
    if (role == TESS__SAVED)
        return 0;
    return (uint64_t)(role == TESS__STAGE ? 300 : 500) + (uint64_t)index + (in ? 1000u : 0);
}
static void ask(tess__held *h, uint64_t booked) {
    (void)h;
    world.held_least = booked;
}
static void *get_table(size_t n, size_t bytes) {
    assert_true(n * bytes > 0);
    if (world.no_table && --world.no_table == 0)
        return NULL;
    world.tables++;
    return calloc(n, bytes);
}
static void give_table(void *p) {
    world.tables -= p != NULL;
    free(p);
}
static tess_status open_store(tess__offload_store *s, const tess__setup *u, const tess_store_config *k, uint64_t *out) {
    assert_true(s == &m.store && u == &plan.setup);
    world.store = *k;
    world.stores++;
    *out = k->bytes + KIB;
    return k->bytes > 20 * KIB ? tess__fail(TESS_E_SYSTEM, "the disk is full") : TESS_OK;
}
static tess_status tell(tess__offload_store *s, const void *memory, uint64_t bytes) {
    assert_true(s == &m.store && (!memory) == (bytes == 0));
    world.told = memory;
    world.told_bytes = bytes;
    world.tells++;
    return TESS_OK;
}
#define calloc get_table
#define free give_table
#define tess__offload_open open_store
#define tess__offload_memory tell
#define tess__offload_close(s) ((void)world.stores--)
#define tess__numa_nearest nearest
#define tess__measure(p, needs, program, saved, in, role, index) ((void)(program), measured(role, index, in))
#define tess__streams_sync(s) (world.syncs++, TESS_OK)
#define tess__held_ask ask
/* As in a build that does not check accesses, whatever this one is: the test looks at what no buffer holds. */
#define TESS_POISON_H
enum { TESS__CHECKING = 0 };
#define tess__poison(at, bytes) ((void)(at), (void)(bytes))
#define tess__unpoison(at, bytes) ((void)(at), (void)(bytes))
#include "core/runtime/memory.c"
#undef calloc
#undef free

/* A stage and buffers rest on the device, a master in the host's memory; a step has an output on the device and one
 * saved in the host's memory. */
static tess__buffer rest[] = {
    { TESS__STAGE, TESS_DOMAIN_DEVICE, TESS__RESIDENT, TESS_CAT_COMM, 0, -1, 300, 64, 0, 0 },
    { TESS__SHARD_GRAD, TESS_DOMAIN_DEVICE, TESS__RESIDENT, TESS_CAT_SHARD_GRAD, 1, -1, 500, 512, 0, 0 },
    { TESS__MASTER, TESS_DOMAIN_HOST, TESS__PAGEABLE, TESS_CAT_SHARD_PARAM, 2, -1, 500, 128, 0, 0 },
};
static tess__buffer step[] = {
    { TESS__OUTPUT, TESS_DOMAIN_DEVICE, TESS__STEP, TESS_CAT_ACTIVATION, 0, -1, 1500, 256, 0, 0 },
    { TESS__SAVED_HOST, TESS_DOMAIN_HOST, TESS__STEP, TESS_CAT_ACTIVATION, 2, -1, 1502, 192, 0, 0 },
};

/* Where the device has memory of its own, a communicator allocates it, and two more want to know of it. */
static void begin(uint32_t mem) {
    memset(&world, 0, sizeof world);
    said_so_far[0] = 0;
    memset(&m, 0, sizeof m);
    memset(&plan, 0, sizeof plan);
    comm = (tess__comms){ .plugin = &comm_plugin, .ops = &comm_ops, .device = &device };
    comm.list[TESS__WORLD] = comm.list[TESS__SHARD] = comm.list[TESS__SHARD_SUMS] = &comms[0];
    comm.world = (tess__world){ .rank = 3, .nranks = 4, .local_rank = 1 };
    device = (tess__device){ .plugin = &device_plugin, .ops = &device_ops, .mem = mem, .handle = (void *)&device };
    streams = (tess__streams){ .on = mem != TESS_MEM_HOST };
    plan.setup.nranks = plan.setup.shard_ranks = plan.setup.replicas = 1;
    plan.setup.granularity = 2 * KIB;
    plan.setup.align = 64;
    plan.setup.offload_name = "test";
    plan.layout.store_align = 512;
    plan.layout.n_units = 2;
    plan.compiler.stride = STRIDE;
    plan.resident.buffers = rest;
    plan.resident.n_buffers = 3;
    plan.resident.step_bytes[TESS_DOMAIN_DEVICE] = 3 * KIB;
    plan.resident.step_bytes[TESS_DOMAIN_HOST] = KIB;
    plan.resident.pageable_bytes = mem == TESS_MEM_HOST ? 5 * KIB : 0;
    plan.resident.n_buffers = mem == TESS_MEM_HOST ? 3 : 2;
    plan.programs[1].step_bytes[TESS_DOMAIN_DEVICE] = 7 * KIB;
    plan.programs[1].step_bytes[TESS_DOMAIN_HOST] = 9 * KIB;
    plan.programs[1].buffers = step;
    plan.programs[1].n_buffers = 2;
    world.node = 3;
    m.plan = &plan, m.device = &device, m.comms = &comm, m.streams = &streams;
    assert_int_equal(tess__memory_create(&m), TESS_OK);
    assert_int_equal(m.cap_overflow, 8 * STRIDE + 64);
    assert_true(m.address[TESS__N_ROLES - 1] && m.ledger.units && m.comm_scratch.gather && m.first_fit.cap == 88);
}

static void obtain(uint32_t mem) {
    begin(mem);
    assert_int_equal(tess__memory_obtain(&m, 5), TESS_OK);
    said_so_far[0] = 0;
}

static void end(void) {
    tess__memory_release(&m, 1); /* as the engine does, before communicators end */
    tess__memory_free(&m);
    assert_true(world.live == 0 && world.tables == 0 && world.stores == 0);
    assert_true(!m.overflow && !m.first_fit.taken && !m.ledger.units && !m.comm_scratch.gather);
    for (uint32_t d = 1; d < TESS__DOMAINS; d++)
        assert_int_equal(m.obtained[d], 0);
}

static void fails(tess_status s, tess_status want, const char *text) {
    assert_int_equal(s, want);
    assert_string_equal(tess_last_error(), text);
}

static int all_are(const void *at, char byte, uint64_t bytes) {
    const char *p = at;
    for (uint64_t i = 0; i < bytes; i++)
        if (p[i] != byte)
            return 0;
    return 1;
}

/* ---- arenas ---- */

static void test_memory__each_arena_is_asked_for_as_it_is_planned(void **state) {
    (void)state;
    begin(TESS_MEM_HOST);
    assert_int_equal(tess__memory_obtain(&m, 5), TESS_OK);
    expect_said("device: host of domain 1, 0, node -1, 4K by 64; device: host of domain 1, 0, node -1, 8K by 64; "
                "device: pinned of domain 2, 0, node 3, 2K by 512, may unpin; "
                "device: pinned of domain 2, 0, node 3, 10K by 512, may unpin; "
                "device: host of domain 2, 0, node 3, 6K by 512; fill 4K with 0; ");
    assert_true(m.obtained[TESS_DOMAIN_DEVICE] == 12 * KIB && m.obtained_peak[TESS_DOMAIN_HOST] == 18 * KIB);
    assert_true(m.arena_bytes[TESS_DOMAIN_HOST][TESS__PAGEABLE] == 6 * KIB);
    for (uint32_t d = 1; d <= TESS_DOMAIN_HOST; d++) /* what rests is zero at first */
        for (uint32_t a = TESS__RESIDENT; a <= TESS__PAGEABLE; a++)
            if (m.arenas[d][a].memory.ptr)
                assert_true(all_are(m.arenas[d][a].memory.ptr, a == TESS__STEP ? 'x' : 0, m.arena_bytes[d][a]));
    assert_ptr_equal(m.address[TESS__STAGE][0], (char *)m.arenas[TESS_DOMAIN_DEVICE][TESS__RESIDENT].memory.ptr + 64);
    assert_ptr_equal(m.address[TESS__MASTER][2], (char *)m.arenas[TESS_DOMAIN_HOST][TESS__PAGEABLE].memory.ptr + 128);
    assert_true(m.booked[TESS__STAGE][0] && m.booked[TESS__MASTER][2] && !m.booked[TESS__SHARD_GRAD][1]);
    assert_true(m.ledger.total[TESS_DOMAIN_DEVICE] == 300 && m.ledger.total[TESS_DOMAIN_HOST] == 502);
    said_so_far[0] = 0;
    end();
    expect_said("device takes pinned 2K; device takes pinned 10K; device takes host 6K; device takes host 4K; "
                "device takes host 8K; ");
}

static void test_memory__a_communicator_allocates_what_it_reaches_best(void **state) {
    (void)state;
    begin(TESS_MEM_CUDA);
    comm.list[TESS__REPLICA] = &comms[1];
    comm.list[TESS__SHARD] = &comms[3];
    comm.list[TESS__SHARD_SUMS] = &comms[2];
    assert_int_equal(tess__memory_obtain(&m, 5), TESS_OK);
    expect_said("comm: cuda of domain 1, 0, node -1, 4K by 64; register 3; register 1; register 2; "
                "comm: cuda of domain 1, 0, node -1, 8K by 64; register 3; register 1; register 2; "
                "device: pinned of domain 2, 0, node 3, 2K by 512; device: pinned of domain 2, 0, node 3, 10K by 512; "
                "fill 4K with 0; ");
    assert_ptr_equal(tess__comms_registration(&comm, &comms[2], m.address[TESS__STAGE][0]), &comms[2]);
    tess__memory_release(&m, 1); /* what a communicator had, when there are to be new ones */
    expect_said("deregister 3; deregister 1; deregister 2; comm takes cuda 4K; deregister 3; deregister 1; deregister "
                "2; comm takes cuda 8K; ");
    assert_true(m.obtained[TESS_DOMAIN_DEVICE] == 0 && m.obtained[TESS_DOMAIN_HOST] == 12 * KIB);
    assert_int_equal(m.arena_bytes[TESS_DOMAIN_DEVICE][TESS__STEP], 0);
    void *was = m.arenas[TESS_DOMAIN_HOST][TESS__RESIDENT].memory.ptr;
    memset(was, 'y', KIB);
    comm.list[TESS__REPLICA] = comm.list[TESS__SHARD] = comm.list[TESS__SHARD_SUMS] = NULL;
    m.address[TESS__STAGE][0] = NULL;
    assert_int_equal(tess__memory_renew(&m), TESS_OK);
    expect_said("comm: cuda of domain 1, 0, node -1, 4K by 64; fill 4K with 0; "
                "comm: cuda of domain 1, 0, node -1, 8K by 64; ");
    assert_true(m.arenas[TESS_DOMAIN_HOST][TESS__RESIDENT].memory.ptr == was && all_are(was, 'y', KIB));
    assert_ptr_equal(m.address[TESS__STAGE][0], (char *)m.arenas[TESS_DOMAIN_DEVICE][TESS__RESIDENT].memory.ptr + 64);
    assert_true(m.obtained[TESS_DOMAIN_DEVICE] == 12 * KIB && m.obtained_peak[TESS_DOMAIN_DEVICE] == 12 * KIB);
    tess__memory_release(&m, 0); /* and what the device had */
    expect_said("device takes pinned 2K; device takes pinned 10K; ");
    tess__memory_release(&m, 1);
    end();
}

static void test_memory__host_memory_lies_near_the_device(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        begin(i == 3 ? TESS_MEM_HOST : TESS_MEM_CUDA);
        world.node = i ? -1 : 0;
        world.describe = i == 2 ? TESS_E_DEVICE : TESS_OK;
        assert_int_equal(tess__memory_obtain(&m, 5), TESS_OK);
        assert_int_equal(m.numa_node, i ? 7 : 0);
        assert_int_equal(world.nodes_asked, i > 0);
        assert_string_equal(world.name_asked, i == 0 || i == 3 ? "" : "zzz");
        end();
    }
    begin(TESS_MEM_HOST); /* who keeps none asks nobody */
    plan.resident.pageable_bytes = plan.resident.step_bytes[TESS_DOMAIN_HOST] = 0;
    plan.programs[1].step_bytes[TESS_DOMAIN_HOST] = 0;
    plan.resident.n_buffers = 2;
    world.node = -1;
    assert_int_equal(tess__memory_obtain(&m, 5), TESS_OK);
    assert_true(m.numa_node == -1 && world.nodes_asked == 0);
    end();
}

static void test_memory__what_there_is_no_room_for_is_said(void **state) {
    (void)state;
    begin(TESS_MEM_CUDA);
    plan.setup.env.device_budget_bytes = 12 * KIB;
    assert_int_equal(tess__memory_obtain(&m, 5), TESS_OK);
    end();
    begin(TESS_MEM_CUDA);
    plan.setup.env.device_budget_bytes = 12 * KIB - 1;
    fails(tess__memory_obtain(&m, 5), TESS_E_NOMEM, "device fake: 8192 bytes needed, 8191 of its 12287 free");
    plan.setup.env.device_budget_bytes = 4 * KIB + 1;
    fails(tess__memory_renew(&m), TESS_E_NOMEM, "device fake: 8192 bytes needed, 1 of its 4097 free");
    plan.setup.env.device_budget_bytes = 4 * KIB - 1; /* more is taken already */
    fails(tess__memory_renew(&m), TESS_E_NOMEM, "device fake: 8192 bytes needed, 0 of its 4095 free");
    end();
    begin(TESS_MEM_CUDA);
    plan.resident.pageable_bytes = 1;
    fails(tess__memory_obtain(&m, 5), TESS_E_UNSUPPORTED,
          "device fake reaches page-locked host memory only: offload test must not leave any pageable");
    end();
    for (int n = 1; n <= 4; n++) {
        begin(TESS_MEM_CUDA);
        world.no_room = n;
        fails(tess__memory_obtain(&m, 5), TESS_E_NOMEM, n > 2 ? "device fake: no room" : "comm fake: no room");
        assert_int_equal(world.live, n - 1);
        end();
    }
    begin(TESS_MEM_CUDA);
    world.fill = TESS_E_DEVICE;
    assert_int_equal(tess__memory_obtain(&m, 5), TESS_E_DEVICE);
    tess__memory_release(&m, 1);
    assert_int_equal(tess__memory_renew(&m), TESS_E_DEVICE);
    tess__memory_release(&m, 1);
    end();
}

static void test_memory__activations_may_rest_where_pages_move(void **state) {
    (void)state;
    begin(TESS_MEM_HOST);
    plan.layout.activation_rest.pageable = 1;
    plan.layout.store_align = 8; /* less than a buffer's */
    assert_int_equal(tess__memory_obtain(&m, 5), TESS_OK);
    expect_said("device: host of domain 1, 0, node -1, 4K by 64; device: host of domain 1, 0, node -1, 8K by 64; "
                "device: pinned of domain 2, 0, node 3, 2K by 64, may unpin; "
                "device: host of domain 2, 0, node 3, 10K by 64; "
                "device: host of domain 2, 0, node 3, 6K by 64; fill 4K with 0; ");
    end();
}

static void test_memory__a_step_arena_grows_with_the_largest_program(void **state) {
    (void)state;
    obtain(TESS_MEM_CUDA);
    assert_int_equal(tess__step_arena_grow(&m), TESS_OK);
    plan.programs[0].step_bytes[TESS_DOMAIN_DEVICE] = 8 * KIB; /* rounding had left as much */
    assert_int_equal(tess__step_arena_grow(&m), TESS_OK);
    expect_said("");
    plan.programs[0].step_bytes[TESS_DOMAIN_HOST] = 10 * KIB + 1;
    assert_int_equal(tess__step_arena_grow(&m), TESS_OK);
    expect_said("device takes pinned 10K; device: pinned of domain 2, 0, node 3, 12K by 512; ");
    plan.programs[0].step_bytes[TESS_DOMAIN_DEVICE] = 8 * KIB + 1;
    assert_int_equal(tess__step_arena_grow(&m), TESS_OK);
    expect_said("comm takes cuda 8K; comm: cuda of domain 1, 0, node -1, 10K by 64; ");
    assert_int_equal(world.syncs, 2); /* kernels use it until then */
    plan.programs[0].step_bytes[TESS_DOMAIN_HOST] = 13 * KIB;
    world.no_room = 1;
    assert_int_equal(tess__step_arena_grow(&m), TESS_E_NOMEM);
    end();
}

static void test_memory__a_store_is_opened_for_what_may_be_under_way(void **state) {
    (void)state;
    static tess__group groups[] = { { .step.n_states = 2 },
                                    { .step.n_states = 1, .grad_rest.stored = 1 },
                                    { .step.n_states = 0 } };
    begin(TESS_MEM_HOST);
    plan.layout.groups = groups;
    plan.layout.n_groups = 3;
    plan.layout.store_bytes = 33;
    plan.resident.step_bytes[TESS_DOMAIN_DISK] = 15 * KIB;
    plan.setup.accum = 4;
    uint32_t most = 8 + (2 + 1) + (1 + 1) + (0 + 1) + (uint32_t)tess__sum_levels(&plan.setup);
    assert_int_equal(tess__memory_obtain(&m, 5), TESS_OK);
    const tess_store_config *k = &world.store;
    assert_true(k->struct_size == sizeof *k && k->most_posted == most && k->bytes == 16 * KIB);
    assert_true(k->rank == 3 && k->nranks == 4 && k->local_rank == 1 && k->align == 512);
    assert_true(k->memory == m.arenas[TESS_DOMAIN_HOST][TESS__PAGEABLE].memory.ptr && k->memory_bytes == 33);
    const tess__arena *a = &m.arenas[TESS_DOMAIN_DISK][TESS__RESIDENT];
    assert_true(a->memory.mem == TESS__MEM_STORE && a->memory.bytes == 17 * KIB && !a->comm && !a->shared);
    assert_true(m.obtained[TESS_DOMAIN_DISK] == 17 * KIB && m.arena_bytes[TESS_DOMAIN_DISK][1] == 17 * KIB);
    assert_int_equal(world.stores, 1);
    const tess__arena *moves = &m.arenas[TESS_DOMAIN_HOST][TESS__STEP];
    assert_true(world.told == moves->memory.ptr && world.told_bytes == 10 * KIB && world.told);
    plan.programs[0].step_bytes[TESS_DOMAIN_DEVICE] = 9 * KIB; /* it hears nothing of the device's */
    world.tells = 0;
    assert_int_equal(tess__step_arena_grow(&m), TESS_OK);
    assert_int_equal(world.tells, 0);
    plan.programs[0].step_bytes[TESS_DOMAIN_HOST] = 11 * KIB;
    assert_int_equal(tess__step_arena_grow(&m), TESS_OK); /* of the old one's end, and of the new one */
    assert_true(world.tells == 2 && world.told == moves->memory.ptr && world.told_bytes == 12 * KIB);
    tess__memory_release(&m, 0);
    assert_null(world.told);
    assert_true(!a->memory.ptr && !m.arena_bytes[TESS_DOMAIN_DISK][1]);
    end();
    begin(TESS_MEM_HOST);
    plan.resident.step_bytes[TESS_DOMAIN_DISK] = 21 * KIB;
    fails(tess__memory_obtain(&m, 5), TESS_E_SYSTEM, "the disk is full");
    world.stores = 0;
    end();
}

static void test_memory__without_room_for_its_tables_nothing_is_made(void **state) {
    (void)state;
    begin(TESS_MEM_HOST);
    int tables = world.tables;
    end();
    assert_int_equal(tables, 3 * TESS__N_ROLES + 1);
    for (int n = 1; n <= tables; n++) {
        memset(&m, 0, sizeof m);
        m.plan = &plan, m.device = &device, m.comms = &comm, m.streams = &streams;
        world.no_table = n;
        fails(tess__memory_create(&m), TESS_E_NOMEM, "no memory for the engine's tables");
        tess__memory_free(&m);
        assert_int_equal(world.tables, 0);
    }
}

/* ---- buffers of a program ---- */

static const tess__instr alloc[] = { { .op = TESS__ALLOC, .buffer = 0 }, { .op = TESS__ALLOC, .buffer = 1 } };

static void test_memory__a_buffer_is_booked_as_it_is_measured(void **state) {
    (void)state;
    obtain(TESS_MEM_HOST);
    tess__program *p = &plan.programs[1];
    uint64_t at_rest = m.ledger.total[TESS_DOMAIN_DEVICE];
    assert_int_equal(tess__place_buffer(&m, p, &alloc[0]), TESS_OK);
    assert_int_equal(m.ledger.total[TESS_DOMAIN_DEVICE], at_rest + 1500);
    assert_int_equal(world.held_least, at_rest); /* the program is asked before */
    char *at = (char *)m.arenas[TESS_DOMAIN_DEVICE][TESS__STEP].memory.ptr + 256;
    assert_ptr_equal(tess__address(&m, TESS__OUTPUT, 0), at);
    m.strict = 1;
    assert_int_equal(tess__release_buffer(&m, p, &alloc[0]), TESS_OK);
    assert_int_equal(m.ledger.total[TESS_DOMAIN_DEVICE], at_rest);
    assert_int_equal(world.held_least, at_rest + 1500);
    assert_true(at[-1] == 'x' && all_are(at, (char)0xff, 1500) && at[1500] == 'x');
    expect_said("fill 1K with 255; ");
    assert_int_equal(tess__release_buffer(&m, p, &alloc[0]), TESS_OK); /* once is enough */
    assert_int_equal(m.ledger.total[TESS_DOMAIN_DEVICE], at_rest);
    tess__instr zero = alloc[1];
    zero.flags = TESS__ZERO;
    assert_int_equal(tess__place_buffer(&m, p, &zero), TESS_OK);
    at = (char *)m.arenas[TESS_DOMAIN_HOST][TESS__STEP].memory.ptr + 192;
    assert_true(at[-1] == 'x' && all_are(at, 0, 1502) && at[1502] == 'x');
    assert_int_equal(world.syncs, 1); /* a transfer may still write there */
    expect_said("");
    m.strict = 0;
    memset(at, 'v', 1502);
    assert_int_equal(tess__release_buffer(&m, p, &zero), TESS_OK);
    assert_true(all_are(at, 'v', 1502));
    tess__program resident = plan.resident; /* what rests is booked once, and keeps its values */
    const tess__instr grad = { .op = TESS__ALLOC, .buffer = 1 };
    for (int i = 0; i < 2; i++)
        assert_int_equal(tess__place_buffer(&m, &resident, &grad), TESS_OK);
    assert_int_equal(m.ledger.total[TESS_DOMAIN_DEVICE], at_rest + 1501);
    m.strict = 1;
    memset(m.address[TESS__SHARD_GRAD][1], 'g', 500);
    assert_int_equal(tess__release_buffer(&m, &resident, &grad), TESS_OK);
    assert_true(all_are(m.address[TESS__SHARD_GRAD][1], 'g', 500));
    end();
}

static void test_memory__a_place_beyond_the_arena_is_refused(void **state) {
    (void)state;
    obtain(TESS_MEM_HOST);
    tess__buffer wrong = step[0];
    tess__program p = { .buffers = &wrong, .n_buffers = 1 };
    wrong.offset = 8 * KIB - 1500;
    assert_int_equal(tess__place_buffer(&m, &p, &alloc[0]), TESS_OK);
    assert_int_equal(tess__release_buffer(&m, &p, &alloc[0]), TESS_OK);
    wrong.offset++;
    fails(tess__place_buffer(&m, &p, &alloc[0]), TESS_E_INTERNAL,
          "1500 bytes are needed at offset 6693 of 8192 that were obtained");
    wrong.offset = 8 * KIB; /* where nothing is needed */
    wrong.role = TESS__SAVED;
    assert_int_equal(tess__place_buffer(&m, &p, &alloc[0]), TESS_OK);
    wrong.role = TESS__OUTPUT;
    wrong.offset = 8 * KIB + 1;
    fails(tess__place_buffer(&m, &p, &alloc[0]), TESS_E_INTERNAL,
          "1500 bytes are needed at offset 8193 of 8192 that were obtained");
    end();
}

/* ---- beside the plan ---- */

static void test_memory__a_pass_that_deviates_finds_room_as_it_goes(void **state) {
    (void)state;
    obtain(TESS_MEM_CUDA);
    tess__buffer more[3] = { step[0], step[0], step[1] };
    tess__program p = { .buffers = more, .n_buffers = 3 };
    const tess__instr in[] = { { .buffer = 0 }, { .buffer = 1 }, { .buffer = 2 } };
    more[0].bytes = 6 * KIB;
    more[1].index = 1;
    more[1].bytes = 3 * KIB;
    m.deviating = 1;
    tess__first_fit_reset(&m.first_fit, 8 * KIB);
    assert_int_equal(tess__place_buffer(&m, &p, &in[0]), TESS_OK); /* in the arena, from its beginning */
    assert_ptr_equal(m.address[TESS__OUTPUT][0], m.arenas[TESS_DOMAIN_DEVICE][TESS__STEP].memory.ptr);
    expect_said("");
    assert_int_equal(tess__place_buffer(&m, &p, &in[1]), TESS_OK); /* beside it */
    assert_int_equal(tess__place_buffer(&m, &p, &in[2]), TESS_OK);
    expect_said("device: cuda of domain 1, 6, node -1, 4K by 64; device: pinned of domain 2, 6, node 3, 2K by 512; ");
    assert_true(m.n_overflow == 2 && m.obtained[TESS_DOMAIN_DEVICE] == 16 * KIB);
    assert_true(m.obtained[TESS_DOMAIN_HOST] == 14 * KIB && m.obtained_peak[TESS_DOMAIN_HOST] == 14 * KIB);
    assert_int_equal(tess__release_buffer(&m, &p, &in[1]), TESS_OK); /* at once */
    expect_said("device takes cuda 4K; ");
    assert_true(m.n_overflow == 1 && m.obtained[TESS_DOMAIN_DEVICE] == 12 * KIB);
    assert_int_equal(tess__release_buffer(&m, &p, &in[0]), TESS_OK);
    assert_int_equal(tess__place_buffer(&m, &p, &in[1]), TESS_OK); /* in its place now */
    assert_ptr_equal(m.address[TESS__OUTPUT][1], m.arenas[TESS_DOMAIN_DEVICE][TESS__STEP].memory.ptr);
    expect_said("");
    more[0].bytes = 5 * KIB;
    assert_int_equal(tess__place_buffer(&m, &p, &in[0]), TESS_OK); /* and behind it */
    assert_ptr_equal(m.address[TESS__OUTPUT][0], (char *)m.arenas[TESS_DOMAIN_DEVICE][TESS__STEP].memory.ptr + 3 * KIB);
    assert_int_equal(tess__release_buffer(&m, &p, &in[1]), TESS_OK);
    assert_int_equal(tess__release_buffer(&m, &p, &in[0]), TESS_OK);
    more[0].bytes = 6 * KIB;
    assert_int_equal(tess__place_buffer(&m, &p, &in[0]), TESS_OK);
    plan.setup.env.device_budget_bytes = 16 * KIB - 1;
    fails(tess__place_buffer(&m, &p, &in[1]), TESS_E_NOMEM,
          "a pass that deviates from the compiled order needs 4096 bytes beside the plan: device fake: 4096 bytes "
          "needed, 4095 of its 16383 free");
    plan.setup.env.device_budget_bytes = 0;
    m.cap_overflow = 1;
    fails(tess__place_buffer(&m, &p, &in[1]), TESS_E_INTERNAL, "more than 1 buffers beside the step arena");
    m.cap_overflow = 2;
    world.no_room = 1;
    assert_int_equal(tess__place_buffer(&m, &p, &in[1]), TESS_E_NOMEM);
    assert_int_equal(tess__place_buffer(&m, &p, &in[1]), TESS_OK);
    said_so_far[0] = 0;
    tess__overflow_drop(&m);
    expect_said("device takes pinned 2K; device takes cuda 4K; ");
    assert_true(!m.n_overflow && m.obtained[TESS_DOMAIN_DEVICE] == 12 * KIB &&
                m.obtained[TESS_DOMAIN_HOST] == 12 * KIB);
    for (int i = 1; i <= 2; i++) { /* the last of them too */
        m.booked[more[i].role][more[i].index] = 0;
        assert_int_equal(tess__place_buffer(&m, &p, &in[i]), TESS_OK);
        assert_int_equal(tess__release_buffer(&m, &p, &in[i]), TESS_OK);
        assert_true(!m.n_overflow);
    }
    assert_int_equal(tess__place_buffer(&m, &p, &in[2]), TESS_OK);
    tess__memory_release(&m, 1);
    tess__memory_free(&m); /* with whatever a pass had */
    assert_true(world.live == 0 && world.tables == 0);
}

static void test_memory__a_step_that_broke_off_is_forgotten(void **state) {
    (void)state;
    obtain(TESS_MEM_HOST);
    tess__buffer more[2] = { step[0], step[1] };
    tess__program p = { .buffers = more, .n_buffers = 2 };
    const tess__instr grad = { .op = TESS__ALLOC, .buffer = 1 };
    uint64_t at_rest[] = { m.ledger.total[TESS_DOMAIN_DEVICE], m.ledger.total[TESS_DOMAIN_HOST] };
    for (int how = 0; how < 4; how++) { /* in the compiled order of any program, and off it */
        tess__program *of = how < 3 ? &plan.programs[how == 0 ? 0 : how == 1 ? 1 : TESS__N_PROGRAMS - 1] : &p;
        m.deviating = how == 3;
        for (int i = 0; i < TESS__N_PROGRAMS; i++)
            plan.programs[i].n_buffers = 0;
        of->buffers = how < 3 ? step : more;
        of->n_buffers = 2;
        more[0].index = more[1].index = 1;
        tess__first_fit_reset(&m.first_fit, 8 * KIB);
        assert_int_equal(tess__place_buffer(&m, of, &alloc[0]), TESS_OK);
        assert_int_equal(tess__place_buffer(&m, of, &alloc[1]), TESS_OK);
        assert_int_equal(tess__place_buffer(&m, &plan.resident, &grad), TESS_OK);
        tess__memory_forget(&m, &p);
        assert_true(m.ledger.total[TESS_DOMAIN_DEVICE] == at_rest[0] && m.ledger.total[TESS_DOMAIN_HOST] == at_rest[1]);
        assert_true(m.booked[TESS__STAGE][0] && m.booked[TESS__MASTER][2] && !m.booked[TESS__SHARD_GRAD][1]);
        assert_true(!m.deviating && !m.n_overflow && m.obtained[TESS_DOMAIN_HOST] == 18 * KIB);
    }
    end();
}

/* ---- the program's own, and what is carried ---- */

static void test_memory__a_program_takes_what_its_budget_allows(void **state) {
    (void)state;
    obtain(TESS_MEM_HOST);
    plan.setup.env.device_budget_bytes = 15 * KIB;
    uint64_t before = m.ledger.total[TESS_DOMAIN_DEVICE];
    fails(tess__memory_user(&m, "caches", 3 * KIB + 1, 0), TESS_E_BUDGET,
          "\"caches\" asks for 3073 bytes; 12288 of the 15360 that TESSERA_DEVICE_MEMORY allows are taken");
    world.no_room = 1;
    fails(tess__memory_user(&m, "caches", 3 * KIB, 0), TESS_E_NOMEM, "\"caches\": device fake: no room");
    said_so_far[0] = 0;
    assert_int_equal(tess__memory_user(&m, "caches", 3 * KIB, 0), TESS_OK);
    expect_said("device: host of domain 1, 6, node -1, 3K by 64; ");
    assert_true(m.ledger.total[TESS_DOMAIN_DEVICE] == before + 3 * KIB && m.obtained[TESS_DOMAIN_DEVICE] == 15 * KIB);
    plan.n_user = TESS__MAX_USER; /* as many as there may be */
    for (int i = 0; i < 2; i++)
        assert_int_equal(m.ledger.units[i][TESS_DOMAIN_DEVICE][TESS_CAT_ACTIVATION], 0); /* of no unit */
    void *kept = m.user[0].ptr;
    tess__memory_drop(&m); /* for another plan */
    expect_said("device takes pinned 2K; device takes pinned 10K; device takes host 6K; device takes host 4K; "
                "device takes host 8K; ");
    assert_true(m.user[0].ptr == kept && m.ledger.total[TESS_DOMAIN_DEVICE] == 3 * KIB);
    assert_int_equal(m.obtained[TESS_DOMAIN_DEVICE], 3 * KIB);
    assert_int_equal(tess__memory_create(&m), TESS_OK);
    assert_int_equal(m.ledger.total[TESS_DOMAIN_DEVICE], 3 * KIB);
    plan.setup.env.device_budget_bytes = 0;
    assert_int_equal(tess__memory_obtain(&m, 5), TESS_OK);
    assert_int_equal(tess__memory_user(&m, "one", 1, TESS__MAX_USER - 1), TESS_OK);
    assert_int_equal(m.obtained_peak[TESS_DOMAIN_DEVICE], 15 * KIB + 1);
    m.held = get_table(1, 8);
    tess__memory_free(&m);
    assert_true(world.live == 0 && world.tables == 0);
}

static void test_memory__images_are_carried_in_memory_that_a_device_reaches(void **state) {
    (void)state;
    for (int on = 0; on < 2; on++) {
        tess_buffer b = { .ptr = NULL };
        obtain(on ? TESS_MEM_CUDA : TESS_MEM_HOST);
        uint64_t before = m.obtained[TESS_DOMAIN_HOST];
        tess__memory_beside_free(&m, &b);
        expect_said("");
        assert_int_equal(tess__memory_beside(&m, 5 * KIB, &b), TESS_OK);
        expect_said(on ? "device: pinned of domain 2, 13, node 3, 5K by 64; "
                       : "device: host of domain 2, 13, node 3, 5K by 64; ");
        assert_true(m.obtained[TESS_DOMAIN_HOST] == before + 5 * KIB &&
                    m.obtained_peak[TESS_DOMAIN_HOST] == before + 5 * KIB);
        tess__memory_beside_free(&m, &b);
        assert_true(!b.ptr && m.obtained[TESS_DOMAIN_HOST] == before);
        world.no_room = 1;
        assert_int_equal(tess__memory_beside(&m, 5 * KIB, &b), TESS_E_NOMEM);
        assert_true(!b.ptr && m.obtained[TESS_DOMAIN_HOST] == before);
        end();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory__each_arena_is_asked_for_as_it_is_planned),
        cmocka_unit_test(test_memory__a_communicator_allocates_what_it_reaches_best),
        cmocka_unit_test(test_memory__host_memory_lies_near_the_device),
        cmocka_unit_test(test_memory__what_there_is_no_room_for_is_said),
        cmocka_unit_test(test_memory__activations_may_rest_where_pages_move),
        cmocka_unit_test(test_memory__a_step_arena_grows_with_the_largest_program),
        cmocka_unit_test(test_memory__a_store_is_opened_for_what_may_be_under_way),
        cmocka_unit_test(test_memory__without_room_for_its_tables_nothing_is_made),
        cmocka_unit_test(test_memory__a_buffer_is_booked_as_it_is_measured),
        cmocka_unit_test(test_memory__a_place_beyond_the_arena_is_refused),
        cmocka_unit_test(test_memory__a_pass_that_deviates_finds_room_as_it_goes),
        cmocka_unit_test(test_memory__a_step_that_broke_off_is_forgotten),
        cmocka_unit_test(test_memory__a_program_takes_what_its_budget_allows),
        cmocka_unit_test(test_memory__images_are_carried_in_memory_that_a_device_reaches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* libFuzzer: any bytes as what the other rank of comm-shm has put into the shared table: a collective with it ends,
 * reads nothing that is not there, and writes only into its own result. */
#include "plugins/comm-shm/operations.h"

#include "fuzz_input.h"

enum { ARENA = 256 << 10, PLACES = 2 * sizeof(struct shm_place) };

typedef struct { /* the input's first bytes */
    uint8_t op, dtype, redop,
        own;        /* own: bit 0: this rank's data is in its arena; bit 1: the announcement is the input's */
    uint16_t count; /* times 8 elements, 4095 at most */
} choice;

static tess_error error;

/* Rank 1's file, with one piece of memory in it. */
static struct shm_group *peer(void) {
    static struct shm_group *made;
    void *at;
    if (!made &&
        (shm_group_create(1, 2, &made, &error) != TESS_OK || shm_arena_alloc(made, ARENA, 64, &at, &error) != TESS_OK))
        abort();
    return made;
}

static struct shm_group *own_group(void) {
    struct shm_group *g;
    if (shm_group_create(0, 2, &g, &error) != TESS_OK)
        abort();
    g->ranks[1].arena_fd = dup(peer()->ranks[1].arena_fd);
    g->ranks[1].table_fd = dup(peer()->ranks[1].table_fd);
    return g;
}

static unsigned char *data_of(struct shm_group *g, int in_arena, uint64_t bytes) {
    void *at = NULL;
    if (in_arena && shm_arena_alloc(g, bytes, 64, &at, &error) != TESS_OK)
        abort();
    return in_arena ? at : calloc(1, bytes);
}

static uint64_t elems_of(const choice *c) {
    return 8 * (uint64_t)(c->count % 4096);
}

static tess_collective call_of(const choice *c, unsigned char *send, unsigned char *recv) {
    static const uint32_t ops[] = { TESS_ALL_GATHER, TESS_REDUCE_SCATTER, TESS_ALL_REDUCE, TESS_BROADCAST,
                                    TESS_ALL_TO_ALL };
    static const uint32_t dtypes[] = { TESS_F32, TESS_BF16, TESS_F64, TESS_U8 };
    const tess_collective made = { .struct_size = sizeof made,
                                   .op = ops[c->op % 5],
                                   .redop = c->redop % 2 ? TESS_MAX : TESS_SUM,
                                   .send_dtype = dtypes[c->dtype % 4],
                                   .send_mem = TESS_MEM_HOST,
                                   .recv_mem = TESS_MEM_HOST,
                                   .root = c->op / 5 % 2,
                                   .send = send,
                                   .recv = recv,
                                   .count = elems_of(c) };
    return kit_take_call(&made, sizeof made);
}

/* The other rank says that it is done with everything, so that nobody waits for it. */
static void fill_slot(struct shm_slot *slot, const choice *c, const tess_collective *call, const uint8_t *data,
                      size_t size) {
    struct shm_announcement a;
    memset(&a, 0, sizeof a);
    a.call = kit_announce(call, 1, 0);
    unsigned char *to = c->own & 2 ? (unsigned char *)&a : (unsigned char *)&a.send;
    const size_t room = c->own & 2 ? sizeof a : PLACES;
    memcpy(to, data, size < room ? size : room);
    slot->announced[0] = slot->announced[1] = a;
    slot->process = shm_this_process();
    atomic_store(&slot->state, SHM_HERE);
    for (int i = 0; i < SHM_COUNTS; i++)
        atomic_store(&slot->count[i], UINT64_MAX / 2);
}

static void *fresh_table(void) {
    static void *memory;
    if (!memory && !(memory = aligned_alloc(4096, shm_table_bytes(2))))
        abort();
    memset(memory, 0, 2 * sizeof(struct shm_slot));
    return memory;
}

static void run(struct shm_group *g, const choice *c, const uint8_t *data, size_t size) {
    static const int members[] = { 0, 1 };
    struct shm_table table;
    struct shm_operations operations = { .table = &table };
    const uint64_t bytes = 2 * sizeof(double) * elems_of(c) + 64;
    unsigned char *send = data_of(g, c->own & 1, bytes), *recv = data_of(g, c->own & 1, bytes);
    const tess_collective call = call_of(c, send, recv);
    shm_table_open(&table, g, members, 0, 2, fresh_table(), &error);
    fill_slot(&table.slots[1], c, &call, data, size);
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    tess_status s = shm_run_call(&operations, &call, &e);
    if ((s != TESS_OK) != (*e.message != 0) || strchr(e.message, '\n'))
        abort();
    if (!(c->own & 1))
        free(send), free(recv);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    choice c;
    error = (tess_error){ .struct_size = sizeof error };
    if (size < sizeof c)
        return 0;
    memcpy(&c, data, sizeof c);
    struct shm_group *g = own_group();
    run(g, &c, data + sizeof c, size - sizeof c);
    shm_group_drop(g);
    return 0;
}

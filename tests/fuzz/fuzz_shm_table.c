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

typedef struct {     /* the next ones, of an all_to_all_v */
    uint16_t own[3]; /* elements that this rank keeps, sends and gets; no more than the call's count */
    uint64_t at[2],
        longest; /* of the other rank: bytes before its part for this rank, by call, and of its longest part */
} parts;

static tess_error error;
static uint64_t sent[2], got[2]; /* elements of an all_to_all_v, by rank; as long as it lasts */

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
    static const uint32_t ops[] = { TESS_ALL_GATHER, TESS_REDUCE_SCATTER, TESS_ALL_REDUCE,
                                    TESS_BROADCAST,  TESS_ALL_TO_ALL,     TESS_ALL_TO_ALL_V };
    static const uint32_t dtypes[] = { TESS_F32, TESS_BF16, TESS_F64, TESS_U8 };
    const tess_collective made = { .struct_size = sizeof made,
                                   .op = ops[c->op % 6],
                                   .redop = c->redop % 2 ? TESS_MAX : TESS_SUM,
                                   .send_dtype = dtypes[c->dtype % 4],
                                   .send_mem = TESS_MEM_HOST,
                                   .recv_mem = TESS_MEM_HOST,
                                   .root = c->op / 6 % 2,
                                   .send = send,
                                   .recv = recv,
                                   .count = elems_of(c),
                                   .send_parts = sent,
                                   .recv_parts = got };
    return kit_take_call(&made, sizeof made);
}

static void take_parts(const parts *p, uint64_t count) {
    sent[0] = got[0] = p->own[0] % (count + 1);
    sent[1] = p->own[1] % (count - sent[0] + 1);
    got[1] = p->own[2] % (count - got[0] + 1);
}

static uint64_t result_bytes(const tess_collective *c) {
    const int two = c->op == TESS_ALL_GATHER || c->op == TESS_ALL_TO_ALL;
    return c->op == TESS_ALL_TO_ALL_V ? (got[0] + got[1]) * tess_dtype_bytes(c->recv_dtype)
                                      : c->count * tess_dtype_bytes(c->recv_dtype) * (two ? 2 : 1);
}

/* The other rank says that it is done with everything, so that nobody waits for it. */
static void fill_slot(struct shm_slot *slot, const choice *c, const parts *p, const tess_collective *call,
                      const uint8_t *data, size_t size) {
    struct shm_announcement a;
    memset(&a, 0, sizeof a);
    a.call = kit_announce(call, 1, 0);
    unsigned char *to = c->own & 2 ? (unsigned char *)&a : (unsigned char *)&a.send;
    const size_t room = c->own & 2 ? sizeof a : PLACES;
    memcpy(to, data, size < room ? size : room);
    slot->announced[0] = slot->announced[1] = a;
    for (int i = 0; i < 2; i++) {
        slot->parts[i][0] = p->at[i];
        slot->longest[i] = p->longest;
    }
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

static void run(struct shm_group *g, const choice *c, const parts *p, const uint8_t *data, size_t size) {
    static const int members[] = { 0, 1 };
    struct shm_table table;
    struct shm_operations operations = { .table = &table };
    const uint64_t bytes = 2 * sizeof(double) * elems_of(c) + 64;
    unsigned char *send = data_of(g, c->own & 1, bytes), *recv = data_of(g, c->own & 1, bytes);
    const tess_collective call = call_of(c, send, recv);
    take_parts(p, elems_of(c));
    memset(recv, 0xa5, bytes);
    shm_table_open(&table, g, members, 0, 2, fresh_table(), &error);
    fill_slot(&table.slots[1], c, p, &call, data, size);
    tess_error e = { .struct_size = sizeof e, .rank = -1 };
    tess_status s = shm_run_call(&operations, &call, &e);
    if ((s != TESS_OK) != (*e.message != 0) || strchr(e.message, '\n'))
        abort();
    for (uint64_t i = result_bytes(&call); i < bytes; i++)
        if (recv[i] != 0xa5)
            abort();
    if (!(c->own & 1))
        free(send), free(recv);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    choice c;
    parts p = { { 0 }, { 0 }, 0 };
    error = (tess_error){ .struct_size = sizeof error };
    if (size < sizeof c)
        return 0;
    memcpy(&c, data, sizeof c);
    data += sizeof c, size -= sizeof c;
    if (c.op % 6 == 5) {
        if (size < sizeof p)
            return 0;
        memcpy(&p, data, sizeof p);
        data += sizeof p, size -= sizeof p;
    }
    struct shm_group *g = own_group();
    run(g, &c, &p, data, size);
    shm_group_drop(g);
    return 0;
}

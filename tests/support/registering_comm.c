/* SPDX-License-Identifier: BSD-3-Clause */
/* comm plugin "registering": shm, which has no use for registered memory, with mem_register and mem_deregister. It
 * refuses a collective whose buffers lie in registered memory and do not carry that registration, or carry another's;
 * says how many did; and ends the process when memory goes while it is registered (tests/e2e/test_slots.sh). */
#include <stdio.h>
#include <stdlib.h>

#include "over_shm.h"

TESS_DESCRIPTOR(1u << TESS_KIND_COMM, "registering", "1.0", "BSD-3-Clause", "");

typedef struct {
    tess_comm *comm; /* null: not in use */
    char *ptr;
    uint64_t bytes;
} registration;
enum { MOST = 64 };
static registration list[MOST];
static int registered, deregistered, used;
static tess_comm_ops table, under;

static void wrong(const char *text) {
    fprintf(stderr, "comm registering: %s\n", text);
    abort();
}

static tess_status enlist(tess_comm *comm, tess_buffer *b, tess_error *e) {
    for (int i = 0; i < MOST; i++)
        if (!list[i].comm) {
            list[i] = (registration){ comm, b->ptr, b->bytes };
            b->reg = &list[i];
            registered++;
            return TESS_OK;
        }
    return tess_plugin_fail(e, TESS_E_NOMEM, "comm registering: more than %d buffers", MOST);
}

static void delist(tess_comm *comm, tess_buffer *b) {
    registration *r = b->reg;
    if (!r || r->comm != comm || r->ptr != b->ptr || r->bytes != b->bytes)
        wrong("a buffer is deregistered that was not registered here");
    r->comm = NULL;
    b->reg = NULL;
    deregistered++;
}

static void free_memory(tess_comm *comm, tess_buffer *b) {
    for (int i = 0; i < MOST; i++)
        if (list[i].comm && list[i].ptr == b->ptr)
            wrong("memory is freed while it is registered");
    under.mem_free(comm, b);
}

static void destroy(tess_comm *comm) {
    for (int i = 0; i < MOST; i++)
        if (comm && list[i].comm == comm)
            wrong("a communicator is destroyed while memory is registered with it");
    under.destroy(comm);
}

static int carries(tess_comm *comm, const void *ptr, const void *reg) {
    const registration *r = NULL;
    for (int i = 0; i < MOST; i++)
        if (list[i].comm == comm && (const char *)ptr >= list[i].ptr && (const char *)ptr < list[i].ptr + list[i].bytes)
            r = &list[i];
    used += r != NULL;
    return reg == (const void *)r;
}

static tess_status post(tess_comm *comm, const tess_collective *c, uint32_t n, tess_request **out, tess_error *e) {
    if (c->count && c->op != TESS_BARRIER)
        if (!carries(comm, c->send, c->send_reg) || !carries(comm, c->recv, c->recv_reg))
            return tess_plugin_fail(e, TESS_E_INVALID,
                                    "comm registering: a collective of kind %u without its memory's "
                                    "registration",
                                    c->op);
    return under.post(comm, c, n, out, e);
}

static void say(void *ctx) {
    printf("registered %d deregistered %d used %d\n", registered, deregistered, used);
    if (under.close)
        under.close(ctx);
}

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    (void)kind;
    const tess_status s = open_shm(host, &under, ctx, error);
    if (s < 0)
        return s;
    table = under;
    table.close = say;
    table.destroy = destroy;
    table.mem_free = free_memory;
    table.mem_register = enlist;
    table.mem_deregister = delist;
    table.post = post;
    *out = &table;
    return TESS_OK;
}

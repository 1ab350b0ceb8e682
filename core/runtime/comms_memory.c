/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory that communicators allocate, register or share, and the handles that they gave for it. */
#include "comms.h"

#include "base/status.h"

#define HAS(c, slot) TESS_CAN(tess_comm_ops, (c)->ops, slot)

tess_comm *tess__comms_allocator(const tess__comms *c) {
    tess_comm_caps caps = { .struct_size = sizeof caps };
    tess_comm *comm = c->list[TESS__WORLD];
    if (!comm || !HAS(c, mem_alloc) || c->ops->query(c->plugin->ctx, comm, &caps) ||
        !(caps.mem_mask >> c->device->mem & 1))
        return NULL;
    return comm;
}

/* Remembers a registration. Without room here the buffer is used as if it were not registered. */
static void note_registration(tess__comms *c, const tess_comm *comm, const tess_buffer *b) {
    for (int i = 0; b->reg && i < TESS__REGISTRATIONS; i++)
        if (!c->registrations[i].comm) {
            c->registrations[i].comm = comm;
            c->registrations[i].ptr = b->ptr;
            c->registrations[i].bytes = b->bytes;
            c->registrations[i].reg = b->reg;
            return;
        }
}

static void forget_registration(tess__comms *c, const tess_comm *comm, const tess_buffer *b) {
    for (int i = 0; i < TESS__REGISTRATIONS; i++)
        if (c->registrations[i].comm == comm && c->registrations[i].ptr == b->ptr)
            c->registrations[i].comm = NULL;
}

/* Returns null when no memory registered with `comm` holds `at`. */
void *tess__comms_registration(const tess__comms *c, const tess_comm *comm, const void *at) {
    for (int i = 0; at && i < TESS__REGISTRATIONS; i++)
        if (c->registrations[i].comm == comm &&
            (uintptr_t)at - (uintptr_t)c->registrations[i].ptr < c->registrations[i].bytes)
            return c->registrations[i].reg;
    return NULL;
}

tess_status tess__comms_alloc(tess__comms *c, tess_comm *comm, const tess_alloc_request *r, tess_buffer *out) {
    tess_error e = { .struct_size = sizeof e };
    TRY(tess__comms_failed(c, c->ops->mem_alloc(comm, r, out, &e), &e));
    note_registration(c, comm, out);
    return TESS_OK;
}

tess_comm *tess__comms_register(tess__comms *c, int which, const tess_comm *owner, tess_buffer *b) {
    tess_error e = { .struct_size = sizeof e };
    tess_comm *comm = c->list[which];
    if (!tess__comms_stands_first(c->list, which) || comm == owner || !HAS(c, mem_register) ||
        c->ops->mem_register(comm, b, &e))
        return NULL;
    note_registration(c, comm, b);
    return comm;
}

int tess__comms_share_memory(const tess__comms *c) {
    tess_comm_caps caps = { .struct_size = sizeof caps };
    tess_comm *comm = tess__comms_allocator(c);
    return comm && HAS(c, mem_share) && c->ops->query(c->plugin->ctx, comm, &caps) == TESS_OK &&
           caps.caps & TESS_COMM_SHARES;
}

tess_status tess__comms_share(tess__comms *c, tess_comm *comm, tess_buffer *b) {
    tess_error e = { .struct_size = sizeof e };
    tess__comms_doing(c, "the sharing of memory");
    tess_status s = c->ops->mem_share(comm, b, &e);
    if (s == TESS_OK || s == TESS_E_UNSUPPORTED)
        tess__comms_idle(c);
    return s == TESS_E_UNSUPPORTED ? s : tess__comms_failed(c, s, &e);
}

void tess__comms_deregister(tess__comms *c, tess_comm *comm, tess_buffer *b) {
    forget_registration(c, comm, b);
    c->ops->mem_deregister(comm, b);
}

void tess__comms_free(tess__comms *c, tess_comm *comm, tess_buffer *b) {
    forget_registration(c, comm, b);
    c->ops->mem_free(comm, b);
}

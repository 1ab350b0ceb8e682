/* SPDX-License-Identifier: BSD-3-Clause */
/* Stages buffers for a backend that reaches a device's memory only. The checks keep their buffers on the host. Slots in
 * front of the plugin's table copy them to the device before each post and back after it. Guard bytes around each copy
 * must stay unchanged. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "comm_reference.h"
#include "device.h"

enum { SIDE = 256, FILL = 0xa7, MOST_CALLS = 8 };

static struct {
    check *c;
    const tess_comm_ops *real;
    tess_comm_ops front;
    uint32_t mem;
    void *handle;         /* of the loaded device plugin */
    tess_comm *memory_of; /* null: the device allocates */
    tess_comm *registers; /* null: copies are not registered */
    pthread_mutex_t lock;
    struct staged_request *live; /* also those that end with their communicator */
} staged = { .lock = PTHREAD_MUTEX_INITIALIZER };

typedef struct { /* a range of host bytes and its copy on the device */
    char *host;
    uint64_t bytes;
    tess_buffer buffer;
    char *there;
    int back; /* 1: it receives results */
} shadow;

typedef struct staged_request { /* the request that the checks see */
    struct staged_request *next;
    tess_request *request;
    shadow shadows[3 * MOST_CALLS];
    int n, brought_back;
} staged_request;

const tess_comm_ops *comm_staged_real(void) {
    return staged.real;
}

uint32_t comm_staged_mem(void) {
    return staged.mem;
}

void comm_staged_memory_of(tess_comm *comm) {
    staged.memory_of = comm;
}

void comm_staged_registered_with(tess_comm *comm) {
    staged.registers = comm;
}

/* ---- shadows ------------------------------------------------------------------------------------ */

static void up(char *there, const void *host, uint64_t bytes) {
    must(dut.ops->copy(dut.device, there, staged.mem, host, TESS_MEM_HOST, bytes, &dut.stream, &dut.error), "copy up");
}

void comm_staged_down(void *host, const char *there, uint64_t bytes) {
    must(dut.ops->copy(dut.device, host, TESS_MEM_HOST, there, staged.mem, bytes, &dut.stream, &dut.error),
         "copy down");
}

/* Freed buffers are kept for reuse, because allocating is slow. */
static struct {
    tess_buffer list[64];
    int n;
} spare;

static int is_plain(void) {
    return !staged.memory_of && !staged.registers;
}

static int take_spare(uint64_t bytes, tess_buffer *out) {
    for (int i = 0; is_plain() && i < spare.n; i++)
        if (spare.list[i].bytes >= bytes && spare.list[i].bytes < 2 * bytes + (4 << 20)) {
            *out = spare.list[i];
            spare.list[i] = spare.list[--spare.n];
            return 1;
        }
    return 0;
}

tess_buffer comm_staged_obtain(uint64_t bytes) {
    tess_alloc_request request = { .struct_size = sizeof request,
                                   .mem = staged.mem,
                                   .domain = TESS_DOMAIN_DEVICE,
                                   .category = TESS_CAT_COMM,
                                   .numa_node = -1,
                                   .bytes = bytes,
                                   .align = 256 };
    tess_buffer buffer = { .struct_size = sizeof buffer };
    tess_error e = { .struct_size = sizeof e };
    if (take_spare(bytes, &buffer))
        return buffer;
    tess_status s = staged.memory_of ? staged.real->mem_alloc(staged.memory_of, &request, &buffer, &e)
                                     : dut.ops->mem_alloc(dut.device, &request, &buffer, &e);
    check_that(staged.c, s == TESS_OK, "mem_alloc of %llu bytes gave %s: %s", (unsigned long long)bytes,
               check_status(s), e.message);
    check_that(staged.c, buffer.ptr && buffer.mem == staged.mem && buffer.bytes >= bytes,
               "mem_alloc of %llu bytes gave %llu of kind %u at %p", (unsigned long long)bytes,
               (unsigned long long)buffer.bytes, buffer.mem, buffer.ptr);
    if (staged.registers) {
        s = staged.real->mem_register(staged.registers, &buffer, &e);
        check_that(staged.c, s == TESS_OK || s == TESS_E_UNSUPPORTED, "mem_register gave %s: %s", check_status(s),
                   e.message);
    }
    return buffer;
}

void comm_staged_release(tess_buffer *buffer) {
    if (is_plain() && spare.n < 64) {
        spare.list[spare.n++] = *buffer;
        return;
    }
    if (staged.registers)
        staged.real->mem_deregister(staged.registers, buffer);
    if (staged.memory_of)
        staged.real->mem_free(staged.memory_of, buffer);
    else
        dut.ops->mem_free(dut.device, buffer);
}

/* The copy has the same offset from a multiple of 256 as the host's buffer. */
static void *shadow_of(staged_request *r, void *host, uint64_t bytes, int back) {
    shadow *s = &r->shadows[r->n++];
    *s = (shadow){ .host = host, .bytes = bytes, .back = back, .buffer = comm_staged_obtain(bytes + 3 * SIDE) };
    char *all = s->buffer.ptr;
    s->there = all + SIDE + (uintptr_t)host % SIDE;
    must(dut.ops->fill(dut.device, all, FILL, bytes + 3 * SIDE, &dut.stream, &dut.error), "fill");
    if (bytes && back >= 0)
        up(s->there, host, bytes);
    return s->there;
}

/* The bytes before and behind a copy. The caller waits for the reads. */
typedef struct {
    unsigned char before[2 * SIDE], behind[2 * SIDE];
    uint64_t n_before, n_behind;
} sides;

static void read_sides(const shadow *s, sides *out) {
    out->n_before = (uint64_t)(s->there - (char *)s->buffer.ptr);
    out->n_behind = 3 * SIDE - out->n_before;
    comm_staged_down(out->before, s->buffer.ptr, out->n_before);
    comm_staged_down(out->behind, s->there + s->bytes, out->n_behind);
}

static void check_sides(const sides *s) {
    for (uint64_t i = 0; i < s->n_before; i++)
        check_that(staged.c, s->before[i] == FILL, "wrote %llu bytes before a buffer",
                   (unsigned long long)(s->n_before - i));
    for (uint64_t i = 0; i < s->n_behind; i++)
        check_that(staged.c, s->behind[i] == FILL, "wrote %llu bytes behind a buffer's end", (unsigned long long)i);
}

static void give_back(staged_request *r) {
    staged_request **link = &staged.live;
    while (*link && *link != r)
        link = &(*link)->next;
    if (*link)
        *link = r->next;
    for (int i = 0; i < r->n; i++)
        comm_staged_release(&r->shadows[i].buffer);
    free(r);
}

/* ---- a call ------------------------------------------------------------------------------------- */

/* Returns 0 for invalid calls, which reach the plugin unchanged. */
static int can_be_staged(const tess_collective *c) {
    return ref_dtype_bytes(c->send_dtype) && ref_dtype_bytes(c->recv_dtype) && c->count < 1 << 26 && c->send &&
           c->recv && c->send_mem == TESS_MEM_HOST && c->recv_mem == TESS_MEM_HOST && c->op >= TESS_ALL_GATHER &&
           (c->op < TESS_BARRIER || (c->op == TESS_ALL_TO_ALL_V && c->send_parts && c->recv_parts));
}

/* Returns the copy of `send` if an earlier collective of the batch receives those bytes, else null. */
static char *received_before(const staged_request *r, const char *send, uint64_t bytes) {
    for (int i = r->n; i-- > 0;) {
        const shadow *s = &r->shadows[i];
        const char *host = s->host;
        if (s->back > 0 && send >= host && send + bytes <= host + s->bytes)
            return s->there + (send - host);
    }
    return NULL;
}

static uint64_t all_parts(const uint64_t *parts, uint64_t n) {
    uint64_t all = 0;
    for (uint64_t i = 0; i < n; i++)
        all += parts[i];
    return all;
}

static void stage(staged_request *r, tess_collective *c, int nranks) {
    uint64_t w = (uint64_t)nranks;
    int many_in = c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_TO_ALL;
    int many_out = c->op == TESS_ALL_GATHER || c->op == TESS_ALL_TO_ALL;
    uint64_t in = (many_in ? w : 1) * c->count * ref_dtype_bytes(c->send_dtype);
    uint64_t out = (many_out ? w : 1) * c->count * ref_dtype_bytes(c->recv_dtype);
    if (c->op == TESS_ALL_TO_ALL_V) {
        in = all_parts(c->send_parts, w) * ref_dtype_bytes(c->send_dtype);
        out = all_parts(c->recv_parts, w) * ref_dtype_bytes(c->recv_dtype);
    }
    char *send = (char *)(uintptr_t)c->send, *recv = c->recv;
    if (send < recv + out && recv < send + in) { /* overlapping buffers, valid or not, need one copy */
        char *first = send < recv ? send : recv, *end = send + in > recv + out ? send + in : recv + out;
        char *there = shadow_of(r, first, (uint64_t)(end - first), 1);
        c->send = there + (send - first);
        c->recv = there + (recv - first);
    } else {
        char *before = received_before(r, send, in);
        c->send = before ? before : shadow_of(r, send, in, 0);
        c->recv = shadow_of(r, recv, out, 1);
    }
    if (c->scratch)
        c->scratch = shadow_of(r, c->scratch, c->scratch_bytes, -1);
    if (TESS_CAN(tess_device_ops, dut.ops, stream_create))
        c->after = dut.stream;
}

static void to_device(tess_collective *c) {
    c->send_mem = c->send_mem == TESS_MEM_HOST ? staged.mem : c->send_mem;
    c->recv_mem = c->recv_mem == TESS_MEM_HOST ? staged.mem : c->recv_mem;
    c->send_reg = c->recv_reg = NULL;
}

static tess_status front_post(tess_comm *comm, const tess_collective *calls, uint32_t n, tess_request **out,
                              tess_error *e) {
    struct {
        tess_collective c;
        uint64_t later_field;
    } own[MOST_CALLS];
    check_that(staged.c, n <= MOST_CALLS, "the check posts %u calls at once", n);
    staged_request *r = calloc(1, sizeof *r);
    check_that(staged.c, r, "no memory for the check");
    pthread_mutex_lock(&staged.lock);
    for (uint32_t i = 0; i < n; i++) {
        memset(&own[i], 0xff, sizeof own[i]);
        memcpy(&own[i].c, (const char *)calls + (size_t)i * calls->struct_size, sizeof own[i].c);
        own[i].c.struct_size = sizeof own[i];
        if (can_be_staged(&own[i].c))
            stage(r, &own[i].c, staged.c->nranks);
        to_device(&own[i].c);
    }
    if (!TESS_CAN(tess_device_ops, dut.ops, stream_create))
        drain(&dut.stream);
    pthread_mutex_unlock(&staged.lock);
    tess_status s = staged.real->post(comm, &own[0].c, n, &r->request, e);
    if (s == TESS_OK) {
        *out = (tess_request *)r;
        pthread_mutex_lock(&staged.lock);
        r->next = staged.live;
        staged.live = r;
        pthread_mutex_unlock(&staged.lock);
        return s;
    }
    pthread_mutex_lock(&staged.lock);
    drain(&dut.stream);
    give_back(r);
    pthread_mutex_unlock(&staged.lock);
    return s;
}

static void bring_back(staged_request *r) {
    static sides around[3 * MOST_CALLS];
    pthread_mutex_lock(&staged.lock);
    int n = r->brought_back ? 0 : r->n;
    for (int i = 0; i < n; i++) {
        if (r->shadows[i].back > 0 && r->shadows[i].bytes)
            comm_staged_down(r->shadows[i].host, r->shadows[i].there, r->shadows[i].bytes);
        read_sides(&r->shadows[i], &around[i]);
    }
    drain(&dut.stream);
    for (int i = 0; i < n; i++)
        check_sides(&around[i]);
    r->brought_back = 1;
    pthread_mutex_unlock(&staged.lock);
}

static tess_status front_wait(tess_request *request, int64_t timeout_ns, tess_error *e) {
    staged_request *r = (staged_request *)request;
    tess_status s = staged.real->wait(r->request, timeout_ns, e);
    if (s == TESS_OK)
        bring_back(r);
    return s;
}

static tess_status front_test(tess_request *request, tess_error *e) {
    staged_request *r = (staged_request *)request;
    tess_status s = staged.real->test(r->request, e);
    if (s == TESS_OK)
        bring_back(r);
    return s;
}

static void front_request_free(tess_request *request) {
    staged_request *r = (staged_request *)request;
    if (!r)
        return;
    staged.real->request_free(r->request);
    pthread_mutex_lock(&staged.lock);
    give_back(r);
    pthread_mutex_unlock(&staged.lock);
}

static tess_status front_need(void *ctx, const tess_plan_env *env, const tess_collective *call, tess_need *out) {
    tess_plan_env there = *env;
    tess_collective c = *call;
    there.mem = staged.mem;
    to_device(&c);
    return staged.real->need(ctx, &there, &c, out);
}

/* ---- beginning ---------------------------------------------------------------------------------- */

static void finish(check *c) {
    while (staged.live)
        give_back(staged.live);
    while (spare.n)
        dut.ops->mem_free(dut.device, &spare.list[--spare.n]);
    device_give_back(c, staged.handle);
}

const tess_comm_ops *comm_staged(check *c, const tess_comm_ops *real, const tess_comm_caps *caps) {
    const uint32_t host = 1u << TESS_MEM_HOST | 1u << TESS_MEM_PINNED | 1u << TESS_MEM_SHM;
    if (caps->mem_mask & host || !(caps->mem_mask >> TESS_MEM_CUDA & 1))
        return real;
    staged.c = c;
    staged.real = real;
    staged.mem = TESS_MEM_CUDA;
    staged.front = *real;
    staged.front.need = front_need;
    staged.front.post = front_post;
    staged.front.wait = front_wait;
    staged.front.test = front_test;
    staged.front.request_free = front_request_free;
    staged.handle = device_borrow(c, c->rank);
    c->finish = finish;
    return &staged.front;
}

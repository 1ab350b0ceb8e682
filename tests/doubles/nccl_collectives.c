/* SPDX-License-Identifier: BSD-3-Clause */
/* What a group does when its turn has come. Sums go round from the rank behind this one, as in a ring: another order
 * than the engine's tree. */
#include "nccl_double.h"

#include "formulas.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

uint64_t nccl__dtype_bytes(int dtype) {
    switch (dtype) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
    }
}

/* into = into op from. NaN in a minimum or maximum is passed over, as NCCL does. */
#define JOIN_WHOLE(type, wide)                                                                                         \
    for (uint64_t i = 0; i < n; i++) {                                                                                 \
        type *a = (type *)into + i, b = ((const type *)from)[i];                                                       \
        *a = op == ncclSum ? (type)((wide)*a + (wide)b) : (op == ncclMin) == (b < *a) ? b : *a;                        \
    }
#define JOIN_REAL(type, least, most)                                                                                   \
    for (uint64_t i = 0; i < n; i++) {                                                                                 \
        type *a = (type *)into + i, b = ((const type *)from)[i];                                                       \
        *a = op == ncclSum ? *a + b : op == ncclMin ? least(*a, b) : most(*a, b);                                      \
    }
/* A ring of the real one's rounds each partial sum. */
static void add_halves(int dtype, uint16_t *into, const uint16_t *from, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        into[i] = dtype == ncclBfloat16 ? tess_bf16_of_f32(tess_f32_of_bf16(into[i]) + tess_f32_of_bf16(from[i]))
                                        : tess_f16_of_f32(tess_f32_of_f16(into[i]) + tess_f32_of_f16(from[i]));
}
static void join(int dtype, int op, void *into, const void *from, uint64_t n) {
    switch (dtype) {
    case ncclInt8: JOIN_WHOLE(int8_t, uint64_t) break;
    case ncclUint8: JOIN_WHOLE(uint8_t, uint64_t) break;
    case ncclInt32: JOIN_WHOLE(int32_t, uint64_t) break;
    case ncclInt64: JOIN_WHOLE(int64_t, uint64_t) break;
    case ncclFloat32: JOIN_REAL(float, fminf, fmaxf) break;
    case ncclFloat64: JOIN_REAL(double, fmin, fmax) break;
    case ncclBfloat16:
    case ncclFloat16:
        if (op == ncclSum) {
            add_halves(dtype, into, from, n);
            break;
        } /* fallthrough */
    default: fprintf(stderr, "doubles: NCCL: no sum of dtype %d\n", dtype); abort();
    }
}

static void *room_of(ncclComm *c, uint64_t bytes) {
    if (bytes > c->room_bytes) {
        if (c->room)
            double__unmap(c->room, c->room_bytes);
        c->room_bytes = (bytes + (1 << 20)) >> 20 << 20;
        c->room = double__map(c->room_bytes, PROT_READ | PROT_WRITE);
        if (!c->room) {
            fprintf(stderr, "doubles: NCCL: no memory\n");
            abort();
        }
    }
    return c->room;
}

static uint64_t kind_of_group(const nccl_call *call) {
    return (call->order & 0x7fff) << 49 | (uint64_t)call->recorded << 48;
}

static uint64_t kind_of(const nccl_call *call) {
    return kind_of_group(call) | (uint64_t)call->in_window << 40 | (uint64_t)call->what << 32 |
           (uint64_t)call->dtype << 16 | (uint64_t)call->op << 8 |
           (uint64_t)(call->what == NCCL_BROADCAST ? call->peer : 0);
}

/* Sends to every other rank, from send + to * stride, and gets as much from each, into recv + from * bytes. */
static int all_pairs(ncclComm *c, uint64_t kind, const char *send, uint64_t stride, char *recv, uint64_t bytes) {
    nccl_move moves[2 * NCCL_RANKS];
    int n = 0;
    for (int i = 1; i < c->nranks; i++) {
        int to = (c->rank + i) % c->nranks, from = (c->rank + c->nranks - i) % c->nranks;
        moves[n++] = (nccl_move){ .peer = to, .send = send + (uint64_t)to * stride, .bytes = bytes };
        moves[n++] = (nccl_move){ .peer = from, .recv = recv + (uint64_t)from * bytes, .bytes = bytes };
    }
    return nccl__exchange(c, NCCL_DATA, kind, moves, n);
}

static int reduce(ncclComm *c, const nccl_call *call, int scatter) {
    uint64_t bytes = call->count * nccl__dtype_bytes(call->dtype);
    const char *send = double_host(call->send);
    char *all = room_of(c, bytes * (uint64_t)(c->nranks + 1)), *sum = all + bytes * (uint64_t)c->nranks;
    if (all_pairs(c, kind_of(call), send, scatter ? bytes : 0, all, bytes))
        return -1;
    memcpy(all + bytes * (uint64_t)c->rank, send + (scatter ? bytes * (uint64_t)c->rank : 0), bytes);
    int first = scatter ? c->rank + 1 : 1;
    memcpy(sum, all + bytes * (uint64_t)(first % c->nranks), bytes);
    for (int i = 1; i < c->nranks; i++)
        join(call->dtype, call->op, sum, all + bytes * (uint64_t)((first + i) % c->nranks), call->count);
    memcpy(double_host(call->recv), sum, bytes);
    return 0;
}

static int all_gather(ncclComm *c, const nccl_call *call) {
    uint64_t bytes = call->count * nccl__dtype_bytes(call->dtype);
    char *recv = double_host(call->recv);
    memmove(recv + bytes * (uint64_t)c->rank, double_host(call->send), bytes);
    return all_pairs(c, kind_of(call), recv + bytes * (uint64_t)c->rank, 0, recv, bytes);
}

static int broadcast(ncclComm *c, const nccl_call *call) {
    uint64_t bytes = call->count * nccl__dtype_bytes(call->dtype);
    nccl_move moves[NCCL_RANKS];
    int n = 0;
    if (c->rank == call->peer && call->recv != call->send)
        memcpy(double_host(call->recv), double_host(call->send), bytes);
    for (int peer = 0; peer < c->nranks; peer++) {
        if (c->rank == call->peer && peer != c->rank)
            moves[n++] = (nccl_move){ .peer = peer, .send = double_host(call->send), .bytes = bytes };
        if (c->rank != call->peer && peer == call->peer)
            moves[n++] = (nccl_move){ .peer = peer, .recv = double_host(call->recv), .bytes = bytes };
    }
    return nccl__exchange(c, NCCL_DATA, kind_of(call), moves, n);
}

/* All sends and receives of a group go on together. */
static int pairs(ncclComm *c, const nccl_call *calls, int n) {
    nccl_move *moves = room_of(c, (uint64_t)n * sizeof *moves);
    const nccl_call *own[2][NCCL_CALLS];
    int n_moves = 0, n_own[2] = { 0, 0 };
    for (int i = 0; i < n; i++) {
        const nccl_call *call = &calls[i];
        int sends = call->what == NCCL_SEND;
        if (call->what != NCCL_SEND && call->what != NCCL_RECV)
            continue;
        if (call->peer == c->rank) {
            own[sends][n_own[sends]++] = call;
            continue;
        }
        nccl_move m = { .peer = call->peer, .bytes = call->count * nccl__dtype_bytes(call->dtype) };
        if (sends)
            m.send = double_host(call->send);
        else
            m.recv = double_host(call->recv);
        moves[n_moves++] = m;
    }
    if (n_own[0] != n_own[1])
        fprintf(stderr, "doubles: NCCL: %d receives from and %d sends to oneself\n", n_own[0], n_own[1]);
    for (int i = 0; i < n_own[0] && i < n_own[1]; i++)
        memcpy(double_host(own[0][i]->recv), double_host(own[1][i]->send),
               own[0][i]->count * nccl__dtype_bytes(own[0][i]->dtype));
    return nccl__exchange(c, NCCL_DATA, kind_of_group(calls) | NCCL_SEND, moves, n_moves);
}

int nccl__run_calls(ncclComm *c, const nccl_call *calls, int n) {
    int failed = 0;
    for (int i = 0; i < n && !failed; i++)
        switch (calls[i].what) {
        case NCCL_ALL_GATHER: failed = all_gather(c, &calls[i]); break;
        case NCCL_REDUCE_SCATTER: failed = reduce(c, &calls[i], 1); break;
        case NCCL_ALL_REDUCE: failed = reduce(c, &calls[i], 0); break;
        case NCCL_BROADCAST: failed = broadcast(c, &calls[i]); break;
        default: break;
        }
    return failed ? -1 : pairs(c, calls, n);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* What comm-nccl asks of NCCL and of its kernels for each collective. The calls of all ranks are written down, then
 * carried out by this test over memory of the host, as NCCL's documentation has it: results are those of the contract.
 * Streams and events, which that does not see, are compared as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "plugins/comm-nccl/operations.c"
#include "tests/unit/plugins/failing.h"

enum { RANKS = 5, CALLS = 600, ROOM = 3072 };
enum { GROUP, GROUP_END, SEND, RECV, GATHER, SCATTER, REDUCE, CAST, KERNEL, COPY }; /* CAST: broadcast */

struct call {
    int kind, peer;
    const void *from;
    void *to;
    size_t count;
    ncclDataType_t dtype;
    ncclRedOp_t redop;
    int kernel;
    union {
        tess_nccl_reduce_args reduce;
        tess_nccl_widen_args widen;
        tess_nccl_finish_args finish;
    } args;
};
static struct rank {
    struct call calls[CALLS];
    int n, open;
    char send[ROOM] __attribute__((aligned(256))), recv[ROOM] __attribute__((aligned(256))),
        scratch[4 * ROOM] __attribute__((aligned(256)));
} ranks[RANKS];
static int writes;   /* say what is called */
static int fails_in; /* the n-th call from now */

/* ---- what is called ---- */

static struct call *next_call(int rank, int kind) {
    struct rank *r = &ranks[rank];
    assert_true(r->n < CALLS);
    r->calls[r->n] = (struct call){ .kind = kind };
    return &r->calls[r->n++];
}
static int now; /* the rank whose calls are written down */
static int number_of(const void *what) {
    return (int)(uintptr_t)what;
}
static int fails(void) {
    return fails_in && --fails_in == 0;
}
static ncclResult_t note(int kind, const void *from, void *to, size_t count, ncclDataType_t dtype, int peer,
                         ncclRedOp_t redop, ncclComm_t comm, cudaStream_t stream) {
    static const char *const names[] = { "", "", "send", "recv", "gather", "scatter", "reduce", "cast" };
    assert_ptr_equal(comm, &ranks[now]);
    assert_int_equal(number_of(stream), 7);
    assert_true(ranks[now].open || kind < SEND);
    struct call *c = next_call(now, kind);
    c->from = from, c->to = to, c->count = count, c->dtype = dtype, c->peer = peer, c->redop = redop;
    if (writes)
        say("%s %zu; ", names[kind], count);
    return fails() ? ncclSystemError : ncclSuccess;
}
static ncclResult_t begin_group(void) {
    assert_int_equal(ranks[now].open, 0);
    if (fails())
        return ncclSystemError;
    ranks[now].open = 1;
    next_call(now, GROUP);
    if (writes)
        say("( ");
    return ncclSuccess;
}
static ncclResult_t end_group(void) {
    assert_int_equal(ranks[now].open, 1);
    ranks[now].open = 0;
    next_call(now, GROUP_END);
    if (writes)
        say("); ");
    return fails() ? ncclSystemError : ncclSuccess;
}
static ncclResult_t send_to(const void *from, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s) {
    return note(SEND, from, NULL, n, t, peer, 0, c, s);
}
static ncclResult_t recv_from(void *to, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s) {
    return note(RECV, NULL, to, n, t, peer, 0, c, s);
}
static ncclResult_t gather(const void *from, void *to, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s) {
    return note(GATHER, from, to, n, t, 0, 0, c, s);
}
static ncclResult_t scatter(const void *from, void *to, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c,
                            cudaStream_t s) {
    return note(SCATTER, from, to, n, t, 0, op, c, s);
}
static ncclResult_t reduce(const void *from, void *to, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c,
                           cudaStream_t s) {
    return note(REDUCE, from, to, n, t, 0, op, c, s);
}
static ncclResult_t cast(const void *from, void *to, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                         cudaStream_t s) {
    return note(CAST, from, to, n, t, root, 0, c, s);
}
static const char *error_text(ncclResult_t r) {
    return r == ncclSystemError ? "why" : "?";
}

static CUresult launch(CUfunction f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared, CUstream s, void **params, void **extra) {
    static const size_t bytes[] = { 0, sizeof(tess_nccl_reduce_args), sizeof(tess_nccl_widen_args),
                                    sizeof(tess_nccl_finish_args) };
    static const char *const names[] = { "", "reduce", "widen", "finish" };
    struct call *c = next_call(now, KERNEL);
    assert_true(y == 1 && z == 1 && bx == 256 && by == 1 && bz == 1 && !shared && !extra && !ranks[now].open);
    c->kernel = number_of(f);
    memcpy(&c->args, params[0], bytes[c->kernel]);
    uint64_t items = c->kernel == 1   ? c->args.reduce.elems
                     : c->kernel == 2 ? c->args.widen.items
                                      : c->args.finish.items;
    assert_true(x >= 1 && x <= 4096 && (x == 4096 || (x - 1 < (items + 255) / 256 && x * 256 >= items)));
    if (writes)
        say("%s on s%d; ", names[c->kernel], number_of(s));
    return fails() ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s) {
    struct call *c = next_call(now, COPY);
    assert_int_equal(number_of(s), 7);
    c->to = (void *)to, c->from = (const void *)from, c->count = bytes;
    if (writes)
        say("copy %zu; ", bytes);
    return fails() ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
static CUresult record(CUevent event, CUstream s) {
    if (writes)
        say("e%d in s%d; ", number_of(event), number_of(s));
    return fails() ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
static CUresult await(CUstream s, CUevent event, unsigned flags) {
    assert_int_equal(flags, 0);
    if (writes)
        say("s%d waits for e%d; ", number_of(s), number_of(event));
    return fails() ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

static const tess_cuda cu = {
    .cuLaunchKernel = launch, .cuMemcpyDtoDAsync = copy, .cuEventRecord = record, .cuStreamWaitEvent = await
};
static const struct nccl_library lib = { .ncclGroupStart = begin_group,
                                         .ncclGroupEnd = end_group,
                                         .ncclSend = send_to,
                                         .ncclRecv = recv_from,
                                         .ncclAllGather = gather,
                                         .ncclReduceScatter = scatter,
                                         .ncclAllReduce = reduce,
                                         .ncclBroadcast = cast,
                                         .ncclGetErrorString = error_text };
#define HANDLE(type, n) ((type)(uintptr_t)(n))
static const struct nccl_sums sums_of = { .stream = HANDLE(CUstream, 8),
                                          .came = HANDLE(CUevent, 1),
                                          .summed = { HANDLE(CUevent, 2), HANDLE(CUevent, 3) } };
static const struct nccl_kernels kernels = { HANDLE(CUfunction, 1), HANDLE(CUfunction, 2), HANDLE(CUfunction, 3) };
static struct nccl_words words;
static struct nccl_use use;
static atomic_int stop;

static struct nccl_launch launch_of(int rank, int size, int how_sums) {
    now = rank;
    return (struct nccl_launch){ .cu = &cu,
                                 .lib = &lib,
                                 .comm = (ncclComm_t)&ranks[rank],
                                 .stream = HANDLE(CUstream, 7),
                                 .sums = &sums_of,
                                 .kernels = &kernels,
                                 .rank = rank,
                                 .size = size,
                                 .how_sums = how_sums,
                                 .words = &words,
                                 .use = &use,
                                 .stop = &stop };
}

/* ---- numbers, all of them small integers, so that each sum is exact in whatever order ---- */

static size_t bytes_of(ncclDataType_t t) {
    return t == ncclInt8 || t == ncclUint8         ? 1
           : t == ncclFloat16 || t == ncclBfloat16 ? 2
           : t == ncclInt64 || t == ncclFloat64    ? 8
                                                   : 4;
}
static double get(uint32_t dtype, const void *at, uint64_t i) {
    return dtype == TESS_F64  ? ((const double *)at)[i]
           : dtype < TESS_F16 ? (double)tess_nccl_load_whole(dtype, at, i)
                              : (double)tess_nccl_load_f32(dtype, at, i);
}
static void put(uint32_t dtype, void *at, uint64_t i, double x) {
    if (dtype == TESS_F64)
        ((double *)at)[i] = x;
    else if (dtype < TESS_F16)
        tess_nccl_store_whole(dtype, at, i, (int64_t)x);
    else
        tess_nccl_store_f32(dtype, at, i, (float)x);
}
static uint32_t ours(ncclDataType_t t) {
    return t == ncclInt8       ? TESS_I8
           : t == ncclUint8    ? TESS_U8
           : t == ncclInt32    ? TESS_I32
           : t == ncclInt64    ? TESS_I64
           : t == ncclFloat16  ? TESS_F16
           : t == ncclBfloat16 ? TESS_BF16
           : t == ncclFloat32  ? TESS_F32
                               : TESS_F64;
}
static double number(int rank, uint64_t i) {
    return (double)(((uint64_t)rank * 5 + i * 3 + i / 7) % 8);
}
static double join(int least, int most, double a, double b) {
    return least ? (a < b ? a : b) : most ? (a > b ? a : b) : a + b;
}

/* ---- the calls, carried out ---- */

static void run_kernel(const struct call *c) {
    if (c->kernel == 1)
        for (uint64_t i = 0; i < c->args.reduce.elems; i++)
            tess_nccl_reduce_body(&c->args.reduce, i);
    if (c->kernel == 2)
        for (uint64_t i = 0; i < c->args.widen.items; i++)
            tess_nccl_widen_body(&c->args.widen, i);
    if (c->kernel == 3)
        for (uint64_t i = 0; i < c->args.finish.items; i++)
            tess_nccl_finish_body(&c->args.finish, i);
}
/* The first call of this kind from `at` on within a group, to or from that peer. */
static struct call *find(int rank, int at, int kind, int peer) {
    struct call *c = &ranks[rank].calls[at];
    while (c->kind != GROUP_END && (c->kind != kind || c->peer != peer || !c->count))
        c++;
    return c->kind == GROUP_END ? NULL : c;
}
static void run_pairs(const int *at, int size) {
    for (int from = 0; from < size; from++)
        for (int to = 0; to < size; to++)
            for (struct call *s, *r; (s = find(from, at[from], SEND, to)) != NULL; s->count = r->count = 0) {
                r = find(to, at[to], RECV, from);
                if (!r || r->count != s->count || r->dtype != s->dtype || from == to)
                    fail_msg("rank %d sends %zu to rank %d", from, s->count, to);
                memcpy(r->to, s->from, s->count * bytes_of(s->dtype));
            }
    for (int r = 0; r < size; r++)
        for (const struct call *c = &ranks[r].calls[at[r]]; c->kind != GROUP_END; c++)
            assert_true(c->kind != RECV || c->count == 0); /* each was sent */
}
static void run_one_of_all(struct call *const *c, int size) {
    static char results[RANKS][4 * ROOM];
    const struct call *first = c[0];
    size_t bytes = bytes_of(first->dtype), block = first->count * bytes;
    uint32_t dtype = ours(first->dtype);
    for (int r = 0; r < size; r++)
        assert_true(c[r]->kind == first->kind && c[r]->count == first->count && c[r]->dtype == first->dtype &&
                    c[r]->redop == first->redop && c[r]->peer == first->peer);
    for (int r = 0; r < size; r++)
        if (first->kind == GATHER)
            for (int from = 0; from < size; from++)
                memcpy(results[r] + (size_t)from * block, c[from]->from, block);
        else if (first->kind == CAST)
            memcpy(results[r], c[first->peer]->from, block);
        else
            for (uint64_t i = 0; i < first->count; i++) {
                uint64_t k = i + (first->kind == SCATTER ? (uint64_t)r * first->count : 0);
                double x = get(dtype, c[0]->from, k);
                for (int from = 1; from < size; from++)
                    x = join(first->redop == ncclMin, first->redop == ncclMax, x, get(dtype, c[from]->from, k));
                put(dtype, results[r], i, x);
            }
    for (int r = 0; r < size; r++)
        memcpy(c[r]->to, results[r], first->kind == GATHER ? block * (size_t)size : block);
}
/* All ranks come to their next group, which is carried out; none has one more than another. */
static void run_all(int size) {
    int at[RANKS] = { 0 }, ends = 0;
    while (!ends) {
        for (int r = 0; r < size; r++) {
            for (; at[r] < ranks[r].n && ranks[r].calls[at[r]].kind != GROUP; at[r]++) {
                const struct call *c = &ranks[r].calls[at[r]];
                if (c->kind == KERNEL)
                    run_kernel(c);
                else if (c->kind == COPY)
                    memcpy(c->to, c->from, c->count);
            }
            ends += at[r] == ranks[r].n;
        }
        assert_true(ends == 0 || ends == size);
        if (ends)
            break;
        run_pairs(at, size);
        for (int going = 1; going;) {
            struct call *c[RANKS];
            going = 0;
            for (int r = 0; r < size; r++) {
                while (ranks[r].calls[at[r]].kind != GROUP_END && ranks[r].calls[at[r]].kind < GATHER)
                    at[r]++;
                c[r] = &ranks[r].calls[at[r]];
                going += c[r]->kind != GROUP_END;
            }
            assert_true(going == 0 || going == size);
            if (going)
                run_one_of_all(c, size);
            for (int r = 0; r < size; r++)
                at[r]++;
        }
    }
}

/* ---- each collective, as the contract has it ---- */

static uint64_t parts[RANKS][RANKS]; /* what rank a sends rank b in an all_to_all_v */
static uint64_t received[RANKS][RANKS];

static void fill(const tess_collective *c, int size) {
    for (int r = 0; r < size; r++) {
        memset(ranks[r].recv, 0, ROOM);
        memset(ranks[r].scratch, 0x55, sizeof ranks[r].scratch);
        ranks[r].n = ranks[r].open = 0;
        for (uint64_t i = 0; i * tess_dtype_bytes(c->send_dtype) < ROOM; i++)
            put(c->send_dtype, ranks[r].send, i, number(r, i));
        for (uint64_t i = 0; i * tess_dtype_bytes(c->recv_dtype) < ROOM; i++)
            put(c->recv_dtype, ranks[r].recv, i, 2);
    }
}
/* Element i of this rank's result; -1: it stays. */
static double want(const tess_collective *c, int size, int rank, uint64_t i) {
    const uint64_t n = c->count;
    switch (c->op) {
    case TESS_ALL_GATHER: return i < n * (uint64_t)size ? number((int)(i / n), i % n) : -1;
    case TESS_BROADCAST: return i < n && rank != c->root ? number(c->root, i) : -1;
    case TESS_ALL_TO_ALL: return i < n * (uint64_t)size ? number((int)(i / n), (uint64_t)rank * n + i % n) : -1;
    case TESS_ALL_TO_ALL_V:
        for (int from = 0; from < size; from++) {
            if (i < parts[from][rank]) {
                for (int before = 0; before < rank; before++)
                    i += parts[from][before];
                return number(from, i);
            }
            i -= parts[from][rank];
        }
        return -1;
    default: break;
    }
    if (i >= n)
        return -1;
    uint64_t k = i + (c->op == TESS_REDUCE_SCATTER ? (uint64_t)rank * n : 0);
    double x = number(0, k);
    for (int r = 1; r < size; r++)
        x = join(c->redop == TESS_MIN, c->redop == TESS_MAX, x, number(r, k));
    return (x + (c->flags & KIT_ADD ? 2 : 0)) * c->scale;
}
static tess_collective on_rank(tess_collective c, int r) {
    c.send = ranks[r].send, c.recv = ranks[r].recv, c.scratch = ranks[r].scratch;
    c.send_parts = parts[r], c.recv_parts = received[r];
    return c;
}
static void check_results(const tess_collective *c, int size) {
    for (int r = 0; r < size; r++)
        for (uint64_t i = 0; i * tess_dtype_bytes(c->recv_dtype) < ROOM; i++) {
            double x = want(c, size, r, i), is = get(c->recv_dtype, ranks[r].recv, i);
            if (is != (x < 0 ? 2 : x))
                fail_msg(
                    "op %u of %u %s as %s, flags %u, redop %u, scale %g, %d ranks: rank %d has %g at %u, expected %g",
                    c->op, (unsigned)c->count, tess_dtype_name(c->send_dtype), tess_dtype_name(c->recv_dtype), c->flags,
                    c->redop, c->scale, size, r, is, (unsigned)i, x < 0 ? 2 : x);
        }
}
static void simulate(tess_collective c, int size, int how_sums) {
    fill(&c, size);
    for (int r = 0; r < size; r++) {
        struct nccl_launch l = launch_of(r, size, how_sums);
        tess_collective own = on_rank(c, r);
        if (nccl_run_calls(&l, &own, 1, no_error()))
            fail_msg("%s", e.message);
    }
    assert_true(nccl_way_of(&c, size, how_sums).scratch_bytes <= sizeof ranks->scratch);
    run_all(size);
    check_results(&c, size);
}
static tess_collective a_call(uint32_t op, uint32_t in, uint32_t out, uint64_t count) {
    return (tess_collective){ .struct_size = sizeof(tess_collective),
                              .op = op,
                              .redop = TESS_SUM,
                              .send_dtype = in,
                              .recv_dtype = out,
                              .send_mem = TESS_MEM_CUDA,
                              .recv_mem = TESS_MEM_CUDA,
                              .count = count,
                              .scale = 1 };
}

static void test_nccl_calls__moves_are_those_of_the_contract(void **state) {
    (void)state;
    static const uint32_t dtypes[] = { TESS_U8, TESS_I8, TESS_I32, TESS_I64, TESS_F16, TESS_BF16, TESS_F32, TESS_F64 };
    for (int size = 1; size <= RANKS; size++) {
        for (int t = 0; t < 8; t++) {
            simulate(a_call(TESS_ALL_GATHER, dtypes[t], dtypes[t], 13), size, NCCL_SUMS_FP32);
            simulate(a_call(TESS_ALL_TO_ALL, dtypes[t], dtypes[t], 13), size, NCCL_SUMS_FP32);
            for (int root = 0; root < size; root++) {
                tess_collective c = a_call(TESS_BROADCAST, dtypes[t], dtypes[t], 13);
                c.root = root;
                simulate(c, size, NCCL_SUMS_FP32);
            }
        }
        for (int a = 0; a < size; a++) /* of different lengths, some of none */
            for (int b = 0; b < size; b++)
                received[b][a] = parts[a][b] = (uint64_t)((a * 3 + b * 5 + 1) % 7);
        simulate(a_call(TESS_ALL_TO_ALL_V, TESS_F16, TESS_F16, 60), size, NCCL_SUMS_FP32);
        simulate(a_call(TESS_ALL_GATHER, TESS_F32, TESS_F32, 0), size, NCCL_SUMS_FP32);
        simulate(a_call(TESS_BARRIER, TESS_U8, TESS_U8, 0), size, NCCL_SUMS_FP32);
    }
}

static void test_nccl_calls__reductions_are_those_of_the_contract(void **state) {
    (void)state;
    static const uint32_t pairs[][2] = { { TESS_F32, TESS_F32 }, { TESS_BF16, TESS_F32 }, { TESS_BF16, TESS_BF16 },
                                         { TESS_F16, TESS_F32 }, { TESS_F32, TESS_F16 },  { TESS_F64, TESS_F64 },
                                         { TESS_I32, TESS_I32 }, { TESS_I64, TESS_I64 },  { TESS_U8, TESS_U8 },
                                         { TESS_I8, TESS_I8 } };
    for (int size = 1; size <= RANKS; size++)
        for (int sums = NCCL_SUMS_FP32; sums <= NCCL_SUMS_TREE; sums++)
            for (int t = 0; t < 10; t++)
                for (uint32_t op = TESS_REDUCE_SCATTER; op <= TESS_ALL_REDUCE; op++)
                    for (uint32_t redop = TESS_SUM; redop <= TESS_MAX; redop++)
                        for (int kind = 0; kind < (redop == TESS_SUM ? 4 : 1); kind++) {
                            tess_collective c = a_call(op, pairs[t][0], pairs[t][1], 37);
                            c.redop = redop;
                            c.flags = kind & 1 ? KIT_ADD : 0;
                            c.scale = kind & 2 && pairs[t][0] >= TESS_F16 ? 0.5 : 1;
                            simulate(c, size, sums);
                        }
}

/* Of a way that has less room than the real one, so that blocks travel in pieces. */
static void simulate_pieces(tess_collective c, int size, uint64_t piece, int widened) {
    fill(&c, size);
    for (int r = 0; r < size; r++) {
        struct nccl_launch l = launch_of(r, size, widened ? NCCL_SUMS_FP32 : NCCL_SUMS_TREE);
        tess_collective own = on_rank(c, r);
        struct nccl_way way = nccl_way_of(&c, size, l.how_sums);
        way.block = widened || c.op == TESS_REDUCE_SCATTER ? c.count : (c.count + (uint64_t)size - 1) / (uint64_t)size;
        way.piece = piece;
        way.stride_bytes = piece * 4 + 32;
        tess_status s = widened                       ? nccl_sum_widened(&l, &own, &way, no_error())
                        : c.op == TESS_REDUCE_SCATTER ? reduce_scatter(&l, &own, &way, no_error())
                                                      : all_reduce_in_pairs(&l, &own, &way, no_error());
        assert_int_equal(s, TESS_OK);
    }
    run_all(size);
    check_results(&c, size);
}

static void test_nccl_calls__pieces_make_up_the_whole(void **state) {
    (void)state;
    for (int size = 2; size <= RANKS; size++)
        for (uint32_t op = TESS_REDUCE_SCATTER; op <= TESS_ALL_REDUCE; op++)
            for (uint64_t piece = 8; piece <= 80; piece += 8)
                for (int kind = 0; kind < 4; kind++) {
                    tess_collective c = a_call(op, kind & 1 ? TESS_BF16 : TESS_F32, TESS_F32, 133);
                    c.flags = kind & 2 ? KIT_ADD : 0, c.scale = 0.5;
                    simulate_pieces(c, size, piece, 0);
                    c.send_dtype = kind & 1 ? TESS_BF16 : TESS_F16;
                    simulate_pieces(c, size, piece, 1);
                }
}

static void test_nccl_calls__all_to_all_in_place_copies_no_own_block(void **state) {
    (void)state;
    tess_collective c = a_call(TESS_ALL_TO_ALL, TESS_F32, TESS_F32, 3);
    fill(&c, 2);
    struct nccl_launch l = launch_of(1, 2, NCCL_SUMS_FP32);
    tess_collective own = on_rank(c, 1);
    own.send = own.recv;
    assert_int_equal(nccl_run_calls(&l, &own, 1, no_error()), TESS_OK);
    for (int i = 0; i < ranks[1].n; i++)
        assert_int_not_equal(ranks[1].calls[i].kind, COPY);
}

/* ---- streams and events ---- */

static void expect_calls(tess_collective c, int size, uint64_t piece, int widened, const char *text) {
    struct nccl_launch l = launch_of(1, size, widened ? NCCL_SUMS_FP32 : NCCL_SUMS_TREE);
    fill(&c, size);
    c = on_rank(c, 1);
    struct nccl_way way = nccl_way_of(&c, size, l.how_sums);
    way.piece = piece, way.block = c.count, way.stride_bytes = 4 * piece;
    writes = 1;
    assert_int_equal(widened ? nccl_sum_widened(&l, &c, &way, no_error()) : reduce_scatter(&l, &c, &way, no_error()),
                     TESS_OK);
    writes = 0;
    expect_said(text);
}

static void test_nccl_calls__a_piece_is_summed_beside_the_next_ones_trade(void **state) {
    (void)state;
    const tess_collective c = a_call(TESS_REDUCE_SCATTER, TESS_F32, TESS_F32, 40);
    expect_calls(c, 2, 40, 0, "( send 40; recv 40; ); reduce on s7; ");
    expect_calls(c, 2, 20, 0,
                 "( send 20; recv 20; ); e1 in s7; s8 waits for e1; reduce on s8; e2 in s8; "
                 "( send 20; recv 20; ); reduce on s7; s7 waits for e2; ");
    expect_calls(c, 2, 10, 0,
                 "( send 10; recv 10; ); e1 in s7; s8 waits for e1; reduce on s8; e2 in s8; "
                 "( send 10; recv 10; ); e1 in s7; s8 waits for e1; reduce on s8; e3 in s8; "
                 "s7 waits for e2; ( send 10; recv 10; ); e1 in s7; s8 waits for e1; reduce on s8; e2 in s8; "
                 "s7 waits for e3; ( send 10; recv 10; ); reduce on s7; s7 waits for e2; ");
}

static void test_nccl_calls__a_piece_is_widened_beside_the_sum_before_it(void **state) {
    (void)state;
    const tess_collective c = a_call(TESS_REDUCE_SCATTER, TESS_BF16, TESS_F32, 40);
    expect_calls(c, 2, 40, 1, "widen on s7; ( scatter 40; ); finish on s7; ");
    expect_calls(c, 2, 20, 1,
                 "e1 in s7; widen on s7; s8 waits for e1; widen on s8; e1 in s8; ( scatter 20; ); finish on s7; "
                 "s7 waits for e1; ( scatter 20; ); finish on s7; ");
    expect_calls(
        c, 2, 10, 1,
        "e1 in s7; widen on s7; s8 waits for e1; widen on s8; e1 in s8; ( scatter 10; ); finish on s7; e2 in s7; "
        "s7 waits for e1; s8 waits for e2; widen on s8; e1 in s8; ( scatter 10; ); finish on s7; e3 in s7; "
        "s7 waits for e1; s8 waits for e3; widen on s8; e1 in s8; ( scatter 10; ); finish on s7; "
        "s7 waits for e1; ( scatter 10; ); finish on s7; ");
}

/* ---- several calls ---- */

static void expect_run(const tess_collective *calls, uint32_t n, const char *text) {
    struct nccl_launch l = launch_of(0, 2, NCCL_SUMS_FP32);
    ranks[0].n = ranks[0].open = 0;
    writes = 1;
    if (nccl_run_calls(&l, calls, n, no_error()))
        fail_msg("%s", e.message);
    writes = 0;
    expect_said(text);
}
static tess_collective placed(uint32_t op, uint64_t count, uintptr_t from, uintptr_t to) {
    tess_collective c = a_call(op, TESS_U8, TESS_U8, count);
    c.send = (void *)from, c.recv = (void *)to;
    return c;
}

static void test_nccl_calls__independent_calls_are_one_group(void **state) {
    (void)state;
    tess_collective c[40];
    for (int i = 0; i < 40; i++)
        c[i] = placed(TESS_ALL_REDUCE, 16, 0x1000 + 64 * (uintptr_t)i, 0x8000 + 64 * (uintptr_t)i);
    expect_run(c, 3, "( reduce 16; reduce 16; reduce 16; ); ");
    c[1].scale = 0.5; /* a scale, so our kernel follows, which leaves integers unscaled */
    expect_run(c, 3, "( reduce 16; ); ( reduce 16; ); reduce on s7; ( reduce 16; ); ");
    c[1] = placed(TESS_ALL_TO_ALL, 8, 0x3000, 0x4000);
    expect_run(c, 3, "( reduce 16; send 8; recv 8; reduce 16; ); copy 8; ");
    c[1].count = 0;
    expect_run(c, 3, "( reduce 16; reduce 16; ); ");
    c[1] = placed(TESS_ALL_REDUCE, 16, 0x1040, 0x8040);
    struct nccl_launch l = launch_of(0, 2, NCCL_SUMS_FP32);
    assert_true(group_at(&l, c, 0, 40) == 32 && group_at(&l, c, 32, 40) == 8 && group_at(&l, c, 3, 5) == 2);
}

static void test_nccl_calls__dependent_calls_are_groups_of_their_own(void **state) {
    (void)state;
    static const struct {
        uint32_t first, second;
        uintptr_t from, to;
        int apart;
    } cases[] = {
        /* The first reads [0x1000, 0x1010) and writes [0x2000, 0x2010); gathers write and scatters read twice that. */
        { TESS_ALL_REDUCE, TESS_ALL_REDUCE, 0x2010, 0x3000, 0 },
        { TESS_ALL_REDUCE, TESS_ALL_REDUCE, 0x200f, 0x3000, 1 },
        { TESS_ALL_REDUCE, TESS_ALL_REDUCE, 0x1ff0, 0x3000, 0 },
        { TESS_ALL_REDUCE, TESS_ALL_REDUCE, 0x1ff1, 0x3000, 1 },
        { TESS_ALL_REDUCE, TESS_ALL_REDUCE, 0x3000, 0x2010, 0 },
        { TESS_ALL_REDUCE, TESS_ALL_REDUCE, 0x3000, 0x200f, 1 },
        { TESS_ALL_REDUCE, TESS_ALL_REDUCE, 0x3000, 0x1010, 0 },
        { TESS_ALL_REDUCE, TESS_ALL_REDUCE, 0x3000, 0x100f, 1 },
        { TESS_ALL_REDUCE, TESS_ALL_REDUCE, 0x1000, 0x3000, 0 }, /* both only read it */
        { TESS_ALL_GATHER, TESS_ALL_REDUCE, 0x201f, 0x3000, 1 },
        { TESS_ALL_GATHER, TESS_ALL_REDUCE, 0x2020, 0x3000, 0 },
        { TESS_ALL_GATHER, TESS_ALL_REDUCE, 0x3000, 0x1010, 0 },
        { TESS_REDUCE_SCATTER, TESS_ALL_REDUCE, 0x3000, 0x101f, 1 },
        { TESS_REDUCE_SCATTER, TESS_ALL_REDUCE, 0x3000, 0x1020, 0 },
        { TESS_REDUCE_SCATTER, TESS_ALL_REDUCE, 0x2010, 0x3000, 0 },
        { TESS_ALL_TO_ALL, TESS_ALL_REDUCE, 0x201f, 0x3000, 1 },
        { TESS_ALL_TO_ALL, TESS_ALL_REDUCE, 0x3000, 0x101f, 1 },
        { TESS_ALL_TO_ALL, TESS_ALL_REDUCE, 0x2020, 0x3000, 0 },
        { TESS_ALL_TO_ALL, TESS_ALL_REDUCE, 0x3000, 0x1020, 0 },
        { TESS_ALL_REDUCE, TESS_ALL_GATHER, 0x3000, 0x1fe1, 1 },
        { TESS_ALL_REDUCE, TESS_ALL_GATHER, 0x3000, 0x1fe0, 0 },
        { TESS_ALL_REDUCE, TESS_REDUCE_SCATTER, 0x1fe1, 0x3000, 1 },
        { TESS_ALL_REDUCE, TESS_REDUCE_SCATTER, 0x1fe0, 0x3000, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nccl_launch l = launch_of(0, 2, NCCL_SUMS_FP32);
        const tess_collective c[] = { placed(cases[i].first, 16, 0x1000, 0x2000),
                                      placed(cases[i].second, 16, cases[i].from, cases[i].to) };
        if (group_at(&l, c, 0, 2) != (cases[i].apart ? 1u : 2u))
            fail_msg("case %zu", i);
    }
    const tess_collective c[] = { placed(TESS_ALL_REDUCE, 16, 0x1000, 0x2000),
                                  placed(TESS_ALL_REDUCE, 16, 0x5000, 0x6000),
                                  placed(TESS_ALL_REDUCE, 16, 0x2000, 0x7000) };
    expect_run(c, 3, "( reduce 16; reduce 16; ); ( reduce 16; ); ");
}

/* ---- words that go with a group ---- */

static void test_nccl_calls__words_go_with_the_first_group_or_alone(void **state) {
    (void)state;
    const tess_collective c[] = { placed(TESS_ALL_REDUCE, 16, 0x1000, 0x2000),
                                  placed(TESS_ALL_REDUCE, 16, 0x2000, 0x3000) };
    const tess_collective alone = placed(TESS_BARRIER, 0, 0, 0);
    words = (struct nccl_words){ &words, &e, 64 };
    expect_run(c, 2, "( gather 64; reduce 16; ); ( reduce 16; ); ");
    assert_null(words.own);
    words = (struct nccl_words){ &words, &e, 64 };
    expect_run(&alone, 1, "( gather 64; ); ");
    words = (struct nccl_words){ &words, &e, 64 };
    expect_run(NULL, 0, "( gather 64; ); ");
    assert_true(ranks[0].calls[1].from == &words && ranks[0].calls[1].to == &e && ranks[0].calls[1].dtype == ncclUint8);
    expect_run(&alone, 1, "( ); "); /* which has no words left */
}

/* ---- failures ---- */

static void test_nccl_calls__each_failure_is_named_and_groups_end(void **state) {
    (void)state;
    tess_collective c = a_call(TESS_REDUCE_SCATTER, TESS_F32, TESS_F32, 40),
                    wide = a_call(TESS_ALL_REDUCE, TESS_BF16, TESS_F32, 40);
    for (int which = 0; which < 8; which++)
        for (int n = 1;; n++) {
            struct nccl_launch l = launch_of(0, 2, which == 1 ? NCCL_SUMS_FP32 : NCCL_SUMS_TREE);
            fill(&c, 2);
            tess_collective own = on_rank(which == 1 ? wide : c, 0);
            struct nccl_way way = { .block = 40, .piece = 10, .stride_bytes = 40 };
            fails_in = n;
            no_error();
            tess_status s;
            if (which == 0)
                s = reduce_scatter(&l, &own, &way, &e);
            else if (which == 1)
                s = nccl_sum_widened(&l, &own, &way, &e);
            else if (which == 2)
                s = all_reduce_in_pairs(&l, &own, &way, &e);
            else {
                own = which == 3   ? a_call(TESS_ALL_REDUCE, TESS_F64, TESS_F64, 4)
                      : which == 4 ? a_call(TESS_ALL_TO_ALL, TESS_F32, TESS_F32, 4)
                      : which == 5 ? a_call(TESS_ALL_REDUCE, TESS_I32, TESS_I32, 4)
                      : which == 6 ? a_call(TESS_BROADCAST, TESS_F32, TESS_F32, 4)
                                   : a_call(TESS_BARRIER, TESS_U8, TESS_U8, 0);
                own.flags = which == 5 ? KIT_ADD : 0;
                own = on_rank(own, 0);
                words = (struct nccl_words){ which == 7 ? &words : NULL, &e, 64 };
                s = nccl_run_calls(&l, &own, 1, &e);
            }
            assert_int_equal(ranks[0].open, 0);
            assert_int_equal(atomic_load(&use.state), NCCL_UNUSED);
            if (fails_in) {
                assert_int_equal(s, TESS_OK);
                fails_in = 0;
                break;
            }
            if ((s != TESS_E_SYSTEM && s != TESS_E_DEVICE) || e.code != s || strncmp(e.message, "nccl: ", 6) != 0 ||
                !e.native)
                fail_msg("%d, call %d: status %d, \"%s\"", which, n, s, e.message);
        }
    words.own = NULL;
}

static void test_nccl_calls__a_calls_own_failure_says_more_than_the_groups(void **state) {
    (void)state;
    const tess_collective c = a_call(TESS_BROADCAST, TESS_F32, TESS_F32, 4);
    static const char *const texts[] = { "nccl: ncclGroupStart gave 2: why", "nccl: ncclBroadcast gave 2: why",
                                         "nccl: ncclGroupEnd gave 2: why" };
    for (int n = 1; n <= 3; n++) {
        struct nccl_launch l = launch_of(0, 2, NCCL_SUMS_FP32);
        fails_in = n;
        assert_int_equal(nccl_run_calls(&l, &c, 1, no_error()), TESS_E_SYSTEM);
        assert_string_equal(e.message, texts[n - 1]);
        assert_int_equal(e.native, ncclSystemError);
    }
    struct nccl_launch l = launch_of(0, 2, NCCL_SUMS_FP32);
    assert_int_equal(nccl_group_begin(&l, no_error()), TESS_OK);
    nccl_group_note(&l, ncclSystemError, "first", &e);
    nccl_group_note(&l, ncclSystemError, "second", &e);
    fails_in = 1;
    assert_int_equal(nccl_group_end(&l, &e), TESS_E_SYSTEM);
    assert_string_equal(e.message, "nccl: first gave 2: why");
    assert_int_equal(nccl_cuda_ok(CUDA_ERROR_OUT_OF_MEMORY, "cuThing", no_error()), TESS_E_NOMEM);
    assert_string_equal(e.message, "nccl: cuThing gave CUDA error 2 (unknown)");
    assert_int_equal(e.native, 2);
}

static void test_nccl_calls__an_aborted_communicator_begins_no_group(void **state) {
    (void)state;
    const tess_collective c = a_call(TESS_BROADCAST, TESS_F32, TESS_F32, 4);
    atomic_store(&stop, 1);
    struct nccl_launch l = launch_of(0, 2, NCCL_SUMS_FP32);
    ranks[0].n = 0;
    assert_int_equal(nccl_run_calls(&l, &c, 1, no_error()), TESS_E_ABORTED);
    assert_string_equal(e.message, "nccl: the communicator was aborted");
    assert_int_equal(ranks[0].n, 0);
    atomic_store(&stop, 0);
}

/* ---- the way and its room ---- */

static void test_nccl_calls__scratch_is_within_its_bound_and_has_room_for_two_pieces(void **state) {
    (void)state;
    for (int size = 2; size < 6000; size = size * 3 / 2 + 1)
        for (uint64_t count = 1; count < (uint64_t)1 << 34; count = count * 5 / 2 + 3)
            for (int half = 0; half < 2; half++)
                for (int sums = NCCL_SUMS_FP32; sums <= NCCL_SUMS_TREE; sums++)
                    for (uint32_t op = TESS_REDUCE_SCATTER; op <= TESS_ALL_REDUCE; op++) {
                        const tess_collective c = a_call(op, half ? TESS_BF16 : TESS_F32, TESS_F32, count);
                        const struct nccl_way way = nccl_way_of(&c, size, sums);
                        const uint64_t others = (uint64_t)size - 1, bytes = half ? 2 : 4;
                        if (way.how == NCCL_SCATTERED || way.how == NCCL_SCATTERED_AND_GATHERED) {
                            const uint64_t elems =
                                op == TESS_REDUCE_SCATTER ? count : (count + (uint64_t)size - 1) / (uint64_t)size;
                            int whole = way.piece >= way.block;
                            assert_true(way.block >= elems && way.block < elems + 64 && way.block % 64 == 0);
                            assert_true(way.piece % 64 == 0 && way.piece > 0 && way.piece <= way.block);
                            assert_true(way.stride_bytes % 256 == 0 && way.stride_bytes >= way.piece * bytes &&
                                        way.stride_bytes < way.piece * bytes + 256);
                            assert_true(way.scratch_bytes >= others * way.stride_bytes * (whole ? 1 : 2));
                            assert_true(way.scratch_bytes <= (16 << 20) + others * 128 ||
                                        way.scratch_bytes <= others * (4096 * bytes + 256));
                            if (!whole) /* no more pieces than the room asks for */
                                assert_true(2 * (way.piece + 128) * others * bytes > (16 << 20) || way.piece == 2048);
                        } else if (way.how == NCCL_WIDENED) {
                            const uint64_t blocks = op == TESS_REDUCE_SCATTER ? (uint64_t)size : 1;
                            int whole = way.piece >= way.block;
                            assert_true(way.block == count && way.piece > 0 && way.piece <= way.block);
                            assert_true(way.scratch_bytes % 256 == 0 &&
                                        way.scratch_bytes >= way.piece * blocks * 4 * (whole ? 1 : 2));
                            assert_true(way.scratch_bytes <= 32 << 20 || way.scratch_bytes <= blocks * 4 * 4096 + 256);
                            if (!whole)
                                assert_true((way.piece % 128 == 0 && 2 * (way.piece + 128) * blocks * 4 > (32 << 20)) ||
                                            way.piece == 2048);
                        } else if (way.how == NCCL_ALL_EVERYWHERE)
                            assert_true(op == TESS_ALL_REDUCE && way.scratch_bytes <= 256 << 10 &&
                                        way.scratch_bytes == (uint64_t)size * count * bytes);
                    }
}

static void test_nccl_calls__each_call_goes_its_way(void **state) {
    (void)state;
    static const char *const names[] = { "nothing", "plain",     "pairs",      "alone", "finished",
                                         "widened", "scattered", "everywhere", "both" };
    static const struct {
        uint32_t op, in, out, redop, flags;
        uint64_t count;
        int size;
        double scale;
        const char *ways; /* of fp32, native, tree */
    } cases[] = {
        { TESS_ALL_GATHER, TESS_F32, TESS_F32, 0, 0, 8, 4, 1, "plain plain plain " },
        { TESS_ALL_GATHER, TESS_F32, TESS_F32, 0, 0, 0, 4, 1, "nothing nothing nothing " },
        { TESS_BARRIER, TESS_F32, TESS_F32, 0, 0, 8, 4, 1, "nothing nothing nothing " },
        { TESS_BROADCAST, TESS_F32, TESS_F32, 0, 0, 8, 1, 1, "plain plain plain " },
        { TESS_ALL_TO_ALL, TESS_F32, TESS_F32, 0, 0, 8, 1, 1, "pairs pairs pairs " },
        { TESS_ALL_TO_ALL_V, TESS_F32, TESS_F32, 0, 0, 8, 4, 1, "pairs pairs pairs " },
        { TESS_ALL_REDUCE, TESS_F32, TESS_F32, TESS_SUM, 0, 8, 1, 1, "alone alone alone " },
        { TESS_ALL_REDUCE, TESS_F32, TESS_F32, TESS_SUM, 0, 8, 4, 1, "plain plain everywhere " },
        { TESS_ALL_REDUCE, TESS_F32, TESS_F32, TESS_SUM, 0, 8, 4, 2, "finished finished everywhere " },
        { TESS_ALL_REDUCE, TESS_F32, TESS_F32, TESS_SUM, 1, 8, 4, 1, "finished finished everywhere " },
        { TESS_ALL_REDUCE, TESS_F32, TESS_F32, TESS_MIN, 0, 8, 4, 1, "everywhere everywhere everywhere " },
        { TESS_ALL_REDUCE, TESS_I32, TESS_I32, TESS_MAX, 0, 8, 4, 1, "plain plain plain " },
        { TESS_ALL_REDUCE, TESS_I32, TESS_I32, TESS_SUM, 1, 8, 4, 1, "finished finished finished " },
        { TESS_ALL_REDUCE, TESS_F64, TESS_F64, TESS_SUM, 0, 8, 4, 1, "everywhere everywhere everywhere " },
        { TESS_ALL_REDUCE, TESS_BF16, TESS_F32, TESS_SUM, 0, 8, 4, 1, "widened finished everywhere " },
        { TESS_ALL_REDUCE, TESS_F16, TESS_F16, TESS_SUM, 0, 8, 4, 1, "widened plain everywhere " },
        { TESS_ALL_REDUCE, TESS_F32, TESS_BF16, TESS_SUM, 0, 8, 4, 1, "everywhere everywhere everywhere " },
        { TESS_ALL_REDUCE, TESS_BF16, TESS_F32, TESS_MAX, 0, 8, 4, 1, "everywhere everywhere everywhere " },
        { TESS_REDUCE_SCATTER, TESS_F32, TESS_F32, TESS_MIN, 0, 8, 4, 1, "scattered scattered scattered " },
        { TESS_ALL_REDUCE, TESS_F32, TESS_F32, TESS_MIN, 0, 16384, 4, 1, "everywhere everywhere everywhere " },
        { TESS_ALL_REDUCE, TESS_F32, TESS_F32, TESS_MIN, 0, 16385, 4, 1, "both both both " },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_collective c = a_call(cases[i].op, cases[i].in, cases[i].out, cases[i].count);
        c.redop = cases[i].redop, c.flags = cases[i].flags, c.scale = cases[i].scale;
        for (int sums = NCCL_SUMS_FP32; sums <= NCCL_SUMS_TREE; sums++)
            say("%s ", names[nccl_way_of(&c, cases[i].size, sums).how]);
        expect_said(cases[i].ways);
    }
    tess_collective c = a_call(TESS_ALL_REDUCE, TESS_I32, TESS_I32, 10);
    c.scale = 2; /* multiplied where it lands */
    assert_int_equal(nccl_way_of(&c, 4, NCCL_SUMS_FP32).scratch_bytes, 0);
    c.flags = KIT_ADD;
    assert_int_equal(nccl_way_of(&c, 4, NCCL_SUMS_FP32).scratch_bytes, 40);
}

static void test_nccl_calls__checks_are_of_the_gpus_memory_and_of_scratch(void **state) {
    (void)state;
    tess_collective c = a_call(TESS_ALL_REDUCE, TESS_F64, TESS_F64, 8);
    char a[256], b[256], s[1024];
    c.send = a, c.recv = b, c.scratch = s, c.scratch_bytes = 4 * 64;
    assert_int_equal(nccl_check(&c, -1, 4, NCCL_SUMS_FP32, no_error()), TESS_OK);
    assert_int_equal(nccl_check(&c, 3, 4, NCCL_SUMS_FP32, no_error()), TESS_OK);
    c.scratch_bytes--;
    assert_int_equal(nccl_check(&c, 3, 4, NCCL_SUMS_FP32, no_error()), TESS_E_INVALID);
    assert_int_equal(nccl_check(&c, -1, 4, NCCL_SUMS_FP32, no_error()), TESS_OK); /* a plan has none yet */
    for (int which = 0; which < 2; which++) {
        c.send_mem = which ? TESS_MEM_CUDA : TESS_MEM_HOST, c.recv_mem = which ? TESS_MEM_PINNED : TESS_MEM_CUDA;
        assert_int_equal(nccl_check(&c, -1, 4, NCCL_SUMS_FP32, no_error()), TESS_E_UNSUPPORTED);
        assert_string_equal(e.message,
                            which ? "nccl: memory kinds 3 and 2, expected a GPU's memory (TESSERA_DEVICE=cuda)"
                                  : "nccl: memory kinds 1 and 3, expected a GPU's memory (TESSERA_DEVICE=cuda)");
        assert_true(nccl_check(&c, 1, 4, NCCL_SUMS_FP32, no_error()) < 0);
    }
    c.op = TESS_BARRIER, c.count = 0, c.send_mem = c.recv_mem = 0;
    assert_int_equal(nccl_check(&c, -1, 4, NCCL_SUMS_FP32, no_error()), TESS_OK);
    c.op = 77;
    assert_true(nccl_check(&c, -1, 4, NCCL_SUMS_FP32, no_error()) < 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nccl_calls__moves_are_those_of_the_contract),
        cmocka_unit_test(test_nccl_calls__reductions_are_those_of_the_contract),
        cmocka_unit_test(test_nccl_calls__pieces_make_up_the_whole),
        cmocka_unit_test(test_nccl_calls__all_to_all_in_place_copies_no_own_block),
        cmocka_unit_test(test_nccl_calls__a_piece_is_summed_beside_the_next_ones_trade),
        cmocka_unit_test(test_nccl_calls__a_piece_is_widened_beside_the_sum_before_it),
        cmocka_unit_test(test_nccl_calls__independent_calls_are_one_group),
        cmocka_unit_test(test_nccl_calls__dependent_calls_are_groups_of_their_own),
        cmocka_unit_test(test_nccl_calls__words_go_with_the_first_group_or_alone),
        cmocka_unit_test(test_nccl_calls__each_failure_is_named_and_groups_end),
        cmocka_unit_test(test_nccl_calls__a_calls_own_failure_says_more_than_the_groups),
        cmocka_unit_test(test_nccl_calls__an_aborted_communicator_begins_no_group),
        cmocka_unit_test(test_nccl_calls__scratch_is_within_its_bound_and_has_room_for_two_pieces),
        cmocka_unit_test(test_nccl_calls__each_call_goes_its_way),
        cmocka_unit_test(test_nccl_calls__checks_are_of_the_gpus_memory_and_of_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Groups of NCCL's, our kernels and events: each operation consists of them. */
#include "operations.h"

tess_status nccl_cuda_ok(CUresult result, const char *call, tess_error *f) {
    if (result == CUDA_SUCCESS)
        return TESS_OK;
    tess_plugin_fail(f, tess_cuda_status(result), "nccl: %s gave %s", call, tess_cuda_text(result));
    f->native = (int32_t)result;
    return f->code;
}

/* A call inside a group; a failure is kept until the group has ended. */
void nccl_group_note(const struct nccl_launch *l, ncclResult_t r, const char *call, tess_error *f) {
    if (r != ncclSuccess && f->code == TESS_OK)
        nccl_failed(f, l->lib, r, call);
}

tess_status nccl_group_begin(const struct nccl_launch *l, tess_error *f) {
    struct nccl_words *words = l->words;
    f->code = TESS_OK;
    if (!nccl_use_begin(l->use, l->stop))
        return tess_plugin_fail(f, TESS_E_ABORTED, "nccl: the communicator was aborted");
    ncclResult_t r = l->lib->ncclGroupStart();
    if (r != ncclSuccess) {
        nccl_use_end(l->use);
        return nccl_failed(f, l->lib, r, "ncclGroupStart");
    }
    if (words->own)
        nccl_group_note(l, l->lib->ncclAllGather(words->own, words->all, words->bytes, ncclUint8, l->comm, l->stream),
                        "ncclAllGather", f);
    words->own = NULL;
    return TESS_OK;
}

tess_status nccl_group_end(const struct nccl_launch *l, tess_error *f) {
    tess_error ended = { .struct_size = sizeof ended, .rank = -1 };
    nccl_use_blocks(l->use);
    ncclResult_t r = l->lib->ncclGroupEnd();
    nccl_use_end(l->use);
    tess_status s = r == ncclSuccess ? TESS_OK : nccl_failed(&ended, l->lib, r, "ncclGroupEnd");
    if (f->code != TESS_OK) /* the call's own failure says more */
        return f->code;
    if (s)
        *f = ended;
    return s;
}

tess_status nccl_kernel(const struct nccl_launch *l, CUfunction kernel, CUstream stream, void *args, uint64_t items,
                        tess_error *f) {
    enum { THREADS = 256, MOST_BLOCKS = 4096 };
    uint64_t blocks = (items + THREADS - 1) / THREADS;
    void *params[] = { args };
    if (items == 0)
        return TESS_OK;
    CUresult r = l->cu->cuLaunchKernel(kernel, blocks < MOST_BLOCKS ? (unsigned)blocks : MOST_BLOCKS, 1, 1, THREADS, 1,
                                       1, 0, stream, params, NULL);
    return nccl_cuda_ok(r, "cuLaunchKernel", f);
}

tess_status nccl_record(const struct nccl_launch *l, CUevent event, CUstream stream, tess_error *f) {
    return nccl_cuda_ok(l->cu->cuEventRecord(event, stream), "cuEventRecord", f);
}

tess_status nccl_await(const struct nccl_launch *l, CUstream stream, CUevent event, tess_error *f) {
    return nccl_cuda_ok(l->cu->cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent", f);
}

tess_status nccl_finish(const struct nccl_launch *l, const tess_collective *c, const void *from, uint32_t dtype,
                        uint64_t at, uint64_t n, tess_error *f) {
    char *out = (char *)c->recv + at * tess_dtype_bytes(c->recv_dtype);
    tess_nccl_finish_args args = { .from = from,
                                   .out = out,
                                   .items = (n + TESS_NCCL_LANES - 1) / TESS_NCCL_LANES,
                                   .elems = n,
                                   .scale = (float)c->scale,
                                   .in_dtype = dtype,
                                   .out_dtype = c->recv_dtype,
                                   .add = c->flags & KIT_ADD,
                                   .vector = ((uintptr_t)from | (uintptr_t)out) % 16 == 0 };
    return nccl_kernel(l, l->kernels->finish, l->stream, &args, args.items, f);
}

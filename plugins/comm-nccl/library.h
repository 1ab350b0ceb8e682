/* SPDX-License-Identifier: BSD-3-Clause */
/* libnccl.so.2, looked up when the first communicator is made: a build links neither it nor CUDA. */
#ifndef NCCL_LIBRARY_H
#define NCCL_LIBRARY_H
#include <tessera/plugin_helpers.h>

#include <nccl.h>

enum { NCCL_OLDEST = 21800 }; /* ncclCommSplit and blocking = 0 in one release */

#define NCCL_NEEDED(X)                                                                                                 \
    X(ncclGetVersion)                                                                                                  \
    X(ncclGetUniqueId)                                                                                                 \
    X(ncclCommInitRankConfig)                                                                                          \
    X(ncclCommSplit)                                                                                                   \
    X(ncclCommCount)                                                                                                   \
    X(ncclCommUserRank)                                                                                                \
    X(ncclCommFinalize)                                                                                                \
    X(ncclCommDestroy)                                                                                                 \
    X(ncclCommAbort)                                                                                                   \
    X(ncclCommGetAsyncError)                                                                                           \
    X(ncclGetErrorString)                                                                                              \
    X(ncclGroupStart)                                                                                                  \
    X(ncclGroupEnd)                                                                                                    \
    X(ncclAllGather)                                                                                                   \
    X(ncclReduceScatter)                                                                                               \
    X(ncclAllReduce)                                                                                                   \
    X(ncclBroadcast)                                                                                                   \
    X(ncclSend)                                                                                                        \
    X(ncclRecv)
#define NCCL_SINCE_2_19(X) /* null in older ones */                                                                    \
    X(ncclMemAlloc)                                                                                                    \
    X(ncclMemFree)                                                                                                     \
    X(ncclCommRegister)                                                                                                \
    X(ncclCommDeregister)
#define NCCL_SINCE_2_27(X) /* null in older ones */                                                                    \
    X(ncclCommWindowRegister)                                                                                          \
    X(ncclCommWindowDeregister)
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0) /* built with an older header */
typedef struct ncclWindow *ncclWindow_t;
#define NCCL_WIN_COLL_SYMMETRIC 1
ncclResult_t ncclCommWindowRegister(ncclComm_t, void *, size_t, ncclWindow_t *, int);
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t);
#endif

struct nccl_library {
    int version;
#define NCCL_FIELD(name) __typeof__(name) *name;
    NCCL_NEEDED(NCCL_FIELD)
    NCCL_SINCE_2_19(NCCL_FIELD)
    NCCL_SINCE_2_27(NCCL_FIELD)
#undef NCCL_FIELD
};

/* Loads it once per process; the same answer every time. It stays loaded. */
tess_status nccl_library_get(const struct nccl_library **out, tess_error *);
/* "2.28.9" of 22809. */
const char *nccl_version_text(int version, char out[24]);
/* True before 2.29.7, where an abort does not end kernels that use windows. */
int nccl_hangs_in_windows(int version);
/* Turns NCCL's result into a status and a message of one line. */
tess_status nccl_failed(tess_error *, const struct nccl_library *, ncclResult_t, const char *call);
#endif

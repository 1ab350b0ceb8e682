/* SPDX-License-Identifier: BSD-3-Clause */
/* The context of an opened plugin: the host's services and its options. */
#ifndef NCCL_SETTINGS_H
#define NCCL_SETTINGS_H
#include "plugin_base.h"

/* How floats of 32 and 16 bits are summed. */
enum nccl_summing {
    NCCL_SUMS_FP32,   /* by NCCL, of contributions widened to fp32 */
    NCCL_SUMS_NATIVE, /* by NCCL, of contributions as they are */
    NCCL_SUMS_TREE    /* by our kernel in the engine's tree */
};

struct nccl_settings {
    const tess_host *host;
    int compares;   /* compares the ranks' posts before a request is complete */
    int apart;      /* reductions get a communicator beside that of gathers */
    int windows;    /* memory is shared with the other ranks */
    int engines;    /* gathers in windows go by copy engines */
    int shared_gpu; /* several ranks may be on one GPU */
    int sums;       /* enum nccl_summing; the tree where deterministic */
};

tess_status nccl_settings_init(struct nccl_settings *, const tess_host *, tess_error *);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* The context of an opened plugin: the host's services and its options. */
#ifndef NCCL_SETTINGS_H
#define NCCL_SETTINGS_H
#include "plugin_base.h"

struct nccl_settings {
    const tess_host *host;
    int deterministic; /* TESSERA_DETERMINISTIC: sums in the engine's tree */
    int compares;      /* compares the ranks' posts before a request is complete */
    int apart;         /* reductions get a communicator beside that of gathers */
    int windows;       /* memory is shared with the other ranks */
};

tess_status nccl_settings_init(struct nccl_settings *, const tess_host *, tess_error *);
#endif

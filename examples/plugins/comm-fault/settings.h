/* SPDX-License-Identifier: BSD-3-Clause */
/* What shall go wrong, and where: the text behind TESSERA_COMM=fault:, and the variables TESSERA_FAULT_… */
#ifndef FAULT_SETTINGS_H
#define FAULT_SETTINGS_H
#include "plugin_base.h"

enum fault { NO_FAULT, DELAY, DROP, CORRUPT_DATA, CORRUPT_TAG, KILL };
typedef struct {
    enum fault fault;
    int64_t delay_ms;
    uint32_t op;  /* TESS_ALL_GATHER …; 0: any */
    uint64_t at;  /* the how-manieth of those on this rank, from 1; 0: every one */
    int32_t rank; /* of the world; -1: every one */
    char over[KIT_OPTION_BYTES];
} settings;

/** "delay=50,op=all_gather,at=3,rank=1,over=gloo:…"; `over` comes last, all behind it is the other plugin's. */
tess_status settings_read(const tess_host *host, settings *out, tess_error *error);
const char *settings_op_name(uint32_t op);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* `--groups 'NAMES:lr=RATE,schedule=NAME,…;…'`: parameters with a rate, a schedule and a decay of their own. */
#ifndef TOOL_GROUP_SETTINGS_H
#define TOOL_GROUP_SETTINGS_H
#include <stdint.h>
#include <tessera/tessera.h>

enum { TRAIN_GROUPS = 8 };

typedef struct {
    const char *names; /* patterns as --freeze has them, joined by ',' */
    int32_t names_bytes;
    double lr;
    const char *schedule;
    int64_t warmup;      /* steps; -1: the model's own */
    double min_lr;       /* -1: the same part of lr as the run's */
    double weight_decay; /* -1: the run's for matrices, none for vectors */
} train_group;

/** Checks schedule and min_lr (below 0: not set) of the run or a group. `where` begins the message. TESS_E_INVALID. */
tess_status group_settings_check(const char *model, const char *where, const train_group *);
/** Reads the option's text. Keys that a group leaves out are those of `run`, but min_lr. TESS_E_INVALID. */
tess_status group_settings_read(const char *model, const char *text, const train_group *run,
                                train_group out[TRAIN_GROUPS], int32_t *n);
#endif

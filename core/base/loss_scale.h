/* SPDX-License-Identifier: BSD-3-Clause */
/* The scale of losses: what a run has of it, and what a checkpoint keeps. */
#ifndef TESS_LOSS_SCALE_H
#define TESS_LOSS_SCALE_H
#include <stdint.h>

typedef struct {
    double scale;  /* 0: none */
    uint64_t good; /* finite steps since it changed */
    uint64_t skipped;
} tess__loss_scale;
#endif

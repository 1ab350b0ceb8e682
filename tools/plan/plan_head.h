/* SPDX-License-Identifier: BSD-3-Clause */
/* The chunks of rows in which a decoder's head works on a device, and a plan with one chunk (--head-rows). */
#ifndef TOOL_PLAN_HEAD_H
#define TOOL_PLAN_HEAD_H
#include "plan.h"

typedef struct {
    int64_t chunks, rows, all_rows; /* chunks 0: no head works in several */
    uint64_t peak_bytes;            /* planned peak of device memory */
    uint64_t whole_peak_bytes;      /* with one chunk; 0: it cannot be planned */
    double seconds;                 /* of a step with one chunk; NAN: no machine is described */
} plan_head;

/** Plans again with one chunk, unless the plan exceeds its budget (`over`). */
plan_head plan_head_of(const plan_source *, int over);
void plan_head_print(FILE *, const plan_head *);
void plan_head_json(json_out *, const plan_head *);
#endif

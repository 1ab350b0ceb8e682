/* SPDX-License-Identifier: BSD-3-Clause */
/* The memory that the comm plugin states for itself. */
#ifndef TESS_STATED_H
#define TESS_STATED_H
#include "plan/plan.h"

/** The most backend_bytes that it names for a collective of the plan; 0 before there is one. */
uint64_t tess__stated_bytes(const tess__plan *);
#endif

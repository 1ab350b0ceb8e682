/* SPDX-License-Identifier: BSD-3-Clause */
/* A group of ranks for the program's own collectives: an engine without a model. */
#ifndef TESS_GROUP_H
#define TESS_GROUP_H
#include "engine/state.h"

/** tess_group_open: an engine that is never sharded. */
tess_status tess__group_open(const tess_options *or_null, const tess__hooks *, tess **out);
#endif

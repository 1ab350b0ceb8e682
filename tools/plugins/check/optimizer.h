/* SPDX-License-Identifier: BSD-3-Clause */
/* The checks of an optimizer plugin share the plugin, shapes of parameters, and its description of one. */
#ifndef CHECK_OPTIMIZER_H
#define CHECK_OPTIMIZER_H
#include <tessera/plugin_helpers.h>
#include "suites.h"

enum { SHAPES = 11 };

extern const tess_optimizer_ops *optimizer_ops;
extern void *optimizer_ctx;
void open_optimizer(check *);
tess_param_view param_of(int shape, uint32_t dtype);

/** optimizer_describe.c: asks the plugin, with a struct full of `garbage`; judges the answer. */
tess_status describe(check *, const tess_param_view *, uint32_t flags, tess_grain *out, int garbage);
/** Elements of the block or row that no piece parts; else 1. */
uint64_t uncut_of(const tess_param_view *, const tess_grain *);
void judge(check *, const tess_param_view *, const tess_grain *);
void descriptions(check *);
void same_on_all_ranks(check *);
void longer_structs(check *);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Access to the plan of an engine, for those who read plans. The engine defines these. */
#ifndef TESS_PLANNED_H
#define TESS_PLANNED_H
#include "advise.h"
#include "plan/plan.h"
#include "plugin/selection.h"

const tess__plan *tess__plan_of(const tess *);
const tess__selection *tess__selection_of(const tess *);
const tess__advice *tess__advice_of(const tess *); /* after tess_shard was over its budget */
#endif

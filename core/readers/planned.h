/* SPDX-License-Identifier: BSD-3-Clause */
/* Gives tools the plan of an engine. The engine defines these. */
#ifndef TESS_PLANNED_H
#define TESS_PLANNED_H
#include "advise.h"
#include "plan/plan.h"
#include "plugin/selection.h"

const tess__plan *tess__plan_of(const tess *);
const tess__selection *tess__selection_of(const tess *);
const tess__advice *tess__advice_of(const tess *); /* after tess_shard was over its budget */
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin_takes.h"

#include "core/plugin/open.h"

uint64_t plugin_optimizer_takes(const char *selection) {
    tess__plugin *p = NULL;
    if (tess__plugin_open(TESS_KIND_OPTIMIZER, selection, NULL, &p))
        return 0; /* whoever trains with it says why */
    const tess_optimizer_ops *ops = p->ops;
    uint64_t takes = TESS_HAS(tess_optimizer_ops, ops, takes) ? ops->takes : 0;
    tess__plugin_close(p);
    return takes;
}

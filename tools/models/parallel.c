/* SPDX-License-Identifier: BSD-3-Clause */
#include "parallel.h"

#ifdef _OPENMP
#include <omp.h>
#endif

void ops_parallel(const ops *o, int64_t n, int64_t grain, ops_task task, void *arg) {
    int64_t grains = (n + grain - 1) / grain;
    int64_t parts = grains < o->threads ? grains : o->threads;
    if (parts <= 1) {
        if (n > 0)
            task(arg, 0, 0, n);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(o->threads)
#endif
    for (int64_t i = 0; i < parts; i++) {
        int64_t first = grains * i / parts * grain, last = grains * (i + 1) / parts * grain;
        task(arg, (int32_t)i, first, last < n ? last : n);
    }
}

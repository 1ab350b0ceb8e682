/* SPDX-License-Identifier: BSD-3-Clause */
#include "plan_read.h"

#include "core/readers/ledger.h"
#include "core/readers/planned.h"
#include "simulate.h"

const char *plan_category_name(uint32_t category) {
    return tess__category_name(category);
}

const char *plan_point_name(uint32_t point) {
    return tess__point_name(point);
}

tess_status plan_check_homes(const tess *t) {
    return tess__model_check_homes(&tess__plan_of(t)->model);
}

double plan_made_again(const tess *t, int32_t block) {
    const tess__plan *p = tess__plan_of(t);
    return simulate_made_again(&p->model, &p->setup, block);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "lineage.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

uint64_t tess__lineage_id(const tess__lineage *l) {
    return l->n ? l->runs[l->n - 1].id : 0;
}

int tess__lineage_has(const tess__lineage *l, uint64_t id, uint64_t step) {
    for (uint64_t i = 0; i < l->n; i++)
        if (l->runs[i].id == id && step <= l->runs[i].until)
            return 1;
    return l->n == 0 && id == 0;
}

static uint64_t new_id(void) {
    uint64_t id = 0;
    struct timespec now;
    if (getrandom(&id, sizeof id, GRND_NONBLOCK) != sizeof id) {
        clock_gettime(CLOCK_REALTIME, &now);
        id = ((uint64_t)now.tv_sec << 32 ^ (uint64_t)now.tv_nsec) * 0x9e3779b97f4a7c15u + (uint64_t)getpid();
    }
    return id ? id : 1;
}

void tess__lineage_branch(tess__lineage *l, uint64_t step) {
    if (l->n)
        l->runs[l->n - 1].until = step;
    if (l->n == TESS__LINEAGE_MOST)
        memmove(&l->runs[0], &l->runs[1], (size_t)--l->n * sizeof l->runs[0]);
    l->runs[l->n].id = new_id();
    l->runs[l->n++].until = INT64_MAX;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* First fit over one region, for passes that deviate from the compiled order. */
#ifndef TESS_HEAP_H
#define TESS_HEAP_H
#include <tessera/tessera.h>

typedef struct {
    uint64_t offset, bytes;
} tess__extent;
typedef struct {
    tess__extent *taken; /* ascending */
    int32_t n, cap;
    uint64_t bytes;
} tess__first_fit;

tess_status tess__first_fit_create(tess__first_fit *, int32_t max_extents);
void tess__first_fit_free_all(tess__first_fit *);
void tess__first_fit_reset(tess__first_fit *, uint64_t bytes);
/** Marks a range as taken; TESS_E_INTERNAL when it overlaps one. */
tess_status tess__first_fit_take(tess__first_fit *, uint64_t offset, uint64_t bytes);
/** The lowest free offset, multiple of align; TESS_E_NOMEM without a message when nothing fits. */
tess_status tess__first_fit_get(tess__first_fit *, uint64_t bytes, uint64_t align, uint64_t *offset);
void tess__first_fit_give(tess__first_fit *, uint64_t offset);
#endif

/* First fit over one region, for passes that depart from the compiled order. */
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
} tess__heap;

tess_status tess__heap_create(tess__heap *, int32_t max_extents);
void tess__heap_free_all(tess__heap *);
void tess__heap_reset(tess__heap *, uint64_t bytes);
/** Marks a range as taken; TESS_E_INTERNAL when it overlaps one. */
tess_status tess__heap_take(tess__heap *, uint64_t offset, uint64_t bytes);
/** The lowest free offset, multiple of align; TESS_E_NOMEM without a message when nothing fits. */
tess_status tess__heap_get(tess__heap *, uint64_t bytes, uint64_t align, uint64_t *offset);
void tess__heap_give(tess__heap *, uint64_t offset);
#endif

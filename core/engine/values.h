/* SPDX-License-Identifier: BSD-3-Clause */
/* One rank's part of a parameter, its gradient or an optimizer state, wherever it lies, for code on the host. */
#ifndef TESS_VALUES_H
#define TESS_VALUES_H
#include "state.h"

typedef struct {
    char *at;
    uint32_t mem, dtype;
    float scale; /* the host sees them times that, a power of two; 0: as they are */
} tess__value;

/** `of`: TESS_OF_PARAM …; `piece` as the layout gives it, the whole of a buffer. */
tess__value tess__value_owned(const tess *, uint32_t of, const tess__param *, const tess__piece *);
float tess__value_scale(const tess *, uint32_t of);
/** Whether the host can read and write it in place: host memory, f32, f64 or bytes. */
int tess__value_direct(const tess__value *);
/** Elements first … first + n - 1, at most TESS__CHUNK_ELEMS, as f32, f64 or bytes in `wide`; `raw` is room for 8 bytes
 * each. */
tess_status tess__value_load(tess *, const tess__value *, uint64_t first, uint64_t n, void *raw, void *wide);
tess_status tess__value_store(tess *, const tess__value *, uint64_t first, uint64_t n, void *raw, const void *wide);

/** Values with their place in the parameter. A state that has one for so many elements is counted by them. */
typedef struct {
    tess__piece piece;
    char *at;
    uint32_t mem, dtype;
} tess__owned;
tess__owned tess__owned_at(const tess *, uint32_t of, int32_t param);

tess_range tess__range_of(const tess__param *, int32_t index, uint64_t first, uint64_t elems);
#endif

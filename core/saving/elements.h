/* SPDX-License-Identifier: BSD-3-Clause */
/* Elements of a stored tensor, put where this rank keeps them: as they are, or from one float format to another. */
#ifndef TESS_ELEMENTS_H
#define TESS_ELEMENTS_H
#include "checkpoint/safetensors.h"
#include "engine/values.h"

typedef struct {
    tess *t;
    const char *path; /* for messages */
    void *user;
    /** Elements first … first + n - 1, as they are stored. */
    tess_status (*read)(void *user, const tess__tensor *, uint64_t first, uint64_t n, void *out);
    void *raw, *wide; /* room for TESS__CHUNK_ELEMS of 8 bytes each */
} tess__elements;

/** Puts elems of the tensor's, from `first` on, behind element `at` of what `to` describes. TESS_E_DATA: dtypes that do
 * not go together. */
tess_status tess__elements_place(const tess__elements *, const tess__tensor *, uint64_t first, uint64_t elems,
                                 const tess__owned *to, uint64_t at);
#endif

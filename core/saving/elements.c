/* SPDX-License-Identifier: BSD-3-Clause */
#include "elements.h"

#include "base/status.h"
#include "engine/state.h"
#include "kernels/kernels.h"

/* A counter of another program's: an integer there, and a double here. */
static void widen_counter(const void *from, void *to, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        ((double *)to)[i] = (double)((const int64_t *)from)[i];
}

static tess__cast_fn find_cast(uint32_t from, uint32_t to) {
    return from == TESS_I64 && to == TESS_F64 ? widen_counter : tess__cast_find(from, to, 0);
}

tess_status tess__elements_place(const tess__elements *e, const tess__tensor *x, uint64_t first, uint64_t elems,
                                 const tess__owned *to, uint64_t at) {
    uint32_t dtype = to->dtype, bytes = tess_dtype_bytes(dtype), wide = dtype == TESS_F64 ? TESS_F64 : TESS_F32;
    char *out = to->at + at * bytes;
    int as_is = x->dtype == dtype;
    tess__cast_fn widen = as_is ? NULL : find_cast(x->dtype, wide),
                  narrow = as_is || wide == dtype ? NULL : find_cast(wide, dtype);
    if (!as_is && (!widen || (wide != dtype && !narrow)))
        return tess__fail(TESS_E_DATA, "%s: tensor '%s' is %s, this run has %s", e->path, x->name,
                          tess_dtype_name(x->dtype), tess_dtype_name(dtype));
    if (as_is && (to->mem == TESS_MEM_HOST || to->mem == TESS_MEM_PINNED))
        return e->read(e->user, x, first, elems, out);
    for (uint64_t done = 0; done < elems; done += TESS__CHUNK_ELEMS) {
        uint64_t n = elems - done < TESS__CHUNK_ELEMS ? elems - done : TESS__CHUNK_ELEMS;
        void *from = e->raw;
        TRY(e->read(e->user, x, first + done, n, e->raw));
        if (widen)
            widen(e->raw, e->wide, n), from = e->wide;
        if (narrow)
            narrow(e->wide, e->raw, n), from = e->raw;
        TRY(tess__copy_now(e->t, out + done * bytes, to->mem, from, TESS_MEM_HOST, n * bytes));
    }
    return TESS_OK;
}

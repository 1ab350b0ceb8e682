/* SPDX-License-Identifier: BSD-3-Clause */
/* Offsets for a program's buffers: which may share memory because they never live at once. */
#ifndef TESS_PLACE_H
#define TESS_PLACE_H
#include "program.h"

/** Gives every STEP buffer of `p` an offset that is a multiple of `align`, in the host's domain of `host_align`, and
 * fills step_bytes, the peaks and the categories. `resident`: the buffers that live all the time, counted into the
 * peaks. */
tess_status tess__assign_offsets(tess__program *p, const tess__program *resident, tess__program *lent, uint64_t align,
                                 uint64_t host_align);
#endif

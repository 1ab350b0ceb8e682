/* SPDX-License-Identifier: BSD-3-Clause */
/* With TESSERA_STRICT=1 pointers go to copies with a fence behind each. So a write to a parameter, a write past its
 * end and a use after its end show. Between an end and the next begin a parameter's copy is filled with NaN. */
#ifndef TESS_GUARD_H
#define TESS_GUARD_H
#include <tessera/tessera.h>

enum { TESS__GUARD_PARAM, TESS__GUARD_GRAD, TESS__N_GUARDS };
typedef struct tess__guard tess__guard;

/** Makes a copy of every parameter and gradient, beside the plan; tied ones share one. Null when not strict, or when
 * the device has no room, which is logged. */
tess_status tess__guard_create(tess *, tess__guard **out);
void tess__guard_destroy(tess__guard *); /* null is fine */
/** The pointer to hand out in place of `real`: filled at the first of nested begins. */
tess_status tess__guard_open(tess *, int32_t param, int kind, void *real, void **out);
/** Closes at the end of that pointer: gradients go back, and what must not be written is compared. `call` is named. */
tess_status tess__guard_close(tess *, int32_t param, int kind, void *real, const char *call, int32_t scope);
/** Checks that every closed copy is as it was left; `call` names where a difference is seen. */
tess_status tess__guard_check(tess *, const char *call);
/** Whether the floats hold the NaN that closed copies are filled with. */
int tess__guard_in(const void *data, uint64_t elems, uint32_t dtype);
#endif

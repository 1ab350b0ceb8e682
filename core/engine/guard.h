/* SPDX-License-Identifier: BSD-3-Clause */
/* TESSERA_STRICT=1: pointers go to copies with a fence behind each, so that a write to a parameter, a write past the
 * end of one, and a use after its end show. Between an end and the next begin a parameter's copy is filled with NaN. */
#ifndef TESS_GUARD_H
#define TESS_GUARD_H
#include <tessera/tessera.h>

enum { TESS__GUARD_PARAM, TESS__GUARD_GRAD, TESS__N_GUARDS };
typedef struct tess__guard tess__guard;

/** Copies of every parameter and gradient, beside the plan; one for each, tied ones share it. Null: not strict, or the
 * device has no room for them, which is said. */
tess_status tess__guard_create(tess *, tess__guard **out);
void tess__guard_destroy(tess__guard *); /* null is fine */
/** The pointer to hand out in place of `real`: filled at the first of nested begins. */
tess_status tess__guard_open(tess *, int32_t param, int kind, void *real, void **out);
/** At the end that belongs to it: gradients go back; what must not have been written is compared. `call` is named. */
tess_status tess__guard_close(tess *, int32_t param, int kind, void *real, const char *call, int32_t scope);
/** Every copy that is closed is as it was left; `call` is where it is seen. */
tess_status tess__guard_check(tess *, const char *call);
/** Whether the floats hold the NaN that closed copies are filled with. */
int tess__guard_in(const void *data, uint64_t elems, uint32_t dtype);
#endif

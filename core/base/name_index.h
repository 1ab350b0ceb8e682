/* SPDX-License-Identifier: BSD-3-Clause */
/* An index from names to small numbers, so that models of many thousand parameters are declared and planned at once. */
#ifndef TESS_NAMES_H
#define TESS_NAMES_H
#include <tessera/tessera.h>

typedef struct {
    struct {
        const char *name; /* the caller's, as long as the index */
        int32_t value;
    } * slots;
    int32_t n, cap; /* cap: a power of two, or 0 */
} tess__names;

/** Adds a name that is not in yet. */
tess_status tess__names_add(tess__names *, const char *name, int32_t value);
/** The value of the name that is the first `length` bytes of `name`, or -1. */
int32_t tess__names_find(const tess__names *, const char *name, size_t length);
void tess__names_free(tess__names *);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* An index from names to small numbers, for files with many thousand names. */
#ifndef TOOL_NAMES_H
#define TOOL_NAMES_H
#include <tessera/tessera.h>

typedef struct {
    struct tool_name_index *index; /* null if empty */
} tool_names;

/** Adds a new name. It is not copied and must outlive the index. Returns TESS_E_NOMEM without memory. */
tess_status tool_names_add(tool_names *, const char *name, int32_t value);
/** Returns the value of the name that is the first `length` bytes of `name`, or -1. */
int32_t tool_names_find(const tool_names *, const char *name, size_t length);
void tool_names_free(tool_names *);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#include "names.h"

#include <stdlib.h>

#include "core/base/name_index.h"

struct tool_name_index {
    tess__names names;
};

tess_status tool_names_add(tool_names *n, const char *name, int32_t value) {
    if (!n->index)
        n->index = calloc(1, sizeof *n->index);
    if (!n->index)
        return tess_fail(TESS_E_NOMEM, "no memory for an index of names");
    return tess__names_add(&n->index->names, name, value);
}

int32_t tool_names_find(const tool_names *n, const char *name, size_t length) {
    return n->index ? tess__names_find(&n->index->names, name, length) : -1;
}

void tool_names_free(tool_names *n) {
    if (n->index)
        tess__names_free(&n->index->names);
    free(n->index);
    n->index = NULL;
}

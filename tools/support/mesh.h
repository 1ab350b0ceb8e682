/* SPDX-License-Identifier: BSD-3-Clause */
/* --mesh dp=4,tp=2: the ranks as a grid, whose last dimension is the innermost. */
#ifndef TOOL_MESH_H
#define TOOL_MESH_H
#include <tessera/tessera.h>

typedef struct {
    int32_t ranks, first, last; /* of all dimensions; of the outermost and of the innermost alone */
    char last_name[16];
} tool_mesh;
/** `setting`: where the text is from. TESS_E_INVALID for one that is no mesh. */
tess_status tool_mesh_parse(const char *setting, const char *text, tool_mesh *out);
/** For a plan of something that knows no mesh itself, with TESSERA_MESH: its `ranks` are along the first dimension.
 * Null without a mesh. It holds until the next call. */
const tess_group_options *tool_mesh_group(int32_t ranks);
/** Makes `ranks` of a plan what the mesh says: `all` ranks of the run, and those of the first dimension in *ranks. */
tess_status tool_mesh_ranks(int64_t *all, int64_t *ranks);
#endif

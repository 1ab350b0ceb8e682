/* SPDX-License-Identifier: BSD-3-Clause */
#include "mesh.h"

#include <stdio.h>
#include <string.h>

#include "core/control/mesh.h"
#include "options.h"
#include "say.h"

tess_status tool_mesh_parse(const char *setting, const char *text, tool_mesh *out) {
    tess__mesh m;
    TRY(tess__mesh_parse(setting, text, &m));
    *out = (tool_mesh){ m.ranks, m.of[0].size, m.of[m.n - 1].size, "" };
    memcpy(out->last_name, m.of[m.n - 1].name, sizeof out->last_name);
    return TESS_OK;
}

const tess_group_options *tool_mesh_group(int32_t ranks) {
    static tess_group_options group;
    static char name[TESS__MESH_NAME];
    tess__mesh m;
    const char *text = tool_option_text("mesh");
    if (!text || tess__mesh_parse("--mesh", text, &m))
        return NULL;
    memcpy(name, m.of[0].name, sizeof name);
    group = (tess_group_options){ .struct_size = sizeof group, .ranks = ranks, .name = name };
    return &group;
}

tess_status tool_mesh_ranks(int64_t *all, int64_t *ranks) {
    tool_mesh m;
    const char *text = tool_option_text("mesh");
    if (!text)
        return TESS_OK;
    TRY(tool_mesh_parse("--mesh", text, &m));
    if (tool_option_text("ranks") && *all != m.ranks)
        return tess_fail(TESS_E_INVALID, "--mesh %s is a mesh of %d ranks, but --ranks is %d", text, (int)m.ranks,
                         (int)*all);
    *all = m.ranks;
    *ranks = m.first;
    return TESS_OK;
}

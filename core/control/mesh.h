/* SPDX-License-Identifier: BSD-3-Clause */
/* TESSERA_MESH: the ranks as a grid, "dp=4,tp=2". The last dimension is the innermost: its ranks are neighbours. */
#ifndef TESS_MESH_H
#define TESS_MESH_H
#include <tessera/tessera.h>

enum { TESS__MESH_DIMENSIONS = 8, TESS__MESH_NAME = 16 };
typedef struct {
    int32_t n, ranks; /* ranks: of all dimensions together */
    struct {
        char name[TESS__MESH_NAME];
        int32_t size;
    } of[TESS__MESH_DIMENSIONS];
} tess__mesh;
/** `setting`: where the text is from, for messages. TESS_E_INVALID for one that is no mesh. */
tess_status tess__mesh_parse(const char *setting, const char *text, tess__mesh *out);
/** How far apart ranks are that are neighbours along these dimensions of TESSERA_MESH; 1 without a mesh. */
tess_status tess__mesh_stride(const char *dimensions, int32_t *out);
#endif

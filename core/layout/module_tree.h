/* SPDX-License-Identifier: BSD-3-Clause */
/* The module tree that dots in names make, as wrap policies see it. */
#ifndef TESS_MODULE_TREE_H
#define TESS_MODULE_TREE_H
#include "model.h"

typedef struct {
    tess_model_view view; /* modules depth first, parameters sorted by module; buffers left out */
    int32_t *param;       /* view index → index in the model */
} tess__module_tree;

tess_status tess__module_tree_build(const tess__model *, tess__module_tree *out);
void tess__module_tree_free(tess__module_tree *);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#include "plan_audit.h"

static int is_audited(const tess__plan *p, int32_t block) {
    return (p->model.blocks[block].options.flags & TESS_BLOCK_AUDIT) != 0;
}

static int32_t count_audited(const tess__plan *p) {
    int32_t n = 0;
    for (int32_t b = 0; b < p->model.n_blocks; b++)
        n += is_audited(p, b);
    return n;
}

void plan_audit_print(FILE *out, const tess__plan *p) {
    int32_t n = count_audited(p);
    if (!p->setup.audit_every)
        return;
    fprintf(out, "audited 1/%d: %d of %d blocks", p->setup.audit_every, n, p->model.n_blocks);
    const char *before = "; not ";
    for (int32_t b = 0; b < p->model.n_blocks; b++)
        if (!is_audited(p, b)) {
            fprintf(out, "%s%s", before, p->model.blocks[b].options.name);
            before = ", ";
        }
    fprintf(out, "\n");
}

void plan_audit_json(json_out *j, const tess__plan *p) {
    if (!p->setup.audit_every)
        return;
    json_int(j, "audit_every", p->setup.audit_every);
    json_array_begin(j, "not_audited");
    for (int32_t b = 0; b < p->model.n_blocks; b++)
        if (!is_audited(p, b))
            json_string(j, NULL, p->model.blocks[b].options.name);
    json_array_end(j);
}

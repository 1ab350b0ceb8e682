/* SPDX-License-Identifier: BSD-3-Clause */
#include "plan_audit.h"

static int is_audited(const tess__plan *p, int32_t block) {
    return (p->model.blocks[block].options.flags & TESS_BLOCK_AUDIT) != 0;
}

/* Returns the block of whose passes backward alone is audited, because it writes the result; -1: none. */
static int32_t backward_alone(const tess__plan *p) {
    int32_t last = p->model.n_blocks - 1;
    return last >= 0 && is_audited(p, last) && tess__result_is_late(&p->model, last) ? last : -1;
}

static int32_t count_audited(const tess__plan *p) {
    int32_t n = 0;
    for (int32_t b = 0; b < p->model.n_blocks; b++)
        n += is_audited(p, b);
    return n;
}

void plan_audit_print(FILE *out, const tess__plan *p) {
    int32_t n = count_audited(p), late = backward_alone(p);
    if (!p->setup.audit_every)
        return;
    fprintf(out, "audited 1/%d: %d of %d blocks", p->setup.audit_every, n, p->model.n_blocks);
    const char *before = "; not ";
    for (int32_t b = 0; b < p->model.n_blocks; b++)
        if (!is_audited(p, b)) {
            fprintf(out, "%s%s", before, p->model.blocks[b].options.name);
            before = ", ";
        }
    if (late >= 0)
        fprintf(out, "; of %s backward alone, which writes its result", p->model.blocks[late].options.name);
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
    if (backward_alone(p) >= 0)
        json_string(j, "audited_backward_alone", p->model.blocks[backward_alone(p)].options.name);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* The buffers alive at a plan's peak, largest first. */
#include "plan_at_peak.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/progress.h"

plan_fullest plan_fullest_find(const tess__plan *p, uint32_t domain) {
    plan_fullest f = { -1, 0, -1 };
    uint64_t most = 0;
    for (int32_t i = 0; i < TESS__N_PROGRAMS; i++)
        if (p->programs[i].n_instrs && p->programs[i].live_peak_bytes[domain] > most) {
            most = p->programs[i].live_peak_bytes[domain];
            f = (plan_fullest){ i, p->programs[i].peak_instr[domain], -1 };
        }
    for (int32_t k = 0; f.program >= 0 && k < p->programs[f.program].n_points; k++)
        if (p->programs[f.program].points[k].at <= f.instr)
            f.point = k;
    return f;
}

static int larger_first(const void *a, const void *b) {
    const tess__buffer *x = *(const tess__buffer *const *)a, *y = *(const tess__buffer *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x < y ? -1 : x > y;
}

static int is_alive(const tess__buffer *b, const plan_alive *a) {
    return b->domain == a->domain && b->arena == TESS__STEP && b->first <= a->instr && a->instr < b->last;
}

const char *plan_alive_name(const tess__plan *p, const tess__buffer *b) {
    switch (b->role) {
    case TESS__OUTPUT:
    case TESS__SAVED:
    case TESS__OUTPUT_GRAD:
    case TESS__SCRATCH:
    case TESS__OUTPUT_HOST:
    case TESS__SAVED_HOST: return p->model.scopes[p->model.blocks[b->index].scope].name;
    default: return b->unit >= 0 ? p->layout.units[b->unit].name : NULL;
    }
}

const char *plan_alive_what(const tess__buffer *b) {
    switch (b->role) {
    case TESS__OUTPUT:
    case TESS__OUTPUT_HOST: return "output";
    case TESS__SAVED:
    case TESS__SAVED_HOST: return "saved for backward";
    case TESS__OUTPUT_GRAD: return "gradient of the output";
    case TESS__SCRATCH: return "scratch";
    case TESS__GATHER_SCRATCH:
    case TESS__REDUCE_SCRATCH: return "scratch of a collective";
    default: return tess__category_name(b->category);
    }
}

int plan_alive_find(const tess__plan *plan, plan_fullest f, uint32_t domain, plan_alive *a) {
    const tess__program *p = f.program < 0 ? NULL : &plan->programs[f.program];
    *a = (plan_alive){ .domain = domain, .instr = f.instr };
    a->buffers = p ? calloc((size_t)p->n_buffers + 1, sizeof *a->buffers) : NULL;
    if (!a->buffers)
        return 0;
    for (int32_t i = 0; i < p->n_buffers; i++)
        if (is_alive(&p->buffers[i], a))
            a->buffers[a->n++] = &p->buffers[i];
    qsort(a->buffers, (size_t)a->n, sizeof *a->buffers, larger_first);
    return a->n > 0;
}

void plan_alive_free(plan_alive *a) {
    free(a->buffers);
    a->buffers = NULL;
}

void plan_alive_print(FILE *out, const tess__plan *p, const plan_alive *a) {
    enum { MOST = 8 };
    char size[32];
    uint64_t left = 0;
    if (a->n)
        fprintf(out, "alive there, beside what rests:\n");
    for (int32_t i = 0; i < a->n; i++) {
        const tess__buffer *b = a->buffers[i];
        const char *name = plan_alive_name(p, b);
        if (i < MOST)
            fprintf(out, "  %-24s %14s   %s\n", name ? name : "", tool_bytes_text(b->bytes, size), plan_alive_what(b));
        else
            left += b->bytes;
    }
    if (a->n > MOST)
        fprintf(out, "  and %-20" PRId32 " %14s   smaller\n", a->n - MOST, tool_bytes_text(left, size));
}

void plan_alive_json(json_out *j, const tess__plan *p, const plan_alive *a) {
    char category[32];
    json_array_begin(j, "alive");
    for (int32_t i = 0; i < a->n; i++) {
        json_object_begin(j, NULL);
        json_string(j, "name", plan_alive_name(p, a->buffers[i]));
        json_string(j, "what", plan_alive_what(a->buffers[i]));
        json_string(j, "category", ledger_json_category(a->buffers[i]->category, category));
        json_uint(j, "bytes", a->buffers[i]->bytes);
        json_object_end(j);
    }
    json_array_end(j);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proof.h"

enum { PARAM, GRAD }; /* the first two kinds */

/* A step makes gradients, the last unit's first, then states, then parameters. */
static size_t kind_in_time(const proof_ledger *l, size_t k) {
    return k == 0 ? GRAD : k == l->n_kinds - 1 ? PARAM : k + 1;
}

static int differs(const proof_ledger *l, const proof_step *a, const proof_step *b, size_t unit, size_t kind) {
    return a->digests[unit * l->n_kinds + kind] != b->digests[unit * l->n_kinds + kind];
}

static void say_unit(FILE *to, const proof_ledger *l, const proof_step *a, const proof_step *b, size_t unit) {
    const char *gap = " ";
    for (size_t k = 0; k < l->n_kinds; k++) {
        size_t kind = kind_in_time(l, k);
        if (!differs(l, a, b, unit, kind))
            continue;
        if (*gap == ' ')
            fprintf(to, "  %s:", l->units[unit]);
        fprintf(to, "%s%s", gap, l->kinds[kind]);
        gap = ", ";
    }
    if (*gap == ',')
        fputc('\n', to);
}

/* The first value in time. */
static void first_value(const proof_ledger *l, proof_finding *f) {
    for (size_t k = 0; k < l->n_kinds; k++)
        for (size_t u = l->n_units; u-- > 0;)
            if (differs(l, f->a, f->b, u, kind_in_time(l, k))) {
                f->unit = l->units[u];
                f->kind = l->kinds[kind_in_time(l, k)];
                return;
            }
}

static int same_texts(char **a, char **b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(a[i], b[i]) != 0)
            return 0;
    return 1;
}

tess_status proof_compare(const proof_ledger *a, const proof_ledger *b, uint64_t last, proof_finding *out) {
    proof_finding f = { .n = 0 };
    if (strcmp(a->model, b->model) != 0 || a->n_units != b->n_units || a->n_kinds != b->n_kinds ||
        !same_texts(a->units, b->units, a->n_units) || !same_texts(a->kinds, b->kinds, a->n_kinds))
        return tess_fail(TESS_E_DATA, "%s and %s are of other models or optimizers", a->path, b->path);
    for (size_t i = 0; !f.differs && i < a->n_steps && a->steps[i].step <= last; i++) {
        const proof_step *other = proof_find(b, a->steps[i].step);
        if (!other)
            continue;
        f.differs = a->steps[i].root != other->root;
        f.a = &a->steps[i];
        f.b = other;
        f.first = f.n++ ? f.first : other->step;
        f.last = other->step;
    }
    if (!f.n)
        return tess_fail(TESS_E_DATA, "%s and %s have no step in common", a->path, b->path);
    if (f.differs)
        first_value(a, &f);
    *out = f;
    return TESS_OK;
}

void proof_print(FILE *to, const proof_finding *f, const proof_ledger *l) {
    if (!f->unit) {
        fprintf(to, "different: step %" PRIu64 " has another root\n", f->last);
        return;
    }
    fprintf(to, "different: step %" PRIu64 ", unit %s, %s; in that step differ:\n", f->last, f->unit, f->kind);
    for (size_t i = 0; i < l->n_units; i++)
        say_unit(to, l, f->a, f->b, i);
}

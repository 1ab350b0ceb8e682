/* SPDX-License-Identifier: BSD-3-Clause */
/* A program by hooks whose evaluation deviates from the declared order: a forward ends after the next one has begun, so
 * that both scopes are whole at once and the step arena has to grow by one. Its kernels touch nothing; the memory kind
 * does not matter. "wrong": a mistake closes the engine while gradients become zero. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>

enum { SCOPES = 6, ELEMS = 3 << 20 }; /* 12 MiB: far above what allocators round to */

static void ok(tess_status status) {
    if (status < 0 && fprintf(stderr, "%s\n", tess_last_error()))
        exit(tess_exit_code(status));
}

static tess_status fill(void *user, const tess_range *r, void *data) {
    (void)user;
    for (uint64_t i = 0; i < r->elems; i++)
        ((float *)data)[i] = 1;
    return TESS_OK;
}

/* Exits 0 when the mistake is told. A rank may hear of the other's before its own. */
static int make_a_mistake(tess *t, const tess_scope *scope) {
    void *p, *g;
    tess_status s = tess_pass(t, TESS_PASS_TRAIN);
    for (int i = 0; i < SCOPES && s == TESS_OK; i++) {
        s = tess_forward_begin(t, scope[i], &p, 1);
        if (s == TESS_OK)
            s = tess_forward_end(t, scope[i]);
    }
    if (s == TESS_OK)
        s = tess_backward_begin(t, scope[SCOPES - 1], &p, &g, 1);
    if (s == TESS_OK)
        s = tess_forward_end(t, scope[0]);
    return tess_close(t) == s && s < 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    static const char *const names[] = { "a", "b", "c", "d", "e", "f" };
    static const char *const params[] = { "a.w", "b.w", "c.w", "d.w", "e.w", "f.w" };
    tess_options options = { .struct_size = sizeof options, .pointer_mem = 1u << TESS_MEM_HOST | 1u << TESS_MEM_CUDA };
    const int64_t elems = ELEMS;
    tess_scope scope[SCOPES];
    void *p;
    tess *t;
    ok(tess_open(&options, &t));
    for (int i = 0; i < SCOPES; i++)
        ok(tess_scope_add(t, names[i], 0, &scope[i]));
    for (int i = 0; i < SCOPES; i++) {
        tess_param_options o = { .struct_size = sizeof o,
                                 .dtype = TESS_F32,
                                 .name = params[i],
                                 .shape = &elems,
                                 .ndim = 1,
                                 .compute_dtypes = 1u << TESS_F32 | 1u << TESS_BF16 };
        ok(tess_param_add(t, &o, NULL));
    }
    ok(tess_shard(t, fill, NULL));
    if (argc > 1 && strcmp(argv[1], "wrong") == 0)
        return make_a_mistake(t, scope);
    for (int pass = 0; pass < 3; pass++) {
        ok(tess_pass(t, TESS_PASS_EVAL));
        for (int i = 0; i < SCOPES; i++)
            ok(tess_forward_begin(t, scope[i], &p, 1));
        for (int i = 0; i < SCOPES; i++)
            ok(tess_forward_end(t, scope[i]));
    }
    ok(tess_close(t));
    return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* The bytes of each buffer of a plan, measured once more while the program runs. After cmocka.h. */
#ifndef TEST_MEASURED_H
#define TEST_MEASURED_H
#include "core/plan/plan.h"
#include "core/runtime/measure.h"

enum { MOST_BLOCKS = 32 };

static long checked;

static void check(const tess__plan *of, const tess__needs *needs, const tess__program *p, const uint8_t *saved,
                  const tess__instr *in, const tess__buffer *b, const char *what) {
    uint64_t measured = tess__measure(of, needs, p, saved, in, b->role, b->index);
    if (measured != b->bytes)
        fail_msg("%s: role %d of %d: %llu bytes are planned, %llu are measured", what, b->role, b->index,
                 (unsigned long long)b->bytes, (unsigned long long)measured);
    assert_int_equal(b->bytes % of->setup.align, 0);
    checked++;
}

static void check_program(const tess__plan *of, const tess__needs *needs, const tess__program *p, const char *what) {
    uint8_t saved[MOST_BLOCKS] = { 0 };
    assert_true(of->model.n_blocks <= MOST_BLOCKS);
    for (int32_t i = 0; i < p->n_instrs; i++) {
        const tess__instr *in = &p->instrs[i];
        if (in->op != TESS__ALLOC && in->op != TESS__FREE)
            continue;
        const tess__buffer *b = &p->buffers[in->buffer];
        if (in->op == TESS__ALLOC && b->arena == TESS__STEP)
            check(of, needs, p, saved, in, b, what);
        if (b->role == TESS__SAVED)
            saved[b->index] = in->op == TESS__ALLOC;
    }
}

static void check_plan(const tess__plan *of, const char *what) {
    tess__needs needs = { NULL };
    assert_int_equal(tess__needs_create(&needs, &of->setup, &of->layout), TESS_OK);
    for (int i = 0; i < TESS__N_PROGRAMS; i++)
        check_program(of, &needs, &of->programs[i], what);
    for (int32_t i = 0; i < of->resident.n_buffers; i++)
        check(of, &needs, NULL, NULL, NULL, &of->resident.buffers[i], what);
    tess__needs_free(&needs);
}
#endif

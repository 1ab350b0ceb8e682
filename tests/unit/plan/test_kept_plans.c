/* SPDX-License-Identifier: BSD-3-Clause */
/* Plans of many settings equal those of kept_plans.txt: their bytes, and a digest of every program, its texts included.
 * A change that no rule of test_compile names shows here, with the settings that it changes. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/drawn_plan.h"
#include "tests/unit/kept.h"

enum { CASES = 240 };

/* ---- a plan in one line ---- */

static uint64_t digest_collective(uint64_t h, const tess__planned_collective *c) {
    h = tess__hash_u64(h, (uint64_t)c->which << 32 | (uint64_t)c->redop << 16 | c->is_mean);
    return tess__hash_u64(tess__hash_u64(h, (uint64_t)(uint32_t)c->members << 32 | (uint32_t)c->scratch), c->count);
}

static uint64_t digest_program(uint64_t h, const tess__plan *p, const tess__program *x) {
    char text[256];
    h = tess__hash_u64(tess__hash_u64(h, x->hash), (uint64_t)x->n_instrs << 32 | (uint32_t)x->n_points);
    for (int32_t i = 0; i < x->n_instrs; i++) {
        tess__program_text(x, &p->model, &p->layout, i, text, sizeof text);
        for (const char *c = text; *c; c++)
            h = tess__hash_u64(h, (uint64_t)*c);
    }
    for (int32_t i = 0; i < x->n_buffers; i++)
        h = tess__hash_u64(h, (uint64_t)x->buffers[i].category << 32 | (uint32_t)x->buffers[i].unit);
    for (int32_t i = 0; i < x->n_points; i++)
        h = tess__hash_u64(tess__hash_u64(h, (uint64_t)x->points[i].at << 32 | (uint32_t)x->points[i].unit),
                           x->points[i].point);
    for (int32_t i = 0; i < x->n_collectives; i++)
        h = digest_collective(h, &x->collectives[i]);
    for (int d = 1; d < TESS__DOMAINS; d++) {
        h = tess__hash_u64(tess__hash_u64(h, x->step_bytes[d]), x->live_peak_bytes[d] + (uint64_t)x->peak_instr[d]);
        for (int c = 0; c < 16; c++)
            h = tess__hash_u64(h, x->category_bytes[d][c]);
    }
    return h;
}

static void print_plan(const tess__plan *p, tess_status s, char *text) {
    uint64_t h = digest_program(TESS__HASH_START, p, &p->resident);
    int32_t instrs = 0;
    for (int i = 0; i < TESS__N_PROGRAMS; i++) {
        h = digest_program(h, p, &p->programs[i]);
        instrs += p->programs[i].n_instrs;
    }
    sprintf(text + strlen(text),
            ": status %d, bytes %" PRIu64 " %" PRIu64 " %" PRIu64 ", %d instructions, %016" PRIx64 "%s%s", s,
            tess__planned_bytes(p, 1), tess__planned_bytes(p, 2), tess__planned_bytes(p, 3), instrs, h,
            p->activations_text ? ", chosen " : "", p->activations_text ? p->activations_text : "");
}

static void print_case(int n, char *text) {
    plan f;
    tess__plan p;
    tess_status s = plan_drawn(n, &f, &p, text);
    if (s)
        sprintf(text + strlen(text), ": %.400s", tess_last_error());
    else
        print_plan(&p, s, text);
    tess__plan_free(&p);
}

static void test_kept_plans__equal_those_that_are_kept(void **state) {
    (void)state;
    kept k = kept_open("plan/kept_plans.txt");
    for (int n = 0; n < CASES; n++) {
        char line[KEPT_LINE];
        print_case(n, line);
        kept_line(&k, line);
    }
    kept_close(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_kept_plans__equal_those_that_are_kept) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

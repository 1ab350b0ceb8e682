/* SPDX-License-Identifier: BSD-3-Clause */
/* An optimizer plugin: sign descent with a momentum in fp32 and the largest gradient of each block of 64. */
#include <math.h>

#include "faulty.h"

FAULTY_NOTE(TESS_KIND_OPTIMIZER);

enum { BLOCK = 64 };
#if defined FAULT_MATRIX_OF_NO_ROWS || defined FAULT_MATRIX_WITHOUT_WORK || defined FAULT_MATRIX_BEHIND_SCRATCH ||     \
    defined FAULT_MATRIX_WRITES_NEXT || defined FAULT_MATRIX_READS_SCRATCH || defined FAULT_MATRIX_BY_PARTS ||         \
    defined FAULT_MATRIX_EARLY || defined FAULT_MATRIX_FAILS || defined FAULT_MATRIX_LEAVES_UPDATE ||                  \
    defined FAULT_MATRIX_DIVIDES
#define MATRIX
#endif

static tess_status describe(void *ctx, const tess_param_view *p, uint32_t flags, tess_grain *out, tess_error *e) {
    tess_grain grain = { .grain = TESS_GRAIN_BLOCK,
                         .block = BLOCK,
                         .n_states = 2,
                         .state = { { TESS_F32, 1, "momentum" }, { TESS_F32, BLOCK, "most" } } };
    (void)ctx, (void)p, (void)flags, (void)e;
#ifdef MATRIX
    grain = (tess_grain){ .grain = TESS_GRAIN_MATRIX,
                          .n_states = 1,
                          .state = { { TESS_F32, 1, "momentum" } },
                          .rows = p->ndim < 2 ? 1 : (uint64_t)p->shape[p->ndim - 2],
                          .cols = p->ndim < 1 ? 1 : (uint64_t)p->shape[p->ndim - 1],
                          .scratch_bytes = 256 };
#endif
#ifdef FAULT_MATRIX_OF_NO_ROWS
    grain.rows = 0;
#endif
#ifdef FAULT_GRAIN_OF_ZERO
    grain.grain = 0;
#endif
#ifdef FAULT_BLOCK_OF_ZERO
    grain.block = 0;
#endif
#ifdef FAULT_STATE_OF_HALF_A_BLOCK
    grain.state[1].every = BLOCK / 2;
#endif
#ifdef FAULT_KERNEL_WITH_OTHER_STATES
    grain.kernel = TESS_OPT_ADAMW;
#endif
#ifdef FAULT_STATES_ALIKE
    memcpy(grain.state[1].name, "momentum", 9);
#endif
#ifdef FAULT_DESCRIBE_IMPURE
    static uint32_t times;
    grain.n_states = 1 + times++ % 2;
#endif
#ifdef FAULT_CHOICE_UNWRITTEN
    out->grain = grain.grain, out->block = grain.block, out->n_states = 0, out->kernel = 0;
#else
    give(out, out->struct_size, &grain, sizeof grain);
#endif
    return TESS_OK;
}

static tess_status step(void *ctx, const tess_optimizer_piece *p, tess_error *e) {
    float *m = p->state[0], *most = p->state[1];
    (void)ctx, (void)e;
#ifdef FAULT_STEP_FAILS
    return failed(e, TESS_E_DEVICE, "no steps today");
#endif
#ifdef FAULT_STEP_CRASHES
    *(volatile float *)(uintptr_t)p->first = 1; /* of the first page, or of none */
#endif
#ifdef FAULT_KEEPS_A_COUNT
    static float count;
    count += 1;
    m[0] += count;
#endif
    for (uint64_t i = 0; i < p->elems; i++) {
        uint64_t block = i / BLOCK;
#ifdef FAULT_DEPENDS_ON_CUT /* blocks are counted from the piece, and a piece is taken for all there is */
        block = 0;
#endif
        most[block] = fmaxf(most[block], fabsf(p->grad[i]));
        m[i] = 0.9f * m[i] + p->grad[i];
        p->master[i] -= (float)p->lr * (m[i] + (float)p->weight_decay * p->master[i]);
    }
#ifdef FAULT_WRITES_BEHIND_PIECE
    p->master[p->elems] = 1;
#endif
#ifdef FAULT_CLEARS_GRADIENT
    memset((float *)(uintptr_t)p->grad, 0, 4 * p->elems);
#endif
    return TESS_OK;
}

#ifdef MATRIX
/* The momentum, less its mean over the matrix. */
static tess_status step_of_matrix(void *ctx, const tess_optimizer_piece *p, tess_error *e) {
    float *m = p->state[0];
    (void)ctx, (void)e;
    for (uint64_t i = 0; i < p->elems && p->phase == TESS_PHASE_BEFORE; i++) {
        m[i] = 0.9f * m[i] + p->grad[i];
#ifdef FAULT_MATRIX_LEAVES_UPDATE /* of every odd element */
        if ((p->first + i) % 2)
            continue;
#endif
        p->update[i] = m[i];
#ifdef FAULT_MATRIX_EARLY
        p->master[i] -= m[i];
#endif
    }
    for (uint64_t i = 0; i < p->elems && p->phase == TESS_PHASE_AFTER; i++)
        p->master[i] -= (float)p->lr * (p->update[i] + (float)p->weight_decay * p->master[i]);
    return TESS_OK;
}

static void count_part(void *user, uint64_t first, uint64_t n) {
    (void)first, (void)n;
    __atomic_add_fetch((uint64_t *)user, 1, __ATOMIC_RELAXED);
}

#ifdef FAULT_MATRIX_DIVIDES
static void divide(void *user, uint64_t first, uint64_t n) {
    volatile uint64_t none = first - first; /* on a thread of the pool */
    *(uint64_t *)user = n / none;
}
#endif

static tess_status matrix(void *ctx, const tess_optimizer_matrix *m, tess_error *e) {
    const uint64_t n = m->rows * m->cols;
    double sum = 0;
    uint64_t parts = 0;
    (void)ctx, (void)e, (void)count_part;
#ifdef FAULT_MATRIX_FAILS
    return failed(e, TESS_E_DEVICE, "no matrices today");
#endif
#ifdef FAULT_MATRIX_DIVIDES
    m->share(m->pool, 1, divide, &parts);
#endif
#ifdef FAULT_MATRIX_BY_PARTS
    m->share(m->pool, 1000, count_part, &parts);
#endif
#ifdef FAULT_MATRIX_READS_SCRATCH
    parts = *(unsigned char *)m->scratch;
#endif
    for (uint64_t i = 0; i < n; i++)
        sum += m->update[i];
    for (uint64_t i = 0; i < n; i++)
        m->update[i] -= (float)((sum + (double)parts) / (double)n);
#ifdef FAULT_MATRIX_BEHIND_SCRATCH
    memset(m->scratch, 0, 257);
#endif
#ifdef FAULT_MATRIX_WRITES_NEXT
    m->update[n] = 0;
#endif
    return TESS_OK;
}
#endif

static const tess_optimizer_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .describe = describe,
#ifdef MATRIX
    .step = step_of_matrix,
#ifndef FAULT_MATRIX_WITHOUT_WORK
    .matrix = matrix,
#endif
#else
    .step = step,
#endif
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *e) {
    if (kind != TESS_KIND_OPTIMIZER)
        return failed(e, TESS_E_UNSUPPORTED, "faulty offers optimizer only");
    take_at_open(host);
    *out = &ops;
    *ctx = NULL;
    return TESS_OK;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* One pass over gradient, master and state per optimizer step, in the formulas' order. */
#include "kit/formulas.h"
#include "isa.h"
#include "kernels.h"
#include <tessera/plugin_helpers.h>

enum { CHUNK = 1024 };

typedef struct { /* one chunk: elements of the shard from the same segment */
    const void *grad;
    void *master, *state0, *state1;
    uint64_t elems;
} step_span;

/* A formula's loop, for one type. The constants are read through a copy: no store can change them. With and without
 * weight decay are two loops, as a branch inside would keep the compiler from vectorising. Each returns a sum of what
 * it wrote, in any order: it is finite only if all of that is. `seen` leaves out what shows in the rest. A momentum or
 * a first moment that is not finite makes the parameter so; a second moment may not, as it divides. The values are
 * those in registers, as a load after their store would wait for it. */
#define LOOP(real, states, call, seen)                                                                                 \
    _Pragma("omp simd reduction(+ : sum)") for (uint64_t i = 0; i < n; i++) {                                          \
        real x = p[i], m = states > 0 ? a[i] : 0, v = states > 1 ? b[i] : 0;                                           \
        call;                                                                                                          \
        p[i] = x;                                                                                                      \
        if (states > 0)                                                                                                \
            a[i] = m;                                                                                                  \
        if (states > 1)                                                                                                \
            b[i] = v;                                                                                                  \
        sum += seen;                                                                                                   \
    }
#define STEP(name, real, states, call, seen)                                                                           \
    TESS_BODY real name##_body(const tess_step_constants *constants, const step_span *span) {                          \
        tess_step_constants c = *constants;                                                                            \
        const real *restrict g = span->grad;                                                                           \
        real *restrict p = span->master;                                                                               \
        real *restrict a = span->state0;                                                                               \
        real *restrict b = span->state1;                                                                               \
        real sum = 0;                                                                                                  \
        uint64_t n = span->elems;                                                                                      \
        (void)a, (void)b;                                                                                              \
        if (c.decays) {                                                                                                \
            c.decays = 1;                                                                                              \
            LOOP(real, states, call, seen)                                                                             \
        } else {                                                                                                       \
            c.decays = 0;                                                                                              \
            LOOP(real, states, call, seen)                                                                             \
        }                                                                                                              \
        return sum;                                                                                                    \
    }                                                                                                                  \
    static int name##_c(const tess_step_constants *c, const step_span *span) {                                         \
        return isfinite(name##_body(c, span));                                                                         \
    }                                                                                                                  \
    STEP_WIDE(name)
#if defined(TESS_HAVE_X86)
#define STEP_WIDE(name)                                                                                                \
    TESS_TARGET_AVX2 static int name##_avx2(const tess_step_constants *c, const step_span *span) {                     \
        return isfinite(name##_body(c, span));                                                                         \
    }                                                                                                                  \
    TESS_TARGET_AVX512 static int name##_avx512(const tess_step_constants *c, const step_span *span) {                 \
        return isfinite(name##_body(c, span));                                                                         \
    }
#define PATHS(name)                                                                                                    \
    { name##_c, name##_avx2, name##_avx512 }
#else
#define STEP_WIDE(name)
#define PATHS(name)                                                                                                    \
    { name##_c, name##_c, name##_c }
#endif

STEP(sgd_f32, float, 0, tess_sgd_f32(&c, g[i], &x), x)
STEP(sgd_momentum_f32, float, 1, tess_sgd_momentum_f32(&c, g[i], &x, &m), x)
STEP(adam_f32, float, 2, tess_adam_f32(&c, g[i], &x, &m, &v), x + v)
STEP(adamw_f32, float, 2, tess_adamw_f32(&c, g[i], &x, &m, &v), x + v)
STEP(adadelta_f32, float, 2, tess_adadelta_f32(&c, g[i], &x, &m, &v), x + m + v)
STEP(sgd_f64, double, 0, tess_sgd_f64(&c, g[i], &x), x)
STEP(sgd_momentum_f64, double, 1, tess_sgd_momentum_f64(&c, g[i], &x, &m), x)
STEP(adam_f64, double, 2, tess_adam_f64(&c, g[i], &x, &m, &v), x + v)
STEP(adamw_f64, double, 2, tess_adamw_f64(&c, g[i], &x, &m, &v), x + v)
STEP(adadelta_f64, double, 2, tess_adadelta_f64(&c, g[i], &x, &m, &v), x + m + v)

/* Returns whether all is surely finite. */
typedef int (*step_fn)(const tess_step_constants *, const step_span *);
enum { SGD_MOMENTUM = 0 }; /* beside TESS_OPT_SGD, which has no state here */
static const struct {
    uint32_t optimizer, dtype;
    step_fn paths[3];
} steps[] = {
    { TESS_OPT_SGD, TESS_F32, PATHS(sgd_f32) },           { SGD_MOMENTUM, TESS_F32, PATHS(sgd_momentum_f32) },
    { TESS_OPT_ADAM, TESS_F32, PATHS(adam_f32) },         { TESS_OPT_ADAMW, TESS_F32, PATHS(adamw_f32) },
    { TESS_OPT_ADADELTA, TESS_F32, PATHS(adadelta_f32) }, { TESS_OPT_SGD, TESS_F64, PATHS(sgd_f64) },
    { SGD_MOMENTUM, TESS_F64, PATHS(sgd_momentum_f64) },  { TESS_OPT_ADAM, TESS_F64, PATHS(adam_f64) },
    { TESS_OPT_ADAMW, TESS_F64, PATHS(adamw_f64) },       { TESS_OPT_ADADELTA, TESS_F64, PATHS(adadelta_f64) },
};

static step_fn step_find(uint32_t optimizer, uint32_t dtype) {
    int isa = tess__isa(), path = isa >= TESS_ISA_AVX512 ? 2 : isa == TESS_ISA_AVX2 ? 1 : 0;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (steps[i].optimizer == optimizer && steps[i].dtype == dtype)
            return steps[i].paths[path];
    return NULL;
}

typedef struct {
    const tess_kernel *kernel;
    uint32_t bytes, grad_bytes, low_bytes;
    tess__cast_fn load, low; /* null: the gradient has the master's dtype; no low-precision copy */
    int64_t *not_finite;     /* where a step that leaves NaN or infinity is noted; null: nowhere */
} step_job;

static void *elem_at(void *base, uint64_t elem, uint32_t bytes) {
    return base ? (char *)base + elem * bytes : NULL;
}

/* Looks at each value that the step has just written, as finite ones may overflow a sum. The first step of a run is
 * kept. */
static void note_not_finite(const step_job *job, const step_span *span) {
    const uint32_t dtype = job->kernel->out_dtype;
    const void *const written[] = { span->master, span->state0, span->state1 };
    int64_t none = 0;
    for (size_t i = 0; i < 3; i++)
        if (written[i] && !tess__all_finite(written[i], dtype, span->elems)) {
            __atomic_compare_exchange_n(job->not_finite, &none, (int64_t)job->kernel->optimizer->step, 0,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED);
            return;
        }
}

/* Steps elements [first, end) of one segment, a chunk at a time, so that what follows the step reads the cache. */
static void step_run(const step_job *job, step_fn fn, const tess_step_constants *c, uint64_t first, uint64_t end) {
    const tess_kernel *k = job->kernel;
    _Alignas(64) char room[CHUNK * sizeof(double)];
    uint64_t chunk = job->load || job->low ? CHUNK : end - first;
    for (uint64_t e = first; e < end; e += chunk) {
        uint64_t elems = end - e < chunk ? end - e : chunk;
        step_span span = { (const char *)k->in[0] + e * job->grad_bytes, elem_at(k->out, e, job->bytes),
                           elem_at(k->state[0], e, job->bytes), elem_at(k->state[1], e, job->bytes), elems };
        if (job->load) {
            job->load(span.grad, room, elems);
            span.grad = room;
        }
        if (!fn(c, &span) && job->not_finite)
            note_not_finite(job, &span);
        if (job->low)
            job->low(span.master, elem_at(k->out2, e, job->low_bytes), elems);
    }
}

static const tess_segment *segment_at(const tess_optimizer *o, uint32_t i) {
    return (const tess_segment *)((const char *)o->segments + (size_t)i * o->segments->struct_size);
}

static int same_settings(const tess_segment *a, const tess_segment *b) {
    return a && a->lr == b->lr && a->weight_decay == b->weight_decay && a->momentum == b->momentum;
}

static void step_part(void *user, uint64_t first, uint64_t elems) {
    const step_job *job = user;
    const tess_optimizer *o = job->kernel->optimizer;
    const tess_segment *before = NULL;
    tess_step_constants c;
    step_fn fn = NULL;
    for (uint32_t i = 0; i < o->n_segments; i++) {
        const tess_segment *s = segment_at(o, i);
        uint64_t low = s->first > first ? s->first : first, end = s->first + s->elems;
        if (end > first + elems)
            end = first + elems;
        if (low >= end)
            continue;
        if (!same_settings(before, s)) {
            int momentum = o->optimizer == TESS_OPT_SGD && job->kernel->state[0];
            tess_step_prepare(o, s, &c);
            fn = step_find(momentum ? SGD_MOMENTUM : o->optimizer, job->kernel->out_dtype);
            before = s;
        }
        step_run(job, fn, &c, low, end);
    }
}

void tess__kernel_optimizer(const tess_kernel *k, tess__pool *pool) {
    step_job job = { .kernel = k,
                     .bytes = tess_dtype_bytes(k->out_dtype),
                     .grad_bytes = tess_dtype_bytes(k->in_dtype),
                     .low_bytes = 2,
                     .load = k->in_dtype == k->out_dtype ? NULL : tess__cast_find(k->in_dtype, k->out_dtype, 0),
                     .low = k->out2 ? tess__cast_find(k->out_dtype, TESS_BF16, 0) : NULL,
                     .not_finite =
                         TESS_HAS(tess_optimizer, k->optimizer, not_finite) ? k->optimizer->not_finite : NULL };
    tess__pool_run(pool, k->elems, TESS__KERNEL_LEAST_ELEMS, step_part, &job);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* optimizer-adamw8bit: AdamW with moments of 8 bits, quantized block by block. */
#include "codes.h"
#include "formulas.h"
#include "plugin_base.h"

TESS_DESCRIPTOR(1u << TESS_KIND_OPTIMIZER, "adamw8bit", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "");

enum { BLOCK = 256 };
enum { LEAST, N_OPTIONS };
TESS_OPTIONS(options) = {
    { sizeof options[0], TESS_OPTION_INT, 0, 1e15, "adamw8bit-least", "4096", "",
      "parameters of fewer elements keep fp32 moments" },
};
static const kit_options readable = { "optimizer adamw8bit", "adamw8bit-", options, N_OPTIONS, NULL };

typedef struct { /* one block */
    const float *grad;
    float *master, *most[2];
    uint8_t *code[2];
    uint64_t elems;
} block;

typedef struct {
    codes moment[2]; /* signed first moment, unsigned second */
    uint64_t least;
    void (*step)(const codes[2], const tess_step_constants *, const block *);
} settings;

static void adamw8bit_close(void *ctx) {
    free(ctx);
}

/* Small parameters take plain AdamW, because every device has a kernel for it. */
static tess_status adamw8bit_describe(void *ctx, const tess_param_view *param, uint32_t flags, tess_grain *out,
                                      tess_error *error) {
    const settings *s = ctx;
    static const tess_grain small = { .grain = TESS_GRAIN_ELEMENT,
                                      .kernel = TESS_OPT_ADAMW,
                                      .n_states = 2,
                                      .state = { { TESS_F32, 1, "exp_avg" }, { TESS_F32, 1, "exp_avg_sq" } } };
    static const tess_grain large = { .grain = TESS_GRAIN_BLOCK,
                                      .block = BLOCK,
                                      .n_states = 4,
                                      .state = { { TESS_U8, 1, "exp_avg" },
                                                 { TESS_U8, 1, "exp_avg_sq" },
                                                 { TESS_F32, BLOCK, "exp_avg_most" },
                                                 { TESS_F32, BLOCK, "exp_avg_sq_most" } } };
    (void)flags, (void)error;
    TESS_GIVE(out, param->elems < s->least ? &small : &large);
    return TESS_OK;
}

/* Computes the same constants as tess_step_prepare does from these numbers. */
static tess_step_constants constants_of(const tess_optimizer_piece *p) {
    const double beta1 = p->beta1 != 0 ? p->beta1 : 0.9, beta2 = p->beta2 != 0 ? p->beta2 : 0.999;
    return (tess_step_constants){ .grad_scale = 1,
                                  .shrink = 1 - p->lr * p->weight_decay,
                                  .eps = p->eps != 0 ? p->eps : 1e-8,
                                  .one_minus_beta1 = 1 - beta1,
                                  .beta2 = beta2,
                                  .one_minus_beta2 = 1 - beta2,
                                  .minus_step = -(p->lr / (1 - pow(beta1, (double)p->step))),
                                  .bias2_root = pow(1 - pow(beta2, (double)p->step), 0.5) };
}

static inline float largest(const float *x, uint64_t n) {
    float most = 0;
    for (uint64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most || x[i] != x[i] ? fabsf(x[i]) : most; /* NaN stays, so that the core finds it */
    return most;
}

/* A second moment above 0 gets a code above 0: a step would divide what is left of the first one by eps alone. */
static inline void store(const codes *c, const float *x, const block *b, int moment) {
    const float most = largest(x, b->elems);
    const uint8_t zero = codes_nearest(c, 0);
    *b->most[moment] = most;
    for (uint64_t i = 0; i < b->elems; i++) {
        uint8_t code = most > 0 ? codes_nearest(c, x[i] / most) : zero;
        b->code[moment][i] = (uint8_t)(code + (moment == 1 && code == zero && x[i] > 0));
    }
}

static inline __attribute__((always_inline)) void step_block(const codes of[2], const tess_step_constants *constants,
                                                             const block *b) {
    const tess_step_constants c = *constants;
    float m[BLOCK], v[BLOCK];
    for (uint64_t i = 0; i < b->elems; i++) {
        m[i] = of[0].value[b->code[0][i]] * *b->most[0];
        v[i] = of[1].value[b->code[1][i]] * *b->most[1];
    }
    for (uint64_t i = 0; i < b->elems; i++)
        tess_adamw_f32(&c, b->grad[i], &b->master[i], &m[i], &v[i]);
    store(&of[0], m, b, 0);
    store(&of[1], v, b, 1);
}

static void step_block_any(const codes of[2], const tess_step_constants *c, const block *b) {
    step_block(of, c, b);
}

/* Gives the same bits as step_block_any, because fma is exact as an instruction and as a library call. */
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void step_block_wide(const codes of[2], const tess_step_constants *c,
                                                                const block *b) {
    step_block(of, c, b);
}
#endif

static tess_status adamw8bit_step(void *ctx, const tess_optimizer_piece *p, tess_error *error) {
    const settings *s = ctx;
    const tess_step_constants c = constants_of(p);
    if (!(p->beta1 >= 0 && p->beta1 < 1 && p->beta2 >= 0 && p->beta2 < 1))
        return tess_plugin_fail(error, TESS_E_INVALID,
                                "optimizer adamw8bit: beta1 %g and beta2 %g, expected 0 or more and less than 1",
                                p->beta1, p->beta2);
    for (uint64_t first = 0; first < p->elems; first += BLOCK) {
        const block b = { .grad = p->grad + first,
                          .master = p->master + first,
                          .most = { (float *)p->state[2] + first / BLOCK, (float *)p->state[3] + first / BLOCK },
                          .code = { (uint8_t *)p->state[0] + first, (uint8_t *)p->state[1] + first },
                          .elems = p->elems - first < BLOCK ? p->elems - first : BLOCK };
        s->step(s->moment, &c, &b);
    }
    return TESS_OK;
}

static const tess_optimizer_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = adamw8bit_close,
    .describe = adamw8bit_describe,
    .step = adamw8bit_step,
    .takes = TESS_TAKES_LR | TESS_TAKES_BETA1 | TESS_TAKES_BETA2 | TESS_TAKES_EPS,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    kit_option read[N_OPTIONS];
    if (kind != TESS_KIND_OPTIMIZER)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "plugin adamw8bit offers optimizer only");
    tess_status status = kit_options_read(&readable, host, read, error);
    if (status < 0)
        return status;
    settings *s = calloc(1, sizeof *s);
    if (!s)
        return tess_plugin_fail(error, TESS_E_NOMEM, "optimizer adamw8bit: no memory to open");
    codes_make(&s->moment[0], 1);
    codes_make(&s->moment[1], 0);
    s->least = (uint64_t)read[LEAST].value.integer;
    s->step = step_block_any;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        s->step = step_block_wide;
#endif
    *out = &ops;
    *ctx = s;
    return TESS_OK;
}

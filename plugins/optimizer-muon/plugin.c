/* SPDX-License-Identifier: BSD-3-Clause */
/* optimizer-muon: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, for matrices, and
 * AdamW for everything else. */
#include "newton_schulz.h"
#include "plugin_base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

TESS_DESCRIPTOR(1u << TESS_KIND_OPTIMIZER, "muon", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "");

enum { MOMENTUM, NESTEROV, SCALE, STEPS, ADAMW, N_OPTIONS };
enum { MATCH_RMS_ADAMW, ORIGINAL };
static const char not_hidden[] = "wte,wpe,embed,embed_tokens,embeddings,head,lm_head,output";
TESS_OPTIONS(options) = {
    { sizeof options[0], TESS_OPTION_REAL, 0, 0.999999, "muon-momentum", "0.95", "", "share that the momentum keeps" },
    { sizeof options[0], TESS_OPTION_FLAG, 0, 0, "muon-nesterov", "1", "", "the update looks one step ahead" },
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "muon-scale", "match_rms_adamw", "match_rms_adamw|original",
      "how the rate depends on a matrix's shape" },
    { sizeof options[0], TESS_OPTION_INT, 1, 20, "muon-steps", "5", "", "steps of Newton and Schulz's iteration" },
    { sizeof options[0], TESS_OPTION_TEXT, 0, 0, "muon-adamw", "", "",
      "parts of the names of matrices that AdamW steps" },
};
static const kit_options readable = { "optimizer muon", "muon-", options, N_OPTIONS, "adamw" };

typedef struct {
    kit_option of[N_OPTIONS];
} settings;

static void muon_close(void *ctx) {
    free(ctx);
}

/* ---- what is a matrix of a hidden layer ---- */

/* Whether `part` of `n` bytes is one of the words that commas join. */
static int is_listed(const char *words, const char *part, size_t n) {
    for (size_t length; *words; words += length + (words[length] == ',')) {
        length = strcspn(words, ",");
        if (length == n && n && strncmp(words, part, n) == 0)
            return 1;
    }
    return 0;
}

static int has_listed_part(const char *words, const char *name) {
    for (size_t length; *name; name += length + (name[length] == '.')) {
        length = strcspn(name, ".");
        if (is_listed(words, name, length))
            return 1;
    }
    return 0;
}

/* A matrix, or a stack of matrices. Convolutions, of four dimensions, have none that mean anything. */
static int is_hidden(const settings *s, const tess_param_view *p) {
    return (p->ndim == 2 || p->ndim == 3) && p->shape[p->ndim - 2] > 1 && p->shape[p->ndim - 1] > 1 &&
           !has_listed_part(s->of[ADAMW].is_set ? s->of[ADAMW].text : not_hidden, p->name);
}

static tess_status muon_describe(void *ctx, const tess_param_view *param, uint32_t flags, tess_grain *out,
                                 tess_error *error) {
    static const tess_grain other = { .grain = TESS_GRAIN_ELEMENT,
                                      .kernel = TESS_OPT_ADAMW,
                                      .n_states = 2,
                                      .state = { { TESS_F32, 1, "exp_avg" }, { TESS_F32, 1, "exp_avg_sq" } } };
    (void)flags, (void)error;
    if (!is_hidden(ctx, param)) {
        TESS_GIVE(out, &other);
        return TESS_OK;
    }
    const uint64_t rows = (uint64_t)param->shape[param->ndim - 2], cols = (uint64_t)param->shape[param->ndim - 1];
    const tess_grain hidden = { .grain = TESS_GRAIN_MATRIX,
                                .n_states = 1,
                                .state = { { TESS_F32, 1, "exp_avg" } },
                                .rows = rows,
                                .cols = cols,
                                .scratch_bytes = newton_schulz_bytes(rows, cols) };
    TESS_GIVE(out, &hidden);
    return TESS_OK;
}

/* ---- the step ---- */

/* The user's setting, else the program's number, else the usual one. */
static double momentum_of(const settings *s, const tess_optimizer_piece *p) {
    return !s->of[MOMENTUM].is_set && p->momentum != 0 ? p->momentum : s->of[MOMENTUM].value.real;
}

static double rate_of(const settings *s, const tess_optimizer_piece *p) {
    const double rows = (double)p->param->shape[p->param->ndim - 2], cols = (double)p->param->shape[p->param->ndim - 1];
    if (s->of[SCALE].value.number == ORIGINAL)
        return p->lr * sqrt(fmax(1, rows / cols));
    return p->lr * 0.2 * sqrt(fmax(rows, cols));
}

static void make_update(const settings *s, const tess_optimizer_piece *p, double momentum) {
    const float keep = (float)momentum, take = (float)(1 - momentum);
    const float *restrict g = p->grad;
    float *restrict m = p->state[0], *restrict u = p->update;
    const int nesterov = s->of[NESTEROV].value.number != 0;
    for (uint64_t i = 0; i < p->elems; i++) {
        m[i] += take * (g[i] - m[i]);
        u[i] = nesterov ? g[i] + keep * (m[i] - g[i]) : m[i];
    }
}

static void apply_update(const settings *s, const tess_optimizer_piece *p) {
    const float shrink = (float)(1 - p->lr * p->weight_decay), rate = (float)rate_of(s, p);
    const float *restrict u = p->update;
    float *restrict x = p->master;
    for (uint64_t i = 0; i < p->elems; i++)
        x[i] = x[i] * shrink - rate * u[i];
}

static tess_status muon_step(void *ctx, const tess_optimizer_piece *p, tess_error *error) {
    const double momentum = momentum_of(ctx, p);
    if (!(momentum >= 0 && momentum < 1))
        return tess_plugin_fail(error, TESS_E_INVALID,
                                "optimizer muon: momentum %g, expected 0 or more and less than 1", momentum);
    if (p->phase == TESS_PHASE_BEFORE)
        make_update(ctx, p, momentum);
    else
        apply_update(ctx, p);
    return TESS_OK;
}

static tess_status muon_matrix(void *ctx, const tess_optimizer_matrix *m, tess_error *error) {
    const settings *s = ctx;
    const workers on = { m->share, m->pool };
    (void)error;
    newton_schulz(m->update, m->rows, m->cols, (int)s->of[STEPS].value.integer, m->scratch, &on);
    return TESS_OK;
}

static const tess_optimizer_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = muon_close,
    .describe = muon_describe,
    .step = muon_step,
    .matrix = muon_matrix,
    .takes = TESS_TAKES_LR | TESS_TAKES_MOMENTUM | TESS_TAKES_BETA1 | TESS_TAKES_BETA2 | TESS_TAKES_EPS,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    if (kind != TESS_KIND_OPTIMIZER)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "plugin muon offers optimizer only");
    settings *s = calloc(1, sizeof *s);
    if (!s)
        return tess_plugin_fail(error, TESS_E_NOMEM, "optimizer muon: no memory to open");
    tess_status status = kit_options_read(&readable, host, s->of, error);
    if (status < 0) {
        free(s);
        return status;
    }
    *out = &ops;
    *ctx = s;
    return TESS_OK;
}

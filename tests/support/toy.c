/* SPDX-License-Identifier: BSD-3-Clause */
#include "toy.h"
#include "toy_device.h"
#include <tessera/plugin_helpers.h>
#include "kit/formulas.h"
#include "tools/models/fp8_formulas.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every scope maps a vector of `WIDTH` through y = s / (1 + |s|) of s = a·x + sum of its parameters' contributions:
 * nonlinear enough that a wrong gradient or a stale parameter shows in the digest within two steps, and of operations
 * that every machine rounds alike. tests/reference/toy.py computes the same with NumPy. */
enum { WIDTH = 8, N_PARAMS = 10, N_STORED = 2 /* the last, with TOY_STORED */ };

typedef struct {
    const char *scope, *name;
    int64_t rows, cols;
    uint32_t flags, dtype; /* dtype 0: fp32 */
} declared;

static const declared small[N_PARAMS] = {
    { "embed", "embed.weight", 13, 7, 0, 0 },
    { "h.0", "h.0.weight", 37, 5, 0, 0 },
    { "h.0", "h.0.bias", 3, 1, 0, 0 },
    { "h.1", "h.1.weight", 128, 2, 0, 0 },
    { "h.1", "h.1.frozen", 9, 3, TESS_FROZEN, 0 },
    { "h.2", "h.2.scale", 1, 1, 0, 0 },
    { "h.2", "h.2.mean", 5, 1, TESS_BUFFER, 0 },
    { "head", "head.bias", 70, 1, 0, 0 },
    { "h.0", "h.0.half", 7, 9, TESS_FROZEN, TESS_BF16 },
    { "h.2", "h.2.codes", 50, 5, TESS_FROZEN, TESS_U8 },
};
/* Every group is above what backends send with their announcements (4 and 16 KiB), one above their chunks and stages
 * (512 KiB of a rank's part, of two ranks), and none divides by anything. */
static const declared large[N_PARAMS] = {
    { "embed", "embed.weight", 1301, 63, 0, 0 },
    { "h.0", "h.0.weight", 3701, 45, 0, 0 },
    { "h.0", "h.0.bias", 16411, 1, 0, 0 },
    { "h.1", "h.1.weight", 12801, 27, 0, 0 },
    { "h.1", "h.1.frozen", 901, 31, TESS_FROZEN, 0 },
    { "h.2", "h.2.scale", 17011, 1, 0, 0 },
    { "h.2", "h.2.mean", 5003, 1, TESS_BUFFER, 0 },
    { "head", "head.bias", 70003, 1, 0, 0 },
    { "h.0", "h.0.half", 701, 97, TESS_FROZEN, TESS_BF16 },
    { "h.2", "h.2.codes", 5003, 51, TESS_FROZEN, TESS_U8 },
};
enum { MOST_BUFFER_ELEMS = 5003 };
static const declared *params = small; /* of this process: toy_declare's flags choose */
static int n_params = N_PARAMS - N_STORED;
static const char *const scopes[TOY_SCOPES] = { "embed", "h.0", "h.1", "h.2", "head" };

static uint64_t param_elems(int i) {
    return (uint64_t)(params[i].rows * params[i].cols);
}

/* The parameters a scope hands out: its own in declaration order, and for the head the tied embedding last. */
static int list_of(int scope, int out[N_PARAMS]) {
    int n = 0;
    for (int i = 0; i < n_params; i++)
        if (strcmp(params[i].scope, scopes[scope]) == 0)
            out[n++] = i;
    if (scope == TOY_SCOPES - 1)
        out[n++] = 0;
    return n;
}

/* ---- the arithmetic ---- */

static uint32_t dtypes[2] = { TESS_F32, TESS_F32 }; /* of parameters as handed out, and of their gradients */

/* What a parameter is handed out in: its own dtype, or the precision's. */
static uint32_t dtype_of(int i, uint32_t dtype) {
    return params[i].flags & TESS_BUFFER ? TESS_F32 : params[i].dtype ? params[i].dtype : dtype;
}

static float of_code(unsigned char code) {
    return ((float)code - 128.0f) / 256.0f;
}

/* Element e of what the precision hands out: fp32, fp16 or bf16, the upper half of an fp32; or a code. */
static float at(const void *p, uint64_t e, uint32_t dtype) {
    if (dtype == TESS_U8)
        return of_code(((const unsigned char *)p)[e]);
    if (dtype == TESS_F16)
        return tess_f32_of_f16(((const uint16_t *)p)[e]);
    if (dtype != TESS_BF16)
        return ((const float *)p)[e];
    uint32_t bits = (uint32_t)((const uint16_t *)p)[e] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The scale of a parameter that products round to fp8, from all of it; 0: they do not. */
static uint32_t products;
static float scale_of(int i, const void *p, uint32_t given) {
    uint32_t most = 0;
    if (!products || params[i].dtype || params[i].flags & TESS_BUFFER)
        return 0;
    for (uint64_t e = 0; e < param_elems(i); e++) {
        uint32_t size = fp8_size(tess_f32_bits(at(p, e, given)));
        most = size > most ? size : most;
    }
    return fp8_scale(most, FP8_E4M3);
}
static float factor(const void *p, uint64_t e, uint32_t given, float scale) {
    float x = at(p, e, given);
    return scale > 0 ? fp8_rounded(x, scale, fp8_inverse(scale), FP8_E4M3) : x;
}

/* Adds to element e of a gradient; in fp16 and bf16 rounded to nearest, ties to even. */
static void add(void *g, uint64_t e, float value) {
    if (dtypes[1] == TESS_F16) {
        ((uint16_t *)g)[e] = tess_f16_of_f32(value + at(g, e, TESS_F16));
        return;
    }
    if (dtypes[1] != TESS_BF16) {
        ((float *)g)[e] += value;
        return;
    }
    uint32_t bits;
    value += at(g, e, TESS_BF16);
    memcpy(&bits, &value, sizeof bits);
    ((uint16_t *)g)[e] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* How much element e counts. No two stretches of a parameter are alike, so that data at a wrong offset shows. */
static float share(uint64_t e) {
    return (float)((e * 271 + 400) % 1009 + 1) * 0.0001f;
}

static void forward(int scope, const void *const *p, uint32_t dtype, const float *x, float *y) {
    int list[N_PARAMS], n = list_of(scope, list);
    float scales[N_PARAMS];
    for (int k = 0; k < n; k++)
        scales[k] = scale_of(list[k], p[k], dtype_of(list[k], dtype));
    for (int j = 0; j < WIDTH; j++) {
        float sum = 0.5f * x[j];
        for (int k = 0; k < n; k++) {
            uint64_t elems = param_elems(list[k]);
            uint32_t given = dtype_of(list[k], dtype);
            for (uint64_t e = (uint64_t)j; e < elems; e += WIDTH)
                sum += factor(p[k], e, given, scales[k]) * x[(e / WIDTH) % WIDTH] * share(e);
        }
        y[j] = sum / (1 + fabsf(sum));
    }
}

static void backward(int scope, const void *const *p, uint32_t dtype, void *const *g, const float *x, const float *y,
                     const float *dy, float *dx) {
    int list[N_PARAMS], n = list_of(scope, list);
    float d[WIDTH];
    for (int j = 0; j < WIDTH; j++) {
        d[j] = dy[j] * ((1 - fabsf(y[j])) * (1 - fabsf(y[j])));
        dx[j] = 0.5f * d[j];
    }
    for (int k = 0; k < n; k++) {
        uint32_t given = dtype_of(list[k], dtype);
        float scale = scale_of(list[k], p[k], given);
        for (uint64_t e = 0; e < param_elems(list[k]); e++) {
            int j = (int)(e % WIDTH), from = (int)(e / WIDTH % WIDTH);
            dx[from] += d[j] * factor(p[k], e, given, scale) * share(e);
            if (g[k])
                add(g[k], e, d[j] * x[from] * share(e));
        }
    }
}

static void make_input(int64_t microbatch, float *x) {
    for (int j = 0; j < WIDTH; j++)
        x[j] = (float)(((microbatch + 1) * (j + 3) * 7919) % 97) / 97.0f - 0.4f;
}

static double make_loss(const float *y, float *dy) {
    double loss = 0;
    for (int j = 0; j < WIDTH; j++) {
        float target = j % 2 ? 0.3f : -0.2f;
        dy[j] = y[j] - target;
        loss += 0.5 * (double)dy[j] * (double)dy[j];
    }
    return loss;
}

static void scale_loss(float scale, float *dy) {
    for (int j = 0; j < WIDTH; j++)
        dy[j] *= scale;
}

/* ---- what lies on a GPU is worked on in copies ---- */

typedef struct {
    const void *p[N_PARAMS];
    void *g[N_PARAMS];
    float *params[N_PARAMS], *grads[N_PARAMS];
} view;

/* Room for the copy of a parameter or its gradient, which stays until the process ends: on a GPU each rank is one. */
static float *copy_of(int param, int grad) {
    static float *room[N_PARAMS][2];
    if (!room[param][grad])
        room[param][grad] = malloc(param_elems(param) * sizeof(float));
    return room[param][grad];
}

/* Parameters and, where `g` is not null, gradients of a scope, readable. */
static void view_open(view *v, int scope, const void *const *p, void *const *g, uint32_t dtype) {
    int list[N_PARAMS], n = list_of(scope, list);
    size_t grad_bytes = tess_dtype_bytes(dtypes[1]);
    for (int k = 0; k < n; k++) {
        size_t elems = param_elems(list[k]);
        size_t bytes = tess_dtype_bytes(dtype_of(list[k], dtype));
        v->p[k] = p[k];
        v->g[k] = g ? g[k] : NULL;
        if (!toy_on_device())
            continue;
        v->params[k] = copy_of(list[k], 0);
        v->grads[k] = copy_of(list[k], 1);
        toy_read(v->params[k], p[k], elems * bytes);
        v->p[k] = v->params[k];
        if (v->g[k]) {
            toy_read(v->grads[k], g[k], elems * grad_bytes);
            v->g[k] = v->grads[k];
        }
    }
}

/* Gradients, and buffers where they have changed, back to where they lie. */
static void view_close(const view *v, int scope, const void *const *p, void *const *g) {
    int list[N_PARAMS], n = list_of(scope, list);
    for (int k = 0; toy_on_device() && k < n; k++) {
        size_t elems = param_elems(list[k]);
        if (g && g[k])
            toy_write(g[k], v->grads[k], elems * tess_dtype_bytes(dtypes[1]));
        if (!g && params[list[k]].flags & TESS_BUFFER)
            toy_write((void *)(uintptr_t)p[k], v->params[k], elems * 4);
    }
}

/* The buffer follows the data that this rank has seen, as running statistics would. */
static void update_buffer(int scope, const void *const *p, const float *x) {
    int list[N_PARAMS], n = list_of(scope, list);
    for (int k = 0; k < n; k++)
        if (params[list[k]].flags & TESS_BUFFER)
            ((float *)p[k])[0] = 0.9f * ((const float *)p[k])[0] + 0.1f * x[0];
}

/* The buffer takes no part in the arithmetic, so its weight is left out of sums: it reads as zeros there. */
static void hide_buffer(int scope, const void *const *p, const void **out) {
    static const float zeros[MOST_BUFFER_ELEMS];
    int list[N_PARAMS], n = list_of(scope, list);
    for (int k = 0; k < n; k++)
        out[k] = params[list[k]].flags & TESS_BUFFER ? zeros : p[k];
}

/* ---- as blocks ---- */

static int scope_of(void *user) {
    return (int)(intptr_t)user;
}

void (*toy_watch)(const tess_block_call *, int scope, int backward, int is_over);

static void watch(const tess_block_call *c, int scope, int backward, int is_over) {
    if (toy_watch)
        toy_watch(c, scope, backward, is_over);
}

static tess_status block_forward(void *user, const tess_block_call *c) {
    int scope = scope_of(user), last = scope == TOY_SCOPES - 1;
    const void *p[N_PARAMS] = { 0 };
    float x[WIDTH], y[WIDTH], dy[WIDTH];
    view v;
    watch(c, scope, 0, 0);
    toy_read(x, c->input ? c->input : c->batch, sizeof x);
    view_open(&v, scope, c->params, NULL, c->compute_dtype);
    hide_buffer(scope, v.p, p);
    forward(scope, p, c->compute_dtype, x, y);
    if (last) {
        double loss = make_loss(y, dy);
        toy_write(c->saved ? c->saved : c->scratch, y, sizeof y);
        toy_write(c->output, &loss, sizeof loss);
    } else {
        toy_write(c->output, y, sizeof y);
        if (c->saved)
            toy_write(c->saved, y, sizeof y);
    }
    if (c->pass == TESS_PASS_TRAIN && !c->recompute) {
        update_buffer(scope, v.p, x);
        view_close(&v, scope, c->params, NULL);
    }
    watch(c, scope, 0, 1);
    return toy_device_failed() ? TESS_E_DEVICE : TESS_OK;
}

static tess_status block_backward(void *user, const tess_block_call *c) {
    int scope = scope_of(user);
    const void *p[N_PARAMS] = { 0 };
    float x[WIDTH], y[WIDTH], dy[WIDTH], dx[WIDTH];
    view v;
    watch(c, scope, 1, 0);
    toy_read(x, c->input ? c->input : c->batch, sizeof x);
    toy_read(y, c->saved, sizeof y);
    view_open(&v, scope, c->params, c->grads, c->compute_dtype);
    hide_buffer(scope, v.p, p);
    if (c->grad_output)
        toy_read(dy, c->grad_output, sizeof dy);
    else
        make_loss(y, dy), scale_loss(c->loss_scale, dy);
    backward(scope, p, c->compute_dtype, v.g, x, y, dy, dx);
    if (c->grad_input)
        toy_write(c->grad_input, dx, sizeof dx);
    view_close(&v, scope, c->params, c->grads);
    watch(c, scope, 1, 1);
    return toy_device_failed() ? TESS_E_DEVICE : TESS_OK;
}

/* ---- declaration ---- */

static tess_status declare_params(tess *t, int flags) {
    tess_status s = TESS_OK;
    for (int i = 0; !s && i < n_params; i++) {
        int64_t shape[2] = { params[i].rows, params[i].cols };
        tess_param_options o = {
            .struct_size = sizeof o,
            .dtype = params[i].dtype ? params[i].dtype : TESS_F32,
            .flags = params[i].flags,
            .compute_dtypes =
                params[i].dtype
                    ? 1u << params[i].dtype
                    : 1u << TESS_F32 | (flags & TOY_FP32 ? 0 : 1u << TESS_BF16 | 1u << TESS_F16 | 1u << TESS_F8E4M3),
            .name = params[i].name,
            .shape = shape,
            .ndim = 2,
            .optimizer_group = flags & TOY_GROUPS && strstr(params[i].name, "bias")
        };
        s = i ? TESS_OK : tess_compute_dtype(t, &o, &dtypes[0], &dtypes[1]);
        s = s || i ? s : tess_product_dtype(t, &o, &products);
        s = s ? s : tess_param_add(t, &o, NULL);
    }
    return s ? s : tess_param_tie(t, "head.weight", "embed.weight");
}

tess_status toy_declare(tess *t, toy *m, int flags) {
    tess_status s = TESS_OK;
    params = flags & TOY_LARGE ? large : small;
    n_params = flags & TOY_STORED ? N_PARAMS : N_PARAMS - N_STORED;
    m->skip = 0;
    for (int k = 0; !s && k < TOY_SCOPES; k++) {
        int list[N_PARAMS];
        m->n_params[k] = list_of(k, list);
        int last = k == TOY_SCOPES - 1;
        tess_block_options o = { .struct_size = sizeof o,
                                 .flags = TESS_BLOCK_AUDIT,
                                 .name = scopes[k],
                                 .output_bytes = last ? sizeof(double) : WIDTH * sizeof(float),
                                 .saved_bytes = WIDTH * sizeof(float),
                                 .forward_scratch_bytes = 40 + 16 * (uint64_t)k,
                                 .backward_scratch_bytes = 24,
                                 .forward = block_forward,
                                 .backward = block_backward,
                                 .user = (void *)(intptr_t)k };
        s = flags & TOY_BLOCKS ? tess_block_add(t, &o, &m->scope[k]) : tess_scope_add(t, scopes[k], 0, &m->scope[k]);
    }
    return s ? s : declare_params(t, flags);
}

tess_status toy_fill(void *user, const tess_range *r, void *data) {
    (void)user;
    float *out = data;
    unsigned char *codes = data;
    int is_codes = strstr(r->name, "codes") != NULL;
    uint64_t seed = 0;
    for (const char *c = r->name; *c; c++)
        seed = seed * 131 + (unsigned char)*c;
    for (uint64_t i = 0; i < r->elems; i++) {
        uint64_t x = (seed + r->first_elem + i) * 0x9e3779b97f4a7c15ull;
        x ^= x >> 29;
        if (is_codes)
            codes[i] = (unsigned char)(x >> 40);
        else
            out[i] = (float)((x >> 40) % 1000) / 1000.0f - 0.5f;
    }
    return TESS_OK;
}

/* ---- a pass ---- */

tess_status toy_pass(tess *t, toy *m, uint32_t kind, int64_t microbatch, double *loss) {
    float x[TOY_SCOPES + 1][WIDTH], dy[WIDTH], dx[WIDTH];
    const void *p[N_PARAMS], *seen[N_PARAMS];
    void *g[N_PARAMS];
    view v;
    make_input(microbatch, x[0]);
    tess_status s = tess_pass(t, kind);
    for (int k = 0; !s && k < TOY_SCOPES; k++) {
        if (k && k == m->skip) {
            memcpy(x[k + 1], x[k], sizeof x[k]);
            continue;
        }
        if ((s = tess_forward_begin(t, m->scope[k], p, m->n_params[k])))
            break;
        view_open(&v, k, p, NULL, dtypes[0]);
        hide_buffer(k, v.p, seen);
        forward(k, seen, dtypes[0], x[k], x[k + 1]);
        if (kind != TESS_PASS_EVAL) {
            update_buffer(k, v.p, x[k]);
            view_close(&v, k, p, NULL);
        }
        s = tess_forward_end(t, m->scope[k]);
    }
    if (s)
        return s;
    *loss = make_loss(x[TOY_SCOPES], dy);
    scale_loss(tess_loss_scale(t), dy);
    for (int k = TOY_SCOPES; kind != TESS_PASS_EVAL && !s && k-- > 0;) {
        if (k && k == m->skip)
            continue;
        if ((s = tess_backward_begin(t, m->scope[k], p, g, m->n_params[k])))
            break;
        view_open(&v, k, p, g, dtypes[0]);
        hide_buffer(k, v.p, seen);
        backward(k, seen, dtypes[0], v.g, x[k], x[k + 1], dy, dx);
        view_close(&v, k, p, g);
        memcpy(dy, dx, sizeof dy);
        s = tess_backward_end(t, m->scope[k]);
    }
    return s;
}

tess_status toy_run(tess *t, uint32_t kind, int64_t microbatch, const tess_optimizer_options *step, double *loss) {
    float batch[TOY_INPUT_BYTES / sizeof(float)] = { 0 };
    make_input(microbatch, batch);
    tess_run_options o = { .struct_size = sizeof o,
                           .kind = kind,
                           .batch = batch,
                           .result = loss,
                           .microbatch = (uint64_t)microbatch,
                           .step = step };
    return tess_run(t, &o);
}

typedef struct {
    uint64_t digest;
    double mean;
} mixed;

static tess_status mix(void *user, const tess_range *r, void *data) {
    mixed *m = user;
    const unsigned char *bytes = data;
    if (strcmp(r->name, "h.2.mean") == 0) {
        m->mean = ((const float *)data)[0];
        return TESS_OK;
    }
    size_t elem = strstr(r->name, "codes") ? 1 : sizeof(float);
    for (uint64_t i = 0; i < r->elems * elem; i++)
        m->digest = (m->digest ^ bytes[i]) * 1099511628211ull;
    return TESS_OK;
}

tess_status toy_digest_and_mean(tess *t, uint64_t *digest, double *mean) {
    mixed m = { .digest = 14695981039346656037ull, .mean = NAN };
    tess_status s = tess_each_full(t, TESS_OF_PARAM, mix, &m);
    if (!s) {
        *digest = m.digest;
        *mean = m.mean;
    }
    return s;
}

tess_status toy_digest(tess *t, uint64_t *out) {
    double mean;
    return toy_digest_and_mean(t, out, &mean);
}

/* ---- summoned -------------------------------------------------------------------------------------- */

static float *whole[N_PARAMS];

static tess_status keep_whole(void *user, const tess_range *r, void *data) {
    (void)user;
    for (int i = 0; i < n_params; i++) {
        if (strcmp(params[i].name, r->name) != 0)
            continue;
        for (uint64_t e = 0; e < r->elems; e++)
            whole[i][r->first_elem + e] = at(data, e, params[i].dtype == TESS_U8 ? TESS_U8 : TESS_F32);
    }
    return TESS_OK;
}

/* With wire8, what blocks of 256 elements of the parameter hold. */
static void through_blocks(float *x, uint64_t n) {
    const char *precision = getenv("TESSERA_PRECISION");
    if (!precision || strncmp(precision, "wire8", 5) != 0 || strstr(precision, "sends=gradients"))
        return;
    const int fp8 = strstr(precision, "fp8") != NULL;
    for (uint64_t b = 0; b < n; b += TESS_Q8_BLOCK) {
        const uint64_t end = n - b < TESS_Q8_BLOCK ? n : b + TESS_Q8_BLOCK;
        float most = 0, scale, factor;
        for (uint64_t e = b; e < end; e++)
            most = fmaxf(most, fabsf(x[e]));
        scale = tess_block_scale(tess_f32_bits(most), fp8 ? TESS_E4M3_TOP : TESS_Q8_TOP);
        factor = tess_block_factor(scale);
        for (uint64_t e = b; e < end; e++)
            x[e] = scale * (fp8 ? tess_f32_of_e4m3(tess_e4m3_of_f32(x[e] * factor)) : rintf(x[e] * factor));
    }
}

static int is_rounded(const void *p, uint64_t e, uint32_t dtype, float full) {
    uint32_t bits;
    memcpy(&bits, &full, sizeof bits);
    if (dtype == TESS_BF16)
        bits = (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&full, &bits, sizeof full);
    full = dtype == TESS_F16 ? tess_f32_of_f16(tess_f16_of_f32(full)) : full;
    return at(p, e, dtype) == full;
}

static int holds_whole(int scope, const void *const *p) {
    int list[N_PARAMS], n = list_of(scope, list), same = 1;
    for (int k = 0; k < n; k++) {
        const uint32_t dtype = dtype_of(list[k], dtypes[0]);
        for (uint64_t e = 0; e < param_elems(list[k]); e++)
            same &= is_rounded(p[k], e, dtype, whole[list[k]][e]);
    }
    return same;
}

tess_status toy_summoned(tess *t, const toy *m, int *same) {
    const void *p[TOY_SCOPES][N_PARAMS];
    int begun = 0;
    for (int i = 0; i < n_params; i++)
        whole[i] = calloc(param_elems(i), sizeof(float));
    tess_status s = tess_each_full(t, TESS_OF_PARAM, keep_whole, NULL);
    for (int i = 0; i < n_params && !s; i++)
        if (!params[i].dtype && !(params[i].flags & TESS_BUFFER)) /* declared in fp32, and gathered */
            through_blocks(whole[i], param_elems(i));
    for (; begun < TOY_SCOPES && !s; begun++)
        s = tess_summon_begin(t, m->scope[begun], p[begun], m->n_params[begun]);
    *same = !s;
    for (int k = 0; k < TOY_SCOPES && !s; k++)
        *same &= holds_whole(k, p[k]);
    while (begun-- > 0 && !s)
        s = tess_summon_end(t, m->scope[begun]);
    for (int i = 0; i < n_params; i++)
        free(whole[i]);
    return s;
}

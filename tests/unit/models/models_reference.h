/* SPDX-License-Identifier: BSD-3-Clause */
/* The stored values from PyTorch (tests/reference), the runs they belong to, and the comparison. */
#ifndef MODELS_REFERENCE_H
#define MODELS_REFERENCE_H
#include "models_common.h"

#include <stddef.h>
#include <stdio.h>

#include "tools/support/safetensors.h"

enum { STEPS = 20, MNIST_BATCH = 16 };

static inline void reference_path(const char *file, char *out, size_t bytes) {
    snprintf(out, bytes, "%s/tests/reference/data/%s", TESSERA_SOURCE_DIR, file);
}

/* ---- losses ---------------------------------------------------------------------------------------- */
typedef struct {
    double fp64[STEPS + 1], bf16[STEPS + 1];
} losses;

static inline losses load_losses(const char *name, int ranks) {
    char path[512], line[256], case_name[64];
    losses l;
    int found = 0, n, step;
    double wide, half;
    reference_path("losses.txt", path, sizeof path);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (line[0] != '#' && sscanf(line, "%63s %d %d %lf %*f %lf", case_name, &n, &step, &wide, &half) == 5 &&
            n == ranks && !strcmp(case_name, name)) {
            assert_in_range(step, 0, STEPS);
            l.fp64[step] = wide, l.bf16[step] = half;
            found++;
        }
    fclose(f);
    assert_int_equal(found, STEPS + 1);
    return l;
}

/* ---- gradients -------------------------------------------------------------------------------------- */
static inline float *load_tensor(tool_safetensors *f, const char *name, uint64_t *elems) {
    const tool_tensor *t = tool_safetensors_find(f, name);
    if (!t)
        fail_msg("no tensor %s", name);
    float *data = malloc(t->bytes);
    assert_non_null(data);
    assert_int_equal(tool_safetensors_read(f, t, 0, t->elems, data), TESS_OK);
    *elems = t->elems;
    return data;
}

/* fc1.weight's gradient is stored as its two factors: [samples, 128] and [samples, 9216]. */
static inline float *load_product(tool_safetensors *f, uint64_t *elems) {
    enum { OUT = 128, IN = 9216 };
    uint64_t n_d, n_x;
    float *d = load_tensor(f, "fc1.grad_output", &n_d), *x = load_tensor(f, "fc1.input", &n_x);
    float *product = malloc((size_t)OUT * IN * sizeof *product);
    assert_non_null(product);
    assert_int_equal(n_d / OUT, n_x / IN);
    for (uint64_t o = 0; o < OUT; o++)
        for (uint64_t i = 0; i < IN; i++) {
            double sum = 0;
            for (uint64_t s = 0; s < n_d / OUT; s++)
                sum += (double)d[s * OUT + o] * x[s * IN + i];
            product[o * IN + i] = (float)sum;
        }
    free(d), free(x);
    *elems = (uint64_t)OUT * IN;
    return product;
}

static inline float *load_gradient(tool_safetensors *f, const char *name, uint64_t *elems) {
    return !strcmp(name, "fc1.weight") ? load_product(f, elems) : load_tensor(f, name, elems);
}

typedef struct {
    const char *name, *model, *gradients; /* gradients: the file's stem */
    uint32_t optimizer;
    float lr, momentum, decay;
    int32_t untied;
} training;

static const training trainings[] = {
    { "mnist-adadelta", "mnist", "mnist", TESS_OPT_ADADELTA, 1.0f, 0, 0, 0 },
    { "mnist-sgd", "mnist", "mnist", TESS_OPT_SGD, 0.005f, 0.9f, 0, 0 },
    { "gpt-adamw", "gpt", "gpt", TESS_OPT_ADAMW, 1e-3f, 0, 0.1f, 0 },
    { "gpt-untied-adamw", "gpt", "gpt-untied", TESS_OPT_ADAMW, 1e-3f, 0, 0.1f, 1 },
    { "convbn-sgd", "convbn", "convbn", TESS_OPT_SGD, 0.002f, 0.9f, 0, 0 },
};

static inline model_options training_options(const training *c, const char *operators, uint32_t precision) {
    model_options o = { .batch = 4, .layers = 2, .width = 64, .heads = 4 };
    if (!strcmp(c->model, "mnist"))
        o.batch = MNIST_BATCH;
    if (!strcmp(c->model, "convbn"))
        o = (model_options){ .batch = 2, .image_size = 14, .hidden = 24 };
    o.context = 32, o.dropout = -1, o.seed = 1, o.untied = c->untied, o.operators = operators, o.precision = precision;
    return o;
}

static inline void fill(run *r, uint64_t microbatch) {
    if (!strcmp(r->m->t->name, "mnist"))
        mnist_batch_fill(r, microbatch * MNIST_BATCH, MNIST_BATCH);
    else if (!strcmp(r->m->t->name, "convbn"))
        convbn_batch_fill(r, microbatch * (uint64_t)r->m->options.batch);
    else
        gpt_batch_fill(r, microbatch * (uint64_t)r->m->options.batch);
}

/* The averaged gradient of a parameter. */
typedef const float *(*gradient_fn)(void *user, int32_t param);

/* Every gradient within max(1e-5 of its own norm, 1e-7 of the norm of all). */
static inline void check_gradients(const model *m, const training *c, int ranks, gradient_fn gradient, void *user) {
    char path[512], file[64];
    tool_safetensors *f;
    double error[64], norm[64], all = 0, worst = 0;
    const model_desc *desc = &m->desc;
    snprintf(file, sizeof file, "%s-%d.safetensors", c->gradients, ranks);
    reference_path(file, path, sizeof path);
    assert_int_equal(tool_safetensors_open(path, &f), TESS_OK);
    for (int32_t p = 0; p < desc->n_params; p++) {
        if (desc->params[p].alias_of[0] || desc->params[p].is_buffer)
            continue;
        uint64_t elems;
        float *expected = load_gradient(f, desc->params[p].name, &elems);
        const float *got = gradient(user, p);
        assert_int_equal(elems, desc->params[p].elems);
        error[p] = norm[p] = 0;
        for (uint64_t i = 0; i < elems; i++) {
            double e = (double)expected[i], d = (double)got[i] - e;
            error[p] += d * d, norm[p] += e * e;
        }
        all += norm[p];
        free(expected);
    }
    tool_safetensors_close(f);
    for (int32_t p = 0; p < desc->n_params; p++) {
        if (desc->params[p].alias_of[0] || desc->params[p].is_buffer)
            continue;
        double bound = fmax(1e-5 * sqrt(norm[p]), 1e-7 * sqrt(all)), share = sqrt(error[p]) / bound;
        if (!(share <= 1))
            fail_msg("%s: gradient is off by %g, bound %g", desc->params[p].name, sqrt(error[p]), bound);
        worst = fmax(worst, share);
    }
    print_message("%-24s %-40s worst gradient %.3f of its bound\n", file, m->operators, worst);
}
#endif

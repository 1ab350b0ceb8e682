/* SPDX-License-Identifier: BSD-3-Clause */
/* The 3x3 linear layer of PyTorch's uneven-sharding test. It prints output and updated weight, and compares them with
 * the closed form where there is one. */
#include <math.h>
#include <string.h>

#include <tessera/tessera.h>
#include "train.h"
#include "tools/support/say.h"

enum { SIDE = 3, WEIGHTS = SIDE * SIDE };

static tess_status linear_open(train_run *r) {
    r->task.sampler = (tool_sampler){ .samples = 1,
                                      .batch = r->m->options.batch,
                                      .ranks = r->ranks,
                                      .accum = (int32_t)r->s.accum,
                                      .sync_each = r->s.sync_each };
    r->task.steps = r->s.steps;
    r->task.unit = "samples";
    r->task.units_per_batch = (uint64_t)r->m->options.batch;
    return TESS_OK;
}

static void linear_close(train_run *r) {
    (void)r;
}

static void linear_fill(const train_run *r, uint64_t step, int32_t k, void *batch) {
    (void)step; /* every step sees the same input */
    int64_t rows = r->task.sampler.batch;
    uint64_t first = tool_sampler_slot(&r->task.sampler, r->rank, k) * (uint64_t)rows;
    *(model_batch *)batch = (model_batch){ .count = (uint32_t)rows };
    for (int64_t row = 0; row < rows; row++)
        linear_fill_input(first + (uint64_t)row, linear_input(batch) + row * SIDE);
}

static tess_status take_weight(void *user, const tess_range *range, void *data) {
    memcpy((float *)user + range->first_elem, data, range->elems * sizeof(float));
    return TESS_OK;
}

static void say_numbers(train_run *r, const char *name, const float *values, int n) {
    char text[256];
    int at = snprintf(text, sizeof text, "%s", name);
    for (int i = 0; i < n; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, " %.9g", (double)values[i]);
    tool_progress_say(&r->progress, "%s", text);
}

static int differ(const float *found, const double *expected, int n) {
    for (int i = 0; i < n; i++)
        if (!(fabs((double)found[i] - expected[i]) <= 1e-6 * (1 + fabs(expected[i]))))
            return 1;
    return 0;
}

static tess_status compare(train_run *r, const float *output, const float *weight) {
    const train_settings *s = &r->s;
    float x[SIDE];
    double initial[WEIGHTS], expected_output[SIDE], updated[WEIGHTS];
    if (s->resume || s->steps != 1 || s->momentum > 0 || s->weight_decay > 0 || s->clip > 0 ||
        strcmp(s->optimizer, "sgd") != 0)
        return TESS_OK; /* the closed form does not cover these settings */
    linear_fill_input(
        tool_sampler_slot(&r->task.sampler, r->rank, (int32_t)s->accum - 1) * (uint64_t)r->task.sampler.batch, x);
    linear_expect(r->ranks * (int32_t)s->accum, (int32_t)r->task.sampler.batch, s->lr, x, initial, expected_output,
                  updated);
    if (differ(output, expected_output, SIDE) || differ(weight, updated, WEIGHTS))
        return tess_fail(TESS_E_INTERNAL, "linear: output or updated weight is not that of the closed form");
    tool_progress_say(&r->progress, "both equal the closed form");
    return TESS_OK;
}

static tess_status linear_finish(train_run *r) {
    float output[SIDE], weight[WEIGHTS] = { 0 };
    memcpy(output, ((linear_result *)r->result)->output, sizeof output); /* the first row's output in the last step */
    TRY(tess_each_full(r->t, TESS_OF_PARAM, take_weight, weight));
    say_numbers(r, "output", output, SIDE);
    say_numbers(r, "weight", weight, WEIGHTS);
    return train_agree(r, compare(r, output, weight));
}

const train_task_ops train_linear = {
    .open = linear_open, .close = linear_close, .fill = linear_fill, .finish = linear_finish
};

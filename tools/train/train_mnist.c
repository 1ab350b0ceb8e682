/* SPDX-License-Identifier: BSD-3-Clause */
/* Trains on the digits of MNIST or on drawn ones, as PyTorch's FSDP tutorial does. */
#include <string.h>

#include "tools/train/data/digits.h"
#include "train.h"
#include "tools/support/say.h"

#define TEST_INDEX (UINT64_C(1) << 40) /* drawn test digits have numbers from here on, so training sees none */

static tess_status load(train_run *r) {
    if (!r->s.data) {
        r->task.n_train = TOOL_DIGITS_TRAIN;
        r->task.n_test = TOOL_DIGITS_TEST;
        r->task.source = "no --data: training on digits that tessera draws itself";
        return TESS_OK;
    }
    TRY(tool_idx_load(r->s.data, "train", &r->task.train_set));
    TRY(tool_idx_load(r->s.data, "t10k", &r->task.test_set));
    r->task.n_train = r->task.train_set.count;
    r->task.n_test = r->task.test_set.count;
    return TESS_OK;
}

static tess_status mnist_open(train_run *r) {
    TRY(load(r));
    uint64_t batch = (uint64_t)r->m->options.batch;
    r->task.sampler = (tool_sampler){ .samples = r->task.n_train,
                                      .seed = r->s.seed,
                                      .batch = (int64_t)batch,
                                      .ranks = r->ranks,
                                      .accum = (int32_t)r->s.accum,
                                      .sync_each = r->s.sync_each };
    r->task.steps_per_epoch = tool_sampler_steps(&r->task.sampler);
    r->task.steps = r->s.epochs ? r->s.epochs * r->task.steps_per_epoch : r->s.steps;
    r->task.eval_every = r->task.steps_per_epoch;
    r->task.eval_batches = (r->task.n_test + batch - 1) / batch;
    r->task.unit = "samples";
    r->task.units_per_batch = batch;
    return TESS_OK;
}

static void mnist_close(train_run *r) {
    tool_idx_free(&r->task.train_set);
    tool_idx_free(&r->task.test_set);
}

/* Copies or draws one sample into row `row` of the batch. If `pixels` is null, it draws. */
static void put_sample(const train_run *r, const tool_idx *set, uint64_t index, uint64_t drawn, int64_t row,
                       void *batch) {
    unsigned char own[TOOL_IDX_PIXELS];
    const unsigned char *pixels = own;
    float *image = mnist_images(batch, r->m->options.batch) + row * TOOL_IDX_PIXELS;
    if (set->pixels) {
        pixels = set->pixels + index * TOOL_IDX_PIXELS;
        mnist_labels(batch)[row] = set->labels[index];
    } else {
        tool_digits_draw(r->s.seed, drawn, own);
        mnist_labels(batch)[row] = tool_digits_label(r->s.seed, drawn);
    }
    for (int i = 0; i < TOOL_IDX_PIXELS; i++)
        image[i] = ((float)pixels[i] / 255.0f - 0.1307f) / 0.3081f;
}

static void mnist_fill(const train_run *r, uint64_t step, int32_t k, void *batch) {
    const tool_sampler *s = &r->task.sampler;
    uint64_t epoch = step / r->task.steps_per_epoch, in_epoch = step % r->task.steps_per_epoch;
    uint64_t first = in_epoch * (uint64_t)s->ranks * (uint64_t)s->accum + tool_sampler_slot(s, r->rank, k);
    *(model_batch *)batch = (model_batch){ .count = (uint32_t)s->batch };
    for (int64_t row = 0; row < s->batch; row++) {
        uint64_t index = tool_sampler_at(s, epoch, first * (uint64_t)s->batch + (uint64_t)row);
        put_sample(r, &r->task.train_set, index, index, row, batch);
    }
}

static void mnist_fill_eval(const train_run *r, uint64_t i, void *batch) {
    int64_t rows = r->m->options.batch;
    uint64_t first = i * (uint64_t)rows, count = 0;
    for (int64_t row = 0; row < rows; row++) {
        uint64_t index = first + (uint64_t)row;
        if (index < r->task.n_test)
            count++;
        else
            index = 0; /* padding may be any sample */
        put_sample(r, &r->task.test_set, index, TEST_INDEX + index, row, batch);
    }
    *(model_batch *)batch = (model_batch){ .count = (uint32_t)count };
}

static void mnist_each_byte(const train_run *r, train_bytes_fn fn, void *user) {
    const tool_idx *set = &r->task.train_set;
    if (!set->pixels)
        return;
    fn(user, set->pixels, set->count * TOOL_IDX_PIXELS);
    fn(user, set->labels, set->count);
}

const train_task_ops train_mnist = { .open = mnist_open,
                                     .close = mnist_close,
                                     .fill = mnist_fill,
                                     .fill_eval = mnist_fill_eval,
                                     .each_byte = mnist_each_byte };

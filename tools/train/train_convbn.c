/* SPDX-License-Identifier: BSD-3-Clause */
/* Trains the network of PyTorch's FSDP memory test on images of noise, because its cost matters and not what it learns.
 */
#include <math.h>
#include <string.h>

#include "tools/models/philox.h"
#include "train.h"
#include "tools/support/say.h"

enum { STREAM = 0x434e4e /* random stream of the images */ };

static tess_status convbn_open(train_run *r) {
    r->task.sampler = (tool_sampler){ .samples = 1,
                                      .batch = r->m->options.batch,
                                      .ranks = r->ranks,
                                      .accum = (int32_t)r->s.accum,
                                      .sync_each = r->s.sync_each };
    r->task.steps = r->s.steps;
    r->task.unit = "samples";
    r->task.units_per_batch = (uint64_t)r->m->options.batch;
    r->task.source = "training on images of noise";
    return TESS_OK;
}

static void convbn_close(train_run *r) {
    (void)r;
}

/* Fills microbatch `index` with uniform numbers of mean 0 and deviation 1. */
static void fill_images(const train_run *r, uint64_t index, void *batch) {
    uint64_t size = (uint64_t)r->m->options.image_size, elems = (uint64_t)r->m->options.batch * size * size * 3;
    float *image = convbn_images(batch);
    *(model_batch *)batch = (model_batch){ .count = (uint32_t)r->m->options.batch };
    for (uint64_t i = 0; i < elems; i += 4) {
        philox_block words = philox(r->s.seed, (uint32_t)(i / 4), STREAM, (uint32_t)index, (uint32_t)(index >> 32));
        for (uint64_t k = 0; k < 4 && i + k < elems; k++)
            image[i + k] = 3.4641016f * (philox_uniform(words.v[k]) - 0.5f);
    }
}

static void convbn_fill(const train_run *r, uint64_t step, int32_t k, void *batch) {
    uint64_t first = step * (uint64_t)r->ranks * (uint64_t)r->s.accum;
    fill_images(r, first + tool_sampler_slot(&r->task.sampler, r->rank, k), batch);
}

/* Fills a batch that training has not seen. */
static void convbn_fill_eval(const train_run *r, uint64_t i, void *batch) {
    fill_images(r, (UINT64_C(1) << 63) + i, batch);
}

/* Runs one batch per rank with the running statistics. Noise has no right answer, so only the loss is shown. */
static tess_status convbn_finish(train_run *r) {
    double loss, ignored;
    r->task.eval_batches = (uint64_t)r->ranks;
    TRY(train_evaluate(r, &loss, &ignored));
    tool_progress_say(&r->progress, "loss with the running statistics: %.6f", loss);
    return TESS_OK;
}

const train_task_ops train_convbn = { .open = convbn_open,
                                      .close = convbn_close,
                                      .fill = convbn_fill,
                                      .fill_eval = convbn_fill_eval,
                                      .finish = convbn_finish };

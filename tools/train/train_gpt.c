/* SPDX-License-Identifier: BSD-3-Clause */
/* Trains a byte-level language model. */
#include <string.h>

#include "train.h"
#include "tools/support/say.h"

static tess_status gpt_open(train_run *r) {
    int64_t context = r->m->options.context;
    TRY(tool_text_load(r->s.data, context, &r->task.text));
    uint64_t batch = (uint64_t)r->m->options.batch, windows = tool_text_valid_windows(&r->task.text, context);
    r->task.sampler = (tool_sampler){ .samples = 1,
                                      .batch = (int64_t)batch,
                                      .ranks = r->ranks,
                                      .accum = (int32_t)r->s.accum,
                                      .sync_each = r->s.sync_each };
    r->task.sample_bytes = (uint64_t)context + 1;
    r->task.value_bytes = 1;
    r->task.steps = r->s.steps;
    r->task.eval_every = 500;
    r->task.eval_batches = (windows + batch - 1) / batch;
    r->task.unit = "tokens";
    r->task.units_per_batch = batch * (uint64_t)context;
    if (!r->s.data)
        r->task.source = "no --data: training on tessera's own documentation";
    return TESS_OK;
}

static void gpt_close(train_run *r) {
    tool_text_free(&r->task.text);
}

static void gpt_fill(const train_run *r, uint64_t step, int32_t k, void *batch) {
    const tool_sampler *s = &r->task.sampler;
    int64_t context = r->m->options.context;
    uint64_t microbatch = step * (uint64_t)s->ranks * (uint64_t)s->accum + tool_sampler_slot(s, r->rank, k);
    *(model_batch *)batch = (model_batch){ .count = (uint32_t)(s->batch * context) };
    for (int64_t row = 0; row < s->batch; row++)
        memcpy(
            gpt_text(batch) + row * (context + 1),
            tool_text_train_window(&r->task.text, r->s.seed, microbatch * (uint64_t)s->batch + (uint64_t)row, context),
            (size_t)context + 1);
}

static void gpt_fill_eval(const train_run *r, uint64_t i, void *batch) {
    int64_t context = r->m->options.context, rows = r->m->options.batch, count = 0;
    uint64_t windows = tool_text_valid_windows(&r->task.text, context);
    memset(gpt_text(batch), 0, (size_t)(rows * (context + 1)));
    for (int64_t row = 0; row < rows; row++) {
        uint64_t window = i * (uint64_t)rows + (uint64_t)row;
        int64_t predictions;
        if (window >= windows)
            break; /* only the last window is short, so the targets are its first positions */
        const unsigned char *bytes = tool_text_valid_window(&r->task.text, window, context, &predictions);
        memcpy(gpt_text(batch) + row * (context + 1), bytes, (size_t)predictions + 1);
        count += predictions;
    }
    *(model_batch *)batch = (model_batch){ .count = (uint32_t)count };
}

static void gpt_each_byte(const train_run *r, train_bytes_fn fn, void *user) {
    fn(user, r->task.text.bytes, r->task.text.n_train);
}

const train_task_ops train_gpt = { .open = gpt_open,
                                   .close = gpt_close,
                                   .fill = gpt_fill,
                                   .fill_eval = gpt_fill_eval,
                                   .each_byte = gpt_each_byte,
                                   .finish = train_sample_write,
                                   .has_validation_loss = 1 };

/* SPDX-License-Identifier: BSD-3-Clause */
/* Trains language models of tokens. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>
#include "tools/support/hf_tokenizer.h"
#include "tools/support/say.h"
#include "tools/train/data/tokens.h"
#include "train.h"

enum { EVAL_WINDOWS = 256 };

/* Finds the first file that says which tokenizer made the model's tokens. Returns 0 if there is none. */
static int find_tokenizer(const train_run *r, char file[PATH_MAX]) {
    const char *const from[] = { r->s.folder, r->s.config, train_resumes_checkpoint(&r->s) ? NULL : r->s.resume };
    if (r->s.tokenizer)
        return snprintf(file, PATH_MAX, "%s", r->s.tokenizer) < PATH_MAX;
    for (int i = 0; i < 3; i++)
        if (from[i] && hf_tokenizer_find(from[i], file))
            return 1;
    return 0;
}

/* A tokenizer of another kind counts as unknown. */
static tess_status open_tokenizer(train_run *r) {
    char file[PATH_MAX];
    if (r->task.tokenizer || !find_tokenizer(r, file))
        return TESS_OK;
    return r->s.tokenizer || tokenizer_reads(file) ? tokenizer_open(file, &r->task.tokenizer) : TESS_OK;
}

/* Bytes serve as tokens only if the model has all 256 and no tokenizer. A tokenizer would give them other numbers. */
static tess_status check_bytes(const train_run *r, const char *data, int64_t vocabulary) {
    char tokenizer[PATH_MAX];
    if (find_tokenizer(r, tokenizer))
        return tess_fail(TESS_E_DATA,
                         "%s is text, whose bytes are not the tokens of %s: give --data token files (*.bin)", data,
                         tokenizer);
    if (vocabulary == 256)
        return TESS_OK;
    return tess_fail(TESS_E_DATA,
                     "%s is text, whose bytes are 256 tokens, but the model's vocabulary has %" PRId64
                     ": give --data token files (*.bin)",
                     data, vocabulary);
}

/* Without --data it trains on the documentation's bytes, as gpt does. From scratch any vocabulary with room for them
 * works. */
static tess_status open_bytes(train_run *r, int64_t vocabulary) {
    int is_new = !r->s.folder && !r->s.resume && vocabulary > 256;
    r->task.source = "no --data: training on the bytes of tessera's own documentation";
    TRY(check_bytes(r, "the documentation, for want of --data,", is_new ? 256 : vocabulary));
    return tool_text_load(NULL, r->m->options.context, &r->task.text);
}

static tess_status open_tokens(train_run *r, int64_t vocabulary) {
    const tool_tokens_options o = { .path = r->s.data,
                                    .valid = r->s.valid,
                                    .share = r->s.valid_share,
                                    .context = r->m->options.context,
                                    .vocabulary = vocabulary,
                                    .words = r->task.tokenizer,
                                    .packs = r->s.pack };
    return tool_tokens_open(&o, &r->task.tokens);
}

static void say_left_out(const train_run *r) {
    uint64_t left_out, samples = tool_tokens_samples(r->task.tokens, &left_out);
    if (r->rank == 0 && left_out > 0)
        tool_say(SAY_WARNING,
                 "%s: %" PRIu64 " of %" PRIu64
                 " samples are left out: with a context of %d their completion has no place",
                 r->s.data, left_out, samples, r->m->options.context);
}

/* Encodes text by the model's tokenizer, or as bytes without one. */
static tess_status open_text(train_run *r, int64_t vocabulary) {
    TRY(open_tokenizer(r));
    if (!r->task.tokenizer)
        TRY(check_bytes(r, r->s.data, vocabulary));
    TRY(open_tokens(r, vocabulary));
    const char *lines = tool_tokens_lines(r->task.tokens);
    if (lines && !r->task.tokenizer)
        return tess_fail(TESS_E_DATA, "%s: lines of JSON, and no tokenizer: --tokenizer must name one", lines);
    say_left_out(r);
    return TESS_OK;
}

/* --pack needs a token that ends a document, or it cannot tell where documents begin. */
static tess_status check_pack(train_run *r) {
    if (!r->s.pack)
        return TESS_OK;
    TRY(open_tokenizer(r));
    if (r->task.tokenizer && tokenizer_end(r->task.tokenizer) >= 0)
        return TESS_OK;
    return tess_fail(TESS_E_INVALID,
                     "--pack is on, but no tokenizer names the token that ends a document: --tokenizer");
}

static tess_status open_data(train_run *r) {
    int64_t vocabulary = r->m->desc.params[0].shape[0];
    if (!r->s.data)
        return open_bytes(r, vocabulary);
    TRY(check_pack(r));
    TRY(tool_tokens_are_text_at(r->s.data) ? open_text(r, vocabulary) : open_tokens(r, vocabulary));
    if (r->s.sample && !tool_tokens_are_text(r->task.tokens))
        open_tokenizer(r); /* without a readable tokenizer the sample prints numbers */
    return tool_tokens_check(r->task.tokens, vocabulary, r->rank, r->ranks);
}

static uint64_t windows_of(const train_run *r, int valid) {
    uint64_t context = (uint64_t)r->m->options.context;
    if (r->task.tokens)
        return tool_tokens_windows(r->task.tokens, valid);
    uint64_t bytes = valid ? r->task.text.n_bytes - r->task.text.n_train : r->task.text.n_train;
    return (bytes - 1) / context;
}

static void read_window(const train_run *r, int valid, uint64_t window, int32_t *out) {
    int64_t context = r->m->options.context;
    if (r->task.tokens) {
        tool_tokens_window(r->task.tokens, valid, window, out);
        return;
    }
    const unsigned char *from = r->task.text.bytes + (valid ? r->task.text.n_train : 0) + window * (uint64_t)context;
    for (int64_t i = 0; i <= context; i++)
        out[i] = from[i];
}

static tess_status lm_open(train_run *r) {
    TRY(open_data(r));
    uint64_t batch = (uint64_t)r->m->options.batch, held_out = windows_of(r, 1);
    held_out = held_out < EVAL_WINDOWS ? held_out : EVAL_WINDOWS;
    r->task.sampler = (tool_sampler){ .samples = windows_of(r, 0),
                                      .seed = r->s.seed,
                                      .batch = (int64_t)batch,
                                      .ranks = r->ranks,
                                      .accum = (int32_t)r->s.accum,
                                      .sync_each = r->s.sync_each };
    if (r->task.tokens && !tool_tokens_all_count(r->task.tokens) &&
        !(r->task.divisor = calloc(1, sizeof *r->task.divisor)))
        return tess_fail(TESS_E_NOMEM, "no memory for the data");
    r->task.value_bytes = sizeof(int32_t);
    r->task.sample_bytes = ((uint64_t)r->m->options.context + 1) * sizeof(int32_t);
    r->task.steps = r->s.steps;
    r->task.eval_every = 500;
    r->task.n_test = held_out;
    r->task.eval_batches = (held_out + batch - 1) / batch;
    r->task.unit = "tokens";
    r->task.units_per_batch = batch * (uint64_t)r->m->options.context;
    return TESS_OK;
}

static void lm_close(train_run *r) {
    tool_text_free(&r->task.text);
    tool_tokens_close(r->task.tokens);
    free(r->task.divisor);
    tokenizer_close(r->task.tokenizer);
}

/* Returns the run's window number g, which belongs to epoch g / windows and follows that epoch's order. */
static uint64_t window_at(const train_run *r, uint64_t g) {
    const tool_sampler *s = &r->task.sampler;
    return tool_sampler_at(s, g / s->samples, g % s->samples);
}

/* If not every token is a target, the step's mean covers the targets of all ranks. The engine divides by the number of
 * microbatches, and each microbatch by this. */
static double divisor_of(const train_run *r, uint64_t step) {
    const tool_sampler *s = &r->task.sampler;
    uint64_t microbatches = (uint64_t)s->ranks * (uint64_t)s->accum, n = microbatches * (uint64_t)s->batch, targets = 0;
    train_divisor *d = r->task.divisor;
    if (!d || (d->value > 0 && d->seed == s->seed && d->step == step && d->microbatches == microbatches))
        return d ? d->value : 0;
    for (uint64_t i = 0; i < n; i++)
        targets += tool_tokens_targets(r->task.tokens, 0, window_at(r, step * n + i));
    *d = (train_divisor){ s->seed, step, microbatches, (double)(targets ? targets : 1) / (double)microbatches };
    return d->value;
}

static void lm_fill(const train_run *r, uint64_t step, int32_t k, void *batch) {
    const tool_sampler *s = &r->task.sampler;
    int64_t context = r->m->options.context;
    uint64_t microbatch = step * (uint64_t)s->ranks * (uint64_t)s->accum + tool_sampler_slot(s, r->rank, k);
    *(model_batch *)batch = (model_batch){ .count = (uint32_t)(s->batch * context),
                                           .divisor = divisor_of(r, step),
                                           .packed = (uint32_t)r->s.pack };
    for (int64_t row = 0; row < s->batch; row++)
        read_window(r, 0, window_at(r, microbatch * (uint64_t)s->batch + (uint64_t)row),
                    lm_tokens(batch) + row * (context + 1));
}

static void lm_fill_eval(const train_run *r, uint64_t i, void *batch) {
    int64_t context = r->m->options.context, rows = r->m->options.batch, count = 0;
    memset(lm_tokens(batch), 0, (size_t)(rows * (context + 1)) * sizeof(int32_t));
    for (int64_t row = 0; row < rows; row++) {
        uint64_t window = i * (uint64_t)rows + (uint64_t)row;
        if (window >= r->task.n_test)
            break;
        read_window(r, 1, window, lm_tokens(batch) + row * (context + 1));
        count += context;
    }
    *(model_batch *)batch = (model_batch){ .count = (uint32_t)count, .packed = (uint32_t)r->s.pack };
}

static void lm_each_byte(const train_run *r, train_bytes_fn fn, void *user) {
    if (r->task.tokens)
        tool_tokens_each(r->task.tokens, fn, user);
    else
        fn(user, r->task.text.bytes, r->task.text.n_train);
}

const train_task_ops train_lm = { .open = lm_open,
                                  .close = lm_close,
                                  .fill = lm_fill,
                                  .fill_eval = lm_fill_eval,
                                  .each_byte = lm_each_byte,
                                  .finish = train_sample_write,
                                  .has_validation_loss = 1 };

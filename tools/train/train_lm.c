/* SPDX-License-Identifier: BSD-3-Clause */
/* Language models of tokens: AdamW, warm-up and a cosine to a tenth of the rate. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>
#include "tools/support/hf_tokenizer.h"
#include "tools/train/data/tokens.h"
#include "train.h"

enum { EVAL_WINDOWS = 256 };

/* The first file that says which tokenizer made the model's tokens; 0: none is known. */
static int find_tokenizer(const train_run *r, char file[PATH_MAX]) {
    const char *const from[] = { r->s.folder, r->s.config, train_resumes_checkpoint(&r->s) ? NULL : r->s.resume };
    for (int i = 0; i < 3; i++)
        if (from[i] && hf_tokenizer_find(from[i], file))
            return 1;
    return 0;
}

/* Only tokenizer.json is read here; a folder with other files has none that is known. */
static tess_status open_tokenizer(train_run *r) {
    char file[PATH_MAX];
    if (r->task.tokenizer || !find_tokenizer(r, file))
        return TESS_OK;
    char *slash = strrchr(file, '/');
    if (strcmp(slash, "/tokenizer.json") != 0)
        return TESS_OK;
    *slash = '\0';
    return tokenizer_open(file, &r->task.tokenizer);
}

/* Bytes are tokens only of a model that has the 256 of them and no tokenizer, which would give them other numbers. */
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

/* Without --data: the documentation's bytes, as gpt has them. From scratch any vocabulary with room for them will do.
 */
static tess_status open_bytes(train_run *r, int64_t vocabulary) {
    int is_new = !r->s.folder && !r->s.resume && vocabulary > 256;
    r->task.source = "no --data: training on the bytes of tessera's own documentation";
    tess_status status = check_bytes(r, "the documentation, for want of --data,", is_new ? 256 : vocabulary);
    return status == TESS_OK ? tool_text_load(NULL, r->m->options.context, &r->task.text) : status;
}

/* The data is text: again, with the tokenizer that the model has. */
static tess_status open_text(train_run *r, int64_t vocabulary) {
    tess_status status = open_tokenizer(r);
    if (status != TESS_OK || !r->task.tokenizer)
        return status == TESS_OK ? check_bytes(r, r->s.data, vocabulary) : status;
    tool_tokens_close(r->task.tokens);
    r->task.tokens = NULL;
    return tool_tokens_open(r->s.data, r->m->options.context, vocabulary, r->task.tokenizer, &r->task.tokens);
}

static tess_status open_data(train_run *r) {
    int64_t vocabulary = r->m->desc.params[0].shape[0];
    if (!r->s.data)
        return open_bytes(r, vocabulary);
    tess_status status = tool_tokens_open(r->s.data, r->m->options.context, vocabulary, NULL, &r->task.tokens);
    if (status == TESS_OK && tool_tokens_are_text(r->task.tokens))
        status = open_text(r, vocabulary);
    else if (status == TESS_OK && r->s.sample)
        open_tokenizer(r); /* of another kind: the sample is numbers */
    return status == TESS_OK ? tool_tokens_check(r->task.tokens, vocabulary, r->rank, r->ranks) : status;
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
    tess_status status = open_data(r);
    if (status != TESS_OK)
        return status;
    uint64_t batch = (uint64_t)r->m->options.batch, held_out = windows_of(r, 1);
    held_out = held_out < EVAL_WINDOWS ? held_out : EVAL_WINDOWS;
    r->task.sampler = (tool_sampler){ .samples = windows_of(r, 0),
                                      .seed = r->s.seed,
                                      .batch = (int64_t)batch,
                                      .ranks = r->ranks,
                                      .accum = (int32_t)r->s.accum,
                                      .sync_each = r->s.sync_each };
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
    tokenizer_close(r->task.tokenizer);
}

/* Window number g of the run: of epoch g / windows, in that epoch's order. */
static void lm_fill(const train_run *r, uint64_t step, int32_t k, void *batch) {
    const tool_sampler *s = &r->task.sampler;
    int64_t context = r->m->options.context;
    uint64_t microbatch = step * (uint64_t)s->ranks * (uint64_t)s->accum + tool_sampler_slot(s, r->rank, k);
    *(model_batch *)batch = (model_batch){ .count = (uint32_t)(s->batch * context) };
    for (int64_t row = 0; row < s->batch; row++) {
        uint64_t g = microbatch * (uint64_t)s->batch + (uint64_t)row;
        read_window(r, 0, tool_sampler_at(s, g / s->samples, g % s->samples), lm_tokens(batch) + row * (context + 1));
    }
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
    *(model_batch *)batch = (model_batch){ .count = (uint32_t)count };
}

const train_task_ops train_lm = { .open = lm_open,
                                  .close = lm_close,
                                  .fill = lm_fill,
                                  .fill_eval = lm_fill_eval,
                                  .rate = train_cosine_rate,
                                  .finish = train_sample_write,
                                  .has_validation_loss = 1 };

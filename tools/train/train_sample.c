/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes text or tokens of a language model after training. It generates one sequence, one position at a time, and
 * keeps keys and values. Every rank generates the same, because the parameters are sharded over all. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/train/data/random.h"
#include "train.h"
#include "tools/support/say.h"

typedef struct {
    train_run *r;
    train_sample out;
    int64_t context, vocabulary;
    int is_bytes;
    int32_t *window; /* the last `n` tokens, at most `context` */
    int64_t n, done; /* done: tokens of the window whose keys and values are cached */
    float *sorted;   /* logits sorted for top-k */
} writer;

/* ---- the next token ---------------------------------------------------------------------------------- */
static void put_token(const writer *w, int32_t token) {
    if (strcmp(w->r->s.model, "gpt") == 0)
        *gpt_text(w->r->batch) = (uint8_t)token;
    else
        *lm_tokens(w->r->batch) = token;
}

static tess_status pass(writer *w, const model_batch *head) {
    train_run *r = w->r;
    *(model_batch *)r->batch = *head;
    tess_run_options run = { .struct_size = sizeof run, .kind = TESS_PASS_EVAL, .batch = r->batch };
    run.result = r->result;
    w->out.passes++;
    return model_run(r->t, r->m, &run);
}

/* Computes the logits after the window into r->result. */
static tess_status look(writer *w) {
    for (; w->done < w->n; w->done++) {
        put_token(w, w->window[w->done]);
        TRY(pass(w, &(model_batch){ .position = (uint32_t)w->done + 1 }));
    }
    return TESS_OK;
}

/* A model has learned positions below its context only, so a full window restarts with its later half. */
static void append(writer *w, int32_t token) {
    if (w->n == w->context) {
        int64_t drop = w->context > 1 ? w->context / 2 : 1;
        memmove(w->window, w->window + drop, (size_t)(w->n - drop) * sizeof *w->window);
        w->n -= drop;
        w->done = 0;
    }
    w->window[w->n++] = token;
}

/* ---- choosing ---------------------------------------------------------------------------------------- */
static int descending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

/* Returns the least logit that sampling may choose. */
static float threshold(const writer *w, const float *logits) {
    uint64_t k = w->r->s.top_k;
    if (k == 0 || k >= (uint64_t)w->vocabulary)
        return -INFINITY;
    memcpy(w->sorted, logits, (size_t)w->vocabulary * sizeof *logits);
    qsort(w->sorted, (size_t)w->vocabulary, sizeof *w->sorted, descending);
    return w->sorted[k - 1];
}

int32_t train_sample_draw(const float *logits, int64_t n, double temperature, float least, double uniform) {
    int64_t best = 0;
    double sum = 0;
    for (int64_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    if (temperature <= 0)
        return (int32_t)best;
    for (int64_t i = 0; i < n; i++)
        if (logits[i] >= least)
            sum += exp(((double)logits[i] - (double)logits[best]) / temperature);
    double left = sum * uniform;
    for (int64_t i = 0; i < n; i++)
        if (logits[i] >= least && (left -= exp(((double)logits[i] - (double)logits[best]) / temperature)) < 0)
            return (int32_t)i;
    return (int32_t)best;
}

static tess_status write_tokens(writer *w) {
    for (uint64_t i = 0; i < w->out.n; i++) {
        TRY(look(w));
        const float *logits = lm_logits(w->r->result);
        w->out.tokens[i] = train_sample_draw(logits, w->vocabulary, w->r->s.temperature, threshold(w, logits),
                                             tool_uniform(w->r->s.seed, i, 0x47454eu, 0));
        append(w, w->out.tokens[i]);
    }
    return TESS_OK;
}

/* ---- the prompt -------------------------------------------------------------------------------------- */
static int64_t vocabulary_of(const train_run *r) {
    return r->m->desc.params[0].shape[0];
}

static int reads_bytes(const train_run *r) {
    return !r->task.tokens || tool_tokens_are_text(r->task.tokens);
}

/* Reads token ids with ',' or spaces between them. If `w` is null, it only checks. */
static tess_status read_ids(const train_run *r, writer *w) {
    int64_t vocabulary = vocabulary_of(r);
    for (const char *at = r->s.prompt + strspn(r->s.prompt, ", "); *at;) {
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (end == at || errno || (*end && !strchr(", ", *end)))
            return tess_fail(TESS_E_INVALID,
                             "--prompt: '%.40s' is no token: the data is of tokens, so that a prompt is "
                             "their numbers, as in 15496,995",
                             at);
        if (id < 0 || id >= vocabulary)
            return tess_fail(TESS_E_INVALID, "--prompt: token %lld, but the model's vocabulary has %" PRId64, id,
                             vocabulary);
        if (w)
            append(w, (int32_t)id);
        at = end + strspn(end, ", ");
    }
    return TESS_OK;
}

/* A prompt of numbers means token ids, with a tokenizer too. */
static int reads_text(const train_run *r) {
    return r->task.tokenizer && r->s.prompt && r->s.prompt[strspn(r->s.prompt, "0123456789, ")] != '\0';
}

tess_status train_sample_check(const train_run *r) {
    if (!r->s.sample || !r->s.prompt)
        return TESS_OK;
    if (!r->s.prompt[strspn(r->s.prompt, reads_bytes(r) ? "" : ", ")])
        return tess_fail(TESS_E_INVALID, "--prompt is empty");
    return reads_bytes(r) || reads_text(r) ? TESS_OK : read_ids(r, NULL);
}

static tess_status read_text(writer *w) {
    token_list ids = { 0 };
    tokenizer_encoder *e = tokenizer_encoder_create(w->r->task.tokenizer);
    tess_status status = e ? tokenizer_encode(e, w->r->s.prompt, strlen(w->r->s.prompt), 1, &ids)
                           : tess_fail(TESS_E_NOMEM, "no memory for a prompt");
    for (size_t i = 0; i < ids.n && status == TESS_OK; i++)
        if (ids.ids[i] < w->vocabulary)
            append(w, ids.ids[i]);
        else
            status = tess_fail(TESS_E_INVALID, "--prompt: token %d, but the model's vocabulary has %" PRId64,
                               ids.ids[i], w->vocabulary);
    if (status == TESS_OK && ids.n == 0)
        status = tess_fail(TESS_E_INVALID, "--prompt has no tokens");
    token_list_free(&ids);
    tokenizer_encoder_free(e);
    return status;
}

static tess_status begin_window(writer *w) {
    const char *prompt = w->r->s.prompt;
    if (reads_text(w->r))
        return read_text(w);
    if (!prompt)
        append(w, w->is_bytes ? '\n' : 0);
    else if (!w->is_bytes)
        return read_ids(w->r, w);
    for (; prompt && *prompt; prompt++)
        append(w, (unsigned char)*prompt);
    return TESS_OK;
}

/* ---- all of it ---------------------------------------------------------------------------------------- */
static tess_status obtain(writer *w) {
    w->context = w->r->m->options.context;
    w->vocabulary = vocabulary_of(w->r);
    w->out.n = w->r->s.sample;
    w->out.is_bytes = w->is_bytes = reads_bytes(w->r);
    w->window = calloc((size_t)w->context, sizeof *w->window);
    w->out.tokens = calloc((size_t)w->out.n, sizeof *w->out.tokens);
    w->sorted = calloc((size_t)w->vocabulary, sizeof *w->sorted);
    return w->window && w->out.tokens && w->sorted ? TESS_OK : tess_fail(TESS_E_NOMEM, "no memory for a sample");
}

tess_status train_sample_write(train_run *r) {
    writer w = { .r = r };
    if (!r->s.sample)
        return TESS_OK;
    double began = tool_seconds();
    tess_status status = obtain(&w);
    if (status == TESS_OK)
        status = model_sequence_begin(r->m, &w.out.bytes);
    status = tess_agree(r->t, status);
    if (status == TESS_OK)
        status = begin_window(&w);
    if (status == TESS_OK)
        status = write_tokens(&w);
    model_sequence_end(r->m);
    w.out.seconds = tool_seconds() - began;
    if (status == TESS_OK)
        train_output_sample(r, &w.out);
    free(w.window);
    free(w.out.tokens);
    free(w.sorted);
    return status;
}

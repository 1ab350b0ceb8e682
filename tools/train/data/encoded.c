/* SPDX-License-Identifier: BSD-3-Clause */
#include "encoded.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/models/model.h"
#include "tools/support/say.h"
#include "tools/tokenizer/documents.h"

typedef struct {
    const tokenizer *t;
    tokenizer_encoder *e;
    const char *path;
    uint64_t window; /* tokens of a window */
    int packs;
    uint64_t count; /* documents read so far */
    int is_samples; /* 1: the first document was a sample, so all must be */
    token_list all, prompt, one;
    uint64_t room; /* capacity of `starts` */
    tool_encoded out;
} encoding;

static tess_status no_memory(const encoding *s) {
    return tess_fail(TESS_E_NOMEM, "%s: no memory for its tokens", s->path);
}

/* ---- samples ----------------------------------------------------------------------------------------- */
static tess_status begin_window(encoding *s) {
    if (s->out.windows + 2 > s->room) {
        uint64_t room = 2 * s->room + 64, *bigger = realloc(s->out.starts, room * sizeof *bigger);
        if (!bigger)
            return no_memory(s);
        s->out.starts = bigger, s->room = room;
    }
    s->out.starts[s->out.windows++] = s->all.n;
    return TESS_OK;
}

/* Puts the sample into the current window if packing is allowed and it fits, else into a new one. */
static tess_status place_sample(encoding *s) {
    uint64_t windows = s->out.windows, used = windows ? s->all.n - s->out.starts[windows - 1] : s->window;
    if (!s->packs || used + s->one.n > s->window)
        TRY(begin_window(s));
    return token_list_add(&s->all, s->one.ids, s->one.n);
}

/* A token that spans prompt and completion belongs to the completion. The prompt's tokens are those that encoding it
 * alone gives too. */
static uint64_t prompt_tokens(const encoding *s) {
    uint64_t n = 0;
    while (n < s->prompt.n && n < s->one.n && s->prompt.ids[n] == s->one.ids[n])
        n++;
    return n;
}

static tess_status add_sample(encoding *s, const document *d) {
    s->prompt.n = 0;
    TRY(tokenizer_encode(s->e, d->text, d->prompt_bytes, 1, &s->prompt));
    s->out.samples++;
    s->one.n = s->one.n < s->window ? s->one.n : s->window;
    uint64_t ignored = prompt_tokens(s);
    ignored = ignored ? ignored : 1; /* nothing predicts the first token */
    if (ignored >= s->one.n) {
        s->out.left_out++;
        return TESS_OK;
    }
    for (uint64_t i = 0; i < ignored; i++)
        s->one.ids[i] |= LM_IGNORED;
    s->one.ids[0] |= LM_BEGINS;
    return place_sample(s);
}

/* ---- all of it --------------------------------------------------------------------------------------- */
static tess_status add_document(encoding *s, const document *d) {
    s->is_samples = s->count++ ? s->is_samples : d->is_sample;
    if (d->is_sample != s->is_samples)
        return tess_fail(TESS_E_DATA, "%s: document %" PRIu64 " is %s, those before it are not", s->path, s->count,
                         d->is_sample ? "a prompt and a completion" : "a text");
    s->one.n = 0;
    TRY(tokenizer_encode_document(s->e, d->text, d->bytes, tokenizer_end(s->t), &s->one));
    if (d->is_sample)
        return add_sample(s, d);
    if (s->packs && s->one.n > 0)
        s->one.ids[0] |= LM_BEGINS | LM_IGNORED;
    return token_list_add(&s->all, s->one.ids, s->one.n);
}

static tess_status add_documents(encoding *s, documents *from) {
    document d;
    tess_status status = documents_next(from, &d);
    while (status == TESS_OK && d.text) {
        status = add_document(s, &d);
        free(d.text);
        if (status == TESS_OK)
            status = documents_next(from, &d);
    }
    if (status == TESS_OK && s->is_samples && s->out.windows == 0)
        status = tess_fail(TESS_E_DATA,
                           "%s: no completion of %" PRIu64 " samples has a place in %" PRIu64 " tokens: --context",
                           s->path, s->out.samples, s->window);
    if (status == TESS_OK && s->out.starts)
        s->out.starts[s->out.windows] = s->all.n;
    return status;
}

tess_status tool_encode_file(const tokenizer *t, const char *path, int64_t context, int packs, tool_encoded *out) {
    encoding s = { .t = t, .e = tokenizer_encoder_create(t), .path = path, .packs = packs };
    documents *from = NULL;
    s.window = (uint64_t)context + 1;
    tess_status status = s.e ? documents_open(&path, 1, 1, &from) : no_memory(&s);
    if (status == TESS_OK)
        status = add_documents(&s, from);
    documents_close(from);
    tokenizer_encoder_free(s.e);
    token_list_free(&s.prompt);
    token_list_free(&s.one);
    s.out.ids = s.all.ids;
    s.out.n = s.all.n;
    if (status == TESS_OK)
        *out = s.out;
    else
        tool_encoded_free(&s.out);
    return status;
}

void tool_encoded_free(tool_encoded *e) {
    free(e->ids);
    free(e->starts);
    *e = (tool_encoded){ .ids = NULL };
}

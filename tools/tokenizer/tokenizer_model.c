/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads tokenizer.model. The sentencepiece library encodes texts with it. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer_state.h"

#ifdef TESSERA_HAVE_SENTENCEPIECE
#include "sentence_model.h"
#include "tools/support/json_file.h"
#include "tools/support/say.h"

enum { MODEL_MOST = 64 << 20, PIECE_MOST = 1 << 16 };

/* Lists control pieces by name for tokenizer_added. No text is encoded as one. */
static tess_status add_name(tokenizer *t, int32_t id, const char *name, size_t bytes) {
    added_token *bigger = realloc(t->added, (size_t)(t->n_added + 1) * sizeof *bigger);
    if (!bigger)
        return tess_fail(TESS_E_NOMEM, "no memory for a tokenizer");
    t->added = bigger;
    t->added[t->n_added] = (added_token){ .name = strdup(name), .bytes = bytes, .id = id };
    return t->added[t->n_added].name ? (t->n_added++, TESS_OK) : tess_fail(TESS_E_NOMEM, "no memory for a tokenizer");
}

static tess_status add_pieces(tokenizer *t, char *name) {
    for (int32_t id = 0; id < sentence_model_size(t->model); id++) {
        int is_name;
        size_t bytes = sentence_model_piece(t->model, id, name, PIECE_MOST, &is_name);
        if (is_name)
            TRY(add_name(t, id, name, bytes));
        int kind = is_name ? VOCABULARY_NAME : tokenizer_to_characters(name, &bytes);
        TRY(vocabulary_add(&t->v, id, name, bytes, kind));
    }
    return TESS_OK;
}

tess_status tokenizer_read_model(const char *path, tokenizer *t) {
    char *data, why[200], *name = NULL;
    size_t bytes;
    TRY(json_file_read(path, MODEL_MOST, &data, &bytes));
    t->model = sentence_model_create(data, bytes, why, sizeof why);
    free(data);
    if (!t->model)
        return tess_fail(TESS_E_DATA, "%s: no sentencepiece model: %s", path, why);
    name = malloc(PIECE_MOST);
    tess_status status = name ? add_pieces(t, name) : tess_fail(TESS_E_NOMEM, "%s: no memory", path);
    free(name);
    if (status == TESS_OK && sentence_model_begin(t->model) >= 0)
        status = token_list_add(&t->before, &(int32_t){ sentence_model_begin(t->model) }, 1);
    return status;
}

int32_t tokenizer_model_end(const tokenizer *t) {
    return t->model ? sentence_model_end(t->model) : -1;
}

static int take(void *user, const int32_t *ids, size_t n) {
    return token_list_add(user, ids, n) == TESS_OK;
}

tess_status tokenizer_model_encode(const tokenizer *t, const char *text, size_t bytes, token_list *out) {
    if (sentence_model_encode(t->model, text, bytes, take, out))
        return TESS_OK;
    return tess_fail(TESS_E_NOMEM, "no memory for the tokens of %zu bytes", bytes);
}

void tokenizer_model_close(tokenizer *t) {
    sentence_model_destroy(t->model);
}
#else
tess_status tokenizer_read_model(const char *path, tokenizer *t) {
    (void)t;
    return tess_fail(TESS_E_UNSUPPORTED,
                     "%s: this build reads no sentencepiece models: sentencepiece_processor.h was not found "
                     "(libsentencepiece-dev)",
                     path);
}

int32_t tokenizer_model_end(const tokenizer *t) {
    (void)t;
    return -1;
}

tess_status tokenizer_model_encode(const tokenizer *t, const char *text, size_t bytes, token_list *out) {
    (void)t, (void)text, (void)bytes, (void)out;
    return tess_fail(TESS_E_UNSUPPORTED, "this build reads no sentencepiece models");
}

void tokenizer_model_close(tokenizer *t) {
    (void)t;
}
#endif

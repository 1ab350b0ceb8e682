/* SPDX-License-Identifier: BSD-3-Clause */
#include "tokenizer.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tokenizer_state.h"
#include "tools/support/json_fields.h"
#include "tools/support/json_file.h"
#include "utf8.h"
#include "tools/support/say.h"

struct tokenizer_encoder {
    const tokenizer *t;
    bpe *pairs;
    split_state *state;
    char *repaired, *blanked;
    size_t room, blanked_room;
    const char *begin; /* where the current text begins */
    token_list *out;
};

/* ---- which token ends a document --------------------------------------------------------------------- */
/* eos_token is a name, or an object whose "content" is the name. */
static int32_t end_by_name(const tokenizer *t, const json_fields *f) {
    char name[256];
    json_fields *token = malloc(sizeof *token);
    int found =
        json_fields_text(f, "eos_token", name, sizeof name) ||
        (token && json_fields_object(f, "eos_token", token) && json_fields_text(token, "content", name, sizeof name));
    free(token);
    return found ? tokenizer_added(t, name) : -1;
}

/* eos_token_id is a number, or a list of which the first counts. */
static int32_t end_by_number(const tokenizer *t, const json_fields *f) {
    json_in s;
    uint64_t id;
    if (!json_fields_at(f, "eos_token_id", &s))
        return -1;
    json_in_if(&s, '[');
    return json_in_uint(&s, &id) && id < (uint64_t)t->v.n ? (int32_t)id : -1;
}

/* A tokenizer.model begins texts with its first token unless this file says add_bos_token: false. */
static void read_ends(tokenizer *t, const json_fields *f) {
    int begins = 1;
    t->end = end_by_name(t, f) >= 0 ? end_by_name(t, f) : end_by_number(t, f);
    if (t->model && json_fields_bool(f, "add_bos_token", &begins) && !begins)
        t->before.n = 0;
}

static tess_status find_end_in(tokenizer *t, const char *folder, const char *file) {
    char path[2 * PATH_MAX], *text;
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    if (access(path, F_OK) != 0)
        return TESS_OK;
    TRY(json_file_read(path, 16 << 20, &text, &bytes));
    json_fields *f = malloc(sizeof *f);
    if (f && json_fields_read(f, text, bytes))
        read_ends(t, f);
    free(f);
    free(text);
    return TESS_OK;
}

static tess_status find_end(tokenizer *t, const char *folder) {
    static const char *const files[] = { "tokenizer_config.json", "config.json", "generation_config.json" };
    for (size_t i = 0; i < sizeof files / sizeof files[0] && t->end < 0; i++)
        TRY(find_end_in(t, folder, files[i]));
    return TESS_OK;
}

/* ---- open and close ---------------------------------------------------------------------------------- */
static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int is_model(const char *path) {
    size_t n = strlen(path);
    return n > 6 && strcmp(path + n - 6, ".model") == 0;
}

int tokenizer_reads(const char *path) {
    return strcmp(name_of(path), "tokenizer.json") == 0 || is_model(path);
}

/* Sets the tokenizer's file, and the folder whose other files name the end token. */
static tess_status find_files(const char *path, char file[PATH_MAX], char folder[PATH_MAX]) {
    struct stat st;
    int is_folder = stat(path, &st) != 0 || S_ISDIR(st.st_mode), before = (int)(name_of(path) - path);
    int n = snprintf(folder, PATH_MAX, "%.*s", is_folder ? (int)strlen(path) : before, path);
    int m = snprintf(file, PATH_MAX, is_folder ? "%s/tokenizer.json" : "%s", path);
    if (n >= PATH_MAX || m >= PATH_MAX)
        return tess_fail(TESS_E_DATA, "%.60s…: the path is too long", path);
    if (n == 0)
        strcpy(folder, ".");
    if (is_folder && access(file, F_OK) != 0 && m < PATH_MAX - 1) {
        char model[PATH_MAX];
        memcpy(model, file, (size_t)m + 1);
        strcpy(model + m - 4, "model");
        if (access(model, F_OK) == 0)
            strcpy(file, model);
    }
    return TESS_OK;
}

tess_status tokenizer_open(const char *path, tokenizer **out) {
    char file[PATH_MAX], folder[PATH_MAX];
    tess_status status = find_files(path, file, folder);
    if (status != TESS_OK)
        return status;
    tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return tess_fail(TESS_E_NOMEM, "%s: no memory", file);
    t->end = -1;
    status = is_model(file) ? tokenizer_read_model(file, t) : tokenizer_read(file, t);
    if (status == TESS_OK)
        status = find_end(t, folder);
    t->end = t->end < 0 ? tokenizer_model_end(t) : t->end;
    if (status == TESS_OK)
        *out = t;
    else
        tokenizer_close(t);
    return status;
}

void tokenizer_close(tokenizer *t) {
    if (!t)
        return;
    for (int32_t i = 0; i < t->n_added; i++)
        free(t->added[i].name);
    free(t->added);
    vocabulary_free(&t->v);
    splitter_free(&t->words);
    tokenizer_model_close(t);
    token_list_free(&t->before);
    token_list_free(&t->after);
    free(t);
}

int32_t tokenizer_size(const tokenizer *t) {
    return t->v.n;
}

int32_t tokenizer_end(const tokenizer *t) {
    return t->end;
}

const char *tokenizer_text(const tokenizer *t, int32_t id, size_t *bytes) {
    *bytes = 0;
    if (id < 0 || id >= t->v.n || !t->v.tokens[id].is_known)
        return "";
    *bytes = t->v.tokens[id].bytes;
    return t->v.pool + t->v.tokens[id].at;
}

tokenizer_encoder *tokenizer_encoder_create(const tokenizer *t) {
    tokenizer_encoder *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    *e = (tokenizer_encoder){ .t = t,
                              .pairs = bpe_create(&t->v, t->whole_words, t->characters),
                              .state = split_state_create() };
    if (e->pairs && (e->state || t->words.n == 0))
        return e;
    tokenizer_encoder_free(e);
    return NULL;
}

void tokenizer_encoder_free(tokenizer_encoder *e) {
    if (!e)
        return;
    bpe_free(e->pairs);
    split_state_free(e->state);
    free(e->repaired);
    free(e->blanked);
    free(e);
}

/* ---- added tokens, anywhere in a text ----------------------------------------------------------------- */
/* Returns the longest added token that begins at `at`, or null. */
static const added_token *added_at(const tokenizer *t, int normalized, const char *text, size_t bytes, size_t at) {
    int first = (unsigned char)text[at];
    for (int32_t i = t->added_from[first]; i < t->added_from[first + 1]; i++) {
        const added_token *a = &t->added[i];
        if (a->is_normalized == normalized && a->bytes <= bytes - at && memcmp(text + at, a->name, a->bytes) == 0)
            return a;
    }
    return NULL;
}

static size_t spaces_behind(const char *text, size_t from, size_t bytes) {
    size_t broken;
    while (from < bytes) {
        size_t n = utf8_length((const unsigned char *)text + from, bytes - from, &broken);
        if (n == 0 || !utf8_is_space(utf8_code((const unsigned char *)text + from, n)))
            break;
        from += n;
    }
    return from;
}

static size_t spaces_before(const char *text, size_t least, size_t at) {
    while (at > least) {
        size_t begin = at - 1;
        while (begin > least && ((unsigned char)text[begin] & 0xc0) == 0x80)
            begin--;
        if (!utf8_is_space(utf8_code((const unsigned char *)text + begin, at - begin)))
            break;
        at = begin;
    }
    return at;
}

typedef tess_status (*rest_fn)(tokenizer_encoder *, const char *text, size_t bytes);

/* Appends the added tokens of one kind and passes the text between them to `rest`. It still searches white space that a
 * token absorbs, because another may begin there. It drops a token whose text is all absorbed. */
static tess_status around_added(tokenizer_encoder *e, int normalized, const char *text, size_t bytes, rest_fn rest) {
    size_t done = 0, at = 0;
    while (at < bytes) {
        const added_token *a = added_at(e->t, normalized, text, bytes, at);
        if (!a) {
            at++;
            continue;
        }
        size_t from = !a->takes_left ? at : at > done ? spaces_before(text, done, at) : done;
        at += a->bytes;
        if (from > done)
            TRY(rest(e, text + done, from - done));
        done = a->takes_right ? spaces_behind(text, at, bytes) : at;
        if (from < done)
            TRY(token_list_add(e->out, &a->id, 1));
    }
    return done < bytes ? rest(e, text + done, bytes - done) : TESS_OK;
}

/* ---- a text ------------------------------------------------------------------------------------------ */
static tess_status encode_word(const char *word, size_t bytes, void *user) {
    tokenizer_encoder *e = user;
    return bpe_encode(e->pairs, word, bytes, e->out);
}

/* Cuts the text into words of characters where no merge crosses, so that bpe_encode gets short words. */
static tess_status encode_pieces(tokenizer_encoder *e, const char *text, size_t bytes) {
    const tokenizer *t = e->t;
    size_t from = 0;
    if (!t->splits_at_blanks && (t->crosses_words || t->whole_words))
        return bpe_encode(e->pairs, text, bytes, e->out);
    for (size_t at = 1; at <= bytes; at++)
        if (at == bytes || (text[at] == ' ' && (t->splits_at_blanks || text[at - 1] != ' '))) {
            TRY(bpe_encode(e->pairs, text + from, at - from, e->out));
            from = at;
        }
    return TESS_OK;
}

/* Metaspace writes U+2581 for blanks and puts one before the text. The vocabulary here has blanks, so this turns U+2581
 * into blanks instead. */
static tess_status encode_metaspace(tokenizer_encoder *e, const char *text, size_t bytes) {
    if (e->blanked_room < bytes + 1) {
        char *bigger = realloc(e->blanked, bytes + 1);
        if (!bigger)
            return tess_fail(TESS_E_NOMEM, "no memory for a text of %zu bytes", bytes);
        e->blanked = bigger, e->blanked_room = bytes + 1;
    }
    size_t n = tokenizer_blanks(text, bytes, e->blanked + 1);
    int puts = e->t->puts_blank == PUTS_MISSING || (e->t->puts_blank == PUTS_FIRST && text == e->begin);
    int put = puts && e->blanked[1] != ' ';
    e->blanked[0] = ' ';
    return encode_pieces(e, e->blanked + !put, n + (size_t)put);
}

static tess_status encode_words(tokenizer_encoder *e, const char *text, size_t bytes) {
    if (e->t->blanks == BLANKS_METASPACE)
        return encode_metaspace(e, text, bytes);
    if (e->t->characters)
        return encode_pieces(e, text, bytes);
    return split_words(&e->t->words, e->state, text, bytes, encode_word, e);
}

static tess_status encode_normalized(tokenizer_encoder *e, const char *text, size_t bytes) {
    return around_added(e, 1, text, bytes, encode_words);
}

static tess_status encode_rest(tokenizer_encoder *e, const char *text, size_t bytes) {
    char *composed = NULL;
    if (!e->t->composes && e->t->blanks != BLANKS_NORMALIZER)
        return encode_normalized(e, text, bytes);
    tess_status status = tokenizer_normalize(e->t, 1, text, bytes, &composed, &bytes);
    if (status != TESS_OK)
        return status;
    status = encode_normalized(e, composed, bytes);
    free(composed);
    return status;
}

static tess_status repair(tokenizer_encoder *e, const char **text, size_t *bytes) {
    if (utf8_is_whole(*text, *bytes))
        return TESS_OK;
    if (e->room < 3 * *bytes) {
        char *bigger = realloc(e->repaired, 3 * *bytes);
        if (!bigger)
            return tess_fail(TESS_E_NOMEM, "no memory for a text of %zu bytes", *bytes);
        e->repaired = bigger, e->room = 3 * *bytes;
    }
    *bytes = utf8_repair(*text, *bytes, e->repaired);
    *text = e->repaired;
    return TESS_OK;
}

tess_status tokenizer_encode(tokenizer_encoder *e, const char *text, size_t bytes, int whole, token_list *out) {
    e->out = out;
    TRY(repair(e, &text, &bytes));
    e->begin = text;
    if (whole)
        TRY(token_list_add(out, e->t->before.ids, e->t->before.n));
    TRY(e->t->model ? tokenizer_model_encode(e->t, text, bytes, out) : around_added(e, 0, text, bytes, encode_rest));
    return whole ? token_list_add(out, e->t->after.ids, e->t->after.n) : TESS_OK;
}

tess_status tokenizer_encode_document(tokenizer_encoder *e, const char *text, size_t bytes, int32_t end,
                                      token_list *out) {
    TRY(tokenizer_encode(e, text, bytes, 1, out));
    int has_end = out->n > 0 && out->ids[out->n - 1] == end;
    return end >= 0 && !has_end ? token_list_add(out, &end, 1) : TESS_OK;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads tokenizer.json as the Hugging Face tokenizers library writes it. It refuses by name each setting that would
 * change the tokens and is not supported. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer_state.h"
#include "tools/support/json_fields.h"
#include "tools/support/json_file.h"
#include "tools/support/say.h"
#include "utf8.h"

enum { FILE_MOST = 64 << 20, TOKEN_MOST = 1 << 16, PATTERN_MOST = 8192, DEPTH_MOST = 4 };

typedef struct {
    const char *path;
    tokenizer *t;
    json_fields top, model;
    char *token, *other; /* TOKEN_MOST bytes each */
    int has_bytes;       /* a ByteLevel was read */
    int has_template;
    int32_t n_tokens; /* tokens of the model, without added ones */
    int32_t next;     /* number that the Hugging Face tokenizers would give a new added token */
} reading;

static tess_status refuse(const reading *r, const char *part, const char *what) {
    return tess_fail(TESS_E_DATA,
                     "%s: %s '%.60s' is not read here: only BPE, of bytes as GPT-2, Llama 3 and Qwen have it, or with "
                     "byte_fallback as Llama 2, Mistral and Gemma",
                     r->path, part, what);
}

static tess_status bad(const reading *r, const char *what) {
    return tess_fail(TESS_E_DATA, "%s: %s", r->path, what);
}

static tess_status bad_kind(const reading *r, const char *key, const char *expected) {
    return tess_fail(TESS_E_DATA, "%s: its %s is not %s", r->path, key, expected);
}

/* ---- values ------------------------------------------------------------------------------------------ */
static tess_status bad_at(const reading *r, const json_in *s) {
    return json_file_bad(r->path, s);
}

/* Reads the next element of an array, or value of an object, as fields. */
static int next_object(json_in *s, json_fields *out) {
    size_t start = s->at;
    if (!json_in_skip(s))
        return 0;
    return json_fields_read(out, s->text + start, s->at - start);
}

static int is_true(const json_fields *f, const char *key) {
    int on = 0;
    return json_fields_bool(f, key, &on) && on;
}

typedef tess_status (*element_fn)(reading *, const json_fields *, int depth);

/* Calls `fn` with each object of the array `key`. A missing array counts as empty. */
static tess_status each_object(reading *r, const json_fields *f, const char *key, int depth, element_fn fn) {
    json_in s;
    json_fields *element = malloc(sizeof *element);
    tess_status status = element ? TESS_OK : tess_fail(TESS_E_NOMEM, "%s: no memory", r->path);
    int is_there = status == TESS_OK && json_fields_has(f, key) && json_fields_at(f, key, &s);
    if (is_there && !json_in_if(&s, '['))
        status = bad_kind(r, key, "a list");
    else if (is_there && !json_in_if(&s, ']'))
        do
            status = next_object(&s, element) ? fn(r, element, depth) : bad(r, "a list of objects has something else");
        while (status == TESS_OK && json_in_if(&s, ','));
    free(element);
    return status;
}

/* ---- the alphabet: a printable character for each byte (GPT-2's bytes_to_unicode) ---------------------- */
static int stands_for_itself(uint32_t c) {
    return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255);
}

static int byte_of(uint32_t code) {
    int other = (int)code - 256; /* index among bytes 0 to 32, 127 to 160 and 173, which do not stand for themselves */
    if (other < 0)
        return stands_for_itself(code) ? (int)code : -1;
    return other < 33 ? other : other < 67 ? other + 94 : other == 67 ? 173 : -1;
}

static int is_of_alphabet(const char *text, size_t bytes) {
    for (size_t at = 0, length, broken; at < bytes; at += length) {
        length = utf8_length((const unsigned char *)text + at, bytes - at, &broken);
        if (length == 0 || byte_of(utf8_code((const unsigned char *)text + at, length)) < 0)
            return 0;
    }
    return 1;
}

/* Replaces characters of the alphabet by their bytes in place. Returns 0 and leaves the text if any is not of the
 * alphabet. */
static int to_bytes(char *text, size_t *bytes) {
    size_t n = 0;
    if (!is_of_alphabet(text, *bytes))
        return 0;
    for (size_t at = 0, length, broken; at < *bytes; at += length) {
        length = utf8_length((unsigned char *)text + at, *bytes - at, &broken);
        text[n++] = (char)byte_of(utf8_code((unsigned char *)text + at, length));
    }
    *bytes = n;
    return 1;
}

/* ---- words of characters: U+2581 for a blank, <0x0A> for a byte ----------------------------------------- */
static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int tokenizer_to_characters(char *text, size_t *bytes) {
    if (*bytes == 6 && strncmp(text, "<0x", 3) == 0 && hex(text[3]) >= 0 && hex(text[4]) >= 0 && text[5] == '>') {
        text[0] = (char)(16 * hex(text[3]) + hex(text[4]));
        *bytes = 1;
        return VOCABULARY_BYTE;
    }
    if (memchr(text, ' ', *bytes)) /* no text matches it, since the file has U+2581 for blanks */
        return VOCABULARY_NAME;
    *bytes = tokenizer_blanks(text, *bytes, text);
    return VOCABULARY_WORD;
}

/* Converts a token in place to the bytes that the vocabulary holds, and returns its kind. */
static int to_token(const reading *r, char *text, size_t *bytes) {
    if (r->t->characters)
        return tokenizer_to_characters(text, bytes);
    return to_bytes(text, bytes) ? VOCABULARY_WORD : VOCABULARY_NAME;
}

/* ---- the model --------------------------------------------------------------------------------------- */
static tess_status add_token(reading *r, uint64_t id, const char *text, size_t bytes, int kind) {
    if (id >= VOCABULARY_MOST)
        return tess_fail(TESS_E_DATA, "%s: token %" PRIu64 ", expected 0 to %d", r->path, id, VOCABULARY_MOST - 1);
    if (vocabulary_knows(&r->t->v, (int32_t)id))
        return tess_fail(TESS_E_DATA, "%s: two tokens have the number %" PRIu64, r->path, id);
    return vocabulary_add(&r->t->v, (int32_t)id, text, bytes, kind);
}

/* No word gives a token outside the alphabet. Such a token is an added one or never used. */
static tess_status read_token(reading *r, json_in *s) {
    uint64_t id;
    if (!json_in_string(s, r->token, TOKEN_MOST) || !json_in_char(s, ':') || !json_in_uint(s, &id))
        return bad_at(r, s);
    size_t bytes = strlen(r->token);
    int kind = to_token(r, r->token, &bytes);
    r->n_tokens++;
    return add_token(r, id, r->token, bytes, kind);
}

static tess_status read_vocabulary(reading *r) {
    json_in s;
    if (!json_fields_at(&r->model, "vocab", &s) || !json_in_if(&s, '{'))
        return bad(r, "its model has no vocab");
    if (!json_in_if(&s, '}'))
        do {
            TRY(read_token(r, &s));
            if (s.at < s.bytes && !strchr(",} \t\r\n", s.text[s.at]))
                return bad_at(r, &s); /* a fraction such as 1.5 */
        } while (json_in_if(&s, ','));
    r->next = r->n_tokens;
    return TESS_OK;
}

/* A merge is two words with a blank between them, or a list of two. */
static tess_status read_pair(reading *r, json_in *s) {
    if (json_in_if(s, '['))
        return json_in_string(s, r->token, TOKEN_MOST) && json_in_char(s, ',') &&
                       json_in_string(s, r->other, TOKEN_MOST) && json_in_char(s, ']')
                   ? TESS_OK
                   : bad_at(r, s);
    if (!json_in_string(s, r->token, TOKEN_MOST))
        return bad_at(r, s);
    char *blank = strchr(r->token, ' ');
    if (!blank)
        return tess_fail(TESS_E_DATA, "%s: merge '%.60s' is not of two tokens", r->path, r->token);
    *blank = '\0';
    memmove(r->other, blank + 1, strlen(blank + 1) + 1);
    return TESS_OK;
}

static tess_status read_merge(reading *r, json_in *s, int32_t rank) {
    TRY(read_pair(r, s));
    vocabulary *v = &r->t->v;
    size_t n = strlen(r->token), m = strlen(r->other);
    int known = to_token(r, r->token, &n) == VOCABULARY_WORD && to_token(r, r->other, &m) == VOCABULARY_WORD &&
                n + m < TOKEN_MOST;
    int32_t left = known ? vocabulary_find(v, r->token, n, 0) : -1,
            right = known ? vocabulary_find(v, r->other, m, 0) : -1;
    if (known)
        memcpy(r->token + n, r->other, m);
    int32_t both = known ? vocabulary_find(v, r->token, n + m, 0) : -1;
    if (left < 0 || right < 0 || both < 0)
        return tess_fail(TESS_E_DATA, "%s: merge %d has or makes what is no token", r->path, rank);
    vocabulary_add_merge(v, rank, left, right, both);
    for (size_t i = 1; i < n + m && !r->t->crosses_words; i++)
        r->t->crosses_words = r->token[i] == ' ' && r->token[i - 1] != ' ';
    return TESS_OK;
}

static int count_elements(json_in s, int32_t *n) {
    *n = 0;
    if (json_in_if(&s, ']'))
        return 1;
    do
        if (++*n == VOCABULARY_MOST || !json_in_skip(&s))
            return 0;
    while (json_in_if(&s, ','));
    return json_in_if(&s, ']');
}

static tess_status read_merges(reading *r) {
    json_in s;
    int32_t n;
    if (!json_fields_at(&r->model, "merges", &s) || !json_in_if(&s, '[') || !count_elements(s, &n))
        return bad(r, "its model has no list of merges");
    TRY(vocabulary_index(&r->t->v, (uint64_t)n, r->t->characters ? VOCABULARY_BYTE : VOCABULARY_WORD));
    for (int32_t rank = 0; rank < n; rank++) {
        TRY(read_merge(r, &s, rank));
        json_in_if(&s, ',');
    }
    for (int byte = 0; byte < 256; byte++)
        if (r->t->v.bytes[byte] < 0)
            return tess_fail(TESS_E_DATA, "%s: byte %d has no token, so that some text would have none", r->path, byte);
    return TESS_OK;
}

static tess_status check_model(reading *r) {
    static const char *const must_be_empty[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    char text[64] = "BPE";
    json_fields_text(&r->model, "type", text, sizeof text);
    if (strcmp(text, "BPE") != 0)
        return refuse(r, "the model", text);
    if (is_true(&r->model, "byte_fallback") != r->t->characters)
        return refuse(r, r->t->characters ? "a model without" : "the model's", "byte_fallback");
    if (json_fields_has(&r->model, "dropout"))
        return refuse(r, "the model's", "dropout");
    for (size_t i = 0; i < sizeof must_be_empty / sizeof must_be_empty[0]; i++)
        if (json_fields_has(&r->model, must_be_empty[i]) &&
            (!json_fields_text(&r->model, must_be_empty[i], text, sizeof text) || text[0]))
            return refuse(r, "the model's", must_be_empty[i]);
    r->t->whole_words = is_true(&r->model, "ignore_merges");
    return TESS_OK;
}

static tess_status read_model(reading *r) {
    if (!json_fields_object(&r->top, "model", &r->model))
        return bad(r, "it has no model");
    TRY(check_model(r));
    TRY(read_vocabulary(r));
    return read_merges(r);
}

/* ---- before the words -------------------------------------------------------------------------------- */
static void type_of(const json_fields *f, char out[64]) {
    strcpy(out, "?");
    json_fields_text(f, "type", out, 64);
}

static const char blank_mark[] = "\xe2\x96\x81";

static int has_text(const json_fields *f, const char *key, const char *expected) {
    char text[64];
    return json_fields_text(f, key, text, sizeof text) && strcmp(text, expected) == 0;
}

/* Returns 1 if the Replace puts U+2581 for each blank. */
static int replaces_blanks(const json_fields *f) {
    json_fields *pattern = malloc(sizeof *pattern);
    int does = pattern && has_text(f, "content", blank_mark) && json_fields_object(f, "pattern", pattern) &&
               has_text(pattern, "String", " ");
    free(pattern);
    return does;
}

static tess_status use_blanks(reading *r, int who, const char *what) {
    if (r->t->composes || r->has_bytes || (r->t->blanks && r->t->blanks != who))
        return refuse(r, "beside others", what);
    r->t->blanks = who;
    r->t->characters = 1;
    return TESS_OK;
}

static tess_status read_normalizer(reading *r, const json_fields *f, int depth) {
    char type[64];
    type_of(f, type);
    if (strcmp(type, "Sequence") == 0 && depth < DEPTH_MOST)
        return each_object(r, f, "normalizers", depth + 1, read_normalizer);
    if (strcmp(type, "Prepend") == 0 && has_text(f, "prepend", blank_mark) && !r->t->puts_blank) {
        r->t->puts_blank = PUTS_ALWAYS;
        return TESS_OK;
    }
    if (strcmp(type, "Replace") == 0 && replaces_blanks(f))
        return use_blanks(r, BLANKS_NORMALIZER, type);
    if (strcmp(type, "NFC") != 0 || r->t->characters)
        return refuse(r, "the normalizer", type);
#ifndef TESSERA_HAVE_UTF8PROC
    return tess_fail(TESS_E_UNSUPPORTED, "%s: this build has no NFC: utf8proc.h was not found (libutf8proc-dev)",
                     r->path);
#endif
    r->t->composes = 1;
    return TESS_OK;
}

static tess_status add_literal(reading *r, const char *text) {
    char pattern[2 * PATTERN_MOST];
    size_t n = 0;
    for (; *text; text++) {
        if (strchr("\\^$.|?*+()[]{}", *text))
            pattern[n++] = '\\';
        pattern[n++] = *text;
    }
    pattern[n] = '\0';
    return splitter_add(&r->t->words, SPLIT_ISOLATED, pattern);
}

static tess_status read_split(reading *r, const json_fields *f) {
    json_fields *pattern = malloc(sizeof *pattern);
    char behavior[64] = "", *text = malloc(PATTERN_MOST);
    tess_status status = pattern && text ? TESS_OK : tess_fail(TESS_E_NOMEM, "%s: no memory", r->path);
    json_fields_text(f, "behavior", behavior, sizeof behavior);
    int only = strcmp(behavior, "Removed") == 0 && is_true(f, "invert");
    if (status == TESS_OK && !only && strcmp(behavior, "Isolated") != 0)
        status = refuse(r, "Split with the behavior", behavior);
    else if (status == TESS_OK && !json_fields_object(f, "pattern", pattern))
        status = bad(r, "a Split has no pattern");
    if (status == TESS_OK && json_fields_text(pattern, "Regex", text, PATTERN_MOST))
        status = splitter_add(&r->t->words, only ? SPLIT_MATCHES_ONLY : SPLIT_ISOLATED, text);
    else if (status == TESS_OK && !only && json_fields_text(pattern, "String", text, PATTERN_MOST))
        status = add_literal(r, text);
    else if (status == TESS_OK)
        status = bad(r, "a Split's pattern is not read here");
    free(pattern);
    free(text);
    return status;
}

static tess_status read_byte_level(reading *r, const json_fields *f) {
    int by_regex = 1;
    json_fields_bool(f, "use_regex", &by_regex);
    r->has_bytes = 1;
    if (is_true(f, "add_prefix_space"))
        TRY(splitter_add(&r->t->words, SPLIT_PREFIX_SPACE, NULL));
    return by_regex ? splitter_add(&r->t->words, SPLIT_ISOLATED, split_gpt2) : TESS_OK;
}

static tess_status read_metaspace(reading *r, const json_fields *f) {
    char scheme[16] = "always";
    int adds = 1, splits = 1;
    json_fields_text(f, "prepend_scheme", scheme, sizeof scheme);
    json_fields_bool(f, "add_prefix_space", &adds);
    json_fields_bool(f, "split", &splits);
    int never = strcmp(scheme, "never") == 0 || !adds, first = strcmp(scheme, "first") == 0;
    if (!has_text(f, "replacement", blank_mark) || r->t->puts_blank || r->t->words.n > 0 ||
        (!never && !first && strcmp(scheme, "always") != 0))
        return refuse(r, "with these members the pre_tokenizer", "Metaspace");
    r->t->puts_blank = never ? PUTS_NEVER : first ? PUTS_FIRST : PUTS_MISSING;
    r->t->splits_at_blanks = splits;
    return use_blanks(r, BLANKS_METASPACE, "Metaspace");
}

/* Gemma's Split at blanks does nothing, because its normalizer has left no blank. */
static tess_status read_no_split(reading *r, const json_fields *f) {
    json_fields *pattern = malloc(sizeof *pattern);
    int is_blank = pattern && json_fields_object(f, "pattern", pattern) && has_text(pattern, "String", " ");
    free(pattern);
    return is_blank ? TESS_OK : refuse(r, "behind a Replace the pre_tokenizer", "Split");
}

static tess_status read_words(reading *r, const json_fields *f, int depth) {
    char type[64];
    type_of(f, type);
    if (strcmp(type, "Sequence") == 0 && depth < DEPTH_MOST)
        return each_object(r, f, "pretokenizers", depth + 1, read_words);
    if (r->has_bytes) /* it would see the characters that stand for bytes */
        return refuse(r, "behind ByteLevel the pre_tokenizer", type);
    if (r->t->blanks == BLANKS_NONE && strcmp(type, "Metaspace") == 0)
        return read_metaspace(r, f);
    if (r->t->blanks == BLANKS_NORMALIZER && strcmp(type, "Split") == 0)
        return read_no_split(r, f);
    if (r->t->blanks)
        return refuse(r, "with U+2581 for blanks the pre_tokenizer", type);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(r, f);
    if (strcmp(type, "Split") == 0)
        return read_split(r, f);
    if (strcmp(type, "Digits") == 0)
        return splitter_add(&r->t->words, SPLIT_ISOLATED, is_true(f, "individual_digits") ? "\\p{N}" : "\\p{N}+");
    return refuse(r, "the pre_tokenizer", type);
}

/* ---- behind the words -------------------------------------------------------------------------------- */
typedef struct {
    json_fields of_template, element, one, all;
    token_list *to; /* t->before until the text's place is read, then t->after */
} templating;

/* Appends the numbers of a special token. The template names it and a list beside gives the numbers. */
static tess_status add_special(reading *r, templating *t) {
    json_in ids;
    char name[256];
    uint64_t id;
    if (!json_fields_object(&t->element, "SpecialToken", &t->one) ||
        !json_fields_text(&t->one, "id", name, sizeof name) ||
        !json_fields_object(&t->of_template, "special_tokens", &t->all) ||
        !json_fields_object(&t->all, name, &t->one) || !json_fields_at(&t->one, "ids", &ids) || !json_in_if(&ids, '['))
        return bad(r, "a TemplateProcessing's special token is not read here");
    if (json_in_if(&ids, ']'))
        return TESS_OK;
    do {
        if (!json_in_uint(&ids, &id))
            return bad_at(r, &ids);
        if (id >= VOCABULARY_MOST)
            return tess_fail(TESS_E_DATA, "%s: a TemplateProcessing has token %" PRIu64, r->path, id);
        TRY(token_list_add(t->to, &(int32_t){ (int32_t)id }, 1));
    } while (json_in_if(&ids, ','));
    return json_in_char(&ids, ']') ? TESS_OK : bad_at(r, &ids);
}

static tess_status read_piece(reading *r, templating *t) {
    if (!json_fields_has(&t->element, "Sequence"))
        return add_special(r, t);
    if (t->to == &r->t->after)
        return bad(r, "a TemplateProcessing has the text twice");
    t->to = &r->t->after;
    return TESS_OK;
}

static tess_status read_single(reading *r, templating *t) {
    json_in s;
    if (!json_fields_at(&t->of_template, "single", &s) || !json_in_if(&s, '['))
        return bad(r, "a TemplateProcessing has no single");
    while (!json_in_if(&s, ']')) {
        if (!next_object(&s, &t->element))
            return bad(r, "a TemplateProcessing's single is not read here");
        TRY(read_piece(r, t));
        json_in_if(&s, ',');
    }
    return t->to == &r->t->after ? TESS_OK : bad(r, "a TemplateProcessing has no place for the text");
}

static tess_status read_template(reading *r, const json_fields *f) {
    templating *t = calloc(1, sizeof *t);
    if (!t)
        return tess_fail(TESS_E_NOMEM, "%s: no memory", r->path);
    t->of_template = *f;
    t->to = &r->t->before;
    tess_status status = r->has_template ? bad(r, "it has two TemplateProcessings") : read_single(r, t);
    r->has_template = 1;
    free(t);
    return status;
}

/* Runs after the added tokens are read, because the template may use them. */
static tess_status check_template(const reading *r) {
    const token_list *lists[] = { &r->t->before, &r->t->after };
    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < lists[i]->n; j++)
            if (!vocabulary_knows(&r->t->v, lists[i]->ids[j]))
                return tess_fail(TESS_E_DATA, "%s: a TemplateProcessing has token %d, which there is not", r->path,
                                 lists[i]->ids[j]);
    return TESS_OK;
}

static tess_status read_processor(reading *r, const json_fields *f, int depth) {
    char type[64];
    type_of(f, type);
    if (strcmp(type, "Sequence") == 0 && depth < DEPTH_MOST)
        return each_object(r, f, "processors", depth + 1, read_processor);
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(r, f);
    return strcmp(type, "ByteLevel") == 0 ? TESS_OK : refuse(r, "the post_processor", type);
}

/* ---- added tokens ------------------------------------------------------------------------------------ */
/* The library gives an added token the model's number for that text, else the next one, and ignores the file's. A file
 * with another number is refused. */
static tess_status number_added(reading *r, uint64_t id) {
    size_t bytes = strlen(r->token), n = bytes;
    memcpy(r->other, r->token, bytes);
    int kind = to_token(r, r->other, &n);
    int32_t known = vocabulary_find(&r->t->v, r->other, n, kind), number = known >= 0 ? known : r->next;
    if (id != (uint64_t)number)
        return tess_fail(TESS_E_DATA, "%s: added token '%.60s' has the number %" PRIu64 ", expected %d, the next one",
                         r->path, r->token, id, number);
    r->next = number >= r->next ? number + 1 : r->next;
    return known >= 0 ? TESS_OK : add_token(r, id, r->token, bytes, VOCABULARY_NAME);
}

static tess_status read_added(reading *r, const json_fields *f, int depth) {
    uint64_t id;
    (void)depth;
    if (!json_fields_uint(f, "id", &id) || !json_fields_text(f, "content", r->token, TOKEN_MOST) || !r->token[0])
        return bad(r, "an added token has no id or content");
    if (is_true(f, "single_word"))
        return refuse(r, "an added token's", "single_word");
    TRY(number_added(r, id));
    tokenizer *t = r->t;
    added_token *bigger = realloc(t->added, (size_t)(t->n_added + 1) * sizeof *bigger);
    if (!bigger)
        return tess_fail(TESS_E_NOMEM, "%s: no memory", r->path);
    t->added = bigger;
    added_token *a = &t->added[t->n_added];
    *a = (added_token){ .id = (int32_t)id,
                        .takes_left = is_true(f, "lstrip"),
                        .takes_right = is_true(f, "rstrip"),
                        .is_normalized = is_true(f, "normalized") };
    TRY(tokenizer_normalize(t, a->is_normalized, r->token, strlen(r->token), &a->name, &a->bytes));
    t->n_added++;
    return TESS_OK;
}

static int by_first_byte(const void *a, const void *b) {
    const added_token *x = a, *y = b;
    int first = (unsigned char)x->name[0] - (unsigned char)y->name[0];
    int length = (x->bytes < y->bytes) - (x->bytes > y->bytes);
    return first ? first : length ? length : strcmp(x->name, y->name);
}

static tess_status index_added(const reading *r) {
    tokenizer *t = r->t;
    int32_t at = 0;
    if (t->n_added > 0)
        qsort(t->added, (size_t)t->n_added, sizeof *t->added, by_first_byte);
    for (int32_t i = 1; i < t->n_added; i++)
        if (strcmp(t->added[i - 1].name, t->added[i].name) == 0)
            return tess_fail(TESS_E_DATA, "%s: added token '%.60s' is there twice", r->path, t->added[i].name);
    for (int byte = 0; byte <= 256; byte++) {
        t->added_from[byte] = at;
        while (at < t->n_added && (unsigned char)t->added[at].name[0] == byte)
            at++;
    }
    return TESS_OK;
}

int32_t tokenizer_added(const tokenizer *t, const char *name) {
    for (int32_t i = 0; i < t->n_added; i++)
        if (strcmp(t->added[i].name, name) == 0)
            return t->added[i].id;
    return -1;
}

/* ---- the file ---------------------------------------------------------------------------------------- */
static tess_status read_part(reading *r, const char *key, element_fn fn) {
    json_fields *f = malloc(sizeof *f);
    tess_status status = f ? TESS_OK : tess_fail(TESS_E_NOMEM, "%s: no memory", r->path);
    if (status == TESS_OK && json_fields_has(&r->top, key))
        status = json_fields_object(&r->top, key, f) ? fn(r, f, 0) : bad_kind(r, key, "an object");
    free(f);
    return status;
}

static tess_status read_parts(reading *r) {
    TRY(read_part(r, "normalizer", read_normalizer));
    TRY(read_part(r, "pre_tokenizer", read_words));
    if (r->t->puts_blank && !r->t->blanks)
        return refuse(r, "without a Replace the normalizer", "Prepend");
    if (!r->has_bytes && !r->t->blanks)
        return refuse(r, "a pre_tokenizer without", "ByteLevel");
    TRY(read_model(r));
    TRY(read_part(r, "post_processor", read_processor));
    TRY(each_object(r, &r->top, "added_tokens", 0, read_added));
    TRY(check_template(r));
    return index_added(r);
}

tess_status tokenizer_read(const char *path, tokenizer *t) {
    char *text;
    size_t bytes;
    tess_status status = json_file_read(path, FILE_MOST, &text, &bytes);
    if (status != TESS_OK)
        return status;
    reading *r = calloc(1, sizeof *r);
    char *room = malloc((size_t)2 * TOKEN_MOST);
    if (!r || !room)
        status = tess_fail(TESS_E_NOMEM, "%s: no memory", path);
    else {
        *r = (reading){ .path = path, .t = t, .token = room, .other = room + TOKEN_MOST };
        if (!utf8_is_whole(text, bytes)) /* splitting such text could cut a character */
            status = bad(r, "it is not UTF-8");
        else if (json_fields_read(&r->top, text, bytes))
            status = read_parts(r);
        else
            status = tess_fail(TESS_E_DATA, "%s: offset %zu: expected %s", path, r->top.wrong_at, r->top.expected);
    }
    free(r);
    free(room);
    free(text);
    return status;
}

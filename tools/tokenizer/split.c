/* SPDX-License-Identifier: BSD-3-Clause */
#include "split.h"

#include <stdlib.h>
#include <string.h>

#include "tools/support/say.h"

const char split_gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

#ifdef TESSERA_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { STACK_LEAST = 32 << 10, STACK_MOST = 8 << 20 };

struct split_state {
    pcre2_match_data *found;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    char *blanked; /* copy of a piece with a blank in front */
    size_t room;
};

/* It replaces PCRE2's \s, which has U+180E. Unicode removed that from White_Space. */
static const char space_class[] = "\\p{Z}\\t-\\r\\x{85}";

typedef struct {
    char *text;
    size_t n, room;
} pattern_text;

static void put(pattern_text *t, const char *text, size_t n) {
    if (t->n + n < t->room)
        memcpy(t->text + t->n, text, n + 1);
    t->n += n;
}

static int is_alphanumeric(char c) {
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

/* Returns 1 if PCRE2 reads the element at `at` as Oniguruma does, the library of the Hugging Face tokenizers. The two
 * differ in \w, \h, {1,3}+ and nested brackets. A \S within brackets has no replacement. */
static int is_read_alike(const char *at, int brackets) {
    static const char *const groups[] = { "(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>" };
    if (at[0] == '\\')
        return !is_alphanumeric(at[1]) || strchr(brackets ? "dDfnpPrst" : "dDfnpPrstS", at[1]);
    if (brackets)
        return at[0] != '[' && strncmp(at, "&&", 2) != 0;
    if (at[0] == '[')
        return at[1] != ']' && strncmp(at, "[^]", 3) != 0;
    if (((at[0] >= '0' && at[0] <= '9') || at[0] == ',') && at[1] == '}')
        return at[2] != '+' && at[2] != '?';
    int found = strncmp(at, "(*", 2) != 0 && strncmp(at, "(?", 2) != 0;
    for (size_t i = 0; i < sizeof groups / sizeof groups[0] && !found; i++)
        found = strncmp(at, groups[i], strlen(groups[i])) == 0;
    return found;
}

/* Copies the pattern with White_Space for \s. Returns null, or the first element that PCRE2 would read differently. */
static const char *spell_out(const char *from, pattern_text *out) {
    int brackets = 0;
    for (; *from; from++) {
        if (!is_read_alike(from, brackets))
            return from;
        int escapes = from[0] == '\\' && from[1];
        if (escapes && from[1] == 's') {
            put(out, "[", brackets ? 0 : 1);
            put(out, space_class, sizeof space_class - 1);
            put(out, "]", brackets ? 0 : 1);
        } else if (escapes && from[1] == 'S') {
            put(out, "[^", 2);
            put(out, space_class, sizeof space_class - 1);
            put(out, "]", 1);
        } else {
            put(out, from, escapes ? 2 : 1);
            brackets = escapes ? brackets : *from == '[' ? 1 : *from == ']' ? 0 : brackets;
        }
        from += escapes;
    }
    return NULL;
}

static tess_status refuse(const char *pattern, const char *why) {
    return tess_fail(TESS_E_DATA, "a tokenizer's pattern is not read here: %.120s: %.200s", why, pattern);
}

static tess_status compile(const char *pattern, void **out) {
    size_t room = strlen(pattern) * (sizeof space_class + 4) + 1, where;
    pattern_text t = { .text = malloc(room), .room = room };
    int error = 0;
    if (!t.text)
        return tess_fail(TESS_E_NOMEM, "no memory for a tokenizer's pattern");
    t.text[0] = '\0';
    pcre2_code *code = NULL;
    const char *unlike = spell_out(pattern, &t);
    if (!unlike)
        code = pcre2_compile((PCRE2_SPTR)t.text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error,
                             &where, NULL);
    free(t.text);
    if (unlike)
        return refuse(unlike, "PCRE2 reads in another way than Oniguruma what begins with");
    char said[120] = "";
    uint32_t may_be_empty = 1;
    pcre2_get_error_message(error, (PCRE2_UCHAR *)said, sizeof said);
    if (!code)
        return refuse(pattern, said);
    if (pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &may_be_empty) != 0 || may_be_empty) {
        pcre2_code_free(code);
        return refuse(pattern, "it matches an empty text");
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* if this fails, matching is only slower */
    *out = code;
    return TESS_OK;
}

void splitter_free(splitter *s) {
    for (int i = 0; i < s->n; i++)
        pcre2_code_free(s->stages[i].pattern);
    s->n = 0;
}

split_state *split_state_create(void) {
    split_state *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->found = pcre2_match_data_create(16, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(STACK_LEAST, STACK_MOST, NULL);
    if (!s->found || !s->context || !s->stack) {
        split_state_free(s);
        return NULL;
    }
    pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return s;
}

void split_state_free(split_state *s) {
    if (!s)
        return;
    pcre2_match_data_free(s->found);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    free(s->blanked);
    free(s);
}

typedef struct {
    const splitter *by;
    split_state *state;
    split_fn fn;
    void *user;
} splitting;

static tess_status split_from(const splitting *, int stage, const char *text, size_t bytes);

static tess_status pass_on(const splitting *s, int stage, const char *text, size_t bytes) {
    return bytes == 0 ? TESS_OK : split_from(s, stage, text, bytes);
}

/* Finds the next match from `at` on that is not empty. Returns 1 and its bounds, 0 if there is none, or a negative
 * error of PCRE2. */
static int next_match(const splitting *s, const pcre2_code *code, const char *text, size_t bytes, size_t at,
                      size_t bounds[2]) {
    int found = pcre2_match(code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, s->state->found,
                            s->state->context);
    if (found == PCRE2_ERROR_NOMATCH)
        return 0;
    if (found < 0)
        return found;
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(s->state->found);
    bounds[0] = v[0], bounds[1] = v[1];
    return 1;
}

static tess_status split_by_pattern(const splitting *s, int stage, const char *text, size_t bytes) {
    int only = s->by->stages[stage].kind == SPLIT_MATCHES_ONLY, found = 1;
    size_t at = 0;
    while (at < bytes && found > 0) {
        size_t bounds[2] = { bytes, bytes };
        found = next_match(s, s->by->stages[stage].pattern, text, bytes, at, bounds);
        if (!only)
            TRY(pass_on(s, stage + 1, text + at, bounds[0] - at));
        TRY(pass_on(s, stage + 1, text + bounds[0], bounds[1] - bounds[0]));
        at = bounds[1];
    }
    if (found >= 0)
        return TESS_OK;
    char said[120] = "";
    pcre2_get_error_message(found, (PCRE2_UCHAR *)said, sizeof said);
    return tess_fail(TESS_E_DATA, "a tokenizer's pattern failed on a text of %zu bytes: %s", bytes, said);
}

static tess_status put_blank(const splitting *s, int stage, const char *text, size_t bytes) {
    if (text[0] == ' ')
        return split_from(s, stage + 1, text, bytes);
    if (s->state->room < bytes + 1) {
        char *bigger = realloc(s->state->blanked, bytes + 1);
        if (!bigger)
            return tess_fail(TESS_E_NOMEM, "no memory for a text of %zu bytes", bytes);
        s->state->blanked = bigger, s->state->room = bytes + 1;
    }
    s->state->blanked[0] = ' ';
    memcpy(s->state->blanked + 1, text, bytes);
    return split_from(s, stage + 1, s->state->blanked, bytes + 1);
}

static tess_status split_from(const splitting *s, int stage, const char *text, size_t bytes) {
    if (stage == s->by->n)
        return s->fn(text, bytes, s->user);
    return s->by->stages[stage].kind == SPLIT_PREFIX_SPACE ? put_blank(s, stage, text, bytes)
                                                           : split_by_pattern(s, stage, text, bytes);
}

tess_status split_words(const splitter *by, split_state *state, const char *text, size_t bytes, split_fn fn,
                        void *user) {
    const splitting s = { by, state, fn, user };
    return pass_on(&s, 0, text, bytes);
}
#else
static tess_status compile(const char *pattern, void **out) {
    (void)pattern, (void)out;
    return tess_fail(TESS_E_UNSUPPORTED, "this build reads no tokenizers: pcre2.h was not found (libpcre2-dev)");
}

void splitter_free(splitter *s) {
    s->n = 0;
}

split_state *split_state_create(void) {
    return NULL;
}

void split_state_free(split_state *s) {
    (void)s;
}

tess_status split_words(const splitter *by, split_state *state, const char *text, size_t bytes, split_fn fn,
                        void *user) {
    (void)by, (void)state, (void)text, (void)bytes, (void)fn, (void)user;
    return tess_fail(TESS_E_UNSUPPORTED, "this build reads no tokenizers");
}
#endif

tess_status splitter_add(splitter *s, uint32_t kind, const char *pattern) {
    void *compiled = NULL;
    if (s->n == SPLIT_MOST)
        return tess_fail(TESS_E_DATA, "a tokenizer with more than %d steps before its words", SPLIT_MOST);
    if (kind != SPLIT_PREFIX_SPACE)
        TRY(compile(pattern, &compiled));
    s->stages[s->n].kind = kind;
    s->stages[s->n++].pattern = compiled;
    return TESS_OK;
}

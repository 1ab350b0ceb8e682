/* SPDX-License-Identifier: BSD-3-Clause */
#include "bpe.h"

#include <stdlib.h>
#include <string.h>

#include "utf8.h"
#include "tools/support/say.h"

/* The cache holds short words of few tokens, because most words of a text are such. */
enum { CACHE = 1 << 15, CACHE_BYTES = 24, CACHE_TOKENS = 8 };

typedef struct {
    uint8_t bytes, n; /* bytes 0: the entry is free */
    char word[CACHE_BYTES];
    int32_t ids[CACHE_TOKENS];
} cached;

typedef struct {
    int32_t id, left, right; /* neighbours, or -1; id is -1 once it is merged into the left one */
} symbol;

typedef struct {
    int32_t rank, at, id; /* merging the symbol at `at` with its right neighbour gives `id` */
} candidate;

struct bpe {
    const vocabulary *v;
    int whole_words, characters;
    cached *cache;
    symbol *symbols;
    candidate *heap; /* on top: the least rank, and of equal ranks the leftmost */
    size_t room, n_heap;
};

tess_status token_list_add(token_list *l, const int32_t *ids, size_t n) {
    if (n == 0)
        return TESS_OK;
    if (l->n + n > l->room) {
        size_t room = 2 * (l->n + n) + 256;
        int32_t *bigger = realloc(l->ids, room * sizeof *bigger);
        if (!bigger)
            return tess_fail(TESS_E_NOMEM, "no memory for %zu tokens", l->n + n);
        l->ids = bigger, l->room = room;
    }
    memcpy(l->ids + l->n, ids, n * sizeof *ids);
    l->n += n;
    return TESS_OK;
}

void token_list_free(token_list *l) {
    free(l->ids);
    *l = (token_list){ 0 };
}

bpe *bpe_create(const vocabulary *v, int whole_words, int characters) {
    bpe *b = calloc(1, sizeof *b);
    cached *cache = calloc(CACHE, sizeof *cache);
    if (!b || !cache) {
        free(b);
        free(cache);
        return NULL;
    }
    *b = (bpe){ .v = v, .whole_words = whole_words, .characters = characters, .cache = cache };
    return b;
}

void bpe_free(bpe *b) {
    if (!b)
        return;
    free(b->cache);
    free(b->symbols);
    free(b->heap);
    free(b);
}

/* ---- the heap ---------------------------------------------------------------------------------------- */
static int is_before(candidate a, candidate b) {
    return a.rank < b.rank || (a.rank == b.rank && a.at < b.at);
}

static void push(bpe *b, candidate c) {
    size_t at = b->n_heap++;
    for (; at > 0 && is_before(c, b->heap[(at - 1) / 2]); at = (at - 1) / 2)
        b->heap[at] = b->heap[(at - 1) / 2];
    b->heap[at] = c;
}

static candidate pop(bpe *b) {
    candidate top = b->heap[0], last = b->heap[--b->n_heap];
    size_t at = 0;
    for (size_t child = 1; child < b->n_heap; child = 2 * at + 1) {
        if (child + 1 < b->n_heap && is_before(b->heap[child + 1], b->heap[child]))
            child++;
        if (!is_before(b->heap[child], last))
            break;
        b->heap[at] = b->heap[child];
        at = child;
    }
    b->heap[at] = last;
    return top;
}

/* ---- one word ---------------------------------------------------------------------------------------- */
/* A merge removes one symbol and proposes two pairs, so a word of n bytes has at most 3 n candidates. */
static tess_status make_room(bpe *b, size_t bytes) {
    if (bytes <= b->room)
        return TESS_OK;
    size_t room = 2 * bytes;
    int fits = bytes <= INT32_MAX;
    symbol *symbols = fits ? realloc(b->symbols, room * sizeof *symbols) : NULL;
    b->symbols = symbols ? symbols : b->symbols;
    candidate *heap = fits ? realloc(b->heap, 3 * room * sizeof *heap) : NULL;
    b->heap = heap ? heap : b->heap;
    if (!symbols || !heap)
        return tess_fail(TESS_E_NOMEM, "no memory for a word of %zu bytes", bytes);
    b->room = room;
    return TESS_OK;
}

static void propose(bpe *b, int32_t at) {
    const symbol *s = &b->symbols[at];
    const vocabulary_merge *m = s->right < 0 ? NULL : vocabulary_merge_of(b->v, s->id, b->symbols[s->right].id);
    if (m)
        push(b, (candidate){ m->rank, at, m->id });
}

/* A candidate is stale if either of its two symbols has changed since it was pushed. */
static int still_holds(const bpe *b, candidate c) {
    const symbol *s = &b->symbols[c.at];
    const vocabulary_merge *m =
        s->id < 0 || s->right < 0 ? NULL : vocabulary_merge_of(b->v, s->id, b->symbols[s->right].id);
    return m && m->rank == c.rank;
}

static void merge(bpe *b, candidate c) {
    symbol *left = &b->symbols[c.at], *right = &b->symbols[left->right];
    left->id = c.id;
    right->id = -1;
    left->right = right->right;
    if (left->right >= 0)
        b->symbols[left->right].left = c.at;
    if (left->left >= 0)
        propose(b, left->left);
    propose(b, c.at);
}

static void put_symbol(bpe *b, size_t i, int32_t id) {
    b->symbols[i] = (symbol){ .id = id, .left = (int32_t)i - 1, .right = (int32_t)i + 1 };
}

/* Writes the symbols that the word begins with and returns their number. */
static size_t put_symbols(bpe *b, const char *word, size_t bytes) {
    size_t n = 0;
    for (size_t at = 0, length = 1, broken; at < bytes; at += length) {
        int32_t whole = -1;
        if (b->characters) {
            length = utf8_length((const unsigned char *)word + at, bytes - at, &broken);
            whole = vocabulary_find(b->v, word + at, length, VOCABULARY_WORD);
        }
        if (whole >= 0)
            put_symbol(b, n++, whole);
        for (size_t i = 0; whole < 0 && i < length; i++)
            put_symbol(b, n++, b->v->bytes[(unsigned char)word[at + i]]);
    }
    b->symbols[n - 1].right = -1;
    return n;
}

static tess_status encode(bpe *b, const char *word, size_t bytes, token_list *out) {
    TRY(make_room(b, bytes));
    b->n_heap = 0;
    size_t n = put_symbols(b, word, bytes);
    for (size_t i = 0; i < n; i++)
        propose(b, (int32_t)i);
    while (b->n_heap > 0) {
        candidate c = pop(b);
        if (still_holds(b, c))
            merge(b, c);
    }
    for (int32_t at = 0; at >= 0; at = b->symbols[at].right)
        TRY(token_list_add(out, &b->symbols[at].id, 1));
    return TESS_OK;
}

static tess_status encode_new(bpe *b, const char *word, size_t bytes, token_list *out) {
    int32_t whole = b->whole_words ? vocabulary_find(b->v, word, bytes, 0) : -1;
    return whole >= 0 ? token_list_add(out, &whole, 1) : encode(b, word, bytes, out);
}

static void keep(cached *c, const char *word, size_t bytes, const int32_t *ids, size_t n) {
    if (n > CACHE_TOKENS)
        return;
    c->bytes = (uint8_t)bytes;
    c->n = (uint8_t)n;
    memcpy(c->word, word, bytes);
    memcpy(c->ids, ids, n * sizeof *ids);
}

tess_status bpe_encode(bpe *b, const char *word, size_t bytes, token_list *out) {
    if (bytes == 0)
        return TESS_OK;
    if (bytes > CACHE_BYTES)
        return encode_new(b, word, bytes, out);
    cached *c = &b->cache[vocabulary_hash(word, bytes) % CACHE];
    if (c->bytes == bytes && memcmp(c->word, word, bytes) == 0)
        return token_list_add(out, c->ids, c->n);
    size_t before = out->n;
    TRY(encode_new(b, word, bytes, out));
    keep(c, word, bytes, out->ids + before, out->n - before);
    return TESS_OK;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "proof.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/proof/chain.h"
#include "tools/support/json_in.h"
#include "tools/support/say.h"

static tess_status no_memory(void) {
    return tess_fail(TESS_E_NOMEM, "no memory for a ledger");
}

/* Makes room for one more element. */
static int grow(void **array, size_t n, size_t bytes) {
    if (n & (n - 1))
        return 1;
    void *more = realloc(*array, (n ? 2 * n : 1) * bytes);
    *array = more ? more : *array;
    return more != NULL;
}

/* Reads the list of texts that a line has as this member. */
static tess_status take_texts(const char *line, const char *key, char ***out, size_t *n) {
    char word[32], text[1024];
    snprintf(word, sizeof word, "\"%s\":[", key);
    const char *at = strstr(line, word);
    json_in j = { .text = at ? at + strlen(word) : "", .bytes = at ? strlen(at + strlen(word)) : 0 };
    while (at && !json_in_if(&j, ']')) {
        if ((*n && !json_in_char(&j, ',')) || !json_in_string(&j, text, sizeof text))
            return tess_fail(TESS_E_DATA, "its list of %s cannot be read", key);
        if (!grow((void **)out, *n, sizeof **out) || !((*out)[*n] = strdup(text)))
            return no_memory();
        ++*n;
    }
    return TESS_OK;
}

/* The first of these lines says what the ledger is of. A run that went on with it has written another. */
static tess_status take_begin(proof_ledger *l, const char *line) {
    char deterministic[8] = "";
    l->every = tess__chain_number(line, "every");
    if (l->words)
        return TESS_OK;
    long bytes = tess__chain_member(line, "words", NULL, 0);
    l->words = calloc((size_t)(bytes > 0 ? bytes : 0) + 1, 1);
    if (!l->words)
        return no_memory();
    (void)tess__chain_member(line, "words", l->words, (size_t)(bytes > 0 ? bytes : 0) + 1);
    (void)tess__chain_member(line, "model", l->model, sizeof l->model);
    (void)tess__chain_member(line, "deterministic", deterministic, sizeof deterministic);
    l->deterministic = deterministic[0] == '1';
    l->first = tess__chain_number(line, "step");
    TRY(take_texts(line, "units", &l->units, &l->n_units));
    return take_texts(line, "kinds", &l->kinds, &l->n_kinds);
}

static tess_status take_digests(const char *line, uint64_t *out, size_t n) {
    static const char word[] = "\"digests\":[";
    const char *at = strstr(line, word);
    char digits[17] = "";
    at = at ? at + strlen(word) : "";
    for (size_t i = 0; i < n; i++, at += 16) {
        at += strspn(at, "\",");
        if (strspn(at, "0123456789abcdef") < 16)
            return tess_fail(TESS_E_DATA, "a step has %zu digests, expected %zu", i, n);
        memcpy(digits, at, 16);
        out[i] = strtoull(digits, NULL, 16);
    }
    return TESS_OK;
}

/* Puts a step where it belongs. One that ran again takes the place of the earlier. */
static tess_status put_step(proof_ledger *l, const proof_step *s) {
    size_t at = l->n_steps;
    while (at && l->steps[at - 1].step >= s->step)
        at--;
    if (at < l->n_steps && l->steps[at].step == s->step) {
        if (l->steps[at].root != s->root && !l->unlike)
            l->unlike = s->line;
        free(l->steps[at].digests);
    } else {
        if (!grow((void **)&l->steps, l->n_steps, sizeof *l->steps))
            return no_memory();
        memmove(l->steps + at + 1, l->steps + at, (l->n_steps - at) * sizeof *l->steps);
        l->n_steps++;
    }
    l->steps[at] = *s;
    return TESS_OK;
}

static tess_status take_step(proof_ledger *l, const char *line, uint64_t number) {
    char root[24] = "";
    size_t n = l->n_units * l->n_kinds;
    proof_step s = { .step = tess__chain_number(line, "step"), .line = number, .digests = calloc(n + 1, 8) };
    (void)tess__chain_member(line, "root", root, sizeof root);
    s.root = strtoull(root, NULL, 16);
    tess_status status = s.digests ? take_digests(line, s.digests, n) : no_memory();
    if (status == TESS_OK)
        status = put_step(l, &s);
    if (status != TESS_OK)
        free(s.digests);
    return status;
}

/* `key`: the member that has its path. */
static tess_status take_checkpoint(proof_ledger *l, const char *line, const char *key) {
    char path[4096];
    if (tess__chain_member(line, key, path, sizeof path) < 0)
        return TESS_OK;
    if (!grow((void **)&l->checkpoints, l->n_checkpoints, sizeof *l->checkpoints))
        return no_memory();
    proof_checkpoint *c = &l->checkpoints[l->n_checkpoints];
    *c = (proof_checkpoint){ .step = tess__chain_number(line, "step"), .path = strdup(path) };
    if (!c->path)
        return no_memory();
    l->n_checkpoints++;
    return TESS_OK;
}

static tess_status take_line(void *user, const char *line, uint64_t number) {
    proof_ledger *l = user;
    char type[16] = "";
    (void)tess__chain_member(line, "type", type, sizeof type);
    l->ended = strcmp(type, "end") == 0;
    if (strcmp(type, "begin") == 0) {
        int is_first = !l->words;
        TRY(take_begin(l, line));
        return is_first ? take_checkpoint(l, line, "from") : TESS_OK;
    }
    if (strcmp(type, "step") == 0)
        return take_step(l, line, number);
    return strcmp(type, "checkpoint") == 0 ? take_checkpoint(l, line, "path") : TESS_OK;
}

tess_status proof_read(const char *path, proof_ledger *out) {
    tess__chain_read_info info = { .lines = 0 };
    proof_ledger l = { .path = path };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return tess_fail(TESS_E_DATA, "%s: %s", path, strerror(errno));
    tess_status status = tess__chain_read(fd, path, take_line, &l, &info);
    close(fd);
    if (status == TESS_OK && info.cut)
        status = tess_fail(TESS_E_DATA, "%s: line %" PRIu64 " is cut: a run that goes on with this ledger repairs it",
                           path, info.lines + 1);
    if (status == TESS_OK && !info.lines)
        status = tess_fail(TESS_E_DATA, "%s: line 1 is missing: the file is empty", path);
    l.lines = info.lines;
    if (status == TESS_OK)
        *out = l;
    else
        proof_free(&l);
    return status;
}

static void free_texts(char **texts, size_t n) {
    for (size_t i = 0; i < n; i++)
        free(texts[i]);
    free(texts);
}

void proof_free(proof_ledger *l) {
    for (size_t i = 0; i < l->n_steps; i++)
        free(l->steps[i].digests);
    for (size_t i = 0; i < l->n_checkpoints; i++)
        free(l->checkpoints[i].path);
    free(l->steps);
    free(l->checkpoints);
    free_texts(l->units, l->n_units);
    free_texts(l->kinds, l->n_kinds);
    free(l->words);
    *l = (proof_ledger){ .path = NULL };
}

const proof_step *proof_find(const proof_ledger *l, uint64_t step) {
    size_t from = 0, to = l->n_steps;
    while (from < to) {
        size_t at = (from + to) / 2;
        if (l->steps[at].step == step)
            return &l->steps[at];
        *(l->steps[at].step < step ? &from : &to) = at + (l->steps[at].step < step);
    }
    return NULL;
}

int proof_words_differ(const proof_ledger *a, const proof_ledger *b, char *in_a, char *in_b, size_t n) {
    return tess__chain_differ(a->words, b->words, in_a, in_b, n);
}

/* The value of the word "KEY=value", or an empty text. */
static void value_of(const char *words, const char *key, char *out, size_t n) {
    size_t bytes = strlen(key);
    *out = 0;
    for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strncmp(at, key, bytes) == 0 && at[bytes] == '=') {
            snprintf(out, n, "%.*s", (int)(strcspn(at, " ") - bytes - 1), at + bytes + 1);
            return;
        }
}

int proof_steps_differ(const proof_ledger *a, const proof_ledger *b, char *in_a, char *in_b, size_t n) {
    char of_a[24], of_b[24];
    value_of(a->words, "steps", of_a, sizeof of_a);
    value_of(b->words, "steps", of_b, sizeof of_b);
    snprintf(in_a, n, "steps=%s", of_a);
    snprintf(in_b, n, "steps=%s", of_b);
    return *of_a && *of_b && strcmp(of_a, of_b) != 0;
}

int proof_samples(const proof_ledger *l, uint64_t out[3]) {
    char text[80];
    value_of(l->words, "samples", text, sizeof text);
    return sscanf(text, "%" SCNu64 "/%" SCNu64 "/%" SCNu64, &out[0], &out[1], &out[2]) == 3 && out[1] && out[2] &&
           out[2] <= sizeof(uint32_t);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Words "key=value" identify a run. All ranks have the same words, and a checkpoint stores them. A run that resumes
 * with other words warns. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/say.h"
#include <tessera/tessera.h>
#include "train.h"

enum { PROBES = 16, PROBED_BYTES = 1 << 20, WORDS = 480, GROUPS = 96 }; /* WORDS: bytes that tess_agree passes on */
enum { READ_MOST = 1 << 30, LANES = 4 };                                /* READ_MOST: bytes of the data's files */

typedef struct {
    uint64_t hash[LANES], left; /* left: bytes that are still read */
} whole_data;

/* FNV-1a of words in lanes side by side, which is as fast as memory. */
static void read_data(void *user, const void *data, uint64_t bytes) {
    whole_data *w = user;
    uint64_t n = bytes < w->left ? bytes : w->left, done = 0, word[LANES];
    for (; n - done >= sizeof word; done += sizeof word) {
        memcpy(word, (const char *)data + done, sizeof word);
        for (int i = 0; i < LANES; i++)
            w->hash[i] = (w->hash[i] ^ word[i]) * 1099511628211u;
    }
    w->hash[0] = train_hash_on(w->hash[0], (const unsigned char *)data + done, n - done);
    w->hash[1] = (w->hash[1] ^ bytes) * 1099511628211u;
    w->left -= n;
}

/* Hashes the training data, so that a file that has changed is seen, and the run's first batches as one rank would draw
 * them with any seed. Paths may differ between hosts. Of files that are larger than READ_MOST that much is read. */
static uint64_t data_hash(const train_run *r) {
    train_run one = *r;
    uint64_t hash = 14695981039346656037u;
    whole_data whole = { .hash = { 1, 2, 3, 4 }, .left = READ_MOST };
    if (r->ops->each_byte) {
        r->ops->each_byte(r, read_data, &whole);
        hash = train_hash_on(hash, (const unsigned char *)whole.hash, sizeof whole.hash);
    }
    one.rank = 0;
    one.s.seed = one.task.sampler.seed = 0;
    one.task.sampler.ranks = one.task.sampler.accum = 1;
    for (uint64_t step = 0, bytes = 0; step < PROBES && bytes < PROBED_BYTES; step++, bytes += r->m->desc.input_bytes) {
        r->ops->fill(&one, step, 0, r->batch);
        hash = train_hash_on(hash, r->batch, r->m->desc.input_bytes);
    }
    return hash;
}

static uint64_t held_out_hash(train_run *r) {
    if (!r->task.eval_batches)
        return 0;
    r->ops->fill_eval(r, 0, r->batch);
    return train_hash_on(14695981039346656037u, r->batch, r->m->desc.input_bytes);
}

/* Gives "auto" for a value that follows from the number of steps or the rate, because those may change and have words
 * of their own. */
static const char *given(double value, char out[24]) {
    snprintf(out, 24, "%.9g", value);
    return value < 0 ? "auto" : out;
}

/* Gives a word for a list of patterns: its text without blanks, or a hash of one that is long. */
static void list_word(const char *text, char *out, size_t bytes) {
    size_t n = 0;
    for (const char *p = text ? text : "none"; *p && n < bytes - 1; p++)
        if (*p != ' ')
            out[n++] = *p;
    out[n] = 0;
    if (n == bytes - 1)
        snprintf(out, bytes, "%016" PRIx64,
                 train_hash_on(14695981039346656037u, (const unsigned char *)text, strlen(text)));
}

void train_identity_make(train_run *r) {
    const train_settings *s = &r->s;
    char warmup[24], least[24], rows[24], groups[GROUPS], optimizer[TRAIN_OPTIMIZER_BYTES];
    tess_info info = { .struct_size = sizeof info };
    if (tess_info_get(r->t, &info) != TESS_OK)
        info.precision = "";
    r->held_out = held_out_hash(r);
    list_word(s->groups_text, groups, sizeof groups);
    train_optimizer_words(s->optimizer, optimizer);
    snprintf(r->identity, sizeof r->identity,
             "model=%s seed=%" PRIu64 " batch=%" PRId64 " microbatches=%" PRId64 " steps=%" PRIu64
             " deterministic=%d lr=%.9g momentum=%.9g weight-decay=%.9g beta1=%.9g beta2=%.9g eps=%.9g "
             "clip=%.9g precision=%s schedule=%s warmup=%s "
             "min-lr=%s head-rows=%s attention=%s groups=%s data=%016" PRIx64 "%s%s %s",
             s->model, s->seed, s->batch, (int64_t)r->ranks * s->accum, r->task.steps, s->deterministic, s->lr,
             s->momentum, s->weight_decay, s->beta1, s->beta2, s->eps, s->clip, info.precision, s->schedule,
             given(s->warmup, warmup), given(s->min_lr, least), given(s->head_rows ? (double)s->head_rows : -1, rows),
             s->attention, groups, data_hash(r), s->lora ? " lora=" : "", s->lora ? s->lora : "", optimizer);
}

/* Finds the word of that key and returns its length, or 0. */
static size_t word_of(const char *words, const char *key, size_t key_bytes, const char **word) {
    for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ') {
        *word = at;
        if (strncmp(at, key, key_bytes) == 0)
            return strcspn(at, " ");
    }
    return 0;
}

/* Lists the words that both have with different values, and returns their number. Keys in `but` may differ. */
static int differing(const char *mine, const char *theirs, const char *but, size_t room, char *in_mine,
                     char *in_theirs) {
    int n = 0;
    size_t room_mine = room, room_theirs = room;
    for (const char *at = mine, *other, *ignored; *at; at += strcspn(at, " "), at += *at == ' ') {
        size_t bytes = strcspn(at, " "), other_bytes = word_of(theirs, at, strcspn(at, "=") + 1, &other);
        if (!other_bytes || (other_bytes == bytes && memcmp(at, other, bytes) == 0) ||
            word_of(but, at, strcspn(at, "=") + 1, &ignored))
            continue;
        const char *gap = n++ ? " " : "";
        int put_mine = snprintf(in_mine, room_mine, "%s%.*s", gap, (int)bytes, at),
            put_theirs = snprintf(in_theirs, room_theirs, "%s%.*s", gap, (int)other_bytes, other);
        in_mine += put_mine, room_mine -= (size_t)put_mine;
        in_theirs += put_theirs, room_theirs -= (size_t)put_theirs;
    }
    return n;
}

/* tess_agree passes rank 0's words to all as the text of a failure. */
static tess_status hear_first(train_run *r, char out[WORDS]) {
    static const char from[] = "rank 0: ";
    tess_status status = tess_agree(r->t, r->rank == 0 ? tess_fail(TESS_E_INVALID, "%s", r->identity) : TESS_OK);
    if (status != TESS_E_INVALID || strncmp(tess_last_error(), from, strlen(from)) != 0)
        return status;
    snprintf(out, WORDS, "%s", tess_last_error() + strlen(from));
    return TESS_OK;
}

tess_status train_identity_agree(train_run *r) {
    char first[WORDS] = "", mine[WORDS], theirs[WORDS];
    train_identity_make(r);
    if (r->ranks == 1 || r->joins)
        return TESS_OK;
    TRY(hear_first(r, first));
    tess_status status = TESS_OK;
    if (differing(r->identity, first, "", sizeof mine, mine, theirs))
        status = tess_fail(TESS_E_INVALID, "the ranks differ: rank 0 has %s, rank %d has %s", theirs, r->rank, mine);
    return train_agree(r, status);
}

void train_identity_saved(const train_run *r, char out[TRAIN_IDENTITY_BYTES]) {
    char frozen[TRAIN_IDENTITY_BYTES - sizeof r->identity - sizeof " freeze="];
    list_word(r->s.freeze, frozen, sizeof frozen);
    snprintf(out, TRAIN_IDENTITY_BYTES, "%s freeze=%s", r->identity, frozen);
}

void train_identity_compare(const train_run *r, const char *saved) {
    char now[TRAIN_IDENTITY_BYTES], mine[TRAIN_IDENTITY_BYTES], was[TRAIN_IDENTITY_BYTES];
    train_identity_saved(r, now);
    /* Loading itself reports a changed number of microbatches. */
    if (r->rank == 0 && differing(now, saved, "steps= microbatches=", sizeof mine, mine, was))
        tool_say(SAY_WARNING, "--resume: this run has %s, the one that saved had %s: other bits from here on", mine,
                 was);
}

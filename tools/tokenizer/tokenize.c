/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera tokenize: encodes text to token files with the tokenizer of a Hugging Face folder. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "documents.h"
#include "token_file.h"
#include "tokenizer.h"
#include "tokenizer_state.h"
#include "tools/support/command_line.h"
#include "tools/support/say.h"

enum { KEY_OUT = 0x6000, KEY_VAL, KEY_END, KEY_JOBS, KEY_TOKENIZER };
enum { PATHS_MOST = 4096, JOBS_MOST = 256, ROUND_DOCUMENTS = 4096, ROUND_BYTES = 64 << 20 };

typedef struct {
    const char *folder, *out, *end, *tokenizer;
    const char *train[PATHS_MOST], *val[PATHS_MOST];
    size_t n_train, n_val;
    uint64_t jobs; /* 0: one for each core */
} arguments;

typedef struct {
    document from;
    token_list tokens;
} job;

/* A round: threads encode these documents together, each document in one thread. */
typedef struct {
    tokenizer *t;
    int32_t end; /* token put behind each document, or -1 */
    size_t jobs, n;
    tokenizer_encoder *encoders[JOBS_MOST];
    job documents[ROUND_DOCUMENTS];
    atomic_size_t next;
    uint64_t bytes, count;
    pthread_mutex_t lock;
    tess_status status; /* the first failure of any thread; `said` has its message */
    char said[512];
} work;

/* ---- a round ----------------------------------------------------------------------------------------- */
static tess_status encode(const work *w, tokenizer_encoder *e, job *d) {
    d->tokens.n = 0;
    return tokenizer_encode_document(e, d->from.text, d->from.bytes, w->end, &d->tokens);
}

typedef struct {
    work *w;
    size_t job;
} worker;

static void *run_worker(void *user) {
    worker *self = user;
    work *w = self->w;
    tess_status status = TESS_OK;
    for (size_t i; status == TESS_OK && (i = atomic_fetch_add(&w->next, 1)) < w->n;)
        status = encode(w, w->encoders[self->job], &w->documents[i]);
    if (status == TESS_OK)
        return NULL;
    pthread_mutex_lock(&w->lock);
    if (w->status == TESS_OK) {
        w->status = status;
        snprintf(w->said, sizeof w->said, "%s", tess_last_error());
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Every job but the first has a thread of its own. If a thread cannot be started, the others encode its documents. */
static tess_status encode_round(work *w) {
    pthread_t threads[JOBS_MOST];
    worker workers[JOBS_MOST];
    size_t started = 1;
    atomic_store(&w->next, 0);
    for (size_t j = 0; j < w->jobs; j++)
        workers[j] = (worker){ w, j };
    while (started < w->jobs && pthread_create(&threads[started], NULL, run_worker, &workers[started]) == 0)
        started++;
    run_worker(&workers[0]);
    for (size_t j = 1; j < started; j++)
        pthread_join(threads[j], NULL);
    return w->status == TESS_OK ? TESS_OK : tess_fail(w->status, "%s", w->said);
}

static tess_status read_round(work *w, documents *from, int *over) {
    size_t bytes = 0;
    w->n = 0;
    while (w->n < ROUND_DOCUMENTS && bytes < ROUND_BYTES && !*over) {
        document *d = &w->documents[w->n].from;
        TRY(documents_next(from, d));
        *over = !d->text;
        if (d->text) {
            bytes += d->bytes;
            w->n++;
        }
    }
    w->bytes += bytes;
    w->count += w->n;
    return TESS_OK;
}

static tess_status write_round(work *w, token_files *to) {
    for (size_t i = 0; i < w->n; i++)
        TRY(token_files_add(to, w->documents[i].tokens.ids, w->documents[i].tokens.n));
    return TESS_OK;
}

static void free_texts(work *w) {
    for (size_t i = 0; i < w->n; i++) {
        free(w->documents[i].from.text);
        w->documents[i].from.text = NULL;
    }
    w->n = 0;
}

/* ---- all of it --------------------------------------------------------------------------------------- */
static tess_status encode_all(work *w, const char *const *paths, size_t n, token_files *to) {
    documents *from = NULL;
    int over = 0;
    tess_status status = documents_open(paths, n, 0, &from);
    while (status == TESS_OK && !over) {
        status = read_round(w, from, &over);
        if (status == TESS_OK)
            status = encode_round(w);
        if (status == TESS_OK)
            status = write_round(w, to);
        free_texts(w);
    }
    documents_close(from);
    return status;
}

static tess_status write_part(work *w, const arguments *a, const char *part, token_files *to) {
    int is_val = strcmp(part, "val") == 0;
    size_t n = is_val ? a->n_val : a->n_train;
    if (n == 0)
        return TESS_OK;
    tess_status status = encode_all(w, is_val ? a->val : a->train, n, to);
    if (status == TESS_OK)
        status = token_files_end(to);
    token_files_drop(to);
    return status;
}

static tess_status choose_end(work *w, const arguments *a) {
    w->end = tokenizer_end(w->t);
    if (a->end)
        w->end = strcmp(a->end, "none") == 0 ? -1 : tokenizer_added(w->t, a->end);
    if (a->end && strcmp(a->end, "none") != 0 && w->end < 0)
        return tess_fail(TESS_E_INVALID, "--end: the tokenizer has no added token '%s'", a->end);
    if (!a->end && w->end < 0)
        return tess_fail(
            TESS_E_INVALID,
            "%s names no token that ends a document: --end must be one, as in --end '<|endoftext|>', or none",
            a->tokenizer ? a->tokenizer : a->folder);
    return TESS_OK;
}

static tess_status open_work(work *w, const arguments *a) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    w->jobs = a->jobs ? a->jobs : cores > JOBS_MOST ? JOBS_MOST : cores > 0 ? (size_t)cores : 1;
    pthread_mutex_init(&w->lock, NULL);
    TRY(tokenizer_open(a->tokenizer ? a->tokenizer : a->folder, &w->t));
    TRY(choose_end(w, a));
    for (size_t j = 0; j < w->jobs; j++)
        if (!(w->encoders[j] = tokenizer_encoder_create(w->t)))
            return tess_fail(TESS_E_NOMEM, "no memory for %zu encoders", w->jobs);
    if (mkdir(a->out, 0777) != 0 && errno != EEXIST)
        return tess_fail(TESS_E_DATA, "%s: %s", a->out, strerror(errno));
    return TESS_OK;
}

static void close_work(work *w) {
    for (size_t j = 0; j < w->jobs; j++)
        tokenizer_encoder_free(w->encoders[j]);
    for (size_t i = 0; i < ROUND_DOCUMENTS; i++)
        token_list_free(&w->documents[i].tokens);
    tokenizer_close(w->t);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static tess_status tokenize(work *w, const arguments *a, token_files *train, token_files *val) {
    TRY(open_work(w, a));
    TRY(token_files_begin(train, a->out, "train", tokenizer_size(w->t)));
    if (a->n_val > 0)
        TRY(token_files_begin(val, a->out, "val", tokenizer_size(w->t))); /* finds an existing file early */
    TRY(write_part(w, a, "train", train));
    return write_part(w, a, "val", val);
}

static int run(const arguments *a) {
    work *w = calloc(1, sizeof *w);
    token_files train = { .files = 0 }, val = { .files = 0 };
    double began = now();
    if (!w)
        return tool_report(tess_fail(TESS_E_NOMEM, "no memory to tokenize"));
    tess_status status = tokenize(w, a, &train, &val);
    double seconds = now() - began;
    if (status == TESS_OK)
        printf("%" PRIu64 " documents, %" PRIu64 " bytes: %" PRIu64 " tokens to train on, %" PRIu64
               " to validate on, in %d files of %s; %.1f s, %.1f MB/s\n",
               w->count, w->bytes, train.total, val.total, train.files + val.files, a->out, seconds,
               (double)w->bytes / 1e6 / seconds);
    close_work(w);
    return status == TESS_OK ? TOOL_OK : tool_report(status);
}

/* ---- arguments --------------------------------------------------------------------------------------- */
static error_t take_jobs(arguments *a, const struct argp_state *state, const char *text) {
    char *end;
    a->jobs = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || a->jobs == 0 || a->jobs > JOBS_MOST)
        return tool_usage_error(state, "--jobs is '%.40s', expected 1 to %d", text, JOBS_MOST);
    return 0;
}

static error_t take_path(const struct argp_state *state, const char **paths, size_t *n, const char *path) {
    if (*n == PATHS_MOST)
        return tool_usage_error(state, "more than %d paths: give their folder", PATHS_MOST);
    paths[(*n)++] = path;
    return 0;
}

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_OUT: a->out = text; return 0;
    case KEY_END: a->end = text; return 0;
    case KEY_TOKENIZER: a->tokenizer = text; return 0;
    case KEY_JOBS: return take_jobs(a, state, text);
    case KEY_VAL: return take_path(state, a->val, &a->n_val, text);
    case ARGP_KEY_ARG:
        if (a->folder)
            return take_path(state, a->train, &a->n_train, text);
        a->folder = text;
        return 0;
    case ARGP_KEY_END:
        if (!a->folder || a->n_train == 0)
            return tool_usage_error(state, "which %s?", a->folder ? "TEXT" : "FOLDER");
        return a->out ? 0 : tool_usage_error(state, "where to? --out DIR is missing");
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    { "out", KEY_OUT, "DIR", 0, "folder for train_000000.bin and so on; made if it is missing", 0 },
    { "val", KEY_VAL, "TEXT", 0, "file or folder for val_000000.bin, held out; may be repeated", 0 },
    { "end", KEY_END, "TOKEN|none", 0, "what ends each document; unset: what the folder says", 0 },
    { "tokenizer", KEY_TOKENIZER, "FILE", 0, "another tokenizer than the folder's: its file or folder", 0 },
    { "jobs", KEY_JOBS, "N", 0, "threads, each with a document at a time; unset: the cores", 0 },
    { NULL, 0, NULL, 0, NULL, 0 },
};

static const tool_page page = {
    .command = "tokenize",
    .usage = "FOLDER --out DIR TEXT… [OPTION…]",
    .doc = "Writes text as the token files that `tessera train` reads, with the tokenizer of a Hugging Face folder: "
           "tokenizer.json with BPE, as GPT-2, Llama, Qwen, Mistral and Gemma have it, or tokenizer.model. TEXT is a "
           "file, which is one document, a .jsonl with a "
           "document in the \"text\" of each line, or a folder of such files. Exit code 6 for a tokenizer of another "
           "kind or text that cannot be read.",
    .examples = "tessera tokenize l8b --out tokens --val last.txt books/\n  ids for l8b of every file in books/\n"
                "tessera train llama -n 2 --model l8b --data tokens\n  trains on them\n",
};

int cmd_tokenize(int argc, char **argv) {
    struct argp_child children[] = { { tool_common_argp(), 0, NULL, 0 }, { NULL, 0, NULL, 0 } };
    struct argp argp = { options, parse, "FOLDER --out DIR TEXT…", page.doc, children, NULL, NULL };
    arguments *a = calloc(1, sizeof *a);
    if (!a)
        return tool_report(tess_fail(TESS_E_NOMEM, "no memory for arguments"));
    int code = tool_parse_page(&page, &argp, 0, argc, argv, a);
    if (code == TOOL_OK)
        code = run(a);
    free(a);
    return code;
}

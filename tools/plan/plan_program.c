/* SPDX-License-Identifier: BSD-3-Clause */
/* A program as the thing to plan: it runs up to tess_shard, which leaves what was declared in a file
 * (core/readers/declaration_file.h), and that is declared here again. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/commands.h"
#include "core/readers/declaration_file.h"
#include "plan_program.h"
#include "tools/support/progress.h"
#include "core/base/option_fields.h"
#include <tessera/tessera.h>
#include "tools/support/options.h"
#include "tools/support/settings.h"
#include "tools/support/say.h"

/* ---- running it -------------------------------------------------------------------------------- */

/* A file of our own, below TMPDIR. */
static tess_status make_file(char path[64]) {
    const char *dir = secure_getenv("TMPDIR");
    if (!dir || dir[0] != '/' || strlen(dir) > 40)
        dir = "/tmp";
    snprintf(path, 64, "%s/tessera-plan-XXXXXX", dir);
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return tess_fail(TESS_E_SYSTEM, "%s: %s", path, strerror(errno));
    close(fd);
    return TESS_OK;
}

static void become_program(char *const *argv, int32_t ranks, const char *path, int out, int report) {
    char text[16];
    const tess_setting plan[] = { { "plan", text }, { "plan-file", path } };
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    snprintf(text, sizeof text, "%d", (int)ranks);
    char **environment = tool_settings_environment(plan, 2);
    if (!environment || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        _exit(TOOL_CONFIG);
    execvpe(argv[0], argv, environment);
    int error = errno;
    ssize_t ignored = write(report, &error, sizeof error);
    (void)ignored;
    _exit(127);
}

/* Whether the file ends with the line that says it is whole. */
static int is_complete(const char *path) {
    static const char end[] = "\n" TESS__DESCRIBE_END "\n";
    char tail[sizeof end] = "";
    FILE *f = fopen(path, "re");
    int whole = f && fseek(f, 1 - (long)sizeof end, SEEK_END) == 0 && fread(tail, 1, sizeof end - 1, f) > 0 &&
                strcmp(tail, end) == 0;
    if (f)
        fclose(f);
    return whole;
}

/* A program that has been planned has nothing more to do; one that does not know when to end is ended. */
static int wait_for(pid_t pid, const char *path) {
    const double patience = 5;
    double planned = 0;
    int status = 0, told = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        double now = tool_seconds();
        if (!planned && is_complete(path))
            planned = now;
        if (planned && now - planned > patience) {
            kill(pid, told ? SIGKILL : SIGTERM);
            told = 1;
            planned = now;
        }
        nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
    }
    return status;
}

static void repeat(int out) {
    char piece[4096];
    ssize_t n;
    lseek(out, 0, SEEK_SET);
    while ((n = read(out, piece, sizeof piece)) > 0)
        fwrite(piece, 1, (size_t)n, stderr);
}

/* Reports how the program ended without a plan. */
static tess_status explain(const char *program, int status, int out, int *code) {
    repeat(out);
    if (WIFSIGNALED(status)) {
        *code = TOOL_PEER;
        fprintf(stderr, "tessera: error: %s was killed by signal %d before tess_shard\n", program, WTERMSIG(status));
        return TESS_OK;
    }
    if (WEXITSTATUS(status) == 0)
        return tess_fail(TESS_E_INVALID, "%s has ended without tess_shard, so there is nothing to plan", program);
    *code = WEXITSTATUS(status);
    return TESS_OK;
}

tess_status plan_program_run(char *const *argv, int32_t ranks, char path[64], int *code) {
    int report[2] = { -1, -1 }, error = 0;
    tess_status status = make_file(path);
    if (status != TESS_OK)
        return status;
    FILE *out = tmpfile();
    if (!out || pipe2(report, O_CLOEXEC) != 0)
        status = tess_fail(TESS_E_SYSTEM, "cannot start '%s': %s", argv[0], strerror(errno));
    pid_t pid = status == TESS_OK ? fork() : -1;
    if (pid == 0)
        become_program(argv, ranks, path, fileno(out), report[1]);
    if (pid < 0 && status == TESS_OK)
        status = tess_fail(TESS_E_SYSTEM, "cannot start '%s': %s", argv[0], strerror(errno));
    if (report[1] >= 0)
        close(report[1]);
    if (pid > 0) {
        ssize_t n = read(report[0], &error, sizeof error);
        int ended = wait_for(pid, path);
        if (n == (ssize_t)sizeof error)
            status = tess_fail(TESS_E_INVALID, "cannot start '%s': %s", argv[0], strerror(error));
        else if (!is_complete(path))
            status = explain(argv[0], ended, fileno(out), code);
    }
    if (report[0] >= 0)
        close(report[0]);
    if (out)
        fclose(out);
    if (status != TESS_OK || *code != 0)
        unlink(path);
    return status;
}

/* ---- reading what it has declared -------------------------------------------------------------- */

typedef struct {
    FILE *f;
    const char *path;
    char *word;
    size_t cap;
    tess_setting *settings; /* the program's */
    uint32_t n_settings;
    tess_options open;
    tess_group_options group;
    char group_name[32];
    int64_t n_names, cap_names;
    char **names; /* names of parameters, for ties */
    char *also;   /* second module of the next block; null: none */
    tess *t;
} reader;

enum { MOST_TEXT = 1 << 16 };

static tess_status bad(const reader *r, const char *what) {
    return tess_fail(TESS_E_DATA, "%s: %s, expected what tess_shard writes", r->path, what);
}

/* "12 some text…": into r->word. */
static tess_status read_text(reader *r) {
    size_t n = 0;
    if (fscanf(r->f, " %zu", &n) != 1 || n > MOST_TEXT || fgetc(r->f) != ' ')
        return bad(r, "a text without a length");
    if (n + 1 > r->cap) {
        char *bigger = realloc(r->word, n + 1);
        if (!bigger)
            return tess_fail(TESS_E_NOMEM, "no memory for a name of %zu bytes", n);
        r->word = bigger;
        r->cap = n + 1;
    }
    r->word[n] = 0;
    return fread(r->word, 1, n, r->f) == n && fgetc(r->f) == '\n' ? TESS_OK : bad(r, "a text that is cut short");
}

static tess_status read_option(reader *r) {
    char key[80];
    if (fscanf(r->f, " %79s", key) != 1)
        return bad(r, "an option without a name");
    TRY(read_text(r));
    tess_setting *bigger = realloc(r->settings, (r->n_settings + 1) * sizeof *bigger);
    if (!bigger)
        return tess_fail(TESS_E_NOMEM, "no memory for option %s", key);
    r->settings = bigger;
    r->settings[r->n_settings] = (tess_setting){ strdup(key), strdup(r->word) };
    const tess_setting *s = &r->settings[r->n_settings++];
    return s->key && s->value ? TESS_OK : tess_fail(TESS_E_NOMEM, "no memory for option %s", key);
}

/* The engine is over so many ranks of the run. */
static tess_status read_group(reader *r) {
    r->group = (tess_group_options){ .struct_size = sizeof r->group, .name = r->group_name };
    if (fscanf(r->f, " %d", &r->group.ranks) != 1)
        return bad(r, "a group without a number of ranks");
    TRY(read_text(r));
    snprintf(r->group_name, sizeof r->group_name, "%s", r->word);
    r->open.group = &r->group;
    return TESS_OK;
}

/* With `weak`, settings from the environment or the command line win. If the total of microbatches is set, accum is
 * dropped. */
static void add_settings(tess_options *o, tess_setting *all, const tess_setting *more, uint32_t n, int weak) {
    for (uint32_t i = 0; i < n; i++)
        if (!(weak && tool_option_text(more[i].key)) && !(o->microbatches && strcmp(more[i].key, "accum") == 0))
            all[o->n_settings++] = more[i];
}

/* The last of the options: opens the engine. The program's are weaker than the environment and the command line, unless
 * it says TESS_OPTIONS_WIN. A later one of the same key takes the place of an earlier. */
static tess_status read_open(reader *r) {
    tess_options *o = &r->open, command = { 0 };
    if (r->t || !tess__fields_read(r->f, tess__fields_of_options, o))
        return bad(r, "options that are cut short");
    int wins = (o->flags & TESS_OPTIONS_WIN) != 0;
    if (!wins && tool_option_text("accum"))
        o->microbatches = 0;
    tool_settings_give(&command);
    tess_setting *all = calloc((size_t)r->n_settings + command.n_settings + 1, sizeof *all);
    if (!all)
        return tess_fail(TESS_E_NOMEM, "no memory for %u options", r->n_settings);
    o->flags |= TESS_OPTIONS_WIN;
    o->settings = all;
    if (!wins)
        add_settings(o, all, r->settings, r->n_settings, 1);
    add_settings(o, all, command.settings, command.n_settings, 0);
    if (wins)
        add_settings(o, all, r->settings, r->n_settings, 0);
    tess_status status = tess_open(o, &r->t);
    free(all);
    return status;
}

/* Reads how many engines the program had opened by then (plan_program_engines). */
static tess_status read_engines(reader *r) {
    int opened;
    return fscanf(r->f, " %d", &opened) == 1 ? TESS_OK : bad(r, "no number of engines");
}

static tess_status never_runs(void *user, const tess_block_call *call) {
    (void)user, (void)call;
    return tess_fail(TESS_E_INTERNAL, "a block that is only planned");
}

/* The second module of the block that comes next. */
static tess_status read_also(reader *r) {
    tess_status status = read_text(r);
    free(r->also);
    r->also = status == TESS_OK ? strdup(r->word) : NULL;
    return status != TESS_OK || r->also ? status : tess_fail(TESS_E_NOMEM, "no memory for a name");
}

static tess_status read_block(reader *r) {
    tess_block_options o = { .struct_size = sizeof o, .forward = never_runs, .backward = never_runs };
    if (!tess__fields_read(r->f, tess__fields_of_block, &o))
        return bad(r, "a block that is cut short");
    tess_status status = read_text(r);
    o.name = r->word;
    o.also = r->also;
    status = status == TESS_OK ? tess_block_add(r->t, &o, NULL) : status;
    free(r->also);
    r->also = NULL;
    return status;
}

static tess_status keep_name(reader *r) {
    if (r->n_names == r->cap_names) {
        int64_t more = r->cap_names ? 2 * r->cap_names : 64;
        char **bigger = realloc(r->names, (size_t)more * sizeof *bigger);
        if (!bigger)
            return tess_fail(TESS_E_NOMEM, "no memory for %" PRId64 " names", more);
        r->names = bigger;
        r->cap_names = more;
    }
    r->names[r->n_names] = strdup(r->word);
    return r->names[r->n_names++] ? TESS_OK : tess_fail(TESS_E_NOMEM, "no memory for a name");
}

static tess_status read_param(reader *r) {
    int64_t shape[8];
    tess_param_options o = { .struct_size = sizeof o };
    if (!tess__fields_read(r->f, tess__fields_of_param, &o) || o.ndim < 0 || o.ndim > 8)
        return bad(r, "a parameter that is cut short");
    for (int32_t d = 0; d < o.ndim; d++)
        if (fscanf(r->f, " %" SCNd64, &shape[d]) != 1)
            return bad(r, "a shape that is cut short");
    TRY(read_text(r));
    TRY(keep_name(r));
    o.name = r->word;
    o.shape = o.ndim ? shape : NULL;
    return tess_param_add(r->t, &o, NULL);
}

static tess_status read_tie(reader *r) {
    int of = 0;
    if (fscanf(r->f, " %d", &of) != 1 || of < 0 || of >= r->n_names)
        return bad(r, "a tie to no parameter");
    TRY(read_text(r));
    TRY(keep_name(r));
    return tess_param_tie(r->t, r->word, r->names[of]);
}

static tess_status read_alloc(reader *r) {
    uint64_t bytes = 0;
    void *none;
    if (fscanf(r->f, " %" SCNu64, &bytes) != 1)
        return bad(r, "an allocation without a size");
    return tess_alloc(r->t, NULL, bytes, &none);
}

static uint64_t holds_nothing(void *user, uint64_t *most) {
    (void)user;
    return *most = 0;
}

/* The program holds memory of its own, of which the report says so. */
static tess_status read_held(reader *r) {
    return tess_ledger_held(r->t, holds_nothing, NULL);
}

static tess_status read_scope(reader *r) {
    TRY(read_text(r));
    return tess_scope_add(r->t, r->word, 0, NULL);
}

static tess_status read_all(reader *r) {
    static const struct {
        const char *word;
        tess_status (*read)(reader *);
    } lines[] = { { "option", read_option },   { "group", read_group }, { "open", read_open },
                  { "scope", read_scope },     { "block", read_block }, { "param", read_param },
                  { "tie", read_tie },         { "alloc", read_alloc }, { "also", read_also },
                  { "engines", read_engines }, { "held", read_held } };
    enum { N = sizeof lines / sizeof lines[0] };
    char line[sizeof TESS__DESCRIBE_MAGIC + 1] = "", word[16];
    if (!fgets(line, sizeof line, r->f) || strcmp(line, TESS__DESCRIBE_MAGIC "\n") != 0)
        return bad(r, "another first line");
    while (fscanf(r->f, " %15s", word) == 1) {
        size_t i = 0;
        if (strcmp(word, TESS__DESCRIBE_END) == 0)
            return r->t ? TESS_OK : bad(r, "no options");
        while (i < N && strcmp(lines[i].word, word) != 0)
            i++;
        if (i == N || (i >= 3 && !r->t))
            return bad(r, "a line of no known kind");
        TRY(lines[i].read(r));
    }
    return bad(r, "no end");
}

int plan_program_is_description(const char *path) {
    char line[sizeof TESS__DESCRIBE_MAGIC + 1] = "";
    struct stat st;
    FILE *f = stat(path, &st) == 0 && S_ISREG(st.st_mode) ? fopen(path, "re") : NULL; /* a FIFO would block */
    int is = f && fgets(line, sizeof line, f) && strcmp(line, TESS__DESCRIBE_MAGIC "\n") == 0;
    if (f)
        fclose(f);
    return is;
}

void plan_program_file(const char *path, int32_t number, char *out, size_t n) {
    tess__describe_path(path, number, out, n);
}

int32_t plan_program_engines(const char *path, int32_t *opened) {
    int32_t n = 0;
    char own[PATH_MAX], word[32];
    *opened = 1;
    for (plan_program_file(path, 1, own, sizeof own); plan_program_is_description(own) && is_complete(own);
         plan_program_file(path, n + 1, own, sizeof own)) {
        FILE *f = fopen(own, "re");
        while (f && fscanf(f, "%31s", word) == 1)
            if (strcmp(word, "engines") == 0 && fscanf(f, "%d", opened) == 1)
                break;
        if (f)
            fclose(f);
        n++;
    }
    return n;
}

tess_status plan_program_open(const char *path, int32_t ranks, tess **out) {
    reader r = { .path = path, .open = { .struct_size = sizeof r.open, .plan_only = 1, .ranks = ranks } };
    r.f = fopen(path, "re");
    if (!r.f)
        return tess_fail(TESS_E_DATA, "%s: %s", path, strerror(errno));
    tess_status status = read_all(&r);
    if (status == TESS_OK)
        status = tess_shard(r.t, NULL, NULL);
    fclose(r.f);
    for (int64_t i = 0; i < r.n_names; i++)
        free(r.names[i]);
    free(r.names);
    for (uint32_t i = 0; i < r.n_settings; i++)
        free((void *)r.settings[i].key), free((void *)r.settings[i].value);
    free(r.settings);
    free(r.word);
    free(r.also);
    if (status == TESS_E_PLANNED || status == TESS_E_BUDGET) {
        *out = r.t;
        return status == TESS_E_PLANNED ? TESS_OK : status;
    }
    tess_close(r.t);
    return status;
}

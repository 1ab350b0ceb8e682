#include "common.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "options.h"

enum { KEY_FIRST = 0x1000, MOST_NAMES = 128 };

/* The shared options; type and help stand in the core's table. Bounds of whole numbers and of reals. */
typedef struct {
    const char *key;
    const char *value; /* as --help shows it; null: a flag */
    double least, most;
} shared_option;
static const shared_option shared[] = {
    { "ranks", "N", 1, 1 << 20 },     { "comm", "PLUGIN", 0, 0 },
    { "offload", "PLUGIN", 0, 0 },    { "precision", "PLUGIN", 0, 0 },
    { "wrap", "POLICY", 0, 0 },       { "strategy", "STRATEGY", 0, 0 },
    { "device", "PLUGIN", 0, 0 },     { "device-memory", "BYTES", 0, 0 },
    { "host-memory", "BYTES", 0, 0 }, { "activations", "keep|recompute|offload", 0, 0 },
    { "prefetch", "N", 0, 8 },        { "batch", "B", 1, 1 << 20 },
    { "accum", "K", 1, 1 << 16 },     { "sync", "each|end", 0, 0 },
    { "threads", "N", 1, 4096 },      { "isa", "NAME", 0, 0 },
    { "deterministic", NULL, 0, 0 },  { "strict", NULL, 0, 0 },
    { "seed", "S", 0, 9e18 },         { "steps", "S", 1, 1e15 },
    { "epochs", "E", 1, 1e9 },        { "optimizer", "NAME", 0, 0 },
    { "lr", "RATE", 0, 1e6 },         { "momentum", "M", 0, 1 },
    { "weight-decay", "D", 0, 1e6 },  { "clip", "NORM", 0, 1e30 },
    { "layers", "N", 1, 4096 },       { "heads", "N", 1, 4096 },
    { "width", "N", 1, 1 << 20 },     { "context", "N", 1, 1 << 20 },
    { "image-size", "N", 3, 4096 },   { "hidden", "N", 1, 4096 },
    { "data", "PATH", 0, 0 },         { "save", "DIR", 0, 0 },
    { "save-every", "N", 1, 1e15 },   { "resume", "DIR", 0, 0 },
    { "machine", "NAME|FILE", 0, 0 }, { "from", "FILE", 0, 0 },
    { "json", "FILE", 0, 0 },         { "report", "FILE", 0, 0 },
    { "quiet", NULL, 0, 0 },          { "log", "LEVEL", 0, 0 },
};
enum { N_SHARED = sizeof shared / sizeof shared[0] };

error_t tool_usage_error(const struct argp_state *state, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", state->name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return EINVAL;
}

int tool_report(tess_status status) {
    tess__log(TESS_LOG_ERROR, "%s", tess_last_error());
    return tess_exit_code(status);
}

const char *tool_suggestion(const char *word, const char *const *names, size_t n) {
    static char text[128];
    const char *near = tess__nearest(word, names, n);
    text[0] = '\0';
    if (near)
        snprintf(text, sizeof text, "; did you mean '%s'?", near);
    return text;
}

/* ---- the shared options ------------------------------------------------------------------------ */

static tess_status check_value(const shared_option *s, const tess__option *row) {
    int64_t whole = 0;
    double real = s->least;
    uint64_t bytes;
    int flag;
    const char *text;
    switch (row->type) {
    case TESS_OPTION_INT: return tess__option_int(s->key, (int64_t)s->least, (int64_t)s->most, &whole);
    case TESS_OPTION_BYTES: return tess__option_bytes(s->key, &bytes);
    case TESS_OPTION_FLAG: return tess__option_flag(s->key, &flag);
    case TESS_OPTION_CHOICE: return tess__option_choice(s->key, &text);
    case TESS_OPTION_REAL: {
        tess_status status = tess__option_real(s->key, &real);
        return status == TESS_OK && (real < s->least || real > s->most) ? TESS_PENDING : status;
    }
    default: return TESS_OK;
    }
}

/* Sets the variable, then reads it as everyone else will: one set of rules for both. */
static error_t set_variable(const struct argp_state *state, const shared_option *s, const char *text) {
    char name[80];
    if (!*text)
        return tool_usage_error(state, "--%s is empty", s->key);
    if (!tess__option_variable(s->key, name) || setenv(name, text, 1) != 0)
        return ENOMEM;
    tess_status status = check_value(s, tess__option_find(s->key));
    if (status == TESS_OK)
        return 0;
    if (status == TESS_PENDING)
        return tool_usage_error(state, "--%s is '%s', expected a number from %g to %g", s->key, text, s->least,
                                s->most);
    /* "TESSERA_LR is 'x', expected …": the user wrote --lr. */
    const char *message = tess_last_error();
    size_t n = strlen(name);
    return tool_usage_error(state, "--%s%s", s->key, strncmp(message, name, n) == 0 ? message + n : " is not usable");
}

static error_t parse_shared(int key, char *text, struct argp_state *state) {
    if (key == 'n')
        key = KEY_FIRST;
    if (key < KEY_FIRST || key >= KEY_FIRST + N_SHARED)
        return ARGP_ERR_UNKNOWN;
    return set_variable(state, &shared[key - KEY_FIRST], text ? text : "1");
}

const struct argp *tool_common_argp(void) {
    static struct argp_option options[N_SHARED + 1];
    static const struct argp argp = { options, parse_shared, NULL, NULL, NULL, NULL, NULL };
    for (int i = 0; i < N_SHARED && !options[N_SHARED - 1].name; i++) {
        const tess__option *row = tess__option_find(shared[i].key);
        int optional = !shared[i].value || strcmp(shared[i].key, "json") == 0;
        options[i] = (struct argp_option){ .name = shared[i].key,
                                           .key = i == 0 ? 'n' : KEY_FIRST + i,
                                           .arg = shared[i].value ? shared[i].value : "0|1",
                                           .flags = optional ? OPTION_ARG_OPTIONAL : 0,
                                           .doc = row->help };
    }
    return &argp;
}

/* ---- parsing ----------------------------------------------------------------------------------- */

typedef struct {
    const struct argp_option *options[MOST_NAMES];
    const char *names[MOST_NAMES];
    size_t n;
} known_options;

static void collect(const struct argp *argp, known_options *known) {
    for (const struct argp_option *o = argp->options; o && (o->name || o->key || o->doc); o++)
        if (o->name && known->n < MOST_NAMES) {
            known->options[known->n] = o;
            known->names[known->n++] = o->name;
        }
    for (const struct argp_child *c = argp->children; c && c->argp; c++)
        collect(c->argp, known);
}

static const struct argp_option *find_option(const known_options *known, const char *name, size_t length,
                                             int short_key) {
    for (size_t i = 0; i < known->n; i++)
        if (name ? strncmp(known->names[i], name, length) == 0 && !known->names[i][length]
                 : known->options[i]->key == short_key)
            return known->options[i];
    return NULL;
}

static int takes_value(const struct argp_option *o) {
    return o->arg && !(o->flags & OPTION_ARG_OPTIONAL);
}

static int is_argps_own(const char *word) {
    static const char *const own[] = { "--help", "-?", "--usage", "--version", "-V" };
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strcmp(word, own[i]) == 0)
            return 1;
    return 0;
}

static int bad_option(const char *command, const char *word, const char *suggestion) {
    fprintf(stderr, "%s: unknown option '%s'%s\n", command, word, suggestion);
    return TOOL_USAGE;
}

/* One word that begins with a hyphen. *skip: its value is the next word. */
static int check_word(const known_options *known, const char *command, const char *word, int *skip) {
    char dashed[MOST_NAMES][40];
    const char *names[MOST_NAMES];
    int is_long = word[1] == '-';
    size_t length = is_long ? strcspn(word + 2, "=") : 0;
    const struct argp_option *o = find_option(known, is_long ? word + 2 : NULL, length, word[1]);
    *skip = 0;
    if (!o && is_long) {
        for (size_t i = 0; i < known->n; i++) {
            snprintf(dashed[i], sizeof dashed[i], "--%s", known->names[i]);
            names[i] = dashed[i];
        }
        char name[48];
        snprintf(name, sizeof name, "%.*s", (int)(length + 2), word);
        return bad_option(command, word, tool_suggestion(name, names, known->n));
    }
    if (!o)
        return bad_option(command, word, "");
    int value = is_long ? word[2 + length] == '=' : word[2] != '\0';
    if (value && !o->arg) {
        fprintf(stderr, "%s: option '--%s' takes no value\n", command, o->name);
        return TOOL_USAGE;
    }
    *skip = takes_value(o) && !value;
    return TOOL_OK;
}

/* getopt's own messages take two lines and know no near name, so it is only given what it understands. */
static int check_words(const struct argp *argp, unsigned flags, int argc, char **argv) {
    known_options known = { .n = 0 };
    collect(argp, &known);
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        int skip = 0, code = TOOL_OK;
        if (argv[i][0] != '-' || !argv[i][1]) {
            if (flags & ARGP_IN_ORDER)
                return TOOL_OK;
            continue;
        }
        if (!is_argps_own(argv[i]))
            code = check_word(&known, argv[0], argv[i], &skip);
        if (code == TOOL_OK && skip && ++i == argc) {
            fprintf(stderr, "%s: option '%s' needs a value\n", argv[0], argv[i - 1]);
            code = TOOL_USAGE;
        }
        if (code != TOOL_OK)
            return code;
    }
    return TOOL_OK;
}

static void print_version(FILE *out, struct argp_state *state) {
    (void)state;
    fputs("tessera " TESSERA_VERSION "\n", out);
}

int tool_parse(const struct argp *argp, unsigned flags, int argc, char **argv, void *input) {
    static char command[64];
    snprintf(command, sizeof command, "tessera %s", argv[0]);
    argv[0] = command;
    argp_program_version_hook = print_version;
    int code = check_words(argp, flags, argc, argv);
    if (code != TOOL_OK)
        return code;
    error_t error = argp_parse(argp, argc, argv, flags, NULL, input);
    if (error == ENOMEM)
        fprintf(stderr, "%s: no memory\n", command);
    return error == 0 ? TOOL_OK : error == ENOMEM ? TOOL_MEMORY : TOOL_USAGE;
}

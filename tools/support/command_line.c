/* SPDX-License-Identifier: BSD-3-Clause */
#include "command_line.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "say.h"
#include "options.h"
#include "settings.h"
#include "version.h"

enum { KEY_FIRST = 0x1000, MOST_NAMES = 128 };

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
    tool_say(SAY_ERROR, "%s", tess_last_error());
    return tess_exit_code(status);
}

const char *tool_suggestion(const char *word, const char *const *names, size_t n) {
    static char text[128];
    const char *near = tool_nearest(word, names, n);
    text[0] = '\0';
    if (near)
        snprintf(text, sizeof text, "; did you mean '%s'?", near);
    return text;
}

void tool_put_word(FILE *f, const char *text) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%+,-./:=@_";
    int quoted = !*text || text[strspn(text, plain)];
    fputs(quoted ? " '" : " ", f);
    for (const char *at = text; *at; at++)
        if (*at == '\'')
            fputs("'\\''", f);
        else
            fputc(*at, f);
    if (quoted)
        fputc('\'', f);
}

/* ---- the shared options ------------------------------------------------------------------------ */

tess_status tool_option_ranks(int64_t most, int64_t *out) {
    const char *text = tool_option_text("ranks");
    char variable[80];
    if (!text || !strchr(text, ':'))
        return tool_option_int_in("ranks", 1, most, out);
    return tess_fail(TESS_E_INVALID,
                     "%s is '%.40s', expected one number; `tessera run --ranks %.40s -- PROGRAM` goes on with fewer",
                     tool_option_variable("ranks", variable), text, text);
}

static tess_status check_value(const tool_option *s) {
    int64_t whole = 0;
    double real = s->least;
    uint64_t bytes;
    int flag;
    const char *text;
    switch (tool_option_of(s).type) {
    case TESS_OPTION_INT:
        return strcmp(s->key, "ranks") == 0 ? tool_option_ranks((int64_t)s->most, &whole)
                                            : tool_option_int(s->key, &whole);
    case TESS_OPTION_BYTES: return tool_option_bytes(s->key, &bytes);
    case TESS_OPTION_FLAG: return tool_option_flag(s->key, &flag);
    case TESS_OPTION_CHOICE: return tool_option_choice(s->key, &text);
    case TESS_OPTION_REAL: {
        tess_status status = tool_option_real(s->key, &real);
        return status == TESS_OK && (real < s->least || real > s->most) ? TESS_PENDING : status;
    }
    default: return TESS_OK;
    }
}

/* Sets the option and then reads it as all other code does, so that both follow the same rules. */
static error_t set_variable(const struct argp_state *state, const tool_option *s, const char *text) {
    char name[80];
    if (!*text)
        return tool_usage_error(state, "--%s is empty", s->key);
    if (!tool_option_variable(s->key, name) || tool_settings_set(s->key, text) != TESS_OK)
        return ENOMEM;
    tess_status status = check_value(s);
    if (status == TESS_OK)
        return 0;
    if (status == TESS_PENDING)
        return tool_usage_error(state, "--%s is '%s', expected a number from %g to %g", s->key, text, s->least,
                                s->most);
    /* The message names TESSERA_LR, but the user wrote --lr. */
    const char *message = tess_last_error();
    size_t n = strlen(name);
    return tool_usage_error(state, "--%s%s", s->key, strncmp(message, name, n) == 0 ? message + n : " is not usable");
}

static const tool_option *shared_of_key(int key) {
    if (key == 'n')
        return tool_option_find("ranks", strlen("ranks"));
    return key >= KEY_FIRST && key < KEY_FIRST + MOST_NAMES ? &tool_options[key - KEY_FIRST] : NULL;
}

static error_t parse_shared(int key, char *text, struct argp_state *state) {
    const tool_option *s = shared_of_key(key);
    return s ? set_variable(state, s, text ? text : "1") : ARGP_ERR_UNKNOWN;
}

const struct argp *tool_common_argp(void) {
    static struct argp_option options[MOST_NAMES];
    static const struct argp argp = { options, parse_shared, NULL, NULL, NULL, NULL, NULL };
    for (int i = 0, n = 0; tool_options[i].key; i++) {
        const tool_option *s = &tool_options[i];
        if (!s->commands)
            continue;
        int optional = !s->value || tool_option_may_stand_alone(s->key);
        options[n++] = (struct argp_option){ .name = s->key,
                                             .key = strcmp(s->key, "ranks") == 0 ? 'n' : KEY_FIRST + i,
                                             .arg = s->value ? s->value : "0|1",
                                             .flags = optional ? OPTION_ARG_OPTIONAL : 0,
                                             .doc = tool_option_of(s).help };
    }
    return &argp;
}

/* ---- parsing ----------------------------------------------------------------------------------- */

typedef struct {
    const char *command;   /* "tessera train" */
    const tool_page *page; /* or null */
    const struct argp_option *options[MOST_NAMES];
    const char *names[MOST_NAMES];
    size_t n;
    const struct argp_option *given[MOST_NAMES]; /* options on the command line */
    size_t n_given;
    const char *subject; /* the first word that is no option, for tool_option_is_for */
    int help;            /* form of help that is asked for, or -1 */
} command_line;

static void collect(const struct argp *argp, command_line *line) {
    for (const struct argp_option *o = argp->options; o && (o->name || o->key || o->doc); o++)
        if (o->name && line->n < MOST_NAMES) {
            line->options[line->n] = o;
            line->names[line->n++] = o->name;
        }
    for (const struct argp_child *c = argp->children; c && c->argp; c++)
        collect(c->argp, line);
}

static const struct argp_option *find_option(const command_line *line, const char *name, size_t length, int short_key) {
    for (size_t i = 0; i < line->n; i++)
        if (name ? strncmp(line->names[i], name, length) == 0 && !line->names[i][length]
                 : line->options[i]->key == short_key)
            return line->options[i];
    return NULL;
}

static int takes_value(const struct argp_option *o) {
    return o->arg && !(o->flags & OPTION_ARG_OPTIONAL);
}

static int is_argps_own(const char *word) {
    static const char *const own[] = { "--usage", "--version", "-V" };
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strcmp(word, own[i]) == 0)
            return 1;
    return 0;
}

/* Recognises -h, -?, --help and --help=FORM. */
static int is_help(command_line *line, const char *word) {
    int form = TOOL_HELP_TEXT;
    if (strncmp(word, "--help=", 7) == 0)
        form = tool_help_form(word + 7);
    else if (strcmp(word, "--help") != 0 && strcmp(word, "-?") != 0 && strcmp(word, "-h") != 0)
        return 0;
    if (form < 0)
        return 0;
    line->help = form;
    return 1;
}

static int bad_option(const char *command, const char *word, const char *suggestion) {
    fprintf(stderr, "%s: unknown option '%s'%s\n", command, word, suggestion);
    return TOOL_USAGE;
}

static int bad_long_option(const command_line *line, const char *word, size_t length) {
    char dashed[MOST_NAMES][40], name[48];
    const char *names[MOST_NAMES];
    for (size_t i = 0; i < line->n; i++) {
        snprintf(dashed[i], sizeof dashed[i], "--%s", line->names[i]);
        names[i] = dashed[i];
    }
    snprintf(name, sizeof name, "%.*s", (int)(length + 2), word);
    return bad_option(line->command, word, tool_suggestion(name, names, line->n));
}

/* Checks one word that begins with a hyphen. Sets *skip if the next word is its value. */
static int check_word(command_line *line, const char *word, int *skip) {
    int is_long = word[1] == '-';
    size_t length = is_long ? strcspn(word + 2, "=") : 0;
    const struct argp_option *o = find_option(line, is_long ? word + 2 : NULL, length, word[1]);
    *skip = 0;
    if (!o)
        return is_long ? bad_long_option(line, word, length) : bad_option(line->command, word, "");
    int value = is_long ? word[2 + length] == '=' : word[2] != '\0';
    if (value && !o->arg) {
        fprintf(stderr, "%s: option '--%s' takes no value\n", line->command, o->name);
        return TOOL_USAGE;
    }
    *skip = takes_value(o) && !value;
    if (line->n_given < MOST_NAMES)
        line->given[line->n_given++] = o;
    return TOOL_OK;
}

/* Keeps the subject as the table of shared options names it: a model, or "FILE" for any path. */
static void take_subject(command_line *line, const char *word) {
    const tool_subject *known = line->page ? tool_help_subject(line->page, word) : NULL;
    if (!line->subject)
        line->subject = known ? known->name : strpbrk(word, "./") ? "FILE" : word;
}

/* getopt's messages take two lines and suggest no near name, so this checks the words first. */
static int check_words(command_line *line, unsigned flags, int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        int skip = 0, code = TOOL_OK;
        if (argv[i][0] != '-' || !argv[i][1]) {
            if (flags & ARGP_IN_ORDER)
                return TOOL_OK;
            take_subject(line, argv[i]);
            continue;
        }
        if (!is_help(line, argv[i]) && !is_argps_own(argv[i]))
            code = check_word(line, argv[i], &skip);
        if (code == TOOL_OK && skip && ++i == argc) {
            fprintf(stderr, "%s: option '%s' needs a value\n", line->command, argv[i - 1]);
            code = TOOL_USAGE;
        }
        if (code != TOOL_OK)
            return code;
    }
    return TOOL_OK;
}

static int is_own(const struct argp *argp, const struct argp_option *option) {
    for (const struct argp_option *a = argp->options; a && a->name; a++)
        if (a == option)
            return 1;
    return 0;
}

/* Any other subject passes here, because the parser refuses it with a better message. */
static int subject_takes(const command_line *line, const tool_option *o) {
    const char *subject = line->subject;
    if (!line->page->by_subject || !subject)
        return 1;
    if (!tool_help_subject(line->page, subject) && strcmp(subject, "FILE") != 0)
        return 1;
    return tool_option_is_for(o, subject);
}

/* Looks in the page's list of subjects that take the option; prints a line if the subject is not among them. */
static int page_takes(const command_line *line, const char *name) {
    const char *takers = tool_help_takers(line->page, name);
    const char *subject = line->subject ? line->subject : line->page->without;
    if (!takers || (subject && !tool_help_subject(line->page, subject)) || (subject && tool_listed(takers, subject)))
        return 1;
    if (line->subject)
        fprintf(stderr, "%s: %s takes no --%s, only %s\n", line->command, line->subject, name, takers);
    else
        fprintf(stderr, "%s: takes --%s only with %s\n", line->command, name, takers);
    return 0;
}

/* Checks that the command and its subject take the options given. */
static int check_taken(const command_line *line, const struct argp *argp) {
    for (size_t i = 0; i < line->n_given; i++) {
        const char *name = line->given[i]->name;
        const tool_option *o = tool_option_find(name, strlen(name));
        if (!o || is_own(argp, line->given[i])) {
            if (page_takes(line, name))
                continue;
        } else if (!(o->commands & line->page->shared))
            fprintf(stderr, "%s: takes no --%s; `%s --help` lists its options\n", line->command, name, line->command);
        else if (!subject_takes(line, o))
            fprintf(stderr, "%s: %s takes no --%s, only %s\n", line->command, line->subject, name, o->subjects);
        else if (page_takes(line, name))
            continue;
        return TOOL_USAGE;
    }
    return TOOL_OK;
}

static void print_version(FILE *out, struct argp_state *state) {
    (void)state;
    tool_version(out);
}

static int parse_line(const tool_page *page, const struct argp *argp, unsigned flags, int argc, char **argv,
                      void *input) {
    static char command[64];
    command_line line = { .command = command, .page = page, .help = -1 };
    snprintf(command, sizeof command, "tessera %s", argv[0]);
    argv[0] = command;
    argp_program_version_hook = print_version;
    collect(argp, &line);
    int code = check_words(&line, flags, argc, argv);
    if (line.help >= 0 && code == TOOL_OK && page) {
        tool_help_print(stdout, page, argp->options, line.subject, line.help);
        exit(TOOL_OK);
    }
    if (line.help >= 0 && code == TOOL_OK)
        argp_help(argp, stdout, ARGP_HELP_STD_HELP, command), exit(TOOL_OK);
    if (code == TOOL_OK && page)
        code = check_taken(&line, argp);
    if (code != TOOL_OK)
        return code;
    error_t error = argp_parse(argp, argc, argv, flags, NULL, input);
    if (error == ENOMEM)
        fprintf(stderr, "%s: no memory\n", command);
    return error == 0 ? TOOL_OK : error == ENOMEM ? TOOL_MEMORY : TOOL_USAGE;
}

int tool_parse(const struct argp *argp, unsigned flags, int argc, char **argv, void *input) {
    return parse_line(NULL, argp, flags, argc, argv, input);
}

int tool_parse_page(const tool_page *page, const struct argp *argp, unsigned flags, int argc, char **argv,
                    void *input) {
    return parse_line(page, argp, flags, argc, argv, input);
}

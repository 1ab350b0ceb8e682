/* SPDX-License-Identifier: BSD-3-Clause */
#include "help.h"

#include <string.h>

#include "options.h"

enum { WIDTH = 100, COLUMN = 30 };

/* One option, whether shared or the command's own. */
typedef struct {
    int letter; /* 0: none */
    const char *name, *value;
    int value_optional;
    const char *help, *choices, *fallback, *subjects;
    char text[64]; /* storage that fallback may point to */
} help_row;

static const char *summary = "";

static const char *const group_titles[TOOL_GROUPS] = {
    [TOOL_GROUP_OWN] = "Options",         [TOOL_GROUP_MODEL] = "Model",   [TOOL_GROUP_DATA] = "Data",
    [TOOL_GROUP_OPTIMIZER] = "Optimizer", [TOOL_GROUP_MEMORY] = "Memory", [TOOL_GROUP_RANKS] = "Ranks and devices",
    [TOOL_GROUP_OUTPUT] = "Output",
};

const tool_subject *tool_help_subject(const tool_page *page, const char *name) {
    for (const tool_subject *s = page->subjects; s && s->name; s++)
        if (name && strcmp(s->name, name) == 0)
            return s;
    return NULL;
}

const char *tool_help_takers(const tool_page *page, const char *option) {
    for (const tool_takers *o = page->takers; o && o->option; o++)
        if (strcmp(o->option, option) == 0)
            return o->subjects;
    return NULL;
}

void tool_help_set_summary(const char *text) {
    summary = text;
}

int tool_help_form(const char *text) {
    static const char *const forms[] = { "text", "man", "options" };
    for (int i = 0; text && *text && i < 3; i++)
        if (strcmp(text, forms[i]) == 0)
            return i;
    return !text || !*text ? TOOL_HELP_TEXT : -1;
}

/* ---- rows ---------------------------------------------------------------------------------------- */
static void row_of_shared(const tool_option *o, const tool_page *page, const char *subject, help_row *out) {
    const tool_option known = tool_option_of(o);
    const char *takers = tool_help_takers(page, o->key);
    *out = (help_row){ .letter = strcmp(o->key, "ranks") == 0 ? 'n' : 0,
                       .name = o->key,
                       .value = o->value,
                       .value_optional = tool_option_may_stand_alone(o->key),
                       .help = known.help,
                       .choices = known.choices,
                       .fallback = known.fallback,
                       .subjects = subject  ? NULL
                                   : takers ? takers
                                            : o->subjects };
    const char *own = page->fallback ? page->fallback(subject, o->key, out->text) : NULL;
    if (own)
        out->fallback = own;
    if (known.type == TESS_OPTION_FLAG)
        out->fallback = NULL;
}

static void row_of_own(const struct argp_option *o, const char *subjects, help_row *out) {
    *out = (help_row){ .letter = o->key > ' ' && o->key < 127 ? o->key : 0,
                       .name = o->name,
                       .value = o->arg,
                       .value_optional = (o->flags & OPTION_ARG_OPTIONAL) != 0,
                       .help = o->doc,
                       .subjects = subjects };
}

/* Returns the next option to show. If `subject` is not null, it returns only options of that subject. Hidden options
 * are for our own processes. */
static const struct argp_option *next_own(const struct argp_option *o, const tool_page *page, const char *subject) {
    while (o && o->name && ((o->flags & OPTION_HIDDEN) || !tool_listed(tool_help_takers(page, o->name), subject)))
        o++;
    return o && o->name ? o : NULL;
}

typedef void (*title_fn)(FILE *, const char *title);
typedef void (*row_fn)(FILE *, const help_row *);

static void each_own(FILE *out, const tool_page *page, const struct argp_option *own, const char *subject,
                     title_fn title, row_fn put) {
    help_row row;
    const struct argp_option *o = next_own(own, page, subject);
    if (o)
        title(out, group_titles[TOOL_GROUP_OWN]);
    for (; o; o = next_own(o + 1, page, subject)) {
        row_of_own(o, subject ? NULL : tool_help_takers(page, o->name), &row);
        put(out, &row);
    }
}

/* A command's own option hides the shared one of the same name. */
static int is_own(const struct argp_option *own, const char *key) {
    for (; own && own->name; own++)
        if (strcmp(own->name, key) == 0)
            return 1;
    return 0;
}

static int is_shown(const tool_option *o, const tool_page *page, const struct argp_option *own, const char *subject,
                    uint32_t group) {
    return o->group == group && (o->commands & page->shared) && (!page->by_subject || tool_option_is_for(o, subject)) &&
           tool_listed(tool_help_takers(page, o->key), subject) && !is_own(own, o->key);
}

static void each_row(FILE *out, const tool_page *page, const struct argp_option *own, const char *subject,
                     title_fn title, row_fn put) {
    help_row row;
    each_own(out, page, own, subject, title, put);
    for (uint32_t group = TOOL_GROUP_MODEL; group < TOOL_GROUPS; group++) {
        int titled = 0;
        for (const tool_option *o = tool_options; o->key; o++) {
            if (!is_shown(o, page, own, subject, group))
                continue;
            if (!titled++)
                title(out, group_titles[group]);
            row_of_shared(o, page, subject, &row);
            put(out, &row);
        }
    }
}

/* ---- text ---------------------------------------------------------------------------------------- */
static int columns(const char *text, size_t bytes) {
    int n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* Wraps text that begins at column `at` and indents further lines by `indent`. Ends the line. */
static void wrap(FILE *out, const char *text, int at, int indent) {
    for (const char *word = text; *word;) {
        size_t bytes = strcspn(word, " ");
        int wide = columns(word, bytes);
        if (word != text && at + 1 + wide > WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
        } else if (word != text) {
            fputc(' ', out);
            at++;
        }
        at += wide;
        fwrite(word, 1, bytes, out);
        word += bytes + strspn(word + bytes, " ");
    }
    fputc('\n', out);
}

static void full_help(const help_row *row, char *out, size_t size) {
    int shows = row->value && row->choices && strcmp(row->value, row->choices) == 0;
    size_t at = (size_t)snprintf(out, size, "%s", row->help);
    if (row->choices && strchr(row->choices, '|') && !shows && at < size)
        at += (size_t)snprintf(out + at, size - at, ": %s", row->choices);
    if (row->subjects && strncmp(row->help, row->subjects, strcspn(row->subjects, " ")) != 0 && at < size)
        at += (size_t)snprintf(out + at, size - at, " (only %s)", row->subjects);
    if (row->fallback && at < size)
        snprintf(out + at, size - at, " [%s]", row->fallback);
}

static void usage_of(const help_row *row, char *out, size_t size) {
    char letter[8] = "    ";
    if (row->letter)
        snprintf(letter, sizeof letter, "-%c, ", row->letter);
    snprintf(out, size, "%s--%s%s%s%s", letter, row->name,
             !row->value           ? ""
             : row->value_optional ? "[="
                                   : " ",
             row->value ? row->value : "", row->value && row->value_optional ? "]" : "");
}

static void text_row(FILE *out, const help_row *row) {
    char left[128], help[512];
    usage_of(row, left, sizeof left);
    full_help(row, help, sizeof help);
    int at = columns(left, strlen(left)) + 2;
    fprintf(out, "  %s", left);
    if (at + 2 > COLUMN)
        fprintf(out, "\n%*s", COLUMN, "");
    else
        fprintf(out, "%*s", COLUMN - at, "");
    wrap(out, help, COLUMN, COLUMN);
}

static void text_title(FILE *out, const char *title) {
    fprintf(out, "\n%s:\n", title);
}

/* Prints `first` before the first line of `text` and `next` before the others. */
static void text_lines(FILE *out, const char *text, const char *first, const char *next) {
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, "\n");
        fprintf(out, "%s%.*s\n", at == text ? first : next, (int)n, at);
        at += n + (at[n] == '\n');
    }
}

/* Without a subject it prints only names, one line for each group, so that the page fits on a screen. */
static void text_names(FILE *out, const tool_page *page, const struct argp_option *own) {
    each_own(out, page, own, NULL, text_title, text_row);
    fprintf(out, "\nOptions, explained with their defaults by `tessera %s %s --help`:\n", page->command,
            page->subjects->name);
    for (uint32_t group = TOOL_GROUP_MODEL; group < TOOL_GROUPS; group++) {
        char names[512] = "";
        size_t at = 0;
        for (const tool_option *o = tool_options; o->key; o++)
            if (is_shown(o, page, own, NULL, group) && at < sizeof names)
                at += (size_t)snprintf(names + at, sizeof names - at, "%s--%s", at ? " " : "", o->key);
        if (!at)
            continue;
        fprintf(out, "  %-*s", COLUMN - 2, group_titles[group]);
        wrap(out, names, COLUMN, COLUMN);
    }
}

/* Prints the examples of one subject, or all. A line that begins with two blanks belongs to the line before. */
static void text_examples(FILE *out, const tool_page *page, const char *subject) {
    char begin[64];
    snprintf(begin, sizeof begin, "tessera %s %s ", page->command, subject ? subject : "");
    const int some = subject && strstr(page->examples, begin);
    int show = 1;
    text_title(out, "Examples");
    for (const char *at = page->examples; *at;) {
        size_t n = strcspn(at, "\n");
        if (*at != ' ')
            show = !some || strncmp(at, begin, strlen(begin)) == 0;
        if (show)
            fprintf(out, "  %.*s\n", (int)n, at);
        at += n + (at[n] == '\n');
    }
}

/* Prints the usage line that begins with the subject. If there is none, it prints the subject and [OPTION…]. */
static void usage_of_subject(FILE *out, const tool_page *page, const char *subject) {
    size_t n = strlen(subject);
    const char *at = page->usage;
    while (at && (strncmp(at, subject, n) != 0 || at[n] != ' ')) {
        at = strchr(at, '\n');
        at += at ? 1 : 0;
    }
    const char *line = at ? at : subject;
    fprintf(out, "Usage: tessera %s %.*s%s\n\n", page->command, (int)strcspn(line, "\n"), line, at ? "" : " [OPTION…]");
}

static void print_text(FILE *out, const tool_page *page, const struct argp_option *own, const char *subject) {
    const tool_subject *one = tool_help_subject(page, subject);
    char first[64], next[64];
    snprintf(first, sizeof first, "Usage: tessera %s ", page->command);
    snprintf(next, sizeof next, "       tessera %s ", page->command);
    if (one)
        usage_of_subject(out, page, one->name);
    else
        text_lines(out, page->usage, first, next);
    if (!one)
        fputc('\n', out);
    if (one)
        fprintf(out, "%s: ", one->name);
    wrap(out, one ? one->doc : page->doc, one ? (int)strlen(one->name) + 2 : 0, 0);
    if (!one && page->subjects)
        text_title(out, page->subjects_title);
    for (const tool_subject *s = page->subjects; !one && s && s->name; s++) {
        fprintf(out, "  %-*s", COLUMN - 2, s->name);
        wrap(out, s->doc, COLUMN, COLUMN);
    }
    if (!subject && page->by_subject)
        text_names(out, page, own);
    else
        each_row(out, page, own, subject, text_title, text_row);
    text_examples(out, page, subject);
    if (page->shared)
        fprintf(out, "\n[Defaults] are in brackets. Outside \"Options\" --some-option is also the variable "
                     "TESSERA_SOME_OPTION; the option wins.\n");
}

/* ---- man ----------------------------------------------------------------------------------------- */
/* Hyphens become minus signs, and no line begins with a dot or a quote, because troff reads those as requests. */
static void man_text(FILE *out, const char *text) {
    if (*text == '.' || *text == '\'')
        fputs("\\&", out);
    for (; *text; text++) {
        if (*text == '-' || *text == '\\')
            fputs(*text == '-' ? "\\-" : "\\e", out);
        else
            fputc(*text, out);
        if (*text == '\n' && (text[1] == '.' || text[1] == '\''))
            fputs("\\&", out);
    }
}

static void man_title(FILE *out, const char *title) {
    fputs(".SS ", out);
    man_text(out, title);
    fputc('\n', out);
}

static void man_row(FILE *out, const help_row *row) {
    char left[128], help[512];
    usage_of(row, left, sizeof left);
    full_help(row, help, sizeof help);
    fputs(".TP\n.B ", out);
    man_text(out, left + strspn(left, " "));
    fputc('\n', out);
    man_text(out, help);
    fputc('\n', out);
}

static void man_head(FILE *out, const tool_page *page) {
    fprintf(out, ".\\\" Made from the option tables.\n.TH TESSERA\\-");
    for (const char *c = page->command; *c; c++)
        fputc(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c, out);
    fprintf(out, " 1 \"\" \"tessera " TESSERA_VERSION "\" \"User Commands\"\n.SH NAME\ntessera\\-%s \\- ",
            page->command);
    man_text(out, summary);
    fputs("\n.SH SYNOPSIS\n.nf\n", out);
    char lead[64];
    snprintf(lead, sizeof lead, "\\fBtessera %s\\fR ", page->command);
    text_lines(out, page->usage, lead, lead);
    fputs(".fi\n.SH DESCRIPTION\n", out);
    man_text(out, page->doc);
    fputc('\n', out);
}

static void print_man(FILE *out, const tool_page *page, const struct argp_option *own) {
    man_head(out, page);
    if (page->subjects)
        man_title(out, page->subjects_title);
    for (const tool_subject *s = page->subjects; s && s->name; s++) {
        fprintf(out, ".TP\n.B %s\n", s->name);
        man_text(out, s->doc);
        fputc('\n', out);
    }
    fputs(".SH OPTIONS\n", out);
    if (page->shared)
        fputs("Outside \"Options\" \\-\\-some\\-option is also the variable TESSERA_SOME_OPTION; the option wins.\n",
              out);
    each_row(out, page, own, NULL, man_title, man_row);
    fputs(".SH EXAMPLES\n.nf\n", out);
    man_text(out, page->examples);
    fputs("\n.fi\n.SH EXIT STATUS\n"
          "0 success, 1 a check that failed, 2 usage, 3 a setting or plugin that cannot be used, 4 memory, 5 a lost "
          "rank or the network, 6 bad data.\n"
          ".SH SEE ALSO\n.BR tessera (1)\n",
          out);
}

/* ---- rows for completion -------------------------------------------------------------------------- */
static void no_title(FILE *out, const char *title) {
    (void)out;
    (void)title;
}

static void plain_row(FILE *out, const help_row *row) {
    const char *words = row->choices ? row->choices : "";
    if (row->value && !row->choices && strchr(row->value, '|') && row->value[0] >= 'a')
        words = row->value;
    fprintf(out, "--%s %s %s\n", row->name, row->value ? row->value : "-", *words ? words : "-");
}

void tool_help_print(FILE *out, const tool_page *page, const struct argp_option *own, const char *subject, int form) {
    if (form == TOOL_HELP_MAN)
        print_man(out, page, own);
    else if (form == TOOL_HELP_ROWS) {
        for (const tool_subject *s = page->subjects; s && s->name; s++)
            fprintf(out, "%s\n", s->name);
        each_row(out, page, own, NULL, no_title, plain_row);
    } else
        print_text(out, page, own, subject);
}

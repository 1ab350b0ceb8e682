/* SPDX-License-Identifier: BSD-3-Clause */
/* The page of a command: --help, its man page and its completion, all from one description. */
#ifndef TOOL_HELP_H
#define TOOL_HELP_H
#include <argp.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    const char *name; /* "gpt" */
    const char *doc;  /* "a language model of bytes" */
} tool_subject;

/** An option, the command's own or a shared one, that only some of the page's subjects take. */
typedef struct {
    const char *option, *subjects; /* "to", "reshard import" */
} tool_takers;

typedef struct {
    const char *command;        /* "train" */
    const char *usage;          /* "MODEL [OPTION…]"; a line per form, one that begins with a subject is that one's */
    const char *doc;            /* paragraphs of one line each */
    const char *subjects_title; /* "models"; null without subjects */
    const tool_subject *subjects; /* allowed first words; ends with a null name; may be null */
    int by_subject;               /* 1: the options depend on the first word */
    const char *examples;         /* lines: a command, or two blanks and what it does */
    uint32_t shared;              /* TOOL_TRAIN, …: the command's shared options; 0: none */
    /** The default of an option, for one subject where that is not null; may be null. Returns null for none. */
    const char *(*fallback)(const char *subject, const char *key, char out[64]);
    const tool_takers *takers; /* ends with a null option; or null: all take all */
    const char *without;       /* a command without a subject takes what this one takes; or null */
} tool_page;

enum { TOOL_HELP_TEXT, TOOL_HELP_MAN, TOOL_HELP_ROWS };

/** Writes the page. `subject`: one of the page's, or "FILE" or "PROGRAM", to show only what that takes; null: all.
 * `own`: the command's own options, or null. TOOL_HELP_ROWS: for completion, a line per subject and one per option:
 * "--name VALUE choices", "-" where there is none.
 */
void tool_help_print(FILE *, const tool_page *, const struct argp_option *own, const char *subject, int form);
/** The line of `tessera --help` on the command that runs, for its man page. Not copied. */
void tool_help_set_summary(const char *);
/** "text" null or "", "man", "options": the form; -1: none of them. */
int tool_help_form(const char *text);
/** The page's subjects that take this option; null: all do. */
const char *tool_help_takers(const tool_page *, const char *option);
/** The page's subject of that name, or null. */
const tool_subject *tool_help_subject(const tool_page *, const char *name);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Prints a command's help, man page and completion from one description. */
#ifndef TOOL_HELP_H
#define TOOL_HELP_H
#include <argp.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    const char *name; /* "gpt" */
    const char *doc;  /* "a language model of bytes" */
} tool_subject;

/** An option, the command's own or shared, that only some of the page's subjects take. */
typedef struct {
    const char *option, *subjects; /* "to", "reshard import" */
} tool_takers;

typedef struct {
    const char *command;          /* "train" */
    const char *usage;            /* "MODEL [OPTION…]"; one line for each form; a line may begin with a subject */
    const char *doc;              /* paragraphs of one line each */
    const char *subjects_title;   /* "models"; null without subjects */
    const tool_subject *subjects; /* allowed first words; ends with a null name; may be null */
    int by_subject;               /* 1: the options depend on the first word */
    const char *examples;         /* lines: a command, or two blanks and what it does */
    uint32_t shared;              /* TOOL_TRAIN, …: the command's shared options; 0: none */
    /** Returns an option's default, or null. `subject` may be null for any subject. The slot itself may be null. */
    const char *(*fallback)(const char *subject, const char *key, char out[64]);
    const tool_takers *takers; /* ends with a null option; null: every subject takes every option */
    const char *without;       /* without a subject, the command takes what this subject takes; may be null */
} tool_page;

enum { TOOL_HELP_TEXT, TOOL_HELP_MAN, TOOL_HELP_ROWS };

/** Writes the page. A `subject` of the page, "FILE" or "PROGRAM" limits it to the options of that subject. Null shows
 * all. `own` lists the command's own options and may be null. TOOL_HELP_ROWS is for completion. It prints one line for
 * each subject and one for each option, "--name VALUE choices", with "-" for an empty part. */
void tool_help_print(FILE *, const tool_page *, const struct argp_option *own, const char *subject, int form);
/** Sets the command's line of `tessera --help`, for its man page. The text is not copied. */
void tool_help_set_summary(const char *);
/** Returns the form for "text", null or "", "man" or "options", and -1 for other words. */
int tool_help_form(const char *text);
/** Returns the page's subjects that take this option, or null if all do. */
const char *tool_help_takers(const tool_page *, const char *option);
/** Returns the page's subject of that name, or null. */
const tool_subject *tool_help_subject(const tool_page *, const char *name);
#endif

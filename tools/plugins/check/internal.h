/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the command, which starts the ranks of a check, and the ranks. */
#ifndef TESSERA_CHECK_INTERNAL_H
#define TESSERA_CHECK_INTERNAL_H
#include <stdio.h>

#include "check.h"

enum { CHECK_EXIT_FAILED = 101, CHECK_EXIT_SKIPPED = 102, CHECK_EXIT_LOST = 103 };
enum { CHECK_RUNNING = 0, CHECK_DONE, CHECK_FAILED, CHECK_SKIPPED };

/* A rank may be killed at any moment, so the key-value store takes no lock. An entry belongs to the rank that gets its
 * number, and is valid once `ready` is set. */
typedef struct {
    atomic_int ready;
    uint64_t bytes;
    char key[160];
    unsigned char value[CHECK_VALUE_BYTES];
} check_entry;

typedef struct {
    atomic_int outcome, aborting;
    int64_t said_ns;
    char said[CHECK_TEXT], note[200];
    _Atomic(uint64_t) doing[4]; /* a slot's name of at most 31 characters */
} check_rank_report;

struct check_shared {
    char path[4096], builtin[32], args[512], suite[32], test[64];
    uint32_t kind;
    int nranks;
    atomic_int used, met;
    atomic_llong flags[CHECK_FLAGS];
    check_rank_report ranks[CHECK_RANKS];
    check_entry entries[CHECK_KEYS];
};

/* The plugin to check. */
typedef struct {
    char path[4096], builtin[32], args[512]; /* path is "" for a built-in plugin */
    uint32_t kinds;                          /* bit (1 << TESS_KIND_…) for each kind */
    tess_plugin_note note;                   /* for a file only */
} check_target;

typedef struct {
    int outcome; /* CHECK_DONE, CHECK_FAILED or CHECK_SKIPPED */
    double seconds;
    char message[CHECK_TEXT + 100];
    char output[2048]; /* end of the ranks' output, if the check failed */
} check_outcome;

/** Runs one check in processes of its own, and kills all that are left after `limit_ns`. `launch` is a command that
 * starts the ranks of a comm plugin, such as "mpirun -n %d". If it is null, this process starts them. */
void check_run_case(const check_target *, uint32_t kind, const check_suite *, const check_case *, int64_t limit_ns,
                    const char *launch, check_outcome *out);
/** Fills in c->host, the table that the plugin gets. */
void check_host(check *);
/** Fails the check if the loader would refuse the table. `what` is "open with …", or "" for the first open. */
void check_table(check *, const void *ops, const char *what);
/** Returns the bytes that the plugin has taken by host->mem_alloc: now, and at most. */
void check_taken(uint64_t *now, uint64_t *peak);
/** Runs after the last close. The plugin must have freed all that host->mem_alloc gave, and never taken more than
 * stated. */
void check_book(check *);
/** The main function of a rank's process. `text` is "FD,RANK", or "PATH,-1" under a launcher. It returns or exits with
 * an exit code. */
int check_rank_main(const char *text);

/* The counts of the three outcomes. */
typedef struct {
    int passed, failed, skipped;
} check_count;
typedef struct check_report {
    enum { CHECK_AS_TABLE, CHECK_AS_JSON, CHECK_AS_TAP } form;
    const char *target;
    int n_planned, n_told;
    check_count count;
    double seconds;
} check_report;
void check_report_begin(check_report *, const check_target *);
void check_report_case(check_report *, const char *suite, const char *test, const check_outcome *);
/** Returns -1 if something could not be written. */
int check_report_end(check_report *);
#endif

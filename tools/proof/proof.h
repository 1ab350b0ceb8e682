/* SPDX-License-Identifier: BSD-3-Clause */
/* Ledgers of digests as tessera replay and tessera bisect read and compare them: docs/proof.md. */
#ifndef TOOL_PROOF_H
#define TOOL_PROOF_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <tessera/tessera.h>

typedef struct {
    uint64_t step, root, line, *digests; /* by unit, then by kind */
} proof_step;

typedef struct { /* that was whole on disk */
    uint64_t step;
    char *path;
} proof_checkpoint;

typedef struct {
    const char *path;
    char *words; /* "key=value" of the run */
    char model[24];
    uint64_t first, every, lines; /* first: steps done where it begins */
    int deterministic, ended;
    char **units, **kinds;
    size_t n_units, n_kinds;
    proof_step *steps; /* ascending; of a step that ran again the last */
    size_t n_steps;
    proof_checkpoint *checkpoints;
    size_t n_checkpoints;
    uint64_t unlike; /* the first line whose step has run again with another root; 0: none */
} proof_ledger;

/** Reads a whole ledger. TESS_E_DATA names the first line that is not as it was written. */
tess_status proof_read(const char *path, proof_ledger *out);
void proof_free(proof_ledger *);
const proof_step *proof_find(const proof_ledger *, uint64_t step); /* null: it has none */
/** Returns 1 when words of the two runs differ, and writes the first of them. */
int proof_words_differ(const proof_ledger *a, const proof_ledger *b, char *in_a, char *in_b, size_t n);
/** The same for their "steps=", which proof_words_differ leaves out. */
int proof_steps_differ(const proof_ledger *a, const proof_ledger *b, char *in_a, char *in_b, size_t n);
/** Where a batch of the run has its samples, if its words say so (returns 1): first byte, bytes of a sample and of a
 * value. */
int proof_samples(const proof_ledger *, uint64_t out[3]);

typedef struct {
    int differs;
    uint64_t n, first, last; /* steps that both have, until one differs: that is the last */
    const proof_step *a, *b; /* the last */
    const char *unit, *kind; /* that the step made first; null: none, or a root alone */
} proof_finding;
/** Compares the steps that both have, up to `last`. TESS_E_DATA when there is nothing to compare. */
tess_status proof_compare(const proof_ledger *a, const proof_ledger *b, uint64_t last, proof_finding *out);
/** Prints a difference, and all that differ in its step. */
void proof_print(FILE *to, const proof_finding *, const proof_ledger *);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Where replay and bisect say what they found: as text on standard output, as JSON, or as both (docs/json.md). */
#ifndef TOOL_PROOF_OUTPUT_H
#define TOOL_PROOF_OUTPUT_H
#include "proof.h"
#include "tools/support/json_out.h"

typedef struct {
    FILE *text; /* null: standard output has the JSON */
    FILE *file; /* null: no JSON */
    json_out json;
} proof_output;

/** `json`: a file, "1" for standard output, or null for none. */
tess_status proof_output_open(const char *json, proof_output *);
void proof_output_close(proof_output *);

/** Begins the one object, with what two ledgers say; the caller ends it. */
void proof_json_begin(proof_output *, const char *event, const proof_finding *);
tess_status proof_json_end(proof_output *);
/** Says a finding, and returns its exit code. */
int proof_say(const proof_output *, const proof_finding *, const proof_ledger *);
#endif

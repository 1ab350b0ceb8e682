/* SPDX-License-Identifier: BSD-3-Clause */
/* Models described by a file, for `tessera plan`: a safetensors file, a folder as Hugging Face lays it out, or a JSON
 * description (docs/model-json.md). Only headers are read. */
#ifndef TOOL_PLAN_FILE_H
#define TOOL_PLAN_FILE_H
#include <tessera/tessera.h>

typedef struct plan_file plan_file;

/** Whether the word given to `tessera plan` means a file or folder: it has a '/' or a '.', or names a folder. */
int plan_file_is_path(const char *word);
/** Reads and checks the description. TESS_E_DATA with one line: the file, the place, what was expected. Reads the
 * options batch and context, which activations depend on. */
tess_status plan_file_open(const char *path, plan_file **out);
/** Tokens of a microbatch that activations are estimated for; 0: the file says nothing of them. */
double plan_file_tokens(const plan_file *);
/** Returns the bytes of one microbatch for tess_options.input_bytes; 0: unknown. */
uint64_t plan_file_input_bytes(const plan_file *);
/** Declares scopes or blocks, parameters and ties; before tess_shard. The engine is one that only plans, as blocks do
 * not compute. */
tess_status plan_file_declare(plan_file *, tess *);
/** One line on where the activations come from, for people; complete after plan_file_declare. */
const char *plan_file_note(const plan_file *);
/** 1: activations are from a formula, for "estimate" in JSON. */
int plan_file_is_estimate(const plan_file *);
void plan_file_close(plan_file *); /* null is fine; after tess_close */
#endif

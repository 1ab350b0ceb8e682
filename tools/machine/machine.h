/* SPDX-License-Identifier: BSD-3-Clause */
/* Descriptions of machines for the simulator (core/readers/simulate.h): the named ones, files in JSON
 * (docs/machine.md), and block times of an earlier run. */
#ifndef TOOL_MACHINE_H
#define TOOL_MACHINE_H
#include <stdio.h>

#include "core/readers/simulate.h"

/** `word`: a name, or a path (it holds a '/' or a '.'). TESS_E_DATA names the file, the place and what was expected;
 * TESS_E_INVALID: no such name. */
tess_status machine_open(const char *word, tess__machine *out);
void machine_close(tess__machine *); /* all zero is fine */
/** The names, ending with null. */
const char *const *machine_names(void);
/** The text of a named machine, or null. machine_named.c */
const char *machine_text(const char *name);
/** Reads `text` of `bytes` bytes; `path` for messages. */
tess_status machine_parse(const char *path, const char *text, size_t bytes, tess__machine *out);
/** As machine_open reads it. -1 when anything could not be written. */
int machine_write(const tess__machine *, FILE *);

tess_status machine_add_collective(tess__machine *, const tess__collective_time *);
tess_status machine_add_block(tess__machine *, const tess__block_time *); /* replaces one of the same name */
/** Takes the `block` and, where `collectives`, the `bench` events of a file that --json wrote. TESS_E_DATA also when
 * there are none. */
tess_status machine_add_events(tess__machine *, const char *path, int collectives);
/** The measured times of a block; of another block of the same kind ("h.3" for "h.7") when it was not measured itself.
 * Null: none. */
const tess__block_time *machine_find_block(const tess__machine *, const char *model_key, const char *block);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Digests of one step in detail, which ranks have written (TESSERA_DETAIL), and the first of two runs that differ. */
#ifndef TOOL_PROOF_DETAIL_H
#define TOOL_PROOF_DETAIL_H
#include <stddef.h>
#include <stdint.h>
#include <tessera/tessera.h>

typedef struct { /* a tensor, or a rank's part of it, after an instruction */
    char *key, *pass, *instruction, *stage, *unit, *what, *tensor, *dtype;
    uint64_t n, first, elems, digest, bytes; /* n: of the instruction in its rank; bytes: of an element */
    int32_t rank, microbatch;
    uint32_t again; /* how often the rank has written the key before */
    char *values;   /* null: not read */
} detail_line;

typedef struct {
    detail_line *lines; /* by instruction, then by rank */
    detail_line **keys; /* by key, then by rank */
    size_t n;
} detail_step;

/** Reads what all ranks have written to the folder; `values`: elements of the tensor that was asked for. */
tess_status detail_read(const char *dir, int values, detail_step *out);
void detail_free(detail_step *);

/** The first tensor of `a` that is another in `b`; null: none. Parts that were cut otherwise are compared as a whole.
 * *unlike: how many of `a` have no partner in `b`. */
const detail_line *detail_compare(const detail_step *a, const detail_step *b, const detail_line **other,
                                  size_t *unlike);

typedef struct {
    uint64_t element;
    const detail_line *a, *b; /* whose parts have it */
    const char *value_a, *value_b;
} detail_element;
/** The first element of the tensor `like` that differs; 0: none. */
int detail_first_element(const detail_step *a, const detail_step *b, const detail_line *like, detail_element *out);
/** Writes a value as a number, and its bits. */
void detail_number(const detail_line *, const char *value, char *number, char *bits, size_t n);
#endif

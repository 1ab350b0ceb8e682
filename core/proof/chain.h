/* SPDX-License-Identifier: BSD-3-Clause */
/* The ledger of digests as a file: lines of JSON, each of which ends with a hash of itself and of all lines before it.
 * docs/proof.md has the lines. */
#ifndef TESS_CHAIN_H
#define TESS_CHAIN_H
#include <stddef.h>
#include <tessera/tessera.h>

enum { TESS__CHAIN_TAIL = 29 /* bytes of ,"chain":"0123456789abcdef"}\n */, TESS__CHAIN_FORMAT = 1 };

/** The chain of a file without lines. */
uint64_t tess__chain_start(void);
/** Ends a line, which has `bytes` and room for TESS__CHAIN_TAIL and a zero more, and carries the chain on. Returns all
 * its bytes. */
size_t tess__chain_end(char *line, size_t bytes, uint64_t *chain);

typedef struct {
    uint64_t chain, lines, bytes; /* of whole lines */
    int cut;                      /* the last line is not whole, and is none of them */
} tess__chain_read_info;
/** `line` ends before its chain, with a closing brace; `number` counts from 1. */
typedef tess_status (*tess__chain_fn)(void *user, const char *line, uint64_t number);
/** Calls `fn` for each line of a file that is open for reading, from its beginning. TESS_E_DATA names the first line
 * that is not as it was written. `path` is for messages. */
tess_status tess__chain_read(int fd, const char *path, tess__chain_fn, void *user, tess__chain_read_info *out);

/** The value of a member of a line that has been checked: digits, or a string without its escapes. Returns its bytes as
 * snprintf does, -1 when there is none. */
long tess__chain_member(const char *line, const char *key, char *out, size_t n);
uint64_t tess__chain_number(const char *line, const char *key); /* 0 when there is none */

/** Compares words "key=value" of two runs. Returns 1 when a key that both have has other values, and writes the two
 * words of the first. "steps" may differ: a longer run begins as a shorter one. */
int tess__chain_differ(const char *a, const char *b, char *in_a, char *in_b, size_t n);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Computes xxh128 of each chunk of a file as the file passes by; nothing without xxhash.h. */
#ifndef TESS_CHECKSUM_H
#define TESS_CHECKSUM_H
#include <stdint.h>

enum { TESS__SUM_BYTES = 16 };

/** 1: this build computes checksums. */
int tess__sum_known(void);
/** The checksum of one piece of memory, in canonical (big-endian) order; zeros in a build without xxHash. */
void tess__sum(const void *data, uint64_t bytes, uint8_t out[TESS__SUM_BYTES]);

typedef struct {                               /* of consecutive chunks */
    uint64_t chunk_bytes, n, capacity, filled; /* chunks that are complete; bytes in the one that is not */
    uint8_t (*sums)[TESS__SUM_BYTES];
    void *state;
} tess__sums;
/** 0, or -1 without memory. */
int tess__sums_init(tess__sums *, uint64_t chunk_bytes);
int tess__sums_add(tess__sums *, const void *data, uint64_t bytes);
int tess__sums_finish(tess__sums *); /* closes the last, shorter chunk */
void tess__sums_free(tess__sums *);

/** 32 hexadecimal digits and a null byte; and back: 0, or -1 for what is none. */
void tess__sum_text(const uint8_t sum[TESS__SUM_BYTES], char out[33]);
int tess__sum_parse(const char *text, uint8_t out[TESS__SUM_BYTES]);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* The axes of the matrix, the cells, and the sets of cells that are run. */
#ifndef AXES_H
#define AXES_H
#include <stddef.h>
#include <stdint.h>

enum axis {
    DEVICE,
    COMM,
    OFFLOAD,
    PRECISION,
    WRAP,
    STRATEGY,
    ACTIVATIONS,
    RANKS,
    ACCUM,
    CLIP,
    API,
    OPTIMIZER,
    GROUPS,
    PREFETCH,
    DETERMINISTIC,
    COPY,
    STRICT,
    AUDIT,
    N_AXES
};
enum { MAX_VALUES = 12, MAX_CELLS = 1 << 12, UNSET = 255 };

typedef struct {
    const char *name;
    const char *values[MAX_VALUES];
    int n;
} axis_values;
extern axis_values axes[N_AXES];

typedef struct {
    unsigned char v[N_AXES]; /* index of the value on each axis; UNSET while a cell is being chosen */
    unsigned char large;     /* the toy's large shape; no axis, and in no covering set */
    unsigned char whole;     /* microbatches of a step on one rank, instead of the value of accum; 0: that value */
} cell;

/** Adds the plugins that TESSERA_MATRIX_DEVICE, _COMM, _OFFLOAD, _PRECISION, _WRAP and _OPTIMIZER name, each as one
 * more value; several have a space between. TESSERA_MATRIX_STRICT=1: every cell is strict. */
void axes_extend(void);
extern int axes_device_alone; /* only cells of the device that was added, each over self or the comm plugin that was */
/** Whether the combination can exist, whatever its unset axes become. Every rule is one about two axes: the table of
 * docs/matrix.md, which tests/matrix/coverage reads. */
int cell_exists(const cell *);
int cell_is(const cell *, int axis, const char *value);
int cell_stores(const cell *); /* states rest in files, from which they come to the host's memory alone */
/** The cell that "comm=shm,W=3" names: the first value on every axis that the text does not have; "large," in front:
 * of the large shape. 0: there is none. */
int cell_named(const char *text, cell *out);
/** A set in which every possible triple of values of any three axes occurs, chosen greedily from the seed. Returns how
 * many. */
size_t cells_covering(uint32_t seed, cell *out);
/** "comm=gloo,offload=none,…", with the device in front where there is a choice. */
void cell_name(const cell *, char *out, size_t n);
/** TESSERA_STRATEGY's text: hybrid means groups of K for this number of ranks. */
void cell_strategy(const cell *, char *out, size_t n);
int cell_ranks(const cell *);
/** Microbatches of a rank in a step. */
int cell_accum(const cell *);
#endif

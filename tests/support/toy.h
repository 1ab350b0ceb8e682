/* SPDX-License-Identifier: BSD-3-Clause */
/* A small model with everything awkward: uneven units, a tied pair, a frozen parameter, a buffer. Its gradients are
 * made up from the parameters and the data, so that every combination can be checked in milliseconds. */
#ifndef TOY_H
#define TOY_H
#include <tessera/inspect.h>

enum { TOY_SCOPES = 5 };
typedef struct {
    tess_scope scope[TOY_SCOPES];
    int32_t n_params[TOY_SCOPES];
    int32_t skip; /* a scope that passes by hooks leave out; 0: none */
} toy;

enum {
    TOY_BLOCKS = 1,
    TOY_GROUPS = 2, /* the biases are in optimizer group 1 */
    TOY_FP32 = 4,   /* its kernels read fp32 alone, else bf16 too */
    TOY_LARGE = 8,  /* the same with groups of 64 KiB to 1.3 MiB; not on a device */
    TOY_STORED = 16 /* and frozen parameters that rest in bf16 and as opaque bytes */
};
/** Declares the toy: as blocks with TOY_BLOCKS among the flags, else for hooks. */
tess_status toy_declare(tess *, toy *, int flags);
/** Called where a block's forward or backward begins and where it is over, unless null. */
extern void (*toy_watch)(const tess_block_call *, int scope, int backward, int is_over);
/** tess_range_fn: initial values by name and element. */
tess_status toy_fill(void *user, const tess_range *, void *data);
/** One training or evaluation pass by hooks on microbatch g; *loss is this microbatch's. */
tess_status toy_pass(tess *, toy *, uint32_t kind, int64_t microbatch, double *loss);
/** The same by tess_run. */
tess_status toy_run(tess *, uint32_t kind, int64_t microbatch, const tess_optimizer_options *or_null, double *loss);
/** A hash over all parameters in fp32, opaque ones as they are, in declaration order: equal on all ranks. [C] */
tess_status toy_digest(tess *, uint64_t *out);
/* The same, and the buffer's mean as this rank has it. */
tess_status toy_digest_and_mean(tess *t, uint64_t *digest, double *mean);
/** *same: 1 where all scopes, summoned one within the other, hold what tess_each_full gives, rounded to what they are
 * handed out in. [C] Not on a device. */
tess_status toy_summoned(tess *, const toy *, int *same);
enum { TOY_INPUT_BYTES = 64 };
#endif

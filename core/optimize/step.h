/* SPDX-License-Identifier: BSD-3-Clause */
/* The optimizer of an engine: what the running step has of numbers, over which part of each shard they hold, and the
 * step of a plugin, piece by piece. */
#ifndef TESS_STEP_H
#define TESS_STEP_H
#include "base/pool.h"
#include "plugin/plugin.h"
#include "runtime/memory.h"

enum { TESS__NORMS = 32 }; /* of which the usual one is the median */

typedef struct {                   /* a run of this rank's shard of a group of matrices: of one owner's */
    uint64_t first, elems, packed; /* packed: its place among what is sent */
    int32_t owner;
} tess__part;

typedef struct {
    const tess_optimizer_options *options;
    float grad_scale;
    tess_optimizer kernel;
    tess_optimizer_options said; /* of the running step: numbers that the program did not give are 0 */
    tess_segment *segments;      /* of all groups */
    int32_t *first_segment;      /* by group; n_groups + 1 entries */
    int32_t *segment_group;      /* optimizer_group of each segment */
    tess__part *parts;           /* parts.h: of all groups, where updates travel in parts; */
    int32_t *first_part;         /* by group; n_groups + 1 entries */
    uint64_t *exchanged;         /* by group and rank */
    int32_t exchanging;          /* ranks */
    uint64_t steps_done;
    int warned_lr;
    double norm;
    int has_norm;              /* of the last step: `norm` is its */
    const int64_t *norm_limbs; /* of the last step, which the device clipped: there after tess__norm_wait; else null */
    int more_follow;           /* the next work is another of this kind: TESS_KERNEL_MORE */
    int skips;                 /* the running step changes nothing */
    uint64_t n_skipped;
    int warned_not_finite;     /* and is not said again */
    int64_t noted;             /* the first step that left something not finite; 0: none. Of a device without streams */
    int64_t *noted_at;         /* there, or in page-locked memory; null: nothing has stepped yet */
    double norms[TESS__NORMS]; /* of the last steps, with TESSERA_SPIKE */
    uint64_t n_norms;
} tess__step;

/** Lists the runs of one optimizer group in the shards of `shard_rank`. Padding takes part, because zero stays zero in
 * every optimizer. */
tess_status tess__segments_make(tess__step *, const tess__plan *, int32_t shard_rank);
void tess__segments_free(tess__step *);
/** Takes the numbers of a step from its options, PyTorch's where a field is zero. `note`: where the kernel notes a step
 * that left something not finite. */
void tess__step_numbers(tess__step *, const tess__layout *, const tess_optimizer_options *, int64_t *note);
/** The segments of one group, or of all with group -1. */
void tess__segments_of(const tess__step *, const tess__layout *, int32_t group, tess_optimizer *out);

/** Remembers a step's norm and returns the usual one before it; 0 while too few are known. */
double tess__usual_norm(tess__step *, double norm);

/** The numbers of a step as a plugin gets them, and nothing else. */
tess_optimizer_matrix tess__numbers_said(const tess__step *);

/** piece_step.c: the plugin's own step of a group that rests in host memory. phase: TESS_PHASE_…. */
tess_status tess__step_pieces(const tess__step *, const tess__memory *, const tess__plugin *, int32_t group,
                              uint32_t phase, tess__pool *);
/** matrix_step.c: a group of matrices. The updates of this rank's shard, and the states that travel with them; the
 * matrices that this rank owns, between the two collectives; the step of the shard. */
tess_status tess__update_make(const tess__step *, const tess__memory *, const tess__plugin *, int32_t group,
                              tess__pool *);
tess_status tess__matrices_step(const tess__step *, const tess__memory *, const tess__plugin *, int32_t group,
                                tess__pool *);
/** The numbers that all pieces of a step have; then those of the group of settings at this place of the shard. */
tess_optimizer_piece tess__piece_of_step(const tess__step *, uint32_t phase);
void tess__piece_settings(const tess__step *, int32_t group, uint64_t in_shard, tess_optimizer_piece *);

/** device_step.c: readies the plugin for steps that come with that stream, and gives what tess__step_on_device takes.
 */
tess_status tess__device_steps_open(const tess__plugin *, const tess_stream *, void **out);
void tess__device_steps_close(const tess__plugin *, void *opened); /* null is fine */
/** Puts the plugin's own step of a group into the stream. */
tess_status tess__step_on_device(const tess__step *, const tess__memory *, const tess__plugin *, void *opened,
                                 int32_t group, const tess_stream *);
#endif

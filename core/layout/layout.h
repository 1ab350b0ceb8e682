/* SPDX-License-Identifier: BSD-3-Clause */
/* Lays units out in flat, padded, sharded buffers. Every parameter start and every shard size is a multiple of 64
 * elements (the pad), so that no world size moves a parameter. The pad of an optimizer's longer blocks is one block. */
#ifndef TESS_LAYOUT_H
#define TESS_LAYOUT_H
#include "grain.h"

enum {
    TESS__PAD_ELEMS = 64,
    TESS__MAX_STATES = TESS_STATES_MOST,
    TESS__CHUNK_ELEMS = 65536,
    TESS__STORE_ALIGN_MOST = 1 << 20
};

enum {                       /* a sharded gradient in the step arena: resident.c */
       TESS__GRAD_STAYS = 1, /* from a pass to the step that follows */
       TESS__GRAD_PASSES     /* the step is part of the pass */
};

/* Where something rests between its uses, as the offload plugin decided. */
typedef struct {
    uint32_t domain; /* TESS_DOMAIN_… */
    int pageable;    /* host memory beyond the page-locked budget */
    int stored;      /* in the offload plugin's store; it comes to host memory, which is its domain, to be used */
} tess__rest;
/* Where the bytes are between steps. */
static inline uint32_t tess__rest_domain(const tess__rest *r) {
    return r->stored ? TESS_DOMAIN_DISK : r->domain;
}

/* The part of a unit with one precision choice and one trainability: one flat buffer. */
typedef struct {
    int32_t unit;
    int trainable;
    uint32_t master, compute, gather, grad_local, grad_wire; /* dtypes; gather: compute, or blocks */
    int draws;                                               /* parameters and leaves in blocks are rounded by draws */
    uint32_t grad_shard; /* of the sharded gradient: fp32, or the wire's where it is one leaf */
    uint64_t used_elems, shard_elems, flat_elems; /* flat = S * shard, zero padded behind used */
    int32_t first_param, n_params;                /* in tess__layout.order, ascending by offset */
    uint64_t pad; /* elements: parameters begin, and shards end, at multiples of it, so that no block is cut */
    tess_grain
        step; /* how the optimizer steps it; zeroes when it does not. Rows, columns and scratch: of each matrix */
    int32_t first_matrix, n_matrices; /* in tess__layout.matrices */
    uint64_t scratch_bytes;           /* of the matrix that needs the most */
    uint64_t owned_elems;             /* of the rank that owns the most of the group's matrices */
    uint64_t moved_elems; /* of the rank that sends or gets the most of them, when updates travel in parts */
    int in_place;      /* the shard, or its copy, is the whole in the compute dtype: no gather, kernels read it there */
    int low_copy;      /* the optimizer writes the shard in the compute dtype too, which gathers and kernels read */
    int grad_in_place; /* kernels add straight into the sharded gradient */
    int grad_moves; /* TESS__GRAD_…: the sharded gradient lives in the step arena, from its reduction to the step */
    uint64_t grad_offset; /* and there it lies, in every program but the fused one, where it stays */
    tess__rest param_rest, grad_rest, state_rest;
} tess__group;

typedef struct {
    char *name; /* of the module it stems from, or of its tied parameter; for messages */
    int32_t first_group, n_groups;
    int trainable;
} tess__unit;

typedef struct { /* one that the optimizer steps as a whole */
    int32_t param, group;
    int32_t owner;      /* the rank of the shard group that does */
    uint64_t index, at; /* in the parameter's stack; its first element in the group's flat buffer */
    uint64_t rows, cols, scratch_bytes;
} tess__matrix;

typedef struct {
    tess__unit *units;
    tess__group *groups;
    tess__matrix *matrices; /* by group, in the order of its parameters */
    int32_t *order;         /* parameters (no aliases, no buffers) by group, then by offset */
    int32_t n_units, n_groups, n_order, n_matrices;
    uint64_t buffer_bytes;              /* of all TESS_BUFFER parameters, each aligned */
    uint64_t result_bytes;              /* of a pass, on their way from a device that has streams; and of the norm: */
    uint64_t norm_result_bytes;         /* with an optimizer, which may clip */
    uint64_t batch_bytes;               /* of a batch on its way there, when the host does not wait for it */
    uint64_t prepared_bytes;            /* of the optimizer's numbers of a step, for one that was recorded */
    uint64_t values_bytes;              /* of tess_all_reduce_late, for which the host does not wait either */
    uint64_t passes;                    /* under way at once, each with these of its own */
    uint32_t kernel;                    /* TESS_OPT_… that the device steps with; 0: none */
    int32_t n_states;                   /* the most that a group has */
    tess_state state[TESS__MAX_STATES]; /* of each the name */
    uint64_t chunk_elems;               /* of tess_each_full: the largest parameter, at most TESS__CHUNK_ELEMS */
    uint64_t param_elems;               /* trainable and frozen, without padding, tied ones once */
    uint64_t store_align;               /* of what rests in a store, there and in memory; 0: nothing does */
    uint64_t store_bytes;               /* of host memory for the store itself */
    tess__rest activation_rest;         /* of those that wait on the host: only whether they are locked in memory */
} tess__layout;

/** unit_of_param: as tess__wrap_apply_planned gives it. Sets unit, group and offset of the model's parameters. */
tess_status tess__layout_build(tess__model *, const tess__setup *, const int32_t *unit_of_param, int32_t n_units,
                               tess__layout *out);
/** Asks the offload plugin again what rests where: another part of the activations may wait on the host now. */
tess_status tess__layout_place(tess__layout *, const tess__model *, const tess__setup *);
void tess__layout_free(tess__layout *);

/** Whether each training pass steps, so that nothing comes between gradients and their step. */
int tess__steps_in_pass(const tess__model *, const tess__setup *);
/** Whether each unit steps as soon as its gradient is reduced. */
int tess__steps_by_unit(const tess__model *, const tess__setup *);
/** Bytes of one optimizer state of a group's shard. */
uint64_t tess__state_bytes(const tess__group *, int32_t state);
/** Bytes of all states of so many elements, which are whole pads. */
uint64_t tess__states_of(const tess__group *, uint64_t elems);
/** Bytes of a group's sharded gradient. */
uint64_t tess__shard_grad_bytes(const tess__group *);

/** Bytes of a block's output (or of its saved buffer) when it waits on the host from forward to backward, else 0.
 * Activations of the last blocks stay on the device, because backward needs them before a round trip could finish. */
static inline uint64_t tess__offloaded_bytes(const tess__model *m, const tess__setup *s, int32_t block, int output) {
    if (block < 0 || block >= m->n_blocks - (output ? 3 : 2) ||
        tess__activations_of(s, block) != TESS__ACTIVATIONS_OFFLOAD)
        return 0;
    const tess_block_options *o = &m->blocks[block].options;
    return output ? o->output_bytes : o->flags & TESS_BLOCK_KEEP ? 0 : o->saved_bytes;
}
/** Whether the block's training writes selective_saved_bytes. */
int tess__saves_selectively(const tess__model *, const tess__setup *, int32_t block);
/** Whether the block's input gradient takes the place of its output's. */
int tess__grad_in_place(const tess__model *, int32_t block);
/** The block by whose number the place of block `of`'s output gradient goes: its own, or that of a later one. */
int32_t tess__grad_place(const tess__model *, int32_t of);

/** Whether training's backward writes the pass's result. */
static inline int tess__result_is_late(const tess__model *m, int32_t block) {
    return block == m->n_blocks - 1 && m->blocks[block].options.flags & TESS_BLOCK_LATE_RESULT;
}

static inline int tess__is_float(uint32_t dtype) {
    return dtype >= TESS_F16 && dtype <= TESS_F64;
}
/** How many values there are for so many elements of a parameter, with one for `every` of them. */
static inline uint64_t tess__values_of(uint64_t elems, uint32_t every) {
    return every > 1 ? (elems + every - 1) / every : elems;
}

/** The host's step arena, and places in it, begin at multiples of this. */
static inline uint64_t tess__host_align(const tess__setup *s, const tess__layout *l) {
    return l->store_align > s->align ? l->store_align : s->align;
}

/** A group's sharded gradient takes whole multiples of this where it rests. */
static inline uint64_t tess__grad_align(const tess__setup *s, const tess__layout *l, int32_t group) {
    return l->groups[group].grad_rest.stored ? l->store_align : s->align;
}

/** The part of parameter `p` in the shard of `shard_rank`: its first element in the parameter, its place in the shard
 * and its length; 0 elements when none. */
typedef struct {
    uint64_t in_param, in_shard, elems;
} tess__piece;
/** The part of a group's shard that one of its replicas saves: first element in the shard, and length. */
typedef struct {
    uint64_t first, elems;
} tess__span_elems;
/** Elements of the part of the shard's gradient that one of its replicas sums, whole blocks of 8 bits. Together they
 * may be more than the shard. */
static inline uint64_t tess__replica_elems(const tess__group *g, int32_t replicas) {
    uint64_t blocks = g->shard_elems / TESS_Q8_BLOCK, n = (uint64_t)replicas;
    return (blocks + n - 1) / n * TESS_Q8_BLOCK;
}
tess__span_elems tess__replica_part(const tess__group *, int32_t replica, int32_t replicas);
tess__piece tess__layout_piece(const tess__layout *, const tess__param *, int32_t shard_rank);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Layer 2 of the kit, for comm plugins: one collective as every rank has to see it. Its checks, its sizes, the
 * announcement that ranks compare before they use data, and the members of a split.
 * Compiled into the plugin, no part of the ABI. C11, and C++17 through the header. */
#ifndef TESS_KIT_COLLECTIVE_H
#define TESS_KIT_COLLECTIVE_H
#include <tessera/plugin_helpers.h>
#ifdef __cplusplus
extern "C" {
#endif

enum { KIT_ADD = 1 /* tess_collective.flags: add to recv */ };
/* Operations of a plugin's own, announced like collectives. */
enum { KIT_OP_JOIN = 100, KIT_OP_SPLIT, KIT_OP_FINALIZE };

const char *kit_op_name(uint32_t op);

/** Copies the call as far as its struct_size goes, and fills in recv_dtype and scale where they were left out. */
tess_collective kit_take_call(const tess_collective *, uint32_t struct_size);

static inline int kit_is_whole(uint32_t dtype) {
    return dtype < TESS_F16;
}
static inline int kit_reduces(const tess_collective *c) {
    return c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_REDUCE;
}
/** Bytes of one rank's block, or of the whole for broadcast and all_reduce. */
static inline uint64_t kit_bytes(const tess_collective *c) {
    return c->op == TESS_BARRIER ? 0 : c->count * tess_dtype_bytes(c->send_dtype);
}
/** Elements before a rank's part of those that an all_to_all_v sends or receives, and of all `nranks` parts. */
static inline uint64_t kit_parts_before(const uint64_t *parts, int32_t rank) {
    uint64_t n = 0;
    for (int32_t r = 0; r < rank; r++)
        n += parts[r];
    return n;
}
/** Elements of the largest shard of a reduction. all_reduce cuts its buffer on 64-element boundaries. */
uint64_t kit_shard_elems(const tess_collective *, int32_t nranks);
/** 1: two pieces of memory have a byte in common. */
int kit_overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes);

/** Every operation but the optional ones, reduction and dtype, with those of TESS_COMM_…, on memory of these kinds. */
tess_comm_caps kit_caps(uint32_t caps, uint32_t mem_mask, const char *wire_id);

/* ---- checks -------------------------------------------------------------------------------------- */

typedef struct {
    const char *plugin;    /* for messages */
    uint32_t mem_mask;     /* 1u << TESS_MEM_… of what it can reach */
    const char *mem_names; /* the same for messages: "host memory" */
} kit_reach;

/** TESS_OK, or what is wrong with a place among the ranks, or with the group. */
tess_status kit_check_place(const char *plugin, const tess_comm_config *, tess_error *);
/** TESS_OK, or what is wrong with a call that kit_take_call made, on `rank` of `nranks`. rank -1 is for planning:
 * pointers and scratch are not looked at. `scratch`: bytes of scratch that the call needs. */
tess_status kit_check_call(const kit_reach *, const tess_collective *, int32_t rank, int32_t nranks, uint64_t scratch,
                           tess_error *);

/* ---- announcements ------------------------------------------------------------------------------- */

/** A rank announces its next collective. Announcements are equal on all ranks, byte by byte, or all ranks fail. */
typedef struct {                                          /* 64 bytes, no padding: it travels */
    uint16_t op, redop, send_dtype, recv_dtype, flags, n; /* n: collectives in the batch */
    int32_t root;
    uint64_t count, tag;
    uint64_t seq, caller_seq; /* numbers: the plugin's own, and the caller's */
    uint64_t rest;            /* hash of the batch's other collectives */
    double scale;
} kit_announcement;

/** Announces a batch: the first call in full, the others as a hash. `seq` counts announcements. */
kit_announcement kit_announce(const tess_collective *calls, uint32_t n, uint64_t seq);
/** Announces KIT_OP_…; `value` must be the same on all ranks too. */
kit_announcement kit_announce_own(uint32_t op, uint64_t value, uint64_t seq);
/** TESS_OK, or TESS_E_MISMATCH with the peer's rank and both sides in words. */
tess_status kit_compare(const char *plugin, const kit_announcement *mine, int32_t rank, const kit_announcement *theirs,
                        int32_t peer, tess_error *);
/** "all_gather of 1000 f32, tag 0x5" */
const char *kit_describe(const kit_announcement *, char *out, size_t room);

/* ---- split --------------------------------------------------------------------------------------- */

typedef struct {
    int32_t color, key;
    uint64_t value; /* of the plugin's own */
} kit_choice;

/** The parent's ranks of one colour, ordered by key, then rank, and the place of `rank` among them. Returns how many
 * there are, 0 for a negative colour. */
int32_t kit_split_members(const kit_choice *all, int32_t nranks, int32_t color, int32_t rank, int32_t *members,
                          int32_t *place);
#ifdef __cplusplus
}
#endif
#endif

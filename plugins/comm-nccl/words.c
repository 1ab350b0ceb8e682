#include "communicator.h"

#include <inttypes.h>

static uint64_t mix(uint64_t h, uint64_t x) {
    return (h ^ x) * UINT64_C(0x9e3779b97f4a7c15) ^ (h >> 29);
}

static uint64_t kind_of(const tess_collective *c) {
    uint64_t redop = c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_REDUCE ? c->redop : 0;
    if (c->op == TESS_BARRIER)
        return c->op;
    return (uint64_t)c->op | redop << 8 | (uint64_t)c->send_dtype << 16 | (uint64_t)c->recv_dtype << 24;
}

static uint64_t scale_of(const tess_collective *c) {
    uint64_t bits;
    memcpy(&bits, &c->scale, sizeof bits);
    return c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_REDUCE ? bits : 0;
}

/* The first call in full, the others as one number. */
struct nccl_word nccl_word_of(const tess_collective *calls, uint32_t n, uint64_t seq) {
    struct nccl_word w = { .seq = seq,
                           .kind = kind_of(calls),
                           .count = calls->count,
                           .scale = scale_of(calls),
                           .root = calls->op == TESS_BROADCAST ? (uint64_t)calls->root : 0,
                           .tag = calls->tag,
                           .n = n };
    for (uint32_t i = 1; i < n; i++) {
        const tess_collective *c = &calls[i];
        w.rest = mix(mix(mix(mix(mix(w.rest, kind_of(c)), c->count), scale_of(c)), (uint64_t)c->root), c->tag);
    }
    return w;
}

struct nccl_word nccl_word_own(uint32_t op, uint64_t seq) {
    return (struct nccl_word){ .seq = seq, .kind = op, .n = 1 };
}

/* "all_gather of 1000 f32, tag 0x5" */
static const char *describe(const struct nccl_word *w, char *out, size_t room) {
    static const char *const ops[] = { "?",         "all_gather", "reduce_scatter", "all_reduce",
                                       "broadcast", "all_to_all", "barrier" };
    static const char *const dtypes[] = { "?", "u8", "i8", "i32", "i64", "f16", "bf16", "f32", "f64" };
    static const char *const redops[] = { "", " sum", " min", " max" };
    uint64_t op = w->kind & 255, redop = w->kind >> 8 & 255, dtype = w->kind >> 16 & 255;
    if (op >= NCCL_OP_SPLIT)
        snprintf(out, room, "%s", op == NCCL_OP_FINALIZE ? "finalize" : op == NCCL_OP_SPLIT ? "split" : "init");
    else if (op == TESS_BARRIER)
        snprintf(out, room, "barrier, tag %#" PRIx64, w->tag);
    else
        snprintf(out, room, "%s%s of %" PRIu64 " %s%s%s, tag %#" PRIx64, op < 7 ? ops[op] : "?",
                 redop < 4 ? redops[redop] : "", w->count, dtype < 9 ? dtypes[dtype] : "?", w->n > 1 ? " and more" : "",
                 op == TESS_BROADCAST && w->root ? " from another root" : "", w->tag);
    return out;
}

tess_status nccl_compare_words(const struct nccl_word *all, int rank, int size, struct nccl_failure *f) {
    char here[80], there[80];
    for (int i = 0; i < size; i++)
        if (memcmp(&all[i], &all[rank], sizeof *all) != 0)
            return nccl_fail(f, TESS_E_MISMATCH, i, "nccl: ranks disagree: rank %d does %s; rank %d does %s", rank,
                             describe(&all[rank], here, sizeof here), i, describe(&all[i], there, sizeof there));
    return TESS_OK;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "collective.h"

#include <inttypes.h>

const char *kit_op_name(uint32_t op) {
    static const char *const names[] = {
        "an unknown operation", "all_gather", "reduce_scatter", "all_reduce", "broadcast",
        "all_to_all",           "barrier",    "all_to_all_v"
    };
    static const char *const own[] = { "init", "split", "finalize" };
    if (op >= KIT_OP_JOIN && op <= KIT_OP_FINALIZE)
        return own[op - KIT_OP_JOIN];
    return names[op <= TESS_ALL_TO_ALL_V ? op : 0];
}

static const char *redop_name(uint32_t redop) {
    static const char *const names[] = { "no reduction", "sum", "min", "max" };
    return redop <= TESS_MAX ? names[redop] : "an unknown reduction";
}

tess_collective kit_take_call(const tess_collective *call, uint32_t struct_size) {
    tess_collective c;
    memset(&c, 0, sizeof c);
    memcpy(&c, call, struct_size < sizeof c ? struct_size : sizeof c);
    if (c.recv_dtype == 0)
        c.recv_dtype = c.send_dtype;
    if (c.scale == 0)
        c.scale = 1;
    return c;
}

uint64_t kit_shard_elems(const tess_collective *c, int32_t nranks) {
    const uint64_t n = (uint64_t)nranks, shard = ((c->count + n - 1) / n + 63) / 64 * 64;
    return c->op == TESS_REDUCE_SCATTER || shard > c->count ? c->count : shard;
}

int kit_overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

tess_comm_caps kit_caps(uint32_t caps, uint32_t mem_mask, const char *wire_id) {
    tess_comm_caps all;
    memset(&all, 0, sizeof all);
    all.caps = caps;
    for (uint32_t op = TESS_ALL_GATHER; op <= TESS_BARRIER; op++)
        all.op_mask |= 1u << op;
    for (uint32_t dtype = TESS_U8; dtype <= TESS_F64; dtype++)
        all.dtype_mask |= 1u << dtype;
    all.redop_mask = 1u << TESS_SUM | 1u << TESS_MIN | 1u << TESS_MAX;
    all.mem_mask = mem_mask;
    all.align = 1;
    all.max_bytes = UINT64_C(1) << 48;
    snprintf(all.wire_id, sizeof all.wire_id, "%s", wire_id);
    return all;
}

/* ---- checks -------------------------------------------------------------------------------------- */

static int sums_in_f32(uint32_t dtype) {
    return dtype == TESS_F16 || dtype == TESS_BF16 || dtype == TESS_F32;
}

tess_status kit_check_place(const char *plugin, const tess_comm_config *config, tess_error *e) {
    if (config->nranks >= 1 && config->rank >= 0 && config->rank < config->nranks && config->group)
        return TESS_OK;
    return tess_plugin_fail(e, TESS_E_INVALID, "%s: rank %d of %d ranks", plugin, (int)config->rank,
                            (int)config->nranks);
}

static tess_status check_reduction(const kit_reach *reach, const tess_collective *c, tess_error *e) {
    const uint32_t in = c->send_dtype, out = c->recv_dtype;
    if (c->redop < TESS_SUM || c->redop > TESS_MAX)
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "%s: reduction %u, expected sum, min or max", reach->plugin,
                                c->redop);
    if (in != out && !(sums_in_f32(in) && sums_in_f32(out)))
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "%s: %s of %s into %s", reach->plugin, redop_name(c->redop),
                                tess_dtype_name(in), tess_dtype_name(out));
    if ((c->flags & KIT_ADD) && c->redop != TESS_SUM)
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "%s: only a sum adds to what recv holds", reach->plugin);
    if (kit_is_whole(in) && c->scale != 1)
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: scale %g on integers, expected 1", reach->plugin, c->scale);
    return TESS_OK;
}

static tess_status check_types(const kit_reach *reach, const tess_collective *c, tess_error *e) {
    if (c->op == TESS_BARRIER)
        return TESS_OK;
    if (!c->send_dtype || c->send_dtype > TESS_F64 || c->recv_dtype > TESS_F64)
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "%s: %s of %s into %s", reach->plugin, kit_op_name(c->op),
                                tess_dtype_name(c->send_dtype), tess_dtype_name(c->recv_dtype));
    if (kit_reduces(c))
        return check_reduction(reach, c, e);
    return c->recv_dtype == c->send_dtype
               ? TESS_OK
               : tess_plugin_fail(e, TESS_E_UNSUPPORTED, "%s: %s of %s into %s", reach->plugin, kit_op_name(c->op),
                                  tess_dtype_name(c->send_dtype), tess_dtype_name(c->recv_dtype));
}

/* Tells whether send and recv are apart, or in place as plugin.h allows it for the operation. */
static int lies_well(const tess_collective *c, int32_t rank, int32_t nranks) {
    const char *send = c->send, *recv = c->recv;
    const uint64_t w = (uint64_t)nranks, r = (uint64_t)rank;
    const uint64_t in = kit_bytes(c), dtype = tess_dtype_bytes(c->recv_dtype), out = c->count * dtype;
    switch (c->op) {
    case TESS_ALL_GATHER: return send == recv + r * in || !kit_overlap(send, in, recv, w * in);
    case TESS_ALL_TO_ALL: return (nranks == 1 && send == recv) || !kit_overlap(send, w * in, recv, w * in);
    case TESS_REDUCE_SCATTER: return !kit_overlap(send, w * in, recv, out);
    case TESS_ALL_TO_ALL_V:
        return !kit_overlap(send, kit_parts_before(c->send_parts, nranks) * dtype, recv,
                            kit_parts_before(c->recv_parts, nranks) * dtype);
    case TESS_ALL_REDUCE:
        return (send == recv && in == out && !(c->flags & KIT_ADD)) || !kit_overlap(send, in, recv, out);
    default: return rank != c->root || !recv || send == recv || !kit_overlap(send, in, recv, in);
    }
}

static uint64_t longest_part(const uint64_t *parts, int32_t nranks) {
    uint64_t most = 0;
    for (int32_t r = 0; r < nranks; r++)
        most = parts[r] > most ? parts[r] : most;
    return most;
}

/* A part above count would let their sum wrap around. */
static tess_status check_parts(const kit_reach *reach, const tess_collective *c, int32_t rank, int32_t nranks,
                               tess_error *e) {
    if (!c->send_parts || !c->recv_parts)
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: %s is null", reach->plugin,
                                c->send_parts ? "recv_parts" : "send_parts");
    if (longest_part(c->send_parts, nranks) > c->count || longest_part(c->recv_parts, nranks) > c->count ||
        kit_parts_before(c->send_parts, nranks) > c->count || kit_parts_before(c->recv_parts, nranks) > c->count)
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: the parts are longer than count %" PRIu64, reach->plugin,
                                c->count);
    if (c->send_parts[rank] != c->recv_parts[rank])
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: rank %d sends itself %" PRIu64 " elements and expects %" PRIu64,
                                reach->plugin, (int)rank, c->send_parts[rank], c->recv_parts[rank]);
    return TESS_OK;
}

static tess_status check_memory(const kit_reach *reach, const tess_collective *c, int32_t rank, int32_t nranks,
                                uint64_t scratch, tess_error *e) {
    if (c->send_mem > 31 || c->recv_mem > 31 || !(reach->mem_mask >> c->send_mem & reach->mem_mask >> c->recv_mem & 1u))
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "%s: memory kinds %u and %u, expected %s", reach->plugin,
                                c->send_mem, c->recv_mem, reach->mem_names);
    const int sends = c->op != TESS_BROADCAST || rank == c->root, receives = c->op != TESS_BROADCAST || rank != c->root;
    if ((sends && !c->send) || (receives && !c->recv))
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: %s is null with count %" PRIu64, reach->plugin,
                                sends && !c->send ? "send" : "recv", c->count);
    if (scratch && (!c->scratch || c->scratch_bytes < scratch))
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: %" PRIu64 " bytes of scratch, expected %" PRIu64, reach->plugin,
                                c->scratch ? c->scratch_bytes : 0, scratch);
    return lies_well(c, rank, nranks)
               ? TESS_OK
               : tess_plugin_fail(e, TESS_E_INVALID, "%s: send and recv overlap other than in place", reach->plugin);
}

tess_status kit_check_call(const kit_reach *reach, const tess_collective *c, int32_t rank, int32_t nranks,
                           uint64_t scratch, tess_error *e) {
    if (c->op < TESS_ALL_GATHER || c->op > TESS_ALL_TO_ALL_V)
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "%s: operation %u", reach->plugin, c->op);
    tess_status s = check_types(reach, c, e);
    if (s < 0)
        return s;
    if (c->count > UINT64_C(1) << 48)
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: count %" PRIu64, reach->plugin, c->count);
    if (c->op == TESS_BROADCAST && (c->root < 0 || c->root >= nranks))
        return tess_plugin_fail(e, TESS_E_INVALID, "%s: root %d of %d ranks", reach->plugin, (int)c->root, (int)nranks);
    if (rank < 0 || c->op == TESS_BARRIER || c->count == 0)
        return TESS_OK;
    if (c->op == TESS_ALL_TO_ALL_V) {
        s = check_parts(reach, c, rank, nranks, e);
        if (s < 0)
            return s;
    }
    return check_memory(reach, c, rank, nranks, scratch, e);
}

/* ---- announcements ------------------------------------------------------------------------------- */

static kit_announcement announce_one(const tess_collective *c) {
    kit_announcement a;
    memset(&a, 0, sizeof a);
    a.op = (uint16_t)c->op;
    a.tag = c->tag;
    a.caller_seq = c->seq;
    if (c->op == TESS_BARRIER)
        return a;
    a.count = c->count;
    a.send_dtype = (uint16_t)c->send_dtype;
    a.recv_dtype = (uint16_t)c->recv_dtype;
    a.root = c->op == TESS_BROADCAST ? c->root : 0;
    if (kit_reduces(c)) {
        a.redop = (uint16_t)c->redop;
        a.flags = (uint16_t)c->flags;
        a.scale = c->scale;
    }
    return a;
}

static uint64_t hash_on(uint64_t h, const kit_announcement *a) {
    const unsigned char *bytes = (const unsigned char *)a;
    for (size_t i = 0; i < sizeof *a; i++)
        h = (h ^ bytes[i]) * UINT64_C(1099511628211);
    return h;
}

kit_announcement kit_announce(const tess_collective *calls, uint32_t n, uint64_t seq) {
    kit_announcement a = announce_one(calls);
    a.n = (uint16_t)n;
    a.seq = seq;
    for (uint32_t i = 1; i < n; i++) {
        const kit_announcement other = announce_one(&calls[i]);
        a.rest = hash_on(a.rest, &other);
    }
    return a;
}

kit_announcement kit_announce_own(uint32_t op, uint64_t value, uint64_t seq) {
    kit_announcement a;
    memset(&a, 0, sizeof a);
    a.op = (uint16_t)op;
    a.n = 1;
    a.tag = value;
    a.seq = seq;
    return a;
}

/* Appends to a text that may be full. */
__attribute__((format(printf, 3, 4))) static void append(char *out, size_t room, const char *format, ...) {
    const size_t used = strlen(out);
    va_list args;
    va_start(args, format);
    vsnprintf(out + used, room - used, format, args);
    va_end(args);
}

const char *kit_describe(const kit_announcement *a, char *out, size_t room) {
    snprintf(out, room, "%s", kit_op_name(a->op));
    if (a->op >= KIT_OP_JOIN)
        return out;
    if (a->redop)
        append(out, room, " %s", redop_name(a->redop));
    if (a->op != TESS_BARRIER)
        append(out, room, " of %" PRIu64 " %s", a->count, tess_dtype_name(a->send_dtype));
    if (a->recv_dtype != a->send_dtype)
        append(out, room, " into %s", tess_dtype_name(a->recv_dtype));
    append(out, room, ", tag %#" PRIx64, a->tag);
    return out;
}

/* Adds the fields that the short form leaves out, where the two sides differ in them. */
static void describe_rest(const kit_announcement *a, const kit_announcement *b, char *out, size_t room) {
    if (a->op == b->op && a->root != b->root)
        append(out, room, ", root %d", (int)a->root);
    if (a->op == b->op && a->scale != b->scale)
        append(out, room, ", scale %g", a->scale);
    if (a->op == b->op && a->flags != b->flags)
        append(out, room, ", flags %u", a->flags);
    if (a->n != b->n || a->rest != b->rest)
        append(out, room, " and %u more", a->n - 1u);
    if (a->seq != b->seq || a->caller_seq != b->caller_seq)
        append(out, room, ", number %" PRIu64, a->seq != b->seq ? a->seq : a->caller_seq);
}

tess_status kit_compare(const char *plugin, const kit_announcement *mine, int32_t rank, const kit_announcement *theirs,
                        int32_t peer, tess_error *e) {
    char here[88], there[88];
    if (memcmp(mine, theirs, sizeof *mine) == 0)
        return TESS_OK;
    kit_describe(mine, here, sizeof here);
    kit_describe(theirs, there, sizeof there);
    describe_rest(mine, theirs, here, sizeof here);
    describe_rest(theirs, mine, there, sizeof there);
    return tess_plugin_fail_of(e, TESS_E_MISMATCH, peer, "%s: ranks disagree: rank %d does %s; rank %d does %s", plugin,
                               (int)rank, here, (int)peer, there);
}

/* ---- split --------------------------------------------------------------------------------------- */

int32_t kit_split_members(const kit_choice *all, int32_t nranks, int32_t color, int32_t rank, int32_t *members,
                          int32_t *place) {
    int32_t n = 0;
    for (int32_t r = 0; r < nranks && color >= 0; r++) {
        if (all[r].color != color)
            continue;
        int32_t at = n++;
        for (; at > 0 && all[members[at - 1]].key > all[r].key; at--)
            members[at] = members[at - 1];
        members[at] = r;
    }
    for (*place = 0; *place < n && members[*place] != rank;)
        ++*place;
    return n;
}

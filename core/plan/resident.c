/* SPDX-License-Identifier: BSD-3-Clause */
/* Lays out the resident arena, which holds what rests between steps. */
#include "compile.h"

#include "base/status.h"

#include <string.h>

/* Bytes of one rank's buffer, for which the comm plugin may have a limit. */
static uint64_t bytes_of(const tess_collective *c, int32_t nranks) {
    int all = c->op == TESS_ALL_GATHER || c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_TO_ALL;
    uint32_t sent = tess_dtype_bytes(c->send_dtype), received = tess_dtype_bytes(c->recv_dtype);
    return c->count * (all ? (uint64_t)nranks : 1) * (sent > received ? sent : received);
}

/* Scratch the comm plugin wants for one collective among `nranks`, in device memory. */
tess_status tess__scratch_of(const tess__setup *s, uint32_t op, uint32_t send, uint32_t recv, uint64_t count,
                             int32_t nranks, uint64_t *bytes) {
    tess_plan_env env = s->env;
    env.nranks = nranks;
    tess_collective c = { .struct_size = sizeof c,
                          .op = op,
                          .redop = TESS_SUM,
                          .send_dtype = send,
                          .recv_dtype = recv,
                          .send_mem = env.mem,
                          .recv_mem = env.mem,
                          .count = count,
                          .scale = 1 };
    tess_need need = { .struct_size = sizeof need };
    if (s->most_bytes && bytes_of(&c, nranks) > s->most_bytes)
        return tess__fail(TESS_E_UNSUPPORTED,
                          "a collective has %llu bytes on a rank, and the comm plugin takes %llu: smaller units are "
                          "needed (TESSERA_WRAP)",
                          (unsigned long long)bytes_of(&c, nranks), (unsigned long long)s->most_bytes);
    tess_status status = s->comm->need(s->comm_ctx, &env, &c, &need);
    if (!status && (need.align > s->align || need.pinned_bytes || need.host_bytes))
        return tess__fail(TESS_E_UNSUPPORTED,
                          "the comm plugin wants scratch outside device memory or aligned to %u bytes for operation %u",
                          need.align, op);
    if (status)
        return tess__fail(status, "the comm plugin does not offer a collective (operation %u, %s to %s, %d ranks)", op,
                          tess_dtype_name(send), tess_dtype_name(recv), nranks);
    *bytes = need.device_bytes;
    return TESS_OK;
}

static tess_status keep_buffer(tess__program *out, int role, int32_t index, tess__rest rest, uint8_t category,
                               int32_t unit, uint64_t bytes, uint64_t align) {
    tess__buffer r = { .role = (uint8_t)role,
                       .domain = (uint8_t)tess__rest_domain(&rest),
                       .arena = rest.pageable ? TESS__PAGEABLE : TESS__RESIDENT,
                       .category = category,
                       .index = index,
                       .unit = unit,
                       .bytes = tess__round_up(bytes, align) };
    uint64_t *end = rest.pageable ? &out->pageable_bytes : &out->step_bytes[r.domain];
    int32_t at;
    if (!r.bytes)
        return TESS_OK;
    r.offset = *end;
    *end += r.bytes;
    return tess__program_buffer(out, &r, &at);
}

/* Tells whether a save copies nothing of the group: it leaves it out, or reads it in place, since nothing writes it
 * while training goes on and the host reads it where it rests. */
static int is_not_copied(const tess__setup *s, const tess__group *g) {
    return !g->trainable && (s->base_apart || (!g->param_rest.stored &&
                                               (tess__one_memory(s) || g->param_rest.domain == TESS_DOMAIN_HOST)));
}

/* Replicas divide a shard between them in runs of whole pads. */
static uint64_t snapshot_bytes(const tess__setup *s, const tess__layout *l) {
    uint64_t bytes = l->buffer_bytes + 2 * TESS_CHECKPOINT_BYTES, replicas = (uint64_t)s->replicas;
    for (int32_t i = 0; i < l->n_groups; i++) {
        const tess__group *g = &l->groups[i];
        if (is_not_copied(s, g))
            continue;
        uint64_t part = (g->shard_elems / g->pad + replicas - 1) / replicas * g->pad;
        bytes += part * tess_dtype_bytes(g->master) + tess__states_of(g, part);
    }
    return bytes + TESS__SNAPSHOT_ALIGN;
}

/* An image is what a rank must not lose: shards, optimizer states, buffers, the program's own bytes. */
uint64_t tess__image_bytes(const tess__setup *s, const tess__layout *l) {
    uint64_t bytes = tess__round_up(l->buffer_bytes, s->align) + tess__round_up(s->common_bytes, s->align);
    for (int32_t i = 0; i < l->n_groups; i++) {
        const tess__group *g = &l->groups[i];
        bytes += tess__round_up(g->shard_elems * tess_dtype_bytes(g->master), s->align);
        for (int32_t k = 0; k < (int32_t)g->step.n_states; k++)
            bytes += tess__round_up(tess__state_bytes(g, k), s->align);
    }
    return bytes;
}

/* Keeps two generations, because a death may tear the one that is being made. */
static tess_status keep_mirror(const tess__setup *s, const tess__layout *l, tess__program *out) {
    const tess__rest host = { .domain = TESS_DOMAIN_HOST, .pageable = tess__one_memory(s) };
    const tess__rest device = { .domain = TESS_DOMAIN_DEVICE };
    uint64_t image = tess__image_bytes(s, l), scratch = 0;
    uint64_t stage = image < TESS__MIRROR_CHUNK ? image : TESS__MIRROR_CHUNK;
    int32_t members = tess__copy_groups(s) ? tess__copy_members(s, 0) : s->replicas;
    uint64_t among_all = 0; /* where shards are cut anew */
    TRY(tess__scratch_of(s, TESS_BROADCAST, TESS_U8, TESS_U8, stage, members, &scratch));
    TRY(tess__scratch_of(s, TESS_BROADCAST, TESS_U8, TESS_U8, stage, s->nranks, &among_all));
    scratch = among_all > scratch ? among_all : scratch;
    TRY(keep_buffer(out, TESS__MIRROR, 0, host, TESS_CAT_MIRROR, -1, (tess__copy_groups(s) ? 4 : 2) * image, s->align));
    TRY(keep_buffer(out, TESS__MIRROR_STAGE, 0, device, TESS_CAT_COMM, -1, stage, s->align));
    return keep_buffer(out, TESS__MIRROR_SCRATCH, 0, device, TESS_CAT_COMM, -1, scratch, s->align);
}

/* Tells whether a sharded gradient lives only from a pass to the step that follows. With blocks nothing comes
 * between that the plan does not know, so it can lie where activations were. */
int tess__grad_moves(const tess__setup *s, const tess__model *m, const tess__group *g) {
    return m->n_blocks > 0 && s->accum == 1 && g->trainable && g->grad_rest.domain == TESS_DOMAIN_DEVICE &&
           !g->grad_rest.pageable;
}

static tess_status lend_gradient(tess__program *out, const tess__group *g, int32_t index, uint64_t align) {
    tess__buffer r = { .role = TESS__SHARD_GRAD,
                       .domain = TESS_DOMAIN_DEVICE,
                       .arena = TESS__STEP,
                       .category = TESS_CAT_SHARD_GRAD,
                       .index = index,
                       .unit = g->unit,
                       .bytes = tess__round_up(tess__shard_grad_bytes(g), align),
                       .offset = g->grad_offset };
    int32_t at;
    return r.bytes ? tess__program_buffer(out, &r, &at) : TESS_OK;
}

/* For each parameter at most one unit, with digests of parameters, gradient sums and states: as numbers and as text. */
static uint64_t digest_bytes(const tess__setup *s, const tess__layout *l) {
    uint64_t kinds = 2 + (uint64_t)l->n_states, units = (uint64_t)l->n_order;
    uint64_t bytes = units * kinds * (sizeof(uint64_t) + TESS__PROOF_HEX) + 3 * units + TESS__PROOF_LINE;
    return tess__round_up(bytes, sizeof(uint64_t)) + (tess__one_memory(s) && !l->store_align ? 0 : TESS__PROOF_CHUNK);
}

static uint64_t for_passes(const tess__setup *s, const tess__layout *l, uint64_t bytes) {
    return l->passes * tess__round_up(bytes, s->align);
}

static tess_status keep_group(const tess__setup *s, const tess__layout *l, int32_t i, int with_grads,
                              tess__program *out) {
    const tess__rest device = { .domain = TESS_DOMAIN_DEVICE };
    const tess__group *g = &l->groups[i];
    TRY(keep_buffer(out, TESS__MASTER, i, g->param_rest, TESS_CAT_SHARD_PARAM, g->unit,
                    g->shard_elems * tess_dtype_bytes(g->master), g->param_rest.stored ? l->store_align : s->align));
    if (g->low_copy)
        TRY(keep_buffer(out, TESS__LOW_COPY, i, g->param_rest, TESS_CAT_LOW_COPY, g->unit,
                        g->shard_elems * tess_dtype_bytes(g->compute), s->align));
    for (int32_t k = 0; k < (int32_t)g->step.n_states; k++)
        TRY(keep_buffer(out, TESS__STATE0 + k, i, g->state_rest, TESS_CAT_OPTIMIZER, g->unit, tess__state_bytes(g, k),
                        g->state_rest.stored ? l->store_align : s->align));
    for (int32_t k = 0; g->trainable && s->accum > 1 && !s->sync_each && k < tess__sum_levels(s); k++)
        TRY(keep_buffer(out, TESS__SUM0 + k, i, device, TESS_CAT_FULL_GRAD, g->unit, g->flat_elems * 4, s->align));
    for (int32_t k = 1; g->trainable && s->accum > 1 && s->sync_each && k < tess__sum_levels(s); k++)
        TRY(keep_buffer(out, TESS__SUM0 + k, i, g->grad_rest, TESS_CAT_SHARD_GRAD, g->unit, g->shard_elems * 4,
                        tess__grad_align(s, l, i)));
    if (g->trainable && with_grads && g->grad_moves == TESS__GRAD_STAYS)
        TRY(lend_gradient(out, g, i, s->align));
    else if (g->trainable && with_grads && !g->grad_moves)
        TRY(keep_buffer(out, TESS__SHARD_GRAD, i, g->grad_rest, TESS_CAT_SHARD_GRAD, g->unit, tess__shard_grad_bytes(g),
                        tess__grad_align(s, l, i)));
    return TESS_OK;
}

tess_status tess__resident(const tess__setup *s, const tess__layout *l, int with_grads, tess__program *out) {
    const tess__rest device = { .domain = TESS_DOMAIN_DEVICE }, locked = { .domain = TESS_DOMAIN_HOST };
    tess__program_clear(out);
    memset(out->step_bytes, 0, sizeof out->step_bytes);
    out->pageable_bytes = 0;
    if (l->store_align) /* the first, so that it begins as the arena does */
        TRY(keep_buffer(out, TESS__STORE_OWN, 0, (tess__rest){ .domain = TESS_DOMAIN_HOST, .pageable = 1 },
                        TESS_CAT_TEMPORARY, -1, l->store_bytes, s->align));
    for (int32_t i = 0; i < l->n_groups; i++)
        TRY(keep_group(s, l, i, with_grads, out));
    TRY(keep_buffer(out, TESS__BUFFERS, 0, device, TESS_CAT_BUFFER, -1, l->buffer_bytes, s->align));
    TRY(keep_buffer(out, TESS__RESULT, 0, locked, TESS_CAT_TEMPORARY, -1, for_passes(s, l, l->result_bytes), s->align));
    TRY(keep_buffer(out, TESS__NORM_RESULT, 0, locked, TESS_CAT_TEMPORARY, -1, for_passes(s, l, l->norm_result_bytes),
                    s->align));
    TRY(keep_buffer(out, TESS__BATCH, 0, locked, TESS_CAT_TEMPORARY, -1, for_passes(s, l, l->batch_bytes), s->align));
    TRY(keep_buffer(out, TESS__PREPARED, 0, locked, TESS_CAT_TEMPORARY, -1, for_passes(s, l, l->prepared_bytes),
                    s->align));
    TRY(keep_buffer(out, TESS__NUMBERS, 0, device, TESS_CAT_TEMPORARY, -1, l->prepared_bytes, s->align));
    TRY(keep_buffer(out, TESS__VALUES, 0, locked, TESS_CAT_TEMPORARY, -1, for_passes(s, l, l->values_bytes), s->align));
    const tess__rest host = { .domain = TESS_DOMAIN_HOST, .pageable = tess__one_memory(s) };
    if (s->snapshot)
        TRY(keep_buffer(out, TESS__SNAPSHOT, 0, host, TESS_CAT_SNAPSHOT, -1, snapshot_bytes(s, l), s->align));
    if (s->ledger_every)
        TRY(keep_buffer(out, TESS__DIGESTS, 0, host, TESS_CAT_TEMPORARY, -1, digest_bytes(s, l), s->align));
    if (s->mirror)
        TRY(keep_mirror(s, l, out));
    if (s->nranks > 1) { /* tess_all_reduce: losses and counts */
        uint64_t scratch = 0;
        TRY(tess__scratch_of(s, TESS_ALL_REDUCE, TESS_F64, TESS_F64, TESS__STAGE_BYTES / 8, s->nranks, &scratch));
        TRY(keep_buffer(out, TESS__STAGE, 0, device, TESS_CAT_COMM, -1, TESS__STAGE_BYTES, s->align));
        TRY(keep_buffer(out, TESS__STAGE_SCRATCH, 0, device, TESS_CAT_COMM, -1, scratch, s->align));
    }
    return TESS_OK;
}

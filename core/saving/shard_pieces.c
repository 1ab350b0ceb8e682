/* SPDX-License-Identifier: BSD-3-Clause */
#include "shard_pieces.h"

#include "base/status.h"
#include "checkpoint/saved.h"
#include "engine/values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tess_status add_piece(tess__shard_pieces *l, const tess__piece_name *name, uint32_t dtype, uint64_t elems,
                             tess__shard_piece piece) {
    if (l->n == l->capacity) {
        uint64_t capacity = l->capacity ? 2 * l->capacity : 64;
        tess__tensor *tensors = realloc(l->tensors, capacity * sizeof *tensors);
        l->tensors = tensors ? tensors : l->tensors;
        tess__shard_piece *pieces = realloc(l->pieces, capacity * sizeof *pieces);
        l->pieces = pieces ? pieces : l->pieces;
        if (!tensors || !pieces)
            return tess__fail(TESS_E_NOMEM, "no memory for the list of a checkpoint's pieces");
        l->capacity = capacity;
    }
    tess__tensor *t = &l->tensors[l->n];
    *t = (tess__tensor){ .dtype = dtype, .ndim = 1, .shape = { (int64_t)elems, (int64_t)l->n } }; /* [1]: its piece */
    TRY(tess__piece_name_write(name, t->name));
    piece.bytes = elems * tess__tensor_dtype_bytes(dtype);
    l->pieces[l->n++] = piece;
    return TESS_OK;
}

static tess_status add_program(tess__shard_pieces *l, const char *name, const void *data, uint64_t bytes) {
    tess__piece_name piece = { .kind = TESS__PIECE_PROGRAM };
    snprintf(piece.name, sizeof piece.name, "%s", name);
    return bytes ? add_piece(l, &piece, TESS_U8, bytes, (tess__shard_piece){ .at = data, .mem = TESS_MEM_HOST })
                 : TESS_OK;
}

/* Adds this rank's share of its shard's part of a parameter or state. */
static tess_status add_owned(tess__shard_pieces *l, const tess *t, int32_t i, uint32_t of, int kind) {
    const tess__param *p = &t->plan.model.params[i];
    tess__owned o = tess__owned_at(t, of, i);
    tess__piece_name name = { .kind = kind, .state = { .every = 1 } };
    const tess_grain *step = &t->plan.layout.groups[p->group].step;
    if (kind >= TESS__PIECE_STATE0 && !step->kernel)
        name.state = step->state[kind - TESS__PIECE_STATE0];
    uint64_t every = name.state.every;
    tess__span_elems part =
        tess__replica_part(&t->plan.layout.groups[p->group], t->comms.replica_rank, t->plan.setup.replicas);
    part.first /= every;
    uint64_t from = o.piece.in_shard > part.first ? o.piece.in_shard : part.first;
    uint64_t to = o.piece.in_shard + o.piece.elems, end = part.first + part.elems / every;
    to = to < end ? to : end;
    if (!o.piece.elems || from >= to)
        return TESS_OK;
    snprintf(name.name, sizeof name.name, "%s", p->name);
    uint64_t skip = from - o.piece.in_shard;
    int frozen = !t->plan.layout.groups[p->group].trainable;
    tess__shard_piece piece = { .at = o.at + skip * tess_dtype_bytes(o.dtype), .mem = o.mem };
    piece.stays = frozen && (o.mem == TESS_MEM_HOST || o.mem == TESS_MEM_PINNED);
    name.first = o.piece.in_param + skip;
    return add_piece(l, &name, o.dtype, to - from, piece);
}

static tess_status add_buffer(tess__shard_pieces *l, const tess *t, int32_t i) {
    tess__owned o = tess__owned_at(t, TESS_OF_PARAM, i);
    tess__piece_name name = { .kind = TESS__PIECE_BUFFER };
    snprintf(name.name, sizeof name.name, "%s", t->plan.model.params[i].name);
    return add_piece(l, &name, o.dtype, o.piece.elems, (tess__shard_piece){ .at = o.at, .mem = o.mem });
}

int tess__is_of_base(const tess *t, int32_t param) {
    const tess__param *p = &t->plan.model.params[param];
    return !(p->flags & TESS_BUFFER) && !t->plan.layout.groups[p->group].trainable;
}

static tess_status add_all(tess__shard_pieces *l, const tess *t, int base_apart) {
    for (int32_t i = 0; i < t->plan.model.n_params; i++) {
        const tess__param *p = &t->plan.model.params[i];
        if (p->tied_to != i || ((p->flags & TESS_BUFFER) && t->comms.world.rank != 0))
            continue;
        if (p->flags & TESS_BUFFER) {
            TRY(add_buffer(l, t, i));
            continue;
        }
        if (base_apart && tess__is_of_base(t, i))
            continue;
        TRY(add_owned(l, t, i, TESS_OF_PARAM, TESS__PIECE_PARAM));
        for (int32_t k = 0; k < (int32_t)t->plan.layout.groups[p->group].step.n_states; k++)
            TRY(add_owned(l, t, i, TESS_OF_MOMENT1 + (uint32_t)k, TESS__PIECE_STATE0 + k));
    }
    return TESS_OK;
}

/* Orders the pieces like the tensors, which are in the file's order by now. */
static tess_status order_pieces(tess__shard_pieces *l) {
    tess__shard_piece *ordered = malloc((l->n + 1) * sizeof *ordered);
    if (!ordered)
        return tess__fail(TESS_E_NOMEM, "no memory for the list of a checkpoint's pieces");
    for (uint64_t i = 0; i < l->n; i++)
        ordered[i] = l->pieces[l->tensors[i].shape[1]];
    free(l->pieces);
    l->pieces = ordered;
    return TESS_OK;
}

tess_status tess__shard_pieces_find(const tess *t, int base_apart, const void *common, uint64_t common_bytes,
                                    const void *own, uint64_t own_bytes, tess__shard_pieces *out) {
    char rank[32];
    tess__shard_pieces l = { .n = 0 };
    snprintf(rank, sizeof rank, "rank-%05d", t->comms.world.rank);
    tess_status s = add_all(&l, t, base_apart);
    if (!s && t->comms.world.rank == 0)
        s = add_program(&l, "common", common, common_bytes);
    if (!s)
        s = add_program(&l, rank, own, own_bytes);
    if (!s) {
        l.bytes = tess__safetensors_arrange(l.tensors, l.n);
        s = order_pieces(&l);
    }
    if (s)
        tess__shard_pieces_free(&l);
    else
        *out = l;
    return s;
}

void tess__shard_pieces_free(tess__shard_pieces *l) {
    free(l->tensors);
    free(l->pieces);
    *l = (tess__shard_pieces){ .n = 0 };
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Every rank writes pieces of its shards into one file. The leader, rank 0, writes the manifest once all files are on
 * disk. The ranks meet through the control plane, because no collective may run beside the step's. */
#include "saver.h"

#include "base/status.h"
#include "checkpoint/data_writer.h"
#include "engine/values.h"
#include "kernels/kernels.h"
#include "proof/proof.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(TESS__SNAPSHOT_ALIGN % TESS__DISK_BLOCK == 0, "a snapshot begins on a block");

/* ---- this rank's file ------------------------------------------------------------------------------ */

/* Notes whether piece i, or a part of it in host memory, holds a value that is not finite. */
static void note_not_finite(tess__saver *s, uint64_t i, const char *at, uint64_t bytes) {
    uint32_t dtype = s->pieces.tensors[i].dtype;
    s->not_finite |= !tess__all_finite(at, dtype, bytes / tess_dtype_bytes(dtype));
}

/* Writes a piece of the device's memory through a bounded piece of the host's. */
static tess_status write_piece(tess__saver *s, tess__data_writer *w, uint64_t piece) {
    enum { CHUNK = TESS__CHUNK_ELEMS * 8 };
    const tess__shard_piece *p = &s->pieces.pieces[piece];
    if (p->mem == TESS_MEM_HOST || p->mem == TESS_MEM_PINNED) {
        note_not_finite(s, piece, p->at, p->bytes);
        return tess__data_write(w, p->at, p->bytes);
    }
    char *chunk = malloc(CHUNK);
    tess_status status = chunk ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory for a piece of a checkpoint");
    for (uint64_t done = 0; !status && done < p->bytes; done += CHUNK) {
        uint64_t n = p->bytes - done < CHUNK ? p->bytes - done : CHUNK;
        status = tess__copy_now(s->t, chunk, TESS_MEM_HOST, p->at + done, p->mem, n);
        if (!status) {
            note_not_finite(s, piece, chunk, n);
            status = tess__data_write(w, chunk, n);
        }
    }
    free(chunk);
    return status;
}

/* Writes the snapshot in as few writes as can be, because copied pieces lie there one behind the other. */
static tess_status write_image(tess__saver *s, tess__data_writer *w) {
    const char *at = s->image;
    for (uint64_t i = 0, run = 0; i < s->pieces.n; i++) {
        const tess__shard_piece *p = &s->pieces.pieces[i];
        note_not_finite(s, i, p->stays ? p->at : at + run, p->bytes);
        run += p->stays ? 0 : p->bytes;
        if (run && (i + 1 == s->pieces.n || p[1].stays)) {
            TRY(tess__data_write(w, at, run));
            at += run;
            run = 0;
        }
        if (p->stays)
            TRY(tess__data_write(w, p->at, p->bytes));
    }
    return TESS_OK;
}

static tess_status write_data(tess__saver *s, tess__data_writer *w) {
    if (s->image)
        return write_image(s, w);
    for (uint64_t i = 0; i < s->pieces.n; i++)
        TRY(write_piece(s, w, i));
    return TESS_OK;
}

static tess_status write_file(tess__saver *s, tess__data_file *out) {
    char dir[PATH_MAX], name[TESS__FILE_NAME];
    tess__data_writer w;
    TRY(tess__step_dir(s->dir, s->step, dir));
    tess__data_file_name(s->generation, (uint64_t)s->t->comms.world.rank, (uint64_t)s->t->comms.world.nranks, name);
    TRY(tess__data_create(&tess__disk_real, dir, name, s->pieces.tensors, s->pieces.n, &w));
    w.cancel = &s->cancel;
    tess_status status = write_data(s, &w);
    if (status) {
        tess__data_drop(&w);
        return status;
    }
    return tess__data_finish(&w, out);
}

/* ---- the ranks meet -------------------------------------------------------------------------------- */

static void note_key(const tess__saver *s, int32_t rank, char out[64]) {
    snprintf(out, 64, "checkpoint/%llu/%d", (unsigned long long)s->sequence, rank);
}

static void verdict_key(uint64_t sequence, char out[64]) {
    snprintf(out, 64, "checkpoint/%llu/all", (unsigned long long)sequence);
}

static tess_status tell_leader(const tess__saver *s, tess_status status, const tess__data_file *file) {
    char key[64];
    if (!status && file->n_sums > (TESS__KV_VALUE_MAX - sizeof(save_report)) / TESS__SUM_BYTES)
        status = tess__fail(TESS_E_UNSUPPORTED, "%s: a file of %llu bytes has more checksums than ranks can exchange",
                            s->dir, (unsigned long long)file->bytes);
    uint64_t sums = status ? 0 : file->n_sums * TESS__SUM_BYTES;
    char *value = calloc(1, sizeof(save_report) + sums);
    if (!value)
        return tess__fail(TESS_E_NOMEM, "%s: no memory for the checksums of %llu bytes", s->dir,
                          (unsigned long long)file->bytes);
    save_report *n = (save_report *)value;
    *n = (save_report){
        .status = status, .not_finite = s->not_finite, .value = file->bytes, .n_sums = sums / TESS__SUM_BYTES
    };
    snprintf(n->message, sizeof n->message, "%s", status ? tess_last_error() : "");
    if (sums)
        memcpy(value + sizeof *n, file->sums, sums);
    note_key(s, s->t->comms.world.rank, key);
    tess_status told = tess__control_set(s->t->comms.control, key, value, sizeof(save_report) + sums);
    free(value);
    return told;
}

/* The leader takes one rank's report: the entry of its file, or its failure. */
static tess_status receive_report(tess__saver *s, int32_t rank, char *room, tess__data_file *out) {
    char key[64];
    uint64_t bytes = TESS__KV_VALUE_MAX;
    note_key(s, rank, key);
    TRY(tess__control_get(s->t->comms.control, key, room, &bytes, -1));
    (void)tess__control_drop(s->t->comms.control, key); /* the server keeps no more than it must */
    save_report *n = (save_report *)room;
    if (n->status)
        return tess__fail(n->status, "%.*s", MESSAGE_BYTES - 1, n->message);
    s->not_finite |= n->not_finite;
    *out = (tess__data_file){ .bytes = n->value, .n_sums = n->n_sums, .sums = malloc(n->n_sums * TESS__SUM_BYTES + 1) };
    if (!out->sums)
        return tess__fail(TESS_E_NOMEM, "no memory for the checksums of a checkpoint");
    memcpy(out->sums, room + sizeof *n, n->n_sums * TESS__SUM_BYTES);
    tess__data_file_name(s->generation, (uint64_t)rank, (uint64_t)s->t->comms.world.nranks, out->name);
    return TESS_OK;
}

/* Takes all ranks' reports after the leader's own; the first failure counts. All are heard, so that none writes any
 * more. */
static tess_status hear_all(tess__saver *s, tess__data_file *files) {
    tess_status status = TESS_OK;
    char *room = s->t->comms.world.nranks > 1 ? malloc(TESS__KV_VALUE_MAX) : NULL, message[MESSAGE_BYTES] = "";
    if (s->t->comms.world.nranks > 1 && !room)
        return tess__fail(TESS_E_NOMEM, "no memory for the checksums of a checkpoint");
    for (int32_t r = 1; r < s->t->comms.world.nranks; r++) {
        tess_status one = receive_report(s, r, room, &files[r]);
        if (one && !status) {
            status = one;
            snprintf(message, sizeof message, "%s", tess_last_error());
        }
    }
    free(room);
    return status ? tess__fail(status, "%s", message) : TESS_OK;
}

/* ---- the manifest ---------------------------------------------------------------------------------- */

static tess_status describe_params(const tess__saver *s, tess__manifest *m) {
    const tess *t = s->t;
    m->params = calloc((size_t)t->plan.model.n_params + 1, sizeof *m->params);
    m->is_buffer = calloc((size_t)t->plan.model.n_params + 1, 1);
    m->in_base = calloc((size_t)t->plan.model.n_params + 1, 1);
    if (!m->params || !m->is_buffer || !m->in_base)
        return tess__fail(TESS_E_NOMEM, "no memory for a checkpoint's manifest");
    for (int32_t i = 0; i < t->plan.model.n_params; i++) {
        const tess__param *p = &t->plan.model.params[i];
        if (p->tied_to != i)
            continue;
        m->is_buffer[m->n_params] = (p->flags & TESS_BUFFER) != 0;
        m->in_base[m->n_params] = s->base_apart && tess__is_of_base(t, i);
        tess__tensor *x = &m->params[m->n_params++];
        x->dtype = p->flags & TESS_BUFFER ? p->dtype : t->plan.layout.groups[p->group].master;
        x->ndim = p->ndim;
        memcpy(x->shape, p->shape, sizeof p->shape);
        if ((size_t)snprintf(x->name, sizeof x->name, "%s", p->name) >= sizeof x->name)
            return tess__fail(TESS_E_INVALID, "parameter %.60s…: its name is longer than a checkpoint holds", p->name);
    }
    return TESS_OK;
}

static tess_status commit_manifest(tess__saver *s, tess__data_file *files) {
    const tess *t = s->t;
    tess__manifest m = { .step = s->step,
                         .generation = s->generation,
                         .lineage = t->past.of,
                         .chunk_bytes = TESS__CHUNK_BYTES,
                         .ranks = (uint64_t)t->comms.world.nranks,
                         .microbatches = (uint64_t)t->comms.world.nranks * (uint64_t)t->plan.setup.accum,
                         .has_sums = tess__sum_known(),
                         .not_finite = s->not_finite,
                         .has_score = s->has_score,
                         .score = s->score,
                         .loss_scale = s->loss_scale,
                         .n_states = (uint64_t)t->plan.layout.n_states,
                         .n_files = (uint64_t)t->comms.world.nranks,
                         .n_base = s->base_apart ? s->base.n : 0,
                         .base = s->base.files,
                         .files = files };
    snprintf(m.writer, sizeof m.writer, "tessera %s", TESSERA_VERSION);
    snprintf(m.optimizer, sizeof m.optimizer, "%s", tess__optimizer_name(t));
    snprintf(m.strategy, sizeof m.strategy, "%s", t->settings.strategy);
    snprintf(m.precision, sizeof m.precision, "%s", t->selection.text[TESS_KIND_PRECISION]);
    tess_status status = describe_params(s, &m);
    if (!status)
        status = tess__store_commit(&s->store, &m, s->keep);
    free(m.params);
    free(m.is_buffer);
    free(m.in_base);
    return status;
}

/* Ends a save on the leader: writes the manifest when all files are there, else removes them all. */
static tess_status conclude_save(tess__saver *s, tess_status mine, tess__data_file *own) {
    size_t n = (size_t)s->t->comms.world.nranks;
    tess__data_file *files = calloc(n, sizeof *files);
    char message[MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", mine ? tess_last_error() : "");
    tess_status status = files ? hear_all(s, files) : tess__fail(TESS_E_NOMEM, "no memory for a checkpoint's manifest");
    if (mine)
        status = tess__fail(mine, "%s", message);
    if (!status) {
        files[0] = *own;
        status = commit_manifest(s, files);
        files[0].sums = NULL;
    } else {
        snprintf(message, sizeof message, "%s", tess_last_error());
        tess__store_abandon(&s->store, s->step, s->generation);
        status = tess__fail(status, "%s", message);
    }
    for (size_t r = 0; files && r < n; r++)
        free(files[r].sums);
    free(files);
    return status;
}

/* Sets the verdict on this save and drops the one before: every rank has read it, or this save would not have begun. */
static tess_status announce_verdict(const tess__saver *s, const save_report *n) {
    char key[64];
    verdict_key(s->sequence - 1, key);
    (void)tess__control_drop(s->t->comms.control, key);
    verdict_key(s->sequence, key);
    return tess__control_set(s->t->comms.control, key, n, sizeof *n);
}

/* Gives every rank the leader's verdict. */
static tess_status share_verdict(tess__saver *s, tess_status status) {
    char key[64];
    save_report n = { .status = status };
    uint64_t bytes = sizeof n;
    if (!s->t->comms.control)
        return status;
    if (is_leader(s)) {
        snprintf(n.message, sizeof n.message, "%s", status ? tess_last_error() : "");
        tess_status told = announce_verdict(s, &n);
        return status ? tess__fail(status, "%s", n.message) : told;
    }
    verdict_key(s->sequence, key);
    TRY(tess__control_get(s->t->comms.control, key, &n, &bytes, -1));
    return n.status ? tess__fail(n.status, "%.*s", MESSAGE_BYTES - 1, n.message) : TESS_OK;
}

static void name_in_ledger(const tess__saver *s) {
    char dir[PATH_MAX];
    if (s->proof && tess__step_dir(s->dir, s->step, dir) == TESS_OK)
        tess__proof_saved(s->proof, dir, s->step);
}

void tess__saver_write(void *arg) {
    tess__saver *s = arg;
    tess__data_file file = { .bytes = 0 };
    double began = tess__saver_seconds();
    tess_status status = write_file(s, &file);
    if (is_leader(s))
        status = conclude_save(s, status, &file);
    else
        status = tell_leader(s, status, &file);
    if (is_leader(s) && !status)
        name_in_ledger(s);
    if (is_leader(s) || !status)
        status = share_verdict(s, status);
    free(file.sums);
    s->info.bytes = file.bytes;
    s->info.write_seconds = tess__saver_seconds() - began;
    s->status = status;
    snprintf(s->message, sizeof s->message, "%s", status ? tess_last_error() : "");
}

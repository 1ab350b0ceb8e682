/* SPDX-License-Identifier: BSD-3-Clause */
/* Saving: every rank writes pieces of its shards into one file. The leader, rank 0, writes the manifest once all
 * files are on disk. With a snapshot a thread writes the files beside training. The ranks then meet through the control
 * plane, because no collective may run beside the step's. */
#include "engine/finite.h"

#include "base/log.h"
#include "base/status.h"
#include "checkpoint/base_files.h"
#include "checkpoint/data_writer.h"
#include "checkpoint/store.h"
#include "kernels/kernels.h"
#include "proof/proof.h"
#include "saving.h"
#include "shard_pieces.h"
#include "engine/values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MESSAGE_BYTES = 480 };
_Static_assert(TESS__SNAPSHOT_ALIGN % TESS__DISK_BLOCK == 0, "a snapshot begins on a block");

typedef struct { /* what a rank tells the leader, and the leader all ranks; a rank's checksums follow it */
    int32_t status, not_finite;
    uint64_t value, n_sums; /* bytes of its file; the leader: the generation */
    char message[MESSAGE_BYTES];
} save_report;

typedef struct tess__saver {
    tess *t;
    struct tess__proof *proof; /* ledger that names the checkpoint; null: none */
    tess__store store;         /* of the leader: held from the first save on */
    uint64_t sequence, step, generation, keep;
    int has_score;
    double score;
    tess__loss_scale loss_scale; /* at `step`: the run goes on while files are written */
    char dir[PATH_MAX];
    char common[TESS_CHECKPOINT_BYTES], own[TESS_CHECKPOINT_BYTES];
    tess__shard_pieces pieces;
    tess__base_files base; /* [leader] */
    int base_apart;        /* frozen parameters are left out: they are in the base's files */
    int not_finite; /* what this rank writes holds NaN or infinity; on the leader, at the end, what any rank writes */
    const char *image; /* the snapshot; null: written from where the pieces lie */
    int pending;       /* a save whose outcome nobody has asked for */
    atomic_int cancel;
    tess_status status;
    char message[MESSAGE_BYTES];
    tess_checkpoint_info info;
} tess__saver;

static double now_seconds(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static int is_leader(const tess__saver *s) {
    return s->t->comms.world.rank == 0;
}

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

static void write_and_meet(void *arg) {
    tess__saver *s = arg;
    tess__data_file file = { .bytes = 0 };
    double began = now_seconds();
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
    s->info.write_seconds = now_seconds() - began;
    s->status = status;
    snprintf(s->message, sizeof s->message, "%s", status ? tess_last_error() : "");
}

/* Logs a failure whose outcome nobody will ask for any more. */
static void say_failure(void *arg) {
    const tess__saver *s = arg;
    if (s->pending && s->status && is_leader(s))
        tess__log(TESS_LOG_WARNING, "checkpoint of step %llu: %s", (unsigned long long)s->step, s->message);
}

/* ---- a save ---------------------------------------------------------------------------------------- */

/* Waits for the save that is being written. Its outcome stays until somebody asks for it. */
static void join_writer(tess__saver *s) {
    tess__side_thread_join(&s->t->saving);
    tess__shard_pieces_free(&s->pieces);
}

static tess_status take_outcome(tess__saver *s) {
    s->pending = 0;
    return s->status ? tess__fail(s->status, "%s", s->message) : TESS_OK;
}

/* [leader] Takes the directory, unless it has it, and sees that nothing is there that would be left behind. */
static tess_status take_directory(tess__saver *s, const char *on_newer) {
    tess__past *past = &s->t->past;
    TRY(tess__option_choice("on-newer", &on_newer));
    if (s->store.disk && strcmp(s->store.dir, s->dir) != 0)
        tess__store_close(&s->store);
    if (s->store.disk && past->settled)
        return TESS_OK;
    if (!s->store.disk)
        TRY(tess__store_open(&tess__disk_real, s->dir, &s->store));
    tess_status status = tess__store_settle(&s->store, past, strcmp(on_newer, "aside") == 0);
    if (status)
        tess__store_close(&s->store);
    return status;
}

/* [leader] Reads the base's files once. */
static tess_status read_base(tess__saver *s, const char *const *paths) {
    return paths && !s->base.n ? tess__base_files_read(&tess__disk_real, paths, &s->base) : TESS_OK;
}

typedef struct {
    save_report report;
    int base_apart;
    tess__past past;
} preparation;

/* Prepares a save: the leader takes the directory, and all hear how that went and whose checkpoints this run writes. */
static tess_status prepare_save(tess__saver *s, const tess_checkpoint_options *o, int *refused) {
    preparation mine = { .report = { .status = TESS_OK } };
    preparation *all = calloc((size_t)s->t->comms.world.nranks, sizeof *all);
    save_report *n = &mine.report;
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", s->t->comms.world.nranks);
    if (is_leader(s)) {
        n->status = take_directory(s, o->on_newer ? o->on_newer : "stop");
        if (!n->status)
            n->status = read_base(s, o->base);
        mine.base_apart = o->base && s->base.n;
        if (!n->status && !(o->flags & TESS_CHECKPOINT_PREPARE))
            n->status = tess__store_begin(&s->store, s->step, &n->value);
        snprintf(n->message, sizeof n->message, "%s", n->status ? tess_last_error() : "");
        mine.past = s->t->past;
    }
    tess_status status = tess__comms_exchange(&s->t->comms, "tess_checkpoint_save", &mine, sizeof mine, all);
    if (!status) {
        s->generation = all[0].report.value;
        s->t->past = all[0].past;
        s->base_apart = all[0].base_apart;
        *refused = all[0].report.status != TESS_OK;
        if (*refused)
            status = tess__fail(all[0].report.status, "%.*s", MESSAGE_BYTES - 1, all[0].report.message);
    }
    free(all);
    return status;
}

static tess_status check_room(const tess__saver *s, uint64_t skipped) {
    uint64_t need = skipped, planned = s->t->memory.booked_bytes[TESS__SNAPSHOT][0];
    for (uint64_t i = 0; i < s->pieces.n; i++)
        need += s->pieces.pieces[i].stays ? 0 : s->pieces.pieces[i].bytes;
    return need <= planned ? TESS_OK
                           : tess__fail(TESS_E_INTERNAL, "a snapshot of %llu bytes, %llu were planned",
                                        (unsigned long long)need, (unsigned long long)planned);
}

/* Copies what the next step writes into the planned memory, as it will lie in the file. */
static tess_status take_snapshot(tess__saver *s) {
    tess *t = s->t;
    char *room = tess__address_of(t, TESS__SNAPSHOT, 0);
    uint64_t skipped = -(uint64_t)(uintptr_t)room % TESS__SNAPSHOT_ALIGN;
    char *at = room + skipped;
    uint32_t mem =
        t->memory.arenas[TESS_DOMAIN_HOST][tess__one_memory(&t->plan.setup) ? TESS__PAGEABLE : TESS__RESIDENT]
            .memory.mem;
    TRY(check_room(s, skipped));
    s->image = at;
    for (uint64_t i = 0; i < s->pieces.n; i++) {
        const tess__shard_piece *p = &s->pieces.pieces[i];
        if (p->stays)
            continue;
        if (p->mem == TESS_MEM_HOST || (p->mem == TESS_MEM_PINNED && tess__one_memory(&t->plan.setup)))
            memcpy(at, p->at, p->bytes);
        else
            TRY(tess__device_copy(&t->device, at, mem, p->at, p->mem, p->bytes, NULL));
        at += p->bytes;
    }
    return tess__streams_sync(&t->streams);
}

static tess_status start_writer(tess__saver *s) {
    s->cancel = s->not_finite = 0;
    s->pending = 1;
    s->image = NULL;
    if (!s->t->plan.setup.snapshot) {
        write_and_meet(s);
        join_writer(s);
        return TESS_OK;
    }
    TRY(take_snapshot(s));
    return tess__side_thread_start(&s->t->saving, write_and_meet, say_failure, s);
}

static tess_status saver_of(tess *t, tess__saver **out) {
    if (!t->saver) {
        t->saver = calloc(1, sizeof *t->saver);
        if (!t->saver)
            return tess__fail(TESS_E_NOMEM, "no memory to save a checkpoint");
        t->saver->t = t;
        t->saver->store.lock = -1;
    }
    *out = t->saver;
    return TESS_OK;
}

/* Asks whether any rank is still writing, because all ranks skip a save that one skips. */
static tess_status anyone_busy(tess__saver *s, int *busy) {
    char mine = (char)tess__side_thread_busy(&s->t->saving);
    char *all = calloc((size_t)s->t->comms.world.nranks, 1);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", s->t->comms.world.nranks);
    tess_status status = tess__comms_exchange(&s->t->comms, "tess_checkpoint_save", &mine, 1, all);
    *busy = !status && memchr(all, 1, (size_t)s->t->comms.world.nranks) != NULL;
    free(all);
    return status;
}

static tess_status check_save(const tess *t, const tess_checkpoint_options *o) {
    if (!t->sharded || t->settings.plan_only)
        return tess__fail(TESS_E_INVALID, "tess_checkpoint_save before tess_shard");
    if (t->pass.pending_grads || t->pass.microbatch)
        return tess__fail(TESS_E_INVALID, "tess_checkpoint_save within a step: save after tess_step or tess_grad_drop");
    if (o->on_newer && strcmp(o->on_newer, "stop") != 0 && strcmp(o->on_newer, "aside") != 0)
        return tess__fail(TESS_E_INVALID, "tess_checkpoint_save: on_newer is '%.40s', expected stop or aside",
                          o->on_newer);
    if (!o->dir || !o->dir[0])
        return tess__fail(TESS_E_INVALID, "tess_checkpoint_save: no directory is given");
    if (o->score && !isfinite(*o->score))
        return tess__fail(TESS_E_INVALID, "tess_checkpoint_save: the score is %g, expected a finite number", *o->score);
    if (o->common_bytes > TESS_CHECKPOINT_BYTES || o->own_bytes > TESS_CHECKPOINT_BYTES)
        return tess__fail(TESS_E_INVALID,
                          "tess_checkpoint_save: the program has %llu and %llu bytes, at most %d of each",
                          (unsigned long long)o->common_bytes, (unsigned long long)o->own_bytes, TESS_CHECKPOINT_BYTES);
    return TESS_OK;
}

/* *soft: the failure is the disk's, and training can go on. */
static tess_status save_checkpoint(tess *t, const tess_checkpoint_options *given, int *soft) {
    tess_checkpoint_options o;
    tess__saver *s = NULL;
    double began = now_seconds();
    int busy = 0;
    TRY(tess__copy_options("tess_checkpoint_save", &o, sizeof o, TESS__UP_TO(tess_checkpoint_options, own_bytes),
                           given));
    TRY(tess__pass_finish(t));
    TRY(check_save(t, &o));
    TRY(saver_of(t, &s));
    if (o.flags & TESS_CHECKPOINT_SKIP) {
        TRY(anyone_busy(s, &busy));
        if (busy)
            return TESS_OK;
    }
    join_writer(s);
    say_failure(s);
    s->pending = 0;
    if ((size_t)snprintf(s->dir, sizeof s->dir, "%s", o.dir) >= sizeof s->dir - 128)
        return tess__fail(TESS_E_INVALID, "tess_checkpoint_save: the path is longer than %d bytes", PATH_MAX);
    s->sequence++;
    s->proof = t->proof;
    s->step = t->step.steps_done;
    s->keep = o.keep;
    s->has_score = o.score != NULL;
    s->score = o.score ? *o.score : 0;
    s->loss_scale = t->scaler.now;
    TRY(prepare_save(s, &o, soft));
    if (o.flags & TESS_CHECKPOINT_PREPARE)
        return TESS_OK;
    if (o.common_bytes)
        memcpy(s->common, o.common, o.common_bytes);
    if (o.own_bytes)
        memcpy(s->own, o.own, o.own_bytes);
    TRY(tess__streams_sync(&t->streams));
    TRY(tess__look_at_last_norm(t));
    TRY(tess__look_at_steps(t));
    TRY(tess__shard_pieces_find(t, s->base_apart, s->common, o.common_bytes, s->own, o.own_bytes, &s->pieces));
    s->info = (tess_checkpoint_info){ .ranks = t->comms.world.nranks,
                                      .step = s->step,
                                      .microbatches = (uint64_t)t->comms.world.nranks * (uint64_t)t->plan.setup.accum,
                                      .common_bytes = o.common_bytes,
                                      .own_bytes = o.own_bytes };
    TRY(start_writer(s));
    s->info.stall_seconds = now_seconds() - began;
    *soft = !t->saving.runs;
    return t->saving.runs || !s->status ? TESS_OK : take_outcome(s);
}

static tess_status wait_for(tess *t, tess_checkpoint_info *out, int *soft) {
    tess__saver *s = t->saver;
    if (!s || !s->pending)
        return TESS_OK;
    join_writer(s);
    *soft = s->status == TESS_E_DATA || !t->comms.control || !tess__control_aborting(t->comms.control);
    TRY(take_outcome(s));
    if (out) {
        tess_checkpoint_info info = s->info;
        info.struct_size = sizeof info;
        TESS_GIVE(out, &info);
    }
    return TESS_OK;
}

tess_status tess_checkpoint_save(tess *t, const tess_checkpoint_options *o) {
    int soft = 0;
    TRY(tess__engine_check(t));
    tess_status s = save_checkpoint(t, o, &soft);
    return s && !soft ? tess__engine_fail(t, s) : s;
}

tess_status tess_checkpoint_wait(tess *t, tess_checkpoint_info *info) {
    int soft = 0;
    TRY(tess__engine_check(t));
    tess_status s = wait_for(t, info, &soft);
    return s && !soft ? tess__engine_fail(t, s) : s;
}

tess_status tess__past_share(tess *t) {
    tess__past *all = calloc((size_t)t->comms.world.nranks, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", t->comms.world.nranks);
    tess_status status = tess__comms_exchange(&t->comms, "tess_recover", &t->past, sizeof t->past, all);
    for (int32_t r = 0; !status && r < t->comms.world.nranks; r++)
        if (all[r].settled || all[r].of.n) {
            t->past = all[r];
            break;
        }
    free(all);
    return status;
}

void tess__saver_end(tess *t) {
    tess__saver *s = t->saver;
    if (!s)
        return;
    s->cancel = t->error != TESS_OK;
    join_writer(s);
    if (!t->error)
        say_failure(s);
    if (s->store.disk)
        tess__store_close(&s->store);
    tess__base_files_free(&s->base);
    free(s);
    t->saver = NULL;
}

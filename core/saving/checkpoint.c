/* SPDX-License-Identifier: BSD-3-Clause */
/* Saving and waiting for it, as a program asks for it. With a snapshot a thread writes the files beside training. */
#include "saver.h"

#include "base/log.h"
#include "base/status.h"
#include "proof/proof.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
static tess_status read_base(tess__saver *s, const tess_checkpoint_options *o) {
    if (o->base && !s->base.n)
        TRY(tess__base_files_read(&tess__disk_real, o->base, &s->base));
    if (s->t->plan.setup.base_apart && !(o->flags & TESS_CHECKPOINT_PREPARE) && !(o->base && s->base.n))
        return tess__fail(TESS_E_INVALID, "tess_checkpoint_save without base: TESS_OPTIONS_BASE_APART promises it, and "
                                          "frozen parameters have no room in the snapshot");
    return TESS_OK;
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
            n->status = read_base(s, o);
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
        else if (p->mem == TESS__MEM_STORE)
            TRY(tess__copy_now(t, at, mem, p->at, p->mem, p->bytes));
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
        tess__saver_write(s);
        join_writer(s);
        return TESS_OK;
    }
    TRY(take_snapshot(s));
    return tess__side_thread_start(&s->t->saving, tess__saver_write, say_failure, s);
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

static tess_status copy_options(const tess *t, const tess_checkpoint_options *given, tess_checkpoint_options *o) {
    TRY(tess__copy_options("tess_checkpoint_save", o, sizeof *o, TESS__UP_TO(tess_checkpoint_options, own_bytes),
                           given));
    if (!o->common && !o->common_bytes)
        o->common = t->settings.options.common, o->common_bytes = t->plan.setup.common_bytes;
    return TESS_OK;
}

/* *soft: the failure is the disk's, and training can go on. */
static tess_status save_checkpoint(tess *t, const tess_checkpoint_options *given, int *soft) {
    tess_checkpoint_options o;
    tess__saver *s = NULL;
    double began = tess__saver_seconds();
    int busy = 0;
    TRY(copy_options(t, given, &o));
    TRY(tess__pass_finish(t));
    TRY(check_save(t, &o));
    TRY(saver_of(t, &s));
    if (o.flags & TESS_CHECKPOINT_SKIP) {
        TRY(anyone_busy(s, &busy));
        if (busy)
            return TESS_OK;
    }
    TRY(tess__proof_rest(t));
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
    s->info.stall_seconds = tess__saver_seconds() - began;
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
    if (out)
        TESS_GIVE(out, &s->info);
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

/* SPDX-License-Identifier: BSD-3-Clause */
/* Loading: each rank goes through the files in their order and takes what lies in its shard, whatever the shards of
 * the saving run were. Beside its shard it holds a chunk of a file and a piece of values. */
#include "engine/state.h"

#include "base/log.h"
#include "base/status.h"
#include "checkpoint/base_files.h"
#include "checkpoint/saved.h"
#include "checkpoint/store.h"
#include "kernels/kernels.h"
#include "engine/values.h"
#include "tensors_load.h"
#include "proof/proof.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 480 };

typedef struct {
    tess *t;
    const tess_checkpoint_load_options *o;
    tess__saved saved;
    tess__saved_file *file;
    int32_t n_states;
    uint8_t *in_base; /* of parameters: the checkpoint holds no values of it */
    tess__base_files base;
    uint64_t *taken; /* elements, by parameter and kind: 0 the values, 1 + k the states */
    void *raw, *wide;
    uint64_t common_bytes, own_bytes;
    int params_only;             /* only parameters are asked for, or an imported checkpoint has nothing else */
    tess__past past;             /* the past of the checkpoint that was read last */
    tess__loss_scale loss_scale; /* its scale */
    char path[PATH_MAX];         /* of that one */
    int nothing;                 /* there is no checkpoint yet, which is fine */
    int foreign;                 /* the failure is not damage, so an older checkpoint would not do either */
} loading;

/* ---- is it of this model? ---------------------------------------------------------------------------- */
static tess_status check_param(loading *l, uint64_t i) {
    const tess__tensor *x = &l->saved.manifest.params[i];
    int32_t at = tess__model_find_param(&l->t->plan.model, x->name);
    const tess__param *p = at < 0 ? NULL : &l->t->plan.model.params[at];
    if (!p || p->tied_to != at || !(p->flags & TESS_BUFFER) != !l->saved.manifest.is_buffer[i])
        return tess__fail(TESS_E_DATA, "%s: a checkpoint of another model: this one has no %s '%s' of its own",
                          l->saved.path, l->saved.manifest.is_buffer[i] ? "buffer" : "parameter", x->name);
    int same = p->ndim == x->ndim;
    for (int32_t d = 0; same && d < p->ndim; d++)
        same = p->shape[d] == x->shape[d];
    if (!same)
        return tess__fail(TESS_E_DATA,
                          "%s: a checkpoint of another model: '%s' has %" PRIu64 " elements there and %" PRIu64
                          " here, or another shape",
                          l->saved.path, x->name, x->elems, p->elems);
    l->in_base[at] = (uint8_t)tess__manifest_in_base(&l->saved.manifest, i);
    if (l->in_base[at] && !(p->flags & TESS_FROZEN))
        return tess__fail(TESS_E_DATA, "%s: '%s' was frozen there and is trained here", l->saved.path, x->name);
    return TESS_OK;
}

/* [leader] Compares the base that the checkpoint names with this run's, from which frozen parameters were filled. */
static tess_status check_base(loading *l) {
    static const char *const none[] = { NULL };
    if (!l->saved.manifest.n_base || l->t->comms.world.rank != 0)
        return TESS_OK;
    if (!l->base.n)
        TRY(tess__base_files_read(&tess__disk_real, l->o->base ? l->o->base : none, &l->base));
    return tess__base_files_check(l->saved.path, &l->saved.manifest, &l->base);
}

/* Warns when a step has other microbatches than before, which means other bits and another batch. Under
 * deterministic mode a changed number of ranks must not be the reason. */
static tess_status check_microbatches(const loading *l) {
    const tess__manifest *m = &l->saved.manifest;
    const tess__setup *s = &l->t->plan.setup;
    uint64_t now = (uint64_t)s->nranks * (uint64_t)s->accum;
    char message[MESSAGE_BYTES], or_accum[48] = "";
    if (l->params_only || m->microbatches == now)
        return TESS_OK;
    if (m->microbatches % (uint64_t)s->nranks == 0)
        snprintf(or_accum, sizeof or_accum, ", or TESSERA_ACCUM to %" PRIu64, m->microbatches / (uint64_t)s->nranks);
    snprintf(message, sizeof message,
             "%.200s: its steps had %" PRIu64 " microbatches (ranks: %" PRIu64 "), those of this run have %" PRIu64
             " (ranks: %d): set tess_options.microbatches to %" PRIu64 "%s",
             l->saved.path, m->microbatches, m->ranks, now, s->nranks, m->microbatches, or_accum);
    if (s->deterministic && m->ranks != (uint64_t)s->nranks)
        return tess__fail(TESS_E_INVALID, "%s (TESSERA_DETERMINISTIC=1)", message);
    if (l->t->comms.world.rank == 0)
        tess__log(TESS_LOG_WARNING, "%s; other bits from here on", message);
    return TESS_OK;
}

static tess_status check_model(loading *l) {
    const tess__manifest *m = &l->saved.manifest;
    uint64_t own = 0;
    for (int32_t i = 0; i < l->t->plan.model.n_params; i++)
        own += l->t->plan.model.params[i].tied_to == i;
    for (uint64_t i = 0; i < m->n_params; i++)
        TRY(check_param(l, i));
    TRY(check_base(l));
    if (own != m->n_params)
        return tess__fail(TESS_E_DATA,
                          "%s: a checkpoint of another model: it has %" PRIu64 " parameters, this one %" PRIu64,
                          l->saved.path, m->n_params, own);
    l->params_only = (l->o->flags & TESS_CHECKPOINT_PARAMS) != 0 || strcmp(m->optimizer, "none") == 0;
    if (!l->params_only && strcmp(m->optimizer, tess__optimizer_name(l->t)) != 0)
        return tess__fail(TESS_E_DATA, "%s: saved with optimizer %s, this run has %s", l->saved.path, m->optimizer,
                          tess__optimizer_name(l->t));
    if (!l->params_only && m->n_states != (uint64_t)l->t->plan.layout.n_states)
        return tess__fail(TESS_E_DATA,
                          "%s: saved with %" PRIu64 " optimizer states, this run has %d: another momentum?",
                          l->saved.path, m->n_states, l->t->plan.layout.n_states);
    return check_microbatches(l);
}

/* ---- values ------------------------------------------------------------------------------------------ */

static tess_status read_saved(void *user, const tess__tensor *x, uint64_t first, uint64_t n, void *out) {
    return tess__saved_file_read(((loading *)user)->file, x, first, n, out);
}

static tess__elements elements_of(loading *l) {
    return (tess__elements){
        .t = l->t, .path = l->saved.path, .user = l, .read = read_saved, .raw = l->raw, .wide = l->wide
    };
}

/* A state of a plugin is known by its name. Integers mean something to that plugin alone, so they are taken as they
 * are. */
static tess_status check_state(const loading *l, const tess__tensor *x, const tess__piece_name *name, int state,
                               const tess__param *p) {
    const tess_grain *step = &l->t->plan.layout.groups[p->group].step;
    const tess_state *own = &step->state[state];
    int known = state < (int)step->n_states, named = known && !step->kernel && *own->name;
    if (!known || (named ? strcmp(name->state.name, own->name) != 0 : *name->state.name != 0) ||
        name->state.every != own->every ||
        (x->dtype != own->dtype && !(tess__is_float(x->dtype) && tess__is_float(own->dtype))))
        return tess__fail(TESS_E_DATA, "%s: tensor '%s' is no state that optimizer %s keeps of '%s' here",
                          l->saved.path, x->name, l->t->settings.optimizer, p->name);
    return TESS_OK;
}

static tess_status take_values(loading *l, const tess__tensor *x, const tess__piece_name *name) {
    int state = name->kind >= TESS__PIECE_STATE0 ? name->kind - TESS__PIECE_STATE0 : -1;
    int32_t i = tess__model_find_param(&l->t->plan.model, name->name);
    if (state >= 0 && l->params_only)
        return TESS_OK;
    if (i < 0 || l->t->plan.model.params[i].tied_to != i || state >= l->n_states)
        return tess__fail(TESS_E_DATA, "%s: tensor '%s' belongs to nothing here", l->saved.path, x->name);
    const tess__param *p = &l->t->plan.model.params[i];
    if (state >= 0 && (p->flags & (TESS_BUFFER | TESS_FROZEN)))
        return TESS_OK; /* the parameter was frozen since */
    if (state >= 0)
        TRY(check_state(l, x, name, state, p));
    tess__owned o = tess__owned_at(l->t, state < 0 ? TESS_OF_PARAM : TESS_OF_MOMENT1 + (uint32_t)state, i);
    uint64_t end = name->first + x->elems, from = o.piece.in_param > name->first ? o.piece.in_param : name->first;
    uint64_t to = o.piece.in_param + o.piece.elems;
    to = to < end ? to : end;
    uint64_t all = tess__values_of(p->elems, name->state.every);
    if (name->first > all || x->elems > all - name->first)
        return tess__fail(TESS_E_DATA, "%s: tensor '%s' reaches beyond its parameter", l->saved.path, x->name);
    if (!o.piece.elems || from >= to)
        return TESS_OK;
    l->taken[(size_t)i * (TESS__MAX_STATES + 1) + (size_t)(state + 1)] += to - from;
    tess__elements e = elements_of(l);
    return tess__elements_place(&e, x, from - name->first, to - from, &o, from - o.piece.in_param);
}

static tess_status take_program(loading *l, const tess__tensor *x, const tess__piece_name *name) {
    char own[32];
    snprintf(own, sizeof own, "rank-%05d", l->t->comms.world.rank);
    int common = strcmp(name->name, "common") == 0;
    if (!common && strcmp(name->name, own) != 0)
        return TESS_OK;
    *(common ? &l->common_bytes : &l->own_bytes) = x->elems;
    void *room = common ? l->o->common : l->o->own;
    uint64_t room_bytes = common ? l->o->common_bytes : l->o->own_bytes;
    return room ? tess__saved_file_read(l->file, x, 0, x->elems < room_bytes ? x->elems : room_bytes, room) : TESS_OK;
}

static tess_status take_file(loading *l) {
    uint64_t n;
    const tess__tensor *list = tess__saved_file_list(l->file, &n);
    for (uint64_t i = 0; i < n; i++) {
        tess__piece_name name;
        if (tess__piece_name_read(list[i].name, &name))
            return tess__fail(TESS_E_DATA, "%s: tensor '%s' is no piece of a checkpoint", l->saved.path, list[i].name);
        TRY(name.kind == TESS__PIECE_PROGRAM ? take_program(l, &list[i], &name) : take_values(l, &list[i], &name));
    }
    return TESS_OK;
}

static int32_t states_of(const loading *l, const tess__param *p) {
    return (int32_t)l->t->plan.layout.groups[p->group].step.n_states;
}

static tess_status fail_taken(const loading *l, const char *name, int32_t kind, uint64_t got, uint64_t need) {
    char what[32] = "the value";
    if (kind)
        snprintf(what, sizeof what, "optimizer state %d of %d", (int)kind, (int)l->n_states);
    return tess__fail(TESS_E_DATA, "%s: %s of '%s' has %" PRIu64 " elements for this rank, expected %" PRIu64,
                      l->saved.path, what, name, got, need);
}

/* Fails when a part of this rank's shard is missing. */
static tess_status check_taken(const loading *l) {
    for (int32_t i = 0; i < l->t->plan.model.n_params; i++) {
        const tess__param *p = &l->t->plan.model.params[i];
        int has_states = !(p->flags & (TESS_BUFFER | TESS_FROZEN)) && !l->params_only;
        for (int32_t k = 0; p->tied_to == i && !l->in_base[i] && k <= (has_states ? states_of(l, p) : 0); k++) {
            uint64_t need = tess__owned_at(l->t, k ? TESS_OF_GRAD + (uint32_t)k : TESS_OF_PARAM, i).piece.elems;
            uint64_t got = l->taken[(size_t)i * (TESS__MAX_STATES + 1) + (size_t)k];
            if (got != need)
                return fail_taken(l, p->name, k, got, need);
        }
    }
    return TESS_OK;
}

static tess_status load_opened(loading *l) {
    l->foreign = 1;
    TRY(check_model(l));
    l->foreign = 0;
    memset(l->taken, 0, (size_t)l->t->plan.model.n_params * (TESS__MAX_STATES + 1) * sizeof *l->taken);
    for (uint64_t f = 0; f < l->saved.manifest.n_files; f++) {
        TRY(tess__saved_file_open(&l->saved, f, &l->file));
        tess_status s = take_file(l);
        tess__saved_file_close(l->file);
        l->file = NULL;
        TRY(s);
    }
    return check_taken(l);
}

/* Loads one checkpoint on this rank. */
static tess_status load_one(loading *l, const char *path, tess_checkpoint_info *info) {
    l->foreign = 0;
    l->common_bytes = l->own_bytes = 0;
    snprintf(l->path, sizeof l->path, "%s", path);
    TRY(tess__saved_open(&tess__disk_real, path, &l->saved));
    tess_status s = load_opened(l);
    const tess__manifest *m = &l->saved.manifest;
    l->past.of = m->lineage;
    if (!m->lineage.n)
        l->past.of = (tess__lineage){ .n = 1 };
    l->past.of.runs[l->past.of.n - 1].until = m->step;
    l->loss_scale = m->loss_scale;
    *info = (tess_checkpoint_info){ .struct_size = sizeof *info,
                                    .ranks = (int32_t)m->ranks,
                                    .step = m->step,
                                    .microbatches = m->microbatches,
                                    .common_bytes = l->common_bytes,
                                    .own_bytes = l->own_bytes };
    tess__saved_close(&l->saved);
    return s;
}

/* ---- which one --------------------------------------------------------------------------------------- */
typedef struct { /* what ranks tell each other after each try */
    int32_t status, foreign;
    uint64_t step;
    char message[MESSAGE_BYTES];
} load_outcome;

/* [C] Agrees on the outcome of all ranks: the first failure, whichever rank found it. */
static tess_status agree_on_outcome(loading *l, tess_status mine, load_outcome *out) {
    int32_t n = l->t->comms.world.nranks;
    load_outcome f = { .status = mine, .foreign = l->foreign }, *all = calloc((size_t)n, sizeof *all);
    snprintf(f.message, sizeof f.message, "%s", mine ? tess_last_error() : "");
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", n);
    tess_status s = tess__comms_exchange(&l->t->comms, "tess_checkpoint_load", &f, sizeof f, all);
    *out = all[0];
    for (int32_t r = 0; r < n && !out->status; r++)
        *out = all[r];
    free(all);
    return s;
}

/* Lists the checkpoints. Where the directory is not there yet, it has none. */
static tess_status list_steps(const loading *l, uint64_t **steps, uint64_t *n) {
    if (l->o->flags & TESS_CHECKPOINT_IF_ANY && access(l->o->path, F_OK) && errno == ENOENT)
        return TESS_OK;
    return tess__store_line(&tess__disk_real, l->o->path, steps, n);
}

/* [C] Gives all ranks the next step to try from the leader's list, newest first. Without any, `nothing` may be fine. */
static tess_status next_step(loading *l, const uint64_t *steps, uint64_t n, uint64_t tried, uint64_t *step) {
    load_outcome mine = { .status = tried < n ? TESS_OK : TESS_E_DATA, .step = tried < n ? steps[n - 1 - tried] : 0 };
    load_outcome *all = calloc((size_t)l->t->comms.world.nranks, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", l->t->comms.world.nranks);
    tess_status s = tess__comms_exchange(&l->t->comms, "tess_checkpoint_load", &mine, sizeof mine, all);
    *step = all[0].step;
    int none = all[0].status != TESS_OK;
    free(all);
    l->nothing = none && !tried && l->o->flags & TESS_CHECKPOINT_IF_ANY;
    if (!s && none && !l->nothing)
        s = tess__fail(TESS_E_DATA, "%s: there is no checkpoint that loads", l->o->path);
    return s;
}

static tess_status load_newest(loading *l, tess_checkpoint_info *info) {
    char path[PATH_MAX];
    uint64_t *steps = NULL, n = 0, step = 0;
    load_outcome f = { .status = TESS_OK };
    tess_status s = l->t->comms.world.rank == 0 ? list_steps(l, &steps, &n) : TESS_OK;
    l->foreign = 1;
    tess_status agreed = agree_on_outcome(l, s, &f);
    if (!agreed && f.status)
        agreed = tess__fail(f.status, "%s", f.message);
    for (uint64_t tried = 0; !agreed; tried++) {
        if ((agreed = next_step(l, steps, n, tried, &step)) || l->nothing ||
            (agreed = tess__step_dir(l->o->path, step, path)))
            break;
        s = load_one(l, path, info);
        if ((agreed = agree_on_outcome(l, s, &f)) || !f.status)
            break;
        int damaged = f.status != TESS_E_NOMEM; /* else another try may read it */
        if (damaged)
            l->past.passed = step > l->past.passed ? step : l->past.passed;
        if (f.foreign || !damaged)
            agreed = tess__fail(f.status, "%s", f.message);
        else if (l->t->comms.world.rank == 0)
            tess__log(TESS_LOG_WARNING, "%s; trying the checkpoint before", f.message);
    }
    free(steps);
    return agreed;
}

static tess_status load_named(loading *l, tess_checkpoint_info *info) {
    load_outcome f;
    TRY(agree_on_outcome(l, load_one(l, l->o->path, info), &f));
    return f.status ? tess__fail(f.status, "%s", f.message) : TESS_OK;
}

/* [C] A file of whole tensors, which all ranks read. */
static tess_status load_tensors(loading *l, tess_checkpoint_info *info) {
    load_outcome f;
    tess__elements e = elements_of(l);
    TRY(agree_on_outcome(l, tess__tensors_load(&e, l->o->path, l->o->others), &f));
    info->ranks = 1;
    return f.status ? tess__fail(f.status, "%s", f.message) : TESS_OK;
}

static tess_status load_with_room(loading *l, tess_checkpoint_info *info) {
    load_outcome f;
    l->taken = calloc((size_t)l->t->plan.model.n_params + 1, (TESS__MAX_STATES + 1) * sizeof *l->taken);
    l->in_base = calloc((size_t)l->t->plan.model.n_params + 1, 1);
    l->raw = malloc(TESS__CHUNK_ELEMS * 8);
    l->wide = malloc(TESS__CHUNK_ELEMS * 8);
    if (!l->taken || !l->in_base || !l->raw || !l->wide)
        return tess__fail(TESS_E_NOMEM, "no memory to load a checkpoint");
    if (tess__is_tensors_file(l->o->path))
        return load_tensors(l, info);
    /* Every rank goes the leader's way, whatever it sees of the directory. */
    l->foreign = tess__is_checkpoint(&tess__disk_real, l->o->path);
    load_outcome *all = calloc((size_t)l->t->comms.world.nranks, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", l->t->comms.world.nranks);
    f = (load_outcome){ .foreign = l->foreign };
    tess_status s = tess__comms_exchange(&l->t->comms, "tess_checkpoint_load", &f, sizeof f, all);
    int named = all[0].foreign;
    free(all);
    TRY(s);
    return named ? load_named(l, info) : load_newest(l, info);
}

static tess_status load_checkpoint(tess *t, const tess_checkpoint_load_options *given, tess_checkpoint_info *out) {
    tess_checkpoint_load_options o;
    tess_checkpoint_info info = { .struct_size = sizeof info };
    loading l = { .t = t, .o = &o, .n_states = t->plan.layout.n_states };
    TRY(tess__copy_options("tess_checkpoint_load", &o, sizeof o, TESS__UP_TO(tess_checkpoint_load_options, own_bytes),
                           given));
    if (o.path && tess__is_tensors_file(o.path))
        o.flags |= TESS_CHECKPOINT_PARAMS; /* it has nothing else */
    if (!o.common && !(o.flags & TESS_CHECKPOINT_PARAMS))
        o.common = t->settings.options.common, o.common_bytes = t->plan.setup.common_bytes;
    TRY(tess__pass_finish(t));
    if (!t->sharded || t->settings.plan_only)
        return tess__fail(TESS_E_INVALID, "tess_checkpoint_load before tess_shard");
    if (t->pass.pending_grads || t->pass.microbatch || !o.path)
        return tess__fail(TESS_E_INVALID,
                          o.path ? "tess_checkpoint_load within a step" : "tess_checkpoint_load: no path is given");
    tess__side_thread_join(&t->saving);
    TRY(tess__streams_sync(&t->streams));
    t->masters_changed = 1;
    tess_status s = load_with_room(&l, &info);
    free(l.taken);
    free(l.in_base);
    tess__base_files_free(&l.base);
    free(l.raw);
    free(l.wide);
    TRY(s);
    if (!l.nothing)
        t->past = (tess__past){ .settled = 0 };
    if (!l.nothing && !(o.flags & TESS_CHECKPOINT_PARAMS)) {
        t->step.steps_done = info.step;
        t->past = l.past;
        tess__scale_load(&t->scaler, &l.loss_scale);
        TRY(tess__proof_loaded(t, l.path, info.step));
    }
    if (out)
        TESS_GIVE(out, &info);
    return TESS_OK;
}

tess_status tess_checkpoint_load(tess *t, const tess_checkpoint_load_options *o, tess_checkpoint_info *info) {
    TESS__PUBLIC(t, load_checkpoint(t, o, info));
}

tess_status tess_checkpoint_list(const char *dir, tess_checkpoint_fn fn, void *user) {
    uint64_t *steps = NULL, n = 0;
    char path[PATH_MAX];
    if (!dir || !fn)
        return tess__fail(TESS_E_INVALID, "tess_checkpoint_list: a directory and a function to call are needed");
    TRY(tess__store_list(&tess__disk_real, dir, &steps, &n));
    tess_status s = TESS_OK;
    for (uint64_t i = 0; !s && i < n; i++) {
        tess__manifest m;
        if (tess__step_dir(dir, steps[i], path) || tess__saved_manifest(&tess__disk_real, path, &m))
            continue; /* damaged: not complete */
        tess_checkpoint_info info = {
            .struct_size = sizeof info, .ranks = (int32_t)m.ranks, .step = m.step, .microbatches = m.microbatches
        };
        for (uint64_t f = 0; f < m.n_files; f++)
            info.bytes += m.files[f].bytes;
        tess__manifest_free(&m);
        s = fn(user, path, &info);
    }
    free(steps);
    return s;
}

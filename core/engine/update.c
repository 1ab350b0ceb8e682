/* SPDX-License-Identifier: BSD-3-Clause */
/* The program's own optimizer: one walk over the owned ranges with parameter, gradient and states side by side. */
#include "finite.h"
#include "scaler.h"
#include "values.h"

#include "base/status.h"

#include <math.h>
#include <stdlib.h>

enum { PARAM, GRAD, STATE, N_VALUES = STATE + 2 };

typedef struct {
    tess_update_fn fn;
    void *user;
    char *raw, *wide[N_VALUES]; /* room for one chunk each */
    tess__value value[N_VALUES];
    int32_t n; /* of values: parameter, gradient and the states */
} update;

static tess_status call_update(const update *u, const tess_range *r, void *const *at) {
    float *state[2] = { at[STATE], at[STATE + 1] };
    uint64_t before = tess__fail_count();
    tess_status s = u->fn(u->user, r, at[PARAM], at[GRAD], state);
    return s ? tess__callback_failed(s, before, "the program's optimizer for parameter", r->name) : TESS_OK;
}

/* Values that the host can use in place are used there. The others go through room for a chunk. */
static tess_status update_chunk(tess *t, const update *u, const tess_range *part, uint64_t done) {
    void *at[N_VALUES] = { NULL };
    for (int32_t i = 0; i < u->n; i++) {
        const tess__value *v = &u->value[i];
        int direct = tess__value_direct(v);
        at[i] = direct ? v->at + done * tess_dtype_bytes(v->dtype) : u->wide[i];
        if (!direct)
            TRY(tess__value_load(t, v, done, part->elems, u->raw, u->wide[i]));
    }
    TRY(call_update(u, part, at));
    for (int32_t i = 0; i < u->n; i++)
        if (i != GRAD && !tess__value_direct(&u->value[i]))
            TRY(tess__value_store(t, &u->value[i], done, part->elems, u->raw, u->wide[i]));
    return TESS_OK;
}

static tess_status update_param(tess *t, update *u, int32_t index) {
    const tess__param *p = &t->plan.model.params[index];
    tess__piece piece = tess__layout_piece(&t->plan.layout, p, t->comms.shard_rank);
    int direct = 1;
    for (int32_t i = 0; i < u->n; i++) {
        u->value[i] = tess__value_owned(t, TESS_OF_PARAM + (uint32_t)i, p, &piece);
        direct = direct && tess__value_direct(&u->value[i]);
    }
    uint64_t most = direct ? piece.elems : TESS__CHUNK_ELEMS;
    for (uint64_t done = 0; done < piece.elems; done += most) {
        uint64_t n = piece.elems - done < most ? piece.elems - done : most;
        tess_range r = tess__range_of(p, index, piece.in_param + done, n);
        TRY(update_chunk(t, u, &r, done));
    }
    return TESS_OK;
}

static tess_status update_all(tess *t, update *u) {
    for (int32_t i = 0; i < t->plan.model.n_params; i++)
        if (t->plan.model.params[i].tied_to == i && !(t->plan.model.params[i].flags & (TESS_FROZEN | TESS_BUFFER)))
            TRY(update_param(t, u, i));
    return TESS_OK;
}

static tess_status with_room(tess *t, update *u) {
    char *room = malloc((size_t)(1 + N_VALUES) * TESS__CHUNK_ELEMS * 8);
    if (!room)
        return tess__fail(TESS_E_NOMEM, "no memory for a chunk of parameters");
    u->raw = room;
    for (int32_t i = 0; i < N_VALUES; i++)
        u->wide[i] = room + (size_t)(1 + i) * TESS__CHUNK_ELEMS * 8;
    tess_status s = update_all(t, u);
    free(room);
    return s;
}

/* Where losses are scaled, gradients may be too large for the scale. */
static tess_status look_at_gradients(tess *t, int *finite) {
    *finite = 1;
    t->step.skips = 0;
    if (t->scaler.how.init == 0)
        return TESS_OK;
    t->step.grad_scale = tess__unscale(t);
    TRY(tess__run_program(t, &t->plan.programs[TESS__P_NORM]));
    *finite = isfinite(t->step.norm) != 0;
    return *finite ? TESS_OK : tess__judge_norm(t);
}

static tess_status run_update(tess *t, tess_update_fn fn, void *user) {
    int finite;
    update u = { .fn = fn, .user = user, .n = STATE + t->plan.setup.n_states };
    if (!fn)
        return tess__fail(TESS_E_INVALID, "tess_update: the function is missing");
    if (!t->plan.setup.own_optimizer)
        return tess__fail(
            TESS_E_INVALID,
            "tess_update: this engine was opened with optimizer \"%s\"; a step of one's own needs \"own\"",
            t->settings.optimizer);
    TRY(tess__step_ready(t, "tess_update"));
    TRY(tess__streams_sync(&t->streams)); /* host memory may be read as it lies */
    TRY(look_at_gradients(t, &finite));
    for (int32_t g = 0; t->proof && g < t->plan.layout.n_groups; g++)
        if (t->plan.layout.groups[g].trainable)
            TRY(t->hooks->digest_gradient(t, g, &t->transfers.compute));
    t->masters_changed = 1;
    if (!t->step.skips)
        TRY(with_room(t, &u));
    if (finite)
        tess__scaler_step(t, 1); /* now that the gradients have been read with the scale that they have */
    TRY(tess__grad_release(t));
    return tess__step_end(t);
}

tess_status tess_update(tess *t, tess_update_fn fn, void *user) {
    TESS__PUBLIC(t, run_update(t, fn, user));
}

/* ---- steps done ---- */

uint64_t tess_steps_done(const tess *t) {
    return t ? t->step.steps_done : 0;
}

static tess_status set_steps(tess *t, uint64_t steps) {
    if (!t->sharded || t->settings.plan_only)
        return tess__fail(TESS_E_INVALID, "tess_steps_set before tess_shard");
    TRY(tess__pass_finish(t));
    if (t->pass.microbatch)
        return tess__fail(TESS_E_INVALID,
                          "tess_steps_set: %d of %d passes of a step have run; tess_step or "
                          "tess_grad_drop comes first",
                          t->pass.microbatch, t->plan.setup.accum);
    t->step.steps_done = steps;
    return TESS_OK;
}

tess_status tess_steps_set(tess *t, uint64_t steps) {
    TESS__PUBLIC(t, set_steps(t, steps));
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* tess_recover forms the group of ranks anew after a loss, with the process that takes the lost rank's place, or
 * smaller. All ranks go back to the newest images that are whole. */
#include "smaller.h"

#include "base/log.h"
#include <tessera/plugin_helpers.h>
#include "base/status.h"
#include "control/wire.h"
#include "engine/finite.h"
#include "engine/scaler.h"

#include <stdio.h>
#include <time.h>

enum { AHEAD = 8 /* generations that may have come and gone while this rank was busy */ };

/* ---- what hung on the old group ---------------------------------------------------------------------- */

/* Leaves the group in the order of tess_close: requests, lanes, memory, communicators, control plane. Images stay,
 * and with them all memory that no communicator allocated. */
static void leave_group(tess *t) {
    t->hooks->end_save(t);
    tess__comms_abort(&t->comms, TESS_E_LOST);
    tess__drop_requests(t);
    tess__transfers_end(t);
    tess__memory_forget(&t->memory, &t->pass.deviating_program);
    tess__close_comms(t);
    tess__control_leave(&t->comms.seat, 0);
    t->comms.control = NULL;
    tess__transfers_forget(t);
    tess__pass_forget(t);
    tess__step_forget(t);
    tess__forget_steps(t);
    tess__result_forget(&t->streams);
    tess__comms_reset(&t->comms);
    t->mirror.taken = -1;
    t->error = TESS_OK;
    t->message[0] = 0;
}

/* ---- the new one ------------------------------------------------------------------------------------- */

/* Takes this rank's number in the new group, because a smaller group numbers its ranks anew. */
static void take_place(tess *t) {
    tess__world *w = &t->comms.world;
    tess__control_place(t->comms.control, &w->rank, &w->nranks);
    tess__log_set_rank(w->rank);
}

/* Finds the new group by trying one generation after another: the launcher may not have started it yet, or be
 * further already. */
static tess_status find_group(tess *t) {
    const struct timespec pause = { .tv_nsec = 10000000 };
    int64_t patience_ns = 0;
    int32_t first = t->comms.world.generation + 1;
    TRY(tess__seconds_option("rendezvous-timeout", 60, 86400, &patience_ns));
    int64_t deadline_ns = tess__now_ns() + patience_ns;
    for (int32_t ahead = 0;; ahead = (ahead + 1) % AHEAD) {
        TRY(tess__world_at_generation(&t->comms.world, first + ahead));
        tess_status s = tess__control_join(&t->comms.world, tess__comms_lost, &t->comms, &t->comms.seat);
        t->comms.control = t->comms.seat.control;
        if (!s)
            take_place(t);
        if (!s || s == TESS_E_UNSUPPORTED)
            return s;
        if (tess__now_ns() > deadline_ns)
            return tess__fail(TESS_E_PEER, "nobody took the place of a lost rank: %s", tess_last_error());
        nanosleep(&pause, NULL);
    }
}

static tess_status join_group(tess *t) {
    TRY(find_group(t));
    if (t->mirror.carry || t->comms.world.nranks != t->plan.setup.nranks)
        return tess__smaller_join(t);
    TRY(tess__find_hosts(t));
    TRY(tess__comms_create(&t->comms, &t->plan.setup));
    if (t->pass.n_recompiles)
        TRY(tess__plan_recompile(&t->plan)); /* as a process that starts has it */
    TRY(tess__handshake_programs(t, t->plan.programs, TESS__N_PROGRAMS));
    TRY(tess__memory_renew(&t->memory));
    TRY(tess__memory_share(&t->memory));
    TRY(tess__guard_create(t, &t->pass.guard));
    return tess__transfers_start(t, tess__device_index(t));
}

/* Takes all ranks back, the new one too. */
static tess_status go_back(tess *t, tess_recovery *out) {
    int64_t step = -1;
    uint64_t had = t->step.steps_done;
    int smaller = t->mirror.carry != NULL;
    t->masters_changed = 1;
    TRY(smaller ? tess__smaller_restore(t, &step) : tess__mirror_restore(t, &step));
    t->step.steps_done = (uint64_t)step;
    TRY(tess__scaler_go_back(t, step));
    if (t->plan.setup.mirror) /* a rank that is left alone keeps no images */
        TRY(tess__mirror_take(t));
    if (smaller)
        TRY(tess__smaller_finish(t));
    TRY(t->hooks->share_past(t));
    out->step = (uint64_t)step;
    out->steps_lost = had > out->step ? had - out->step : 0;
    return TESS_OK;
}

/* ---- the call ---------------------------------------------------------------------------------------- */

/* Fails the recovery. All ranks find alike that no image is left, so nobody has to be told. */
static tess_status fail_recovery(tess *t, tess_status s) {
    if (!s || !t->mirror.gone)
        return s ? tess__engine_fail(t, s) : TESS_OK;
    t->error = s;
    snprintf(t->message, sizeof t->message, "%s", tess_last_error());
    return s;
}

static tess_status recover_group(tess *t, tess_recovery *out) {
    tess_status s =
        t->error ? TESS_E_LOST : fail_recovery(t, go_back(t, out)); /* one that joins is in its group already */
    while (s == TESS_E_LOST) {                                      /* again, if another rank is lost meanwhile */
        leave_group(t);
        s = join_group(t);
        s = fail_recovery(t, s ? s : go_back(t, out));
    }
    return s;
}

tess_status tess_recover(tess *t, tess_recovery *out) {
    tess_recovery r = { .recovered = 0 };
    int64_t began_ns = tess__now_ns();
    if (out && (out->struct_size < 8 || out->struct_size > 1 << 16))
        return tess__fail(TESS_E_INVALID, "tess_recover: struct_size is %u; set it to sizeof(tess_recovery)",
                          out->struct_size);
    if (!t || (t->error != TESS_E_LOST && !t->mirror.joins)) {
        TRY(tess__engine_check(t));
        r.step = t->step.steps_done;
    } else {
        t->mirror.ready = 1; /* the process that joins can be left alone too */
        TRY(recover_group(t, &r));
        t->mirror.joins = 0;
        r.recovered = 1;
    }
    r.recoveries = (uint32_t)t->comms.world.generation;
    r.seconds = (double)(tess__now_ns() - began_ns) * 1e-9;
    if (out)
        TESS_GIVE(out, &r);
    return TESS_OK;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* An engine keeps its first error. It is set here, named, and told to the other ranks. */
#include "state.h"

#include "base/log.h"
#include "base/status.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

tess_status tess__engine_check(const tess *t) {
    if (!t)
        return tess__fail(TESS_E_INVALID, "the engine pointer is null");
    return t->error ? tess__fail(t->error, "%s", t->message) : TESS_OK;
}

tess_status tess__callback_failed(tess_status status, uint64_t before, const char *what, const char *name) {
    if (status > 0)
        status = TESS_E_INVALID;
    if (tess__fail_count() != before)
        return status;
    return tess__fail(status, "%s \"%s\" failed with %s", what, name, tess__status_name(status));
}

/* Tells whether a status may follow from another rank's failure. Any other status is this rank's own error: when the
 * system refuses this rank, no other rank is to blame. */
static int may_be_echo(tess_status s) {
    return s == TESS_E_ABORTED || s == TESS_E_PEER || s == TESS_E_TIMEOUT;
}

/* A rank whose store fails ends as a lost one does when images are there: the launcher replaces those alone. The
 * process in its place has a store of its own. */
static void end_without_store(tess *t, tess_status status) {
    if (!t->mirror.ready || t->comms.world.nranks == 1 || may_be_echo(status) || !atomic_load(&t->memory.store.failed))
        return;
    tess__log(TESS_LOG_ERROR, "%s: rank %d ends, and the others go on from images (TESSERA_MIRROR)", tess_last_error(),
              t->comms.world.rank);
    raise(SIGKILL);
}

tess_status tess__engine_fail(tess *t, tess_status status) {
    if (t->error)
        return tess__fail(t->error, "%s", t->message);
    end_without_store(t, status);
    char own[sizeof t->message];
    snprintf(own, sizeof own, "%s", tess_last_error());
    if (t->comms.control) {
        char cause[512];
        tess__control_report(t->comms.control, status, t->comms.lost_peer - 1, own);
        tess__control_cause_text(t->comms.control, cause, sizeof cause);
        if (may_be_echo(status) && cause[0]) { /* the cause may name this rank: it was silent and taken for lost */
            int lost = tess__control_was_lost(t->comms.control) && t->mirror.ready;
            int known = tess__comms_activity(&t->comms)[0] != 0;
            status = lost ? TESS_E_LOST : TESS_E_PEER;
            snprintf(own, sizeof own, "%s%s%s", cause, known ? "; this rank was in " : "",
                     tess__comms_activity(&t->comms));
        }
    }
    t->error = status;
    snprintf(t->message, sizeof t->message, "%s", own);
    if (t->comms.world.nranks > 1)
        tess__comms_abort(&t->comms, status);
    return tess__fail(status, "%s", t->message);
}

tess_status tess_give_up(tess *t, tess_status status) {
    TESS__PUBLIC(t, status < 0 ? status : TESS_E_INVALID);
}

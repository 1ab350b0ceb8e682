/* SPDX-License-Identifier: BSD-3-Clause */
/* tess_open: an engine that recovers, saves and writes a ledger of digests. */
#include "group/group.h"
#include "proof/audit.h"
#include "proof/proof.h"
#include "recovery/image.h"
#include "recovery/smaller.h"
#include "saving/saving.h"

static tess_status before_pass(tess *t, uint32_t pass_kind) {
    tess_status s = tess__proof_pass(t, pass_kind);
    if (s || !tess__mirror_is_due(t, pass_kind))
        return s;
    s = tess__proof_rest(t); /* so that no image is of memory that has changed */
    return s ? s : tess__mirror_take(t);
}

static void end_recovery(tess *t) {
    tess__smaller_end(t);
    tess__image_digests_free(&t->mirror);
}

static const tess__hooks hooks = {
    .before_pass = before_pass,
    .end_save = tess__saver_end,
    .share_past = tess__past_share,
    .end_recovery = end_recovery,
    .digest_gradient = tess__proof_gradient,
    .digest_pass = tess__proof_pass_end,
    .digest_step = tess__proof_step,
    .check_rest = tess__proof_rest,
    .digest_instr = tess__proof_instr,
    .digest_event = tess__proof_event,
    .end_digests = tess__proof_end,
    .audit_instr = tess__audit_instr,
    .audit_check = tess__audit_check,
};

tess_status tess_group_open(const tess_options *options, tess_group **out) {
    return tess__group_open(options, &hooks, (tess **)out);
}

tess_status tess_open(const tess_options *options, tess **out) {
    return tess__engine_open(options, &hooks, out);
}

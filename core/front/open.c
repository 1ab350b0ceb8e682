/* SPDX-License-Identifier: BSD-3-Clause */
/* tess_open: an engine that recovers, saves and writes a ledger of digests. */
#include "group/group.h"
#include "proof/proof.h"
#include "recovery/smaller.h"
#include "saving/saving.h"

static tess_status before_pass(tess *t, uint32_t pass_kind) {
    tess_status s = tess__mirror_step(t, pass_kind);
    return s ? s : tess__proof_pass(t, pass_kind);
}

static const tess__hooks hooks = {
    .before_pass = before_pass,
    .end_save = tess__saver_end,
    .share_past = tess__past_share,
    .end_recovery = tess__smaller_end,
    .digest_gradient = tess__proof_gradient,
    .digest_step = tess__proof_step,
    .end_digests = tess__proof_end,
};

tess_status tess_group_open(const tess_options *options, tess_group **out) {
    return tess__group_open(options, &hooks, (tess **)out);
}

tess_status tess_open(const tess_options *options, tess **out) {
    return tess__engine_open(options, &hooks, out);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* tess_open: an engine that recovers and saves. */
#include "group/group.h"
#include "recovery/smaller.h"
#include "saving/saving.h"

static const tess__hooks hooks = {
    .before_pass = tess__mirror_step,
    .end_save = tess__saver_end,
    .share_past = tess__past_share,
    .end_recovery = tess__smaller_end,
};

tess_status tess_group_open(const tess_options *options, tess_group **out) {
    return tess__group_open(options, &hooks, (tess **)out);
}

tess_status tess_open(const tess_options *options, tess **out) {
    return tess__engine_open(options, &hooks, out);
}

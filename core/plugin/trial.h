/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening plugins in a child process, so that one whose code is damaged ends the child alone. */
#ifndef TESS_TRIAL_H
#define TESS_TRIAL_H
#include "open.h"
#include "plugin_check.h"

typedef struct { /* one file and what came of it */
    uint32_t kind;
    const char *path;
    tess_status status;
    int64_t answer; /* to the question; 0 without one */
    char reason[TESS_REASON_BYTES];
} tess__trial;
typedef struct { /* what the child asks an opened plugin */
    int64_t (*ask)(void *user, const tess__plugin *);
    void *user;
} tess__question;

/** Opens each plugin in a child, asks what a list shows of it and `question`, which may be null, and closes it. One
 * child tries all; a plugin that ends it is tried again in a child of its own, so that no other is blamed. Status and
 * reason are the open's, or TESS_E_INVALID when that child ended by a signal or took more than 20 s. Sets no message.
 */
void tess__plugin_trials(tess__trial *, size_t n, const tess_host *services, const tess__question *question);
/** One plugin, without a question. */
tess_status tess__plugin_trial(uint32_t kind, const char *path, const tess_host *services,
                               char reason[TESS_REASON_BYTES]);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening a plugin in a child process, so that one whose code is damaged ends the child alone. */
#ifndef TESS_TRIAL_H
#define TESS_TRIAL_H
#include "open.h"
#include "plugin_check.h"

/** Opens the plugin in a child, asks what a list shows of it, and closes it. Fails with the open's status and reason,
 * or with TESS_E_INVALID when the child ended by a signal or took more than 20 s; sets no message. */
tess_status tess__plugin_trial(uint32_t kind, const char *path, const tess_host *services,
                               char reason[TESS_REASON_BYTES]);
#endif

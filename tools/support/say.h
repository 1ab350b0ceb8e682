/* SPDX-License-Identifier: BSD-3-Clause */
/* A command logs to standard error as the engine does, and names statuses with the same words. */
#ifndef TOOL_SAY_H
#define TOOL_SAY_H
#include <tessera/tessera.h>

enum { SAY_ERROR, SAY_WARNING, SAY_INFO, SAY_DEBUG };

/** Logs one line, "tessera: warning: …", with the rank in front if there are several. TESSERA_LOG decides which lines
 * appear. */
void tool_say(int32_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Hides messages above `level` from now on. -1 follows TESSERA_LOG. Returns the previous level. */
int32_t tool_say_at_most(int32_t level);
/** Returns a name such as "TESS_E_PEER", never null. */
const char *tool_status_name(tess_status);

/** Returns a failure to the caller without a new message, because the code that detected it set one (tess_fail). */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        tess_status try_status = (call);                                                                               \
        if (try_status)                                                                                                \
            return try_status;                                                                                         \
    } while (0)
#endif

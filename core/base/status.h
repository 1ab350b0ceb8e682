/* SPDX-License-Identifier: BSD-3-Clause */
/* Status codes, the thread's last error message, and the exit code of each. */
#ifndef TESS_STATUS_H
#define TESS_STATUS_H
#include <tessera/tessera.h>

/** Sets this thread's last error message and returns `status`. Call it once, where the error is detected;
 * callers pass the status on and add nothing. */
tess_status tess__fail(tess_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** How often this thread has set its message: whether a callback did is seen by it. */
uint64_t tess__fail_count(void);
/** Whether a name holds a control character, which a terminal would take for a command. */
int tess__has_control(const char *name);
/** The name of a status as the headers spell it, "TESS_E_PEER"; never null. */
const char *tess__status_name(tess_status status);

/** Passes a failure on to the caller: the message was set where it was detected. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        tess_status try_status = (call);                                                                               \
        if (try_status)                                                                                                \
            return try_status;                                                                                         \
    } while (0)
#endif

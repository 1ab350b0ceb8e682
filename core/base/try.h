/* SPDX-License-Identifier: BSD-3-Clause */
/* Passes a failure on to the caller: the message was set where it was detected. */
#ifndef TESS_TRY_H
#define TESS_TRY_H

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        tess_status try_status = (call);                                                                               \
        if (try_status)                                                                                                \
            return try_status;                                                                                         \
    } while (0)
#endif

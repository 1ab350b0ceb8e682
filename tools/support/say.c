/* SPDX-License-Identifier: BSD-3-Clause */
#include "say.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/base/log.h"
#include "core/base/status.h"

_Static_assert((int)SAY_ERROR == (int)TESS_LOG_ERROR && (int)SAY_DEBUG == (int)TESS_LOG_DEBUG, "levels");

void tool_say(int32_t level, const char *format, ...) {
    char line[2048]; /* same length as the core's lines */
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    tess__log(level, "%s", line);
}

int32_t tool_say_at_most(int32_t level) {
    return tess__log_set_least(level);
}

const char *tool_status_name(tess_status status) {
    return tess__status_name(status);
}

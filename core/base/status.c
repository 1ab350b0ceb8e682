/* SPDX-License-Identifier: BSD-3-Clause */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[1024];
static _Thread_local uint64_t fail_count;

/* Counts the bytes of the control character at p: one of ASCII, two of C1 in UTF-8; 0: it is none. */
static int control_bytes(const unsigned char *p) {
    if (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0)
        return 2;
    return *p < ' ' || *p == 0x7f;
}

int tess__has_control(const char *name) {
    for (const unsigned char *p = (const unsigned char *)name; *p; p++)
        if (control_bytes(p))
            return 1;
    return 0;
}

/* Names come from files, and messages go to terminals, which take control characters for commands. A message is one
 * line, whatever the names in it. */
static void make_printable(char *text) {
    for (unsigned char *p = (unsigned char *)text; *p; p++)
        for (int n = control_bytes(p); n > 0; n--)
            p[n - 1] = '?';
}

/* Formats aside first, because an argument may be the old message. */
static tess_status set_message(tess_status status, const char *format, va_list args) {
    char message[sizeof last_error];
    vsnprintf(message, sizeof message, format, args);
    make_printable(message);
    snprintf(last_error, sizeof last_error, "%s", message);
    fail_count++;
    return status;
}

tess_status tess__fail(tess_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_message(status, format, args);
    va_end(args);
    return status;
}

tess_status tess_fail(tess_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_message(status, format, args);
    va_end(args);
    return status;
}

uint64_t tess__fail_count(void) {
    return fail_count;
}

const char *tess_last_error(void) {
    return last_error;
}

static const struct {
    tess_status status;
    int exit_code;
    const char *name;
} table[] = {
    { TESS_OK, 0, "TESS_OK" },
    { TESS_PENDING, 0, "TESS_PENDING" },
    { TESS_E_INVALID, 3, "TESS_E_INVALID" },
    { TESS_E_UNSUPPORTED, 3, "TESS_E_UNSUPPORTED" },
    { TESS_E_NOMEM, 4, "TESS_E_NOMEM" },
    { TESS_E_TIMEOUT, 5, "TESS_E_TIMEOUT" },
    { TESS_E_ABORTED, 5, "TESS_E_ABORTED" },
    { TESS_E_PEER, 5, "TESS_E_PEER" },
    { TESS_E_LOST, 5, "TESS_E_LOST" },
    { TESS_E_SYSTEM, 3, "TESS_E_SYSTEM" },
    { TESS_E_DEVICE, 3, "TESS_E_DEVICE" },
    { TESS_E_VERSION, 3, "TESS_E_VERSION" },
    { TESS_E_INTERNAL, 1, "TESS_E_INTERNAL" },
    { TESS_E_DATA, 6, "TESS_E_DATA" },
    { TESS_E_BUDGET, 4, "TESS_E_BUDGET" },
    { TESS_E_PLANNED, 0, "TESS_E_PLANNED" },
    { TESS_E_MISMATCH, 5, "TESS_E_MISMATCH" },
    { TESS_E_NOT_FINITE, 1, "TESS_E_NOT_FINITE" },
};

int tess_exit_code(tess_status status) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].status == status)
            return table[i].exit_code;
    return 1;
}

const char *tess__status_name(tess_status status) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].status == status)
            return table[i].name;
    return "unknown status";
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* The rows as text or as objects, and the verdict below them. */
#include <stdarg.h>

#include "doctor.h"
#include "tools/commands.h"

static const char *const state_words[] = { "ok", "note", "bad" };

void doctor_row(doctor *d, int state, const char *what, const char *repair, const char *format, ...) {
    char found[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(found, sizeof found, format, args);
    va_end(args);
    if (state == DOCTOR_OK)
        repair = NULL;
    d->count[state]++;
    if (!d->as_json) {
        printf("%-4s  %-19s  %s\n", state_words[state], what, found);
        if (repair)
            printf("%27s→ %s\n", "", repair);
        fflush(stdout);
        return;
    }
    json_object_begin(&d->json, NULL);
    json_string(&d->json, "event", "check");
    json_string(&d->json, "what", what);
    json_string(&d->json, "state", state_words[state]);
    json_string(&d->json, "found", found);
    json_string(&d->json, "repair", repair);
    json_object_end(&d->json);
    json_line(&d->json);
}

int doctor_verdict(doctor *d) {
    const int works = d->count[DOCTOR_BAD] == 0;
    if (!d->as_json) {
        printf("\n%s: %d bad, %d notes.\n", works ? "Training works here" : "Training does not work here",
               d->count[DOCTOR_BAD], d->count[DOCTOR_NOTE]);
        return works ? TOOL_OK : TOOL_FAILED;
    }
    json_object_begin(&d->json, NULL);
    json_string(&d->json, "event", "doctor");
    json_bool(&d->json, "works", works);
    json_int(&d->json, "bad", d->count[DOCTOR_BAD]);
    json_int(&d->json, "notes", d->count[DOCTOR_NOTE]);
    json_object_end(&d->json);
    json_line(&d->json);
    return works ? TOOL_OK : TOOL_FAILED;
}

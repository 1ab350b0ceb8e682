/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "doctor.h"
#include "tools/plugins/plugin_known.h"

static void tried(void *user, uint32_t kind, const char *name, const char *path, const char *reason) {
    char what[64];
    snprintf(what, sizeof what, "%s %s", plugin_kind_word(kind), name);
    if (!reason && *path) /* built-in plugins always work */
        doctor_row(user, DOCTOR_OK, what, NULL, "%s", path);
    else if (reason)
        doctor_row(user, DOCTOR_NOTE, what,
                   "the reason names what is missing; `tessera plugins check` tries a file out", "not usable: %s",
                   reason);
}

void doctor_plugins(doctor *d) {
    plugin_each_tried(tried, d);
}

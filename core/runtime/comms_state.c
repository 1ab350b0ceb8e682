/* SPDX-License-Identifier: BSD-3-Clause */
/* Used by all files about communicators: what this rank is doing, keys of the control plane, a plugin's errors. */
#include "comms.h"

#include "base/status.h"

#include <stdio.h>

tess_status tess__comms_failed(const tess__comms *c, tess_status s, const tess_error *e) {
    return s ? tess__plugin_failed(s, TESS_KIND_COMM, c->plugin, e) : TESS_OK;
}

int tess__comms_stands_first(tess_comm *const *list, int which) {
    for (int i = 0; i < which; i++)
        if (list[i] == list[which])
            return 0;
    return list[which] != NULL;
}

const char *tess__comms_activity(const tess__comms *c) {
    return c->activity[c->activity_now];
}

const char *tess__comms_doing(tess__comms *c, const char *text) {
    c->activity_now ^= 1;
    snprintf(c->activity[c->activity_now], sizeof c->activity[0], "%s", text);
    if (c->control)
        tess__control_doing(c->control, tess__comms_activity(c));
    return tess__comms_activity(c);
}

void tess__comms_idle(tess__comms *c) {
    c->activity_now ^= 1;
    c->activity[c->activity_now][0] = 0;
    if (c->control)
        tess__control_doing(c->control, NULL);
}

void tess__comms_key(const tess__comms *c, const char *key, char *out, size_t n) {
    if (c->members)
        snprintf(out, n, "e%u.%d/%s", c->seat.engine, c->color, key);
    else if (c->seat.engine > 1)
        snprintf(out, n, "e%u/%s", c->seat.engine, key);
    else
        snprintf(out, n, "%s", key);
}

void tess__comms_rank_key(const tess__comms *c, const char *what, int32_t rank, char *key, size_t n) {
    char plain[32];
    snprintf(plain, sizeof plain, "%s/%d", what, rank);
    tess__comms_key(c, plain, key, n);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Used by all files about communicators: who is in one, what this rank is doing, keys of the control plane, a plugin's
 * errors. */
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

static int is_world(const tess__comms *c, int which) {
    return which == TESS__WORLD || c->list[which] == c->list[TESS__WORLD];
}

int32_t tess__comms_member(const tess__comms *c, int which, int32_t i) {
    if (i < 0 || is_world(c, which))
        return i;
    if (which == TESS__COPY)
        return c->world.rank % c->copy_groups + i * c->copy_groups;
    return which == TESS__REPLICA ? i * c->shard_ranks + c->shard_rank : c->replica_rank * c->shard_ranks + i;
}

int32_t tess__comms_size(const tess__comms *c, int which) {
    int32_t n = c->world.nranks;
    if (is_world(c, which))
        return n;
    if (which == TESS__COPY)
        return (n - 1 - c->world.rank % c->copy_groups) / c->copy_groups + 1;
    return which == TESS__REPLICA ? n / c->shard_ranks : c->shard_ranks;
}

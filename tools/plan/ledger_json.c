/* SPDX-License-Identifier: BSD-3-Clause */
#include "plan.h"

#include <string.h>

#include "plan_matrices.h"
#include "plan_read.h"

const char *ledger_json_category(uint32_t category, char out[32]) {
    snprintf(out, 32, "%s", plan_category_name(category));
    for (char *c = out; *c; c++)
        if (*c == ' ')
            *c = '_';
    return out;
}

void ledger_json_bytes(json_out *j, const char *key, const uint64_t bytes[16]) {
    char name[32];
    json_object_begin(j, key);
    for (uint32_t c = 1; c < 16; c++)
        if (bytes[c])
            json_uint(j, ledger_json_category(c, name), bytes[c]);
    json_object_end(j);
}

void ledger_json_point(json_out *j, const char *source, const tess_ledger_point *p) {
    json_object_begin(j, NULL);
    json_string(j, "event", "ledger");
    json_string(j, "source", source);
    json_string(j, "pass", p->pass);
    json_uint(j, "index", p->index);
    json_string(j, "point", plan_point_name(p->point));
    json_string(j, "unit", p->name);
    ledger_json_bytes(j, "device", p->bytes[TESS_DOMAIN_DEVICE]);
    ledger_json_bytes(j, "host", p->bytes[TESS_DOMAIN_HOST]);
    if (p->disk_total_bytes)
        ledger_json_bytes(j, "disk", p->disk_bytes);
    if (p->backend_bytes)
        json_uint(j, "backend", p->backend_bytes);
    json_object_end(j);
    json_line(j);
}

void ledger_json_units(json_out *j, const tess *t) {
    tess_stats stats = { .struct_size = sizeof stats };
    tess_stats_get(t, &stats);
    for (int32_t i = 0; i < (int32_t)stats.n_units; i++) {
        tess_unit_info u = { .struct_size = sizeof u };
        if (tess_ledger_unit(t, i, &u) != TESS_OK)
            return;
        json_object_begin(j, NULL);
        json_string(j, "event", "unit");
        json_int(j, "index", i);
        json_string(j, "name", u.name);
        json_int(j, "parameters", u.n_params);
        json_uint(j, "elements", u.elems);
        json_uint(j, "shard_bytes", u.shard_bytes);
        json_uint(j, "unsharded_bytes", u.unsharded_bytes);
        if (u.copy_bytes)
            json_uint(j, "copy_bytes", u.copy_bytes);
        json_uint(j, "gradient_bytes", u.gradient_bytes);
        json_uint(j, "shard_gradient_bytes", u.shard_gradient_bytes);
        json_uint(j, "state_bytes", u.state_bytes);
        plan_matrices_owners(j, t, i);
        json_object_end(j);
        json_line(j);
    }
}

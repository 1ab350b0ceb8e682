/* SPDX-License-Identifier: BSD-3-Clause */
/* comm plugin "counted": shm, and at its end a line of what this rank has sent others by each operation, in bytes. With
 * ":whole" it offers no all_to_all_v, as plugins did before there was one (tests/e2e/test_muon.sh). */
#include <stdio.h>
#include <string.h>

#include "over_shm.h"

TESS_DESCRIPTOR(1u << TESS_KIND_COMM, "counted", "1.0", "BSD-3-Clause", "");

static tess_comm_ops table, under;
static int whole, rank, nranks;
static uint64_t gathered, scattered, sent, kept; /* sent and kept: by all_to_all_v, kept is the rank's own part */

static tess_status query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    tess_status s = under.query(ctx, comm, out);
    if (s == TESS_OK && whole)
        out->op_mask &= ~(1u << TESS_ALL_TO_ALL_V);
    return s;
}

static tess_status need(void *ctx, const tess_plan_env *env, const tess_collective *c, tess_need *out) {
    return whole && c->op == TESS_ALL_TO_ALL_V ? TESS_E_UNSUPPORTED : under.need(ctx, env, c, out);
}

static tess_status init(void *ctx, const tess_comm_config *config, tess_comm **out, tess_error *e) {
    rank = config->rank;
    nranks = config->nranks;
    return under.init(ctx, config, out, e);
}

static tess_status post(tess_comm *comm, const tess_collective *c, uint32_t n, tess_request **out, tess_error *e) {
    const uint64_t bytes = tess_dtype_bytes(c->send_dtype), others = (uint64_t)nranks - 1;
    if (whole && c->op == TESS_ALL_TO_ALL_V)
        return tess_plugin_fail(e, TESS_E_UNSUPPORTED, "comm counted: all_to_all_v is not offered");
    gathered += c->op == TESS_ALL_GATHER ? others * c->count * bytes : 0;
    scattered += c->op == TESS_REDUCE_SCATTER ? others * c->count * bytes : 0;
    for (int r = 0; c->op == TESS_ALL_TO_ALL_V && r < nranks; r++)
        *(r == rank ? &kept : &sent) += c->send_parts[r] * bytes;
    return under.post(comm, c, n, out, e);
}

static void say(void *ctx) {
    if (nranks)
        fprintf(stderr, "counted rank=%d gathered=%llu scattered=%llu sent=%llu kept=%llu\n", rank,
                (unsigned long long)gathered, (unsigned long long)scattered, (unsigned long long)sent,
                (unsigned long long)kept);
    if (under.close)
        under.close(ctx);
}

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    if (kind != TESS_KIND_COMM)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "counted offers comm only");
    whole = strcmp(host->args, "whole") == 0;
    const tess_status s = open_shm(host, &under, ctx, error);
    if (s < 0)
        return s;
    table = under;
    table.close = say;
    table.query = query;
    table.need = need;
    table.init = init;
    table.post = post;
    *out = &table;
    return TESS_OK;
}

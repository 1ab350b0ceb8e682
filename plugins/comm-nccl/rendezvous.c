/* SPDX-License-Identifier: BSD-3-Clause */
#include "communicator.h"

#include <unistd.h>

struct join_result { /* rank 0 publishes it for all ranks */
    tess_status status;
    int32_t ranks[2]; /* two ranks that cannot share a communicator; -1: none */
    int32_t multiprocessors;
    char message[220];
    ncclUniqueId id;
};
#define RECORD "nccl"
#define RESULT "nccl-id"

static tess_status fill_record(const tess_comm *c, struct rank_record *out, tess_error *f) {
    CUuuid uuid = { { 0 } };
    memset(out, 0, sizeof *out);
    out->version = c->gpu.lib->version;
    out->apart = c->settings->apart;
    out->windows = c->settings->windows;
    out->engines = c->settings->engines;
    out->sums = c->settings->sums;
    gethostname(out->host, sizeof out->host - 1);
    tess_status s = nccl_cuda_ok(c->gpu.cu->cuDeviceGetUuid(&uuid, c->gpu.device), "cuDeviceGetUuid", f);
    if (s)
        return s;
    memcpy(out->uuid, uuid.bytes, sizeof out->uuid);
    CUresult r = c->gpu.cu->cuDeviceGetPCIBusId(out->bus_id, sizeof out->bus_id - 1, c->gpu.device);
    s = nccl_cuda_ok(r, "cuDeviceGetPCIBusId", f);
    if (s)
        return s;
    r = c->gpu.cu->cuDeviceGetAttribute(&out->multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, c->gpu.device);
    return nccl_cuda_ok(r, "cuDeviceGetAttribute", f);
}

static void refuse_shared_gpu(const struct rank_record *a, int rank_a, int rank_b, int asked, struct join_result *v) {
    char text[24];
    v->status = TESS_E_INVALID;
    if (asked)
        snprintf(
            v->message, sizeof v->message,
            "nccl: ranks %d and %d are both on GPU %.16s of host %.40s, which takes NCCL 2.30.0 or later; here is %s",
            rank_a, rank_b, a->bus_id, a->host, nccl_version_text(a->version, text));
    else
        snprintf(
            v->message, sizeof v->message,
            "nccl: ranks %d and %d are both on GPU %.16s of host %.40s, and each needs one of its own (LOCAL_RANK)",
            rank_a, rank_b, a->bus_id, a->host);
}

static int is_same_gpu(const struct rank_record *a, const struct rank_record *b) {
    return memcmp(a->uuid, b->uuid, sizeof a->uuid) == 0;
}

/* Returns the first switch that two ranks set differently, and through `on` whether the first rank has it on. */
static const char *find_other_switch(const struct rank_record *a, const struct rank_record *b, int *on) {
    const struct {
        const char *name;
        int32_t a, b;
    } switches[] = { { "APART", a->apart, b->apart },
                     { "WINDOWS", a->windows, b->windows },
                     { "ENGINES", a->engines, b->engines } };
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (switches[i].a != switches[i].b) {
            *on = switches[i].a;
            return switches[i].name;
        }
    return NULL;
}

/* Requires one GPU per rank unless `shared`, and for all ranks one NCCL version and equal settings that affect
 * collective calls. */
static void compare_records(const struct rank_record *a, int rank_a, const struct rank_record *b, int rank_b,
                            int shared, struct join_result *v) {
    char text_a[24], text_b[24];
    int on_a = 0;
    const char *which = find_other_switch(a, b, &on_a);
    if (is_same_gpu(a, b) && (!shared || a->version < NCCL_VERSION(2, 30, 0))) {
        refuse_shared_gpu(a, rank_a, rank_b, shared, v);
    } else if (a->version != b->version) {
        v->status = TESS_E_VERSION;
        snprintf(v->message, sizeof v->message, "nccl: rank %d has NCCL %s and rank %d has %s, expected the same",
                 rank_a, nccl_version_text(a->version, text_a), rank_b, nccl_version_text(b->version, text_b));
    } else if (which) {
        v->status = TESS_E_INVALID;
        snprintf(v->message, sizeof v->message,
                 "nccl: rank %d has TESSERA_NCCL_%s=%s and rank %d has %s, expected the same", rank_a, which,
                 on_a ? "on" : "off", rank_b, on_a ? "off" : "on");
    } else if (a->sums != b->sums) {
        static const char *const names[] = { "fp32", "native", "tree" };
        v->status = TESS_E_INVALID;
        snprintf(v->message, sizeof v->message,
                 "nccl: rank %d has TESSERA_NCCL_SUMS=%s and rank %d has %s, expected the same", rank_a, names[a->sums],
                 rank_b, names[b->sums]);
    }
    v->ranks[0] = rank_a;
    v->ranks[1] = rank_b;
}

/* Ranks on one GPU share its multiprocessors: how many it has for the rank that comes now. */
static int multiprocessors_of(const struct rank_record *records, int n, const struct rank_record *now) {
    int ranks = 1;
    for (int i = 0; i < n; i++)
        ranks += is_same_gpu(&records[i], now);
    return now->multiprocessors / ranks;
}

/* Rank 0: reads every record and decides for all. */
static tess_status decide_for_all(const tess_comm *c, const kit_joining *j, const struct rank_record *own,
                                  struct join_result *v, tess_error *f) {
    enum { KEPT = 64 }; /* compared with who comes next: ranks of one host are neighbours */
    struct rank_record records[KEPT];
    memset(v, 0, sizeof *v);
    records[0] = *own;
    v->multiprocessors = own->multiprocessors;
    for (int rank = 1; rank < c->size; rank++) {
        struct rank_record record;
        tess_status s = kit_joining_get(j, RECORD, rank, &record, sizeof record, f);
        if (s)
            return s;
        for (int i = 0; i < KEPT && i < rank && v->status == TESS_OK; i++)
            compare_records(&records[(rank - 1 - i) % KEPT], rank - 1 - i, &record, rank, c->settings->shared_gpu, v);
        int has = multiprocessors_of(records, rank < KEPT ? rank : KEPT, &record);
        records[rank % KEPT] = record;
        if (has < v->multiprocessors)
            v->multiprocessors = has;
    }
    ncclResult_t r = v->status == TESS_OK ? c->gpu.lib->ncclGetUniqueId(&v->id) : ncclSuccess;
    return r == ncclSuccess ? TESS_OK : nccl_failed(f, c->gpu.lib, r, "ncclGetUniqueId");
}

/* Rank 0 waits for all: when its result does not come, another rank may be missing. */
static tess_status read_result(const tess_comm *c, const kit_joining *j, struct join_result *v, tess_error *f) {
    tess_status s = kit_joining_get(j, RESULT, 0, v, sizeof *v, f);
    for (int rank = 1; rank < c->size && s == TESS_E_TIMEOUT; rank++) {
        struct rank_record record;
        tess_error missing = { .struct_size = sizeof missing };
        if (rank != c->rank && kit_joining_get(j, RECORD, rank, &record, sizeof record, &missing) == TESS_E_TIMEOUT) {
            *f = missing;
            break;
        }
    }
    return s;
}

tess_status nccl_meet(const tess_comm *c, ncclUniqueId *id, int *multiprocessors, int64_t late_ns, tess_error *f) {
    const kit_joining j = { c->settings->host, "nccl", c->prefix, c->timeout_ns, late_ns };
    struct rank_record own;
    struct join_result v;
    tess_status s = fill_record(c, &own, f);
    if (s == TESS_OK && c->rank == 0)
        s = decide_for_all(c, &j, &own, &v, f);
    else if (s == TESS_OK)
        s = kit_joining_set(&j, RECORD, c->rank, &own, sizeof own, f);
    if (s == TESS_OK && c->rank == 0 && c->size > 1)
        s = kit_joining_set(&j, RESULT, 0, &v, sizeof v, f);
    if (s == TESS_OK && c->rank != 0)
        s = read_result(c, &j, &v, f);
    if (s)
        return s;
    if (v.status != TESS_OK)
        return tess_plugin_fail_of(f, v.status, v.ranks[v.ranks[0] == c->rank], "%s", v.message);
    *id = v.id;
    *multiprocessors = v.multiprocessors;
    return TESS_OK;
}

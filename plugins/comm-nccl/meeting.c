#include "communicator.h"

#include <unistd.h>

struct card { /* what a rank says of itself */
    int32_t version;
    char uuid[16], bus_id[24], host[64];
};
struct verdict { /* what rank 0 says to all */
    tess_status status;
    int32_t ranks[2]; /* that cannot be together; -1 none */
    char message[220];
    ncclUniqueId id;
};

/* A key of the store, asked for in short turns, so that an abort is seen. */
static tess_status get(const tess_comm *c, const char *key, void *out, uint64_t bytes, int64_t late_ns,
                       struct nccl_failure *f) {
    enum { TURN_NS = 100000000 };
    const tess_host *host = &c->settings->host;
    for (;;) {
        int64_t left = late_ns - nccl_now_ns();
        uint64_t got = bytes;
        tess_status s = host->kv_get(host->host, key, out, &got, left < 0 ? 0 : left < TURN_NS ? left : TURN_NS);
        if (s == TESS_OK)
            return got == bytes ? TESS_OK
                                : nccl_fail(f, TESS_E_VERSION, -1,
                                            "nccl: another rank has another comm-nccl: key '%.80s' "
                                            "has %llu bytes, expected %llu",
                                            key, (unsigned long long)got, (unsigned long long)bytes);
        if (nccl_aborting(c->settings))
            return nccl_fail(f, TESS_E_ABORTED, -1, "nccl: the run was aborted while joining group '%.80s'", c->prefix);
        if (s != TESS_E_TIMEOUT)
            return nccl_fail(f, s, -1, "nccl: the key-value store failed while joining group '%.80s'", c->prefix);
        if (left <= 0)
            return nccl_fail(f, TESS_E_TIMEOUT, -1, "nccl: timeout");
    }
}

static tess_status set(const tess_comm *c, const char *key, const void *value, uint64_t bytes, struct nccl_failure *f) {
    const tess_host *host = &c->settings->host;
    tess_status s = host->kv_set(host->host, key, value, bytes);
    return s ? nccl_fail(f, s, -1, "nccl: the key-value store failed while joining group '%.80s'", c->prefix) : TESS_OK;
}

static void key_of(const tess_comm *c, int rank, char out[256]) {
    snprintf(out, 256, "%s/nccl-card-%d", c->prefix, rank);
}

static tess_status missing(const tess_comm *c, int rank, struct nccl_failure *f) {
    return nccl_fail(f, TESS_E_TIMEOUT, rank, "nccl: rank %d has not joined group '%.80s' in time", rank, c->prefix);
}

static tess_status fill_card(const tess_comm *c, struct card *out, struct nccl_failure *f) {
    CUuuid uuid = { { 0 } };
    memset(out, 0, sizeof *out);
    out->version = c->gpu.lib->version;
    gethostname(out->host, sizeof out->host - 1);
    CUresult r = c->gpu.cu->cuDeviceGetUuid(&uuid, c->gpu.device);
    if (r != CUDA_SUCCESS)
        return nccl_cuda_failed(f, r, "cuDeviceGetUuid");
    memcpy(out->uuid, uuid.bytes, sizeof out->uuid);
    r = c->gpu.cu->cuDeviceGetPCIBusId(out->bus_id, sizeof out->bus_id - 1, c->gpu.device);
    return r == CUDA_SUCCESS ? TESS_OK : nccl_cuda_failed(f, r, "cuDeviceGetPCIBusId");
}

/* One GPU for each rank, and one version of NCCL for all. */
static void compare(const struct card *a, int rank_a, const struct card *b, int rank_b, struct verdict *v) {
    char text_a[24], text_b[24];
    if (memcmp(a->uuid, b->uuid, sizeof a->uuid) == 0) {
        v->status = TESS_E_INVALID;
        snprintf(
            v->message, sizeof v->message,
            "nccl: ranks %d and %d are both on GPU %.16s of host %.40s, and each needs one of its own (LOCAL_RANK)",
            rank_a, rank_b, a->bus_id, a->host);
    } else if (a->version != b->version) {
        v->status = TESS_E_VERSION;
        snprintf(v->message, sizeof v->message, "nccl: rank %d has NCCL %s and rank %d has %s, expected the same",
                 rank_a, nccl_version_text(a->version, text_a), rank_b, nccl_version_text(b->version, text_b));
    }
    v->ranks[0] = rank_a;
    v->ranks[1] = rank_b;
}

/* Rank 0: reads every card, then says to all what came of it. */
static tess_status judge(const tess_comm *c, const struct card *own, struct verdict *v, int64_t late_ns,
                         struct nccl_failure *f) {
    enum { KEPT = 64 }; /* compared with who comes next: ranks of one host are neighbours */
    struct card cards[KEPT];
    char key[256];
    memset(v, 0, sizeof *v);
    cards[0] = *own;
    for (int rank = 1; rank < c->size; rank++) {
        struct card card;
        key_of(c, rank, key);
        tess_status s = get(c, key, &card, sizeof card, late_ns, f);
        if (s == TESS_E_TIMEOUT)
            return missing(c, rank, f);
        if (s)
            return s;
        for (int i = 0; i < KEPT && i < rank && v->status == TESS_OK; i++)
            compare(&cards[(rank - 1 - i) % KEPT], rank - 1 - i, &card, rank, v);
        cards[rank % KEPT] = card;
    }
    ncclResult_t r = v->status == TESS_OK ? c->gpu.lib->ncclGetUniqueId(&v->id) : ncclSuccess;
    return r == ncclSuccess ? TESS_OK : nccl_failed(f, c->gpu.lib, r, "ncclGetUniqueId");
}

static tess_status read_verdict(const tess_comm *c, const char *key, struct verdict *v, int64_t late_ns,
                                struct nccl_failure *f) {
    tess_status s = get(c, key, v, sizeof *v, late_ns, f);
    if (s != TESS_E_TIMEOUT)
        return s;
    for (int rank = 1; rank < c->size; rank++) { /* rank 0 waits for all: who is it? */
        struct nccl_failure ignored;
        struct card card;
        char card_key[256];
        key_of(c, rank, card_key);
        if (rank != c->rank && get(c, card_key, &card, sizeof card, 0, &ignored) == TESS_E_TIMEOUT)
            return missing(c, rank, f);
    }
    return missing(c, 0, f);
}

tess_status nccl_meet(const tess_comm *c, ncclUniqueId *id, int64_t late_ns, struct nccl_failure *f) {
    struct card own;
    struct verdict v;
    char key[256], verdict_key[256];
    tess_status s = fill_card(c, &own, f);
    if (s)
        return s;
    key_of(c, c->rank, key);
    snprintf(verdict_key, sizeof verdict_key, "%s/nccl-id", c->prefix);
    if (c->rank == 0)
        s = judge(c, &own, &v, late_ns, f);
    else
        s = set(c, key, &own, sizeof own, f);
    if (s == TESS_OK && c->rank == 0 && c->size > 1)
        s = set(c, verdict_key, &v, sizeof v, f);
    if (s == TESS_OK && c->rank != 0)
        s = read_verdict(c, verdict_key, &v, late_ns, f);
    if (s)
        return s;
    if (v.status != TESS_OK)
        return nccl_fail(f, v.status, v.ranks[v.ranks[0] == c->rank], "%s", v.message);
    *id = v.id;
    return TESS_OK;
}

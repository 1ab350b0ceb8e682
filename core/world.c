/* Who am I: the variables of torchrun-like launchers, Slurm and Open MPI. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "options.h"
#include "status.h"

enum { RANKS_MAX = 1 << 20 };

static const char *variable(const char *name) {
    const char *text = secure_getenv(name);
    return text && *text ? text : NULL;
}

/* Reads an integer; *out is untouched when the variable is unset. */
static tess_status read_int(const char *name, int64_t least, int64_t most, int32_t *out) {
    const char *text = variable(name);
    if (!text)
        return TESS_OK;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (*end || errno || value < least || value > most || text[0] == ' ' || text[0] == '+')
        return tess__fail(TESS_E_INVALID, "%s is '%.40s', expected an integer from %lld to %lld", name, text,
                          (long long)least, (long long)most);
    *out = (int32_t)value;
    return TESS_OK;
}

typedef struct { /* the names one family of launchers uses */
    const char *rank, *nranks, *local_rank, *local_nranks;
} family;

static tess_status check_family(const family *names, const tess__world *w) {
    if (w->rank >= w->nranks)
        return tess__fail(TESS_E_INVALID, "%s is %d, but %s is %d: ranks count from 0", names->rank, (int)w->rank,
                          names->nranks, (int)w->nranks);
    if (w->local_nranks > w->nranks)
        return tess__fail(TESS_E_INVALID, "%s is %d, more than %s, which is %d", names->local_nranks,
                          (int)w->local_nranks, names->nranks, (int)w->nranks);
    int32_t limit = w->local_nranks ? w->local_nranks : w->nranks;
    if (w->local_rank >= limit)
        return tess__fail(TESS_E_INVALID, "%s is %d, but only %d ranks are on this host", names->local_rank,
                          (int)w->local_rank, (int)limit);
    return TESS_OK;
}

static tess_status read_family(const family *names, tess__world *w) {
    tess_status status = read_int(names->nranks, 1, RANKS_MAX, &w->nranks);
    if (status == TESS_OK)
        status = read_int(names->rank, 0, RANKS_MAX - 1, &w->rank);
    if (status == TESS_OK && names->local_nranks)
        status = read_int(names->local_nranks, 1, RANKS_MAX, &w->local_nranks);
    if (status == TESS_OK)
        status = read_int(names->local_rank, 0, RANKS_MAX - 1, &w->local_rank);
    return status == TESS_OK ? check_family(names, w) : status;
}

/* ---- RANK and WORLD_SIZE ------------------------------------------------------------------------ */

static const family plain = { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE" };

static tess_status from_plain(tess__world *w) {
    int has_rank = variable("RANK") != NULL;
    tess_status status = TESS_OK;
    if (has_rank && !variable("WORLD_SIZE"))
        status = tess__fail(TESS_E_INVALID, "RANK is set to '%.40s', but WORLD_SIZE is not set", variable("RANK"));
    if (status == TESS_OK)
        status = read_family(&plain, w);
    if (status == TESS_OK && !has_rank && w->nranks > 1)
        status = tess__fail(TESS_E_INVALID, "WORLD_SIZE is %d, but RANK is not set", (int)w->nranks);
    if (status == TESS_OK && has_rank && !variable("LOCAL_RANK") && !w->local_nranks)
        w->local_rank = w->rank; /* one host, as far as anyone has said */
    return status;
}

/* ---- Slurm -------------------------------------------------------------------------------------- */

/* Inside an allocation's shell or batch script SLURM_PROCID may be set too, but only tasks of srun have a step, and
 * the shell's own step has a reserved number. */
static int is_slurm_task(void) {
    const char *step = variable("SLURM_STEP_ID");
    if (!variable("SLURM_PROCID"))
        return 0;
    if (!step)
        return !variable("SLURM_JOB_ID");
    return strtoul(step, NULL, 10) < 0xfffffff0ul;
}

/* "n[01-03,7],m5" → "n01". */
static tess_status first_host(const char *list, char *out, size_t size) {
    size_t n = 0;
    for (const char *p = list; *p && *p != ','; p++) {
        if (*p == '[') {
            for (p++; *p && *p != '-' && *p != ',' && *p != ']' && n + 1 < size; p++)
                out[n++] = *p;
            p += strcspn(p, "]");
            if (!*p)
                return tess__fail(TESS_E_INVALID, "SLURM_STEP_NODELIST is '%.100s', expected names of hosts", list);
        } else if (n + 1 < size)
            out[n++] = *p;
    }
    out[n] = 0;
    return TESS_OK;
}

static tess_status slurm_address(tess__world *w) {
    int32_t hosts = 0;
    const char *name = variable("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
    const char *list = variable("SLURM_STEP_NODELIST"), *launch = variable("SLURM_LAUNCH_NODE_IPADDR");
    tess_status status = read_int(name, 1, RANKS_MAX, &hosts);
    if (status != TESS_OK)
        return status;
    if (hosts == 1)
        w->local_nranks = w->nranks;
    /* Rank 0 is on the step's first host, which need not be where srun was called. */
    if (hosts != 1 && list)
        return first_host(list, w->address, sizeof w->address);
    if (hosts != 1 && launch)
        snprintf(w->address, sizeof w->address, "%s", launch);
    return TESS_OK;
}

static tess_status from_slurm(tess__world *w) {
    const char *nranks = variable("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    const family names = { "SLURM_PROCID", nranks, "SLURM_LOCALID", NULL };
    if (!variable(nranks))
        return tess__fail(TESS_E_INVALID, "SLURM_PROCID is set, but neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS is");
    tess_status status = read_family(&names, w);
    const char *job = variable("SLURM_JOB_ID"), *step = variable("SLURM_STEP_ID");
    snprintf(w->job, sizeof w->job, "%.30s.%.30s", job ? job : "", step ? step : "");
    return status == TESS_OK ? slurm_address(w) : status;
}

/* ---- Open MPI ----------------------------------------------------------------------------------- */

static const family open_mpi = { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                 "OMPI_COMM_WORLD_LOCAL_SIZE" };

static tess_status from_open_mpi(tess__world *w) {
    if (!variable("OMPI_COMM_WORLD_SIZE"))
        return tess__fail(TESS_E_INVALID, "OMPI_COMM_WORLD_RANK is set, but OMPI_COMM_WORLD_SIZE is not");
    tess_status status = read_family(&open_mpi, w);
    if (status == TESS_OK && w->local_nranks && w->local_nranks < w->nranks && !variable("MASTER_ADDR"))
        return tess__fail(TESS_E_INVALID, "mpirun started ranks on several hosts: set MASTER_ADDR to rank 0's host");
    const char *space = variable("PMIX_NAMESPACE");
    snprintf(w->job, sizeof w->job, "%.60s", space ? space : "");
    return status;
}

/* ---- where the server is ------------------------------------------------------------------------ */

static tess_status bad_kv(const char *text) {
    return tess__fail(TESS_E_INVALID, "TESSERA_KV is '%.100s', expected HOST:PORT", text);
}

static tess_status from_kv(const char *text, tess__world *w) {
    const char *colon = strrchr(text, ':');
    char *end;
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    if (!colon || colon == text || colon[1] < '0' || colon[1] > '9' || *end || port < 1 || port > 65535)
        return bad_kv(text);
    size_t length = (size_t)(colon - text);
    if (text[0] == '[' && length > 2 && text[length - 1] == ']') {
        text++;
        length -= 2;
    }
    if (length >= sizeof w->address)
        return bad_kv(text);
    memcpy(w->address, text, length);
    w->address[length] = 0;
    w->port = (int32_t)port;
    w->launched = 1;
    return TESS_OK;
}

static tess_status read_server(tess__world *w) {
    const char *kv = tess__option_text("kv"), *address = variable("MASTER_ADDR"), *secret = tess__option_text("secret");
    if (secret && strlen(secret) >= sizeof w->secret)
        return tess__fail(TESS_E_INVALID, "TESSERA_SECRET has %zu characters, expected at most %zu", strlen(secret),
                          sizeof w->secret - 1);
    snprintf(w->secret, sizeof w->secret, "%s", secret ? secret : "");
    if (address && strlen(address) >= sizeof w->address)
        return tess__fail(TESS_E_INVALID, "MASTER_ADDR has %zu characters, expected the name of a host",
                          strlen(address));
    /* Ranks of one host meet on its loopback, whatever the host is called. */
    int one_host = w->local_nranks == w->nranks && !tess__option_text("listen");
    if (address && !one_host)
        snprintf(w->address, sizeof w->address, "%s", address);
    tess_status status = read_int("MASTER_PORT", 1, 65535, &w->port);
    return status == TESS_OK && kv ? from_kv(kv, w) : status;
}

tess_status tess__world_from_env(tess__world *out) {
    tess__world w = { .nranks = 1, .port = TESS__DEFAULT_PORT, .address = "127.0.0.1" };
    tess_status status;
    if (variable("RANK") || variable("WORLD_SIZE"))
        status = from_plain(&w);
    else if (variable("OMPI_COMM_WORLD_RANK"))
        status = from_open_mpi(&w);
    else if (is_slurm_task())
        status = from_slurm(&w);
    else
        status = TESS_OK;
    if (status == TESS_OK)
        status = read_server(&w);
    if (status != TESS_OK)
        return status;
    if (w.nranks == 1 || w.launched)
        w.local_nranks = w.local_nranks ? w.local_nranks : w.nranks;
    *out = w;
    return TESS_OK;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads who this rank is from the variables of torchrun-like launchers, Open MPI, MPICH and Intel MPI, and Slurm. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "secret.h"
#include "base/options.h"
#include "base/status.h"

enum { RANKS_MAX = 1 << 20, TORCHRUN_PORTS = 8 };

static const char *read_variable(const char *name) {
    const char *text = secure_getenv(name);
    return text && *text ? text : NULL;
}

/* Reads an integer; *out is untouched when the variable is unset. */
static tess_status read_int(const char *name, int64_t least, int64_t most, int32_t *out) {
    const char *text = read_variable(name);
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
    int has_rank = read_variable("RANK") != NULL;
    tess_status status = TESS_OK;
    if (has_rank && !read_variable("WORLD_SIZE"))
        status = tess__fail(TESS_E_INVALID, "RANK is set to '%.40s', but WORLD_SIZE is not set", read_variable("RANK"));
    if (status == TESS_OK)
        status = read_family(&plain, w);
    if (status == TESS_OK && !has_rank && w->nranks > 1)
        status = tess__fail(TESS_E_INVALID, "WORLD_SIZE is %d, but RANK is not set", (int)w->nranks);
    if (status == TESS_OK && has_rank && !read_variable("LOCAL_RANK") && !w->local_nranks)
        w->local_rank = w->rank; /* nobody has said otherwise, so all ranks are on one host */
    return status;
}

/* ---- Slurm -------------------------------------------------------------------------------------- */

/* Tells whether this is a task of Slurm. Inside an allocation's shell or batch script SLURM_PROCID may be set too,
 * but only tasks of srun have a step, and the shell's own step has a reserved number. */
static int is_slurm_task(void) {
    const char *step = read_variable("SLURM_STEP_ID");
    if (!read_variable("SLURM_PROCID"))
        return 0;
    if (!step)
        return !read_variable("SLURM_JOB_ID");
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
    const char *name = read_variable("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
    const char *list = read_variable("SLURM_STEP_NODELIST"), *launch = read_variable("SLURM_LAUNCH_NODE_IPADDR");
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
    const char *nranks = read_variable("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    const family names = { "SLURM_PROCID", nranks, "SLURM_LOCALID", NULL };
    if (!read_variable(nranks))
        return tess__fail(TESS_E_INVALID, "SLURM_PROCID is set, but neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS is");
    tess_status status = read_family(&names, w);
    const char *job = read_variable("SLURM_JOB_ID"), *step = read_variable("SLURM_STEP_ID");
    snprintf(w->job, sizeof w->job, "%.30s.%.30s", job ? job : "", step ? step : "");
    return status == TESS_OK ? slurm_address(w) : status;
}

/* ---- Open MPI ----------------------------------------------------------------------------------- */

static const family open_mpi = { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                 "OMPI_COMM_WORLD_LOCAL_SIZE" };

/* Refuses several hosts without an address, because no MPI says where rank 0 is. */
static tess_status check_mpi_hosts(const tess__world *w) {
    if (w->local_nranks && w->local_nranks < w->nranks && !read_variable("MASTER_ADDR"))
        return tess__fail(TESS_E_INVALID, "mpirun started ranks on several hosts: set MASTER_ADDR to rank 0's host");
    return TESS_OK;
}

static tess_status from_open_mpi(tess__world *w) {
    if (!read_variable("OMPI_COMM_WORLD_SIZE"))
        return tess__fail(TESS_E_INVALID, "OMPI_COMM_WORLD_RANK is set, but OMPI_COMM_WORLD_SIZE is not");
    tess_status status = read_family(&open_mpi, w);
    const char *space = read_variable("PMIX_NAMESPACE");
    snprintf(w->job, sizeof w->job, "%.60s", space ? space : "");
    return status == TESS_OK ? check_mpi_hosts(w) : status;
}

/* ---- MPICH and Intel MPI ------------------------------------------------------------------------ */

static const family pmi = { "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS" };

static tess_status from_pmi(tess__world *w) {
    if (!read_variable("PMI_SIZE"))
        return tess__fail(TESS_E_INVALID, "PMI_RANK is set, but PMI_SIZE is not");
    tess_status status = read_family(&pmi, w);
    if (status == TESS_OK && !read_variable("MPI_LOCALRANKID") && !w->local_nranks)
        w->local_rank = w->rank;
    return status == TESS_OK ? check_mpi_hosts(w) : status;
}

/* ---- which of them ------------------------------------------------------------------------------ */

typedef struct {
    int present;
    family names;
    tess_status (*read)(tess__world *);
} launcher;

enum { PLAIN, OPEN_MPI, PMI, SLURM, LAUNCHERS };

static void find_launchers(launcher out[LAUNCHERS]) {
    const char *tasks = read_variable("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    int is_plain = read_variable("RANK") || read_variable("WORLD_SIZE");
    out[PLAIN] = (launcher){ is_plain, plain, from_plain };
    out[OPEN_MPI] = (launcher){ read_variable("OMPI_COMM_WORLD_RANK") != NULL, open_mpi, from_open_mpi };
    out[PMI] = (launcher){ read_variable("PMI_RANK") != NULL, pmi, from_pmi };
    out[SLURM] = (launcher){ is_slurm_task(), { "SLURM_PROCID", tasks, "SLURM_LOCALID", NULL }, from_slurm };
}

/* Tells whether a launcher is around the chosen one and no contradiction: it starts another launcher per host, or
 * just once. */
static int is_around(int which, const tess__world *w, const tess__world *inner) {
    int32_t hosts = 0;
    if (w->nranks == 1)
        return 1;
    if (which != SLURM || w->nranks == inner->nranks)
        return 0;
    return read_int("SLURM_STEP_NUM_NODES", 1, RANKS_MAX, &hosts) == TESS_OK && hosts == w->nranks;
}

static tess_status check_agreement(const launcher *all, int chosen, const tess__world *w) {
    /* These start ranks under whatever started them. */
    if (chosen == PLAIN && (tess__option_text("kv") || read_variable("TORCHELASTIC_RUN_ID")))
        return TESS_OK;
    for (int i = chosen + 1; i < LAUNCHERS; i++) {
        tess__world other = { .nranks = 1 };
        if (!all[i].present || read_int(all[i].names.rank, 0, RANKS_MAX - 1, &other.rank) != TESS_OK ||
            read_int(all[i].names.nranks, 1, RANKS_MAX, &other.nranks) != TESS_OK)
            continue;
        if ((other.rank == w->rank && other.nranks == w->nranks) || is_around(i, &other, w))
            continue;
        return tess__fail(
            TESS_E_INVALID,
            "two launchers disagree: %s is %d of %d (%s), but %s is %d of %d (%s); unset those of the one "
            "that did not start this rank",
            all[chosen].names.rank, (int)w->rank, (int)w->nranks, all[chosen].names.nranks, all[i].names.rank,
            (int)other.rank, (int)other.nranks, all[i].names.nranks);
    }
    return TESS_OK;
}

static tess_status read_launcher(tess__world *w) {
    launcher all[LAUNCHERS];
    find_launchers(all);
    for (int i = 0; i < LAUNCHERS; i++)
        if (all[i].present) {
            tess_status status = all[i].read(w);
            return status == TESS_OK ? check_agreement(all, i, w) : status;
        }
    return TESS_OK;
}

/* ---- where the server is ------------------------------------------------------------------------ */

static tess_status bad_kv(const char *text) {
    return tess__fail(TESS_E_INVALID, "TESSERA_KV is '%.100s', expected HOST:PORT or /PATH", text);
}

static tess_status from_kv(const char *text, tess__world *w) {
    if (*text == '/' && strlen(text) < sizeof w->address) {
        snprintf(w->address, sizeof w->address, "%s", text);
        w->port = 0;
        w->launched = 1;
        return TESS_OK;
    }
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

tess_status tess__world_at_generation(tess__world *w, int32_t generation) {
    const char *kv = tess__option_text("kv");
    if (!kv || *kv != '/' || generation < 0)
        return tess__fail(TESS_E_UNSUPPORTED, "only ranks that `tessera run` started on one host can be replaced");
    w->generation = generation;
    w->rank = w->first_rank; /* until the welcome says otherwise */
    w->nranks = w->first_nranks;
    int n = snprintf(w->address, sizeof w->address, generation ? "%s-g%d" : "%s", kv, (int)generation);
    return n < (int)sizeof w->address ? TESS_OK : bad_kv(kv);
}

static tess_status read_generation(tess__world *w) {
    int64_t generation = 0;
    tess_status status = tess__option_int("generation", 0, INT32_MAX, &generation);
    return status || !generation ? status : tess__world_at_generation(w, (int32_t)generation);
}

/* Rank 0 takes the first free port behind MASTER_PORT, which torchrun's own store holds, and the others look for it
 * there. A restart is another job. */
static void leave_torchrun_its_port(tess__world *w) {
    const char *run = read_variable("TORCHELASTIC_RUN_ID"), *restart = read_variable("TORCHELASTIC_RESTART_COUNT");
    if (!run || !read_variable("RANK"))
        return;
    w->port = w->port + TORCHRUN_PORTS > 65535 ? w->port - TORCHRUN_PORTS : w->port + 1;
    w->n_ports = TORCHRUN_PORTS;
    snprintf(w->job, sizeof w->job, "%.40s.%.10s", run, restart ? restart : "0");
}

static tess_status read_server(tess__world *w) {
    const char *kv = tess__option_text("kv"), *address = read_variable("MASTER_ADDR");
    tess_status status = tess__secret_read(w->secret, sizeof w->secret);
    if (status != TESS_OK)
        return status;
    if (address && strlen(address) >= sizeof w->address)
        return tess__fail(TESS_E_INVALID, "MASTER_ADDR has %zu characters, expected the name of a host",
                          strlen(address));
    /* Ranks of one host meet on its loopback, whatever name the host has. */
    int one_host = w->local_nranks == w->nranks && !tess__option_text("listen");
    if (address && !one_host)
        snprintf(w->address, sizeof w->address, "%s", address);
    status = read_int("MASTER_PORT", 1, 65535, &w->port);
    if (status == TESS_OK && kv) {
        status = from_kv(kv, w);
        return status == TESS_OK ? read_generation(w) : status;
    }
    leave_torchrun_its_port(w);
    return status;
}

tess_status tess__world_from_env(tess__world *out) {
    tess__world w = { .nranks = 1, .port = TESS__DEFAULT_PORT, .n_ports = 1, .address = "127.0.0.1" };
    tess_status status = read_launcher(&w);
    w.first_rank = w.rank;
    w.first_nranks = w.nranks;
    if (status == TESS_OK)
        status = read_server(&w);
    if (status != TESS_OK)
        return status;
    if (w.nranks == 1 || (w.launched && !w.local_nranks))
        w.local_nranks = w.local_nranks ? w.local_nranks : w.nranks;
    *out = w;
    return TESS_OK;
}

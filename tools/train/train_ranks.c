/* SPDX-License-Identifier: BSD-3-Clause */
/* Collects measurements of every rank at the end. Rank 0 writes one line for each. A replica that ended with different
 * parameters is an error. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/inspect.h>
#include "tools/support/alloc_count.h"
#include "tools/support/witness.h"
#include "train.h"

enum {
    PEAK_DEVICE,
    PLANNED_DEVICE,
    PEAK_HOST,
    PLANNED_HOST,
    LIVE_DEVICE,
    RESTING_DEVICE,
    LIVE_HOST,
    RESTING_HOST,
    PEAK_DISK,
    PLANNED_DISK,
    MAPPED,      /* negative: not counted */
    ALLOCATIONS, /* negative: not counted */
    RESIDENT,
    DIGEST_HIGH,
    DIGEST_LOW,
    N_FIGURES
};
static const char *const names[] = {
    "peak_device_bytes",  "planned_peak_device_bytes", "peak_host_bytes", "planned_peak_host_bytes",
    "live_device_bytes",  "resting_device_bytes",      "live_host_bytes", "resting_host_bytes",
    "peak_disk_bytes",    "planned_peak_disk_bytes",   "mapped_bytes",    "step_allocations",
    "peak_resident_bytes"
};

static void measure(const train_run *r, int64_t mine[N_FIGURES]) {
    tess_stats s = { .struct_size = sizeof s };
    tool_witness w;
    uint64_t digest[2] = { 0 };
    int counted = tool_alloc_available();
    tool_witness_read(&w);
    if (tess_stats_get(r->t, &s) != TESS_OK)
        memset(&s, 0, sizeof s);
    sscanf(r->digest, "%16" SCNx64 "%16" SCNx64, &digest[0], &digest[1]);
    for (int d = TESS_DOMAIN_DEVICE; d <= TESS_DOMAIN_HOST; d++) {
        int host = d == TESS_DOMAIN_HOST;
        mine[host ? PEAK_HOST : PEAK_DEVICE] = (int64_t)s.peak_bytes[d];
        mine[host ? PLANNED_HOST : PLANNED_DEVICE] = (int64_t)s.planned_peak_bytes[d];
        mine[host ? LIVE_HOST : LIVE_DEVICE] = (int64_t)s.live_bytes[d];
        mine[host ? RESTING_HOST : RESTING_DEVICE] = (int64_t)s.resting_bytes[d];
    }
    mine[PEAK_DISK] = (int64_t)s.disk_peak_bytes;
    mine[PLANNED_DISK] = (int64_t)s.planned_disk_peak_bytes;
    mine[MAPPED] = counted ? (int64_t)tool_alloc_mapped_peak() : -1;
    mine[ALLOCATIONS] = counted ? (int64_t)tool_alloc_own() : -1;
    mine[RESIDENT] = (int64_t)w.resident_peak_bytes;
    mine[DIGEST_HIGH] = (int64_t)digest[0];
    mine[DIGEST_LOW] = (int64_t)digest[1];
}

static void digest_text(const int64_t *figures, char out[33]) {
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, (uint64_t)figures[DIGEST_HIGH], (uint64_t)figures[DIGEST_LOW]);
}

static void write_line(train_run *r, int32_t rank, const int64_t *figures) {
    char digest[33];
    json_out *j = train_output_begin(r, "rank");
    if (!j)
        return;
    json_int(j, "rank", rank);
    for (int i = 0; i < DIGEST_HIGH; i++)
        if (figures[i] < 0)
            json_null(j, names[i]);
        else
            json_int(j, names[i], figures[i]);
    digest_text(figures, digest);
    json_string(j, "params_digest", r->digest[0] ? digest : NULL);
    train_output_end(r);
}

static tess_status compare(int32_t rank, const int64_t *figures, const int64_t *first) {
    char theirs[33], ours[33];
    digest_text(figures, theirs);
    digest_text(first, ours);
    return strcmp(theirs, ours) == 0
               ? TESS_OK
               : tess_fail(TESS_E_INTERNAL, "rank %d has other parameters than rank 0: digest %s, not %s", rank, theirs,
                           ours);
}

tess_status train_ranks(train_run *r) {
    int64_t *all = calloc((size_t)r->ranks, N_FIGURES * sizeof *all);
    if (!all)
        return tess_fail(TESS_E_NOMEM, "no memory for the figures of %d ranks", r->ranks);
    measure(r, all + (size_t)r->rank * N_FIGURES);
    tess_status status = tess_all_reduce(r->t, all, (uint64_t)r->ranks * N_FIGURES, TESS_I64, TESS_SUM);
    for (int32_t rank = 0; r->rank == 0 && rank < r->ranks && status == TESS_OK; rank++) {
        write_line(r, rank, all + (size_t)rank * N_FIGURES);
        status = compare(rank, all + (size_t)rank * N_FIGURES, all);
    }
    free(all);
    return status;
}

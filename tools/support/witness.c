/* SPDX-License-Identifier: BSD-3-Clause */
#include "witness.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t writable_bytes(void) {
    char line[512];
    uint64_t total = 0, first, last;
    char rights[8];
    FILE *f = fopen("/proc/self/maps", "re");
    int whole = 1; /* the next piece begins a line */
    while (f && fgets(line, sizeof line, f)) {
        if (whole && sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s", &first, &last, rights) == 3 && rights[1] == 'w')
            total += last - first;
        whole = strchr(line, '\n') != NULL;
    }
    if (f)
        fclose(f);
    return total;
}

void tool_witness_read(tool_witness *out) {
    char line[256];
    uint64_t kib, threads;
    *out = (tool_witness){ .mapped_bytes = writable_bytes() };
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "VmHWM: %" SCNu64, &kib) == 1)
            out->resident_peak_bytes = kib << 10;
        else if (sscanf(line, "VmRSS: %" SCNu64, &kib) == 1)
            out->resident_bytes = kib << 10;
        else if (sscanf(line, "Threads: %" SCNu64, &threads) == 1)
            out->threads = threads;
    }
    if (f)
        fclose(f);
}

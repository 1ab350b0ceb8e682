/* SPDX-License-Identifier: BSD-3-Clause */
#include "witness.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* glibc's default stack size for a thread. */
static uint64_t stack_bytes(void) {
    struct rlimit limit;
    const uint64_t usual = 8 << 20;
    return getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < (rlim_t)1 << 30 ? limit.rlim_cur : usual;
}

/* Estimates the writable bytes without thread stacks. A page without rights lies below each stack. The kernel may join
 * that page with other such mappings below it. Such a mapping counts as a stack's only while some threads have no stack
 * yet. */
static uint64_t writable_bytes(uint64_t threads) {
    const uint64_t page = 4096, stack = stack_bytes();
    char line[512], rights[8];
    uint64_t total = 0, first, last, guard = 0, guard_bytes = 0, sure = 0, perhaps = 0;
    FILE *f = fopen("/proc/self/maps", "re");
    int whole = 1; /* the next piece begins a line */
    while (f && fgets(line, sizeof line, f)) {
        if (whole && sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s", &first, &last, rights) == 3) {
            const int above = guard == first && last - first >= stack;
            total += rights[1] == 'w' ? last - first : 0;
            sure += rights[1] == 'w' && above && guard_bytes == page;
            perhaps += rights[1] == 'w' && above && guard_bytes > page;
            guard = memcmp(rights, "---", 3) == 0 ? last : 0;
            guard_bytes = last - first;
        }
        whole = strchr(line, '\n') != NULL;
    }
    if (f)
        fclose(f);
    const uint64_t missing = threads > sure + 1 ? threads - 1 - sure : 0; /* without the main thread's stack */
    return total - (sure + (perhaps < missing ? perhaps : missing)) * stack;
}

void tool_witness_read(tool_witness *out) {
    char line[256];
    uint64_t kib, threads;
    *out = (tool_witness){ 0 };
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "VmHWM: %" SCNu64, &kib) == 1)
            out->resident_peak_bytes = kib << 10;
        else if (sscanf(line, "VmRSS: %" SCNu64, &kib) == 1)
            out->resident_bytes = kib << 10;
        else if (sscanf(line, "RssAnon: %" SCNu64, &kib) == 1)
            out->anonymous_bytes = kib << 10;
        else if (sscanf(line, "Threads: %" SCNu64, &threads) == 1)
            out->threads = threads;
    }
    if (f)
        fclose(f);
    out->mapped_bytes = writable_bytes(out->threads);
}

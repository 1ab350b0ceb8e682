/* SPDX-License-Identifier: BSD-3-Clause */
#include "capture.h"

#include <stdint.h>
#include <time.h>

enum { MAGIC_NS = 0xa1b23c4d, SNAP_BYTES = 1 << 17, ETHERNET = 1 };

FILE *switch_capture_open(const char *path) {
    const uint32_t head[6] = { MAGIC_NS, 4 << 16 | 2, 0, 0, SNAP_BYTES, ETHERNET };
    FILE *f = fopen(path, "wbe");
    if (f && fwrite(head, sizeof head, 1, f) != 1) {
        fclose(f);
        return NULL;
    }
    return f;
}

int switch_capture_add(FILE *f, const void *frame, size_t bytes) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const uint32_t head[4] = { (uint32_t)now.tv_sec, (uint32_t)now.tv_nsec, (uint32_t)bytes, (uint32_t)bytes };
    return fwrite(head, sizeof head, 1, f) == 1 && fwrite(frame, bytes, 1, f) == 1 ? 0 : -1;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "host_id.h"

#include "base/hash.h"

#include <fcntl.h>
#include <unistd.h>

uint64_t tess__host_id(void) {
    char boot[64] = "", net[64] = "", name[256] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, boot, sizeof boot - 1) : 0;
    if (fd >= 0)
        close(fd);
    boot[got > 0 ? got : 0] = 0;
    got = readlink("/proc/self/ns/net", net, sizeof net - 1);
    net[got > 0 ? got : 0] = 0;
    if (!boot[0]) /* without /proc the host's name tells */
        gethostname(name, sizeof name - 1);
    return tess__hash_text(tess__hash_text(tess__hash_text(TESS__HASH_START, boot), net), name);
}

int32_t tess__most_on_a_host(const uint64_t *ids, int32_t n) {
    int32_t most = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t same = 0;
        for (int32_t k = 0; k < n; k++)
            same += ids[k] == ids[i];
        most = same > most ? same : most;
        if (same == n) /* the usual case: one host */
            return n;
    }
    return most;
}

/* Each rank counts as the first rank on its host. */
uint64_t tess__layout_of_hosts(const uint64_t *ids, int32_t n) {
    uint64_t h = tess__hash_u64(TESS__HASH_START, (uint64_t)n);
    for (int32_t i = 0, first = 0; i < n; i++) {
        if (i == 0 || ids[i] != ids[i - 1]) /* neighbours usually share one */
            for (first = 0; ids[first] != ids[i];)
                first++;
        h = tess__hash_u64(h, (uint64_t)first);
    }
    return h;
}

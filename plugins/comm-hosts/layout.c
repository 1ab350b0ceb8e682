/* SPDX-License-Identifier: BSD-3-Clause */
#include "layout.h"

#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>

/* The tree halves at powers of two, so a run of 2^k ranks that begins at a multiple of 2^k is one of its nodes. */
int hosts_fit_tree(int32_t n, int32_t each) {
    return each >= 2 && (each & (each - 1)) == 0 && n > each && n % each == 0;
}

static int is_contiguous(const uint64_t *ids, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = i + 1; k < n; k++)
            if (ids[i] == ids[k] && ids[k - 1] != ids[k])
                return 0;
    return 1;
}

static int32_t shares(const uint64_t *ids, int32_t n, int32_t rank) {
    int32_t same = 0;
    for (int32_t i = 0; i < n; i++)
        same += ids[i] == ids[rank];
    return same;
}

static int is_even(const uint64_t *ids, int32_t n, int32_t each) {
    for (int32_t i = 0; i < n; i++)
        if (shares(ids, n, i) != each)
            return 0;
    return 1;
}

hosts_layout hosts_layout_of(const uint64_t *ids, int32_t n, int32_t rank) {
    hosts_layout l = { .kind = HOSTS_FLAT, .sharing = shares(ids, n, rank) };
    int32_t each = shares(ids, n, 0);
    for (int32_t i = 0; i < rank; i++)
        l.local += ids[i] == ids[rank];
    if (each == n)
        l.kind = HOSTS_ONE;
    else if (!is_even(ids, n, each))
        l.why = "the hosts have different numbers of ranks";
    else if (each > 1 && !is_contiguous(ids, n))
        l.why = "the ranks of a host are not neighbours";
    else if (each > 1 && !hosts_fit_tree(n, each))
        l.why = "the ranks of a host are no power of two";
    else if (each > 1) {
        l.kind = HOSTS_TWO_STEPS;
        l.hosts = n / each;
        l.each = each;
        l.host = rank / each;
    }
    return l;
}

static uint64_t hash(uint64_t h, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * UINT64_C(1099511628211);
    return h;
}

/* One kernel, one network namespace. */
uint64_t hosts_id(void) {
    char text[256];
    uint64_t h = UINT64_C(14695981039346656037);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text) : 0;
    if (fd >= 0)
        close(fd);
    h = hash(h, text, got > 0 ? (size_t)got : 0);
    got = readlink("/proc/self/ns/net", text, sizeof text);
    return hash(h, text, got > 0 ? (size_t)got : 0);
}

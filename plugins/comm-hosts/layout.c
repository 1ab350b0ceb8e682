/* SPDX-License-Identifier: BSD-3-Clause */
#include "layout.h"

#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>

/* The tree halves at powers of two, so a run of 2^k ranks that begins at a multiple of 2^k is one of its nodes. */
int hosts_fit_tree(int32_t n, int32_t each) {
    return each >= 2 && (each & (each - 1)) == 0 && n > each;
}

static int is_contiguous(const uint64_t *ids, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = i + 1; k < n; k++)
            if (ids[i] == ids[k] && ids[k - 1] != ids[k])
                return 0;
    return 1;
}

static int32_t ranks_beside(const uint64_t *ids, int32_t n, int32_t rank) {
    int32_t same = 0;
    for (int32_t i = 0; i < n; i++)
        same += ids[i] == ids[rank];
    return same;
}

/* The last host may have fewer. */
static int is_even(const uint64_t *ids, int32_t n, int32_t each) {
    for (int32_t i = 0; i < n; i++) {
        const int32_t here = ranks_beside(ids, n, i);
        if (here != each && (here > each || ids[i] != ids[n - 1]))
            return 0;
    }
    return 1;
}

hosts_layout hosts_layout_of(const uint64_t *ids, int32_t n, int32_t rank) {
    hosts_layout l = { .kind = HOSTS_FLAT, .sharing = ranks_beside(ids, n, rank) };
    int32_t each = ranks_beside(ids, n, 0);
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
        l.hosts = (n + each - 1) / each;
        l.each = each;
        l.last = n - (l.hosts - 1) * each;
        l.host = rank / each;
    }
    return l;
}

/* ---- rails ---------------------------------------------------------------------------------------- */

/* Rails below this one have no rank of their own on the last host. */
static int32_t first_real(const hosts_layout *l) {
    return l->each - l->last;
}
static int is_small(const hosts_layout *l, int32_t host) {
    return host == l->hosts - 1 && l->last < l->each;
}

int32_t hosts_rounds(const hosts_layout *l, int32_t host) {
    return is_small(l, host) ? 1 + (first_real(l) + l->last - 1) / l->last : 1;
}

int hosts_has_block(const hosts_layout *l, int32_t host, int32_t rail) {
    return !is_small(l, host) || rail >= first_real(l);
}

int32_t hosts_round_of(const hosts_layout *l, int32_t host, int32_t rail) {
    return hosts_has_block(l, host, rail) ? 0 : 1 + rail / l->last;
}

int32_t hosts_rail(const hosts_layout *l, int32_t host, int32_t local, int32_t round) {
    const int32_t own = is_small(l, host) ? first_real(l) + local : local, rail = (round - 1) * l->last + local;
    if (round == 0)
        return own;
    return round < hosts_rounds(l, host) && rail < first_real(l) ? rail : -1;
}

int32_t hosts_local_on(const hosts_layout *l, int32_t host, int32_t rail) {
    if (!is_small(l, host))
        return rail;
    return hosts_has_block(l, host, rail) ? rail - first_real(l) : rail % l->last;
}

/* If a full host asks about a small last host, the window begins with blocks of the host before that one. */
int32_t hosts_window(const hosts_layout *l, int32_t host, int32_t round) {
    const int32_t begin = host * l->each;
    if (is_small(l, host))
        return is_small(l, l->host) ? begin : begin - first_real(l);
    if (!is_small(l, l->host))
        return begin;
    return begin + (round == 0 ? first_real(l) : (round - 1) * l->last);
}

static uint64_t hash_text(uint64_t h, const char *text, size_t n) {
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
    h = hash_text(h, text, got > 0 ? (size_t)got : 0);
    got = readlink("/proc/self/ns/net", text, sizeof text);
    return hash_text(h, text, got > 0 ? (size_t)got : 0);
}

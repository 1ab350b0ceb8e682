/* SPDX-License-Identifier: BSD-3-Clause */
#include "link.h"

#include <stdlib.h>
#include <string.h>

enum { MILLION = 1000000, QUEUE_BYTES = 1 << 20, REORDER_US = 2000 };

void switch_link_init(switch_link *link, uint64_t seed) {
    memset(link, 0, sizeof *link);
    link->rules.queue_bytes = QUEUE_BYTES;
    link->rules.reorder_us = REORDER_US;
    link->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

/* Marsaglia's xorshift: the same faults in every run. */
static int happens(switch_link *link, int64_t ppm) {
    if (ppm <= 0)
        return 0;
    link->random ^= link->random << 13;
    link->random ^= link->random >> 7;
    link->random ^= link->random << 17;
    return (int64_t)((link->random >> 11) % MILLION) < ppm;
}

/* The end of its transmission; -1: the queue before it is too long. */
static int64_t transmit(switch_link *link, int64_t now_ns, size_t bytes) {
    const switch_rules *rules = &link->rules;
    if (rules->rate_kbit <= 0)
        return now_ns;
    int64_t begin_ns = link->free_ns > now_ns ? link->free_ns : now_ns;
    if ((begin_ns - now_ns) * rules->rate_kbit / (8 * MILLION) > rules->queue_bytes)
        return -1;
    link->free_ns = begin_ns + (int64_t)bytes * 8 * MILLION / rules->rate_kbit;
    return link->free_ns;
}

static int64_t leave(switch_link *link, int64_t now_ns, size_t bytes) {
    const switch_rules *rules = &link->rules;
    if (rules->cut || happens(link, rules->loss_ppm))
        return -1;
    int64_t sent_ns = transmit(link, now_ns, bytes);
    if (sent_ns < 0)
        return -1;
    int64_t late_us = happens(link, rules->reorder_ppm) ? rules->reorder_us : 0;
    return sent_ns + (rules->delay_us + late_us) * 1000;
}

int64_t switch_link_pass(switch_link *link, int64_t now_ns, size_t bytes) {
    int64_t due_ns = leave(link, now_ns, bytes);
    link->frames++;
    link->bytes += bytes;
    link->lost += due_ns < 0;
    return due_ns;
}

const char *switch_rules_set(switch_rules *rules, const char *word) {
    static const struct {
        const char *name;
        size_t offset;
        int64_t most;
    } keys[] = { { "cut=", offsetof(switch_rules, cut), 1 },
                 { "delay_us=", offsetof(switch_rules, delay_us), 60 * MILLION },
                 { "loss_ppm=", offsetof(switch_rules, loss_ppm), MILLION },
                 { "reorder_ppm=", offsetof(switch_rules, reorder_ppm), MILLION },
                 { "reorder_us=", offsetof(switch_rules, reorder_us), 60 * MILLION },
                 { "rate_kbit=", offsetof(switch_rules, rate_kbit), 100 * MILLION },
                 { "queue_bytes=", offsetof(switch_rules, queue_bytes), 1 << 30 } };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        size_t length = strlen(keys[i].name);
        if (strncmp(word, keys[i].name, length) != 0)
            continue;
        char *end;
        long long value = strtoll(word + length, &end, 10);
        if (end == word + length || *end || value < 0 || value > keys[i].most)
            return "no number in its range";
        *(int64_t *)(void *)((char *)rules + keys[i].offset) = value;
        return NULL;
    }
    return "no such rule";
}

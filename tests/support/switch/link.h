/* SPDX-License-Identifier: BSD-3-Clause */
/* One direction of a cable between two hosts: when a frame that enters it leaves it again, and whether. */
#ifndef SWITCH_LINK_H
#define SWITCH_LINK_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int64_t cut; /* 1: every frame is lost */
    int64_t delay_us;
    int64_t loss_ppm;    /* frames lost of a million */
    int64_t reorder_ppm; /* frames of a million that come reorder_us later than those behind them */
    int64_t reorder_us;
    int64_t rate_kbit;   /* a second; 0: no limit */
    int64_t queue_bytes; /* that wait for a limited rate; more are lost */
} switch_rules;

typedef struct {
    switch_rules rules;
    uint64_t random;
    int64_t free_ns; /* when the last frame has been sent at the limited rate */
    uint64_t frames, bytes, lost;
} switch_link;

/** No rules; the same seed loses and reorders the same frames. */
void switch_link_init(switch_link *, uint64_t seed);

/** When a frame that comes now leaves, in nanoseconds of the same clock; -1: it is lost. Counts it. */
int64_t switch_link_pass(switch_link *, int64_t now_ns, size_t bytes);

/** Takes "delay_us=5000" and the like. Null, or what is wrong with it. */
const char *switch_rules_set(switch_rules *, const char *word);
#endif

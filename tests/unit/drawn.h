/* SPDX-License-Identifier: BSD-3-Clause */
/* Numbers by chance, the same in each run. The high bits are taken, as the low ones repeat soon. */
#ifndef TEST_DRAWN_H
#define TEST_DRAWN_H
#include <stdint.h>

static inline unsigned drawn32(unsigned *chance, unsigned below) {
    *chance = *chance * 1664525u + 1013904223u;
    return (*chance >> 8) % below;
}

static inline uint64_t drawn64(uint64_t *chance, uint64_t below) {
    *chance = *chance * 6364136223846793005u + 1442695040888963407u;
    return (*chance >> 33) % below;
}
#endif

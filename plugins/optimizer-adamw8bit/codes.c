/* SPDX-License-Identifier: BSD-3-Clause */
#include "codes.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Each of the seven decades below 1 has twice the values of the next lower one. Its values are the middles of equal
 * parts from 0.1 to 1 of it. Signed codes have half as many magnitudes. 0 and 1 are values too. */
static void make_values(codes *c, int is_signed) {
    static const double decade[] = { 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1 };
    int n = 0;
    for (int i = 0; i < 7; i++) {
        int parts = (is_signed ? 1 : 2) << i;
        for (int j = 0; j < parts; j++) {
            double value = decade[i] * (0.1 + 0.9 * (j + 0.5) / parts);
            c->value[n++] = (float)value;
            if (is_signed)
                c->value[n++] = (float)-value;
        }
    }
    c->value[n++] = 0;
    c->value[n++] = 1;
    qsort(c->value, CODES, sizeof c->value[0], ascending);
}

static uint8_t slowly(const codes *c, float x) {
    int code = 0;
    while (x > c->middle[code])
        code++;
    return (uint8_t)code;
}

/* Returns the least magnitude in a bin. */
static float bin_begins(uint32_t bin) {
    uint32_t bits = (((127u - OCTAVES) << 6) + bin) << 17;
    float x;
    memcpy(&x, &bits, 4);
    return bin ? x : 0;
}

void codes_make(codes *c, int is_signed) {
    make_values(c, is_signed);
    for (int i = 0; i < CODES - 1; i++)
        c->middle[i] = (float)(((double)c->value[i] + (double)c->value[i + 1]) / 2);
    c->middle[CODES - 1] = INFINITY;
    for (uint32_t bin = 0; bin < BINS; bin++) {
        c->positive[bin] = slowly(c, bin_begins(bin));
        c->negative[bin] = slowly(c, -bin_begins(bin + 1));
    }
}

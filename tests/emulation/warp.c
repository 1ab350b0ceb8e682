/* SPDX-License-Identifier: BSD-3-Clause */
/* What the lanes of a warp do together: emulator.h. By the layouts of PTX, from its manual and not from
 * attention_tile.h. Compiled without sanitizers: lanes look at each other's registers. */
#include "emulator.h"

#include "kit/formulas.h"

enum { LANES = 32 };

/* ---- shuffle -------------------------------------------------------------------------------------- */
typedef struct {
    float x, y;
    int apart;
} shuffle;

static void do_shuffle(void *const lanes[LANES]) {
    for (int i = 0; i < LANES; i++) {
        shuffle *s = lanes[i];
        s->y = ((shuffle *)lanes[i ^ s->apart])->x;
    }
}

float emulated_shuffle_xor(float x, int apart) {
    shuffle s = { x, 0, apart };
    emulated_together(do_shuffle, &s);
    return s.y;
}

/* ---- product -------------------------------------------------------------------------------------- */
typedef struct {
    float *c;
    const uint32_t *a, *b;
    int f16;
} product;

static float half_of(const product *p, const uint32_t *r, int e) {
    const uint16_t half = (uint16_t)(r[e / 2] >> 16 * (e % 2));
    return p->f16 ? tess_f32_of_f16(half) : tess_f32_of_bf16(half);
}

/* A lane has of a, for e = 0 … 7: row g, or g + 8 where e is 2, 3, 6, 7; column 2t + e mod 2, and 8 more from e = 4 on.
 */
static void spread_a(void *const lanes[LANES], float a[16][16]) {
    for (int i = 0; i < LANES; i++)
        for (int e = 0; e < 8; e++)
            a[i / 4 + (e & 2 ? 8 : 0)][i % 4 * 2 + (e & 1) + (e & 4 ? 8 : 0)] =
                half_of(lanes[i], ((product *)lanes[i])->a, e);
}
/* Of b: column g; row 2t + e mod 2, and 8 more from e = 2 on. */
static void spread_b(void *const lanes[LANES], float b[16][8]) {
    for (int i = 0; i < LANES; i++)
        for (int e = 0; e < 4; e++)
            b[i % 4 * 2 + (e & 1) + (e & 2 ? 8 : 0)][i / 4] = half_of(lanes[i], ((product *)lanes[i])->b, e);
}

/* Of c: row g, and 8 more from e = 2 on; column 2t + e mod 2. */
static void do_product(void *const lanes[LANES]) {
    float a[16][16], b[16][8];
    spread_a(lanes, a);
    spread_b(lanes, b);
    for (int i = 0; i < LANES; i++)
        for (int e = 0; e < 4; e++) {
            int row = i / 4 + (e & 2 ? 8 : 0), column = i % 4 * 2 + (e & 1);
            float sum = 0;
            for (int k = 0; k < 16; k++)
                sum += a[row][k] * b[k][column];
            ((product *)lanes[i])->c[e] += sum;
        }
}

void emulated_multiply(float *c, const uint32_t *a, const uint32_t *b, int f16) {
    product p = { c, a, b, f16 };
    emulated_together(do_product, &p);
}

/* ---- rows ----------------------------------------------------------------------------------------- */
typedef struct {
    const uint16_t *mine, **rows;
} of_rows;

static void do_rows(void *const lanes[LANES]) {
    for (int i = 0; i < LANES; i++)
        for (int k = 0; k < LANES; k++)
            ((of_rows *)lanes[i])->rows[k] = ((of_rows *)lanes[k])->mine;
}

void emulated_rows(const uint16_t *mine, const uint16_t **rows) {
    of_rows r = { mine, rows };
    emulated_together(do_rows, &r);
}

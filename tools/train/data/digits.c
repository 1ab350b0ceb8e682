/* SPDX-License-Identifier: BSD-3-Clause */
#include "digits.h"

#include <math.h>

#include "random.h"

/* Each digit is a few arcs and lines in a box 1 wide and 1.4 high, y downwards. A line is {x0, y0, x1, y1}. An arc is
 * an ellipse's centre, its radii, and two angles in eighths of a turn clockwise from the right. */
typedef struct {
    enum { END, LINE, ARC } kind;
    float a, b, c, d, from, to;
} stroke;

static const stroke glyphs[10][5] = {
    { { ARC, .5f, .7f, .42f, .66f, 0, 8 } },
    { { LINE, .3f, .3f, .55f, .05f, 0, 0 }, { LINE, .55f, .05f, .55f, 1.35f, 0, 0 } },
    { { ARC, .5f, .42f, .38f, .38f, 4, 8.8f },
      { LINE, .78f, .67f, .12f, 1.35f, 0, 0 },
      { LINE, .12f, 1.35f, .9f, 1.35f, 0, 0 } },
    { { ARC, .46f, .38f, .36f, .34f, 4.6f, 10 }, { ARC, .46f, 1.02f, .4f, .34f, 6, 11.5f } },
    { { LINE, .62f, .05f, .1f, .9f, 0, 0 },
      { LINE, .1f, .9f, .92f, .9f, 0, 0 },
      { LINE, .66f, .5f, .66f, 1.38f, 0, 0 } },
    { { LINE, .82f, .06f, .25f, .06f, 0, 0 },
      { LINE, .25f, .06f, .2f, .62f, 0, 0 },
      { ARC, .46f, .95f, .4f, .4f, 5.2f, 11.4f } },
    { { ARC, .75f, .8f, .65f, .75f, 4, 6 }, { ARC, .5f, .97f, .38f, .38f, 0, 8 } },
    { { LINE, .1f, .07f, .88f, .07f, 0, 0 }, { LINE, .88f, .07f, .38f, 1.36f, 0, 0 } },
    { { ARC, .5f, .37f, .31f, .32f, 0, 8 }, { ARC, .5f, 1.03f, .38f, .34f, 0, 8 } },
    { { ARC, .48f, .42f, .36f, .37f, 0, 8 }, { LINE, .84f, .42f, .7f, 1.36f, 0, 0 } },
};

enum { DRAW_LABEL, DRAW_SHAPE, DRAW_NOISE };
enum { PIECES = 24, SIDE = TOOL_DIGITS_SIDE };

typedef struct {
    float m[2][2], shift[2], radius; /* box coordinates to pixels; half the stroke's width */
    float wobble[2];
} pen;

unsigned char tool_digits_label(uint64_t seed, uint64_t index) {
    return (unsigned char)(10 * tool_uniform(seed, index, DRAW_LABEL, 0));
}

static float between(uint64_t seed, uint64_t index, uint32_t k, float low, float high) {
    return low + (high - low) * tool_uniform(seed, index, DRAW_SHAPE, k);
}

static pen pen_draw(uint64_t seed, uint64_t index) {
    float turn = between(seed, index, 0, -0.26f, 0.26f), slant = between(seed, index, 1, -0.25f, 0.25f);
    float width = between(seed, index, 2, 10.f, 16.f), height = between(seed, index, 3, 12.f, 15.f);
    float c = cosf(turn), s = sinf(turn);
    pen p = { .m = { { c * width, (c * slant - s) * height }, { s * width, (s * slant + c) * height } },
              .shift = { 14 + between(seed, index, 4, -2, 2), 14 + between(seed, index, 5, -2, 2) },
              .radius = between(seed, index, 6, 0.8f, 1.7f),
              .wobble = { between(seed, index, 7, -0.08f, 0.08f), between(seed, index, 8, -0.08f, 0.08f) } };
    return p;
}

static void point(const pen *p, const stroke *s, float t, float out[2]) {
    float x, y;
    if (s->kind == LINE) {
        x = s->a + (s->c - s->a) * t;
        y = s->b + (s->d - s->b) * t;
    } else {
        float angle = (s->from + (s->to - s->from) * t) * 0.78539816f;
        x = s->a + s->c * cosf(angle);
        y = s->b + s->d * sinf(angle);
    }
    /* A slow wave along the other axis bends straight lines as a hand does. */
    x += p->wobble[0] * sinf(4 * y) - 0.5f;
    y += p->wobble[1] * sinf(4 * x) - 0.7f;
    out[0] = p->m[0][0] * x + p->m[0][1] * y + p->shift[0];
    out[1] = p->m[1][0] * x + p->m[1][1] * y + p->shift[1];
}

static float distance2(const float from[2], const float to[2], float x, float y) {
    float dx = to[0] - from[0], dy = to[1] - from[1], length2 = dx * dx + dy * dy;
    float t = length2 > 0 ? ((x - from[0]) * dx + (y - from[1]) * dy) / length2 : 0;
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    dx = from[0] + t * dx - x;
    dy = from[1] + t * dy - y;
    return dx * dx + dy * dy;
}

/* Darkens the pixels near one straight piece, with a soft edge one pixel wide. */
static void draw_piece(const pen *p, const float from[2], const float to[2], float *ink) {
    float reach = p->radius + 1;
    int x0 = (int)floorf(fminf(from[0], to[0]) - reach), x1 = (int)ceilf(fmaxf(from[0], to[0]) + reach);
    int y0 = (int)floorf(fminf(from[1], to[1]) - reach), y1 = (int)ceilf(fmaxf(from[1], to[1]) + reach);
    for (int y = y0 < 0 ? 0 : y0; y <= y1 && y < SIDE; y++)
        for (int x = x0 < 0 ? 0 : x0; x <= x1 && x < SIDE; x++) {
            float edge = p->radius + 0.5f - sqrtf(distance2(from, to, (float)x + 0.5f, (float)y + 0.5f));
            edge = edge < 0 ? 0 : edge > 1 ? 1 : edge;
            if (edge > ink[y * SIDE + x])
                ink[y * SIDE + x] = edge;
        }
}

void tool_digits_draw(uint64_t seed, uint64_t index, unsigned char *pixels) {
    float ink[SIDE * SIDE] = { 0 };
    pen p = pen_draw(seed, index);
    for (const stroke *s = glyphs[tool_digits_label(seed, index)]; s->kind != END; s++) {
        int pieces = s->kind == LINE ? 6 : PIECES;
        float from[2], to[2];
        point(&p, s, 0, from);
        for (int i = 1; i <= pieces; i++) {
            point(&p, s, (float)i / (float)pieces, to);
            draw_piece(&p, from, to, ink);
            from[0] = to[0];
            from[1] = to[1];
        }
    }
    float dark = between(seed, index, 9, 170, 255);
    for (uint32_t i = 0; i < SIDE * SIDE; i += 4) {
        philox_block bits = philox(seed, (uint32_t)index, (uint32_t)(index >> 32), DRAW_NOISE, i);
        for (uint32_t k = 0; k < 4; k++) {
            float value = dark * ink[i + k] + 40 * ((float)(bits.v[k] >> 8) * 0x1p-24f - 0.5f);
            pixels[i + k] = (unsigned char)(value < 0 ? 0 : value > 255 ? 255 : value);
        }
    }
}

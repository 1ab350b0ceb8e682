/* SPDX-License-Identifier: BSD-3-Clause */
/* Kernels that make the factors of a product in fp8 (fp8_formulas.h): one finds the largest magnitudes, one writes
 * codes. Sides of all matrices are multiples of 16, so that rows are whole vectors as they are and turned. */
#ifndef TESS_MODELS_CUDA_KERNELS_FP8_H
#define TESS_MODELS_CUDA_KERNELS_FP8_H
#include "kernels_layer.h"

enum { OPS_FP8_PIECES = 3, OPS_FP8_PARTS = 512 /* blocks that share the search for a maximum */ };
enum { OPS_FP8_FEW = 2048 /* numbers of a writer's blocks that each block of codes reads itself */ };
enum { OPS_FP8_TILE = 128, OPS_FP8_PITCH = OPS_FP8_TILE / 4 + 1 /* words, so that columns lie in other banks */ };
typedef struct { /* matrices of `width` columns in bf16, which lie behind each other as codes and have one scale */
    const void *from[OPS_FP8_PIECES];
    uint64_t rows[OPS_FP8_PIECES]; /* 0: none */
    uint64_t width, all;           /* all: rows of all */
    uint8_t *to, *turned;          /* [all, width] and [width, all]; null: not wanted */
    float *inverse;                /* gets 1 / the scale, which a product multiplies by */
    uint32_t *parts;               /* maxima, of the blocks that search or of those of the writer */
    const uint32_t *found;         /* null, or n_found maxima of the writer's blocks, among which is sought */
    uint32_t n_found, n_parts;
    uint32_t seekers, blocks; /* blocks that search, and that write codes */
    int32_t e5m2;
} ops_cuda_fp8;
typedef struct {
    ops_cuda_fp8 of[2];
} ops_args_fp8_most;
typedef ops_args_fp8_most ops_args_fp8_codes;

/* ---- the largest magnitude ------------------------------------------------------------------------ */
TESS_FN uint32_t ops_fp8_largest(const uint32_t *of, uint32_t n, uint32_t first, uint32_t step) {
    uint32_t most = 0;
    for (uint32_t i = first; i < n; i += step)
        most = of[i] > most ? of[i] : most;
    return most;
}
TESS_FN uint32_t ops_fp8_search(const ops_cuda_fp8 *f, uint64_t first) {
    const uint64_t step = (uint64_t)f->n_parts * OPS_BLOCK * 8;
    uint32_t most = 0;
    for (int p = 0; p < OPS_FP8_PIECES; p++) {
        uint64_t n = f->rows[p] * f->width, i = first;
        OPS_ROLLED for (; i + 3 * step < n; i += 4 * step) {
            float v[4][8];
            for (int k = 0; k < 4; k++)
                ops_get_eight(f->from[p], i + (uint64_t)k * step, 8, 1, 1, v[k]);
            for (int k = 0; k < 4; k++)
                most = ops_fp8_larger(most, v[k]);
        }
        OPS_ROLLED for (; i < n; i += step) {
            float v[8];
            ops_get_eight(f->from[p], i, 8, 1, 1, v);
            most = ops_fp8_larger(most, v);
        }
    }
    return most;
}
OPS_BODY(fp8_most) {
    int second = block >= a->of[0].seekers;
    const ops_cuda_fp8 *f = &a->of[second];
    uint32_t part = second ? block - a->of[0].seekers : block, first = part * OPS_BLOCK + thread;
    if (phase == 0 && f->found)
        room[thread] = (double)ops_fp8_largest(f->found, f->n_found, first, f->seekers * OPS_BLOCK);
    else if (phase == 0)
        room[thread] = (double)ops_fp8_search(f, (uint64_t)first * 8);
    else if (phase == 1)
        ops_fp8_gather(room, thread);
    else if (thread == 0)
        f->parts[part] = ops_fp8_of_room(room);
}

/* ---- codes: a block has a tile of 128 x 128 ------------------------------------------------------- */
enum { OPS_FP8_ROOM = OPS_BLOCK * 2 /* words before the tile: the maxima */ };
TESS_FN void ops_fp8_put_word(void *to, uint64_t i, uint32_t word) {
#if defined(__CUDA_ARCH__)
    ((uint32_t *)to)[i] = word;
#else
    memcpy((char *)to + 4 * i, &word, sizeof word);
#endif
}
TESS_FN uint32_t ops_fp8_word(const void *from, uint64_t i) {
#if defined(__CUDA_ARCH__)
    return ((const uint32_t *)from)[i];
#else
    uint32_t word;
    memcpy(&word, (const char *)from + 4 * i, sizeof word);
    return word;
#endif
}
/* Writes two or four words; their address is a multiple of their bytes. */
TESS_FN void ops_fp8_put_words(uint8_t *to, const uint32_t *w, int n) {
#if defined(__CUDA_ARCH__)
    if (n == 4) {
        uint4 four = { w[0], w[1], w[2], w[3] };
        *(uint4 *)to = four;
    } else {
        uint2 two;
        two.x = w[0], two.y = w[1];
        *(uint2 *)to = two;
    }
#else
    memcpy(to, w, (size_t)n * sizeof *w);
#endif
}

typedef struct { /* a tile: from row `row` and column `column` of a piece, which begins at row `before` of all */
    const void *from;
    uint64_t rows, before, row, column;
} ops_fp8_tile;
TESS_FN ops_fp8_tile ops_fp8_tile_of(const ops_cuda_fp8 *f, uint64_t block) {
    uint64_t across = (f->width + OPS_FP8_TILE - 1) / OPS_FP8_TILE;
    ops_fp8_tile t = { f->from[0], f->rows[0], 0, 0, 0 };
    for (int p = 0; p < OPS_FP8_PIECES; p++) {
        uint64_t n = (f->rows[p] + OPS_FP8_TILE - 1) / OPS_FP8_TILE * across;
        if (block < n) {
            t.from = f->from[p], t.rows = f->rows[p];
            t.row = ops_div(block, across) * OPS_FP8_TILE, t.column = ops_mod(block, across) * OPS_FP8_TILE;
            return t;
        }
        block -= n, t.before += f->rows[p];
    }
    t.rows = 0; /* no such block */
    return t;
}

/* A thread has four rows of eight columns at a time: each is a word of codes turned, and each row two as it is. */
TESS_FN void ops_fp8_unit(const ops_cuda_fp8 *f, const ops_fp8_tile *t, uint32_t unit, float scale, double *room) {
    uint32_t across = unit % 16 * 8, down = unit / 16 * 4, words[4][2], turned[8] = { 0 };
    uint64_t row = t->row + down, column = t->column + across;
    float v[4][8];
    if (row >= t->rows || column >= f->width)
        return;
    for (uint64_t r = 0; r < 4; r++)
        ops_get_eight(t->from, (row + r) * f->width + column, 8, 1, 1, v[r]);
    for (int r = 0; r < 4; r++) {
        words[r][0] = words[r][1] = 0;
        for (int k = 0; k < 8; k++) {
            uint32_t code = fp8_code(v[r][k], scale, f->e5m2);
            words[r][k / 4] |= code << k % 4 * 8;
            turned[k] |= code << r * 8;
        }
    }
    for (uint32_t k = 0; f->turned && k < 8; k++)
        ops_fp8_put_word(room, OPS_FP8_ROOM + (across + k) * OPS_FP8_PITCH + down / 4, turned[k]);
    for (uint64_t r = 0; f->to && r < 4; r++)
        ops_fp8_put_words(f->to + (t->before + row + r) * f->width + column, words[r], 2);
}
/* Sixteen codes of a column, as it is turned. */
TESS_FN void ops_fp8_turned(const ops_cuda_fp8 *f, const ops_fp8_tile *t, uint32_t piece, const double *room) {
    uint32_t down = piece % 8 * 16, across = piece / 8, w[4];
    if (t->row + down >= t->rows || t->column + across >= f->width)
        return;
    for (uint32_t k = 0; k < 4; k++)
        w[k] = ops_fp8_word(room, OPS_FP8_ROOM + across * OPS_FP8_PITCH + down / 4 + k);
    ops_fp8_put_words(f->turned + (t->column + across) * f->all + t->before + t->row + down, w, 4);
}
OPS_BODY(fp8_codes) {
    int second = block >= a->of[0].blocks;
    const ops_cuda_fp8 *f = &a->of[second];
    uint32_t number = second ? block - a->of[0].blocks : block;
    const ops_fp8_tile t = ops_fp8_tile_of(f, number);
    if (phase == 0) {
        room[thread] = (double)ops_fp8_largest(f->parts, f->n_parts, thread, OPS_BLOCK);
    } else if (phase == 1) {
        ops_fp8_gather(room, thread);
    } else if (phase == 2) {
        float scale = fp8_scale(ops_fp8_of_room(room), f->e5m2);
        if (number == 0 && thread == 0)
            *f->inverse = fp8_inverse(scale);
        OPS_ROLLED for (uint32_t unit = thread; unit < OPS_FP8_TILE / 4 * (OPS_FP8_TILE / 8); unit += OPS_BLOCK)
            ops_fp8_unit(f, &t, unit, scale, room);
    } else if (f->turned) {
        for (uint32_t piece = thread; piece < OPS_FP8_TILE * (OPS_FP8_TILE / 16); piece += OPS_BLOCK)
            ops_fp8_turned(f, &t, piece, room);
    }
}
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#include "stored.h"

#include "parallel.h"
#include "stored_formulas.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t dtype;
} kinds[STORED_KINDS] = {
    [STORED_F32] = { "f32", TESS_F32 },  [STORED_BF16] = { "bf16", TESS_BF16 }, [STORED_F16] = { "f16", TESS_F16 },
    [STORED_INT8] = { "int8", TESS_U8 }, [STORED_NF4] = { "nf4", TESS_U8 },
};

const char *stored_name(uint32_t kind) {
    return kinds[kind].name;
}

int stored_find(const char *name, uint32_t *kind) {
    for (uint32_t i = 0; i < STORED_KINDS; i++)
        if (strcmp(kinds[i].name, name) == 0) {
            *kind = i;
            return 1;
        }
    return 0;
}

uint32_t stored_dtype(uint32_t kind) {
    return kinds[kind].dtype;
}

/* ---- blocks ------------------------------------------------------------------------------------------ */
/* Returns the number of the nearest value; between two equally near, the lower. */
static uint8_t nf4_code(float x) {
    uint8_t code = 0;
    while (code < 15 && x > (stored_nf4(code) + stored_nf4(code + 1u)) * 0.5f)
        code++;
    return code;
}

void stored_pack(uint32_t kind, const float x[STORED_BLOCK], uint8_t *block) {
    float most = 0, codes = kind == STORED_NF4 ? 1.0f : 127.0f;
    for (int i = 0; i < STORED_BLOCK; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    memcpy(block, &most, sizeof most);
    block += sizeof most;
    for (int i = 0; i < STORED_BLOCK; i++) {
        float part = most > 0 ? x[i] / most * codes : 0;
        if (kind == STORED_INT8)
            block[i] = (uint8_t)((int)lrintf(part) + 128);
        else if (i % 2 == 0)
            block[i / 2] = (uint8_t)(nf4_code(part) << 4);
        else
            block[i / 2] = (uint8_t)(block[i / 2] | nf4_code(part));
    }
}

/* Reads n elements from element `first` of one block. */
static void read_block(uint32_t kind, const uint8_t *block, int64_t first, int64_t n, float *out) {
    float most;
    memcpy(&most, block, sizeof most);
    block += sizeof most;
    for (int64_t i = first; kind == STORED_INT8 && i < first + n; i++)
        out[i - first] = stored_int8(block[i], most);
    for (int64_t i = first; kind == STORED_NF4 && i < first + n; i++)
        out[i - first] = stored_nf4(stored_nf4_code(block[i / 2], i % 2)) * most;
}

static void read_blocks(uint32_t kind, const uint8_t *from, int64_t first, int64_t n, float *out) {
    while (n > 0) {
        int64_t at = first % STORED_BLOCK, some = STORED_BLOCK - at < n ? STORED_BLOCK - at : n;
        read_block(kind, from + first / STORED_BLOCK * stored_block_bytes(kind), at, some, out);
        first += some, n -= some, out += some;
    }
}

/* ---- a matrix ---------------------------------------------------------------------------------------- */
void stored_read(uint32_t kind, const void *from, int64_t first, int64_t n, float *out) {
    const uint16_t *halves = from;
    if (stored_in_blocks(kind))
        read_blocks(kind, from, first, n, out);
    else if (kind == STORED_F32)
        memcpy(out, (const float *)from + first, (size_t)n * sizeof *out);
    else if (kind == STORED_BF16)
        for (int64_t i = 0; i < n; i++)
            out[i] = tess_f32_of_bf16(halves[first + i]);
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = tess_f32_of_f16(halves[first + i]);
}

typedef struct {
    uint32_t kind, dtype;
    const void *from;
    void *out;
} widening;

enum { AT_ONCE = 16 * STORED_BLOCK };

OPS_CLONES static void widen_range(void *arg, int32_t thread, int64_t first, int64_t last) {
    const widening w = *(const widening *)arg;
    float part[AT_ONCE];
    (void)thread;
    for (int64_t i = first; i < last; i += AT_ONCE) {
        int64_t n = last - i < AT_ONCE ? last - i : AT_ONCE;
        if (w.dtype == TESS_F32) {
            stored_read(w.kind, w.from, i, n, (float *)w.out + i);
            continue;
        }
        stored_read(w.kind, w.from, i, n, part);
        for (int64_t k = 0; k < n; k++)
            ((uint16_t *)w.out)[i + k] = w.dtype == TESS_F16 ? tess_f16_of_f32(part[k]) : tess_bf16_of_f32(part[k]);
    }
}

void stored_widen(const ops *o, uint32_t kind, const void *from, int64_t elems, uint32_t dtype, void *out) {
    widening w = { kind, dtype, from, out };
    ops_parallel(o, elems, AT_ONCE, widen_range, &w);
}

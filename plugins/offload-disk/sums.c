/* SPDX-License-Identifier: BSD-3-Clause */
/* A sum of each piece of the store, so that a piece which comes back another is found. */
#include "store.h"

enum { LANES = 4, WORDS = DISK_ALIGN / 8 };

/* Each word is taken in by a step that loses nothing, so that any single word that differs shows. The place counts,
 * too: a piece that comes from elsewhere is another. Never 0. */
static uint32_t sum_of(const char *piece, uint64_t number) {
    const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t lane[LANES] = { number, ~number, number + odd, number ^ odd }, word[LANES];
    for (int i = 0; i < WORDS; i += LANES) {
        memcpy(word, piece + 8 * i, sizeof word);
        for (int k = 0; k < LANES; k++) {
            lane[k] = (lane[k] ^ word[k]) * odd;
            lane[k] ^= lane[k] >> 32;
        }
    }
    uint64_t sum = ((lane[0] * 3 + lane[1]) * 5 + lane[2]) * 7 + lane[3];
    sum = (sum ^ sum >> 29) * odd;
    return (uint32_t)(sum >> 32) ? (uint32_t)(sum >> 32) : 1;
}

static int is_zero(const char *piece) {
    static const char zero[DISK_ALIGN];
    return memcmp(piece, zero, sizeof zero) == 0;
}

uint64_t disk_sums_bytes(uint64_t stored_bytes) {
    return (stored_bytes + DISK_ALIGN - 1) / DISK_ALIGN * sizeof(uint32_t);
}

void disk_sums_note(const disk_sums *s, const disk_block *b) {
    for (uint64_t done = 0; s->of && done < b->bytes; done += DISK_ALIGN)
        s->of[(b->at + done) / DISK_ALIGN] = sum_of(b->memory + done, (b->at + done) / DISK_ALIGN);
}

tess_status disk_sums_check(const disk_sums *s, const disk_file *f, const disk_block *b, tess_error *error) {
    for (uint64_t done = 0; s->of && done < b->bytes; done += DISK_ALIGN) {
        uint64_t number = (b->at + done) / DISK_ALIGN;
        if (s->of[number] ? s->of[number] != sum_of(b->memory + done, number) : !is_zero(b->memory + done))
            return tess_plugin_fail(
                error, TESS_E_DATA,
                "the file of rank %d in %.100s, offset %llu: what is read there is not what was written", (int)f->rank,
                f->dir, (unsigned long long)(b->at + done));
    }
    return TESS_OK;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* All that the operators of a decoder on the CPU need: products, tiles, angles. */
#include "decoder.h"
#include <tessera/tessera.h>

#include <math.h>
#include <stdlib.h>

/* ---- rotary positions -------------------------------------------------------------------------------- */
static tess_status make_turns(decoder *d) {
    int64_t half = d->size / 2;
    if (!d->rotary)
        return TESS_OK;
    d->turns = malloc((size_t)(d->time * d->size) * sizeof *d->turns);
    if (!d->turns)
        return tess_fail(TESS_E_NOMEM, "out of memory for %lld positions", (long long)d->time);
    for (int64_t i = 0; i < half; i++) {
        double frequency = decoder_frequency(d, i);
        for (int64_t t = 0; t < d->time; t++) {
            d->turns[t * d->size + i] = (float)cos((double)t * frequency);
            d->turns[t * d->size + half + i] = (float)sin((double)t * frequency);
        }
    }
    return TESS_OK;
}

/* ---- the whole --------------------------------------------------------------------------------------- */
tess_status decoder_host_create(model *m) {
    decoder *d = m->own;
    OPS_TRY(decoder_linears_create(d, d->chunk_rows, d->head_rows, 1, &d->p));
    OPS_TRY(decoder_tiles_create(d));
    return make_turns(d);
}

void decoder_host_destroy(model *m) {
    decoder *d = m->own;
    decoder_sequence_end(m);
    decoder_linears_destroy(d, &d->p);
    decoder_tiles_destroy(d->tiles);
    free(d->turns);
}

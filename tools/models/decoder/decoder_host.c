/* SPDX-License-Identifier: BSD-3-Clause */
/* Makes what the operators of a decoder on the CPU need: products, tiles and angles. */
#include "decoder.h"
#include <tessera/tessera.h>

#include <math.h>
#include <stdlib.h>

/* ---- rotary positions -------------------------------------------------------------------------------- */
static tess_status make_turns(decoder *d, int nearness) {
    int64_t half = d->size / 2;
    float *turns = malloc((size_t)(d->time * d->size) * sizeof *turns), scale = (float)decoder_turn_scale(d, nearness);
    if (!turns)
        return tess_fail(TESS_E_NOMEM, "out of memory for %lld positions", (long long)d->time);
    d->sights[nearness].turns = turns;
    for (int64_t i = 0; i < half; i++) {
        double frequency = decoder_frequency(d, nearness, i);
        for (int64_t t = 0; t < d->time; t++) {
            turns[t * d->size + i] = scale * (float)cos((double)t * frequency);
            turns[t * d->size + half + i] = scale * (float)sin((double)t * frequency);
        }
    }
    return TESS_OK;
}

static tess_status make_all_turns(decoder *d) {
    if (!d->rotary)
        return TESS_OK;
    OPS_TRY(make_turns(d, DECODER_FAR));
    if (!decoder_turns_alike(d))
        return make_turns(d, DECODER_NEAR);
    d->sights[DECODER_NEAR].turns = d->sights[DECODER_FAR].turns;
    return TESS_OK;
}

/* ---- create and destroy ------------------------------------------------------------------------------------- */
tess_status decoder_host_create(model *m) {
    decoder *d = m->own;
    OPS_TRY(decoder_linears_create(d, d->chunk_rows, d->head_rows, 1, &d->p));
    OPS_TRY(decoder_tiles_create(d));
    return make_all_turns(d);
}

void decoder_host_destroy(model *m) {
    decoder *d = m->own;
    decoder_sequence_end(m);
    decoder_linears_destroy(d, &d->p);
    decoder_tiles_destroy(d->tiles);
    if (d->sights[DECODER_NEAR].turns != d->sights[DECODER_FAR].turns)
        free(d->sights[DECODER_NEAR].turns);
    free(d->sights[DECODER_FAR].turns);
}

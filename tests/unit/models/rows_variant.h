/* SPDX-License-Identifier: BSD-3-Clause */
/* The rows of decoders, compiled for one instruction set. */
#ifndef ROWS_VARIANT_H
#define ROWS_VARIANT_H
#include "tools/models/decoder/decoder.h"

typedef struct {
    void (*norm)(const decoder *, const decoder_norm_of *, void *);
    void (*norm_backward)(const decoder *, const decoder_norm_of *, const void *, const void *, void *, float *,
                          float *);
    void (*act)(const decoder *, const void *, const void *, void *, int64_t);
    void (*act_backward)(const decoder *, const void *, const void *, void *, void *, int64_t);
    void (*add)(const decoder *, const void *, void *, int64_t);
    void (*bias_backward)(const decoder *, const void *, float *, int64_t, int64_t);
    void (*dropout)(const decoder *, void *, int64_t, int64_t, const ops_dropout *);
    void (*rope)(const decoder *, const decoder_sight *, void *, int64_t, int);
    void (*rope_one)(const decoder *, const decoder_sight *, void *, int64_t);
    void (*embedding)(const decoder *, const int32_t *, const int32_t *, const void *, const void *, void *);
    void (*embedding_one)(const decoder *, int32_t, int64_t, const void *, const void *, void *);
    void (*embedding_backward)(const decoder *, const int32_t *, const int32_t *, const void *, float *, float *);
    void (*loss)(const decoder *, const float *, const int32_t *, int64_t, double *, uint8_t *);
    void (*loss_backward)(const decoder *, float *, const int32_t *, int64_t, int64_t, float, uint16_t *);
    tess_status (*tiles_create)(decoder *);
    void (*tiles_destroy)(decoder_tiles *);
    void (*cap)(const decoder *, float *, int64_t);
    tess_status (*attention)(const decoder *, const decoder_sight *, int64_t, const int32_t *, const void *, void *,
                             float *, const decoder_attention_scratch *);
    tess_status (*attention_backward)(const decoder *, const decoder_sight *, int64_t, const int32_t *, const void *,
                                      const void *, const float *, const void *, void *,
                                      const decoder_attention_scratch *);
} rows_functions;
#endif

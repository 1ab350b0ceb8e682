/* SPDX-License-Identifier: BSD-3-Clause */
/* Products that share an input, on a device: which of them are one. */
#include "device.h"

device_beside device_as_few(const decoder *d, const device_beside *b, const void *const *at, uint64_t elem) {
    if (decoder_widens(d, d->m->options.lora.matrices))
        return *b;
    for (int32_t i = 1; i < b->n; i++) {
        const char *before = at[d->at[b->place[i - 1]]];
        if (!before || before + (uint64_t)(b->width[i - 1] * b->inputs) * elem != at[d->at[b->place[i]]])
            return *b;
    }
    return (device_beside){ 1, { b->place[0] }, b->inputs, { b->all }, b->all, { b->bias[0] } };
}

int device_is_one_bias(const decoder_chunk *c, const device_beside *b) {
    for (int32_t i = 1; i < b->n; i++) {
        const char *before = decoder_weight(c, b->bias[i - 1]), *bias = decoder_weight(c, b->bias[i]);
        if (bias && before + (uint64_t)b->width[i - 1] * c->d->elem != bias)
            return 0;
    }
    return 1;
}

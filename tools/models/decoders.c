/* SPDX-License-Identifier: BSD-3-Clause */
/* The decoders gpt, gpt2 and llama: which options they take, and who makes them and their sequences. On the CPU it is
 * decoder/, on a device gpt.c. */
#include "decoder/decoder.h"
#include "gpt.h"
#include <tessera/tessera.h>

static int on_host(const model *m) {
    return m->o->t->mem == TESS_MEM_HOST;
}

static tess_status build(model *m) {
    return on_host(m) ? decoder_build(m) : gpt_build(m);
}

static void release(model *m) {
    if (on_host(m))
        decoder_release(m);
    else
        gpt_release(m);
}

/* ---- a sequence -------------------------------------------------------------------------------------- */
tess_status model_sequence_begin(model *m, uint64_t *bytes) {
    if (!m->is_decoder && !m->is_native)
        return tess_fail(TESS_E_UNSUPPORTED, "%s on %s keeps no keys and values", m->t->name, m->o->t->name);
    return on_host(m) ? decoder_sequence_begin(m, bytes) : gpt_sequence_begin(m, bytes);
}

void model_sequence_end(model *m) {
    if (m->is_decoder)
        decoder_sequence_end(m);
    if (m->is_native)
        gpt_sequence_end(m);
}

/* ---- gpt: over bytes --------------------------------------------------------------------------------- */
static tess_status check_gpt(const model_options *o) {
    if (o->layers < 1 || o->layers > 1000)
        return tess_fail(TESS_E_INVALID, "layers %d: expected 1 to 1000", o->layers);
    if (o->width < 1 || o->width > 65536)
        return tess_fail(TESS_E_INVALID, "width %d: expected 1 to 65536", o->width);
    if (o->heads < 1 || o->width % o->heads)
        return tess_fail(TESS_E_INVALID, "heads %d: expected a divisor of width %d", o->heads, o->width);
    if (o->context < 1 || (int64_t)o->context * o->batch > 1 << 24)
        return tess_fail(TESS_E_INVALID, "context %d with batch %d: expected 1 to %d positions in a batch", o->context,
                         o->batch, 1 << 24);
    return TESS_OK;
}

const model_ops model_gpt = {
    .name = "gpt",
    .defaults = { .batch = 6, .layers = 4, .heads = 4, .width = 128, .context = 64 },
    .optimizer_groups = 2,
    .check = check_gpt,
    .check_batch = decoder_batch_check,
    .build = build,
    .release = release,
};

/* ---- gpt2 and llama ---------------------------------------------------------------------------------- */
static tess_status check_shape(const model_options *o, const char *name) {
    const model_decoder *d = &o->decoder;
    int32_t kv = d->kv_heads ? d->kv_heads : o->heads;
    if (o->layers < 1 || o->layers > 1000 || o->width < 1 || o->width > 65536)
        return tess_fail(TESS_E_INVALID, "%s: %d layers of width %d: expected 1 to 1000 and 1 to 65536", name,
                         o->layers, o->width);
    if (o->heads < 1 || (!d->head_size && o->width % o->heads))
        return tess_fail(TESS_E_INVALID, "heads %d: expected a divisor of width %d", o->heads, o->width);
    if (kv < 1 || o->heads % kv)
        return tess_fail(TESS_E_INVALID, "%s: %d key-value heads, expected a divisor of %d heads", name, kv, o->heads);
    if (o->context < 1 || (int64_t)o->context * o->batch > 1 << 24)
        return tess_fail(TESS_E_INVALID, "context %d with batch %d: expected 1 to %d positions in a batch", o->context,
                         o->batch, 1 << 24);
    if (d->positions && o->context > d->positions)
        return tess_fail(TESS_E_INVALID, "context %d: the model has %d positions", o->context, d->positions);
    return TESS_OK;
}

static tess_status check_gpt2(const model_options *o) {
    return check_shape(o, "gpt2");
}

static tess_status check_llama(const model_options *o) {
    int32_t size = o->decoder.head_size ? o->decoder.head_size : o->heads > 0 ? o->width / o->heads : 0;
    OPS_TRY(check_shape(o, "llama"));
    return size % 2 ? tess_fail(TESS_E_INVALID, "llama: heads of %d elements, expected an even number", size) : TESS_OK;
}

const model_ops model_gpt2 = {
    .name = "gpt2",
    .defaults = { .batch = 4, .layers = 4, .heads = 4, .width = 128, .context = 64 },
    .optimizer_groups = 2,
    .check = check_gpt2,
    .check_batch = decoder_batch_check,
    .build = build,
    .release = release,
};

const model_ops model_llama = {
    .name = "llama",
    .defaults = { .batch = 4,
                  .layers = 4,
                  .heads = 4,
                  .width = 128,
                  .context = 64,
                  .decoder = { .kv_heads = 2, .feed = 344 } },
    .optimizer_groups = 2,
    .check = check_llama,
    .check_batch = decoder_batch_check,
    .build = build,
    .release = release,
};

/* SPDX-License-Identifier: BSD-3-Clause */
#include "rows_names.h"
#include "rows_variant.h"

extern const rows_functions rows_table;
const rows_functions rows_table = {
    .norm = decoder_norm,
    .norm_backward = decoder_norm_backward,
    .act = decoder_act,
    .act_backward = decoder_act_backward,
    .add = decoder_add,
    .bias_backward = decoder_bias_backward,
    .dropout = decoder_dropout,
    .rope = decoder_rope,
    .rope_one = decoder_rope_one,
    .embedding = decoder_embedding,
    .embedding_one = decoder_embedding_one,
    .embedding_backward = decoder_embedding_backward,
    .loss = decoder_loss,
    .loss_backward = decoder_loss_backward,
    .tiles_create = decoder_tiles_create,
    .tiles_destroy = decoder_tiles_destroy,
    .cap = decoder_cap,
    .attention = decoder_attention,
    .attention_backward = decoder_attention_backward,
};

/* SPDX-License-Identifier: BSD-3-Clause */
/* The rows of decoders under names of their own, included before their sources (CMakeLists.txt), which are compiled
 * once per instruction set. Nothing is chosen at run time then. */
#ifndef ROWS_NAMES_H
#define ROWS_NAMES_H
#ifdef ROWS_VARIANT
#include "tools/models/parallel.h"
#undef OPS_CLONES
#define OPS_CLONES

#define ROWS_JOIN(name, variant) name##_##variant
#define ROWS_JOINED(name, variant) ROWS_JOIN(name, variant)
#define ROWS(name) ROWS_JOINED(name, ROWS_VARIANT)
#define decoder_norm ROWS(decoder_norm)
#define decoder_norm_backward ROWS(decoder_norm_backward)
#define decoder_act ROWS(decoder_act)
#define decoder_act_backward ROWS(decoder_act_backward)
#define decoder_add ROWS(decoder_add)
#define decoder_bias_backward ROWS(decoder_bias_backward)
#define decoder_dropout ROWS(decoder_dropout)
#define decoder_cap ROWS(decoder_cap)
#define decoder_rope ROWS(decoder_rope)
#define decoder_rope_one ROWS(decoder_rope_one)
#define decoder_embedding ROWS(decoder_embedding)
#define decoder_embedding_one ROWS(decoder_embedding_one)
#define decoder_embedding_backward ROWS(decoder_embedding_backward)
#define decoder_loss ROWS(decoder_loss)
#define decoder_loss_backward ROWS(decoder_loss_backward)
#define decoder_tiles_create ROWS(decoder_tiles_create)
#define decoder_tiles_destroy ROWS(decoder_tiles_destroy)
#define decoder_attention ROWS(decoder_attention)
#define decoder_attention_rest ROWS(decoder_attention_rest)
#define decoder_attention_backward ROWS(decoder_attention_backward)
#define rows_table ROWS(rows_table)
#endif
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads a run's adapters from a peft folder, writes them to one, or merges them into their base matrices. */
#ifndef TOOL_TRAIN_LORA_H
#define TOOL_TRAIN_LORA_H
#include "train.h"

/** [C] Calls tess_shard with `fill` for the base. Adapters get new values, or those of --lora FOLDER. */
tess_status train_lora_shard(train_run *, tess_range_fn fill, void *user);
/** [C] Exports the adapters to s.export_to as a peft folder. */
tess_status train_lora_export(train_run *);

/** State of an export that adds the adapters' products to their matrices. */
typedef struct train_lora_merge train_lora_merge;
tess_status train_lora_merge_open(train_run *, train_lora_merge **out); /* [C] */
/** Computes the merged values of this range in fp32. `elems` is 0 for an adapter and for an incomplete block. */
tess_status train_lora_merge_range(train_lora_merge *, const tess_range *, const void *data, const float **out,
                                   uint64_t *elems);
void train_lora_merge_close(train_lora_merge *); /* null is fine */
#endif

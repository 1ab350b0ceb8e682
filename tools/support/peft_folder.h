/* SPDX-License-Identifier: BSD-3-Clause */
/* A folder of low-rank adapters in the format of Hugging Face's peft: adapter_config.json and
 * adapter_model.safetensors. */
#ifndef TOOL_PEFT_FOLDER_H
#define TOOL_PEFT_FOLDER_H
#include <limits.h>

#include "safetensors.h"

enum { PEFT_TARGETS = 160, PEFT_NAME = 192 };
typedef struct {
    int32_t rank, rooted; /* rooted: use_rslora */
    double alpha;
    char targets[PEFT_TARGETS]; /* separated by ',' */
} peft_config;

/** Reads DIR/adapter_config.json. TESS_E_DATA names a member that is missing, wrong or not supported. */
tess_status peft_config_read(const char *dir, peft_config *out);
/** Creates DIR and writes adapter_config.json. `base` is the model's folder, or null. `turned` says that its matrices
 * are stored as [inputs, outputs]. */
tess_status peft_config_write(const char *dir, const peft_config *, const char *base, int turned);
/** Sets `out` to DIR/adapter_model.safetensors. Returns TESS_E_DATA if the path is too long. */
tess_status peft_weights_path(const char *dir, char out[PATH_MAX]);
/** Returns peft's tensor name for the model's parameter `name`. */
void peft_name(const char *model, const char *name, char out[PEFT_NAME]);
#endif

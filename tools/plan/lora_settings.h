/* SPDX-License-Identifier: BSD-3-Clause */
/* `--lora rank=R,alpha=A,targets=…,base=…` or `--lora FOLDER,base=…`, as options of a model. */
#ifndef TOOL_LORA_SETTINGS_H
#define TOOL_LORA_SETTINGS_H
#include "tools/support/peft_folder.h"
#include "model_settings.h"
#include "tools/models/model.h"

/** Sets out->rank to 0 without --lora. Reads the folder's config, and the dtype of the model's files. TESS_E_INVALID,
 * TESS_E_DATA. */
tess_status lora_settings_read(const train_settings *, model_lora *out);
/** The folder of adapters to start from; 0: there is none. */
int lora_settings_folder(const train_settings *, char out[PATH_MAX]);
#endif

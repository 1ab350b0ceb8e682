/* SPDX-License-Identifier: BSD-3-Clause */
/* config.json of a Hugging Face folder, as the options of a model that hf_family.h has. */
#ifndef TOOL_HF_CONFIG_H
#define TOOL_HF_CONFIG_H
#include "tools/models/model.h"

/** Reads `path`, a config.json or a folder that has one, for the model `name`; sets shapes, vocabulary, positions and
 * whether the head is tied. *positions receives the longest context of the model. TESS_E_DATA names what is wrong or
 * not supported. */
tess_status hf_config_read(const char *path, const char *name, model_options *out, int32_t *positions);
/** config.json without a dtype, for the folder that a run of such a model exports: that of `source`, as hf_config_read
 * takes it, else (null) what the model was made of. It has no white space. The caller frees *out. */
tess_status hf_config_make(const model *, const char *source, char **out);
#endif

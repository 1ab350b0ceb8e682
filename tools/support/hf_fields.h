/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads and writes a config.json by its family's table. */
#ifndef TOOL_HF_FIELDS_H
#define TOOL_HF_FIELDS_H
#include <limits.h>

#include <tessera/tessera.h>
#include "hf_family.h"
#include "json_fields.h"
#include "json_out.h"

typedef struct {
    char path[PATH_MAX], *text;
    size_t bytes;
    char type[64]; /* model_type, or "" */
    json_fields fields;
} hf_file;
/** Opens `path`, a config.json or a folder that has one. Returns TESS_E_DATA if the file does not hold an object. */
tess_status hf_file_open(const char *path, hf_file *out);
void hf_file_close(hf_file *); /* zeros are fine */

/** Reads all settings of the family's members. TESS_E_DATA names the member that is wrong or not supported. */
tess_status hf_fields_read(const hf_file *, const hf_family *, double settings[HF_SETTINGS]);
/** Does the same for the members of one setting. */
tess_status hf_fields_read_one(const hf_file *, const hf_family *, int32_t setting, double settings[HF_SETTINGS]);
/** Writes the members of a config.json without a dtype into an open object. Rotary positions have the default type,
 * because options give no other. */
void hf_fields_write(const hf_family *, const double settings[HF_SETTINGS], json_out *);
/** Returns the file's text without the dtype and without white space. The caller frees *out. */
tess_status hf_file_word(const hf_file *, char **out);
#endif

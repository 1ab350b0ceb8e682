/* SPDX-License-Identifier: BSD-3-Clause */
/* A config.json through its family's table. */
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
    char type[64]; /* model_type; "": there is none */
    json_fields fields;
} hf_file;
/** `path`: a config.json, or a folder that has one. TESS_E_DATA for a file that does not read as an object. */
tess_status hf_file_open(const char *path, hf_file *out);
void hf_file_close(hf_file *); /* zeros are fine */

/** Sets all that the family's members set. TESS_E_DATA names the member that is wrong or not supported. */
tess_status hf_fields_read(const hf_file *, const hf_family *, double settings[HF_SETTINGS]);
/** The same of the members for one setting alone. */
tess_status hf_fields_read_one(const hf_file *, const hf_family *, int32_t setting, double settings[HF_SETTINGS]);
/** The members of a config.json without a dtype, into an object that is open. Rotary positions are those of the default
 * type: nothing else is made from options. */
void hf_fields_write(const hf_family *, const double settings[HF_SETTINGS], json_out *);
/** The file's text but the dtype in one word: without white space. The caller frees *out. */
tess_status hf_file_word(const hf_file *, char **out);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* The reference models for help and refusals: their names, a line about each, and their defaults. */
#ifndef TOOL_MODEL_SETTINGS_H
#define TOOL_MODEL_SETTINGS_H
#include "tools/support/help.h"

extern const tool_subject plan_subjects[]; /* ends with a null name */
/** A model's default of an option, as tool_page.fallback; null: none. */
const char *plan_fallback(const char *model, const char *key, char out[64]);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* The fields of tess_options that are options by another name, as the settings that all reads look at. */
#ifndef TESS_OPTION_FIELDS_H
#define TESS_OPTION_FIELDS_H
#include "base/options.h"

/** Copies every field that is set, then tess_options.settings; freed by tess__given_free. */
tess_status tess__given_of(const tess_options *, tess__given *out);
void tess__given_free(tess__given *);
#endif

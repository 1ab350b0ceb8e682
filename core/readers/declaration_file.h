/* SPDX-License-Identifier: BSD-3-Clause */
/* A program's declarations as a file: `tessera plan -- PROGRAM` reads it and plans from it, with other options too.
 * Between a library and a command of one version; the format is nobody else's. Lines of numbers; a text is its length
 * in bytes, a blank and the text, and stands last. */
#ifndef TESS_DESCRIBE_H
#define TESS_DESCRIBE_H
#include "plan/plan.h"
#include "plugin/selection.h"

#define TESS__DESCRIBE_MAGIC "tessera-plan 1" /* the first line; the last is TESS__DESCRIBE_END */
#define TESS__DESCRIBE_END "end"

/** Writes what an engine was opened with (options, the optimizer's name, plugins) and was told (the plan's
 * declarations, finished) to a file that exists. */
tess_status tess__describe(const tess__plan *, const tess__selection *, const tess_options *, const char *optimizer,
                           const char *path);
#endif

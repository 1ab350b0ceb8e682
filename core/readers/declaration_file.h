/* SPDX-License-Identifier: BSD-3-Clause */
/* A program's declarations as a file: `tessera plan -- PROGRAM` reads it and plans from it, with other options too.
 * Between a library and a command of one version; the format is nobody else's. Lines of numbers; a text is its length
 * in bytes, a blank and the text, and stands last. */
#ifndef TESS_DESCRIBE_H
#define TESS_DESCRIBE_H
#include "base/options.h"
#include "plan/plan.h"

#define TESS__DESCRIBE_MAGIC "tessera-plan 3" /* the first line; the last is TESS__DESCRIBE_END */
#define TESS__DESCRIBE_END "end"

/** Counts one more, or one fewer, engine of this process that tess_shard will describe. */
void tess__describe_expect(int change);
/** Writes what an engine was opened with (the options and settings in use) and was told (the plan's declarations,
 * finished). The first engine of the process goes to `path`, a file that exists; the n-th to a new one. One that only
 * explores (tess_options.plan_only) goes to `path` as long as there is no other. */
tess_status tess__describe(const tess__plan *, const tess__given *, const tess_options *, int explores,
                           const char *path);
/** "PATH" for number 1, "PATH.2" and so on. */
void tess__describe_path(const char *path, int32_t number, char *out, size_t n);
#endif

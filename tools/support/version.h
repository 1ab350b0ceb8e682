/* SPDX-License-Identifier: BSD-3-Clause */
/* `tessera --version` prints the version and the parts of this build. */
#ifndef TOOL_VERSION_H
#define TOOL_VERSION_H
#include <stddef.h>
#include <stdio.h>

/** Returns optional part number i, or null behind the last. *built_in says whether this build has it. */
const char *tool_version_part(size_t i, int *built_in);
void tool_version(FILE *out);
#endif

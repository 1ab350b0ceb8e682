/* SPDX-License-Identifier: BSD-3-Clause */
/* `tessera --version`: the version and the parts that this build has. */
#ifndef TOOL_VERSION_H
#define TOOL_VERSION_H
#include <stddef.h>
#include <stdio.h>

/** The parts that a build may lack, from 0 on; null behind the last. */
const char *tool_version_part(size_t i, int *built_in);
void tool_version(FILE *out);
#endif

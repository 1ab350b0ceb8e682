/* SPDX-License-Identifier: BSD-3-Clause */
/* `tessera --version`: the version and the parts that this build has. */
#ifndef TOOL_VERSION_H
#define TOOL_VERSION_H
#include <stdio.h>

void tool_version(FILE *out);
#endif

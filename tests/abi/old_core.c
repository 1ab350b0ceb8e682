/* SPDX-License-Identifier: BSD-3-Clause */
/* The tessera command of a core that is a minor version older: OLD_CORE_MINOR=0 old_core train|plugins … The variable
 * reaches the ranks that train starts, as they are this program again. */
#include "tools/commands.h"
#include "core/plugin/plugin_check.h"

#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    const char *minor = getenv("OLD_CORE_MINOR");
    if (argc < 2 || !minor)
        return TOOL_USAGE;
    tess__core_minor = (uint16_t)atoi(minor);
    if (strcmp(argv[1], "train") == 0)
        return cmd_train(argc - 1, argv + 1);
    return strcmp(argv[1], "plugins") == 0 ? cmd_plugins(argc - 1, argv + 1) : TOOL_USAGE;
}

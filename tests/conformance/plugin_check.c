/* SPDX-License-Identifier: BSD-3-Clause */
/* `tessera plugins check` without the rest of the command: what the conformance tests run, also where only the core and
 * a plugin are built (ThreadSanitizer). plugin_check plugins check TARGET [OPTION…] */
#include <stdio.h>
#include <string.h>

#include "tools/plugins/check/check.h"

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "plugins") == 0 && strcmp(argv[2], "check") == 0)
        return check_main(argc - 2, argv + 2);
    fputs("plugin_check: say `plugins check`\n", stderr);
    return 2;
}

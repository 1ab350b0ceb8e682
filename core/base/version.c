/* SPDX-License-Identifier: BSD-3-Clause */
#include <tessera/tessera.h>

const char *tess_version(void) {
    return TESSERA_VERSION;
}

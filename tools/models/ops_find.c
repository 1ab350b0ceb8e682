/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds an operator table of this build by name. */
#include "ops.h"

#include <string.h>

tess_status ops_find(const char *name, const ops_table **out) {
#ifdef TESSERA_HAVE_DNNL
    if (!name || !strcmp(name, "auto") || !strcmp(name, "onednn")) {
        *out = &ops_onednn;
        return TESS_OK;
    }
#else
    if (name && !strcmp(name, "onednn"))
        return tess_fail(TESS_E_UNSUPPORTED, "operators \"onednn\": this build left oneDNN out (libdnnl-dev)");
#endif
    if (!name || !strcmp(name, "auto") || !strcmp(name, "plain")) {
        *out = &ops_plain;
        return TESS_OK;
    }
    if (!strcmp(name, "cuda")) {
#ifdef TESSERA_HAVE_CUDA
        *out = &ops_cuda;
        return TESS_OK;
#else
        return tess_fail(TESS_E_UNSUPPORTED, "operators \"cuda\": this build left CUDA out (CUDA toolkit)");
#endif
    }
    return tess_fail(TESS_E_INVALID, "operators \"%s\": expected auto, onednn, plain or cuda", name);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* libFuzzer: any bytes as a checkpoint's manifest. Built without checksums, so that changed bytes are read too. */
#include "core/checkpoint/manifest.h"
#include "fuzz_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = fuzz_text(data, size), *again = NULL;
    size_t bytes = 0;
    tess__manifest m = { 0 };
    uint64_t before = tess__fail_count();
    tess_status s = tess__manifest_read("manifest.json", text, size, &m);
    fuzz_check(s != TESS_OK, before);
    if (s == TESS_OK && tess__manifest_write(&m, "manifest.json", &again, &bytes) != TESS_OK)
        abort(); /* what can be read can be written */
    if (s == TESS_OK)
        tess__manifest_free(&m);
    free(again);
    free(text);
    return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* libFuzzer: any bytes as what a peer announces before a collective, over gloo and in shared memory: it is told from
 * this rank's own in one line, or is the same. */
#include "kit/collective.h"
#include "fuzz_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kit_announcement mine = { 0 }, theirs;
    tess_error error = { .struct_size = sizeof error };
    char text[160];
    if (size < sizeof theirs)
        return 0;
    memcpy(&theirs, data, sizeof theirs);
    memcpy(&mine, data + (size - sizeof mine < sizeof mine ? 0 : sizeof mine), sizeof mine);
    tess_status s = kit_compare("gloo", &mine, 0, &theirs, 1, &error);
    if ((s == TESS_OK) != (memcmp(&mine, &theirs, sizeof mine) == 0))
        abort();
    if (s != TESS_OK && (!*error.message || strchr(error.message, '\n') || error.rank != 1))
        abort();
    if (strlen(kit_describe(&theirs, text, sizeof text)) >= sizeof text)
        abort();
    return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* libFuzzer: any bytes as a plugin file. The reader may refuse them, but not read past them. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/plugin/elf_note.h"

typedef struct {
    const uint8_t *bytes;
    size_t size;
} memory;

static int read_memory(void *user, uint64_t offset, void *to, size_t bytes) {
    const memory *m = user;
    if (offset > m->size || bytes > m->size - offset)
        abort(); /* asked for more than the file has */
    memcpy(to, m->bytes + offset, bytes);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    memory m = { data, size };
    tess_plugin_note note;
    char reason[64] = "";
    tess_status s = tess__elf_note_read(read_memory, &m, size, &note, reason, sizeof reason);
    if ((s == TESS_OK) == (reason[0] != 0))
        abort(); /* a refusal without a reason, or the other way round */
    tess_option_spec *options = NULL;
    uint32_t n = 0;
    reason[0] = 0;
    s = tess__elf_options_read(read_memory, &m, size, &options, &n, reason, sizeof reason);
    if ((s == TESS_OK) == (reason[0] != 0) || (n != 0) != (options != NULL))
        abort();
    free(options);
    return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads a plugin's descriptor from its file, before any of its code can run. Everything the file says is checked
 * against its size, so a truncated or forged one is a message and not a signal. */
#ifndef TESS_ELF_NOTE_H
#define TESS_ELF_NOTE_H
#include <tessera/tessera.h>

/** Copies `bytes` bytes at `offset` of the file; 0 when all were there. Never asked for more than the file's size. */
typedef int (*tess__read_at_fn)(void *user, uint64_t offset, void *to, size_t bytes);

/** Finds section ".tessera.plugin" of a shared object for this machine and copies the first 128 bytes of it. Fails with
 * TESS_E_INVALID and one clause in `reason`, and sets no message. What the descriptor says is the loader's to judge. */
tess_status tess__elf_note_read(tess__read_at_fn read_at, void *user, uint64_t file_bytes, tess_plugin_note *out,
                                char *reason, size_t reason_bytes);
/** Reads the descriptor of the file at `path` in the same way. */
tess_status tess__elf_note_file(const char *path, tess_plugin_note *out, char *reason, size_t reason_bytes);

enum { TESS_OPTIONS_MAX = 64 };
/** Copies the options that the file declares in section ".tessera.options" into a new array, which the caller frees: as
 * far as they go, what a later header appended left out. *out null and 0 without that section. Their texts are the
 * caller's to judge. Fails as above, or without memory with TESS_E_NOMEM. */
tess_status tess__elf_options_read(tess__read_at_fn read_at, void *user, uint64_t file_bytes, tess_option_spec **out,
                                   uint32_t *n, char *reason, size_t reason_bytes);
tess_status tess__elf_options_file(const char *path, tess_option_spec **out, uint32_t *n, char *reason,
                                   size_t reason_bytes);
#endif

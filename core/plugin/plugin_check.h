/* SPDX-License-Identifier: BSD-3-Clause */
/* Judges what a plugin says of itself: its descriptor, then its table. Neither sets the thread's message. */
#ifndef TESS_PLUGIN_CHECK_H
#define TESS_PLUGIN_CHECK_H
#include <tessera/tessera.h>

enum { TESS_REASON_BYTES = 512 };

/* The common beginning of all tables. */
typedef struct {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    void (*close)(void *ctx);
} tess__common_ops;

/** Judges a descriptor as a plugin of `kind`: magic, versions, texts, kind. On failure one clause in `reason`. */
tess_status tess__note_check(const tess_plugin_note *note, uint32_t kind, char reason[TESS_REASON_BYTES]);
/** Judges a table: version, size, the mandatory slots, and slots that need one another. A longer one is fine. */
tess_status tess__ops_check(uint32_t kind, const void *ops, char reason[TESS_REASON_BYTES]);
#endif

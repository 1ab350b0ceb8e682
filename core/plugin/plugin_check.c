/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin_check.h"

#include <stdio.h>
#include <string.h>

#include "open.h"

#define REFUSE(status, ...) (snprintf(reason, TESS_REASON_BYTES, __VA_ARGS__), (status))

const char *tess__kind_name(uint32_t kind) {
    static const char *const words[] = { NULL, "comm", "offload", "precision", "wrap", "device", "optimizer" };
    return kind < sizeof words / sizeof words[0] ? words[kind] : NULL;
}

/* ---- the descriptor ---------------------------------------------------------------------------- */

static int is_text(const char *text, size_t size) {
    return memchr(text, 0, size) != NULL;
}

static int is_name(const char name[32]) {
    return *name && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == strlen(name);
}

tess_status tess__note_check(const tess_plugin_note *note, uint32_t kind, char reason[TESS_REASON_BYTES]) {
    if (memcmp(note->magic, "TESSPLG", 8) != 0)
        return REFUSE(TESS_E_INVALID, "bad magic in the descriptor, expected TESSPLG");
    if (note->struct_size < sizeof *note)
        return REFUSE(TESS_E_INVALID, "a descriptor of %u bytes, expected at least %zu", note->struct_size,
                      sizeof *note);
    if (note->abi_major != TESS_ABI_MAJOR)
        return REFUSE(TESS_E_VERSION, "plugin ABI %u.%u, this is Tessera's ABI %d.%d: the major versions differ",
                      note->abi_major, note->abi_minor, TESS_ABI_MAJOR, TESS_ABI_MINOR);
    if (note->core_minor_min > TESS_ABI_MINOR)
        return REFUSE(TESS_E_VERSION, "needs a core of ABI %u.%u or newer, this one has %d.%d", note->abi_major,
                      note->core_minor_min, TESS_ABI_MAJOR, TESS_ABI_MINOR);
    if (!is_text(note->name, sizeof note->name) || !is_text(note->version, sizeof note->version) ||
        !is_text(note->license, sizeof note->license) || !is_text(note->needs, sizeof note->needs) ||
        !is_name(note->name))
        return REFUSE(TESS_E_INVALID, "the descriptor's texts do not end, or its name is not [a-z0-9_-]+");
    if (!(note->kinds & 1u << kind))
        return REFUSE(TESS_E_INVALID, "plugin %s is not of kind %s (its kinds: 0x%x)", note->name,
                      tess__kind_name(kind), note->kinds);
    return TESS_OK;
}

/* ---- the table --------------------------------------------------------------------------------- */

/* A slot that must be there: always when `with` is null, else when that slot is there. */
typedef struct {
    uint32_t kind;
    const char *name, *with;
    size_t offset, with_offset;
} slot_rule;
#define MUST(kind, type, slot)                                                                                         \
    { TESS_KIND_##kind, #slot, NULL, offsetof(type, slot), 0 }
#define WITH(kind, type, with, slot)                                                                                   \
    { TESS_KIND_##kind, #slot, #with, offsetof(type, slot), offsetof(type, with) }

static const slot_rule slots[] = {
    MUST(COMM, tess_comm_ops, query),
    MUST(COMM, tess_comm_ops, need),
    MUST(COMM, tess_comm_ops, init),
    MUST(COMM, tess_comm_ops, destroy),
    MUST(COMM, tess_comm_ops, post),
    MUST(COMM, tess_comm_ops, test),
    MUST(COMM, tess_comm_ops, wait),
    MUST(COMM, tess_comm_ops, request_free),
    MUST(COMM, tess_comm_ops, abort),
    WITH(COMM, tess_comm_ops, mem_alloc, mem_free),
    WITH(COMM, tess_comm_ops, mem_register, mem_deregister),
    MUST(DEVICE, tess_device_ops, describe),
    MUST(DEVICE, tess_device_ops, create),
    MUST(DEVICE, tess_device_ops, destroy),
    MUST(DEVICE, tess_device_ops, mem_alloc),
    MUST(DEVICE, tess_device_ops, mem_free),
    MUST(DEVICE, tess_device_ops, copy),
    MUST(DEVICE, tess_device_ops, fill),
    MUST(DEVICE, tess_device_ops, kernel),
    MUST(DEVICE, tess_device_ops, kernel_need),
    WITH(DEVICE, tess_device_ops, stream_create, stream_destroy),
    WITH(DEVICE, tess_device_ops, stream_create, event_create),
    WITH(DEVICE, tess_device_ops, event_create, event_destroy),
    WITH(DEVICE, tess_device_ops, event_create, event_record),
    WITH(DEVICE, tess_device_ops, event_create, event_stream_wait),
    WITH(DEVICE, tess_device_ops, event_create, event_wait),
    MUST(PRECISION, tess_precision_ops, choose),
    MUST(WRAP, tess_wrap_ops, assign),
    MUST(OFFLOAD, tess_offload_ops, place),
    WITH(OFFLOAD, tess_offload_ops, store_open, store_post),
    WITH(OFFLOAD, tess_offload_ops, store_open, store_wait),
    WITH(OFFLOAD, tess_offload_ops, store_open, store_close),
    WITH(OFFLOAD, tess_offload_ops, store_close, store_open),
    WITH(OFFLOAD, tess_offload_ops, store_register, store_open),
    WITH(OFFLOAD, tess_offload_ops, store_register, store_deregister),
    MUST(OPTIMIZER, tess_optimizer_ops, describe),
};

/* Does what TESS_CAN does, for a slot that is known by its offset. */
static int has_slot(const tess__common_ops *ops, size_t offset) {
    void (*function)(void);
    if (ops->struct_size < offset + sizeof function)
        return 0;
    memcpy(&function, (const char *)ops + offset, sizeof function);
    return function != NULL;
}

tess_status tess__ops_check(uint32_t kind, const void *table, char reason[TESS_REASON_BYTES]) {
    const tess__common_ops *ops = table;
    if (!ops)
        return REFUSE(TESS_E_INVALID, "open gave no table");
    if (ops->struct_size < offsetof(tess__common_ops, close))
        return REFUSE(TESS_E_INVALID, "a table of %u bytes", ops->struct_size);
    if (ops->abi_major != TESS_ABI_MAJOR)
        return REFUSE(TESS_E_VERSION, "a table of ABI %u.%u, expected %d", ops->abi_major, ops->abi_minor,
                      TESS_ABI_MAJOR);
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        const slot_rule *s = &slots[i];
        if (s->kind != kind || has_slot(ops, s->offset) || (s->with && !has_slot(ops, s->with_offset)))
            continue;
        return REFUSE(TESS_E_INVALID, "mandatory slot %s is missing%s%s", s->name, s->with ? " beside " : "",
                      s->with ? s->with : "");
    }
    return TESS_OK;
}

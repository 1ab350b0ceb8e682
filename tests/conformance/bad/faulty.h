/* SPDX-License-Identifier: BSD-3-Clause */
/* What the plugins with a fault share. Without a FAULT_… each of them passes `tessera plugins check`; with one it has
 * that fault and no other. */
#ifndef TESS_TEST_FAULTY_H
#define TESS_TEST_FAULTY_H
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tessera/plugin.h>

#define FAULTY_NOTE(kind)                                                                                              \
    const tess_plugin_note tess_plugin_note_v1 __attribute__((section(".tessera.plugin"), used)) = {                   \
        .magic = "TESSPLG",                                                                                            \
        .struct_size = sizeof(tess_plugin_note),                                                                       \
        .abi_major = TESS_ABI_MAJOR,                                                                                   \
        .abi_minor = TESS_ABI_MINOR,                                                                                   \
        .kinds = 1u << (kind),                                                                                         \
        .name = "faulty",                                                                                              \
        .version = "0.1.0",                                                                                            \
        .license = "Apache-2.0",                                                                                       \
    }

__attribute__((format(printf, 3, 4), unused)) static tess_status failed(tess_error *e, tess_status status,
                                                                        const char *format, ...) {
    va_list args;
#ifdef FAULT_SHORT_ERROR_UNWRITTEN
    if (e && e->struct_size >= sizeof *e) {
#else
    if (e && e->struct_size > offsetof(tess_error, message)) {
#endif
        const size_t room = e->struct_size - offsetof(tess_error, message);
        e->code = status;
        e->native = 0;
        e->rank = -1;
        va_start(args, format);
        vsnprintf(e->message, room < sizeof e->message ? room : sizeof e->message, format, args);
        va_end(args);
    }
    return status;
}

/* Faults of opening, of any kind: memory of the host that close leaves, or that is booked nowhere. */
__attribute__((unused)) static void take_at_open(const tess_host *host) {
    void *taken = NULL;
    (void)host, (void)taken;
#ifdef FAULT_KEEPS_HOST_MEMORY
    host->mem_alloc(host->host, TESS_DOMAIN_HOST, TESS_CAT_BUFFER, 4096, 64, &taken);
#endif
#ifdef FAULT_BOOKS_NOWHERE
    host->mem_alloc(host->host, TESS_DOMAIN_HOST, 0, 4096, 64, &taken);
    host->mem_free(host->host, taken);
#endif
#ifdef FAULT_TAKES_UNSTATED
    host->mem_alloc(host->host, TESS_DOMAIN_HOST, TESS_CAT_BUFFER, UINT64_C(1) << 30, 64, &taken);
    host->mem_free(host->host, taken);
#endif
}

/* Writes an out struct as far as its struct_size goes. */
__attribute__((unused)) static void give(void *out, uint32_t size, const void *from, uint32_t bytes) {
    uint32_t both = size < bytes ? size : bytes;
    if (both > 4)
        memcpy((char *)out + 4, (const char *)from + 4, both - 4);
    if (size > bytes)
        memset((char *)out + bytes, 0, size - bytes);
}
#endif

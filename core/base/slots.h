/* SPDX-License-Identifier: BSD-3-Clause */
/* What every built-in plugin does at its slots: fill a tess_error, and write an out struct no further than the caller
 * made it. */
#ifndef TESS_SLOTS_H
#define TESS_SLOTS_H
#include <tessera/plugin.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/** Fills `error` (null is fine) as far as its struct_size goes and returns `status`. */
__attribute__((format(printf, 3, 4))) static inline tess_status tess__slot_fail(tess_error *error, tess_status status,
                                                                                const char *format, ...) {
    tess_error full = { 0 };
    if (!error || error->struct_size < offsetof(tess_error, message))
        return status;
    full.struct_size = error->struct_size;
    full.code = status;
    full.rank = -1;
    va_list args;
    va_start(args, format);
    vsnprintf(full.message, sizeof full.message, format, args);
    va_end(args);
    size_t bytes = error->struct_size < sizeof full ? error->struct_size : sizeof full;
    memcpy(error, &full, bytes);
    if (bytes > offsetof(tess_error, message))
        ((char *)error)[bytes - 1] = 0;
    return status;
}

/** Copies `from` (of `bytes` bytes, struct_size first) to an out struct of `size` bytes: what does not fit is left out,
 * what is unknown zeroed, its struct_size left alone. For arrays, `size` is the first element's. */
static inline void tess__slot_out_sized(void *out, uint32_t size, const void *from, uint32_t bytes) {
    uint32_t both = size < bytes ? size : bytes, head = sizeof size;
    if (both > head)
        memcpy((char *)out + head, (const char *)from + head, both - head);
    if (size > both && both >= head)
        memset((char *)out + both, 0, size - both);
}
static inline void tess__slot_out(void *out, const void *from, uint32_t bytes) {
    uint32_t size;
    memcpy(&size, out, sizeof size);
    tess__slot_out_sized(out, size, from, bytes);
}

/** Bytes of an element; 0 for an unknown dtype. */
static inline uint32_t tess__dtype_bytes(uint32_t dtype) {
    static const uint8_t bytes[] = { 0, 1, 1, 4, 8, 2, 2, 4, 8, 1, 1 };
    return dtype < sizeof bytes ? bytes[dtype] : 0;
}
static inline const char *tess__dtype_name(uint32_t dtype) {
    static const char *const names[] = { "no dtype", "u8",  "i8",  "i32",    "i64",   "f16",
                                         "bf16",     "f32", "f64", "f8e4m3", "f8e5m2" };
    return dtype < sizeof names / sizeof names[0] ? names[dtype] : "an unknown dtype";
}
#endif

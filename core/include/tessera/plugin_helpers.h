/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera/plugin_helpers.h: small things every plugin needs and gets wrong once: filling an error, writing an out
 * struct no further than the caller made it, walking an array by its first element's size, the descriptor.
 *
 * Optional, and no part of the ABI: it is compiled into the plugin. C11 or C++17; beyond plugin.h only libc. */
#ifndef TESSERA_PLUGIN_HELPERS_H
#define TESSERA_PLUGIN_HELPERS_H
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tessera/plugin.h>

/** The descriptor, in its section. Once per plugin, outside functions:
 *      TESS_DESCRIPTOR(1u << TESS_KIND_WRAP, "mine", "1.0.0", "MIT", "");
 * It says that any core of this major version will do; a plugin that needs a newer one writes the struct itself. */
/* clang-format off */
#define TESS_DESCRIPTOR(kinds, name, version, license, needs)                                                       \
    const tess_plugin_note tess_plugin_note_v1 __attribute__((section(".tessera.plugin"), used)) = {    \
        "TESSPLG", sizeof(tess_plugin_note), TESS_ABI_MAJOR, TESS_ABI_MINOR, 0, (kinds), name, version, license, \
        needs                                                                                                       \
    }
/* clang-format on */

/** Fills `error` as far as its struct_size goes (null is fine) and returns `status`. `rank`: whose fault it is, in the
 * communicator; -1 unknown. */
__attribute__((format(printf, 4, 5))) static inline tess_status
tess_plugin_fail_of(tess_error *error, tess_status status, int32_t rank, const char *format, ...) {
    tess_error full;
    size_t bytes;
    va_list args;
    if (!error || error->struct_size <= offsetof(tess_error, message))
        return status;
    memset(&full, 0, sizeof full);
    full.struct_size = error->struct_size;
    full.code = status;
    full.rank = rank;
    va_start(args, format);
    vsnprintf(full.message, sizeof full.message, format, args);
    va_end(args);
    bytes = error->struct_size < sizeof full ? error->struct_size : sizeof full;
    memcpy(error, &full, bytes);
    ((char *)error)[bytes - 1] = 0;
    return status;
}
/** The same without a rank. */
#define tess_plugin_fail(error, status, ...) tess_plugin_fail_of(error, status, -1, __VA_ARGS__)

/** Copies a full error to the caller's, as far as that one's struct_size goes (null is fine), and returns its code. */
static inline tess_status tess_plugin_copy_error(tess_error *to, const tess_error *from) {
    uint32_t size = to ? to->struct_size : 0, bytes = size < sizeof *from ? size : (uint32_t)sizeof *from;
    if (bytes <= offsetof(tess_error, message) || to == from)
        return from->code;
    memcpy(to, from, bytes);
    to->struct_size = size;
    ((char *)to)[bytes - 1] = 0;
    return from->code;
}

/** Copies `from` (`bytes` long, struct_size first) to `out`, whose caller says that it has `size` bytes: what does not
 * fit is left out, what we do not know is zeroed, struct_size is left alone. For an array of out structs, `size` is the
 * first element's. */
static inline void tess_plugin_give(void *out, uint32_t size, const void *from, uint32_t bytes) {
    const uint32_t head = sizeof size, both = size < bytes ? size : bytes;
    if (both > head)
        memcpy((char *)out + head, (const char *)from + head, both - head);
    if (size > both && both >= head)
        memset((char *)out + both, 0, size - both);
}
/** The same for one out struct of the same type: TESS_GIVE(out, &caps). Two types do not compile. */
#define TESS_GIVE(out, from)                                                                                           \
    ((void)sizeof((out) == (from)), tess_plugin_give((out), (out)->struct_size, (from), (uint32_t)sizeof *(from)))

static inline const void *tess_plugin_at(const void *first, uint32_t stride, uint64_t i) {
    return (const char *)first + (size_t)stride * (size_t)i;
}
/** Element i of an array that a newer or older core made: TESS_AT(model->params, i). Never index such an array. */
#define TESS_AT(array, i) ((__typeof__(&(array)[0]))tess_plugin_at((array), (array)->struct_size, (uint64_t)(i)))

/** Numbers a wrap policy's units in order of first use, 0 … n - 1, whatever numbers (0 and up) it gave them; numbers
 * that no parameter has are left out. Returns n. */
static inline int32_t tess_plugin_number_units(int32_t *unit_of_param, uint32_t n_params) {
    int32_t n = 0;
    for (uint32_t i = 0; i < n_params; i++) {
        const int32_t old = unit_of_param[i];
        if (old < 0) /* done: -1 - its number */
            continue;
        for (uint32_t k = i; k < n_params; k++)
            if (unit_of_param[k] == old)
                unit_of_param[k] = -1 - n;
        n++;
    }
    for (uint32_t i = 0; i < n_params; i++)
        unit_of_param[i] = -1 - unit_of_param[i];
    return n;
}

/** Whether elements lie in blocks of TESS_Q8_BLOCK, each behind its scale. */
static inline int tess_dtype_is_blocks(uint32_t dtype) {
    return dtype == TESS_Q8 || dtype == TESS_Q8E4M3;
}
/** Bytes of one element; 0 for an unknown dtype, and for blocks, whose elements have none by themselves. */
static inline uint32_t tess_dtype_bytes(uint32_t dtype) {
    static const uint8_t bytes[] = { 0, 1, 1, 4, 8, 2, 2, 4, 8, 1, 1 };
    return dtype < sizeof bytes ? bytes[dtype] : 0;
}
/** Bytes of so many elements: whole blocks, if it has them. */
static inline uint64_t tess_dtype_span(uint32_t dtype, uint64_t elems) {
    if (tess_dtype_is_blocks(dtype))
        return (elems + TESS_Q8_BLOCK - 1) / TESS_Q8_BLOCK * TESS_Q8_BYTES;
    return elems * tess_dtype_bytes(dtype);
}
static inline const char *tess_dtype_name(uint32_t dtype) {
    static const char *const names[] = { "no dtype", "u8",  "i8",     "i32",    "i64", "f16",   "bf16",
                                         "f32",      "f64", "f8e4m3", "f8e5m2", "q8",  "q8e4m3" };
    return dtype < sizeof names / sizeof names[0] ? names[dtype] : "an unknown dtype";
}
#endif

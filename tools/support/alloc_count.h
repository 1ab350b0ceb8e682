/* SPDX-License-Identifier: BSD-3-Clause */
/* Counts memory allocations between two marks, by the library that called. The command defines malloc and related
 * functions itself (alloc_hooks.c). A program without these hooks, or with a sanitizer, counts nothing and says so. */
#ifndef TOOL_ALLOC_COUNT_H
#define TOOL_ALLOC_COUNT_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name; /* the file's name without its folder; "" for the program */
    int own;          /* part of Tessera: the program, libtessera or a plugin */
    uint64_t count, bytes;
} tool_alloc_library;

/** Returns 1 if the hooks are in place. */
int tool_alloc_available(void);
/** Counts the calls of all threads but the key-value server's until `end`. Counts of several windows add up. */
void tool_alloc_window_begin(void);
void tool_alloc_window_end(void);
/** Excludes this thread's calls, because it serves requests and runs no step. */
void tool_alloc_leave_out_thread(void);
/** Returns the calls made by Tessera's own objects. */
uint64_t tool_alloc_own(void);
/** Reads object number `i` of those that called. Returns 0 past the last. */
int tool_alloc_library_at(size_t i, tool_alloc_library *out);

/** Returns the most bytes that Tessera's own objects have had mapped at one time since the program started. These are
 * the arenas. It counts system calls, not the engine's figures. The peak includes the ends cut off to align a mapping.
 */
uint64_t tool_alloc_mapped_peak(void);
uint64_t tool_alloc_mapped(void); /* bytes mapped now */

/* alloc_hooks.c calls these. */
void tool__alloc_mapped(const void *caller, const void *at, size_t bytes);
void tool__alloc_unmapped(const void *at, size_t bytes);
void tool__alloc_hooked(void);
void tool__alloc_note(const void *caller, size_t bytes);
#endif

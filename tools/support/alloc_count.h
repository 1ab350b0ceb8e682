/* SPDX-License-Identifier: BSD-3-Clause */
/* Counts memory allocations between two marks, by the library that asked. The command itself answers malloc and its
 * kin (alloc_hooks.c); a program without those hooks, and one built with a sanitizer, counts nothing and says so. */
#ifndef TOOL_ALLOC_COUNT_H
#define TOOL_ALLOC_COUNT_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name; /* the file's name without its folder; "" is the program itself */
    int own;          /* part of Tessera: the program, libtessera, its plugins */
    uint64_t count, bytes;
} tool_alloc_library;

/** 1 when the hooks are in place. */
int tool_alloc_available(void);
/** Counts calls of all threads but the key-value server's from here to `end`. May be called many times; counts add up.
 */
void tool_alloc_window_begin(void);
void tool_alloc_window_end(void);
/** Excludes this thread's calls, because it serves requests and not the step. */
void tool_alloc_leave_out_thread(void);
/** Calls made by Tessera's own objects. */
uint64_t tool_alloc_own(void);
/** Number `i` of the objects that asked for memory; 0 past the last. */
int tool_alloc_library_at(size_t i, tool_alloc_library *out);

/** Most bytes that Tessera's own objects had mapped at one time since the program started: the arenas, measured at the
 * system call and not by the engine's word. The ends that are cut off to align a mapping count in the peak. */
uint64_t tool_alloc_mapped_peak(void);
uint64_t tool_alloc_mapped(void); /* now */

/* alloc_hooks.c calls these. */
void tool__alloc_mapped(const void *caller, const void *at, size_t bytes);
void tool__alloc_unmapped(const void *at, size_t bytes);
void tool__alloc_hooked(void);
void tool__alloc_note(const void *caller, size_t bytes);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* The bytes of the heap that a program holds, to the byte: what it and its libraries asked for, on any thread, and did
 * not give back. (mallinfo cannot tell: it counts what a thread keeps of freed memory, and how much each chunk has
 * over.) This defines malloc and its family, so a test includes it once, after cmocka.h. With a sanitizer, which needs
 * these names itself and looks for leaks itself, or another C library, nothing is counted. */
#ifndef TEST_HEAP_HELD_H
#define TEST_HEAP_HELD_H
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GLIBC__) && !defined(TESSERA_SANITIZED)
#include <malloc.h>

#define EXPORTED __attribute__((visibility("default")))

typedef struct {
    size_t bytes, offset; /* asked for; from the C library's block to what is given out */
} heap_block;             /* in front of what is given out */

static size_t heap_bytes;

static inline size_t heap_held(void) {
    const size_t bytes = __atomic_load_n(&heap_bytes, __ATOMIC_RELAXED);
    assert_true(bytes > 0); /* the test's own at least, or these functions are not the ones called */
    return bytes;
}

extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static void *heap_take(size_t align, size_t bytes) {
    const size_t offset = align > sizeof(heap_block) ? align : sizeof(heap_block);
    size_t whole;
    char *block = __builtin_add_overflow(bytes, offset, &whole) ? NULL : __libc_memalign(offset, whole);
    if (!block) {
        errno = ENOMEM;
        return NULL;
    }
    ((heap_block *)(void *)(block + offset))[-1] = (heap_block){ bytes, offset };
    __atomic_fetch_add(&heap_bytes, bytes, __ATOMIC_RELAXED);
    return block + offset;
}

EXPORTED void free(void *at) {
    if (!at)
        return;
    const heap_block b = ((heap_block *)at)[-1];
    __atomic_fetch_sub(&heap_bytes, b.bytes, __ATOMIC_RELAXED);
    __libc_free((char *)at - b.offset);
}

EXPORTED void *malloc(size_t bytes) {
    return heap_take(0, bytes);
}

EXPORTED void *calloc(size_t n, size_t bytes) {
    size_t whole;
    void *at = heap_take(0, __builtin_mul_overflow(n, bytes, &whole) ? SIZE_MAX : whole);
    return at ? memset(at, 0, whole) : NULL;
}

EXPORTED void *realloc(void *old, size_t bytes) {
    void *at = heap_take(0, bytes);
    if (at && old) {
        const size_t had = ((heap_block *)old)[-1].bytes;
        memcpy(at, old, had < bytes ? had : bytes);
        free(old);
    }
    return at;
}

EXPORTED void *memalign(size_t align, size_t bytes) {
    return heap_take(align, bytes);
}

EXPORTED void *aligned_alloc(size_t align, size_t bytes) {
    return heap_take(align, bytes);
}

EXPORTED int posix_memalign(void **out, size_t align, size_t bytes) {
    void *at = heap_take(align, bytes);
    if (at)
        *out = at;
    return at ? 0 : ENOMEM;
}
#else
static inline size_t heap_held(void) {
    return 0;
}
#endif
#endif

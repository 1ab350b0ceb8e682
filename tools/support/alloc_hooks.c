/* SPDX-License-Identifier: BSD-3-Clause */
/* The command's own malloc and related functions note the caller and then call glibc's. Only the command contains them.
 * With a sanitizer, which needs these names itself, or another C library, this file is empty. */
#include <stdlib.h>
#if defined(__GLIBC__) && !TESSERA_SANITIZED
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "alloc_count.h"

#define EXPORTED __attribute__((visibility("default")))
#define NOTE(bytes) tool__alloc_note(__builtin_return_address(0), bytes)

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

__attribute__((constructor)) static void announce(void) {
    tool__alloc_hooked();
}

EXPORTED void *malloc(size_t bytes) {
    NOTE(bytes);
    return __libc_malloc(bytes);
}

EXPORTED void *calloc(size_t n, size_t bytes) {
    NOTE(n * bytes);
    return __libc_calloc(n, bytes);
}

EXPORTED void *realloc(void *old, size_t bytes) {
    NOTE(bytes);
    return __libc_realloc(old, bytes);
}

EXPORTED void *memalign(size_t align, size_t bytes) {
    NOTE(bytes);
    return __libc_memalign(align, bytes);
}

EXPORTED void *aligned_alloc(size_t align, size_t bytes) {
    NOTE(bytes);
    return __libc_memalign(align, bytes);
}

EXPORTED int posix_memalign(void **out, size_t align, size_t bytes) {
    NOTE(bytes);
    if (align % sizeof(void *) != 0 || align == 0 || (align & (align - 1)) != 0)
        return EINVAL;
    int saved = errno;
    void *p = __libc_memalign(align, bytes);
    errno = saved;
    if (!p)
        return ENOMEM;
    *out = p;
    return 0;
}

/* Recognises an arena that a comm plugin shares with other processes, by the memfd's name. Their mappings of it are
 * read-only, and a plugin's own tables have another name. Neither counts as this rank's arena. */
static int is_shared_arena(int protection, int flags, int fd) {
    static const char name[] = "/memfd:tessera-arena";
    char path[32], target[64];
    if (!(flags & MAP_SHARED) || !(protection & PROT_WRITE) || fd < 0)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return readlink(path, target, sizeof target) >= (ssize_t)sizeof name - 1 &&
           memcmp(target, name, sizeof name - 1) == 0;
}

/* Counts writable anonymous mappings and shared arenas only, not files or reserved addresses. */
EXPORTED void *mmap(void *where, size_t bytes, int protection, int flags, int fd, off_t offset) {
    void *at = (void *)syscall(SYS_mmap, where, bytes, protection, flags, fd, offset);
    if ((flags & MAP_ANONYMOUS && protection & PROT_WRITE) || is_shared_arena(protection, flags, fd)) {
        NOTE(bytes);
        if (at != MAP_FAILED)
            tool__alloc_mapped(__builtin_return_address(0), at, bytes);
    }
    return at;
}

EXPORTED int munmap(void *at, size_t bytes) {
    tool__alloc_unmapped(at, bytes);
    return (int)syscall(SYS_munmap, at, bytes);
}

/* ---- C++: operator new, so that the plugin is the caller and not the C++ run-time library --------------------- */

/* Calls the caller's C++ run-time library to throw std::bad_alloc, because this program may not be linked with one. */
static void throw_bad_alloc(const void *caller) {
    Dl_info info;
    void *library = dladdr(caller, &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *symbol = library ? dlsym(library, "_ZSt17__throw_bad_allocv") : NULL;
    void (*throw_it)(void);
    memcpy(&throw_it, &symbol, sizeof throw_it);
    if (throw_it)
        throw_it();
    abort();
}

static void *new_or_throw(const void *caller, size_t align, size_t bytes) {
    tool__alloc_note(caller, bytes);
    void *p = align ? __libc_memalign(align, bytes) : __libc_malloc(bytes);
    if (!p)
        throw_bad_alloc(caller);
    return p;
}

EXPORTED void *_Znwm(size_t bytes);
EXPORTED void *_Znam(size_t bytes);
EXPORTED void *_ZnwmSt11align_val_t(size_t bytes, size_t align);
EXPORTED void *_ZnamSt11align_val_t(size_t bytes, size_t align);
EXPORTED void *_ZnwmRKSt9nothrow_t(size_t bytes, const void *tag);
EXPORTED void *_ZnamRKSt9nothrow_t(size_t bytes, const void *tag);
EXPORTED void *_ZnwmSt11align_val_tRKSt9nothrow_t(size_t bytes, size_t align, const void *tag);
EXPORTED void *_ZnamSt11align_val_tRKSt9nothrow_t(size_t bytes, size_t align, const void *tag);

void *_Znwm(size_t bytes) {
    return new_or_throw(__builtin_return_address(0), 0, bytes);
}

void *_Znam(size_t bytes) {
    return new_or_throw(__builtin_return_address(0), 0, bytes);
}

void *_ZnwmSt11align_val_t(size_t bytes, size_t align) {
    return new_or_throw(__builtin_return_address(0), align, bytes);
}

void *_ZnamSt11align_val_t(size_t bytes, size_t align) {
    return new_or_throw(__builtin_return_address(0), align, bytes);
}

void *_ZnwmRKSt9nothrow_t(size_t bytes, const void *tag) {
    (void)tag;
    NOTE(bytes);
    return __libc_malloc(bytes);
}

void *_ZnamRKSt9nothrow_t(size_t bytes, const void *tag) {
    (void)tag;
    NOTE(bytes);
    return __libc_malloc(bytes);
}

void *_ZnwmSt11align_val_tRKSt9nothrow_t(size_t bytes, size_t align, const void *tag) {
    (void)tag;
    NOTE(bytes);
    return __libc_memalign(align, bytes);
}

void *_ZnamSt11align_val_tRKSt9nothrow_t(size_t bytes, size_t align, const void *tag) {
    (void)tag;
    NOTE(bytes);
    return __libc_memalign(align, bytes);
}
#endif

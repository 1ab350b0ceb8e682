/* SPDX-License-Identifier: BSD-3-Clause */
/* AddressSanitizer stops whoever touches memory that no buffer holds (docs/numbers.md). Other builds do nothing. For
 * host-readable memory only. */
#ifndef TESS_POISON_H
#define TESS_POISON_H
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
enum { TESS__CHECKING = 1 };
#define tess__poison(at, bytes) ASAN_POISON_MEMORY_REGION(at, bytes)
#define tess__unpoison(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#else
enum { TESS__CHECKING = 0 };
#define tess__poison(at, bytes) ((void)(at), (void)(bytes))
#define tess__unpoison(at, bytes) ((void)(at), (void)(bytes))
#endif
#endif

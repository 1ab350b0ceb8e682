/* SPDX-License-Identifier: BSD-3-Clause */
/* Step memory that no buffer holds is off limits: AddressSanitizer stops whoever touches it (NUMBERS, "Measured
 * apart"). Nothing in other builds. Host-readable memory only. */
#ifndef TESS_POISON_H
#define TESS_POISON_H
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define tess__poison(at, bytes) ASAN_POISON_MEMORY_REGION(at, bytes)
#define tess__unpoison(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#else
#define tess__poison(at, bytes) ((void)(at), (void)(bytes))
#define tess__unpoison(at, bytes) ((void)(at), (void)(bytes))
#endif
#endif

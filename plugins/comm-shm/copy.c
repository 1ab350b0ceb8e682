/* SPDX-License-Identifier: BSD-3-Clause */
#include "copy.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* Whole lines at a time from an aligned destination on. */
__attribute__((target("avx"))) static void stream_lines(char *to, const char *from, uint64_t lines) {
    for (; lines > 0; lines--, to += 64, from += 64) {
        __m256i a = _mm256_loadu_si256((const void *)from), b = _mm256_loadu_si256((const void *)(from + 32));
        _mm256_stream_si256((void *)to, a);
        _mm256_stream_si256((void *)(to + 32), b);
    }
}

void shm_copy(void *to, const void *from, uint64_t bytes, int stream) {
    uint64_t head = (64 - ((uintptr_t)to & 63)) & 63;
    if (!stream || bytes < 4096 || !__builtin_cpu_supports("avx")) {
        memcpy(to, from, bytes);
        return;
    }
    uint64_t lines = (bytes - head) / 64, tail = bytes - head - lines * 64;
    memcpy(to, from, head);
    stream_lines((char *)to + head, (const char *)from + head, lines);
    memcpy((char *)to + bytes - tail, (const char *)from + bytes - tail, tail);
}

void shm_copy_end(void) {
    _mm_sfence(); /* streaming stores are ordered by nothing else */
}
#else
void shm_copy(void *to, const void *from, uint64_t bytes, int stream) {
    (void)stream;
    memcpy(to, from, bytes);
}

void shm_copy_end(void) {}
#endif

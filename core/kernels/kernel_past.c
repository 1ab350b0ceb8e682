/* SPDX-License-Identifier: BSD-3-Clause */
#include "isa.h"
#include "kernels.h"

#include <string.h>
#if defined(TESS_HAVE_X86)
#include <emmintrin.h>
#endif

/* Every x86-64 has these stores. Four of them fill a line, which is then written without having been read. */
void tess__copy_past(void *to, const void *from, uint64_t bytes) {
    uint64_t done = 0;
#if defined(TESS_HAVE_X86)
    if ((uintptr_t)to % TESS__PAST_ALIGN == 0) {
        for (; done + TESS__PAST_ALIGN <= bytes; done += TESS__PAST_ALIGN)
            for (uint64_t i = done; i < done + TESS__PAST_ALIGN; i += sizeof(__m128i))
                _mm_stream_si128((__m128i *)(void *)((char *)to + i),
                                 _mm_loadu_si128((const __m128i *)(const void *)((const char *)from + i)));
        _mm_sfence();
    }
#endif
    memcpy((char *)to + done, (const char *)from + done, bytes - done);
}

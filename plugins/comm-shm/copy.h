/* SPDX-License-Identifier: BSD-3-Clause */
/* Copying blocks that are far larger than the caches. */
#ifndef SHM_COPY_H
#define SHM_COPY_H
#include <stdint.h>

/* As memcpy. `stream`: the destination is not read soon, so it is written past the caches, which saves reading it
 * first; for other threads and processes it is complete after shm_copy_end. */
void shm_copy(void *to, const void *from, uint64_t bytes, int stream);
void shm_copy_end(void);
#endif

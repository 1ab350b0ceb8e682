/* SPDX-License-Identifier: BSD-3-Clause */
/* Copying blocks that are far larger than the caches. */
#ifndef SHM_COPY_H
#define SHM_COPY_H
#include <stdint.h>

/* Copies like memcpy. With `stream` it bypasses the caches, which saves reading a destination that nobody reads soon.
 * Other threads and processes see such a copy complete after shm_copy_end. */
void shm_copy(void *to, const void *from, uint64_t bytes, int stream);
void shm_copy_end(void);
#endif

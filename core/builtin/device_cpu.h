/* SPDX-License-Identifier: BSD-3-Clause */
/* The built-in device `cpu`: plain memory, work done when the call returns. Threads per kernel: option "threads", else
 * 1. */
#ifndef TESS_DEVICE_CPU_H
#define TESS_DEVICE_CPU_H
#include <tessera/plugin.h>

tess_status tess__device_cpu_open(const tess_host *, const void **ops, void **ctx, tess_error *);

/** The bytes that a cpu device has obtained from the operating system for `domain` (TESS_DOMAIN_…): now, and at most so
 * far. It counts at mmap and munmap and knows nothing of any plan, so tests hold plans against it. */
void tess__device_cpu_obtained(tess_device *, uint32_t domain, uint64_t *now, uint64_t *peak);

#endif

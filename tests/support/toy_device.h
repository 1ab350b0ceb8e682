/* SPDX-License-Identifier: BSD-3-Clause */
/* Where the toy's numbers lie: in the host's memory, or on a GPU, where its arithmetic cannot reach them as they lie.
 */
#ifndef TOY_DEVICE_H
#define TOY_DEVICE_H
#include <stddef.h>
#include <tessera/tessera.h>

/** With TESSERA_DEVICE=cuda (or the plugin's path): takes a stream of the GPU of LOCAL_RANK and says so in the options.
 * TOY_DEFAULT_STREAM: takes the default stream, and gives none. 0; -1 when there is none, having said why. */
int toy_device_open(tess_options *);
void toy_device_close(void);
/** Whether toy_read and toy_write are needed. */
int toy_on_device(void);
/** Whether a call of the driver failed, which was said. */
int toy_device_failed(void);
/** In the order of the stream, done when they return. */
void toy_read(void *host, const void *at, size_t bytes);
void toy_write(void *at, const void *host, size_t bytes);
#endif

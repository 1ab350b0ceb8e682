/* SPDX-License-Identifier: BSD-3-Clause */
/* The first words of ranks when they connected, out of a capture file of the switch. */
#ifndef STRANGERS_CAPTURE_H
#define STRANGERS_CAPTURE_H
#include <stddef.h>

typedef struct {
    unsigned char data[2048];
    size_t bytes;
} recorded;

/** The first segment to `port` (0: any) that begins with the text. 0, or -1: there is none. */
int recorded_find(const char *capture, int port, const char *begin, recorded *out);
#endif

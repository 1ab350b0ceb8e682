/* SPDX-License-Identifier: BSD-3-Clause */
/* A capture file of whole Ethernet frames, as libpcap's programs read it. */
#ifndef SWITCH_CAPTURE_H
#define SWITCH_CAPTURE_H
#include <stddef.h>
#include <stdio.h>

/** Null: errno says why. fclose ends it. */
FILE *switch_capture_open(const char *path);
int switch_capture_add(FILE *, const void *frame, size_t bytes);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#include "strangers_capture.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { FILE_HEAD = 24, ETHERNET = 14, FRAME = 1 << 17 };

static unsigned two_bytes(const unsigned char *at) {
    return (unsigned)at[0] << 8 | at[1];
}

/* Of TCP over IPv4; null: none. */
static const unsigned char *payload(const unsigned char *frame, size_t size, int port, size_t *bytes) {
    if (size < ETHERNET + 40 || two_bytes(frame + 12) != 0x0800 || frame[ETHERNET + 9] != 6)
        return NULL;
    const unsigned char *ip = frame + ETHERNET, *tcp = ip + (size_t)(ip[0] & 15) * 4;
    const unsigned char *data = tcp + (size_t)(tcp[12] >> 4) * 4, *end = ip + two_bytes(ip + 2);
    if (data >= end || end > frame + size || (port && two_bytes(tcp + 2) != (unsigned)port))
        return NULL;
    *bytes = (size_t)(end - data);
    return data;
}

static int take(const unsigned char *frame, size_t size, int port, const char *begin, recorded *out) {
    size_t bytes = 0, length = strlen(begin);
    const unsigned char *data = payload(frame, size, port, &bytes);
    if (!data || bytes < length || bytes > sizeof out->data || memcmp(data, begin, length) != 0)
        return 0;
    memcpy(out->data, data, bytes);
    out->bytes = bytes;
    return 1;
}

int recorded_find(const char *capture, int port, const char *begin, recorded *out) {
    static unsigned char frame[FRAME];
    uint32_t head[4];
    FILE *f = fopen(capture, "rbe");
    int found = 0;
    if (!f || fseek(f, FILE_HEAD, SEEK_SET) != 0)
        return -1;
    while (!found && fread(head, sizeof head, 1, f) == 1 && head[2] <= sizeof frame && fread(frame, head[2], 1, f) == 1)
        found = take(frame, head[2], port, begin, out);
    fclose(f);
    return found ? 0 : -1;
}

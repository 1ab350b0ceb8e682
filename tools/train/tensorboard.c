/* SPDX-License-Identifier: BSD-3-Clause */
#include "tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 4096, MOST_VALUES = 16, MOST_TEXT = 2000, VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

/* CRC-32C, the checksum of a record's head and body. */
static uint32_t crc32c(const uint8_t *data, size_t bytes) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (0x82f63b78u & -(crc & 1));
    }
    return ~crc;
}

/* ---- protobuf ---------------------------------------------------------------------------------------- */
typedef struct { /* a field that does not fit is omitted as a whole */
    uint8_t at[MOST];
    size_t n;
} message;

static void put_raw(message *m, const void *data, size_t bytes) {
    if (bytes > MOST - m->n)
        return;
    memcpy(m->at + m->n, data, bytes);
    m->n += bytes;
}

static void put_varint(message *m, uint64_t value) {
    uint8_t byte;
    for (; value >= 0x80; value >>= 7) {
        byte = (uint8_t)(value | 0x80);
        put_raw(m, &byte, 1);
    }
    byte = (uint8_t)value;
    put_raw(m, &byte, 1);
}

static void put_key(message *m, uint32_t field, uint32_t type) {
    put_varint(m, field << 3 | type);
}

/* All numbers of a record are little-endian. */
static void put_fixed(message *m, uint64_t bits, int bytes) {
    uint8_t out[8];
    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(bits >> 8 * i);
    put_raw(m, out, (size_t)bytes);
}

static void put_double(message *m, uint32_t field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(m, field, FIXED64);
    put_fixed(m, bits, 8);
}

static void put_float(message *m, uint32_t field, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(m, field, FIXED32);
    put_fixed(m, bits, 4);
}

static void put_bytes(message *m, uint32_t field, const void *data, size_t bytes) {
    put_key(m, field, BYTES);
    put_varint(m, bytes);
    put_raw(m, data, bytes);
}

static void put_message(message *m, uint32_t field, const message *of) {
    put_bytes(m, field, of->at, of->n);
}

static void put_number(message *m, uint32_t field, uint64_t value) {
    put_key(m, field, VARINT);
    put_varint(m, value);
}

/* ---- records ------------------------------------------------------------------------------------------- */
static void put_masked(message *m, const void *data, size_t bytes) {
    uint32_t crc = crc32c(data, bytes);
    put_fixed(m, (crc >> 15 | crc << 17) + 0xa282ead8u, 4);
}

/* Writes each record at once, so that a reader sees complete records. */
static void write_event(tensorboard *b, const message *event) {
    message record = { .n = 0 };
    if (b->file < 0 || b->failed)
        return;
    put_fixed(&record, event->n, 8);
    put_masked(&record, record.at, 8);
    put_raw(&record, event->at, event->n);
    put_masked(&record, event->at, event->n);
    ssize_t written = write(b->file, record.at, record.n);
    if (written != (ssize_t)record.n)
        b->failed = written < 0 ? errno : ENOSPC;
}

static message event_at(uint64_t step) {
    message event = { .n = 0 };
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    put_double(&event, 1, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    if (step)
        put_number(&event, 2, step);
    return event;
}

/* ---- files --------------------------------------------------------------------------------------------- */
static tess_status cannot(const tensorboard *b, int error) {
    return tess_fail(TESS_E_DATA, "--tensorboard=%s: %s", b->dir, strerror(error));
}

tess_status tensorboard_open(tensorboard *b, const char *dir) {
    static const char version[] = "brain.Event:2";
    char host[64] = "host", path[4096];
    *b = (tensorboard){ .file = -1 };
    snprintf(b->dir, sizeof b->dir, "%s", dir);
    gethostname(host, sizeof host - 1);
    int n = snprintf(path, sizeof path, "%s/events.out.tfevents.%010lld.%s.%d", dir, (long long)time(NULL), host,
                     (int)getpid());
    if ((size_t)n >= sizeof path)
        return cannot(b, ENAMETOOLONG);
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return cannot(b, errno);
    b->file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (b->file < 0)
        return cannot(b, errno);
    message event = event_at(0);
    put_bytes(&event, 3, version, sizeof version - 1);
    write_event(b, &event);
    return TESS_OK;
}

/* SessionLog { 1 SessionStatus status = START } */
void tensorboard_begin(tensorboard *b, uint64_t step) {
    message event = event_at(step), log = { .n = 0 };
    put_number(&log, 1, 1);
    put_message(&event, 7, &log);
    write_event(b, &event);
}

void tensorboard_scalars(tensorboard *b, uint64_t step, const tensorboard_scalar *all, size_t n) {
    message event = event_at(step), summary = { .n = 0 };
    for (size_t i = 0; i < n && i < MOST_VALUES; i++) {
        message value = { .n = 0 };
        if (isnan(all[i].value))
            continue;
        put_bytes(&value, 1, all[i].tag, strlen(all[i].tag));
        put_float(&value, 2, (float)all[i].value);
        put_message(&summary, 1, &value);
    }
    put_message(&event, 5, &summary);
    write_event(b, &event);
}

/* TensorProto { 1 dtype = DT_STRING; 2 TensorShape { 2 Dim { 1 size } }; 8 string_val }
 * SummaryMetadata { 1 PluginData { 1 plugin_name } } */
void tensorboard_text(tensorboard *b, const char *tag, const char *text) {
    message event = event_at(0), summary = { .n = 0 }, value = { .n = 0 }, tensor = { .n = 0 }, shape = { .n = 0 },
            dim = { .n = 0 }, plugin = { .n = 0 }, metadata = { .n = 0 };
    size_t bytes = strnlen(text, MOST_TEXT);
    put_number(&dim, 1, 1);
    put_message(&shape, 2, &dim);
    put_number(&tensor, 1, 7);
    put_message(&tensor, 2, &shape);
    put_bytes(&tensor, 8, text, bytes);
    put_bytes(&plugin, 1, "text", 4);
    put_message(&metadata, 1, &plugin);
    put_bytes(&value, 1, tag, strlen(tag));
    put_message(&value, 9, &metadata);
    put_message(&value, 8, &tensor);
    put_message(&summary, 1, &value);
    put_message(&event, 5, &summary);
    write_event(b, &event);
}

tess_status tensorboard_close(tensorboard *b) {
    int error = b->failed;
    if (b->file >= 0 && close(b->file) != 0 && !error)
        error = errno;
    b->file = -1;
    b->failed = 0;
    return error ? tess_fail(TESS_E_SYSTEM, "--tensorboard=%s: not everything could be written: %s", b->dir,
                             strerror(error))
                 : TESS_OK;
}

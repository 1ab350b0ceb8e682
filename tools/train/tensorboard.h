/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes TensorBoard's event files without its libraries. A file is a sequence of TFRecord records: length, checksum of
 * the length, bytes, checksum of the bytes. The bytes are a protobuf Event with only the fields that TensorBoard reads:
 *
 *     Event { 1 double wall_time; 2 int64 step; 3 string file_version; 5 Summary summary; 7 SessionLog session_log }
 *     Summary { 1 repeated Value }
 *     Value { 1 string tag; 2 float simple_value; 8 TensorProto; 9 SummaryMetadata }
 */
#ifndef TOOL_TENSORBOARD_H
#define TOOL_TENSORBOARD_H
#include <stddef.h>
#include <stdint.h>
#include <tessera/tessera.h>

typedef struct {
    int file;      /* -1: no file is open */
    int failed;    /* errno of the first failed write, after which nothing more is written */
    char dir[256]; /* for messages */
} tensorboard;

typedef struct {
    const char *tag;
    double value; /* NAN: omitted */
} tensorboard_scalar;

/** Makes DIR if there is none, and a new file in it. TensorBoard reads it together with older files. */
tess_status tensorboard_open(tensorboard *, const char *dir);
/** Tells TensorBoard to forget steps from `step` on, because the run writes them again. */
void tensorboard_begin(tensorboard *, uint64_t step);
/** Writes one event of up to 16 values before it returns. It allocates nothing. */
void tensorboard_scalars(tensorboard *, uint64_t step, const tensorboard_scalar *, size_t n);
/** Writes a text of up to 2,000 bytes, which TensorBoard shows as Markdown. */
void tensorboard_text(tensorboard *, const char *tag, const char *text);
/** Returns TESS_E_SYSTEM if a write failed. */
tess_status tensorboard_close(tensorboard *);
#endif

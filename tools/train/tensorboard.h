/* SPDX-License-Identifier: BSD-3-Clause */
/* Event files of TensorBoard: records of TFRecord (length, its checksum, bytes, theirs), each a protobuf Event. Only
 * what TensorBoard's own reader needs of both, by hand: Event    { 1 double wall_time; 2 int64 step; 3 string
 * file_version; 5 Summary summary; 7 SessionLog session_log } Summary  { 1 repeated Value }     Value { 1 string tag; 2
 * float simple_value; 8 TensorProto; 9 SummaryMetadata } */
#ifndef TOOL_TENSORBOARD_H
#define TOOL_TENSORBOARD_H
#include <stddef.h>
#include <stdint.h>
#include <tessera/tessera.h>

typedef struct {
    int file;      /* -1: none */
    int failed;    /* errno of the first write that failed; then nothing more is written */
    char dir[256]; /* for messages */
} tensorboard;

typedef struct {
    const char *tag;
    double value; /* NAN: left out */
} tensorboard_scalar;

/** Makes DIR where there is none, and a new file in it, which TensorBoard reads beside older ones. */
tess_status tensorboard_open(tensorboard *, const char *dir);
/** Steps from `step` on are written anew: TensorBoard forgets those it has. */
void tensorboard_begin(tensorboard *, uint64_t step);
/** One event of up to 16 values; written before it returns, without memory of its own. */
void tensorboard_scalars(tensorboard *, uint64_t step, const tensorboard_scalar *, size_t n);
/** A text of up to 2,000 bytes, which TensorBoard shows as Markdown. */
void tensorboard_text(tensorboard *, const char *tag, const char *text);
/** TESS_E_SYSTEM when not everything could be written. */
tess_status tensorboard_close(tensorboard *);
#endif

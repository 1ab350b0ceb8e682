/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages to standard error, one line each: "tessera: warning: …". TESSERA_LOG=error|warning|info|debug. */
#ifndef TESS_LOG_H
#define TESS_LOG_H
#include <stdint.h>

enum { TESS_LOG_ERROR = 0, TESS_LOG_WARNING, TESS_LOG_INFO, TESS_LOG_DEBUG };

/** Writes one line in one write(2), with the rank in front when there is more than one ("tessera[2]: …"). */
void tess__log(int32_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));
int32_t tess__log_rank(void);          /* as set; what every rank would say, rank 0 says alone */
void tess__log_set_rank(int32_t rank); /* -1: none */
/** Messages above `level` are not shown; -1: as TESSERA_LOG says. Returns what it was. */
int32_t tess__log_set_least(int32_t level);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* TESSERA_DOUBLE_RACES=1: finds work that touches what work of another stream does, when no event, no wait of the host
 * and no rule of the driver's orders the two. It does not depend on which of them comes first in this run. */
#ifndef TESSERA_DOUBLE_RACES_H
#define TESSERA_DOUBLE_RACES_H
#include "double.h"

typedef struct double_access double_access;
typedef struct double_clock double_clock; /* of a stream: what is over when its next work begins. Null: nobody asked */

/** What a kind of work touches; `data` as it was pushed. It calls the two below for each piece. */
typedef void double_describe_fn(const void *data, double_access *);
void double__describes(double_work_fn, double_describe_fn *); /* at load */
/** The same for a kernel, by its arguments. Of one that nobody describes only the addresses are known. driver_module.c
 */
void double__describes_kernel(const char *name, double_describe_fn *);
void double__reads(double_access *, const char *name, const void *at, uint64_t bytes);
void double__writes(double_access *, const char *name, const void *at, uint64_t bytes);
/** Arguments of which no more is known than that they are addresses: a byte of each is read. */
void double__reads_words(double_access *, const char *name, const void *args, size_t bytes);

/* ---- for stream.c, under its lock ---------------------------------------------------------------- */

double_clock *double__clock_new(void);
void double__clock_end(double_clock *, uint64_t queued);
/** What the host gives to any stream from here on comes behind work `seq` of `other`. */
void double__clock_seen(const double_clock *other, uint64_t seq);
/** Whether that is said of work `seq` of `c`, or nobody asked. */
int double__clock_is_seen(const double_clock *c, uint64_t seq);
/** So does what follows work `at` of `into`, and whoever waits for that. */
void double__clock_join(double_clock *into, uint64_t at, const double_clock *other, uint64_t seq);
/** Work `seq`, the next of this stream. */
void double__clock_work(double_clock *, uint64_t seq, double_work_fn, const void *data);

/** For memory.c: what lay there is gone. */
void double__races_forget(const void *at, uint64_t bytes);
#endif

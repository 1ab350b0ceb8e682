/* SPDX-License-Identifier: BSD-3-Clause */
/* A small pool of persistent worker threads that share out the elements of one kernel at a time. How the elements are
 * shared out never changes a result: kernels work element by element, or sum exactly. */
#ifndef TESS_POOL_H
#define TESS_POOL_H
#include <tessera/plugin.h>
#include <sched.h>

typedef struct tess__pool tess__pool;
/** One worker's part: elements [first, first + elems), `first` a multiple of 256, a block of 8 bits. */
typedef void (*tess__pool_fn)(void *user, uint64_t first, uint64_t elems);

/** `threads` counts the caller: 1 starts nothing. `cpus` ("2,6-7") is where the workers may run; "" leaves them where
 * the creating thread may run. Workers keep denormals and block all signals. */
tess_status tess__pool_create(int32_t threads, const char *cpus, tess__pool **out, tess_error *);
void tess__pool_destroy(tess__pool *); /* waits for nothing but the workers' exit; null is fine */
int32_t tess__pool_threads(const tess__pool *);
/** Runs `fn` over all elements and returns when done. Parts are at least `least` elements, so small work stays on the
 * caller; so does work that comes while another thread holds the pool. Null pool: the caller alone. Allocates nothing.
 */
void tess__pool_run(tess__pool *, uint64_t elems, uint64_t least, tess__pool_fn fn, void *user);
/** "2,6-7" → a set; 0 when the list is empty or malformed. */
int tess__pool_cpus(const char *text, cpu_set_t *set);
#endif

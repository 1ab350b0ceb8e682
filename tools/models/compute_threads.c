/* SPDX-License-Identifier: BSD-3-Clause */
/* libgomp ends the process if it cannot start a thread. So we first start as many threads ourselves, all at once;
 * libgomp starts its own right after them. Another process of the same user may still take a thread in between, and
 * explain_exit reports that case. */
#include "compute_threads.h"

#include "tools/support/say.h"
#include "parallel.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NO_THREADS "cannot start %d compute threads: %s (--threads 1 needs none)"
static int32_t starting; /* number of threads that libgomp is starting; otherwise 0 */

static void explain_exit(void) {
    if (starting == 0)
        return;
    tool_say(SAY_ERROR, NO_THREADS, starting, "the system gives fewer threads");
    _exit(tess_exit_code(TESS_E_SYSTEM));
}

static void *pass_by(void *held) {
    pthread_mutex_lock(held);
    pthread_mutex_unlock(held);
    return NULL;
}

/* Returns 0 or the system's error. */
static int try_threads(int32_t n) {
    pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
    pthread_t *made = malloc((size_t)n * sizeof *made);
    int32_t i = 0;
    int failed = made ? 0 : ENOMEM;
    pthread_mutex_lock(&held); /* no thread ends before the last has started, so all exist at once */
    while (!failed && i < n && (failed = pthread_create(&made[i], NULL, pass_by, &held)) == 0)
        i++;
    pthread_mutex_unlock(&held);
    while (i > 0)
        pthread_join(made[--i], NULL);
    free(made);
    return failed;
}

static void nothing(void *arg, int32_t thread, int64_t first, int64_t last) {
    (void)arg, (void)thread, (void)first, (void)last;
}

tess_status ops_threads_start(ops *o, const tess_stream *stream) {
    static int explains;
    int32_t more = o->threads - 1;
    (void)stream;
    if (more == 0)
        return TESS_OK;
    int failed = try_threads(more);
    if (failed)
        return tess_fail(TESS_E_SYSTEM, NO_THREADS, more, strerror(failed));
    if (!explains)
        explains = atexit(explain_exit) == 0;
    starting = more;
    ops_parallel(o, o->threads, 1, nothing, NULL);
    starting = 0;
    return TESS_OK;
}

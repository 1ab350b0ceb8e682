/* SPDX-License-Identifier: BSD-3-Clause */
#include "pool.h"
#include "fp_env.h"
#include "thread.h"
#include <tessera/plugin_helpers.h>

#include <errno.h>
#include <pthread.h>

#include <stdlib.h>

enum { POOL_MOST_THREADS = 256 };

typedef struct {
    tess__pool *pool;
    pthread_t thread;
    int32_t index; /* 1 …; the caller is 0 */
} worker;

struct tess__pool {
    int32_t threads, started;
    pthread_mutex_t busy; /* held by the caller whose work is running */
    pthread_mutex_t lock;
    pthread_cond_t start, done;
    uint64_t round; /* counts pieces of work; the rest belongs to the current one */
    int32_t parts, left, stop;
    uint64_t elems, part_elems;
    tess__pool_fn fn;
    void *user;
    worker workers[];
};

static void run_part(const tess__pool *pool, int32_t part) {
    uint64_t first = (uint64_t)part * pool->part_elems;
    if (first >= pool->elems)
        return;
    uint64_t rest = pool->elems - first;
    pool->fn(pool->user, first, rest < pool->part_elems ? rest : pool->part_elems);
}

static void *pool_work(void *arg) {
    worker *self = arg;
    tess__pool *pool = self->pool;
    uint64_t seen = 0;
    tess__fp_enter();
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stop && pool->round == seen)
            pthread_cond_wait(&pool->start, &pool->lock);
        if (pool->stop)
            break;
        seen = pool->round;
        if (self->index >= pool->parts)
            continue;
        pthread_mutex_unlock(&pool->lock);
        run_part(pool, self->index);
        pthread_mutex_lock(&pool->lock);
        if (--pool->left == 0)
            pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

int tess__pool_cpus(const char *text, cpu_set_t *set) {
    CPU_ZERO(set);
    while (*text) {
        char *end;
        long low = strtol(text, &end, 10), high = low;
        if (end == text)
            return 0;
        if (*end == '-') {
            text = end + 1;
            high = strtol(text, &end, 10);
            if (end == text)
                return 0;
        }
        if (low < 0 || high < low || high >= CPU_SETSIZE || (*end && *end != ','))
            return 0;
        for (long cpu = low; cpu <= high; cpu++)
            CPU_SET(cpu, set);
        text = *end ? end + 1 : end;
    }
    return CPU_COUNT(set) > 0;
}

static tess_status start_workers(tess__pool *pool, const cpu_set_t *cpus, tess_error *error) {
    int failed = 0;
    for (int32_t i = 1; i < pool->threads && !failed; i++) {
        worker *w = &pool->workers[i - 1];
        w->pool = pool;
        w->index = i;
        failed = tess__thread_start(&w->thread, pool_work, w);
        if (!failed) {
            pool->started++;
            if (cpus)
                failed = pthread_setaffinity_np(w->thread, sizeof *cpus, cpus);
        }
    }
    if (failed)
        return tess_plugin_fail(error, TESS_E_SYSTEM, "cannot start %d worker threads: %s", pool->threads - 1,
                                strerror(failed));
    return TESS_OK;
}

tess_status tess__pool_create(int32_t threads, const char *cpus, tess__pool **out, tess_error *error) {
    cpu_set_t set;
    int bind = cpus && *cpus;
    if (threads < 1 || threads > POOL_MOST_THREADS)
        return tess_plugin_fail(error, TESS_E_INVALID, "%d kernel threads asked for, expected 1 to %d", threads,
                                POOL_MOST_THREADS);
    if (bind && !tess__pool_cpus(cpus, &set))
        return tess_plugin_fail(error, TESS_E_INVALID, "\"%s\" is no list of cpus, expected a list such as 2,6-7",
                                cpus);
    tess__pool *pool = calloc(1, sizeof *pool + (size_t)(threads - 1) * sizeof pool->workers[0]);
    if (!pool)
        return tess_plugin_fail(error, TESS_E_NOMEM, "no memory for a pool of %d threads", threads);
    pool->threads = threads;
    pthread_mutex_init(&pool->busy, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->done, NULL);
    tess_status status = start_workers(pool, bind ? &set : NULL, error);
    if (status < 0) {
        tess__pool_destroy(pool);
        return status;
    }
    *out = pool;
    return TESS_OK;
}

void tess__pool_destroy(tess__pool *pool) {
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = 1;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
    for (int32_t i = 0; i < pool->started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->start);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->busy);
    free(pool);
}

int32_t tess__pool_threads(const tess__pool *pool) {
    return pool ? pool->threads : 1;
}

/* The pool is ours (busy is held): hands out parts 1 …, runs part 0, waits for the others. */
static void share_parts(tess__pool *pool, int32_t parts, uint64_t elems, tess__pool_fn fn, void *user) {
    pthread_mutex_lock(&pool->lock);
    pool->parts = parts;
    pool->left = parts - 1;
    pool->elems = elems;
    pool->part_elems = ((elems + (uint64_t)parts - 1) / (uint64_t)parts + 255) / 256 * 256;
    pool->fn = fn;
    pool->user = user;
    pool->round++;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
    run_part(pool, 0);
    pthread_mutex_lock(&pool->lock);
    while (pool->left)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void tess__pool_run(tess__pool *pool, uint64_t elems, uint64_t least, tess__pool_fn fn, void *user) {
    if (!elems)
        return;
    uint64_t parts = least ? elems / least : elems;
    if (parts > (uint64_t)tess__pool_threads(pool))
        parts = (uint64_t)tess__pool_threads(pool);
    tess__fp old = tess__fp_enter();
    if (parts < 2 || pthread_mutex_trylock(&pool->busy)) {
        fn(user, 0, elems);
    } else {
        share_parts(pool, (int32_t)parts, elems, fn, user);
        pthread_mutex_unlock(&pool->busy);
    }
    tess__fp_leave(old);
}

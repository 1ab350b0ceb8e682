/* SPDX-License-Identifier: BSD-3-Clause */
/* Two batches for a device, in memory that its copies reach directly. A thread fills one while the device uses the
 * other, so reading data costs the step nothing. A batch is never filled before it is read: each pass ends with its
 * result, which comes later in the stream. The CPU's cores are busy, so it has one batch and no thread. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>
#include "train.h"
#include "tools/support/say.h"

struct train_feed {
    train_run *r;
    const model *m; /* owns the batches' memory */
    void *batch[2];
    int current; /* index of the batch in use */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int has_thread, wanted, filled, stop; /* wanted: the other batch must be filled; filled: it is complete */
    uint64_t step;                        /* the step and microbatch k that it is filled for */
    int32_t k;
};

static void *fill_other(void *arg) {
    train_feed *f = arg;
    pthread_mutex_lock(&f->lock);
    while (!f->stop) {
        if (!f->wanted) {
            pthread_cond_wait(&f->changed, &f->lock);
            continue;
        }
        pthread_mutex_unlock(&f->lock);
        f->r->ops->fill(f->r, f->step, f->k, f->batch[!f->current]);
        pthread_mutex_lock(&f->lock);
        f->wanted = 0;
        f->filled = 1;
        pthread_cond_broadcast(&f->changed);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static tess_status obtain(train_feed *f) {
    ops *o = f->m->o;
    uint64_t bytes = f->m->desc.input_bytes;
    TRY(o->t->pinned_alloc(o, bytes, &f->batch[0]));
    return o->t->pinned_alloc(o, bytes, &f->batch[1]);
}

tess_status train_feed_open(train_run *r) {
    if (!r->m->o->t->pinned_alloc)
        return TESS_OK;
    train_feed *f = r->feed = calloc(1, sizeof *f);
    if (!f)
        return tess_fail(TESS_E_NOMEM, "no memory for batches");
    f->r = r;
    f->m = r->m;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    TRY(obtain(f));
    f->has_thread = pthread_create(&f->thread, NULL, fill_other, f) == 0;
    if (!f->has_thread)
        return tess_fail(TESS_E_SYSTEM, "no thread to read batches");
    free(r->batch);
    r->batch = f->batch[0];
    return TESS_OK;
}

/* Requests the batch that follows microbatch k of `step`. */
static void ask_for_next(train_feed *f, uint64_t step, int32_t k) {
    int last = k == (int32_t)f->r->s.accum - 1;
    f->step = last ? step + 1 : step;
    f->k = last ? 0 : k + 1;
    f->filled = 0;
    f->wanted = f->step < f->r->task.steps;
    pthread_cond_broadcast(&f->changed);
}

void train_feed_next(train_run *r, uint64_t step, int32_t k) {
    train_feed *f = r->feed;
    if (!f) {
        r->ops->fill(r, step, k, r->batch);
        return;
    }
    pthread_mutex_lock(&f->lock);
    while (f->wanted)
        pthread_cond_wait(&f->changed, &f->lock);
    if (f->filled && f->step == step && f->k == k)
        f->current = !f->current;
    else
        r->ops->fill(r, step, k, f->batch[f->current]);
    r->batch = f->batch[f->current];
    ask_for_next(f, step, k);
    pthread_mutex_unlock(&f->lock);
}

void train_feed_forget(train_run *r) {
    train_feed *f = r->feed;
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    while (f->wanted)
        pthread_cond_wait(&f->changed, &f->lock);
    f->filled = 0;
    pthread_mutex_unlock(&f->lock);
}

void train_feed_close(train_run *r) {
    train_feed *f = r->feed;
    if (!f)
        return;
    if (f->has_thread) {
        pthread_mutex_lock(&f->lock);
        f->stop = 1;
        pthread_cond_broadcast(&f->changed);
        pthread_mutex_unlock(&f->lock);
        pthread_join(f->thread, NULL);
        r->batch = NULL;
    }
    for (int i = 0; i < 2; i++)
        if (f->batch[i])
            f->m->o->t->pinned_free(f->m->o, f->batch[i]);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f);
    r->feed = NULL;
}

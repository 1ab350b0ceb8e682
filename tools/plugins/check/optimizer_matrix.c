/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks an optimizer plugin's work on whole matrices: what it writes, and that neither threads nor old bytes change
 * it. */
#include "optimizer.h"

#include <pthread.h>
#include <string.h>

typedef struct {
    void (*fn)(void *user, uint64_t first, uint64_t n);
    void *user;
    uint64_t first, n;
} shared_part;

static void *do_shared(void *arg) {
    const shared_part *s = arg;
    for (uint64_t i = s->n; i-- > 0;)
        s->fn(s->user, s->first + i, 1);
    return NULL;
}

/* Two threads, each part by itself, the last one first. */
static void share_apart(void *pool, uint64_t n, void (*fn)(void *user, uint64_t first, uint64_t n), void *user) {
    shared_part low = { fn, user, 0, n / 2 }, high = { fn, user, n / 2, n - n / 2 };
    pthread_t thread;
    (void)pool;
    int started = pthread_create(&thread, NULL, do_shared, &low) == 0;
    do_shared(&high);
    if (started)
        pthread_join(thread, NULL);
    else
        do_shared(&low);
}

/* Three parts, the middle one first. */
static void share_in_three(void *pool, uint64_t n, void (*fn)(void *user, uint64_t first, uint64_t n), void *user) {
    static const uint64_t order[] = { 1, 0, 2 };
    (void)pool;
    for (int i = 0; i < 3; i++) {
        uint64_t first = n * order[i] / 3, end = n * (order[i] + 1) / 3;
        if (end > first)
            fn(user, first, end - first);
    }
}

static void has_matrices(check *c, int steps) {
    if (!steps)
        check_skip(c, "steps no whole matrix");
}

/* The same parameter twice; 0 where it is no matrix. */
static int two_matrices(check *c, int i, stepped *a, stepped *b) {
    if (!stepped_new(c, i, a))
        return 0;
    if (a->grain.grain == TESS_GRAIN_MATRIX && stepped_new(c, i, b))
        return 1;
    stepped_free(a);
    return 0;
}

/* The first step, up to the work on matrices. */
static void before_work(check *c, stepped *x) {
    memset(x->update.at, x->in_update, x->update.bytes);
    x->phase = TESS_PHASE_BEFORE;
    stepped_gradient(x, 1);
    stepped_cut(c, x, 1, x->param.elems, 0);
}

/* Nothing but the update of one matrix, and the states that travel with it, is written. */
void matrix_alone(check *c) {
    int steps = 0;
    open_optimizer(c);
    for (int i = 0; i < SHAPES; i++) {
        stepped x, before;
        if (!two_matrices(c, i, &x, &before))
            continue;
        before_work(c, &x);
        before_work(c, &before);
        const uint64_t elems = x.grain.rows * x.grain.cols, last = x.param.elems / elems - 1;
        check_thread_state thread;
        check_thread_look(&thread);
        stepped_matrix(c, &x, 1, last);
        const char *changed = check_thread_changed(&thread);
        check_that(c, !changed, "matrix changes %s of the calling thread", changed);
        stepped_untouched(c, &x.update, before.update.at, 4 * last * elems, 4 * (last + 1) * elems, "the update");
        stepped_untouched(c, &x.master, before.master.at, 0, 0, "the parameter");
        stepped_untouched(c, &x.grad, before.grad.at, 0, 0, "the gradient");
        for (uint32_t k = 0; k < x.grain.n_states; k++)
            stepped_untouched(
                c, &x.state[k], before.state[k].at, x.grain.whole >> k & 1 ? stepped_state_at(&x, k, last * elems) : 0,
                x.grain.whole >> k & 1 ? stepped_state_at(&x, k, (last + 1) * elems) : 0, x.grain.state[k].name);
        stepped_free(&x);
        stepped_free(&before);
        steps++;
    }
    has_matrices(c, steps);
}

/* Steps each matrix in two surroundings, of which `b` has the other one. */
static int compare_steps(check *c, share_fn *share, unsigned char in_scratch, const char *when, const char *than) {
    int steps = 0;
    for (int i = 0; i < SHAPES; i++) {
        stepped a, b;
        if (!two_matrices(c, i, &a, &b))
            continue;
        b.share = share ? share : b.share;
        b.in_scratch = in_scratch;
        for (uint64_t step = 1; step <= STEPS; step++) {
            stepped_gradient(&a, step);
            stepped_gradient(&b, step);
            stepped_at_once(c, &a, step);
            stepped_at_once(c, &b, step);
            stepped_same(c, &a, &b, when, than);
        }
        stepped_free(&a);
        stepped_free(&b);
        steps++;
    }
    return steps;
}

/* A part that a thread takes has any number of elements, so the bits must not depend on it. */
void matrix_any_parts(check *c) {
    static const char than[] = "with share in one";
    open_optimizer(c);
    has_matrices(c, compare_steps(c, share_in_three, 0x11, "matrix with share in three parts", than));
    compare_steps(c, share_apart, 0x11, "matrix with share in parts of one, on two threads", than);
}

/* Bytes of 0xff are NaN in fp32. */
void matrix_any_scratch(check *c) {
    open_optimizer(c);
    has_matrices(c, compare_steps(c, NULL, 0xff, "matrix with other bytes in its scratch", "with those before"));
}

/* The phase before writes all of the update, so two that find other bytes there leave the same. */
void update_written(check *c) {
    int steps = 0;
    open_optimizer(c);
    for (int i = 0; i < SHAPES; i++) {
        stepped a, b;
        if (!two_matrices(c, i, &a, &b))
            continue;
        b.in_update = 0xff;
        before_work(c, &a);
        before_work(c, &b);
        for (uint64_t e = 0; e < a.update.bytes; e++)
            check_that(c, a.update.at[e] == b.update.at[e],
                       "%llu elements, before: step does not write element %llu of update, or reads what was there",
                       (unsigned long long)a.param.elems, (unsigned long long)e / 4);
        stepped_free(&a);
        stepped_free(&b);
        steps++;
    }
    has_matrices(c, steps);
}

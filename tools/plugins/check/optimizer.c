/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks an optimizer plugin's steps on pieces of any size, in any order, from several threads, and in a device's
 * memory. */
#include "optimizer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

/* Skips the check if the device's kernels do all steps. */
static void has_steps(check *c, int steps) {
    if (!steps)
        check_skip(c, "has no step of its own");
}

static void cut_anywhere(check *c) {
    static const uint64_t cuts[] = { 1, 2, 3, 7, 64, 1000 };
    int steps = 0;
    open_optimizer(c);
    for (int i = 0; i < SHAPES; i++)
        for (size_t k = 0; k < sizeof cuts / sizeof cuts[0]; k++) {
            stepped whole, cut;
            if (!stepped_new(c, i, &whole) || !stepped_new(c, i, &cut))
                continue;
            for (uint64_t step = 1; step <= STEPS; step++) {
                stepped_gradient(&whole, step);
                stepped_gradient(&cut, step);
                stepped_at_once(c, &whole, step);
                stepped_phases(c, &cut, step, cuts[k], k % 2);
                stepped_same(c, &whole, &cut, "cut", "in one piece");
            }
            stepped_free(&whole);
            stepped_free(&cut);
            steps++;
        }
    has_steps(c, steps);
}

typedef struct {
    stepped *x;
    uint64_t step, first, elems;
    tess_status status;
} share;

static void *step_share(void *arg) {
    share *s = arg;
    for (uint64_t at = s->first, most = 3 * stepped_grain(s->x); at < s->first + s->elems && !s->status; at += most) {
        uint64_t left = s->first + s->elems - at;
        s->status = stepped_piece(s->x, s->step, at, left < most ? left : most, NULL);
    }
    return NULL;
}

static void step_shares(check *c, stepped *x, uint64_t step) {
    enum { THREADS = 4 };
    uint64_t elems = x->param.elems, grain = stepped_grain(x), part = (elems / THREADS + grain) / grain * grain;
    pthread_t thread[THREADS];
    share s[THREADS];
    for (uint64_t i = 0; i < THREADS; i++) {
        uint64_t first = i * part < elems ? i * part : elems;
        s[i] = (share){ x, step, first, first + part < elems ? part : elems - first, TESS_OK };
        check_that(c, pthread_create(&thread[i], NULL, step_share, &s[i]) == 0, "cannot start a thread");
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        check_that(c, s[i].status == TESS_OK, "step from a thread gave %s", check_status(s[i].status));
    }
}

static void several_threads(check *c) {
    stepped whole, cut;
    open_optimizer(c);
    if (!stepped_new(c, SHAPES - 1, &whole) || !stepped_new(c, SHAPES - 1, &cut))
        check_skip(c, "has no step of its own");
    for (uint64_t step = 1; step <= 20; step++) {
        stepped_gradient(&whole, step);
        stepped_gradient(&cut, step);
        stepped_at_once(c, &whole, step);
        cut.phase = cut.grain.grain == TESS_GRAIN_MATRIX ? TESS_PHASE_BEFORE : TESS_PHASE_WHOLE;
        memset(cut.update.at, cut.in_update, cut.update.bytes);
        step_shares(c, &cut, step);
        if (cut.phase == TESS_PHASE_BEFORE) {
            stepped_matrix(c, &cut, step, 0);
            cut.phase = TESS_PHASE_AFTER;
            step_shares(c, &cut, step);
        }
        stepped_same(c, &whole, &cut, "from four threads", "in one piece");
    }
    stepped_free(&whole);
    stepped_free(&cut);
}

/* Steps a piece in the middle. The bytes before and behind it and the gradient must not change. */
static void nothing_else_written(check *c) {
    int steps = 0;
    open_optimizer(c);
    for (int i = 0; i < SHAPES; i++) {
        stepped x, before;
        if (!stepped_new(c, i, &x) || !stepped_new(c, i, &before))
            continue;
        uint64_t elems = x.param.elems, grain = stepped_grain(&x), first = elems / 3 / grain * grain;
        uint64_t n = elems - first > 2 * grain ? (elems - first) / 2 / grain * grain : elems - first;
        check_thread_state thread;
        stepped_gradient(&x, 1);
        stepped_gradient(&before, 1);
        check_thread_look(&thread);
        if (x.grain.grain == TESS_GRAIN_MATRIX) {
            x.phase = TESS_PHASE_BEFORE;
            stepped_must(c, &x, 1, first, n);
            stepped_untouched(c, &x.master, before.master.at, 0, 0, "the parameter, before");
            stepped_untouched(c, &x.update, before.update.at, 4 * first, 4 * (first + n), "the update");
            memcpy(before.update.at, x.update.at, x.update.bytes);
            x.phase = TESS_PHASE_AFTER;
        }
        stepped_must(c, &x, 1, first, n);
        const char *changed = check_thread_changed(&thread);
        check_that(c, !changed, "step changes %s of the calling thread", changed);
        stepped_untouched(c, &x.update, before.update.at, 0, 0, "the update, after");
        stepped_untouched(c, &x.grad, before.grad.at, 0, 0, "the gradient");
        stepped_untouched(c, &x.master, before.master.at, 4 * first, 4 * (first + n), "the parameter");
        for (uint32_t k = 0; k < x.grain.n_states; k++)
            stepped_untouched(c, &x.state[k], before.state[k].at, stepped_state_at(&x, k, first),
                              stepped_state_at(&x, k, first + n), x.grain.state[k].name);
        check_that(c, memcmp(x.master.at, before.master.at, x.master.bytes) != 0, "a step changes no parameter");
        stepped_free(&x);
        stepped_free(&before);
        steps++;
    }
    has_steps(c, steps);
}

/* ---- step in a device's memory ---- */

static struct { void *plugin, *opened; } gpu;

static void end_device(check *c) {
    if (gpu.opened)
        optimizer_ops->device_close(gpu.opened);
    device_give_back(c, gpu.plugin);
}

static void open_device(check *c) {
    tess_error e = { .struct_size = sizeof e };
    check_that(c,
               TESS_CAN(tess_optimizer_ops, optimizer_ops, device_open) &&
                   TESS_CAN(tess_optimizer_ops, optimizer_ops, device_step),
               "has device_close without device_open or device_step");
    check_that(
        c, optimizer_ops->device_open(optimizer_ctx, TESS_MEM_SHM, NULL, NULL, &e) == TESS_E_UNSUPPORTED && *e.message,
        "device_open takes memory that no device has");
    check_that(c, optimizer_ops->device_open(optimizer_ctx, TESS_MEM_CUDA, NULL, NULL, &e) == TESS_OK,
               "device_open refuses CUDA's memory: %s", e.message);
    gpu.plugin = device_borrow(c, 0);
    c->finish = end_device;
    tess_stream stream = { .mem = TESS_MEM_CUDA, .device = 0, .handle = dut.stream.handle };
    tess_status s = optimizer_ops->device_open(optimizer_ctx, TESS_MEM_CUDA, &stream, &gpu.opened, &e);
    check_that(c, s == TESS_OK && gpu.opened, "device_open gave %s: %s", check_status(s), e.message);
}

/* Steps x there, two grains of the first piece and then the rest, with gradients that are still to be scaled. */
static void step_there(check *c, stepped *x, uint64_t step, const tess_buffer *clip, const tess_buffer *note) {
    tess_buffer master = upload(x->master.at, x->master.bytes), grad = upload(x->grad.at, x->grad.bytes);
    tess_buffer state[TESS_STATES_MOST];
    for (uint32_t k = 0; k < x->grain.n_states; k++)
        state[k] = upload(x->state[k].at, x->state[k].bytes);
    uint64_t cut = 2 * stepped_grain(x) < x->param.elems ? 2 * stepped_grain(x) : x->param.elems;
    for (uint64_t first = 0; first < x->param.elems; first += cut, cut = x->param.elems - first) {
        tess_optimizer_piece p = stepped_piece_of(x, step, first, cut);
        tess_error e = { .struct_size = sizeof e };
        p.master = (float *)master.ptr + first;
        p.grad = (const float *)grad.ptr + first;
        for (uint32_t k = 0; k < x->grain.n_states; k++)
            p.state[k] = (char *)state[k].ptr + stepped_state_at(x, k, first);
        const tess_device_piece on = { .struct_size = sizeof on,
                                       .grad_scale = 0.5f,
                                       .piece = &p,
                                       .clip = clip ? clip->ptr : NULL,
                                       .not_finite = clip ? note->ptr : NULL };
        check_doing(c, "device_step");
        tess_status s = optimizer_ops->device_step(gpu.opened, &on, &dut.stream, &e);
        check_doing(c, "");
        check_that(c, s == TESS_OK, "device_step gave %s: %s", check_status(s), e.message);
    }
    download(&master, x->master.at, x->master.bytes);
    for (uint32_t k = 0; k < x->grain.n_states; k++) {
        download(&state[k], x->state[k].at, x->state[k].bytes);
        release(&state[k]);
    }
    release(&master);
    release(&grad);
}

static void on_a_device(check *c) {
    const float factor = 0.7f;
    const int64_t none = 0;
    int64_t noted = 1;
    int steps = 0;
    open_optimizer(c);
    if (!TESS_CAN(tess_optimizer_ops, optimizer_ops, device_close))
        check_skip(c, "does not step in a device's memory");
    open_device(c);
    tess_buffer clip = upload(&factor, sizeof factor), note = upload(&none, sizeof none);
    for (int i = 0; i < SHAPES; i++) {
        stepped here, there;
        if (!stepped_new(c, i, &here) || !stepped_new(c, i, &there) || here.grain.grain == TESS_GRAIN_MATRIX)
            continue;
        for (uint64_t step = 1; step <= STEPS; step++) {
            int clips = step % 2 == 0;
            stepped_gradient(&here, step);
            stepped_gradient(&there, step);
            for (uint64_t e = 0; e < here.param.elems; e++)
                ((float *)(void *)here.grad.at)[e] *= clips ? 0.5f * factor : 0.5f;
            stepped_must(c, &here, step, 0, here.param.elems);
            step_there(c, &there, step, clips ? &clip : NULL, &note);
            stepped_same(c, &here, &there, "in a device's memory", "on the host");
        }
        stepped_free(&here);
        stepped_free(&there);
        steps++;
    }
    download(&note, &noted, sizeof noted);
    check_that(c, noted == 0, "device_step notes finite results as step %lld that is not", (long long)noted);
    release(&clip);
    release(&note);
    has_steps(c, steps);
}

const check_case check_cases_optimizer[] = {
    { "same_on_all_ranks", 3, same_on_all_ranks, 0, 0 },
    { "descriptions", 1, descriptions, 0, 1 },
    { "longer_structs", 1, longer_structs, 0, 0 },
    { "nothing_else_written", 1, nothing_else_written, 0, 0 },
    { "cut_anywhere", 1, cut_anywhere, 0, 0 },
    { "several_threads", 1, several_threads, 0, 0 },
    { "update_written", 1, update_written, 0, 0 },
    { "matrix_alone", 1, matrix_alone, 0, 0 },
    { "matrix_any_parts", 1, matrix_any_parts, 0, 0 },
    { "matrix_any_scratch", 1, matrix_any_scratch, 0, 0 },
    { "on_a_device", 1, on_a_device, 0, 0 },
    { 0 },
};

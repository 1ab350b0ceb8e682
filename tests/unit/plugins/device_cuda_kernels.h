/* SPDX-License-Identifier: BSD-3-Clause */
/* Kernels of device-cuda over a driver that writes down its launches with all that they get. */
#ifndef TEST_DEVICE_CUDA_KERNELS_H
#define TEST_DEVICE_CUDA_KERNELS_H
#include "tests/unit/plugins/device_cuda.h"

#include "plugins/device-cuda/batch.h"

static tess_stream stream = { .handle = (void *)(uintptr_t)70 };

static void *at(uintptr_t address) {
    return (void *)address;
}
static unsigned of(const void *address) {
    return (unsigned)(uintptr_t)address;
}

/* ---- what a launch gets ---- */

static void say_inputs(const cuda_sum *s, const void *const *in) {
    uint32_t places = s->n_in > 16 ? 448 : 16;
    for (uint32_t i = 0; i < places; i++)
        if (i < s->n_in ? i < 3 : in[i] != NULL)
            say(" %x", of(in[i]));
}
static void say_sum(const cuda_sum_many_args *a) {
    const cuda_sum *s = &a->sum;
    say(": %u of %s as %s, %d in %d items%s%s%s", s->n_in, tess_dtype_name(s->in_dtype), tess_dtype_name(s->out_dtype),
        (int)s->elems, (int)s->items, s->vector ? ", wide" : "", s->chain ? ", chain" : "", s->add ? ", added" : "");
    if (s->scale != 1)
        say(" * %g", s->scale);
    if (s->round)
        say(", through %s", tess_dtype_name(s->round));
    say(", to %x from", of(s->out));
    say_inputs(s, a->in);
}
static void say_steps(const cuda_steps_args *a) {
    say(": %u pieces, %u blocks, %u sets", a->n_pieces, a->n_blocks, a->prepared ? 0 : a->n_sets);
    if (a->clip)
        say(", clip %x", of(a->clip));
    if (a->prepared)
        say(", prepared %x", of(a->prepared));
    for (uint32_t i = 0; i < a->n_pieces && i < 8; i++) {
        const cuda_step_piece *p = &a->pieces[i];
        say(" | [%d, %d) from block %u, set %d%s: %s %x, %x", (int)p->first, (int)p->end, p->first_block, (int)p->set,
            p->vector ? ", wide" : "", tess_dtype_name(p->grad_dtype), of(p->grad), of(p->master));
        if (p->state0 || p->state1)
            say(", %x, %x", of(p->state0), of(p->state1));
        if (p->low)
            say(", low %x", of(p->low));
        if (p->not_finite)
            say(", noted %x", of(p->not_finite));
        if (!a->prepared)
            say(", lr %g", -a->sets[p->set].minus_lr);
    }
    for (uint32_t i = a->n_pieces; i < CUDA_PIECES; i++)
        assert_true(!a->pieces[i].grad && !a->pieces[i].master && !a->pieces[i].end);
}
static void say_squares(const cuda_squares_args *a) {
    say(": %u pieces, %u blocks to %x, * %g", a->n_pieces, a->n_blocks, of(a->limbs), (double)a->scale);
    for (uint32_t i = 0; i < a->n_pieces && i < 8; i++)
        say(" | %d of %s %x from block %u%s", (int)a->pieces[i].elems, tess_dtype_name(a->pieces[i].in_dtype),
            of(a->pieces[i].in), a->pieces[i].first_block, a->pieces[i].vector ? ", wide" : "");
    for (uint32_t i = a->n_pieces; i < CUDA_SQUARE_PIECES; i++)
        assert_true(!a->pieces[i].in && !a->pieces[i].elems);
}
static void say_launch(const char *kernel, const void *args) {
    const char *name = kernel + strlen("tess_cuda_");
    if (strcmp(name, "cast") == 0) {
        const cuda_cast_args *a = args;
        say(": %s to %s, %d in %d items%s, %x to %x", tess_dtype_name(a->in_dtype), tess_dtype_name(a->out_dtype),
            (int)a->elems, (int)a->items, a->vector ? ", wide" : "", of(a->in), of(a->out));
    } else if (strcmp(name, "scale") == 0) {
        const cuda_scale_args *a = args;
        say(": %s * %g, %d in %d items%s, %x to %x", tess_dtype_name(a->dtype), a->scale, (int)a->elems, (int)a->items,
            a->vector ? ", wide" : "", of(a->in), of(a->out));
    } else if (strcmp(name, "draw") == 0) {
        const cuda_draw_args *a = args;
        say(": %d in %d blocks of %s, %x to %x, number %d, step %u, draw %u", (int)a->elems, (int)a->items,
            tess_dtype_name(a->dtype), of(a->in), of(a->out), (int)a->at, a->step, a->draw);
    } else if (strcmp(name, "clip") == 0) {
        const cuda_clip_args *a = args;
        say(": %d, %x to %x, at most %g", (int)a->items, of(a->limbs), of(a->out), a->most);
    } else if (strcmp(name, "carry") == 0) {
        const cuda_carry_args *a = args;
        say(": %d, %x", (int)a->items, of(a->limbs));
    } else if (strcmp(name, "square_sum") == 0)
        say_squares(args);
    else if (strncmp(name, "sum_", 4) == 0 || strncmp(name, "blocks_", 7) == 0)
        say_sum(args);
    else
        say_steps(args);
}

static int begin(void **state) {
    (void)state;
    open_device(0);
    written.launch = say_launch;
    return 0;
}
static int end(void **state) {
    (void)state;
    expect_said("");
    close_device();
    return 0;
}
#define IN_DEVICE(test) cmocka_unit_test_setup_teardown(test, begin, end)

static void run(const tess_kernel *k) {
    if (ops->kernel(device, k, &stream, no_error()) != TESS_OK)
        fail_msg("%s", e.message);
}
#define REFUSED(k, status, text) EXPECT_FAILS(ops->kernel(device, &(k), &stream, &e), status, text)

/* ---- arguments ---- */

static inline tess_segment segment(float lr, uint64_t first, uint64_t elems) {
    return (tess_segment){ .struct_size = sizeof(tess_segment), .lr = lr, .first = first, .elems = elems };
}
static inline tess_kernel a_cast(uint32_t in_dtype, uint32_t out_dtype, uint64_t elems, const void *const *in,
                                 void *out) {
    return (tess_kernel){ .struct_size = sizeof(tess_kernel),
                          .kernel = TESS_K_CAST,
                          .in_dtype = in_dtype,
                          .out_dtype = out_dtype,
                          .elems = elems,
                          .in = in,
                          .out = out };
}

static inline tess_buffer page_locked(void) {
    const tess_alloc_request r = { .struct_size = sizeof r, .mem = TESS_MEM_PINNED, .numa_node = -1, .bytes = 1 };
    tess_buffer out = { .struct_size = sizeof out };
    assert_int_equal(ops->mem_alloc(device, &r, &out, no_error()), TESS_OK);
    said_so_far[0] = 0;
    return out;
}

static tess_kernel failing; /* of which each call of the driver fails in turn */
static inline tess_status run_failing(void) {
    return ops->kernel(device, &failing, &stream, &e);
}
#endif

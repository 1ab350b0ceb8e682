/* SPDX-License-Identifier: BSD-3-Clause */
/* emulator.h. Compiled without sanitizers, which are told of each change of stack. */
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

enum { THREADS = EMULATED_THREADS, WARP = 32, STACK_BYTES = 512 << 10 };
enum { PATIENCE = 1000 }; /* rounds in which blocks only wait for each other */
enum { NO_SYNC = 1 };     /* a change of stack orders nothing */

/* Null without that sanitizer. */
__attribute__((weak)) void *__tsan_create_fiber(unsigned flags);
__attribute__((weak)) void *__tsan_get_current_fiber(void);
__attribute__((weak)) void __tsan_switch_to_fiber(void *fiber, unsigned flags);
__attribute__((weak)) void __tsan_acquire(void *at);
__attribute__((weak)) void __tsan_release(void *at);
__attribute__((weak)) void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t bytes);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *bytes);
extern char __start_emulated_shared[] __attribute__((weak)), __stop_emulated_shared[] __attribute__((weak));

typedef enum { READY, AT_BARRIER, TOGETHER, PAUSED, DONE } state_of;
typedef struct {
    ucontext_t context;
    state_of state;
    unsigned index;
    void *tsan, *fake, *argument;
    void (*work)(void *const lanes[WARP]);
    const void *bottom;
    size_t bytes;
    char met; /* a warp's first one: what ThreadSanitizer knows its barriers by */
} strand;

static strand home, strands[EMULATED_RESIDENT * THREADS], *now = &home;
static unsigned n_strands;
static struct {
    const emulated_kernel *kernel;
    const void *args;
    emulated_order order;
    char begin, end, barrier[2]; /* what ThreadSanitizer knows them by */
    unsigned random, idle;       /* idle: rounds since a barrier or an end was reached */
    int gives_way;
} launch;
typedef struct { /* a block that is there, or will be */
    unsigned block;
    int runs, turn; /* of two barriers, so that a thread behind one does not seem to wait for the next */
    char *shared;   /* its shared memory while another block runs */
} resident;
static resident residents[EMULATED_RESIDENT], *running;

emulated_index threadIdx, blockIdx, blockDim, gridDim;

void emulated_refuse(const char *what) {
    fprintf(stderr, "emulator: %s, block %u, thread %u: %s\n", launch.kernel ? launch.kernel->name : "no kernel",
            blockIdx.x, threadIdx.x, what);
    abort();
}

void emulated_look(const void *at, unsigned bytes) {
    if ((uintptr_t)at % bytes)
        emulated_refuse("a vector lies at no multiple of its size");
}

unsigned emulated_strand(void) {
    return now->index;
}

int emulated_is_late(void) {
    return launch.order.late;
}

static void acquire(void *at) {
    if (__tsan_acquire)
        __tsan_acquire(at);
}
static void release(void *at) {
    if (__tsan_release)
        __tsan_release(at);
}

/* ---- stacks --------------------------------------------------------------------------------------- */
static void arrived(strand *from) {
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(now->fake, &from->bottom, &from->bytes);
}

static void go_to(strand *to) {
    strand *from = now;
    now = to;
    threadIdx.x = to->index % blockDim.x;
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->bytes);
    if (__tsan_switch_to_fiber)
        __tsan_switch_to_fiber(to->tsan, NO_SYNC);
    swapcontext(&from->context, &to->context);
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(now->fake, NULL, NULL);
}

/* A stack serves one launch after another. */
static void strand_main(void) {
    arrived(&home);
    for (;;) {
        acquire(&launch.begin);
        launch.kernel->run(launch.args);
        release(&launch.end);
        now->state = DONE;
        go_to(&home);
    }
}

static void strand_create(unsigned i) {
    strand *s = &strands[i];
    void *stack;
    if (posix_memalign(&stack, 4096, STACK_BYTES) || getcontext(&s->context))
        emulated_refuse("no memory for a stack");
    s->index = i, s->bottom = stack, s->bytes = STACK_BYTES;
    s->context.uc_stack.ss_sp = stack, s->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&s->context, strand_main, 0);
    s->context.uc_stack.ss_size =
        0; /* AddressSanitizer forgets what it knows of a stack of known size at each change */
    if (__tsan_create_fiber)
        s->tsan = __tsan_create_fiber(0);
}

/* ---- waiting -------------------------------------------------------------------------------------- */
/* The next of the warp that can go on, else home, where the other warps are. */
static void leave(void) {
    unsigned first = now->index / WARP * WARP;
    for (unsigned k = 1; k < WARP; k++) {
        strand *s = &strands[first + (now->index + (launch.order.last_first ? WARP - k : k)) % WARP];
        if (s->state == READY) {
            go_to(s);
            return;
        }
    }
    go_to(&home);
}

void emulated_barrier(void) {
    int turn = running->turn;
    release(&launch.barrier[turn]);
    now->state = AT_BARRIER;
    leave();
    acquire(&launch.barrier[turn]);
}

void emulated_together(void (*work)(void *const lanes[WARP]), void *mine) {
    strand *warp = &strands[now->index / WARP * WARP];
    void *lanes[WARP];
    now->state = TOGETHER, now->work = work, now->argument = mine;
    for (unsigned i = 0; i < WARP; i++) {
        if (warp[i].state != TOGETHER) {
            leave();
            return;
        }
        if (warp[i].work != work)
            emulated_refuse("lanes of one warp are at different instructions");
        lanes[i] = warp[i].argument;
    }
    work(lanes);
    for (unsigned i = 0; i < WARP; i++)
        warp[i].state = READY;
}

static void nothing(void *const lanes[WARP]) {
    (void)lanes;
}

void emulated_warp_barrier(void) {
    char *met = &strands[now->index / WARP * WARP].met;
    release(met);
    emulated_together(nothing, NULL);
    acquire(met);
}

void emulated_pause(void) {
    now->state = PAUSED;
    leave();
}

void emulated_give_way(void) {
    launch.gives_way = 1;
    emulated_pause();
}

/* ---- blocks --------------------------------------------------------------------------------------- */
static void poison_shared(void) {
    volatile char *at = __start_emulated_shared; /* volatile: no call that a sanitizer sees */
    for (; at && at < (volatile char *)__stop_emulated_shared; at++)
        *at = (char)0xff;
}

/* By words that no sanitizer sees. */
static void copy_shared(int out) {
    volatile char *at = __start_emulated_shared;
    for (size_t i = 0; at && at + i < (volatile char *)__stop_emulated_shared; i++) {
        if (out)
            running->shared[i] = at[i];
        else
            at[i] = running->shared[i];
    }
}

static strand *strand_of(unsigned i) {
    return &strands[(unsigned)(running - residents) * blockDim.x + i];
}

static unsigned count(state_of state) {
    unsigned n = 0;
    for (unsigned i = 0; i < blockDim.x; i++)
        n += strand_of(i)->state == state;
    return n;
}

static void all_ready(state_of from) {
    for (unsigned i = 0; i < blockDim.x; i++)
        if (strand_of(i)->state == from)
            strand_of(i)->state = READY;
}

static void run_ready(void) {
    launch.gives_way = 0;
    for (unsigned k = 0; k < blockDim.x && !launch.gives_way; k++) {
        strand *s = strand_of(launch.order.last_first ? blockDim.x - 1 - k : k);
        if (s->state == READY)
            go_to(s);
    }
}

static void begin_block(unsigned block) {
    poison_shared();
    for (unsigned i = 0; i < blockDim.x; i++)
        strand_of(i)->state = READY;
    running->block = blockIdx.x = block, running->runs = 1;
    release(&launch.begin);
}

/* Until all threads wait or end, or one gives way. */
static void run_block(void) {
    if (count(AT_BARRIER) == blockDim.x) {
        running->turn = !running->turn, launch.idle = 0;
        all_ready(AT_BARRIER);
    } else if (!count(READY) && count(PAUSED)) {
        if (launch.idle++ > PATIENCE)
            emulated_refuse("waits for another block without end");
        all_ready(PAUSED);
    } else if (!count(READY)) {
        emulated_refuse("not all threads reach a barrier, or all lanes an instruction of their warp");
    }
    run_ready();
    if (count(DONE) == blockDim.x) {
        running->runs = 0, launch.idle = 0;
        acquire(&launch.end);
    }
}

/* Shared memory is one place for all blocks, so each takes its own away when another runs. */
static void change_to(resident *r) {
    if (running == r)
        return;
    if (running && running->runs)
        copy_shared(1);
    running = r, blockIdx.x = r->block;
    if (r->runs)
        copy_shared(0);
}

static resident *any_resident(unsigned n) {
    launch.random = launch.random * 1664525u + 1013904223u;
    return &residents[(launch.random >> 16) % n];
}

/* Blocks run until none is left; which of those that are there goes on is random. */
static void run_blocks(unsigned blocks, unsigned n) {
    unsigned begun = 0, ended = 0;
    while (ended < blocks) {
        resident *r = any_resident(n);
        if (!r->runs && begun == blocks)
            continue;
        change_to(r);
        if (!r->runs) {
            begin_block(launch.order.last_first ? blocks - 1 - begun : begun);
            begun++;
        }
        run_block();
        ended += !r->runs;
    }
}

void emulate(const emulated_kernel *kernel, const void *args, unsigned blocks, unsigned threads, emulated_order order) {
    unsigned n = order.resident && !__tsan_create_fiber ? order.resident : 1;
    size_t bytes = (size_t)(__stop_emulated_shared - __start_emulated_shared);
    if (threads % WARP || threads > THREADS || n > EMULATED_RESIDENT)
        emulated_refuse("a block is of whole warps, of 256 threads at most; at most 6 blocks are there at once");
    launch.kernel = kernel, launch.args = args, launch.order = order, launch.random = order.seed, launch.idle = 0;
    blockDim.x = threads, gridDim.x = blocks;
    if (__tsan_get_current_fiber)
        home.tsan = __tsan_get_current_fiber();
    for (; n_strands < n * threads; n_strands++)
        strand_create(n_strands);
    for (unsigned i = 0; i < n; i++)
        if (!residents[i].shared && !(residents[i].shared = malloc(bytes + 1)))
            emulated_refuse("no memory for blocks");
    running = NULL;
    run_blocks(blocks, n);
}

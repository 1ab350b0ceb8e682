/* SPDX-License-Identifier: BSD-3-Clause */
/* The parts of the CUDA driver and of NCCL that the plugins and the models call, on host memory: for tests on a machine
 * without a GPU. What is kept of the real thing:
 *  - Device memory cannot be touched by the host: a device pointer is an address in a range nobody may access, and what
 *    it holds lies double__shift bytes further. A host access ends in SIGSEGV.
 *  - Each stream is a queue worked off by a thread of its own, with random pauses, so that two streams run out of order
 *    unless an event orders them. Calls need a current context; a launch that fails spoils the context for good.
 *  - Ranges, kinds and handles are checked at every call.
 *
 * Variables: TESSERA_DOUBLE_…
 *   DEVICES=4 MEMORY=1073741824   how many devices, and the bytes of each
 *   FAIL=NAME:N[:CODE][@RANK]     the N-th call of NAME fails (from 1), only in the process with that RANK; "work": the
 *                                 N-th piece of work of any stream fails when it runs, and the context with it
 *   HANG=NAME:N[@RANK]            the N-th call of that name of NCCL does not end before its communicator is aborted
 *   OVERTAKE=NAME:N:SECONDS[@RANK]  the N-th ncclReduceScatter or tess_nccl_reduce waits on the GPU until NCCL has
 *                                 done something that was given later, or so long ("reductions-overtaken" and
 *                                 "sums-overtaken" count it)
 *   LOG=FILE                      at exit, appends a line "RANK NAME CALLS" for each name that was called
 *   SKIP=cuStreamWaitEvent:N      the N-th such call says that all is well and does nothing
 *   LEAKS=CODE                    the exit code of a process that leaves something behind; the lines on standard error
 *                                 come anyway
 *   RACES=1                       tells work on the same bytes that nothing orders: races.h
 *   DELAY_US=50 SEED=1            the longest pause before a piece of work, and the start of the random numbers
 *   PROCESSORS=132                multiprocessors of each device
 *   DRIVER_VERSION=13000          the CUDA version of the driver; images of a later one do not load
 *   CAPABILITY=90                 of the chip: images without code for it do not load
 *   SHARED=232448                 bytes of shared memory that a block may have
 *   CUDNN_VERSION=91900 CUDNN_WORKSPACE=0  cuDNN's version, and bytes that each of its plans wants more
 *   NCCL_VERSION=22809            the version it says it has; functions that came later fail
 *   NCCL_DEATH=error|hang         what a collective does when a peer died: an asynchronous error, as over a network, or
 *                                 nothing until it is aborted, as over NVLink and shared memory */
#ifndef TESSERA_DOUBLE_H
#define TESSERA_DOUBLE_H
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

enum { DOUBLE_WORK_BYTES = 4096, DOUBLE_DEVICES = 16, DOUBLE_PROCESSORS = 132 };

/* ---- control.c: variables, counts, failures, what is left ------------------------------------------------------ */

const char *double__variable(const char *name); /* of TESSERA_DOUBLE_name; null when unset or empty */
int64_t double__number(const char *name, int64_t fallback);
/** Counts a call, and holds up one that is to be late. 0: go on; -1: this one is to fail; else the code it is to fail
 * with. */
int double__fails(const char *name);
/** The code that TESSERA_DOUBLE_variable asks for at that call of `name`; 0: none. */
int double__asked(const char *variable, const char *name, uint64_t call);
__attribute__((visibility("default"))) uint64_t double__counted(const char *name); /* calls so far, for tests */
/** Whether the call that was counted last is to hang. */
int double__hangs(const char *name);
/** How many calls of this process hang or are late now, for tests; double__hang counts one more, or one less. */
__attribute__((visibility("default"))) int double__hanging(void);
void double__hang(int by);
/** One more, or one less, of a kind of thing that must not be left at exit. `kind` is a literal. */
void double__live(const char *kind, int64_t by);
/* A call that nothing ends from outside has begun (1) or is over (-1). A process that exits meanwhile leaves behind
 * what it has, which is no leak. */
void double__endless(int by);
uint32_t double__random(void);
/** Memory from the kernel itself, zeroed where it is touched; null when there is none. No function that a test counts
 * is called, since a driver's memory is not the program's. prot: PROT_…. */
void *double__map(uint64_t bytes, int prot);
void double__unmap(void *at, uint64_t bytes);
/** Kept for the log: the largest value that `name` was noted with. */
void double__peak(const char *name, uint64_t value);

/* ---- memory.c: what lies where --------------------------------------------------------------------------------- */

enum { DOUBLE_MEM_DEVICE = 1, DOUBLE_MEM_PINNED, DOUBLE_MEM_REGISTERED, DOUBLE_MEM_MANAGED };
typedef struct {
    uintptr_t at;
    uint64_t bytes;
    int kind, device;
    int nccl; /* of ncclMemAlloc */
} double_piece;

extern ptrdiff_t double__shift;
/** Where the host finds what a device address holds; any other pointer is its own. For kernels and copies only. */
void *double_host(const void *device);
int double__is_device(const void *);
/** 0; -1 when the device has no room. */
int double__take(int device, uint64_t bytes, int nccl, uintptr_t *out);
int double__take_host(uint64_t bytes, int kind, int device, uintptr_t *out);
int double__note_host(void *at, uint64_t bytes, int device); /* cuMemHostRegister; -1: overlaps what is known */
/** Gives back what begins at `at` and is of that kind; -1 when there is no such thing. */
int double__give(uintptr_t at, int kind);
/** The piece that `at` lies in; 0 when there is none. */
int double__piece_of(const void *at, double_piece *out);
/** Whether [at, at + bytes) lies in one piece, or, where the host may be meant, in none. */
int double__range_ok(const void *at, uint64_t bytes, int or_host);
uint64_t double__used(int device);
uint64_t double__capacity(void);
/** Whether the host may read or write it while work goes on: pinned, registered or managed. */
int double__is_locked(const void *);

/* ---- stream.c: queues, their threads, points in them ----------------------------------------------------------- */

typedef struct double_stream double_stream;
typedef struct double_event double_event;
typedef void (*double_work_fn)(void *data);

/** A lower number is a higher priority. */
double_stream *double__stream_new(int device, int blocking, int priority);
int double__stream_priority(const double_stream *);
/** From now on work of this stream has this priority. */
void double__stream_prefer(double_stream *, int priority);
void double__stream_end(double_stream *); /* the thread ends when its queue is empty */
void double__streams_wait(void);          /* for destroyed streams' queues, for 2 s at most */
int double__stream_known(const double_stream *);
int double__stream_device(const double_stream *);
/** Puts work at the end of the queue; `data` is copied, at most DOUBLE_WORK_BYTES. */
void double__push(double_stream *, double_work_fn, const void *data, size_t bytes);
/** The same, for work that is to run in a spoilt context too. */
void double__push_always(double_stream *, double_work_fn, const void *data, size_t bytes);
/** The same, for work that touches no memory of the device. */
void double__push_mark(double_stream *, double_work_fn, const void *data, size_t bytes);
/** Does the same as these three, for work that was recorded. */
void double__push_as(double_stream *, double_work_fn, const void *data, size_t bytes, int always, int touches);
int double__stream_blocks(const double_stream *); /* it and the null stream wait for each other */
void double__finish(double_stream *);             /* waits until all that is queued now is done */
int double__idle(double_stream *);
uint64_t double__stream_queued(double_stream *); /* how much was ever put there */
int double__stream_has_passed(double_stream *, uint64_t seq);
void double__stream_follow(double_stream *, double_stream *other,
                           uint64_t seq); /* waits until `other` has come there */
/** Whether a stream of the device has work left that touches its memory, or with RACES=1 may have: the host neither
 * waited for its end nor asked. For tests, too. */
__attribute__((visibility("default"))) int double__device_works(int device);
/** Waits for all streams of a device. */
void double__finish_device(int device);
/** The same, of what need not wait: to the host nothing is over that was not before. */
void double__linger(int device);
double_stream *double__null_stream(int device);
/** Of the work that runs on this thread: its number among all that any stream was given. */
uint64_t double__given(void);
/** The priority that the work on this thread runs with; for tests, too. */
__attribute__((visibility("default"))) int double__priority(void);

double_event *double__event_new(int device);
void double__event_end(double_event *);
int double__event_known(const double_event *);
int double__event_device(const double_event *);
void double__event_record(double_event *, double_stream *);
void double__event_wait(double_event *, double_stream *); /* what follows in the stream waits */
uint64_t double__event_recorded(const double_event *);    /* last in a stream that was recording: the point's number */
int double__event_passed(double_event *);
void double__event_finish(double_event *);
int double__event_is_last(double_event *);  /* nothing was put behind it: a wait for it leaves its stream empty */
int64_t double__event_time(double_event *); /* -1: not recorded, or not passed */

/* ---- graph.c: recordings ---------------------------------------------------------------------------------------- */

typedef struct double_graph double_graph;
/** Whether the stream is recording; then the work is recorded and not run. */
int double__record(double_stream *, double_work_fn, const void *data, size_t bytes, int always, int touches);
int double__is_recording(const double_stream *);
typedef struct {                                       /* of work that is more than its bytes */
    void (*launch)(double_stream *, const void *data); /* puts it into a stream */
    void (*keep)(void *data);                          /* one graph more refers to it, or one less */
    void (*drop)(void *data);
} double_recorded;
int double__record_as(double_stream *, const double_recorded *, const void *data, size_t bytes);
/** A point in a stream that is recording: its number; 0: it is not. */
uint64_t double__record_mark(double_stream *);

/** The context's failure, from a piece of work; stays. */
void double__spoil(int device, int code);
int double__spoilt(int device);

/* ---- the tables of kernels: kernels_*.cc ------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    size_t args_bytes;
    /* Runs the whole grid. Pointers in `args` have been turned into the host's. */
    void (*run)(const void *args, const unsigned grid[3], const unsigned block[3]);
    unsigned shared_bytes; /* that a launch gives to a block */
} double_kernel;
/** Ends with a null name. */
typedef const double_kernel *(*double_kernels_fn)(void);
const double_kernel *double__kernel_named(const char *name);
/** Turns device addresses among the words of `args` into the host's. */
void double__translate(void *args, size_t bytes);

/* ---- overtake.c: TESSERA_DOUBLE_OVERTAKE; on the thread of a stream ---------------------------------------------- */

/** What runs is the next of `name`, which `n` counts. When that one is asked for, it waits until NCCL has done
 * something that a stream was given later, which is counted as `overtaken`. */
void double__hold_up(const char *name, uint64_t *n, const char *overtaken);
/** The waiting alone: 0 after `seconds`, or soon after gives_up(of) says so. */
int double__is_overtaken(int seconds, int (*gives_up)(void *), void *of);
void double__nccl_did(void); /* what runs is of NCCL's, and done */

/* ---- what NCCL's part asks of the driver's ----------------------------------------------------------------------- */

int double__current_device(void); /* -1: no current context */

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* A device with streams of its own, whose memory the host may not touch. The engine's thread puts work at the end of
 * streams and goes on; events order what one stream needs of another. The thread waits only where it needs a value, and
 * where the host itself works on what the device wrote. */
#ifndef TESS_STREAMS_H
#define TESS_STREAMS_H
#include "comms.h"
#include "device.h"
#include "layout/setup.h"
#include "timeline.h"

enum { TESS__STREAM_EVENTS = 64, TESS__RETIRED = 64 };

typedef struct { /* a stream for transfers; up: from the host, down: to the host */
    tess_stream stream;
    tess_event
        *events[TESS__STREAM_EVENTS]; /* of ticket n: at n modulo; waiting for a later one there is correct too */
    uint64_t posted;                  /* tickets, from 1 */
} tess__stream;

typedef struct { /* a collective that a stream waits for instead of the engine's thread */
    tess_request *request;
    uint64_t seq;
    int which;
    char what[TESS__ACTIVITY]; /* for messages */
} tess__retired;

typedef struct {           /* a pass whose end the host does not wait for at once */
    void *result;          /* the program's, into which a result goes when the pass is over; null: none */
    const void *result_at; /* where it waits until then: page-locked */
    uint64_t result_bytes;
    const int64_t *limbs; /* of its norm, the same; null: the device did not clip */
    void *values;         /* the program's, of tess_all_reduce_late behind the pass: the same; null: none */
    const void *values_at;
    uint64_t values_bytes;
    uint64_t retired; /* collectives retired until its end */
    uint64_t step;    /* to which it belongs, from 1 */
    tess_event *over;
    int under_way, is_recorded;
    char what[TESS__ACTIVITY]; /* a recorded one, for messages */
} tess__late_pass;

typedef struct {
    const tess__device *device;
    tess__comms *comms;
    int on;                   /* the device has streams; else nothing below is used */
    int comm_waits;           /* the comm plugin makes a stream wait for a request */
    tess__timeline *timeline; /* null: transfers are not recorded */
    tess__instr doing;        /* what a transfer is for */
    uint64_t step;
    tess__timed *timed;
    tess_event *reached, *synced, *batch_taken, *result_there, *norm_there;
    tess__stream up, down;
    void *result;          /* the program's, into which a result goes when its pass ends; null: none is under way */
    const void *result_at; /* where it waits until then: page-locked, TESS__RESULT */
    uint64_t result_bytes;
    int late; /* TESS_OPTIONS_LATE: the next line is used, and not the three above */
    int pass; /* the running pass's place among these: */
    tess__late_pass passes[TESS__PASSES];
    const int64_t *limbs;     /* of the latest pass that is over; null: none */
    uint64_t not_finite_step; /* the first one of which a norm was not finite; 0: none */
    tess__retired retired[TESS__RETIRED];
    int first_retired, n_retired;
    uint64_t ever_retired;
    int recording;             /* nothing that is put into streams runs, and nothing may be asked of the device */
    uint64_t posted_before[2]; /* tickets of up and down when that began */
} tess__streams;

/** After the device was created. */
tess_status tess__streams_start(tess__streams *, const tess__device *, tess__comms *);
/** Makes the two streams for transfers, when the plan has work for them. */
tess_status tess__streams_add_transfers(tess__streams *);
void tess__streams_drop(tess__streams *); /* waits a while for retired collectives */
/** Gives all back; the device's work has ended. */
void tess__streams_end(tess__streams *);
/** Puts a kernel, or a copy, behind what the compute stream holds now. The ticket is `posted`. */
tess_status tess__stream_kernel(tess__streams *, tess__stream *, tess_kernel *);
tess_status tess__stream_copy(tess__streams *, tess__stream *, void *dst, uint32_t dst_mem, const void *src,
                              uint32_t src_mem, uint64_t bytes);
/** Makes later work on the compute stream wait for that ticket; 0: for nothing. */
tess_status tess__stream_wait(tess__streams *, const tess__stream *, uint64_t ticket);
/** Called around a recording. At its end the compute stream waits for what was put into the two others meanwhile. */
void tess__streams_record(tess__streams *);
tess_status tess__streams_join(tess__streams *);
/** Blocks until the ticket has passed, for the host's own work. Any thread. */
tess_status tess__stream_finish(tess__streams *, const tess__stream *, uint64_t ticket);
/** Makes the compute stream wait for the request, which is freed when it has ended. */
tess_status tess__retire(tess__streams *, int which, tess_request *, uint64_t seq);
/** Posts a collective and makes the compute stream wait for it. This thread waits when the plugin cannot have a
 * stream wait. */
tess_status tess__stream_collective(tess__streams *, int which, const tess_collective *, const char *doing);
/** Blocks until the device has done all that the compute stream holds, and says what went wrong. At once without
 * streams. */
tess_status tess__streams_sync(tess__streams *);
/** Waits for all streams at teardown after an error. The communicators are aborted, nobody is listened to, failures
 * are ignored, and 5 s end the wait. */
void tess__streams_idle(tess__streams *);
/** Copies device memory to the host's, which has it when this returns. */
tess_status tess__streams_read(tess__streams *, void *to, const void *from, uint64_t bytes);
/** Copies like tess__streams_read, but by way of `at`: the bytes are there when tess__pass_wait returns. From then
 * on the program's batch may change, too. With `late` it is one tess__pass_wait later. */
tess_status tess__result_take(tess__streams *, void *to, void *at, const void *from, uint64_t bytes);
tess_status tess__pass_wait(tess__streams *);
tess_status tess__passes_wait(tess__streams *); /* and all before */
void tess__result_forget(tess__streams *);      /* after an error */
/** Makes the running pass leave its result and norm where a recorded one did. */
void tess__result_again(tess__streams *, const tess__late_pass *as, void *to);
/** The latest pass that is under way and behind which something may still be put; -1: there is none. */
int tess__latest_pass(const tess__streams *);
/** Copies `from` by way of `at` to `to` when that pass is over. Its end is now here. */
tess_status tess__values_take(tess__streams *, int pass, void *to, void *at, const void *from, uint64_t bytes);
/** Copies the norm's limbs into page-locked memory, which has them when tess__norm_wait returns. With `late` they
 * belong to the pass. */
tess_status tess__norm_take(tess__streams *, void *to, const void *from, uint64_t bytes);
tess_status tess__norm_wait(const tess__streams *);
/** Marks that the copy of the program's batch has been queued. */
tess_status tess__batch_mark(tess__streams *);
#endif

/* A device with queues (streams) of its own, whose memory the host may not touch. The engine's thread puts work at the
 * end of queues and goes on; what one queue needs of another is ordered by events. The thread waits only where it needs
 * a value, and where the host itself works on what the device wrote. */
#ifndef TESS_QUEUES_H
#define TESS_QUEUES_H
#include "sums.h"

typedef struct tess tess;
enum { TESS__QUEUE_EVENTS = 64, TESS__RETIRED = 64 };

typedef struct { /* up: from the host; down: to the host */
    tess_stream stream;
    tess_event *events[TESS__QUEUE_EVENTS]; /* behind ticket n: n modulo; a later one's in its place is as good */
    uint64_t posted;                        /* tickets, from 1 */
} tess__queue;

typedef struct { /* a collective that a queue waits for instead of the engine's thread */
    tess_request *request;
    uint64_t seq;
    int which;
} tess__retired;

typedef struct {
    int on;         /* the device has queues; else nothing below is used */
    int comm_waits; /* the comm plugin makes a queue wait for a request */
    tess_event *reached, *synced, *batch_taken;
    tess__queue up, down;
    tess__retired retired[TESS__RETIRED];
    int first_retired, n_retired;
} tess__queues;

/** After the device was created and its memory kind is known. */
tess_status tess__queues_start(tess *);
/** The two queues for transfers, where the plan has work for them. */
tess_status tess__queues_moves(tess *);
/** Gives all back; the device's work has ended. */
void tess__queues_end(tess *);
/** tess__kernel_fn: on a queue, behind what the compute queue holds now. The ticket is posted. */
tess_status tess__queue_up(void *engine, tess_kernel *);
tess_status tess__queue_down(void *engine, tess_kernel *);
tess_status tess__queue_copy(tess *, tess__queue *, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem,
                             uint64_t bytes);
/** What the compute queue gets from now on waits for that ticket; 0: for nothing. */
tess_status tess__queue_wait(tess *, const tess__queue *, uint64_t ticket);
/** Blocks until it has passed: for the host's own work. Any thread. */
tess_status tess__queue_finish(tess *, const tess__queue *, uint64_t ticket);
/** The compute queue waits for the request, which is freed when it has ended. */
tess_status tess__retire(tess *, int which, tess_request *, uint64_t seq);
/** Blocks until the device has done all that the compute queue holds, and says what went wrong. At once without queues.
 */
tess_status tess__device_sync(tess *);
/** Device memory to the host's, there when it returns. */
tess_status tess__device_read(tess *, void *to, const void *from, uint64_t bytes);
/** The program's batch may change when this returns; marked when its copy was queued. */
tess_status tess__batch_mark(tess *);
tess_status tess__batch_wait(tess *);
#endif

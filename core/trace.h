/* Spans: what ran when, in which lane. The engine records them into a ring when asked to (trace.c); the simulator
 * predicts the same (simulate.c). */
#ifndef TESS_TRACE_H
#define TESS_TRACE_H
#include "program.h"

enum { TESS__LANE_COMPUTE, TESS__LANE_COMM, TESS__LANE_UP, TESS__LANE_DOWN, TESS__LANE_HOST, TESS__N_LANES };

typedef struct {
    uint8_t lane, op, event; /* TESS__LANE_…, TESS__GATHER …; of ENTER: TESS__FORWARD_BEGIN … */
    uint8_t critical;        /* simulated: on the critical path */
    int32_t index;           /* of the instruction: a group, a block; of ENTER: the scope */
    int32_t cause;           /* simulated: the span whose end let this one begin, or -1 */
    uint64_t step;           /* optimizer steps done before */
    double start, seconds;   /* start: measured on a clock of its own, simulated from the step's beginning */
} tess__span;

const char *tess__lane_name(uint32_t lane);        /* "transfer_up" */
const char *tess__span_op(const tess__span *);     /* "all_gather"; a wait of the engine's thread: "wait_all_gather" */
int tess__span_is_wait(const tess__span *);        /* the engine's thread stands still for another lane */
uint32_t tess__span_waits_for(const tess__span *); /* the lane: TESS__LANE_COMM … */
const char *tess__span_unit(const tess__span *, const tess__model *, const tess__layout *); /* or the scope; "": none */

typedef struct tess__trace tess__trace;
/** A ring of the last `spans` spans, allocated here. */
tess_status tess__trace_create(uint64_t spans, tess__trace **out);
void tess__trace_destroy(tess__trace *); /* null is fine */
int64_t tess__trace_now(void);           /* nanoseconds of the monotonic clock */
/** From any thread. `t` null: nothing, which is all that a run without a trace pays. */
void tess__trace_add(tess__trace *t, uint32_t lane, const tess__instr *, const tess__event *or_null, uint64_t step,
                     int64_t begin_ns);
/** Of step `step`, in order of their beginning, start counted from the first; while nothing runs. Returns how many;
 * writes at most `cap`. */
uint64_t tess__trace_read(const tess__trace *, uint64_t step, tess__span *out, uint64_t cap);
#endif

#include "trace.h"

#include "status.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- names ---- */

const char *tess__lane_name(uint32_t lane) {
    static const char *const names[] = { "compute", "communication", "transfer_up", "transfer_down", "host" };
    return lane < TESS__N_LANES ? names[lane] : "?";
}

static const char *const op_names[] = {
    [TESS__BOOK] = "zero",
    [TESS__FREE] = "free",
    [TESS__INPUT_COPY] = "input",
    [TESS__RESULT_COPY] = "result",
    [TESS__GATHER] = "all_gather",
    [TESS__GATHER_WAIT] = "wait_all_gather",
    [TESS__CAST_WIRE] = "cast_gradient",
    [TESS__SUM_FULL] = "sum_microbatches",
    [TESS__REDUCE] = "reduce_scatter",
    [TESS__REDUCE_WAIT] = "wait_reduce_scatter",
    [TESS__REPLICATE] = "all_reduce",
    [TESS__REPLICATE_WAIT] = "wait_all_reduce",
    [TESS__SUM_SHARD] = "sum_shards",
    [TESS__NORM_GROUP] = "norm",
    [TESS__NORM_REDUCE] = "all_reduce_norm",
    [TESS__NORM_FINISH] = "norm_result",
    [TESS__OPTIMIZE] = "optimizer",
    [TESS__SHARE_BUFFERS] = "broadcast_buffers",
    [TESS__FETCH] = "fetch",
    [TESS__FETCH_WAIT] = "wait_fetch",
    [TESS__DOWN_WAIT] = "wait_host",
    [TESS__STOW] = "stow",
    [TESS__STOW_WAIT] = "wait_stow",
    [TESS__UNSTOW] = "unstow",
    [TESS__UNSTOW_WAIT] = "wait_unstow",
};

static int is_op(uint8_t op) {
    return op < sizeof op_names / sizeof op_names[0] && op_names[op];
}

/* What the engine's thread does for a collective before it is posted has another name than the collective. */
const char *tess__span_op(const tess__span *s) {
    int compute = s->lane == TESS__LANE_COMPUTE;
    if (s->op == TESS__ENTER)
        return s->event == TESS__FORWARD_BEGIN    ? "forward"
               : s->event == TESS__BACKWARD_BEGIN ? "backward"
                                                  : "recompute";
    if (compute && s->op == TESS__GATHER)
        return "cast_shard";
    if (compute && s->op == TESS__REDUCE)
        return "average";
    return is_op(s->op) ? op_names[s->op] : "?";
}

int tess__span_is_wait(const tess__span *s) {
    return s->lane == TESS__LANE_COMPUTE && (s->op == TESS__NORM_REDUCE || s->op == TESS__SHARE_BUFFERS ||
                                             (is_op(s->op) && strncmp(op_names[s->op], "wait_", 5) == 0));
}

uint32_t tess__span_waits_for(const tess__span *s) {
    switch (s->op) {
    case TESS__FETCH_WAIT:
    case TESS__UNSTOW_WAIT: return TESS__LANE_UP;
    case TESS__STOW_WAIT: return TESS__LANE_DOWN;
    case TESS__DOWN_WAIT: return TESS__LANE_HOST;
    default: return TESS__LANE_COMM;
    }
}

const char *tess__span_unit(const tess__span *s, const tess__model *m, const tess__layout *l) {
    switch (s->op) {
    case TESS__ENTER: return m->scopes[s->index].name;
    case TESS__INPUT_COPY:
    case TESS__NORM_REDUCE:
    case TESS__NORM_FINISH:
    case TESS__SHARE_BUFFERS:
    case TESS__BOOK: return "";
    case TESS__RESULT_COPY:
    case TESS__STOW:
    case TESS__STOW_WAIT:
    case TESS__UNSTOW:
    case TESS__UNSTOW_WAIT: return m->scopes[m->blocks[s->index].scope].name;
    default: return l->units[l->groups[s->index].unit].name;
    }
}

/* ---- the ring ---- */

typedef struct {
    int64_t begin_ns, end_ns;
    uint64_t step;
    int32_t index;
    uint8_t lane, op, event;
} record;

struct tess__trace {
    record *records;
    uint64_t cap;
    atomic_uint_fast64_t n; /* ever added */
};

tess_status tess__trace_create(uint64_t spans, tess__trace **out) {
    if (!spans || spans > UINT64_C(1) << 28)
        return tess__fail(TESS_E_INVALID, "a trace of %llu spans: expected 1 to 2^28", (unsigned long long)spans);
    tess__trace *t = calloc(1, sizeof *t);
    record *records = calloc(spans, sizeof *records);
    if (!t || !records) {
        free(t);
        free(records);
        return tess__fail(TESS_E_NOMEM, "no memory for a trace of %llu spans", (unsigned long long)spans);
    }
    t->records = records;
    t->cap = spans;
    *out = t;
    return TESS_OK;
}

void tess__trace_destroy(tess__trace *t) {
    if (t)
        free(t->records);
    free(t);
}

int64_t tess__trace_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void tess__trace_add(tess__trace *t, uint32_t lane, const tess__instr *in, const tess__event *event, uint64_t step,
                     int64_t begin_ns) {
    if (!t)
        return;
    uint64_t at = atomic_fetch_add_explicit(&t->n, 1, memory_order_relaxed) % t->cap;
    t->records[at] = (record){ .begin_ns = begin_ns,
                               .end_ns = tess__trace_now(),
                               .step = step,
                               .index = event ? event->scope : in->index,
                               .lane = (uint8_t)lane,
                               .op = in->op,
                               .event = event ? event->type : 0 };
}

static int by_start(const void *a, const void *b) {
    const tess__span *x = a, *y = b;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    return (int)x->lane - (int)y->lane;
}

uint64_t tess__trace_read(const tess__trace *t, uint64_t step, tess__span *out, uint64_t cap) {
    uint64_t end = atomic_load(&t->n), kept = end < t->cap ? end : t->cap, n = 0;
    int64_t origin = INT64_MAX;
    for (uint64_t i = 0; i < kept; i++)
        if (t->records[i].step == step && t->records[i].begin_ns < origin)
            origin = t->records[i].begin_ns;
    for (uint64_t i = 0; i < kept; i++) {
        const record *r = &t->records[i];
        if (r->step != step)
            continue;
        if (n < cap)
            out[n] = (tess__span){ .lane = r->lane,
                                   .op = r->op,
                                   .event = r->event,
                                   .index = r->index,
                                   .cause = -1,
                                   .step = step,
                                   .start = (double)(r->begin_ns - origin) * 1e-9,
                                   .seconds = (double)(r->end_ns - r->begin_ns) * 1e-9 };
        n++;
    }
    if (cap)
        qsort(out, n < cap ? n : cap, sizeof *out, by_start);
    return n;
}

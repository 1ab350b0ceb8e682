/* SPDX-License-Identifier: BSD-3-Clause */
/* Events of time in `train --json`: the spans of the second step, and medians over the run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/plan/plan_read.h"
#include "train.h"

enum { SPANS = 1 << 15, MOST_STEPS = 1 << 12, MOST_SAMPLES = 256, WATCHED = 4 /* steps, with is_late */ };

struct train_spans {
    double *run, *step; /* seconds of the last steps, modulo MOST_STEPS */
    uint64_t n;
    int has_blocks; /* the medians of blocks are written */
};

/* Ranks may have different command lines, and a process that replaces the first rank has no spans yet. */
static int has_to_watch(const train_run *r) {
    return train_output_json(r) && (!r->spans || r->spans->n < WATCHED || train_ledger_comes(r));
}

tess_status train_spans_agree(train_run *r) {
    int64_t any = has_to_watch(r);
    r->watched = 0;
    if (!r->is_late || r->ranks == 1)
        return TESS_OK;
    tess_status status = tess_all_reduce(r->t, &any, 1, TESS_I64, TESS_MAX);
    r->watched = status == TESS_OK && any;
    return status;
}

int train_spans_need_calls(const train_run *r) {
    return r->watched && r->steps_done - r->group_step < WATCHED;
}

static tess_status start_watching(train_run *r) {
    train_spans *s = calloc(1, sizeof *s);
    if (s) {
        s->run = calloc(MOST_STEPS, sizeof *s->run);
        s->step = calloc(MOST_STEPS, sizeof *s->step);
    }
    r->spans = s;
    if (!s || !s->run || !s->step)
        return tess_fail(TESS_E_NOMEM, "no memory for the times of %d steps", MOST_STEPS);
    return tess_trace(r->t, SPANS);
}

/* Only rank 0 records spans, so that the other ranks have no overhead. */
tess_status train_spans_start(train_run *r) {
    tess_status status = r->joins ? TESS_OK : train_spans_agree(r); /* the other ranks agreed earlier */
    return status == TESS_OK && train_output_json(r) ? start_watching(r) : status;
}

void train_spans_close(train_run *r) {
    if (r->spans) {
        free(r->spans->run);
        free(r->spans->step);
    }
    free(r->spans);
    r->spans = NULL;
}

static tess_status put_span(void *user, const tess_span *span) {
    train_run *r = user;
    json_out *j = &r->json;
    json_object_begin(j, NULL);
    json_string(j, "event", "span");
    json_string(j, "source", "measured");
    json_uint(j, "step", span->step + 1);
    json_string(j, "lane", span->lane);
    json_string(j, "op", span->op);
    json_string(j, "unit", span->unit[0] ? span->unit : NULL);
    json_double(j, "start", span->start);
    json_double(j, "seconds", span->seconds);
    json_object_end(j);
    if (json_line(j) != 0)
        r->json_failed = 1;
    return TESS_OK;
}

/* ---- medians ----------------------------------------------------------------------------------- */
static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint64_t n) {
    if (!n)
        return NAN;
    qsort(values, n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

typedef struct { /* times by block, forward and backward */
    double (*seconds)[2][MOST_SAMPLES];
    uint32_t (*n)[2];
    uint64_t n_spans; /* spans read in all */
} samples;

static tess_status collect(void *user, const tess_span *span) {
    samples *into = user;
    int back = strcmp(span->op, "backward") == 0;
    into->n_spans++;
    if (span->block >= 0 && (back || strcmp(span->op, "forward") == 0) && into->n[span->block][back] < MOST_SAMPLES)
        into->seconds[span->block][back][into->n[span->block][back]++] = span->seconds;
    return TESS_OK;
}

/* Writes backward without recomputation, because a reader adds that for the activations of its own plan. */
static void put_block(train_run *r, int32_t block, samples *of) {
    char key[96];
    double forward = median(of->seconds[block][0], of->n[block][0]),
           backward = median(of->seconds[block][1], of->n[block][1]), again = plan_made_again(r->t, block) * forward;
    json_out *j = &r->json;
    model_key(r->m, key, sizeof key);
    json_object_begin(j, NULL);
    json_string(j, "event", "block");
    json_string(j, "model", key);
    json_string(j, "name", r->m->desc.blocks[block].name);
    json_double(j, "forward_seconds", forward);
    json_double(j, "backward_seconds", backward > again ? backward - again : backward);
    json_object_end(j);
    if (json_line(j) != 0)
        r->json_failed = 1;
}

static tess_status put_blocks(train_run *r, uint64_t last) {
    size_t blocks = (size_t)r->m->desc.n_blocks;
    samples all = { calloc(blocks, sizeof *all.seconds), calloc(blocks, sizeof *all.n), 0 };
    tess_status status = TESS_OK;
    if (!all.seconds || !all.n)
        status = tess_fail(TESS_E_NOMEM, "no memory for the times of %zu blocks", blocks);
    uint64_t first = last > MOST_SAMPLES ? last - MOST_SAMPLES : last > 1; /* omits the first step */
    for (uint64_t step = last, seen = UINT64_MAX; status == TESS_OK && step-- > first && seen != all.n_spans;) {
        seen = all.n_spans;
        status = tess_trace_each(r->t, step, collect, &all);
    }
    for (size_t i = 0; status == TESS_OK && i < blocks; i++)
        put_block(r, (int32_t)i, &all);
    free(all.seconds);
    free(all.n);
    return status;
}

/* A device can record steps only once no rank watches them. */
static tess_status stop_watching(train_run *r, uint64_t last) {
    tess_status status = put_blocks(r, last);
    r->spans->has_blocks = 1;
    return status == TESS_OK ? tess_trace(r->t, 0) : status;
}

tess_status train_spans_step(train_run *r, const train_step_record *of) {
    train_spans *s = r->spans;
    if (!s)
        return TESS_OK;
    s->run[s->n % MOST_STEPS] = of->run_seconds;
    s->step[s->n++ % MOST_STEPS] = of->seconds;
    int last_chance = s->n == 1 && of->step == r->task.steps;
    if (s->n == 2 || last_chance)
        return tess_trace_each(r->t, of->step - 1, put_span, r);
    return s->n == WATCHED && r->is_late ? stop_watching(r, of->step) : TESS_OK;
}

tess_status train_spans_finish(train_run *r) {
    train_spans *s = r->spans;
    if (!s || !s->n)
        return TESS_OK;
    tess_status status = s->has_blocks ? TESS_OK : put_blocks(r, r->steps_done);
    uint64_t kept = s->n < MOST_STEPS ? s->n : MOST_STEPS,
             skip = s->n > 1 && s->n <= MOST_STEPS; /* the first step warms up */
    json_out *j = &r->json;
    json_object_begin(j, NULL);
    json_string(j, "event", "timing");
    json_uint(j, "steps", kept - skip);
    json_double(j, "run_seconds", median(s->run + skip, kept - skip));
    json_double(j, "step_seconds", median(s->step + skip, kept - skip));
    json_object_end(j);
    if (json_line(j) != 0)
        r->json_failed = 1;
    return status;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "simulate.h"

#include "tools/support/say.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST 1e-15 /* seconds: less is rounding */

/* ---- tracks ---- */

typedef struct {
    double left;               /* seconds of work that remain, at full speed */
    double demand;             /* cores it keeps busy meanwhile */
    double posted;             /* time of the post */
    int32_t cause;             /* the engine's span before the post */
    int32_t span;              /* index of its span, once it runs */
    tess__span say;            /* the span that it will become */
    const tess__instr *leaves; /* what it leaves goes to a store as soon as it ends; null: nothing does */
} job;

typedef struct { /* jobs run one after another */
    job *jobs;
    int32_t n, done, cap;
} queue;

enum { GATHERS, SUMS, REPLICAS, N_LINES, UP = N_LINES, DOWN, DISK, N_QUEUES }; /* host work is done by the lane down */

typedef struct {
    const simulation *in;
    simulated_step *out;
    queue queues[N_QUEUES];
    double now, cores;                                                     /* cores of this rank, 0: no limit */
    int32_t last;                                                          /* span: the engine's latest */
    int32_t *gather, *reduce, *fetched, *on_host, *offload[2], *reload[2]; /* tickets by group or block; 0: none */
    int32_t *states, *grads, *staged; /* on their way from or to a store; 1: a shard has memory to come from there */
    int32_t *tickets;
    const tess__program *program;
    int32_t microbatch;
} sim;

static tess_status add_span(sim *s, const tess__span *span, int32_t *at) {
    simulated_step *o = s->out;
    if (o->n_spans == o->cap_spans) {
        int32_t want = o->cap_spans ? 2 * o->cap_spans : 256;
        tess__span *bigger = realloc(o->spans, (size_t)want * sizeof *bigger);
        if (!bigger)
            return tess_fail(TESS_E_NOMEM, "no memory for a timeline of %d spans", want);
        o->spans = bigger;
        o->cap_spans = want;
    }
    *at = o->n_spans;
    o->spans[o->n_spans++] = *span;
    return TESS_OK;
}

static job *queue_head(queue *q) {
    return q->done < q->n ? &q->jobs[q->done] : NULL;
}

/* The job at the head of its queue begins: right after the one before it, or after what posted it. */
static tess_status begin_job(sim *s, queue *q) {
    job *j = queue_head(q);
    if (!j || j->span >= 0)
        return TESS_OK;
    int follows = q->done > 0 && s->now > j->posted;
    j->say.start = s->now;
    j->say.cause = follows ? q->jobs[q->done - 1].span : j->cause;
    return add_span(s, &j->say, &j->span);
}

static tess_status post_job(sim *s, int which, uint8_t track, const tess__instr *in, double seconds, double demand,
                            int32_t *ticket) {
    queue *q = &s->queues[which];
    if (q->n == q->cap) {
        int32_t want = q->cap ? 2 * q->cap : 64;
        job *bigger = realloc(q->jobs, (size_t)want * sizeof *bigger);
        if (!bigger)
            return tess_fail(TESS_E_NOMEM, "no memory for a track of %d jobs", want);
        q->jobs = bigger;
        q->cap = want;
    }
    q->jobs[q->n++] = (job){ .left = seconds,
                             .demand = demand,
                             .posted = s->now,
                             .cause = s->last,
                             .span = -1,
                             .say = { .track = track, .op = in->op, .index = in->index } };
    *ticket = q->n;
    return begin_job(s, q);
}

/* ---- the clock ---- */

/* Collectives that run at the same time get equal shares of their link. */
static double share_of_link(const sim *s, int which) {
    int busy = 0;
    for (int i = 0; i < N_LINES; i++)
        busy += s->queues[i].done < s->queues[i].n;
    return which < N_LINES && busy > 1 ? 1.0 / busy : 1;
}

/* Running work demands cores. If there are fewer, all of it slows down in proportion. */
static double engine_speed(const sim *s, double engine_demand) {
    double want = engine_demand;
    for (int i = 0; i < N_QUEUES; i++) {
        const queue *q = &s->queues[i];
        want += q->done < q->n ? q->jobs[q->done].demand * share_of_link(s, i) : 0;
    }
    return s->cores > 0 && want > s->cores ? s->cores / want : 1;
}

static tess_status post_stored(sim *s, const tess__instr *in, int32_t cause);

static tess_status end_job(sim *s, queue *q) {
    job *j = queue_head(q);
    tess__span *span = &s->out->spans[j->span];
    span->seconds = s->now - span->start;
    s->out->busy[span->track] += span->seconds;
    q->done++;
    if (j->leaves)
        TRY(post_stored(s, j->leaves, j->span));
    return begin_job(s, q);
}

/* The time until the first job ends, if that is before `left`. */
static double next_end(sim *s, double left) {
    for (int i = 0; i < N_QUEUES; i++) {
        const job *j = queue_head(&s->queues[i]);
        double own = j ? j->left / share_of_link(s, i) : INFINITY;
        left = own < left ? own : left;
    }
    return left;
}

static tess_status pass_time(sim *s, double seconds) {
    double share[N_QUEUES];
    for (int i = 0; i < N_QUEUES; i++)
        share[i] = share_of_link(s, i);
    for (int i = 0; i < N_QUEUES; i++) {
        job *j = queue_head(&s->queues[i]);
        if (!j)
            continue;
        j->left -= seconds * share[i];
        if (j->left <= LEAST)
            TRY(end_job(s, &s->queues[i]));
    }
    return TESS_OK;
}

/* Advances time until the engine's own work of `left` seconds is done or, if that is 0, until `ticket` of `q` is. */
static tess_status advance_time(sim *s, double left, double demand, const queue *q, int32_t ticket) {
    int working = left > 0;
    while (working ? left > 0 : q->done < ticket) {
        double rate = engine_speed(s, working ? demand : 0), step = next_end(s, working ? left : INFINITY);
        if (!isfinite(step))
            return tess_fail(TESS_E_INTERNAL, "the simulated step waits for what was not posted");
        s->now += step / rate;
        left = left - step > LEAST ? left - step : 0;
        TRY(pass_time(s, step));
    }
    return TESS_OK;
}

/* ---- the engine's thread ---- */

static tess_status run_work(sim *s, const tess__instr *in, const tess__event *e, double seconds) {
    tess__span span = { .track = TESS__TRACK_COMPUTE,
                        .op = in->op,
                        .event = e ? e->type : 0,
                        .index = e ? e->scope : in->index,
                        .cause = s->last,
                        .start = s->now };
    int32_t at = -1;
    if (!(seconds > 0))
        return TESS_OK;
    TRY(add_span(s, &span, &at));
    s->last = at;
    TRY(advance_time(s, seconds, s->in->threads, NULL, 0));
    s->out->spans[at].seconds = s->now - span.start;
    s->out->busy[TESS__TRACK_COMPUTE] += s->now - span.start;
    return TESS_OK;
}

/* Joins a track: the wait's span is caused by the job waited for. */
static tess_status wait_for_job(sim *s, int which, const tess__instr *in, int32_t *ticket) {
    queue *q = &s->queues[which];
    double start = s->now;
    int32_t asked = *ticket, at = -1;
    *ticket = 0;
    if (!asked || q->done >= asked)
        return TESS_OK;
    TRY(advance_time(s, 0, 0, q, asked));
    tess__span span = { .track = TESS__TRACK_COMPUTE,
                        .op = in->op,
                        .index = in->index,
                        .cause = q->jobs[asked - 1].span,
                        .start = start,
                        .seconds = s->now - start };
    uint8_t track = s->out->spans[span.cause].track;
    s->out->exposed[track] += span.seconds;
    TRY(add_span(s, &span, &at));
    s->last = at;
    return TESS_OK;
}

/* ---- how long things take ---- */

static double threads(const sim *s) {
    return s->in->machine->is_cpu ? s->in->threads : 1;
}

/* A kernel of the engine's that reads and writes `bytes` in all. */
static double kernel_seconds(const sim *s, int rate, double bytes) {
    const machine_desc *m = s->in->machine;
    double per = m->rate_bytes_per_second[rate] > 0 ? m->rate_bytes_per_second[rate] : m->memory_bytes_per_second;
    return bytes > 0 ? simulate_over(bytes, per * threads(s)) + m->kernel_seconds : 0;
}

static double scope_seconds(const sim *s, const tess__event *e) {
    int back = e->type == TESS__BACKWARD_BEGIN;
    int32_t block = s->in->model->scopes[e->scope].block;
    if (!s->in->costs)
        return 0;
    double again = back ? simulate_made_again(s->in->model, s->in->setup, block) : 0;
    return simulate_call_seconds(s->in, e->scope, back) + again * simulate_call_seconds(s->in, e->scope, 0);
}

/* ---- collectives ---- */

/* Shard groups are ranks in a row, replica groups every shard_ranks-th one; of a mesh every stride-th one of those. */
static int32_t per_node(const sim *s, int32_t members, int32_t stride) {
    int32_t node = s->in->machine->ranks_per_node;
    stride *= s->in->setup->stride > 1 ? s->in->setup->stride : 1;
    int32_t fit = node > 0 ? node / stride : members;
    return fit < 1 ? 1 : fit < members ? fit : members;
}

/* A communicator does one thing after another. */
static int line_of(const sim *s, int which) {
    return !s->in->apart ? GATHERS : which == TESS__SHARD_SUMS ? SUMS : which == TESS__REPLICA ? REPLICAS : GATHERS;
}

/* Returns the total bytes of a gather, reduce-scatter or all-to-all, one rank's part times the ranks; else the buffer's
 * bytes. With parts of their own lengths, those of equal parts in which as many move as on the rank that moves most. */
static uint64_t collective_bytes(const sim *s, const tess__instr *in, const tess__planned_collective *c) {
    int parts = c->op == TESS_ALL_GATHER || c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_TO_ALL;
    if (c->op == TESS_ALL_TO_ALL_V && c->members > 1)
        return (uint64_t)((double)s->in->layout->groups[in->index].moved_elems * 4 / simulate_share(c->members));
    return c->count * tess_dtype_bytes(c->send_dtype) * (uint64_t)(parts ? c->members : 1);
}

static tess_status post_collective(sim *s, const tess__instr *in, int32_t *ticket) {
    const tess__planned_collective *c = &s->program->collectives[in->collective];
    int32_t stride = c->which == TESS__REPLICA ? s->in->setup->shard_ranks : 1;
    double cpu, seconds = simulate_collective(s->in->machine, s->in->comm, c->op, c->members,
                                              per_node(s, c->members, stride), collective_bytes(s, in, c), &cpu);
    return post_job(s, line_of(s, c->which), TESS__TRACK_COMM, in, seconds, seconds > 0 ? cpu / seconds : 0, ticket);
}

/* ---- instructions ---- */

static int sums_at_end(const sim *s) {
    return s->in->setup->accum > 1 && !s->in->setup->sync_each;
}

static tess_status gather_group(sim *s, const tess__instr *in) {
    int32_t g = in->index, ranks = s->in->setup->shard_ranks;
    const tess__group *group = &s->in->layout->groups[g];
    double cast = simulate_cast_bytes(group, TESS__GATHER);
    double stored = simulate_disk_seconds(s->in, simulate_stored_params(group)); /* read where the shard is cast */
    if (in->flags & TESS__ASYNC)
        return post_job(s, UP, TESS__TRACK_UP, in,
                        stored + simulate_over(cast / 2, s->in->machine->up_bytes_per_second), 1, &s->fetched[g]);
    if (!group->low_copy || group->param_rest.domain == TESS_DOMAIN_HOST)
        TRY(run_work(s, in, NULL, kernel_seconds(s, MACHINE_RATE_COPY, cast) + (s->staged[g] ? stored : 0)));
    return ranks == 1 ? TESS_OK : post_collective(s, in, &s->gather[g]);
}

static tess_status reduce_group(sim *s, const tess__instr *in) {
    int32_t g = in->index, ranks = s->in->setup->shard_ranks;
    const tess__group *group = &s->in->layout->groups[g];
    const tess__planned_collective *c = &s->program->collectives[in->collective];
    double bytes = (double)tess_dtype_span(c->send_dtype, group->shard_elems),
           alone = bytes + (double)group->shard_elems * 4;
    if (in->flags & TESS__ASYNC)
        return post_job(s, DOWN, TESS__TRACK_DOWN, in,
                        simulate_over(bytes, s->in->machine->down_bytes_per_second * threads(s)), threads(s),
                        &s->on_host[g]);
    if (ranks == 1)
        return run_work(s, in, NULL, kernel_seconds(s, MACHINE_RATE_SUM, alone));
    return post_collective(s, in, &s->reduce[g]);
}

/* The sum over microbatches of one shard: the part is read, the sum read and written. */
static double sum_bytes(const sim *s, const tess__group *g) {
    return (double)g->shard_elems * 4 * (s->in->setup->accum == 1 || sums_at_end(s) ? 2 : 3);
}

static tess_status on_shard(sim *s, const tess__instr *in, int rate, double bytes) {
    if (!(in->flags & TESS__ASYNC))
        return run_work(s, in, NULL, kernel_seconds(s, rate, bytes));
    return post_job(s, DOWN, TESS__TRACK_HOST, in,
                    simulate_over(bytes, s->in->machine->host_bytes_per_second * threads(s)), threads(s),
                    &s->on_host[in->index]);
}

static tess_status move_group(sim *s, const tess__instr *in) {
    const machine_desc *m = s->in->machine;
    const tess_block_options *o = &s->in->model->blocks[in->index].options;
    int output = in->flags & TESS__OUTPUTS ? 1 : 0, back = in->op == TESS__RELOAD;
    double bytes = (double)(output ? o->output_bytes : o->saved_bytes);
    double seconds = simulate_over(bytes, back ? m->up_bytes_per_second : m->down_bytes_per_second * threads(s));
    return post_job(s, back ? UP : DOWN, back ? TESS__TRACK_UP : TESS__TRACK_DOWN, in, seconds, back ? 1 : threads(s),
                    back ? &s->reload[output][in->index] : &s->offload[output][in->index]);
}

static tess_status fetch_group(sim *s, const tess__instr *in) {
    const tess__group *group = &s->in->layout->groups[in->index];
    double bytes = simulate_cast_bytes(group, TESS__GATHER) / 2; /* cast on the way */
    double stored = simulate_disk_seconds(s->in, simulate_stored_params(group));
    return post_job(s, UP, TESS__TRACK_UP, in, stored + simulate_over(bytes, s->in->machine->up_bytes_per_second), 1,
                    &s->fetched[in->index]);
}

static int32_t *stored_ticket(sim *s, const tess__instr *in) {
    return in->op >= TESS__GRAD_FETCH ? &s->grads[in->index] : &s->states[in->index];
}

/* A microbatch reads one sum and writes one. The last of several reads more; the first reads none. */
static tess_status post_stored(sim *s, const tess__instr *in, int32_t cause) {
    int fetch = in->op == TESS__STATES_FETCH || in->op == TESS__GRAD_FETCH, grad = in->op >= TESS__GRAD_FETCH;
    int none = grad && fetch && (s->program->kind & 15) == TESS_PASS_TRAIN && s->microbatch == 0;
    double seconds = none ? 0 : simulate_disk_seconds(s->in, simulate_stored_bytes(s->in->layout, in->index, grad));
    int32_t last = s->last;
    s->last = cause;
    tess_status status =
        post_job(s, DISK, fetch ? TESS__TRACK_UP : TESS__TRACK_DOWN, in, seconds, 0, stored_ticket(s, in));
    s->last = last;
    return status;
}

/* A lane hands over what it has summed or stepped when it has. */
static tess_status stored_instr(sim *s, const tess__instr *in) {
    queue *lane = &s->queues[DOWN];
    int store = in->op == TESS__STATES_STORE || in->op == TESS__GRAD_STORE;
    if (!store && in->op != TESS__STATES_FETCH && in->op != TESS__GRAD_FETCH)
        return wait_for_job(s, DISK, in, stored_ticket(s, in));
    if (!(in->flags & TESS__ASYNC) || lane->done == lane->n)
        return post_stored(s, in, s->last);
    lane->jobs[lane->n - 1].leaves = in;
    return TESS_OK;
}

/* The engine's thread posts it and waits at once. */
static tess_status post_and_wait(sim *s, const tess__instr *in) {
    int32_t ticket = 0;
    if (s->program->collectives[in->collective].members <= 1)
        return TESS_OK;
    TRY(post_collective(s, in, &ticket));
    return wait_for_job(s, line_of(s, s->program->collectives[in->collective].which), in, &ticket);
}

static tess_status book_buffer(sim *s, const tess__instr *in) {
    const tess__buffer *b = &s->program->buffers[in->buffer];
    tess__instr named = *in;
    if (b->role == TESS__STAGED_PARAM)
        s->staged[b->index] = in->op == TESS__ALLOC;
    named.index = b->role == TESS__GRAD || b->role == TESS__SHARD_GRAD ? in->index : 0;
    return in->flags & TESS__ZERO ? run_work(s, &named, NULL, kernel_seconds(s, MACHINE_RATE_COPY, (double)b->bytes))
                                  : TESS_OK;
}

static tess_status wait_both(sim *s, const tess__instr *in, int track, int32_t *moved, int which, int32_t *sent) {
    TRY(wait_for_job(s, track, in, moved));
    return wait_for_job(s, line_of(s, which), in, sent);
}

/* The owner with the most work decides: five steps of three products, as Muon has. */
static tess_status matrices_instr(sim *s, const tess__instr *in) {
    double most, all, rate = s->in->machine->flops_per_second[TESS_F32] * threads(s);
    tess__matrices_balance(s->in->layout, s->in->setup->shard_ranks, in->index, &most, &all);
    switch (in->op) {
    case TESS__COLLECT: return post_collective(s, in, &s->gather[in->index]);
    case TESS__COLLECT_WAIT: return wait_for_job(s, line_of(s, TESS__SHARD), in, &s->gather[in->index]);
    case TESS__MATRIX: return run_work(s, in, NULL, simulate_over(2.0 * 5 * 3 * most, rate));
    case TESS__RETURN: return post_collective(s, in, &s->reduce[in->index]);
    case TESS__RETURN_WAIT: return wait_for_job(s, line_of(s, TESS__SHARD_SUMS), in, &s->reduce[in->index]);
    default:
        return on_shard(s, in, MACHINE_RATE_OPTIMIZER,
                        0.7 * simulate_optimizer_bytes(&s->in->layout->groups[in->index]));
    }
}

static tess_status beside_instr(sim *s, const tess__instr *in) {
    return in->op < TESS__STATES_FETCH ? matrices_instr(s, in) : stored_instr(s, in);
}

/* An audit's turn comes once in so many passes: a share of its time in each. */
static tess_status audit_instr(sim *s, const tess__instr *in) {
    const tess__planned_collective *c = &s->program->collectives[in->collective];
    int32_t scope = s->in->model->blocks[in->index].scope;
    double seconds = simulate_collective(s->in->machine, s->in->comm, c->op, c->members, per_node(s, c->members, 1),
                                         collective_bytes(s, in, c), NULL);
    if (in->op == TESS__AUDIT && s->in->costs)
        seconds += simulate_call_seconds(s->in, scope, 0) +
                   (in->flags & TESS__OF_BACKWARD ? simulate_call_seconds(s->in, scope, 1) : 0);
    return run_work(s, in, NULL, seconds / s->in->setup->audit_every);
}

static tess_status run_instr(sim *s, const tess__instr *in) {
    const tess__setup *u = s->in->setup;
    const tess__layout *l = s->in->layout;
    int32_t i = in->index;
    int output = in->flags & TESS__OUTPUTS ? 1 : 0;
    switch (in->op) {
    case TESS__ALLOC:
    case TESS__FREE: return book_buffer(s, in);
    case TESS__INPUT_COPY:
        return run_work(s, in, NULL, kernel_seconds(s, MACHINE_RATE_COPY, 2 * (double)u->input_bytes));
    case TESS__GATHER: return gather_group(s, in);
    case TESS__GATHER_WAIT: return wait_both(s, in, UP, &s->fetched[i], TESS__SHARD, &s->gather[i]);
    case TESS__ENTER: return run_work(s, in, &s->program->events[i], scope_seconds(s, &s->program->events[i]));
    case TESS__CAST_WIRE:
    case TESS__WIDEN:
    case TESS__SUM_ARRIVED:
    case TESS__PACK_SUM:
    case TESS__SUM_LANDED:
    case TESS__WIDEN_SUM:
        return run_work(s, in, NULL, kernel_seconds(s, MACHINE_RATE_COPY, simulate_cast_bytes(&l->groups[i], in->op)));
    case TESS__SUM_FULL:
        return run_work(s, in, NULL, kernel_seconds(s, MACHINE_RATE_SUM, (double)l->groups[i].flat_elems * 12));
    case TESS__REDUCE: return reduce_group(s, in);
    case TESS__REDUCE_WAIT: return wait_both(s, in, DOWN, &s->on_host[i], TESS__SHARD_SUMS, &s->reduce[i]);
    case TESS__REPLICATE: return post_collective(s, in, &s->reduce[i]);
    case TESS__REPLICATE_WAIT: return wait_for_job(s, line_of(s, TESS__REPLICA), in, &s->reduce[i]);
    case TESS__SUM_SHARD: return on_shard(s, in, MACHINE_RATE_SUM, sum_bytes(s, &l->groups[i]));
    case TESS__NORM_GROUP:
        return run_work(s, in, NULL, kernel_seconds(s, MACHINE_RATE_NORM, (double)l->groups[i].shard_elems * 4));
    case TESS__NORM_REDUCE:
    case TESS__SHARE_BUFFERS: return post_and_wait(s, in);
    case TESS__OPTIMIZE: return on_shard(s, in, MACHINE_RATE_OPTIMIZER, simulate_optimizer_bytes(&l->groups[i]));
    case TESS__PREFETCH: return fetch_group(s, in);
    case TESS__PREFETCH_WAIT: return wait_for_job(s, UP, in, &s->fetched[i]);
    case TESS__HOST_WAIT: return wait_for_job(s, DOWN, in, &s->on_host[i]);
    case TESS__OFFLOAD:
    case TESS__RELOAD: return move_group(s, in);
    case TESS__OFFLOAD_WAIT: return wait_for_job(s, DOWN, in, &s->offload[output][i]);
    case TESS__RELOAD_WAIT: return wait_for_job(s, UP, in, &s->reload[output][i]);
    case TESS__AUDIT_SEND:
    case TESS__AUDIT: return audit_instr(s, in);
    default: return in->op < TESS__UPDATE_MAKE ? TESS_OK : beside_instr(s, in); /* no time to speak of */
    }
}

/* ---- the whole ---- */

/* Back from the end: each span began when its cause ended. */
static void find_critical_path(const sim *s) {
    for (int32_t at = s->last; at >= 0;) {
        tess__span *span = &s->out->spans[at];
        span->critical = 1;
        if (!tess__span_is_wait(span)) /* a wait passes while its cause runs */
            s->out->critical[span->track] += span->seconds;
        at = span->cause;
    }
}

/* Spans were added as they ended or were waited for; causes are numbers among them. */
static tess_status sort_spans(simulated_step *o) {
    int32_t *order = malloc(((size_t)o->n_spans + 1) * 2 * sizeof *order), *place = order + o->n_spans;
    tess__span *sorted = malloc(((size_t)o->n_spans + 1) * sizeof *sorted);
    if (!order || !sorted) {
        free(order);
        free(sorted);
        return tess_fail(TESS_E_NOMEM, "no memory for a timeline of %d spans", o->n_spans);
    }
    for (int32_t i = 0; i < o->n_spans; i++) { /* nearly sorted: only waits come late */
        int32_t at = i;
        while (at > 0 && o->spans[order[at - 1]].start > o->spans[i].start) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
    for (int32_t i = 0; i < o->n_spans; i++)
        place[order[i]] = i;
    for (int32_t i = 0; i < o->n_spans; i++) {
        sorted[i] = o->spans[order[i]];
        if (sorted[i].cause >= 0)
            sorted[i].cause = place[sorted[i].cause];
    }
    free(order);
    free(o->spans);
    o->spans = sorted;
    o->cap_spans = o->n_spans + 1;
    return TESS_OK;
}

static tess_status run_programs(sim *s) {
    for (int32_t p = 0; p < s->in->n_programs; p++) {
        s->program = s->in->programs[p];
        for (int32_t i = 0; i < s->program->n_instrs; i++)
            TRY(run_instr(s, &s->program->instrs[i]));
    }
    s->out->seconds = s->now;
    find_critical_path(s);
    return sort_spans(s->out);
}

tess_status simulate_step(const simulation *in, simulated_step *out) {
    int32_t n = in->layout->n_groups > in->model->n_blocks ? in->layout->n_groups : in->model->n_blocks;
    simulated_step own = { 0 };
    sim s = { .in = in, .out = &own, .last = -1 };
    s.cores = in->machine->cores / simulate_ranks_of_node(in);
    int32_t **tables[] = { &s.gather,    &s.reduce,    &s.fetched, &s.on_host, &s.offload[0], &s.offload[1],
                           &s.reload[0], &s.reload[1], &s.states,  &s.grads,   &s.staged };
    const size_t n_tables = sizeof tables / sizeof *tables;
    s.tickets = calloc((size_t)n * n_tables + 1, sizeof *s.tickets);
    if (!s.tickets)
        return tess_fail(TESS_E_NOMEM, "no memory to simulate a step");
    for (size_t i = 0; i < n_tables; i++)
        *tables[i] = s.tickets + i * (size_t)n;
    tess_status status = run_programs(&s);
    for (int i = 0; i < N_QUEUES; i++)
        free(s.queues[i].jobs);
    free(s.tickets);
    if (status)
        simulated_free(&own);
    else
        *out = own;
    return status;
}

void simulated_free(simulated_step *t) {
    free(t->spans);
    *t = (simulated_step){ 0 };
}

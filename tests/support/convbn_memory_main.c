/* SPDX-License-Identifier: BSD-3-Clause */
/* PyTorch's FSDP memory test on convbn, its network: bytes alive in device memory at the points where that test looks,
 * over four iterations. Usage: convbn_memory plan|touch|run SIZE HIDDEN, ranks as `tessera run` starts them (plan: two,
 * and nothing is computed; touch: blocks write all that they are given, and compute nothing either). At the test's own
 * size its figures must hold to 1 MiB; at any size what was alive must be what the declarations say, to the byte, and
 * every ledger point what was planned.
 *
 * s is a rank's share of the parameters, 2 MiB there. The momentum is held from the start, so the figures of PyTorch's
 * second iteration hold from the first. The step ends the gradients unit by unit, which is PyTorch's point "done"; its
 * "after step", with all of them, is where the first unit's step begins. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/state.h"
#include "ledger_check.h"
#include "tools/models/model.h"
#include "core/base/options.h"
#include "core/base/status.h"

enum { ITERATIONS = 4, LAST_BLOCK = 2, SHARE = 2, FULL_SIZE = 224, FULL_HIDDEN = 128 };

static int failures;

typedef struct {
    tess *t;
    model *m;
    model_block head; /* as the model made it */
    uint64_t after_forward;
    int recompute, rank;
    uint64_t planned_forward, planned_backward;
    ledger_check ledger;
} probe;

static uint64_t live(const probe *p) {
    tess_stats s = { .struct_size = sizeof s };
    tess_stats_get(p->t, &s);
    return s.live_bytes[TESS_DOMAIN_DEVICE];
}

/* The forward pass is not visible from outside, so the last block looks. */
static tess_status observed_forward(void *user, const tess_block_call *call) {
    probe *p = user;
    p->after_forward = live(p);
    return p->head.forward(p->head.user, call);
}

static tess_status head_backward(void *user, const tess_block_call *call) {
    probe *p = user;
    return p->head.backward(p->head.user, call);
}

/* ---- blocks that only touch ---- */

static void write_all(void *p, uint64_t bytes) {
    if (p)
        memset(p, 0x3c, bytes);
}

static tess_status touch_forward(void *user, const tess_block_call *call) {
    const model_block *b = user;
    write_all(call->scratch, b->forward_scratch_bytes);
    write_all(call->saved, call->selective ? b->selective_saved_bytes : b->saved_bytes);
    write_all(call->output, b->output_bytes);
    return TESS_OK;
}

static tess_status touch_backward(void *user, const tess_block_call *call) {
    const model_block *b = user;
    write_all(call->scratch, b->backward_scratch_bytes);
    write_all(call->grad_input, call->grad_input ? b[-1].output_bytes : 0);
    for (int32_t i = 0; i < call->n_params; i++)
        if (call->grads[i])
            *(float *)call->grads[i] += 1;
    return TESS_OK;
}

static void only_touch(model *m) {
    for (int32_t k = 0; k < m->desc.n_blocks; k++) {
        m->desc.blocks[k].forward = touch_forward;
        m->desc.blocks[k].backward = touch_backward;
        m->desc.blocks[k].user = &m->desc.blocks[k];
    }
}

/* ---- figures ---- */

/* What must be alive where the probe looks, of the declarations alone and not of the program: before the loss what the
 * blocks hand on and save, and the last one's parameters; after backward the sharded gradients. */
static void reckon(probe *p) {
    tess_stats s = { .struct_size = sizeof s };
    const tess__plan *plan = &p->t->plan;
    const tess__scope *last = &plan->model.scopes[plan->model.blocks[LAST_BLOCK].scope];
    const uint64_t align = plan->setup.align;
    tess_stats_get(p->t, &s);
    p->planned_forward = p->planned_backward = s.resting_bytes[TESS_DOMAIN_DEVICE];
    for (int k = 0; k <= LAST_BLOCK; k++) {
        const tess_block_options *o = &plan->model.blocks[k].options;
        int saves = k == LAST_BLOCK || !p->recompute || o->flags & TESS_BLOCK_KEEP;
        p->planned_forward += tess__round_up(o->output_bytes, align) +
                              (saves ? tess__round_up(o->saved_bytes, align) : 0) +
                              (k == LAST_BLOCK ? tess__round_up(o->forward_scratch_bytes, align) : 0);
    }
    p->planned_forward += tess__round_up(plan->setup.input_bytes, align);
    for (int32_t g = 0; g < plan->layout.n_groups; g++) {
        const tess__group *group = &plan->layout.groups[g];
        int here = group->unit == plan->model.params[last->params[0]].unit;
        p->planned_backward += group->trainable ? tess__round_up(group->shard_elems * sizeof(float), align) : 0;
        p->planned_forward += here ? tess__round_up(group->flat_elems * sizeof(float), align) : 0;
    }
}

static int is_full(const probe *p) {
    return p->m->options.image_size == FULL_SIZE && p->m->options.hidden == FULL_HIDDEN;
}

static void check(const probe *p, int iteration, const char *point, uint64_t bytes, int figure) {
    double mib = (double)bytes / (1 << 20);
    int rounded = (int)(mib + 0.5), full = is_full(p), off = full && abs(rounded - figure) > 1;
    failures += off;
    if (p->rank == 0)
        printf("iter %d: %-10s %7.2f MiB%s", iteration, point, mib, full ? "" : "\n");
    if (p->rank == 0 && full)
        printf(", expected %d%s\n", figure, off ? " WRONG" : "");
}

static void check_equal(const probe *p, const char *point, uint64_t found, uint64_t planned) {
    if (found == planned)
        return;
    failures++;
    fprintf(stderr, "rank %d, %s: %llu bytes alive, expected %llu\n", p->rank, point, (unsigned long long)found,
            (unsigned long long)planned);
}

static int forward_figure(const probe *p) {
    return (p->recompute ? 50 : 338) + 2 * SHARE;
}

static tess_status iterate(probe *p, int iteration, void *batch) {
    tess_run_options run = { .struct_size = sizeof run, .kind = TESS_PASS_TRAIN, .batch = batch };
    tess_optimizer_options step = { .struct_size = sizeof step, .lr = 1e-4f, .momentum = 0.9f };
    uint64_t start = live(p);
    check(p, iteration, "start", start, 2 * SHARE);
    OPS_TRY(tess_run(p->t, &run));
    check(p, iteration, "after fwd", p->after_forward, forward_figure(p));
    check_equal(p, "after forward", p->after_forward, p->planned_forward);
    check(p, iteration, "after bwd", live(p), 3 * SHARE);
    check_equal(p, "after backward", live(p), p->planned_backward);
    OPS_TRY(tess_step(p->t, &step));
    check(p, iteration, "done", live(p), 2 * SHARE);
    check_equal(p, "done", live(p), start);
    return TESS_OK;
}

/* The loss is in the head's forward: after it comes backward's first point. What is planned there and around the step;
 * measured was the same (ledger_check). */
static void check_ledger(probe *p) {
    const ledger_check *c = &p->ledger;
    const tess_ledger_point *loss = NULL, *before = NULL, *after = NULL;
    for (size_t i = 0; i < c->n_planned; i++) {
        const tess_ledger_point *at = &c->planned[i];
        if (at->point == TESS_LEDGER_PRE_BACKWARD && !loss)
            loss = at;
        if (at->point == TESS_LEDGER_OPTIMIZER && !before)
            before = at;
        if (at->point == (TESS_LEDGER_OPTIMIZER | TESS_LEDGER_AFTER))
            after = at;
    }
    failures += c->differ > 0 || c->points != ITERATIONS * c->n_planned || !loss || !before || !after;
    if (c->differ || !loss || !before || !after) {
        fprintf(stderr, "rank %d: %s (and %d more)\n", p->rank, c->first, c->differ - 1);
        return;
    }
    check(p, ITERATIONS - 1, "after loss", loss->total_bytes[TESS_DOMAIN_DEVICE], forward_figure(p));
    check(p, ITERATIONS - 1, "after step", before->total_bytes[TESS_DOMAIN_DEVICE], 3 * SHARE);
    check_equal(p, "when the step begins", before->total_bytes[TESS_DOMAIN_DEVICE], p->planned_backward);
    check_equal(p, "when it has ended", after->total_bytes[TESS_DOMAIN_DEVICE], live(p));
}

static tess_status open_probe(probe *p, int plan) {
    tess_options o = { .struct_size = sizeof o, .optimizer = "sgd", .momentum = 0.9f };
    model_block *head = &p->m->desc.blocks[LAST_BLOCK];
    o.plan_only = (uint32_t)plan;
    o.ranks = 2;
    o.input_bytes = p->m->desc.input_bytes;
    const char *activations = tess__option_text("activations");
    p->recompute = activations && !strcmp(activations, "recompute");
    p->head = *head;
    head->forward = observed_forward;
    head->backward = head_backward;
    head->user = p;
    OPS_TRY(tess_open(&o, &p->t));
    p->rank = tess_rank(p->t);
    OPS_TRY(model_declare(p->t, p->m));
    tess_status status = tess_shard(p->t, model_fill, p->m);
    return plan && status == TESS_E_PLANNED ? TESS_OK : status;
}

static tess_status look(probe *p, int plan) {
    OPS_TRY(open_probe(p, plan));
    reckon(p);
    if (plan) {
        check(p, 0, "after fwd", p->planned_forward, forward_figure(p));
        check(p, 0, "after bwd", p->planned_backward, 3 * SHARE);
        return TESS_OK;
    }
    float *images;
    void *batch = calloc(1, ops_align(p->m->desc.input_bytes));
    if (!batch)
        return tess__fail(TESS_E_NOMEM, "no memory for a batch");
    ((model_batch *)batch)->count = (uint32_t)p->m->options.batch;
    images = convbn_images(batch);
    for (uint64_t i = 0; i < (p->m->desc.input_bytes - sizeof(model_batch)) / sizeof *images; i++)
        images[i] = (float)(i * 2654435761u % 2001) / 1000.0f - 1.0f;
    tess_status status = TESS_OK;
    if (status == TESS_OK)
        status = ledger_check_open(&p->ledger, p->t, TESS_LEDGER_STEP_APART, NULL);
    for (int i = 0; i < ITERATIONS && status == TESS_OK; i++) {
        ledger_check_start(&p->ledger);
        status = iterate(p, i, batch);
        ledger_check_stop(&p->ledger);
    }
    if (status == TESS_OK)
        check_ledger(p);
    ledger_check_close(&p->ledger);
    free(batch);
    return status;
}

int main(int argc, char **argv) {
    probe p = { 0 };
    if (argc != 4)
        return 2;
    model_options o = { .image_size = atoi(argv[2]), .hidden = atoi(argv[3]), .seed = 1 };
    tess_status status = model_create("convbn", &o, &p.m);
    if (status == TESS_OK && !strcmp(argv[1], "touch"))
        only_touch(p.m);
    if (status == TESS_OK)
        status = look(&p, !strcmp(argv[1], "plan"));
    if (status != TESS_OK)
        fprintf(stderr, "%s\n", tess_last_error());
    tess_status closed = tess_close(p.t);
    model_destroy(p.m);
    return status != TESS_OK || closed != TESS_OK || failures;
}

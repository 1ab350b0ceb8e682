/* SPDX-License-Identifier: BSD-3-Clause */
/* Audits (TESSERA_AUDIT=1/K): what a rank makes of a block is made again by another rank, and digests are compared. All
 * ranks have all digests, so they come to one verdict without a further word. */
#include "audit.h"

#include "base/log.h"
#include "base/status.h"
#include "control/control.h"
#include "kernels/digest.h"
#include "plan/audit.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { OUTPUT, GRADIENTS, KINDS }; /* OUTPUT: in backward the gradient of the input */
enum { NOBODY = -1 };

typedef struct { /* TESS__AUDIT_FOUND_BYTES of a rank */
    uint64_t own[KINDS];
    uint64_t again[KINDS]; /* what it made of another rank's inputs */
    uint64_t changed;      /* 1: its input is not what forward left */
    uint64_t reserved[3];
} found;
_Static_assert(sizeof(found) == TESS__AUDIT_FOUND_BYTES, "a rank's part of the exchange");

typedef struct { /* one audit */
    tess *t;
    const tess__instr *in;
    int32_t block, ranks, shift; /* rank r is audited by r + shift */
    int backward;
    tess__audit_room room;
    char *work;
} audit;

/* ---- turns ----------------------------------------------------------------------------------------- */

static uint64_t pass_number(const tess *t) {
    return t->step.steps_done * (uint64_t)t->plan.setup.accum + (uint64_t)t->pass.microbatch;
}

/* Every block's forward and backward has its turn once in K passes. */
static int is_due(const tess *t, int32_t block, int backward) {
    uint64_t slot = 2 * (uint64_t)block + (uint64_t)backward;
    return (pass_number(t) + slot) % (uint64_t)t->plan.setup.audit_every == 0;
}

/* Over the rounds every rank audits every other one. */
static int32_t shift_of(const tess *t) {
    uint64_t round = pass_number(t) / (uint64_t)t->plan.setup.audit_every;
    return 1 + (int32_t)(round % (uint64_t)(t->plan.setup.nranks - 1));
}

static audit audit_of(tess *t, const tess__instr *in) {
    audit a = { .t = t,
                .in = in,
                .block = in->index,
                .ranks = t->plan.setup.nranks,
                .shift = shift_of(t),
                .backward = (in->flags & TESS__OF_BACKWARD) != 0 };
    a.room = tess__audit_room_of(&t->plan.setup, &t->plan.model, &t->plan.layout, a.block, a.backward);
    return a;
}

static int32_t auditor_of(const audit *a, int32_t rank) {
    return (rank + a->shift) % a->ranks;
}

static const tess_block_options *options_of(const audit *a) {
    return &a->t->plan.model.blocks[a->block].options;
}

static const tess__scope *scope_of(const audit *a) {
    return &a->t->plan.model.scopes[a->t->plan.model.blocks[a->block].scope];
}

static const tess__param *param_of(const audit *a, int32_t k) {
    return &a->t->plan.model.params[scope_of(a)->params[k]];
}

static uint64_t input_bytes(const audit *a) {
    return a->block ? a->t->plan.model.blocks[a->block - 1].options.output_bytes : 0;
}

static void *gradient_of_output(const tess *t, int32_t block) {
    return tess__address_of(t, TESS__OUTPUT_GRAD, tess__grad_place(&t->plan.model, block));
}

/* ---- what is compared ------------------------------------------------------------------------------ */

static uint64_t digest(const void *at, uint64_t bytes, uint64_t seed) {
    uint32_t each = bytes % 4 ? 1 : 4;
    return bytes ? tess__digest(at, each, 0, bytes / each, tess__spread(seed)) : 0;
}

/* The gradients of the block's parameters, wherever they lie. */
static uint64_t digest_gradients(const audit *a, void *const *at) {
    uint64_t sum = 0;
    for (int32_t k = 0; k < scope_of(a)->n_params; k++)
        sum += digest(at[k], tess__audit_grad_bytes(&a->t->plan.layout, param_of(a, k)), (uint64_t)k + 1);
    return sum;
}

/* Where backward writes the result, forward's output is not there yet. */
static uint64_t digest_output(const audit *a, const void *at) {
    if (tess__result_is_late(&a->t->plan.model, a->block) != a->backward)
        return 0;
    return digest(at, options_of(a)->output_bytes, a->backward ? 3 : 0);
}

static void digest_own(const audit *a, uint64_t out[KINDS]) {
    tess *t = a->t;
    void **grads = t->pass.block_grads;
    out[OUTPUT] = digest_output(a, tess__address_of(t, TESS__OUTPUT, a->block));
    if (!a->backward)
        return;
    for (int32_t k = 0; k < scope_of(a)->n_params; k++)
        grads[k] = tess__grad_at(t, param_of(a, k));
    out[OUTPUT] += a->block ? digest(gradient_of_output(t, a->block - 1), input_bytes(a), 0) : 0;
    out[GRADIENTS] = digest_gradients(a, grads);
}

/* ---- inputs ---------------------------------------------------------------------------------------- */

static char *sent_by(const audit *a, int32_t rank) {
    return (char *)tess__address_of(a->t, TESS__AUDIT_SENT, a->block) + (uint64_t)rank * a->room.sent_bytes;
}

static void put(char *to, const void *from, uint64_t bytes) {
    if (bytes)
        memcpy(to, from, bytes);
}

static void fill_own(const audit *a) {
    const tess *t = a->t;
    char *to = sent_by(a, t->comms.world.rank);
    memset(to, 0, a->room.sent_bytes);
    memcpy(to, &t->pass.run->microbatch, sizeof t->pass.run->microbatch);
    put(to + a->room.batch, tess__address_of(t, TESS__INPUT, 0), t->plan.setup.input_bytes);
    if (a->block)
        put(to + a->room.input, tess__address_of(t, TESS__OUTPUT, a->block - 1), input_bytes(a));
    if (a->backward && a->block < t->plan.model.n_blocks - 1)
        put(to + a->room.grad_output, gradient_of_output(t, a->block), options_of(a)->output_bytes);
    for (int32_t k = 0; a->backward && k < scope_of(a)->n_params; k++)
        if (tess__audit_adds(&t->plan.model, a->block, k))
            put(to + a->room.sums + tess__audit_sums_before(&t->plan.model, &t->plan.layout, a->block, k),
                tess__grad_at(t, param_of(a, k)), tess__audit_grad_bytes(&t->plan.layout, param_of(a, k)));
}

static uint64_t digest_input(const audit *a) {
    const tess *t = a->t;
    uint64_t batch = t->plan.setup.input_bytes, input = input_bytes(a), sum = 0;
    sum += batch ? digest(tess__address_of(t, TESS__INPUT, 0), batch, 1) : 0;
    return sum + (input ? digest(tess__address_of(t, TESS__OUTPUT, a->block - 1), input, 2) : 0);
}

/* Activations lie in memory between forward and backward. Where backward writes the result, forward reads nothing. */
static void compare_input(const audit *a) {
    tess *t = a->t;
    if (tess__result_is_late(&t->plan.model, a->block)) {
        t->audit.changed = 0;
        return;
    }
    if (!a->backward && is_due(t, a->block, 1))
        t->audit.inputs[a->block] = digest_input(a);
    if (a->backward && is_due(t, a->block, 1))
        t->audit.changed = t->audit.inputs[a->block] != digest_input(a);
}

static tess_status send_inputs(tess *t, const tess__instr *in) {
    audit a = audit_of(t, in);
    compare_input(&a);
    if (!is_due(t, a.block, a.backward))
        return TESS_OK;
    fill_own(&a);
    return tess__run_planned(t, in, sent_by(&a, t->comms.world.rank), sent_by(&a, 0), TESS__AUDIT_SCRATCH,
                             "the audit of a block");
}

/* ---- the work again -------------------------------------------------------------------------------- */

/* Gradients begin as those of the audited rank did. */
static void begin_gradients(const audit *a, const char *sent, void **grads) {
    const tess__model *m = &a->t->plan.model;
    const tess__layout *l = &a->t->plan.layout;
    for (int32_t k = 0; k < scope_of(a)->n_params; k++) {
        uint64_t bytes = tess__audit_grad_bytes(l, param_of(a, k));
        char *to = a->work + a->room.grads + tess__audit_grads_before(m, l, a->block, k);
        grads[k] = bytes ? to : NULL;
        if (!bytes)
            continue;
        memset(to, 0, bytes);
        if (tess__audit_adds(m, a->block, k))
            put(to, sent + a->room.sums + tess__audit_sums_before(m, l, a->block, k), bytes);
    }
}

static const void *or_null(const char *at, uint64_t bytes) {
    return bytes ? at : NULL;
}

static tess_block_call forward_call(const audit *a, const char *sent) {
    const tess_block_options *o = options_of(a);
    tess_block_call c = tess__block_call_of(a->t, a->block);
    memcpy(&c.microbatch, sent, sizeof c.microbatch);
    c.recompute = 1; /* so that running statistics stay */
    c.batch = or_null(sent + a->room.batch, a->t->plan.setup.input_bytes);
    c.input = or_null(sent + a->room.input, input_bytes(a));
    c.output = (void *)or_null(a->work + a->room.output, o->output_bytes);
    c.saved = (void *)or_null(a->work + a->room.saved, o->saved_bytes);
    c.scratch = (void *)or_null(a->work + a->room.scratch, o->forward_scratch_bytes);
    return c;
}

static tess_block_call backward_call(const audit *a, const char *sent) {
    const tess_block_options *o = options_of(a);
    tess_block_call c = forward_call(a, sent);
    if (o->flags & TESS_BLOCK_DROP_OUTPUT)
        c.output = NULL;
    c.recompute = 0;
    c.scratch = (void *)or_null(a->work + a->room.scratch, o->backward_scratch_bytes);
    c.grads = a->t->pass.block_grads;
    c.grad_output =
        a->block < a->t->plan.model.n_blocks - 1 ? or_null(sent + a->room.grad_output, o->output_bytes) : NULL;
    c.grad_input = (void *)or_null(a->work + a->room.grad_input, input_bytes(a));
    return c;
}

static tess_status call(const audit *a, const tess_block_call *c, tess_block_fn fn) {
    uint64_t before = tess__fail_count();
    tess_status s = fn(options_of(a)->user, c);
    return s ? tess__callback_failed(s, before, "audit of block", options_of(a)->name) : TESS_OK;
}

/* Backward's audit makes what forward saved again, so that it does not depend on how that was kept. */
static tess_status compute_again(const audit *a, int32_t of, uint64_t out[KINDS]) {
    const char *sent = sent_by(a, of);
    void **grads = a->t->pass.block_grads;
    tess_block_call c = forward_call(a, sent);
    TRY(call(a, &c, options_of(a)->forward));
    out[OUTPUT] = a->backward ? 0 : digest_output(a, c.output);
    if (!a->backward)
        return TESS_OK;
    begin_gradients(a, sent, grads);
    c = backward_call(a, sent);
    TRY(call(a, &c, options_of(a)->backward));
    out[OUTPUT] = digest_output(a, c.output) + digest(c.grad_input, input_bytes(a), 0);
    out[GRADIENTS] = digest_gradients(a, grads);
    return TESS_OK;
}

static tess_status again(const audit *a, int32_t of, uint64_t out[KINDS]) {
    int32_t scope = a->t->plan.model.blocks[a->block].scope;
    TRY(tess__scope_pointers(a->t, scope, a->t->pass.block_params, NULL, 0));
    TRY(compute_again(a, of, out));
    return tess__take_back(a->t, scope, 0, "audit");
}

/* ---- the verdict ----------------------------------------------------------------------------------- */

typedef struct {        /* the first difference */
    int32_t rank, kind; /* whose work; KINDS: its input */
    int32_t referee, wrong;
    uint64_t own, again;
    uint64_t all; /* ranks whose work differs */
} difference;

static difference find_difference(const audit *a, const found *all) {
    difference d = { .rank = NOBODY, .referee = NOBODY, .wrong = NOBODY };
    for (int32_t r = a->ranks; r-- > 0;)
        for (int32_t k = KINDS; k >= 0; k--) {
            const found *f = &all[r], *by = &all[auditor_of(a, r)];
            if (k == KINDS ? !f->changed : f->own[k] == by->again[k])
                continue;
            d.all += d.rank != r;
            d.rank = r;
            d.kind = k;
            d.own = k == KINDS ? 0 : f->own[k];
            d.again = k == KINDS ? 0 : by->again[k];
        }
    return d;
}

/* Gives all ranks' parts to all; `round` tells exchanges of one audit apart. */
static tess_status exchange(const audit *a, found *all, uint64_t round, const char *doing) {
    tess__instr in = *a->in;
    if (round)
        in.tag = tess__spread(in.tag + round);
    return tess__run_planned(a->t, &in, &all[a->t->comms.world.rank], all, TESS__AUDIT_SCRATCH, doing);
}

/* A third rank computes it too. Its word goes to all. */
static tess_status ask_referee(const audit *a, difference *d, found *all) {
    tess *t = a->t;
    int32_t by = auditor_of(a, d->rank);
    if (d->kind == KINDS) { /* the rank itself says so */
        d->wrong = d->rank;
        return TESS_OK;
    }
    if (a->ranks < 3)
        return TESS_OK;
    d->referee = (by + 1) % a->ranks == d->rank ? (by + 2) % a->ranks : (by + 1) % a->ranks;
    memset(&all[t->comms.world.rank], 0, sizeof *all);
    if (d->referee == t->comms.world.rank)
        TRY(again(a, d->rank, all[d->referee].again));
    TRY(exchange(a, all, 1, "the word of an audit's referee"));
    uint64_t word = all[d->referee].again[d->kind];
    d->wrong = word == d->own ? by : word == d->again ? d->rank : NOBODY;
    return TESS_OK;
}

static const char *kind_text(const audit *a, const difference *d) {
    return d->kind == KINDS                                    ? "input"
           : d->kind == GRADIENTS                              ? "gradient of its parameters"
           : !a->backward                                      ? "output"
           : tess__result_is_late(&a->t->plan.model, a->block) ? "result or the gradient of its input"
                                                               : "gradient of its input";
}

static const char *unit_name(const audit *a) {
    const tess__plan *p = &a->t->plan;
    for (int32_t k = 0; k < scope_of(a)->n_params; k++)
        if (param_of(a, k)->unit >= 0 && p->layout.units[param_of(a, k)->unit].name)
            return p->layout.units[param_of(a, k)->unit].name;
    return "of no name";
}

static void say_verdict(const audit *a, const difference *d, char *out, size_t n) {
    const tess__comms *c = &a->t->comms;
    int32_t by = auditor_of(a, d->rank);
    if (d->kind == KINDS)
        snprintf(out, n, "rank %d has it changed since forward: rank %d is wrong", tess__comms_rank(c, d->rank),
                 tess__comms_rank(c, d->wrong));
    else if (d->referee < 0)
        snprintf(out, n, "rank %d has %016" PRIx64 " and rank %d makes %016" PRIx64 ": one of the two is wrong",
                 tess__comms_rank(c, d->rank), d->own, tess__comms_rank(c, by), d->again);
    else if (d->wrong < 0)
        snprintf(out, n, "rank %d has %016" PRIx64 ", rank %d makes %016" PRIx64 ", rank %d agrees with neither",
                 tess__comms_rank(c, d->rank), d->own, tess__comms_rank(c, by), d->again,
                 tess__comms_rank(c, d->referee));
    else if (d->wrong == by)
        snprintf(out, n,
                 "rank %d has %016" PRIx64 " and rank %d agrees, rank %d makes %016" PRIx64 ": rank %d is wrong",
                 tess__comms_rank(c, d->rank), d->own, tess__comms_rank(c, d->referee), tess__comms_rank(c, by),
                 d->again, tess__comms_rank(c, by));
    else
        snprintf(out, n,
                 "rank %d has %016" PRIx64 ", rank %d makes %016" PRIx64 " and rank %d agrees: rank %d is wrong",
                 tess__comms_rank(c, d->rank), d->own, tess__comms_rank(c, by), d->again,
                 tess__comms_rank(c, d->referee), tess__comms_rank(c, d->rank));
}

static void tell_program(const audit *a, const difference *d) {
    const tess *t = a->t;
    const tess_options *o = &t->settings.options;
    tess_audit_failure f = { .struct_size = sizeof f,
                             .backward = (uint32_t)a->backward,
                             .step = t->step.steps_done + 1,
                             .block = options_of(a)->name,
                             .unit = unit_name(a),
                             .kind = kind_text(a, d),
                             .rank = tess__comms_rank(&t->comms, d->rank),
                             .auditor = tess__comms_rank(&t->comms, auditor_of(a, d->rank)),
                             .referee = tess__comms_rank(&t->comms, d->referee),
                             .wrong = tess__comms_rank(&t->comms, d->wrong),
                             .digest = d->own,
                             .digest_again = d->again };
    if (o->audit_failed)
        o->audit_failed(o->audit_user, &f);
}

/* The wrong rank ends as a lost one does, so that images take the run back and another process, or none, takes its
 * place. It says why, to the launcher too, and no more: its memory is not to be trusted, nor with an orderly end. */
static void end_itself(tess *t, const char *why) {
    tess__log(TESS_LOG_ERROR, "%s: this rank ends itself (TESSERA_ON_AUDIT=recover)", why);
    tess__control_report(t->comms.control, TESS_E_LOST, -1, why);
    raise(SIGKILL);
}

static tess_status leave_behind(tess *t, const difference *d, const char *why) {
    int32_t rank = t->comms.world.rank;
    if (rank == d->wrong)
        end_itself(t, why);
    if (rank == 0)
        tess__log(TESS_LOG_WARNING, "%s: going on without it (TESSERA_ON_AUDIT=recover)", why);
    t->comms.lost_peer = 1 + d->wrong;
    return tess__fail(TESS_E_PEER, "%s", why);
}

static tess_status fail_audit(const audit *a, const difference *d) {
    tess *t = a->t;
    char verdict[256], text[768];
    say_verdict(a, d, verdict, sizeof verdict);
    snprintf(text, sizeof text, "step %llu, unit %s, %s of block \"%.200s\": the %s differs: %s (TESSERA_AUDIT)",
             (unsigned long long)t->step.steps_done + 1, unit_name(a), a->backward ? "backward" : "forward",
             options_of(a)->name, kind_text(a, d), verdict);
    if (t->settings.audit_recovers && t->mirror.ready && d->wrong >= 0)
        return leave_behind(t, d, text);
    return tess__fail(TESS_E_MISMATCH, "%s", text);
}

static tess_status judge(const audit *a, found *all) {
    difference d = find_difference(a, all);
    a->t->audit.done += (uint64_t)a->ranks;
    if (d.rank < 0)
        return TESS_OK;
    TRY(ask_referee(a, &d, all));
    a->t->audit.failures += d.all;
    tell_program(a, &d);
    (void)exchange(a, all, 2, "the verdict of an audit"); /* so that no rank ends before all know */
    return fail_audit(a, &d);
}

/* ---- one audit ------------------------------------------------------------------------------------- */

static tess_status run_audit(tess *t, const tess__instr *in) {
    audit a = audit_of(t, in);
    int32_t rank = t->comms.world.rank;
    if (!is_due(t, a.block, a.backward))
        return TESS_OK;
    found *all = tess__address_of(t, TESS__AUDIT_FOUND, a.block);
    a.work = a.room.work_bytes ? tess__address_of(t, TESS__AUDIT_WORK, a.block) : NULL;
    memset(&all[rank], 0, sizeof *all);
    digest_own(&a, all[rank].own);
    all[rank].changed = a.backward && t->audit.changed;
    TRY(again(&a, (rank + a.ranks - a.shift) % a.ranks, all[rank].again));
    TRY(exchange(&a, all, 0, "the digests of an audit"));
    return judge(&a, all);
}

tess_status tess__audit_instr(tess *t, const tess__instr *in) {
    return in->op == TESS__AUDIT ? run_audit(t, in) : send_inputs(t, in);
}

/* ---- before the first step ------------------------------------------------------------------------- */

/* Names the blocks that are not audited, as many as fit. */
static int32_t list_left_out(const tess *t, char *out, size_t n) {
    int32_t left = 0;
    size_t at = 0;
    out[0] = 0;
    for (int32_t b = 0; b < t->plan.model.n_blocks; b++) {
        if (t->plan.model.blocks[b].options.flags & TESS_BLOCK_AUDIT)
            continue;
        left++;
        if (at < n)
            at += (size_t)snprintf(out + at, n - at, "%s%s", at ? ", " : "", t->plan.model.blocks[b].options.name);
    }
    return left;
}

tess_status tess__audit_check(const tess *t) {
    char left[256];
    const tess__setup *s = &t->plan.setup;
    if (!s->audit_every)
        return TESS_OK;
    if (!t->plan.model.n_blocks)
        return tess__fail(TESS_E_UNSUPPORTED, "TESSERA_AUDIT=1/%d: this program declares no blocks (tess_block_add)",
                          s->audit_every);
    if (!tess__one_memory(s))
        return tess__fail(TESS_E_UNSUPPORTED, "TESSERA_AUDIT=1/%d: device %s has memory that the host does not read",
                          s->audit_every, t->device.plugin->name);
    int32_t n = list_left_out(t, left, sizeof left);
    if (n == t->plan.model.n_blocks)
        return tess__fail(TESS_E_UNSUPPORTED,
                          "TESSERA_AUDIT=1/%d: no block promises the same bits on every rank (TESS_BLOCK_AUDIT)",
                          s->audit_every);
    if (n && t->comms.world.rank == 0)
        tess__log(TESS_LOG_WARNING, "audit: %d of %d blocks promise no bits (TESS_BLOCK_AUDIT) and are left out: %s", n,
                  t->plan.model.n_blocks, left);
    return TESS_OK;
}

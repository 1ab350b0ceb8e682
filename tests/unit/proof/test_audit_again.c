/* SPDX-License-Identifier: BSD-3-Clause */
/* Audits among ranks that are all in this process, with blocks that use every byte that they are given. Another
 * rank makes the same again. Where the first or the last byte of it is changed, that is found, and whose it is. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/engine/state.h"
#include "core/plan/audit.h"

enum { RANKS = 4, BLOCKS = 3, PARAMS = 6, ROOM = 2048 };
typedef unsigned char byte;

typedef struct { /* one rank */
    tess engine;
    byte output[BLOCKS][ROOM], grad_output[BLOCKS][ROOM], saved[BLOCKS][ROOM], input[ROOM], grads[PARAMS][ROOM];
    byte sent[RANKS * ROOM], found_room[RANKS * 64], work[ROOM];
    void *table[TESS__N_ROLES][BLOCKS];
    void *block_params[4], *block_grads[4];
    uint64_t inputs[BLOCKS];
    tess_run_options run;
    int scopes, backs;
} rank;

static struct {
    rank ranks[RANKS];
    int32_t n;
    tess_block_options options[BLOCKS];
    tess__block blocks[BLOCKS];
    tess__scope scopes[BLOCKS];
    tess__param params[PARAMS];
    tess__group groups[2];
    tess__unit unit;
    byte values[PARAMS][ROOM]; /* of parameters, the same on all ranks */
    byte sent[RANKS * ROOM];   /* of all ranks, once they have met */
    byte met[2][RANKS * 64];   /* the second: of rounds that follow a difference */
    uint64_t bytes;
    int meets, calls, fails_at;
    struct {
        int own;
        const tess_block_call *call;
    } now;
} world;

static int32_t rank_of(const tess *t) {
    return t->comms.world.rank;
}
static rank *self(const tess *t) {
    return &world.ranks[rank_of(t)];
}
/* Ranks come here one behind another: at first each leaves its own part, then it gets those of all. */
static tess_status meet(tess *t, const tess__instr *in, const void *send, void *recv, int scratch, const char *doing) {
    byte *all = in->op == TESS__AUDIT_SEND ? world.sent : world.met[in->tag != 9];
    const uint64_t bytes = in->op == TESS__AUDIT_SEND ? world.bytes : 64;
    assert_ptr_equal(send, (byte *)recv + (uint64_t)rank_of(t) * bytes); /* in place */
    assert_int_equal(scratch, TESS__AUDIT_SCRATCH);
    assert_non_null(doing);
    if (world.meets && in->op == TESS__AUDIT_SEND) /* nothing of what was there before goes out */
        assert_memory_equal(all + (uint64_t)rank_of(t) * bytes, send, bytes);
    memcpy(all + (uint64_t)rank_of(t) * bytes, send, bytes);
    if (!world.meets)
        return TESS_E_PEER;
    memcpy(recv, all, (uint64_t)world.n * bytes);
    return TESS_OK;
}
static tess_block_call base_call(const tess *t, int32_t block) {
    (void)t;
    return (tess_block_call){ .struct_size = sizeof(tess_block_call),
                              .params = (const void *const *)self(t)->block_params,
                              .n_params = world.scopes[block].n_params };
}
static int32_t root_of(int32_t i) {
    return world.params[i].tied_to;
}
static tess_status point(tess *t, int32_t scope, void **params, void *grads, int32_t n) {
    assert_true(params == t->pass.block_params && !grads && !n);
    for (int32_t k = 0; k < world.scopes[scope].n_params; k++)
        params[k] = world.values[root_of(world.scopes[scope].params[k])];
    self(t)->scopes++;
    return TESS_OK;
}
static void *grad_at(const tess *t, const tess__param *p) {
    const int32_t i = (int32_t)(p - world.params);
    return p->flags & (TESS_FROZEN | TESS_BUFFER) ? NULL : self(t)->grads[root_of(i)];
}
static tess_status take_back(tess *t, int32_t scope, int backward, const char *call) {
    assert_true(scope >= 0 && !backward && strcmp(call, "audit") == 0);
    self(t)->backs++;
    return TESS_OK;
}
static tess_status nobody_ends(void) {
    fail_msg("a rank ends itself");
    return TESS_OK;
}
static void quiet(int32_t level, const char *format, ...) {
    (void)level, (void)format;
}

#define tess__run_planned meet
#define tess__block_call_of base_call
#define tess__scope_pointers(t, scope, params, grads, n) point(t, scope, params, grads, n)
#define tess__grad_at grad_at
#define tess__take_back take_back
#define tess__log quiet
#define raise(signal) ((void)(signal), (void)nobody_ends())
#define tess__control_report(c, status, lost, why) ((void)(c), (void)(why))
#include "core/proof/audit.c"

/* ---- blocks: every byte of a result comes from all bytes that it may come from ---- */

static byte mix(byte seed, const void *at, uint64_t n) {
    const byte *from = at;
    assert_true(!n == !from); /* null where there is nothing */
    for (uint64_t i = 0; i < n; i++)
        seed = (byte)(seed * 31 + from[i] + 7);
    return seed;
}
static void spread(void *at, uint64_t n, byte seed) {
    byte *to = at;
    assert_true(!n == !to);
    for (uint64_t i = 0; i < n; i++)
        to[i] = (byte)(seed + i * 13);
}
static uint64_t param_bytes(int32_t i) {
    return world.params[i].elems * (world.params[i].group ? 2 : 4);
}
static byte mix_params(byte seed, const tess_block_call *c, int32_t block) {
    for (int32_t k = 0; k < c->n_params; k++)
        seed = mix(seed, c->params[k], param_bytes(world.scopes[block].params[k]));
    return seed;
}
static uint64_t input_of(int32_t block) {
    return block ? world.options[block - 1].output_bytes : 0;
}
static tess_status fails_now(void) {
    return world.fails_at && --world.fails_at == 0 ? tess__fail(TESS_E_INVALID, "the kernel is broken") : TESS_OK;
}

static tess_status forward_of(void *user, const tess_block_call *c) {
    const int32_t b = (int32_t)((tess_block_options *)user - world.options);
    const tess_block_options *o = user;
    TRY(fails_now());
    assert_int_equal(c->recompute, !world.now.own);
    assert_true(!c->grads && !c->grad_output && !c->grad_input);
    byte seed = mix((byte)c->microbatch, c->batch, world.ranks[0].engine.plan.setup.input_bytes);
    seed = mix_params(mix(seed, c->input, input_of(b)), c, b);
    spread(c->scratch, o->forward_scratch_bytes, 0xee);
    spread(c->saved, o->saved_bytes, (byte)(seed + 1));
    if (!(o->flags & TESS_BLOCK_LATE_RESULT))
        spread(c->output, o->output_bytes, (byte)(seed + 2));
    world.calls++;
    return TESS_OK;
}

static tess_status backward_of(void *user, const tess_block_call *c) {
    const int32_t b = (int32_t)((tess_block_options *)user - world.options);
    const tess_block_options *o = user;
    TRY(fails_now());
    assert_int_equal(c->recompute, 0);
    byte seed = mix((byte)c->microbatch, c->batch, world.ranks[0].engine.plan.setup.input_bytes);
    seed = mix(mix_params(mix(seed, c->input, input_of(b)), c, b), c->saved, o->saved_bytes);
    seed = mix(seed, c->grad_output, b < BLOCKS - 1 ? o->output_bytes : 0);
    if (o->flags & TESS_BLOCK_DROP_OUTPUT)
        assert_null(c->output);
    else if (o->flags & TESS_BLOCK_LATE_RESULT)
        spread(c->output, o->output_bytes, seed);
    else
        seed = mix(seed, c->output, o->output_bytes);
    spread(c->scratch, o->backward_scratch_bytes, 0xdd);
    for (int32_t k = 0; k < c->n_params; k++) { /* they add, and a name for the second time adds once more */
        const int32_t i = world.scopes[b].params[k];
        byte *grad = c->grads[k];
        assert_true(!grad == ((world.params[i].flags & (TESS_FROZEN | TESS_BUFFER)) != 0));
        for (uint64_t at = 0; grad && at < param_bytes(i); at++)
            grad[at] = (byte)(grad[at] + seed + at * 5 + (uint64_t)k);
    }
    spread(c->grad_input, input_of(b), (byte)(seed + 3));
    world.calls++;
    return TESS_OK;
}

/* ---- ranks ---- */

/* Parameter 4 is another name of 0, in blocks 2 and 0; 5 is one of 3, both in block 1. 1 is in bf16, 2 is frozen. */
static void make_model(uint32_t last_flags) {
    static int32_t of[BLOCKS][3] = { { 0, 1 }, { 2, 3, 5 }, { 4 } };
    static const int32_t n_of[BLOCKS] = { 2, 3, 1 };
    static char names[BLOCKS][4] = { "in", "mid", "out" }, name[] = "p";
    for (int32_t i = 0; i < PARAMS; i++) {
        world.params[i] = (tess__param){ .name = name,
                                         .elems = 5 + (uint64_t)i,
                                         .tied_to = i == 4   ? 0
                                                    : i == 5 ? 3
                                                             : i };
        world.params[i].group = i == 1;
        world.params[i].flags = i == 2 ? TESS_FROZEN : 0;
        world.params[i].elems = world.params[root_of(i)].elems;
        spread(world.values[i], ROOM, (byte)(i * 17));
    }
    world.groups[0].grad_local = TESS_F32, world.groups[1].grad_local = TESS_BF16;
    world.unit.name = name;
    for (int32_t b = 0; b < BLOCKS; b++) {
        world.options[b] = (tess_block_options){ .name = names[b],
                                                 .user = &world.options[b],
                                                 .flags = TESS_BLOCK_AUDIT | (b == BLOCKS - 1 ? last_flags : 0),
                                                 .output_bytes = (const uint64_t[]){ 21, 0, 40 }[b],
                                                 .saved_bytes = (const uint64_t[]){ 100, 33, 0 }[b],
                                                 .forward_scratch_bytes = (const uint64_t[]){ 0, 70, 9 }[b],
                                                 .backward_scratch_bytes = (const uint64_t[]){ 130, 3, 0 }[b],
                                                 .forward = forward_of,
                                                 .backward = backward_of };
        world.blocks[b] = (tess__block){ .options = world.options[b], .scope = b };
        world.scopes[b] = (tess__scope){ .name = names[b], .block = b, .n_params = n_of[b], .params = of[b] };
    }
    if (last_flags & TESS_BLOCK_LATE_RESULT) /* the middle one hands on something there */
        world.options[1].output_bytes = world.blocks[1].options.output_bytes = 28;
}

static void make_rank(int32_t r, int32_t n, uint64_t pass) {
    rank *x = &world.ranks[r];
    tess *t = &x->engine;
    memset(x, 0, sizeof *x);
    t->plan.model =
        (tess__model){ .params = world.params, .n_params = PARAMS, .scopes = world.scopes, .n_scopes = BLOCKS };
    t->plan.model.blocks = world.blocks, t->plan.model.n_blocks = BLOCKS;
    t->plan.layout = (tess__layout){ .groups = world.groups, .n_groups = 2, .units = &world.unit, .n_units = 1 };
    t->plan.setup.nranks = t->comms.world.nranks = world.n = n;
    t->plan.setup.accum = 2, t->plan.setup.audit_every = 1, t->plan.setup.input_bytes = 12;
    t->plan.setup.env.mem = TESS_MEM_HOST;
    t->comms.world.rank = r;
    t->step.steps_done = pass / 2, t->pass.microbatch = (int32_t)(pass % 2);
    t->pass.block_params = x->block_params, t->pass.block_grads = x->block_grads;
    t->audit.inputs = x->inputs;
    x->run.microbatch = 40 + (uint32_t)r;
    t->pass.run = &x->run;
    for (int role = 0; role < TESS__N_ROLES; role++)
        t->memory.address[role] = x->table[role];
    for (int32_t b = 0; b < BLOCKS; b++) {
        x->table[TESS__OUTPUT][b] = world.options[b].output_bytes ? x->output[b] : NULL;
        x->table[TESS__OUTPUT_GRAD][b] = x->grad_output[b];
        x->table[TESS__AUDIT_SENT][b] = x->sent;
        x->table[TESS__AUDIT_WORK][b] = x->work;
        x->table[TESS__AUDIT_FOUND][b] = x->found_room;
    }
    x->table[TESS__INPUT][0] = x->input;
    spread(x->input, 12, (byte)(r * 50 + 1));
}

static tess_block_call own_call(rank *x, int32_t b, int backward, void **grads) {
    const tess_block_options *o = &world.options[b];
    static byte scratch[ROOM];
    (void)point(&x->engine, b, x->engine.pass.block_params, NULL, 0);
    x->scopes--;
    tess_block_call c = base_call(&x->engine, b);
    c.microbatch = x->run.microbatch;
    c.batch = x->input;
    c.input = input_of(b) ? x->output[b - 1] : NULL;
    c.output = !o->output_bytes || (backward && o->flags & TESS_BLOCK_DROP_OUTPUT) ? NULL : x->output[b];
    c.saved = o->saved_bytes ? x->saved[b] : NULL;
    c.scratch = (backward ? o->backward_scratch_bytes : o->forward_scratch_bytes) ? scratch : NULL;
    if (!backward)
        return c;
    for (int32_t k = 0; k < c.n_params; k++)
        grads[k] = grad_at(&x->engine, &world.params[world.scopes[b].params[k]]);
    c.grads = grads;
    c.grad_output = b < BLOCKS - 1 && o->output_bytes ? x->grad_output[b] : NULL;
    c.grad_input = input_of(b) ? x->grad_output[b - 1] : NULL;
    return c;
}

/* ---- a pass ---- */

enum { NOTHING, IN_OUTPUT, IN_GRADIENT, IN_INPUT_GRADIENT, IN_INPUT, IN_BATCH, WAYS };
static struct { /* one byte that changes, and what is heard of it */
    int way, block, last;
    int32_t rank;
    int told;
    tess_audit_failure heard[RANKS];
} fault;

static void hear(void *user, const tess_audit_failure *f) {
    fault.heard[(rank *)user - world.ranks] = *f;
    fault.told++;
}

static void flip(void *at, uint64_t bytes) {
    if (bytes)
        ((byte *)at)[fault.last ? bytes - 1 : 0] ^= 4;
}

/* Behind the work of its block; inputs change between forward and backward. */
static void spoil(rank *x, int b, int backward) {
    const int32_t i = world.scopes[b].params[world.scopes[b].n_params - 1];
    if (rank_of(&x->engine) != fault.rank || b != fault.block)
        return;
    const int late = (world.options[b].flags & TESS_BLOCK_LATE_RESULT) != 0;
    if (fault.way == IN_OUTPUT && backward == late)
        flip(x->output[b], world.options[b].output_bytes);
    if (fault.way == IN_GRADIENT && backward)
        flip(x->grads[root_of(i)], param_bytes(root_of(i)));
    if (fault.way == IN_INPUT_GRADIENT && backward)
        flip(b ? x->grad_output[b - 1] : NULL, input_of(b));
    if (fault.way == IN_INPUT && !backward)
        flip(b ? x->output[b - 1] : NULL, input_of(b));
    if (fault.way == IN_BATCH && !backward)
        flip(x->input, 12);
}

/* All ranks' part of an instruction; 1: a difference was found, by all of them. */
static int audit_all(uint8_t op, int b, int backward) {
    const tess__instr in = { .op = op, .index = b, .tag = 9, .flags = backward ? TESS__OF_BACKWARD : 0 };
    const tess *t = &world.ranks[0].engine;
    const uint64_t pass = t->step.steps_done * 2 + (uint64_t)t->pass.microbatch;
    const int due = (pass + 2 * (uint64_t)b + (uint64_t)backward) % (uint64_t)t->plan.setup.audit_every == 0;
    int found_by = 0;
    world.bytes = tess__audit_room_of(&t->plan.setup, &t->plan.model, &t->plan.layout, b, backward).sent_bytes;
    assert_true(world.bytes <= ROOM);
    world.now.own = 0;
    for (world.meets = 0; world.meets < 2; world.meets++)
        for (int32_t r = 0; r < world.n; r++) {
            if (op == TESS__AUDIT_SEND)
                memset(world.ranks[r].sent, 0x5a + world.meets, sizeof world.ranks[r].sent);
            tess_status s = tess__audit_instr(&world.ranks[r].engine, &in);
            assert_true(due && !world.meets ? s == TESS_E_PEER
                                            : s == TESS_OK || (due && op == TESS__AUDIT && s == TESS_E_MISMATCH));
            found_by += s == TESS_E_MISMATCH;
        }
    assert_true(found_by == 0 || found_by == world.n);
    return found_by > 0;
}

static void work_all(int b, int backward) {
    world.now.own = 1;
    for (int32_t r = 0; r < world.n; r++) {
        void *grads[4];
        tess_block_call c = own_call(&world.ranks[r], b, backward, grads);
        assert_int_equal((backward ? backward_of : forward_of)(&world.options[b], &c), TESS_OK);
        spoil(&world.ranks[r], b, backward);
    }
}

/* As programs have it: where backward writes the result there is no audit of forward. */
static int train(void) {
    for (int k = 0; k < 2 * BLOCKS; k++) {
        const int backward = k >= BLOCKS, b = backward ? 2 * BLOCKS - 1 - k : k;
        const int audited = backward || !(world.options[b].flags & TESS_BLOCK_LATE_RESULT);
        if (audited)
            (void)audit_all(TESS__AUDIT_SEND, b, backward);
        work_all(b, backward);
        if (audited && audit_all(TESS__AUDIT, b, backward))
            return 1;
    }
    return 0;
}

static void begin(int32_t n, uint64_t pass, uint32_t last_flags) {
    memset(&world, 0, sizeof world);
    memset(&fault, 0, sizeof fault);
    fault.rank = -1;
    make_model(last_flags);
    for (int32_t r = 0; r < n; r++) {
        make_rank(r, n, pass);
        world.ranks[r].engine.settings.options.audit_failed = hear;
        world.ranks[r].engine.settings.options.audit_user = &world.ranks[r];
    }
}

static const uint32_t last_flags[] = { 0, TESS_BLOCK_DROP_OUTPUT, TESS_BLOCK_LATE_RESULT };

static void test_audit_again__the_same_work_is_the_same(void **state) {
    (void)state;
    for (int32_t n = 2; n <= RANKS; n++)
        for (int f = 0; f < 3; f++)
            for (uint64_t pass = 0; pass < 6; pass++) {
                begin(n, pass, last_flags[f]);
                assert_int_equal(train(), 0);
                const int audits = 2 * BLOCKS - (f == 2);
                for (int32_t r = 0; r < n; r++) {
                    const rank *x = &world.ranks[r];
                    assert_int_equal(x->engine.audit.done, audits * n);
                    assert_int_equal(x->engine.audit.failures, 0);
                    assert_int_equal(x->scopes, 2 * audits);
                    assert_int_equal(x->backs, x->scopes);
                }
            }
}

static void test_audit_again__others_have_their_turn_in_other_passes(void **state) {
    (void)state;
    for (int32_t every = 2; every < 8; every++) {
        uint64_t done = 0;
        for (uint64_t pass = 0; pass < (uint64_t)every; pass++) {
            begin(3, pass, 0);
            for (int32_t r = 0; r < 3; r++)
                world.ranks[r].engine.plan.setup.audit_every = every;
            assert_int_equal(train(), 0);
            done += world.ranks[1].engine.audit.done;
        }
        assert_int_equal(done, 3 * 2 * BLOCKS);
    }
}

/* Which byte is found as what; null: there is none, or nobody makes it again. */
static const char *expected_kind(int f) {
    const int b = fault.block, late = last_flags[f] == TESS_BLOCK_LATE_RESULT;
    switch (fault.way) {
    case IN_OUTPUT:
        if (!world.options[b].output_bytes)
            return NULL;
        return late && b == BLOCKS - 1 ? "result or the gradient of its input" : "output";
    case IN_GRADIENT: return "gradient of its parameters";
    case IN_INPUT_GRADIENT:
        if (!input_of(b))
            return NULL;
        return late && b == BLOCKS - 1 ? "result or the gradient of its input" : "gradient of its input";
    case IN_INPUT:
    case IN_BATCH: /* what forward saved tells too, where it saved anything */
        if ((fault.way == IN_INPUT && !input_of(b)) || (late && b == BLOCKS - 1))
            return NULL;
        return !world.options[b].saved_bytes ? "input"
               : input_of(b)                 ? "gradient of its input"
                                             : "gradient of its parameters";
    default: return NULL;
    }
}

static void test_audit_again__the_first_and_the_last_byte_are_found(void **state) {
    (void)state;
    int faults = 0;
    for (int32_t n = 2; n <= RANKS; n++)
        for (int f = 0; f < 3; f++)
            for (int way = IN_OUTPUT; way < WAYS; way++)
                for (int k = 0; k < BLOCKS * RANKS * 2; k++) {
                    const int block = k / 2 % BLOCKS;
                    const int32_t r = k / 2 / BLOCKS;
                    if (r >= n)
                        continue;
                    begin(n, (uint64_t)k, last_flags[f]);
                    fault.way = way, fault.block = block, fault.last = k % 2, fault.rank = r;
                    const char *kind = expected_kind(f);
                    if (!kind)
                        continue;
                    faults++;
                    assert_int_equal(train(), 1);
                    assert_int_equal(fault.told, n);
                    for (int32_t i = 0; i < n; i++) {
                        assert_int_equal(fault.heard[i].rank, r);
                        assert_string_equal(fault.heard[i].kind, kind);
                        assert_string_equal(fault.heard[i].block, world.options[block].name);
                        assert_true(fault.heard[i].digest != fault.heard[i].digest_again || !strcmp(kind, "input"));
                    }
                }
    assert_true(faults > 0);
}

static void test_audit_again__a_block_that_fails_is_named(void **state) {
    (void)state;
    const tess__instr in = { .op = TESS__AUDIT, .index = 0, .tag = 9, .flags = TESS__OF_BACKWARD };
    for (int at = 1; at < 3; at++) { /* the forward that comes first, and backward */
        begin(2, 0, 0);
        assert_int_equal(train(), 0);
        const int backs = world.ranks[0].backs;
        world.now.own = 0;
        world.fails_at = at;
        assert_int_equal(tess__audit_instr(&world.ranks[0].engine, &in), TESS_E_INVALID);
        assert_string_equal(tess_last_error(), "the kernel is broken");
        assert_int_equal(world.ranks[0].backs, backs);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_audit_again__the_same_work_is_the_same),
        cmocka_unit_test(test_audit_again__others_have_their_turn_in_other_passes),
        cmocka_unit_test(test_audit_again__the_first_and_the_last_byte_are_found),
        cmocka_unit_test(test_audit_again__a_block_that_fails_is_named),
    };
    tess__log_set_least(TESS_LOG_ERROR + 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Who owns which matrix, and the programs of a step with them. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "core/layout/matrices.h"
#include "core/optimize/parts.h"
#include "tests/unit/no_steps.h"
#include "tests/unit/plan_fixture.h"

enum { LAYERS = 12, MATRICES = 4, MOST_MATRICES = 7 };
typedef struct {
    const char *name;
    int layers, n;
    struct {
        const char *name;
        uint64_t rows, cols, stack;
    } weights[MOST_MATRICES];
} shape;
/* The first is of width 64, and its last weight is a stack of two. The others are those of gpt2 and Llama 3.2 1B. */
static const shape shapes[] = {
    { "small",
      LAYERS,
      MATRICES,
      { { "qkv", 192, 64, 1 }, { "proj", 64, 64, 1 }, { "fc", 256, 64, 1 }, { "mlp", 32, 256, 2 } } },
    { "gpt",
      12,
      4,
      { { "qkv", 2304, 768, 1 }, { "proj", 768, 768, 1 }, { "fc", 3072, 768, 1 }, { "mlp", 768, 3072, 1 } } },
    { "llama",
      16,
      7,
      { { "q_proj", 2048, 2048, 1 },
        { "k_proj", 512, 2048, 1 },
        { "v_proj", 512, 2048, 1 },
        { "o_proj", 2048, 2048, 1 },
        { "gate", 8192, 2048, 1 },
        { "up_proj", 8192, 2048, 1 },
        { "down", 2048, 8192, 1 } } },
};
static const shape *made = &shapes[0];

static tess_status describe(void *ctx, const tess_param_view *p, uint32_t flags, tess_grain *out, tess_error *e) {
    tess_grain g = { .grain = TESS_GRAIN_ELEMENT,
                     .kernel = TESS_OPT_ADAMW,
                     .n_states = 2,
                     .state = { { TESS_F32, 1, "m" }, { TESS_F32, 1, "v" } } };
    (void)ctx, (void)flags, (void)e;
    for (int i = 0; i < made->n; i++)
        if (strstr(p->name, made->weights[i].name))
            g = (tess_grain){ .grain = TESS_GRAIN_MATRIX,
                              .n_states = 1,
                              .state = { { TESS_F32, 1, "m" } },
                              .rows = made->weights[i].rows,
                              .cols = made->weights[i].cols,
                              .scratch_bytes = 4 * made->weights[i].rows };
    TESS_GIVE(out, &g);
    return TESS_OK;
}

static const tess_optimizer_ops stepping = {
    .struct_size = sizeof stepping, .describe = describe, .step = no_step, .matrix = no_matrix
};

static void make(plan *p, int32_t ranks, uint32_t mem) {
    char name[32];
    plan_init(p, ranks);
    p->setup.step = &stepping;
    p->setup.step_name = "whole";
    p->setup.optimizer = TESS__OPT_PLUGIN;
    p->setup.env.mem = mem;
    for (int l = 0; l < made->layers; l++) {
        snprintf(name, sizeof name, "h%d", l);
        plan_scope(p, name);
        for (int i = 0; i < made->n; i++) {
            snprintf(name, sizeof name, "h%d.%s", l, made->weights[i].name);
            assert_int_equal(
                plan_param(p, name, (int64_t)(made->weights[i].rows * made->weights[i].cols * made->weights[i].stack),
                           0),
                TESS_OK);
        }
        snprintf(name, sizeof name, "h%d.bias", l);
        assert_int_equal(plan_param(p, name, 64, 0), TESS_OK);
    }
}

/* Each matrix lies where its parameter does, has one owner, and no rank has much more to do than another. */
static void test_matrices__each_has_an_owner_and_the_work_is_even(void **state) {
    (void)state;
    for (int32_t ranks = 1; ranks <= 8; ranks++) {
        plan p;
        double most, all, one_most, one_all;
        make(&p, ranks, TESS_MEM_HOST);
        plan_layout(&p);
        const tess__layout *l = &p.layout;
        assert_int_equal(l->n_matrices, LAYERS * (MATRICES + 1));
        for (int32_t i = 0; i < l->n_matrices; i++) {
            const tess__matrix *m = &l->matrices[i];
            const tess__param *of = &p.model.params[m->param];
            assert_true(m->owner >= 0 && m->owner < ranks);
            assert_int_equal(m->at, of->offset + m->index * m->rows * m->cols);
            assert_int_equal(m->group, of->group);
            assert_true((m->index + 1) * m->rows * m->cols <= of->elems);
        }
        tess__matrices_balance(l, ranks, -1, &most, &all);
        assert_true(most * ranks <= 1.15 * all);
        assert_true(tess__matrix_work(&(tess__matrix){ .rows = 3, .cols = 5 }) == 45);
        assert_true(tess__matrix_work(&(tess__matrix){ .rows = 5, .cols = 3 }) == 45);
        tess__matrices_balance(l, ranks, 0, &one_most, &one_all);
        assert_true(one_all > 0 && one_all * LAYERS == all && one_most <= most);
        assert_int_equal(l->groups[0].scratch_bytes, 4 * 256);
        plan_free(&p);
    }
}

/* What the rank with the most has to do, beside an even share. */
static void test_matrices__work_of_gpt_and_llama_is_even(void **state) {
    (void)state;
    for (int i = 1; i < 3; i++)
        for (int32_t ranks = 2; ranks <= 8; ranks *= 2) {
            plan p;
            double most, all;
            made = &shapes[i];
            make(&p, ranks, TESS_MEM_HOST);
            plan_layout(&p);
            tess__matrices_balance(&p.layout, ranks, -1, &most, &all);
            print_message("%s, W = %d: %.4f of an even share\n", made->name, (int)ranks, most * ranks / all);
            assert_true(most * ranks <= 1.15 * all);
            plan_free(&p);
        }
    made = &shapes[0];
}

/* States in shards, and those of the owner with the most elements, of all matrices; `padding` bounds what shards are
 * rounded up by. */
static void count_states(const tess__layout *l, int32_t ranks, uint64_t *sharded, uint64_t *owned, uint64_t *padding) {
    uint64_t all = 0;
    *sharded = *owned = *padding = 0;
    for (int32_t g = 0; g < l->n_groups; g++) {
        const tess__group *of = &l->groups[g];
        if (!tess__steps_matrices(of))
            continue;
        assert_int_equal(of->pad, TESS__PAD_ELEMS);
        *sharded += of->shard_elems;
        *padding += of->pad + (uint64_t)of->n_params * of->pad / (uint64_t)ranks;
    }
    for (int32_t r = 0; r < ranks; r++) {
        uint64_t own = 0;
        for (int32_t i = 0; i < l->n_matrices; i++)
            if (l->matrices[i].owner == r)
                own += l->matrices[i].rows * l->matrices[i].cols;
        *owned = own > *owned ? own : *owned;
        all += own;
    }
    assert_true(*owned * (uint64_t)ranks >= all); /* no greatest value is below the mean */
}

/* Why a state rests in the shards, and nothing chooses: with owners a rank would have no less, but for padding. */
static void test_matrices__a_state_with_its_owner_takes_no_less(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int32_t ranks = 1; ranks <= 64; ranks++) {
            plan p;
            uint64_t sharded, owned, padding;
            made = &shapes[i];
            make(&p, ranks, TESS_MEM_HOST);
            plan_layout(&p);
            count_states(&p.layout, ranks, &sharded, &owned, &padding);
            if (ranks <= 8)
                print_message("%s, W = %d: with owners %.4f of a shard's\n", made->name, (int)ranks,
                              (double)owned / (double)sharded);
            assert_true(sharded <= owned + padding);
            assert_true(i == 0 || sharded <= owned); /* gpt2's and Llama's have no padding that counts */
            plan_free(&p);
        }
    made = &shapes[0];
}

enum { MOST_RANKS = 64 };
typedef struct { /* elements that a rank sends on one way of all units */
    uint64_t gathered, equal, exact;
} travel;

/* Elements that rank `from` has of matrices of the group that `owner` owns. */
static uint64_t elems_between(const tess__layout *l, const tess__group *g, int32_t from, int32_t owner) {
    uint64_t n = 0, begin = (uint64_t)from * g->shard_elems, end = begin + g->shard_elems;
    for (int32_t i = g->first_matrix; i < g->first_matrix + g->n_matrices; i++) {
        const tess__matrix *m = &l->matrices[i];
        uint64_t first = m->at > begin ? m->at : begin, last = m->at + m->rows * m->cols;
        last = last < end ? last : end;
        n += m->owner == owner && last > first ? last - first : 0;
    }
    return n;
}

/* By an all-gather; by an all-to-all of equal parts, which are as long as the longest; and by one of parts as they are,
 * for the rank that sends the most. */
static travel count_travel(const tess__layout *l, int32_t ranks) {
    travel all = { 0, 0, 0 };
    uint64_t sent[MOST_RANKS] = { 0 };
    for (int32_t i = 0; i < l->n_groups; i++) {
        const tess__group *g = &l->groups[i];
        uint64_t longest = 0;
        for (int32_t r = 0; tess__steps_matrices(g) && r < ranks; r++)
            for (int32_t o = 0; o < ranks; o++) {
                uint64_t n = elems_between(l, g, r, o);
                longest = n > longest ? n : longest;
                sent[r] += o == r ? 0 : n;
            }
        all.gathered += longest ? (uint64_t)(ranks - 1) * g->shard_elems : 0;
        all.equal += (uint64_t)(ranks - 1) * longest;
    }
    for (int32_t r = 0; r < ranks; r++)
        all.exact = sent[r] > all.exact ? sent[r] : all.exact;
    return all;
}

/* Why updates travel in parts of their own lengths, and are gathered by all where the plugin has none. From four ranks
 * on some shard is one owner's alone: among equal parts its part is the shard, and all parts are as long. */
static void test_matrices__equal_parts_are_as_many_bytes_as_a_gather(void **state) {
    (void)state;
    static const int32_t ranks[] = { 2, 3, 4, 6, 8, 16, 64 };
    for (int i = 1; i < 3; i++)
        for (int k = 0; k < 7; k++) {
            plan p;
            made = &shapes[i];
            make(&p, ranks[k], TESS_MEM_HOST);
            plan_layout(&p);
            travel t = count_travel(&p.layout, ranks[k]);
            print_message("%s, W = %d: gathered %.1f MB, equal parts %.3f, parts as they are %.3f of it\n", made->name,
                          (int)ranks[k], (double)t.gathered * 4e-6, (double)t.equal / (double)t.gathered,
                          (double)t.exact / (double)t.gathered);
            assert_true(ranks[k] < 4 ? t.equal <= t.gathered : t.equal == t.gathered);
            assert_true(t.exact < t.gathered);
            plan_free(&p);
        }
    made = &shapes[0];
}

/* What a rank has for one group: parts as it sends and gets them, by way. */
typedef struct {
    const uint64_t *send, *recv;
} lengths;

static uint64_t sum_of(const uint64_t *parts, int32_t ranks) {
    uint64_t n = 0;
    for (int32_t r = 0; r < ranks; r++)
        n += parts[r];
    return n;
}

/* Each element of a matrix in the rank's shard has one place among what is sent, in the order of owners and of the
 * matrices. */
static void check_places(const plan *p, const tess__step *s, int32_t g, int32_t rank, const uint64_t *send) {
    const tess__group *of = &p->layout.groups[g];
    uint64_t next[MOST_RANKS], at = 0;
    for (int32_t r = 0; r < p->setup.shard_ranks; r++) {
        next[r] = at;
        at += send[r];
    }
    for (int32_t i = of->first_matrix; i < of->first_matrix + of->n_matrices; i++) {
        const tess__matrix *m = &p->layout.matrices[i];
        const tess__piece in = tess__matrix_in_shard(of, m, rank);
        const tess__part *part = in.elems ? tess__part_at(s, &p->setup, g, in.in_shard + in.elems - 1) : NULL;
        if (!in.elems)
            continue;
        assert_int_equal(in.in_shard + (uint64_t)rank * of->shard_elems, m->at + in.in_param);
        assert_true(part->first == in.in_shard && part->elems == in.elems && part->owner == m->owner);
        assert_int_equal(part->packed, next[m->owner]);
        next[m->owner] += in.elems;
    }
}

/* Parts fit each other, and what a shard or an owner has; the most of both is the count, and the most that moves is
 * planned. */
static void check_exchange(const plan *p, const tess__step *steps, int32_t g) {
    const tess__group *of = &p->layout.groups[g];
    const int32_t ranks = p->setup.shard_ranks;
    uint64_t owned = 0, moved = 0, all = 0, matrices = 0;
    lengths there[MOST_RANKS], back[MOST_RANKS];
    for (int32_t r = 0; r < ranks; r++) {
        tess__parts_exchanged(&steps[r], g, 0, &there[r].send, &there[r].recv);
        tess__parts_exchanged(&steps[r], g, 1, &back[r].send, &back[r].recv);
        assert_true(back[r].send == there[r].recv && back[r].recv == there[r].send);
        check_places(p, &steps[r], g, r, there[r].send);
    }
    for (int32_t r = 0; r < ranks; r++) {
        const uint64_t sent = sum_of(there[r].send, ranks), got = sum_of(there[r].recv, ranks), own = there[r].send[r];
        for (int32_t o = 0; o < ranks; o++) {
            assert_int_equal(there[r].send[o], there[o].recv[r]);
            assert_int_equal(there[r].send[o], elems_between(&p->layout, of, r, o));
        }
        assert_true(sent <= of->shard_elems && sent <= tess__parts_most(of) && got <= tess__parts_most(of));
        owned = got > owned ? got : owned;
        moved = sent - own > moved ? sent - own : moved;
        moved = got - own > moved ? got - own : moved;
        all += sent;
    }
    for (int32_t i = of->first_matrix; i < of->first_matrix + of->n_matrices; i++)
        matrices += p->layout.matrices[i].rows * p->layout.matrices[i].cols;
    assert_int_equal(all, matrices);
    assert_int_equal(of->owned_elems, owned);
    assert_int_equal(of->moved_elems, moved);
}

static void test_matrices__parts_fit_each_other(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int32_t ranks = 2; ranks <= 16; ranks += ranks < 8 ? 1 : 8) {
            plan p;
            tess__step steps[MOST_RANKS] = { 0 };
            made = &shapes[i];
            make(&p, ranks, TESS_MEM_HOST);
            p.setup.parts = 1;
            plan_layout(&p);
            tess__plan whole = { .setup = p.setup, .model = p.model, .layout = p.layout };
            for (int32_t r = 0; r < ranks; r++)
                assert_int_equal(tess__parts_make(&steps[r], &whole, r), TESS_OK);
            for (int32_t g = 0; g < p.layout.n_groups; g++)
                if (tess__steps_matrices(&p.layout.groups[g]))
                    check_exchange(&p, steps, g);
            for (int32_t r = 0; r < ranks; r++)
                tess__parts_free(&steps[r]);
            plan_free(&p);
        }
    made = &shapes[0];
}

/* A state goes to its parts and back to its place; padding, which no one owns, stays. */
static void test_matrices__a_state_goes_to_its_parts_and_back(void **state) {
    (void)state;
    plan p;
    make(&p, 3, TESS_MEM_HOST);
    p.setup.parts = 1;
    plan_layout(&p);
    tess__plan whole = { .setup = p.setup, .model = p.model, .layout = p.layout };
    tess__step s = { 0 };
    assert_int_equal(tess__parts_make(&s, &whole, 1), TESS_OK);
    const uint64_t n = p.layout.groups[0].shard_elems;
    float *shard = calloc(n, sizeof *shard), *packed = calloc(n, sizeof *packed), *again = calloc(n, sizeof *again);
    for (uint64_t i = 0; i < n; i++)
        shard[i] = (float)i + 1;
    tess__parts_pack(&s, 0, shard, packed);
    tess__parts_unpack(&s, 0, packed, again);
    for (uint64_t i = 0, in = 0; i < n; i++, in = 0) {
        for (int32_t k = s.first_part[0]; k < s.first_part[1]; k++)
            if (i >= s.parts[k].first && i < s.parts[k].first + s.parts[k].elems) {
                assert_true(packed[s.parts[k].packed + i - s.parts[k].first] == shard[i]);
                in++;
            }
        assert_true(in <= 1 && again[i] == (in ? shard[i] : 0));
    }
    free(shard), free(packed), free(again);
    tess__parts_free(&s);
    plan_free(&p);
}

/* With a comm plugin that offers them, and only then: the collectives, and no more memory than a gather would take. */
static void test_matrices__a_plugin_with_parts_plans_them(void **state) {
    (void)state;
    uint64_t bytes[2] = { 0, 0 };
    for (int parts = 0; parts < 2; parts++) {
        plan p;
        make(&p, 4, TESS_MEM_HOST);
        p.setup.parts = parts;
        plan_layout(&p);
        assert_int_equal(tess__compile_other(&p.compiler, TESS__PASS_STEP, &p.program), TESS_OK);
        for (int32_t i = 0; i < p.program.n_instrs; i++) {
            const tess__instr *in = &p.program.instrs[i];
            if (in->op != TESS__COLLECT && in->op != TESS__RETURN)
                continue;
            const tess__planned_collective *c = &p.program.collectives[in->collective];
            const uint32_t plain = in->op == TESS__COLLECT ? TESS_ALL_GATHER : TESS_REDUCE_SCATTER;
            assert_int_equal(c->op, parts ? TESS_ALL_TO_ALL_V : plain);
            assert_int_equal(c->count, parts ? tess__parts_most(&p.layout.groups[in->index])
                                             : p.layout.groups[in->index].shard_elems);
        }
        for (int32_t i = 0; i < p.program.n_buffers; i++)
            if (p.program.buffers[i].role == TESS__UPDATE && p.program.buffers[i].bytes > bytes[parts])
                bytes[parts] = p.program.buffers[i].bytes;
        plan_free(&p);
    }
    assert_true(bytes[1] > 0 && bytes[1] < bytes[0]);
}

/* The same on every rank, since it comes from the layout alone; and part of the program's hash. */
static void test_matrices__owners_are_in_the_hash(void **state) {
    (void)state;
    plan p, q;
    make(&p, 3, TESS_MEM_HOST);
    make(&q, 3, TESS_MEM_HOST);
    plan_layout(&p);
    plan_layout(&q);
    for (int32_t i = 0; i < p.layout.n_matrices; i++)
        assert_int_equal(p.layout.matrices[i].owner, q.layout.matrices[i].owner);
    assert_int_equal(tess__compile_other(&p.compiler, TESS__PASS_STEP, &p.program), TESS_OK);
    assert_int_equal(tess__compile_other(&q.compiler, TESS__PASS_STEP, &q.program), TESS_OK);
    assert_true(p.program.hash == q.program.hash);
    q.layout.matrices[0].owner = (q.layout.matrices[0].owner + 1) % 3;
    assert_int_equal(tess__compile_other(&q.compiler, TESS__PASS_STEP, &q.program), TESS_OK);
    assert_true(p.program.hash != q.program.hash);
    plan_free(&p);
    plan_free(&q);
}

/* The most updates that live at once, and the most collectives in flight, of a step. */
static void count_beside(const tess__program *p, int *updates, int *flying) {
    int alive = 0, posted = 0;
    *updates = *flying = 0;
    for (int32_t i = 0; i < p->n_instrs; i++) {
        const tess__instr *in = &p->instrs[i];
        if ((in->op == TESS__ALLOC || in->op == TESS__FREE) && p->buffers[in->buffer].role == TESS__UPDATE)
            alive += in->op == TESS__ALLOC ? 1 : -1;
        posted += in->op == TESS__COLLECT || in->op == TESS__RETURN;
        posted -= in->op == TESS__COLLECT_WAIT || in->op == TESS__RETURN_WAIT;
        if (in->op == TESS__MATRIX && posted > *flying)
            *flying = posted;
        *updates = alive > *updates ? alive : *updates;
    }
    assert_int_equal(alive, 0);
    assert_int_equal(posted, 0);
}

/* While owners work on one unit, the updates of the next come and the results of the last go; in turn nothing does. */
static void test_matrices__travel_beside_the_work(void **state) {
    (void)state;
    plan p;
    int updates, flying;
    make(&p, 4, TESS_MEM_HOST);
    plan_layout(&p);
    assert_int_equal(tess__compile_other(&p.compiler, TESS__PASS_STEP, &p.program), TESS_OK);
    count_beside(&p.program, &updates, &flying);
    assert_int_equal(updates, 3);
    assert_int_equal(flying, 2);
    p.compiler.in_turn = TESS__IN_TURN_ALWAYS;
    assert_int_equal(tess__compile_other(&p.compiler, TESS__PASS_STEP, &p.program), TESS_OK);
    count_beside(&p.program, &updates, &flying);
    assert_int_equal(updates, 1);
    assert_int_equal(flying, 0);
    plan_free(&p);
}

/* How many groups' updates come together, and results go back, while another unit's backward runs. */
static void count_behind(const tess__program *p, int *coming, int *going) {
    int entered = 0, posted[4 * LAYERS] = { 0 }, back[4 * LAYERS] = { 0 };
    *coming = *going = 0;
    for (int32_t i = 0; i < p->n_instrs; i++) {
        const tess__instr *in = &p->instrs[i];
        entered += in->op == TESS__ENTER;
        if (in->op == TESS__COLLECT)
            posted[in->index] = entered;
        else if (in->op == TESS__RETURN)
            back[in->index] = entered;
        *coming += in->op == TESS__COLLECT_WAIT && entered > posted[in->index];
        *going += in->op == TESS__RETURN_WAIT && entered > back[in->index];
    }
}

/* A step within its pass: matrices travel beside the backward of units before them, in turn they do not. */
static void test_matrices__travel_beside_backward(void **state) {
    (void)state;
    plan p;
    int coming, going, updates, flying;
    make(&p, 4, TESS_MEM_HOST);
    plan_layout(&p);
    assert_int_equal(tess__compile_pass(&p.compiler, TESS_PASS_TRAIN, NULL, 1, &p.program), TESS_OK);
    count_behind(&p.program, &coming, &going);
    assert_true(coming >= LAYERS - 3 && going >= LAYERS - 4);
    count_beside(&p.program, &updates, &flying);
    assert_int_equal(updates, 3);
    assert_int_equal(flying, 2);
    p.compiler.in_turn = TESS__IN_TURN_FUSED;
    assert_int_equal(tess__compile_pass(&p.compiler, TESS_PASS_TRAIN, NULL, 1, &p.program), TESS_OK);
    count_behind(&p.program, &coming, &going);
    assert_int_equal(coming + going, 0);
    count_beside(&p.program, &updates, &flying);
    assert_int_equal(updates, 1);
    plan_free(&p);
}

/* How many instructions of `op` a program has for the group. */
static int count_of(const tess__program *p, uint8_t op, int32_t group) {
    int n = 0;
    for (int32_t i = 0; i < p->n_instrs; i++)
        n += p->instrs[i].op == op && p->instrs[i].index == group;
    return n;
}

/* The last two units of a pass end together where replicas add up, and so do two that one scope holds. */
static void test_matrices__each_unit_is_stepped_once_under_replicas(void **state) {
    (void)state;
    for (int variant = 0; variant < 2 * 3; variant++) {
        plan p;
        int updates, flying;
        make(&p, 4, TESS_MEM_HOST);
        assert_int_equal(tess__setup_strategy(&p.setup, variant % 2 ? "hybrid_grad_op:2" : "hybrid:2"), TESS_OK);
        p.setup.prefetch = variant / 2;
        assert_int_equal(tess__model_tie(&p.model, "h2.tied", "h5.qkv"), TESS_OK);
        plan_layout(&p);
        assert_int_equal(tess__compile_pass(&p.compiler, TESS_PASS_TRAIN, NULL, 1, &p.program), TESS_OK);
        count_beside(&p.program, &updates, &flying);
        for (int32_t g = 0; g < p.layout.n_groups; g++) {
            const int n = tess__steps_matrices(&p.layout.groups[g]);
            assert_int_equal(count_of(&p.program, TESS__MATRIX, g), n);
            assert_int_equal(count_of(&p.program, TESS__UPDATE_APPLY, g), n);
        }
        for (int32_t i = 0; i < p.program.n_buffers; i++) /* freed by an instruction, not where the pass ends */
            assert_true(p.program.buffers[i].role != TESS__SHARD_GRAD ||
                        p.program.buffers[i].last < p.program.n_instrs);
        plan_free(&p);
    }
}

static void test_matrices__a_device_out_of_the_hosts_reach_is_refused(void **state) {
    (void)state;
    plan p;
    make(&p, 2, TESS_MEM_CUDA);
    assert_int_equal(plan_wrap(&p, tess__wrap_scopes_open, ""), TESS_OK);
    assert_int_equal(tess__layout_build(&p.model, &p.setup, p.unit, p.n_units, &p.layout), TESS_E_UNSUPPORTED);
    assert_non_null(strstr(tess_last_error(), "optimizer whole steps whole matrices in host memory"));
    plan_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrices__each_has_an_owner_and_the_work_is_even),
        cmocka_unit_test(test_matrices__work_of_gpt_and_llama_is_even),
        cmocka_unit_test(test_matrices__a_state_with_its_owner_takes_no_less),
        cmocka_unit_test(test_matrices__equal_parts_are_as_many_bytes_as_a_gather),
        cmocka_unit_test(test_matrices__parts_fit_each_other),
        cmocka_unit_test(test_matrices__a_state_goes_to_its_parts_and_back),
        cmocka_unit_test(test_matrices__a_plugin_with_parts_plans_them),
        cmocka_unit_test(test_matrices__owners_are_in_the_hash),
        cmocka_unit_test(test_matrices__travel_beside_the_work),
        cmocka_unit_test(test_matrices__travel_beside_backward),
        cmocka_unit_test(test_matrices__each_unit_is_stepped_once_under_replicas),
        cmocka_unit_test(test_matrices__a_device_out_of_the_hosts_reach_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

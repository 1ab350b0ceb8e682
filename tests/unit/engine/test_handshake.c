/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks as threads compare what they are, their models and their programs. Whatever differs, on whichever rank, all are
 * told the same: which item, and both sides of it. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/options.h"
#include "core/base/status.h"
#include "core/kernels/isa.h"
#include "tests/unit/recovery/thread_ranks.h"

enum { RANKS = 3, ITEMS = 6, VALUE = 8192 };
typedef struct {
    tess t;
    int items[ITEMS + 1], n_items; /* of the model: numbers that stand for declarations */
    tess__instr instrs[ITEMS + 1];
    tess__buffer buffers[2];
    tess__program programs[2];
    tess_status status;
    char said[1200];
} member;
static member all_ranks[RANKS];
static char values[RANKS][VALUE];
static int fail_at; /* the n-th exchange from now fails on all ranks */
static _Thread_local int my_exchanges;
static const char *chosen_isa;

static tess_status exchange(tess__comms *c, const char *what, const void *mine, uint64_t bytes, void *out) {
    int32_t self = c->world.rank;
    if (++my_exchanges == fail_at)
        return tess__fail(TESS_E_PEER, "%s: a rank is gone", what);
    RANKS_CHECK(bytes <= VALUE);
    memcpy(values[self], mine, bytes);
    TRY(ranks_meet(&ranks.world));
    for (int32_t r = 0; r < RANKS; r++)
        memcpy((char *)out + (uint64_t)r * bytes, values[r], bytes);
    return ranks_meet(&ranks.world);
}

static const member *member_of(const tess__model *m) {
    return (const member *)((const char *)m - offsetof(member, t.plan.model));
}
static uint64_t model_hash(const tess__model *m) {
    uint64_t h = TESS__HASH_START;
    for (int i = 0; i < member_of(m)->n_items; i++)
        h = tess__hash_u64(h, (uint64_t)member_of(m)->items[i]);
    return h;
}
static void item_text_of(const tess__model *m, int32_t i, char *out, size_t n) {
    snprintf(out, n, "item %d", member_of(m)->items[i]);
}
static void program_text_of(const tess__program *p, int32_t i, char *out, size_t n) {
    const tess__instr *in = &p->instrs[i];
    snprintf(out, n, "%d/%d/%d/%d/%d", in->op, in->flags, in->index, (int)in->tag,
             in->buffer < 0 ? -1 : (int)p->buffers[in->buffer].bytes);
}
#define tess__comms_exchange exchange
#define tess__model_n_items(m) (member_of(m)->n_items)
#define tess__model_hash model_hash
#define tess__model_item_hash(m, i) ((uint64_t)member_of(m)->items[i])
#define tess__model_item_text item_text_of
#define tess__program_text(p, m, l, i, out, n) program_text_of(p, i, out, n)
#define tess__option_text(key) chosen_isa
#define tess__isa_name(i) "best"
#include "core/engine/handshake.c"

static char text[TESS__N_KINDS][8] = { "", "k1", "k2", "k3", "k4", "k5", "k6" };
static char keep[] = "keep", adamw[] = "adamw";
static tess__plugin plugins[TESS__N_KINDS];

static void begin(void) {
    memset(all_ranks, 0, sizeof all_ranks);
    fail_at = 0;
    chosen_isa = NULL;
    for (int32_t r = 0; r < RANKS; r++) {
        member *m = &all_ranks[r];
        m->t.comms.world.rank = r;
        m->t.comms.world.nranks = RANKS;
        m->n_items = ITEMS;
        for (int i = 0; i <= ITEMS; i++) {
            m->items[i] = 10 + i;
            m->instrs[i] = (tess__instr){ .op = 3, .flags = 1, .index = 7, .buffer = i % 2 - 1, .tag = 9 };
        }
        m->buffers[0].bytes = 64;
        for (int p = 0; p < 2; p++)
            m->programs[p] = (tess__program){ .instrs = m->instrs, .n_instrs = ITEMS, .buffers = m->buffers };
        for (int k = 1; k < TESS__N_KINDS; k++) {
            plugins[k] = (tess__plugin){ .kind = (uint32_t)k, .abi_major = 1, .version = "1.0" };
            m->t.selection.plugins[k] = k == 2 ? NULL : &plugins[k];
            m->t.selection.text[k] = text[k];
        }
        m->t.settings.activations = keep;
        m->t.settings.optimizer = adamw;
    }
}

static void *compare_programs(void *arg) {
    member *m = arg;
    my_exchanges = 0;
    m->status = tess__handshake_programs(&m->t, m->programs, 2);
    snprintf(m->said, sizeof m->said, "%s", m->status ? tess_last_error() : "");
    return NULL;
}
static void *compare_identity(void *arg) {
    member *m = arg;
    my_exchanges = 0;
    m->status = tess__handshake_identity(&m->t);
    snprintf(m->said, sizeof m->said, "%s", m->status ? tess_last_error() : "");
    return NULL;
}

/* Runs it on all ranks, which are told the same. */
static void all_say(void *(*run)(void *), tess_status want, const char *said) {
    pthread_t threads[RANKS];
    ranks_begin(RANKS, 1);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, run, &all_ranks[r]), 0);
    for (int r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
    assert_int_equal(ranks.wrong, 0);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(all_ranks[r].status, want);
        assert_string_equal(all_ranks[r].said, said);
    }
}

static void hash_programs(void) {
    for (int r = 0; r < RANKS; r++)
        for (int p = 0; p < 2; p++) {
            tess__program *x = &all_ranks[r].programs[p];
            x->hash = (uint64_t)x->n_instrs;
            for (int i = 0; i < x->n_instrs; i++)
                x->hash = tess__hash_u64(x->hash, instr_hash(x, i));
        }
}

static void test_handshake__the_first_declaration_that_differs_is_named(void **state) {
    (void)state;
    char want[200];
    begin();
    all_say(compare_programs, TESS_OK, "");
    for (int who = 0; who < RANKS; who++)
        for (int at = 0; at < ITEMS; at++) {
            begin();
            all_ranks[who].items[at] = 99;
            if (at + 2 < ITEMS)
                all_ranks[who].items[at + 2] = 98;
            snprintf(want, sizeof want,
                     "the ranks declared different models; declaration %d is \"item %d\" on rank 0 and \"item %d\" on "
                     "rank %d",
                     at, who ? 10 + at : 99, who ? 99 : 10 + at, who ? who : 1);
            all_say(compare_programs, TESS_E_MISMATCH, want);
        }
    for (int who = 0; who < RANKS; who++) /* one has more than the others, or less */
        for (int more = -1; more <= 1; more += 2) {
            begin();
            all_ranks[who].n_items += more;
            int at = more < 0 ? ITEMS - 1 : ITEMS, zero_ends = (who == 0) == (more < 0);
            char item[16];
            snprintf(item, sizeof item, "item %d", 10 + at);
            snprintf(want, sizeof want,
                     "the ranks declared different models; declaration %d is \"%s\" on rank 0 and \"%s\" on rank %d",
                     at, zero_ends ? "nothing more" : item, zero_ends ? item : "nothing more", who ? who : 1);
            all_say(compare_programs, TESS_E_MISMATCH, want);
        }
}

static void test_handshake__the_first_instruction_that_differs_is_named(void **state) {
    (void)state;
    char want[200];
    for (int what = 0; what < 5; what++)
        for (int at = 0; at < ITEMS; at++) {
            static int32_t members[] = { 4, 5, 6 };
            begin();
            member *m = &all_ranks[2];
            tess__instr *in = &m->instrs[at];
            *(what == 0 ? &in->op : &in->flags) += what < 2 ? 4 : 0;
            in->index += what == 2;
            in->tag += what == 3;
            if (what == 4)
                in->buffer = 1, m->buffers[1].bytes = 32;
            for (int r = 0; r < RANKS; r++)
                all_ranks[r].t.comms.members = members;
            hash_programs();
            char here[32], there[32];
            program_text_of(&m->programs[0], at, there, sizeof there);
            program_text_of(&all_ranks[0].programs[0], at, here, sizeof here);
            snprintf(want, sizeof want,
                     "the ranks compiled different programs; instruction %d is \"%s\" on rank 4 and \"%s\" on rank 6",
                     at, here, there);
            all_say(compare_programs, TESS_E_MISMATCH, want);
        }
    begin(); /* in the last program alone */
    hash_programs();
    all_ranks[1].programs[1].n_instrs = 1;
    hash_programs();
    all_say(compare_programs, TESS_E_MISMATCH,
            "the ranks compiled different programs; instruction 1 is \"3/1/7/9/64\" on rank 0 and \"nothing more\" on "
            "rank 1");
    all_ranks[1].t.plan.setup.hosts = 0xab;
    all_say(compare_programs, TESS_E_MISMATCH,
            "the ranks plan for different layouts of hosts: rank 0 for 0000000000000000, rank 1 for 00000000000000ab");
}

static void test_handshake__a_lost_rank_ends_it(void **state) {
    (void)state;
    static const char *const what[] = { "programs", "hosts",    "programs", "programs",
                                        "programs", "programs", "programs", "programs" };
    for (int n = 1; n <= 8; n++) {
        char want[64];
        begin();
        all_ranks[1].items[2] = 99;
        fail_at = n;
        snprintf(want, sizeof want, "the comparison of %s: a rank is gone", what[n - 1]);
        all_say(compare_programs, TESS_E_PEER, want);
    }
    begin();
    fail_at = 1;
    all_say(compare_identity, TESS_E_PEER, "the comparison of plugins: a rank is gone");
    all_ranks[0].t.comms.world.nranks = 1; /* a rank alone asks nobody */
    compare_programs(&all_ranks[0]);
    assert_int_equal(all_ranks[0].status, TESS_OK);
    compare_identity(&all_ranks[0]);
    assert_int_equal(all_ranks[0].status, TESS_OK);
}

/* ---- what the ranks are ---- */

static char before[] = "shard group 0, keep 0, prefetch 0, accum 0, sync end, deterministic 0, low-copy 0, activations "
                       "keep, optimizer adamw with 0 states, momentum 0, on-nan 0, spike 0, common bytes 0";

/* The text of the options with one word in place of another. */
static void options_with(const char *old, const char *new, char *out, size_t n) {
    const char *at = strstr(before, old);
    snprintf(out, n, "%.*s%s%s", (int)(at - before), before, new, at + strlen(old));
}

static void test_handshake__every_option_that_all_must_have_counts(void **state) {
    (void)state;
    static char other[] = "recompute", sgd[] = "sgd";
    static const char *const words[][2] = { { "shard group 0", "shard group 5" },
                                            { "keep 0", "keep 5" },
                                            { "prefetch 0", "prefetch 5" },
                                            { "accum 0", "accum 5" },
                                            { "sync end", "sync each" },
                                            { "deterministic 0", "deterministic 5" },
                                            { "low-copy 0", "low-copy 5" },
                                            { "with 0", "with 5" },
                                            { "momentum 0", "momentum 5" },
                                            { "on-nan 0", "on-nan 5" },
                                            { "spike 0", "spike 5" },
                                            { "common bytes 0", "common bytes 5" },
                                            { "activations keep", "activations recompute" },
                                            { "adamw", "sgd" } };
    for (int i = 0; i < 14; i++) {
        char changed[400], want[1000];
        begin();
        tess *t = &all_ranks[2].t;
        tess__setup *s = &t->plan.setup;
        int32_t *numbers[] = { &s->shard_ranks,   &s->keep_forward, &s->prefetch, &s->accum,        &s->sync_each,
                               &s->deterministic, &s->low_copy,     &s->n_states, &s->with_momentum };
        if (i < 9)
            *numbers[i] = 5;
        t->settings.on_nan = i == 9 ? 5 : 0;
        t->settings.spike = i == 10 ? 5 : 0;
        s->common_bytes = i == 11 ? 5 : 0;
        t->settings.activations = i == 12 ? other : keep;
        t->settings.optimizer = i == 13 ? sgd : adamw;
        options_with(words[i][0], words[i][1], changed, sizeof changed);
        snprintf(want, sizeof want, "the ranks differ in options: rank 0 has %s, rank 2 has %s", before, changed);
        all_say(compare_identity, TESS_E_INVALID, want);
    }
    begin();
    all_say(compare_identity, TESS_OK, "");
    for (int r = 0; r < RANKS; r++) /* an optimizer plugin is named with the plugins */
        all_ranks[r].t.plan.setup.step = (const void *)before;
    all_ranks[1].t.settings.optimizer = sgd;
    all_say(compare_identity, TESS_OK, "");
}

static void test_handshake__so_do_plugins_threads_and_instructions(void **state) {
    (void)state;
    for (int k = 1; k < TESS__N_KINDS; k++) {
        static char own[] = "own";
        char want[256];
        begin();
        all_ranks[1].t.selection.text[k] = own;
        snprintf(
            want, sizeof want,
            "the ranks differ in plugins: rank 0 has %s k%d (ABI 1, version 1.0), rank 1 has %s own (ABI 1, version "
            "1.0)",
            tess__kind_name((uint32_t)k), k, tess__kind_name((uint32_t)k));
        all_say(compare_identity, k == 2 ? TESS_OK : TESS_E_INVALID, k == 2 ? "" : want);
    }
    tess__plugin newer = { .kind = 1, .abi_major = 2, .version = "1.0" };
    begin();
    all_ranks[2].t.selection.plugins[1] = &newer;
    all_say(compare_identity, TESS_E_INVALID,
            "the ranks differ in plugins: rank 0 has comm k1 (ABI 1, version 1.0), rank 2 has comm k1 (ABI 2, version "
            "1.0)");
    for (int i = 0; i < 3; i++) {
        begin();
        chosen_isa = i == 0 ? NULL : i == 1 ? "auto" : "avx2";
        all_ranks[1].t.plan.setup.threads = 4;
        char want[256];
        snprintf(
            want, sizeof want,
            "the ranks differ in compute threads or instruction set: rank 0 has 0 threads, instruction set %s, rank "
            "1 has 4 threads, instruction set %s",
            i == 2 ? "avx2" : "best", i == 2 ? "avx2" : "best");
        all_say(compare_identity, TESS_E_INVALID, want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handshake__the_first_declaration_that_differs_is_named),
        cmocka_unit_test(test_handshake__the_first_instruction_that_differs_is_named),
        cmocka_unit_test(test_handshake__a_lost_rank_ends_it),
        cmocka_unit_test(test_handshake__every_option_that_all_must_have_counts),
        cmocka_unit_test(test_handshake__so_do_plugins_threads_and_instructions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

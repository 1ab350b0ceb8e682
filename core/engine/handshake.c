/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks compare plugins, options and programs before they use each other's data. */
#include "state.h"
#include "base/hash.h"
#include "kernels/isa.h"
#include "base/options.h"
#include "base/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDENTITY_BYTES = 512 };

/* Fails on every rank alike, because rank `other` differs from rank 0. */
static tess_status fail_difference(const tess__comms *c, const char *what, int32_t other, const char *zero,
                                   const char *theirs) {
    return tess__fail(TESS_E_INVALID, "the ranks differ in %s: rank %d has %s, rank %d has %s", what,
                      tess__comms_rank(c, 0), zero, tess__comms_rank(c, other), theirs);
}

static void describe_plugin(const tess__plugin *p, const char *selected, char *out) {
    memset(out, 0, IDENTITY_BYTES);
    snprintf(out, IDENTITY_BYTES, "%s %s (ABI %u, version %s)", tess__kind_name(p->kind), selected, p->abi_major,
             p->version);
}

tess_status tess__handshake_identity(tess *t) {
    enum { OF_RANK = TESS__N_KINDS, OPTIONS, N };
    static const char *const what[N] = { "",        "plugins", "plugins", "plugins",
                                         "plugins", "plugins", "plugins", "compute threads or instruction set",
                                         "options" };
    char mine[N][IDENTITY_BYTES];
    memset(mine, 0, sizeof mine);
    for (int kind = 1; kind < TESS__N_KINDS; kind++)
        if (t->selection.plugins[kind])
            describe_plugin(t->selection.plugins[kind], t->selection.text[kind], mine[kind]);
    const char *isa = tess__option_text("isa");
    snprintf(mine[OF_RANK], IDENTITY_BYTES, "%d threads, instruction set %s", t->plan.setup.threads,
             isa && strcmp(isa, "auto") != 0 ? isa : tess__isa_name(tess__isa()));
    const tess__setup *s = &t->plan.setup;
    snprintf(
        mine[OPTIONS], IDENTITY_BYTES,
        "shard group %d, keep %d, prefetch %d, accum %d, sync %s, deterministic %d, low-copy %d, activations %.80s, "
        "optimizer %.60s with %d states, momentum %d, on-nan %d, spike %g, common bytes %d",
        s->shard_ranks, s->keep_forward, s->prefetch, s->accum, s->sync_each ? "each" : "end", s->deterministic,
        s->low_copy, t->settings.activations, s->step ? "" : t->settings.optimizer, s->n_states, s->with_momentum,
        t->settings.on_nan, t->settings.spike, (int)s->common_bytes);
    if (t->comms.world.nranks == 1)
        return TESS_OK;
    char(*all)[N][IDENTITY_BYTES] = calloc((size_t)t->comms.world.nranks, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", t->comms.world.nranks);
    tess_status status = tess__comms_exchange(&t->comms, "the comparison of plugins", mine, sizeof mine, all);
    for (int32_t r = 1; !status && r < t->comms.world.nranks; r++)
        for (int i = 1; !status && i < N; i++)
            if (memcmp(all[r][i], all[0][i], IDENTITY_BYTES) != 0) {
                all[r][i][IDENTITY_BYTES - 1] = all[0][i][IDENTITY_BYTES - 1] = 0;
                status = fail_difference(&t->comms, what[i], r, all[0][i], all[r][i]);
            }
    free(all);
    return status;
}

/* ---- models and programs ---- */

/* A list that ranks compare, item by item: the declarations of a model, or the instructions of a program. */
typedef struct {
    tess *t;
    const tess__program *program; /* null: the model's declarations */
    int32_t n;
} item_list;

static uint64_t instr_hash(const tess__program *p, int32_t i) {
    const tess__instr *in = &p->instrs[i];
    uint64_t h =
        tess__hash_u64(TESS__HASH_START, (uint64_t)in->op << 40 | (uint64_t)in->flags << 32 | (uint32_t)in->index);
    h = tess__hash_u64(h, in->tag);
    return in->buffer < 0 ? h : tess__hash_u64(h, p->buffers[in->buffer].bytes);
}

static uint64_t item_hash(const item_list *l, int32_t i) {
    return l->program ? instr_hash(l->program, i) : tess__model_item_hash(&l->t->plan.model, i);
}

static void item_text(const item_list *l, int32_t i, char *out, size_t n) {
    if (i >= l->n)
        snprintf(out, n, "nothing more");
    else if (l->program)
        tess__program_text(l->program, &l->t->plan.model, &l->t->plan.layout, i, out, n);
    else
        tess__model_item_text(&l->t->plan.model, i, out, n);
}

/* Finds the first item at which rank `other` deviates from rank 0, by bisecting over prefix hashes. Every rank takes
 * part in every exchange, with the same bounds. */
static tess_status bisect(const item_list *l, int32_t other, uint64_t *all, int32_t *first) {
    uint64_t length = (uint64_t)l->n;
    tess_status s = tess__comms_exchange(&l->t->comms, "the comparison of programs", &length, 8, all);
    int32_t low = 0, high = 1 + (int32_t)(all[0] > all[other] ? all[0] : all[other]);
    while (!s && high - low > 1) {
        int32_t middle = (low + high) / 2;
        uint64_t h = TESS__HASH_START;
        for (int32_t i = 0; i < middle; i++)
            h = tess__hash_u64(h, i < l->n ? item_hash(l, i) : 0);
        s = tess__comms_exchange(&l->t->comms, "the comparison of programs", &h, 8, all);
        if (all[0] == all[other])
            low = middle;
        else
            high = middle;
    }
    *first = low;
    return s;
}

static tess_status name_difference(const item_list *l, int32_t other) {
    uint64_t n_ranks = (uint64_t)l->t->comms.world.nranks, *all = calloc(n_ranks, sizeof *all);
    char(*texts)[IDENTITY_BYTES] = calloc(n_ranks, IDENTITY_BYTES), mine[IDENTITY_BYTES] = "";
    tess_status s = all && texts ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", (int)n_ranks);
    int32_t at = 0;
    if (!s)
        s = bisect(l, other, all, &at);
    if (!s) {
        item_text(l, at, mine, sizeof mine);
        s = tess__comms_exchange(&l->t->comms, "the comparison of programs", mine, sizeof mine, texts);
    }
    if (!s) {
        texts[0][IDENTITY_BYTES - 1] = texts[other][IDENTITY_BYTES - 1] = 0;
        s = tess__fail(TESS_E_MISMATCH, "the ranks %s; %s %d is \"%s\" on rank %d and \"%s\" on rank %d",
                       l->program ? "compiled different programs" : "declared different models",
                       l->program ? "instruction" : "declaration", at, texts[0], tess__comms_rank(&l->t->comms, 0),
                       texts[other], tess__comms_rank(&l->t->comms, other));
    }
    free(all);
    free(texts);
    return s;
}

/* Compares one hash; fails by name when a rank has another than rank 0. */
static tess_status compare_hash(const item_list *l, uint64_t mine, uint64_t *all) {
    tess_status s = tess__comms_exchange(&l->t->comms, "the comparison of programs", &mine, 8, all);
    for (int32_t r = 1; !s && r < l->t->comms.world.nranks; r++)
        if (all[r] != all[0])
            return name_difference(l, r);
    return s;
}

static tess_status compare_hosts(tess *t, uint64_t *all) {
    tess_status s = tess__comms_exchange(&t->comms, "the comparison of hosts", &t->plan.setup.hosts, 8, all);
    for (int32_t r = 1; !s && r < t->comms.world.nranks; r++)
        if (all[r] != all[0])
            s = tess__fail(TESS_E_MISMATCH,
                           "the ranks plan for different layouts of hosts: rank %d for %016" PRIx64
                           ", rank %d for %016" PRIx64,
                           tess__comms_rank(&t->comms, 0), all[0], tess__comms_rank(&t->comms, r), all[r]);
    return s;
}

static tess_status compare_each(tess *t, const tess__program *programs, int32_t n, uint64_t *all) {
    TRY(compare_hosts(t, all));
    item_list model = { .t = t, .n = tess__model_n_items(&t->plan.model) };
    tess_status s = compare_hash(&model, tess__model_hash(&t->plan.model), all);
    for (int32_t i = 0; !s && i < n; i++) {
        item_list program = { .t = t, .program = &programs[i], .n = programs[i].n_instrs };
        s = compare_hash(&program, programs[i].hash, all);
    }
    return s ? s : tess__fail(TESS_E_INTERNAL, "the ranks compiled different programs");
}

tess_status tess__handshake_programs(tess *t, const tess__program *programs, int32_t n) {
    if (t->comms.world.nranks == 1)
        return TESS_OK;
    uint64_t together = tess__model_hash(&t->plan.model), *all = calloc((size_t)t->comms.world.nranks, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", t->comms.world.nranks);
    together = tess__hash_u64(together, t->plan.setup.hosts);
    for (int32_t i = 0; i < n; i++)
        together = tess__hash_u64(together, programs[i].hash);
    tess_status s = tess__comms_exchange(&t->comms, "the comparison of programs", &together, 8, all);
    int differ = 0;
    for (int32_t r = 1; !s && r < t->comms.world.nranks; r++)
        differ |= all[r] != all[0];
    if (!s && differ)
        s = compare_each(t, programs, n, all);
    free(all);
    return s;
}

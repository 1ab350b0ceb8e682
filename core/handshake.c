/* What ranks compare before they trust each other's bytes. */
#include "engine.h"
#include "hash.h"
#include "isa.h"
#include "options.h"
#include "status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDENTITY_BYTES = 512 };

tess_status tess__engine_exchange(tess *t, const char *what, const void *mine, uint64_t bytes, void *out) {
    if (!t->control) {
        memcpy(out, mine, bytes);
        return TESS_OK;
    }
    char key[96];
    snprintf(key, sizeof key, "exchange/%llu/%s", (unsigned long long)t->exchange_count++, what);
    tess__control_doing(t->control, what);
    return tess__control_exchange(t->control, key, mine, bytes, out);
}

/* Fails on every rank alike: rank `other` differs from rank 0. */
static tess_status differ(const char *what, int32_t other, const char *zero, const char *theirs) {
    return tess__fail(TESS_E_INVALID, "the ranks differ in %s: rank 0 has %s, rank %d has %s", what, zero, other,
                      theirs);
}

static void describe_plugin(const tess__plugin *p, const char *selected, char *out) {
    memset(out, 0, IDENTITY_BYTES);
    snprintf(out, IDENTITY_BYTES, "%s %s (ABI %u, version %s)", tess__kind_name(p->kind), selected, p->abi_major,
             p->version);
}

tess_status tess__handshake_identity(tess *t) {
    enum { N = 8 };
    static const char *const what[N] = {
        "", "plugins", "plugins", "plugins", "plugins", "plugins", "compute threads or instruction set", "options"
    };
    char mine[N][IDENTITY_BYTES];
    memset(mine, 0, sizeof mine);
    for (int kind = 1; kind < 6; kind++)
        describe_plugin(t->plugins[kind], t->selected[kind], mine[kind]);
    const char *isa = tess__option_text("isa");
    snprintf(mine[6], IDENTITY_BYTES, "%d threads, instruction set %s", t->threads,
             isa && strcmp(isa, "auto") != 0 ? isa : tess__isa_name(tess__isa()));
    const tess__setup *s = &t->setup;
    snprintf(mine[7], IDENTITY_BYTES,
             "shard group %d, keep %d, prefetch %d, accum %d, sync %s, deterministic %d, activations %d, optimizer %u "
             "with %d states",
             s->shard_ranks, s->keep_forward, s->prefetch, s->accum, s->sync_each ? "each" : "end", s->deterministic,
             s->activations, s->optimizer, s->n_states);
    if (t->world.nranks == 1)
        return TESS_OK;
    char(*all)[N][IDENTITY_BYTES] = calloc((size_t)t->world.nranks, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", t->world.nranks);
    tess_status status = tess__engine_exchange(t, "the comparison of plugins", mine, sizeof mine, all);
    for (int32_t r = 1; !status && r < t->world.nranks; r++)
        for (int i = 1; !status && i < N; i++)
            if (memcmp(all[r][i], all[0][i], IDENTITY_BYTES) != 0) {
                all[r][i][IDENTITY_BYTES - 1] = all[0][i][IDENTITY_BYTES - 1] = 0;
                status = differ(what[i], r, all[0][i], all[r][i]);
            }
    free(all);
    return status;
}

static uint64_t instr_hash(const tess__program *p, int32_t i) {
    const tess__instr *in = &p->instrs[i];
    uint64_t h = tess__hash_u64(TESS__HASH_START, (uint64_t)in->op << 32 | (uint32_t)in->index);
    h = tess__hash_u64(h, in->tag);
    return in->buffer < 0 ? h : tess__hash_u64(h, p->buffers[in->buffer].bytes);
}

/* The first instruction at which rank `other` departs from rank 0, found by bisecting over prefix hashes: every rank
 * takes part in every exchange. */
static tess_status find_difference(tess *t, const tess__program *p, int32_t other) {
    int32_t low = 0, high = p->n_instrs + 1;
    uint64_t all_n = (uint64_t)t->world.nranks, *all = calloc(all_n, sizeof *all);
    char(*texts)[IDENTITY_BYTES] = calloc(all_n, IDENTITY_BYTES), mine[IDENTITY_BYTES] = "nothing more";
    tess_status s = all && texts ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory to compare programs");
    uint64_t lengths = (uint64_t)p->n_instrs;
    if (!s && !(s = tess__engine_exchange(t, "the comparison of programs", &lengths, 8, all)))
        high = 1 + (int32_t)(all[0] > all[other] ? all[0] : all[other]);
    while (!s && high - low > 1) {
        int32_t middle = (low + high) / 2;
        uint64_t h = TESS__HASH_START;
        for (int32_t i = 0; i < middle; i++)
            h = tess__hash_u64(h, i < p->n_instrs ? instr_hash(p, i) : 0);
        s = tess__engine_exchange(t, "the comparison of programs", &h, 8, all);
        if (all[0] == all[other])
            low = middle;
        else
            high = middle;
    }
    if (!s && low < p->n_instrs)
        tess__program_text(p, &t->model, &t->layout, low, mine, sizeof mine);
    if (!s)
        s = tess__engine_exchange(t, "the comparison of programs", mine, sizeof mine, texts);
    if (!s) {
        texts[0][IDENTITY_BYTES - 1] = texts[other][IDENTITY_BYTES - 1] = 0;
        s = tess__fail(
            TESS_E_MISMATCH,
            "the ranks compiled different programs; instruction %d is \"%s\" on rank 0 and \"%s\" on rank %d", low,
            texts[0], texts[other], other);
    }
    free(all);
    free(texts);
    return s;
}

tess_status tess__handshake_program(tess *t, const tess__program *p) {
    if (t->world.nranks == 1)
        return TESS_OK;
    uint64_t mine[2] = { tess__model_hash(&t->model), p->hash };
    uint64_t(*all)[2] = calloc((size_t)t->world.nranks, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare programs");
    tess_status s = tess__engine_exchange(t, "the comparison of programs", mine, sizeof mine, all);
    for (int32_t r = 1; !s && r < t->world.nranks; r++)
        if (all[r][1] != all[0][1])
            s = find_difference(t, p, r);
        else if (all[r][0] != all[0][0])
            s = tess__fail(TESS_E_MISMATCH, "rank %d declared other names, shapes or ties than rank 0", r);
    free(all);
    return s;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* An engine over some ranks of the process's world: who is in its group. */
#include "comms.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 32, MOST_NAMED = 8 };

typedef struct { /* what each rank says */
    int32_t color, key, ranks;
    char name[NAME_BYTES];
} choice;

typedef struct {
    int32_t key, rank;
} member;

static int compare_members(const void *a, const void *b) {
    const member *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : (x->rank > y->rank) - (x->rank < y->rank);
}

static const char *name_of(const choice *c) {
    return c->name[0] ? c->name : "without a name";
}

/* The n-th opening of each rank has to be the same, or ranks would be in groups that the others do not open. */
static tess_status compare_names(const choice *all, int32_t n) {
    for (int32_t r = 1; r < n; r++)
        if (memcmp(all[r].name, all[0].name, NAME_BYTES) != 0)
            return tess__fail(
                TESS_E_MISMATCH,
                "the ranks open their groups in different orders: rank 0 opens group %s, rank %d group %s",
                name_of(&all[0]), r, name_of(&all[r]));
    return TESS_OK;
}

static tess_status take_members(tess__comms *c, const choice *all, int32_t rank) {
    int32_t n = c->all_ranks, count = 0;
    member *found = calloc((size_t)n, sizeof *found);
    c->members = calloc((size_t)n, sizeof *c->members);
    if (!found || !c->members) {
        free(found);
        return tess__fail(TESS_E_NOMEM, "no memory for a group of %d ranks", n);
    }
    for (int32_t r = 0; r < n; r++)
        if (all[r].color == all[rank].color)
            found[count++] = (member){ all[r].key, r };
    qsort(found, (size_t)count, sizeof *found, compare_members);
    for (int32_t i = 0; i < count; i++) {
        c->members[i] = found[i].rank;
        if (found[i].rank == rank)
            c->world.rank = i;
    }
    c->world.nranks = count;
    free(found);
    return TESS_OK;
}

static void make_title(tess__comms *c, const choice *mine) {
    size_t at =
        (size_t)snprintf(c->title, sizeof c->title, "group %s (rank%s", name_of(mine), c->world.nranks > 1 ? "s" : "");
    for (int32_t i = 0; i < c->world.nranks && i < MOST_NAMED && at < sizeof c->title; i++)
        at += (size_t)snprintf(c->title + at, sizeof c->title - at, "%s %d", i ? "," : "", c->members[i]);
    if (at < sizeof c->title)
        snprintf(c->title + at, sizeof c->title - at, "%s)", c->world.nranks > MOST_NAMED ? ", …" : "");
}

static tess_status join(tess__comms *c, const choice *mine, const choice *all) {
    int32_t rank = c->world.rank;
    TRY(compare_names(all, c->all_ranks));
    if (mine->color < 0)
        return TESS_OK;
    c->color = mine->color;
    TRY(take_members(c, all, rank));
    if (c->world.nranks > TESS__KV_MEMBERS_MAX)
        return tess__fail(TESS_E_UNSUPPORTED, "a group of %d ranks; at most %d are possible", c->world.nranks,
                          TESS__KV_MEMBERS_MAX);
    if (mine->ranks && mine->ranks != c->world.nranks)
        return tess__fail(TESS_E_INVALID,
                          "tess_group_options.ranks is %d on rank %d, but %d ranks gave the color %d of group %s",
                          mine->ranks, rank, c->world.nranks, mine->color, name_of(mine));
    make_title(c, mine);
    return TESS_OK;
}

tess_status tess__comms_join_group(tess__comms *c, const tess_group_options *o, int *outside) {
    if (c->world.generation)
        return tess__fail(TESS_E_UNSUPPORTED,
                          "tess_options.group: no groups where ranks were replaced; unset TESSERA_MIRROR");
    c->all_ranks = c->world.nranks;
    choice mine, *all = calloc((size_t)c->all_ranks, sizeof *all);
    if (!all)
        return tess__fail(TESS_E_NOMEM, "no memory to compare %d ranks", c->all_ranks);
    memset(&mine, 0, sizeof mine);
    mine.color = o->color;
    mine.key = o->key;
    mine.ranks = o->ranks;
    snprintf(mine.name, sizeof mine.name, "%s", o->name ? o->name : "");
    tess_status s = tess__comms_exchange(c, "tess_options.group", &mine, sizeof mine, all);
    if (!s)
        s = join(c, &mine, all);
    free(all);
    *outside = !s && mine.color < 0;
    return s;
}

void tess__comms_leave_group(tess__comms *c) {
    free(c->members);
    c->members = NULL;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "activations.h"

#include <tessera/plugin_options.h>
#include "base/status.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const modes[] = { "keep", "recompute", "offload", "selective" }; /* by TESS__ACTIVATIONS_… */
enum { N_MODES = 4 };

/* ---- the text ---------------------------------------------------------------------------------------- */
typedef struct {
    int mode;
    uint64_t every;    /* 0: by the pattern */
    char pattern[256]; /* "": all blocks */
} spec_item;

static tess_status refuse_spec(const char *spec, const char *at, size_t n, const char *what) {
    return tess__fail(
        TESS_E_INVALID,
        "TESSERA_ACTIVATIONS is '%.200s': '%.*s' %s; expected keep, recompute, offload or selective, each "
        "also as MODE:PATTERN or MODE:every=K, joined by ',', or auto:BYTES, or auto:BYTES,offload",
        spec, (int)(n > 60 ? 60 : n), at, what);
}

static tess_status read_item(const char *spec, const char *at, size_t n, spec_item *out) {
    const char *colon = memchr(at, ':', n);
    size_t word = colon ? (size_t)(colon - at) : n, rest = colon ? n - word - 1 : 0;
    *out = (spec_item){ .mode = 0 };
    while (out->mode < N_MODES && (strlen(modes[out->mode]) != word || strncmp(modes[out->mode], at, word) != 0))
        out->mode++;
    if (out->mode == N_MODES)
        return refuse_spec(spec, at, n, "is none of them");
    if (colon && (!rest || rest >= sizeof out->pattern))
        return refuse_spec(spec, at, n, "says no blocks after its colon");
    if (!colon)
        return TESS_OK;
    memcpy(out->pattern, colon + 1, rest);
    if (strncmp(out->pattern, "every=", 6) != 0)
        return TESS_OK;
    char *end;
    out->every = strtoull(out->pattern + 6, &end, 10);
    if (out->pattern[6] < '0' || out->pattern[6] > '9' || *end || !out->every || out->every > INT32_MAX)
        return refuse_spec(spec, at, n, "does not count from 1");
    return TESS_OK;
}

typedef tess_status (*item_fn)(void *user, const char *spec, const spec_item *);

static tess_status each_item(const char *spec, item_fn fn, void *user) {
    for (const char *at = spec;;) {
        size_t n = strcspn(at, ",");
        spec_item i;
        TRY(read_item(spec, at, n, &i));
        TRY(fn ? fn(user, spec, &i) : TESS_OK);
        if (!at[n])
            return TESS_OK;
        at += n + 1;
    }
}

static int is_auto(const char *spec) {
    return strncmp(spec, "auto", 4) == 0 && (!spec[4] || spec[4] == ':' || spec[4] == ',');
}

/* Reads "auto" or "auto:BYTES", either with ",offload" behind it; without BYTES `bytes` stays as it is. */
static tess_status read_auto(const char *spec, uint64_t *bytes, int *may_offload) {
    char text[64] = "";
    size_t n = strcspn(spec, ",");
    *may_offload = strcmp(spec + n, ",offload") == 0;
    if (spec[n] && !*may_offload)
        return refuse_spec(spec, spec + n + 1, strlen(spec + n + 1), "follows auto, which takes offload alone");
    if (n == 4)
        return TESS_OK;
    if (n - 5 < sizeof text)
        memcpy(text, spec + 5, n - 5);
    if (!tess_option_parse_bytes(text, bytes) || !*bytes)
        return refuse_spec(spec, spec, n, "names no bytes of device memory, as auto:512MiB does");
    return TESS_OK;
}

tess_status tess__activations_check(const char *spec) {
    uint64_t bytes = 0;
    int may_offload;
    return is_auto(spec) ? read_auto(spec, &bytes, &may_offload) : each_item(spec, NULL, NULL);
}

int tess__activations_uniform(const char *spec, int *mode) {
    for (int i = 0; i < N_MODES; i++)
        if (strcmp(spec, modes[i]) == 0) {
            *mode = i;
            return 1;
        }
    return 0;
}

/* ---- the blocks -------------------------------------------------------------------------------------- */
/* The block saves activations that it can drop and restore before backward. */
static int has_choice(const tess__plan *p, int32_t block) {
    const tess_block_options *o = &p->model.blocks[block].options;
    return o->saved_bytes && !(o->flags & TESS_BLOCK_KEEP) && block < p->model.n_blocks - 1;
}

static tess_status take_item(void *user, const char *spec, const spec_item *i) {
    tess__plan *p = user;
    uint64_t nth = 0, matched = 0;
    for (int32_t b = 0; b < p->model.n_blocks; b++) {
        int is_meant = i->every ? has_choice(p, b) && nth++ % i->every == 0
                                : !i->pattern[0] || fnmatch(i->pattern, p->model.blocks[b].options.name, 0) == 0;
        if (is_meant)
            p->modes[b] = (uint8_t)i->mode, matched++;
    }
    if (matched || i->every || !i->pattern[0])
        return TESS_OK;
    return tess__fail(TESS_E_INVALID, "TESSERA_ACTIVATIONS is '%.200s': no block is named '%s'; there are %s to %s",
                      spec, i->pattern, p->model.blocks[0].options.name,
                      p->model.blocks[p->model.n_blocks - 1].options.name);
}

tess_status tess__activations_resolve(tess__plan *p) {
    free(p->modes);
    free(p->activations_text);
    p->modes = NULL;
    p->activations_text = NULL;
    p->setup.modes = NULL;
    if (!p->setup.activation_spec || !p->model.n_blocks)
        return TESS_OK;
    p->modes = calloc((size_t)p->model.n_blocks, 1);
    if (!p->modes)
        return tess__fail(TESS_E_NOMEM, "no memory for the modes of %d blocks", p->model.n_blocks);
    p->setup.modes = p->modes;
    return is_auto(p->setup.activation_spec) ? TESS_OK : each_item(p->setup.activation_spec, take_item, p);
}

int tess__activations_are_auto(const tess__plan *p) {
    return p->modes && is_auto(p->setup.activation_spec);
}

/* ---- auto: the least work that fits ------------------------------------------------------------------ */
static double own_work(const tess__plan *p, int32_t block) {
    const tess__block *b = &p->model.blocks[block];
    const tess__scope *s = &p->model.scopes[b->scope];
    double work = b->options.forward_work;
    for (int32_t i = 0; !(b->options.forward_work > 0) && i < s->n_params; i++)
        work += (double)p->model.params[s->params[i]].elems;
    return work;
}

double tess__activations_work(const tess__plan *p, int32_t block, int mode) {
    const tess_block_options *o = &p->model.blocks[block].options;
    if (mode == TESS__ACTIVATIONS_RECOMPUTE)
        return own_work(p, block);
    if (mode != TESS__ACTIVATIONS_SELECTIVE)
        return 0;
    return o->selective_work > 0 ? o->selective_work : own_work(p, block) / 2;
}

static uint64_t moved_of(const tess__plan *p, int32_t block) {
    return tess__offloaded_bytes(&p->model, &p->setup, block, 0) +
           tess__offloaded_bytes(&p->model, &p->setup, block, 1);
}

double tess__activations_moved(const tess__plan *p) {
    double bytes = 0;
    for (int32_t b = 0; b < p->model.n_blocks; b++)
        bytes += (double)moved_of(p, b);
    return bytes;
}

enum {
    MOST_KINDS = 16,
    MOST_TRIED = 4096,
    MOST_APART = 6 /* blocks that may offload: all their choices are MOST_TRIED */
};

typedef struct { /* number of this kind's blocks per mode; the others keep */
    int32_t n[N_MODES];
    int offload_first; /* the first blocks offload, then come those that recompute; else the other way round */
} split;

typedef struct { /* blocks that cost and save the same */
    int32_t example, n, n_splits, step;
    split *splits;
} block_kind;

typedef struct {
    double work, moved;
    uint32_t index; /* mixed radix over the kinds' splits */
} mode_choice;

typedef struct {
    tess__plan *p;
    int may_offload;
    int32_t *kind_of; /* by block; -1: it always keeps */
    block_kind kinds[MOST_KINDS];
    int32_t n_kinds;
    mode_choice *choices;
    uint32_t n_choices;
} mode_search;

static int is_alike(const tess__plan *p, int32_t a, int32_t b) {
    const tess_block_options *x = &p->model.blocks[a].options, *y = &p->model.blocks[b].options;
    const uint64_t one[] = { x->output_bytes,           x->saved_bytes,          x->forward_scratch_bytes,
                             x->backward_scratch_bytes, x->remake_scratch_bytes, x->selective_saved_bytes,
                             x->selective_scratch_bytes };
    const uint64_t two[] = { y->output_bytes,           y->saved_bytes,          y->forward_scratch_bytes,
                             y->backward_scratch_bytes, y->remake_scratch_bytes, y->selective_saved_bytes,
                             y->selective_scratch_bytes };
    for (size_t i = 0; i < sizeof one / sizeof one[0]; i++)
        if (one[i] != two[i])
            return 0;
    return moved_of(p, a) == moved_of(p, b) &&
           tess__activations_work(p, a, TESS__ACTIVATIONS_RECOMPUTE) ==
               tess__activations_work(p, b, TESS__ACTIVATIONS_RECOMPUTE) &&
           tess__activations_work(p, a, TESS__ACTIVATIONS_SELECTIVE) ==
               tess__activations_work(p, b, TESS__ACTIVATIONS_SELECTIVE);
}

/* With offload, a block's position matters even among identical blocks, because a reload overlaps its neighbours. Where
 * blocks are few, each is a kind of its own, so that every assignment is tried. */
static int are_apart(const mode_search *s) {
    int32_t n = 0;
    for (int32_t b = 0; b < s->p->model.n_blocks; b++)
        n += has_choice(s->p, b);
    return s->may_offload && n <= MOST_APART;
}

static void find_kinds(mode_search *s) {
    int apart = are_apart(s);
    if (s->may_offload) /* because blocks near the end would move less than those before them */
        memset(s->p->modes, TESS__ACTIVATIONS_OFFLOAD, (size_t)s->p->model.n_blocks);
    for (int32_t b = 0; b < s->p->model.n_blocks; b++) {
        int32_t k = 0;
        s->kind_of[b] = -1;
        if (!has_choice(s->p, b))
            continue;
        while (k < s->n_kinds && (apart || !is_alike(s->p, s->kinds[k].example, b)))
            k++;
        if (k == MOST_KINDS)
            continue; /* too many kinds: blocks of further kinds keep */
        if (k == s->n_kinds)
            s->kinds[s->n_kinds++] = (block_kind){ .example = b, .step = 1 };
        s->kinds[k].n++;
        s->kind_of[b] = k;
    }
}

static int selects(const mode_search *s, const block_kind *k) {
    return s->p->model.blocks[k->example].options.selective_saved_bytes != 0;
}

/* 0, step, 2 step, …, and `most` itself; above it there is none. */
static int32_t next_count(int32_t i, int32_t step, int32_t most) {
    return i == most ? most + 1 : i + step < most ? i + step : most;
}

static int32_t put_split(split *out, int32_t at, int32_t made, int32_t selected, int32_t offloaded) {
    for (int first = 0; first < (made && offloaded ? 2 : 1); first++, at++)
        if (out)
            out[at] = (split){ { [TESS__ACTIVATIONS_RECOMPUTE] = made,
                                 [TESS__ACTIVATIONS_SELECTIVE] = selected,
                                 [TESS__ACTIVATIONS_OFFLOAD] = offloaded },
                               first };
    return at;
}

/* Every split of a block_kind; `out` null counts them. */
static int32_t list_splits(const mode_search *s, const block_kind *k, split *out) {
    int32_t n = 0;
    for (int32_t made = 0; made <= k->n; made = next_count(made, k->step, k->n)) {
        int32_t sent = s->may_offload ? k->n - made : 0;
        for (int32_t offloaded = 0; offloaded <= sent; offloaded = next_count(offloaded, k->step, sent)) {
            int32_t most = selects(s, k) ? k->n - made - offloaded : 0;
            for (int32_t selected = 0; selected <= most; selected = next_count(selected, k->step, most))
                n = put_split(out, n, made, selected, offloaded);
        }
    }
    return n;
}

static uint64_t count_splits(mode_search *s) {
    uint64_t all = 1;
    for (int32_t i = 0; i < s->n_kinds; i++) {
        s->kinds[i].n_splits = list_splits(s, &s->kinds[i], NULL);
        all = all > MOST_TRIED ? all : all * (uint64_t)s->kinds[i].n_splits;
    }
    return all;
}

/* Makes the splits, in coarser steps when there are too many blocks to try every number of them. */
static tess_status make_splits(mode_search *s) {
    uint64_t all;
    while ((all = count_splits(s)) > MOST_TRIED) {
        int32_t widest = 0;
        for (int32_t i = 1; i < s->n_kinds; i++)
            if (s->kinds[i].n_splits > s->kinds[widest].n_splits)
                widest = i;
        s->kinds[widest].step++;
    }
    s->n_choices = (uint32_t)all;
    for (int32_t i = 0; i < s->n_kinds; i++) {
        block_kind *k = &s->kinds[i];
        k->splits = calloc((size_t)k->n_splits, sizeof *k->splits);
        if (!k->splits)
            return tess__fail(TESS_E_NOMEM, "no memory to choose activations");
        list_splits(s, k, k->splits);
    }
    return TESS_OK;
}

/* Takes the mode of a kind's next block out of what is left of the kind's split. */
static uint8_t take_mode(split *left) {
    static const uint8_t orders[2][N_MODES - 1] = {
        { TESS__ACTIVATIONS_RECOMPUTE, TESS__ACTIVATIONS_OFFLOAD, TESS__ACTIVATIONS_SELECTIVE },
        { TESS__ACTIVATIONS_OFFLOAD, TESS__ACTIVATIONS_RECOMPUTE, TESS__ACTIVATIONS_SELECTIVE },
    };
    for (int i = 0; i < N_MODES - 1; i++) {
        uint8_t mode = orders[left->offload_first][i];
        if (left->n[mode]-- > 0)
            return mode;
    }
    return TESS__ACTIVATIONS_KEEP;
}

static void apply_choice(const mode_search *s, uint32_t index) {
    split left[MOST_KINDS];
    for (int32_t i = 0; i < s->n_kinds; i++) {
        left[i] = s->kinds[i].splits[index % (uint32_t)s->kinds[i].n_splits];
        index /= (uint32_t)s->kinds[i].n_splits;
    }
    for (int32_t b = 0; b < s->p->model.n_blocks; b++)
        s->p->modes[b] = s->kind_of[b] < 0 ? TESS__ACTIVATIONS_KEEP : take_mode(&left[s->kind_of[b]]);
}

static double work_now(const tess__plan *p) {
    double work = 0;
    for (int32_t b = 0; b < p->model.n_blocks; b++)
        work += tess__activations_work(p, b, p->modes[b]);
    return work;
}

static int cheaper(const void *a, const void *b) {
    const mode_choice *x = a, *y = b;
    if (x->work != y->work)
        return x->work < y->work ? -1 : 1;
    if (x->moved != y->moved)
        return x->moved < y->moved ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static tess_status list_choices(mode_search *s) {
    s->kind_of = calloc((size_t)s->p->model.n_blocks, sizeof *s->kind_of);
    if (!s->kind_of)
        return tess__fail(TESS_E_NOMEM, "no memory to choose activations");
    find_kinds(s);
    TRY(make_splits(s));
    s->choices = calloc(s->n_choices, sizeof *s->choices);
    if (!s->choices)
        return tess__fail(TESS_E_NOMEM, "no memory to choose activations");
    for (uint32_t i = 0; i < s->n_choices; i++) {
        apply_choice(s, i);
        s->choices[i] = (mode_choice){ work_now(s->p), tess__activations_moved(s->p), i };
    }
    qsort(s->choices, s->n_choices, sizeof *s->choices, cheaper);
    return TESS_OK;
}

/* Writes the choice as a value of the option. */
static tess_status write_text(tess__plan *p) {
    size_t bytes = 0;
    int any = 0;
    FILE *f = open_memstream(&p->activations_text, &bytes);
    if (!f)
        return tess__fail(TESS_E_NOMEM, "no memory to say what was chosen");
    for (int32_t b = 0; b < p->model.n_blocks; b++)
        if (p->modes[b] != TESS__ACTIVATIONS_KEEP)
            fprintf(f, "%s%s:%s", any++ ? "," : "", modes[p->modes[b]], p->model.blocks[b].options.name);
    if (!any)
        fputs("keep", f);
    return fclose(f) == 0 ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory to say what was chosen");
}

static int fits(const tess__plan *p, uint64_t device_budget, const uint64_t bytes[3]) {
    uint64_t host_budget = p->setup.env.host_budget_bytes;
    return bytes[TESS_DOMAIN_DEVICE] <= device_budget && (!host_budget || bytes[TESS_DOMAIN_HOST] <= host_budget);
}

static tess_status try_all(mode_search *s, uint64_t budget, tess__compile_fn compile) {
    uint64_t least = UINT64_MAX, bytes[3];
    uint32_t best = 0;
    for (uint32_t i = 0; i < s->n_choices; i++) {
        apply_choice(s, s->choices[i].index);
        TRY(compile(s->p, bytes));
        if (fits(s->p, budget, bytes))
            return write_text(s->p);
        if (bytes[TESS_DOMAIN_DEVICE] < least)
            least = bytes[TESS_DOMAIN_DEVICE], best = s->choices[i].index;
    }
    apply_choice(s, best);
    TRY(compile(s->p, bytes));
    TRY(write_text(s->p));
    return tess__fail(TESS_E_BUDGET,
                      "TESSERA_ACTIVATIONS=%s: no choice of %u fits %llu bytes of device memory; the least takes %llu",
                      s->p->setup.activation_spec, s->n_choices, (unsigned long long)budget, (unsigned long long)least);
}

tess_status tess__activations_choose(tess__plan *p, tess__compile_fn compile) {
    mode_search s = { .p = p };
    uint64_t budget = p->setup.env.device_budget_bytes;
    TRY(read_auto(p->setup.activation_spec, &budget, &s.may_offload));
    if (!budget)
        return tess__fail(TESS_E_INVALID,
                          "TESSERA_ACTIVATIONS is 'auto': expected auto:BYTES, or TESSERA_DEVICE_MEMORY "
                          "beside it");
    tess_status status = list_choices(&s);
    if (!status)
        status = try_all(&s, budget, compile);
    for (int32_t i = 0; i < s.n_kinds; i++)
        free(s.kinds[i].splits);
    free(s.choices);
    free(s.kind_of);
    return status;
}

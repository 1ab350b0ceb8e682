/* SPDX-License-Identifier: BSD-3-Clause */
#include "advise.h"

#include "plan/activations.h"

#include "plugin/auto_comm.h"
#include "base/log.h"
#include "base/options.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- changes ----------------------------------------------------------------------------------- */

const char *tess__change_value(const tess__option_set *c, const char *key) {
    for (int32_t i = 0; i < c->n; i++)
        if (strcmp(c->set[i].key, key) == 0)
            return c->set[i].value;
    return NULL;
}

void tess__change_text(const tess__option_set *c, char *out, size_t n) {
    char variable[80];
    size_t at = 0;
    out[0] = 0;
    for (int32_t i = 0; i < c->n && at < n; i++) {
        const char *before = i ? " and " : "", *value = c->set[i].value;
        if (strcmp(c->set[i].key, "ranks") == 0)
            at += (size_t)snprintf(out + at, n - at, "%s-n %s", before, value);
        else
            at += (size_t)snprintf(out + at, n - at, "%s%s=%s", before, tess__option_variable(c->set[i].key, variable),
                                   value);
    }
}

static void add_setting(tess__option_set *c, const char *key, const char *value, int32_t cost) {
    c->set[c->n].key = key;
    snprintf(c->set[c->n].value, sizeof c->set[c->n].value, "%s", value);
    c->n++;
    c->cost += cost;
}

static int contains(const tess__option_set *c, const tess__option_set *part) {
    for (int32_t i = 0; i < part->n; i++) {
        const char *value = tess__change_value(c, part->set[i].key);
        if (!value || strcmp(value, part->set[i].value) != 0)
            return 0;
    }
    return 1;
}

/* ---- planning one with what was declared -------------------------------------------------------- */

typedef struct { /* the place from which changes are tried */
    const tess__plan *plan;
    const tess__selection *selection;
} origin;

typedef struct { /* an alternative, with the plugins that it has of its own */
    tess__plan plan;
    const tess__selection *selection;
    tess__plugin *opened[TESS__N_KINDS];
} attempt;

static tess_status take_plugin(attempt *a, uint32_t kind, const char *name) {
    tess__setup *s = &a->plan.setup;
    if (!name)
        return TESS_OK;
    if (!a->opened[kind])
        TRY(tess__plugin_open(kind, name, &a->selection->host, &a->opened[kind]));
    const tess__plugin *p = a->opened[kind];
    if (kind == TESS_KIND_COMM)
        s->comm = p->ops, s->comm_ctx = p->ctx;
    else if (kind == TESS_KIND_OFFLOAD)
        s->offload = p->ops, s->offload_ctx = p->ctx;
    else if (kind == TESS_KIND_PRECISION)
        s->precision = p->ops, s->precision_ctx = p->ctx;
    else
        a->plan.wrap = (tess__plan_wrap){ p->ops, p->ctx, name };
    return TESS_OK;
}

/* Takes another number of ranks, among which comm=auto may mean another plugin. */
static tess_status take_ranks(attempt *a, const char *ranks) {
    tess__setup *s = &a->plan.setup;
    uint64_t accum = (uint64_t)s->accum;
    if (!ranks)
        return TESS_OK;
    int32_t before = s->nranks;
    s->nranks = (int32_t)strtol(ranks, NULL, 10);
    s->env.nranks = s->nranks;
    if (s->env.ranks_per_host == before)
        s->env.ranks_per_host = s->nranks;
    if (s->microbatches && !tess__divide_microbatches((uint64_t)s->microbatches, (uint64_t)s->nranks, s->deterministic,
                                                      &s->sync_each, &accum))
        return tess__fail(TESS_E_INVALID, "%d ranks do not divide %d microbatches", s->nranks, s->microbatches);
    s->accum = (int32_t)accum;
    if (!a->selection->comm_picked)
        return before > 1
                   ? TESS_OK
                   : tess__fail(TESS_E_UNSUPPORTED, "comm %s is for one rank", a->selection->text[TESS_KIND_COMM]);
    TRY(tess__comm_choose(&a->selection->host, &s->env, &a->opened[TESS_KIND_COMM]));
    return take_plugin(a, TESS_KIND_COMM, a->opened[TESS_KIND_COMM]->name);
}

static tess_status apply_set(attempt *a, const tess__option_set *c) {
    tess__setup *s = &a->plan.setup;
    const char *strategy = tess__change_value(c, "strategy"), *activations = tess__change_value(c, "activations");
    TRY(take_ranks(a, tess__change_value(c, "ranks")));
    TRY(take_plugin(a, TESS_KIND_OFFLOAD, tess__change_value(c, "offload")));
    TRY(take_plugin(a, TESS_KIND_PRECISION, tess__change_value(c, "precision")));
    TRY(take_plugin(a, TESS_KIND_WRAP, tess__change_value(c, "wrap")));
    TRY(tess__setup_strategy(s, strategy ? strategy : s->strategy));
    if (activations && !tess__activations_uniform(activations, &s->activations))
        s->activation_spec = activations;
    if (tess__change_value(c, "sync"))
        s->sync_each = 1;
    if (tess__change_value(c, "prefetch"))
        s->prefetch = 0;
    if (tess__change_value(c, "low-copy"))
        s->low_copy = 0;
    return TESS_OK;
}

static tess_status plan_again(void *user, const tess__option_set *c, uint64_t bytes[TESS__DOMAINS], double *seconds) {
    const origin *from = user;
    attempt *a = calloc(1, sizeof *a);
    (void)seconds;
    if (!a || tess__plan_try(from->plan, &a->plan)) {
        free(a);
        return tess__fail(TESS_E_NOMEM, "no memory to plan an alternative");
    }
    a->selection = from->selection;
    tess_status s = apply_set(a, c);
    if (!s)
        s = tess__plan_remake(&a->plan);
    if (s == TESS_E_BUDGET) /* the caller looks at the bytes */
        s = TESS_OK;
    for (uint32_t domain = 1; !s && domain < TESS__DOMAINS; domain++)
        bytes[domain] = tess__planned_bytes(&a->plan, domain);
    tess__plan_drop(&a->plan);
    for (int kind = 1; kind < TESS__N_KINDS; kind++)
        tess__plugin_close(a->opened[kind]);
    free(a);
    return s;
}

/* ---- the search -------------------------------------------------------------------------------- */

/* Costs order the changes. A change costs more than all cheaper changes of its kind together, so that one change is
 * tried before two. docs/advice.md */
enum {
    COST_LOW_COPY = 1,
    COST_PRECISION = 1,
    COST_WRAP = 2,
    COST_SYNC = 3,
    COST_STRATEGY = 4,
    COST_PREFETCH = 5,
    COST_SELECTIVE = 6,
    COST_CHOSEN_ACTIVATIONS = 7, /* auto: the least of what the two others do */
    COST_RECOMPUTE = 8,
    COST_OFFLOAD_ACTIVATIONS = 12
};
enum { COST_OFFLOAD = 16, COST_RANKS = 64 };
enum { MOST_CHOICES = 12, MOST_FOUND = 16, MOST_PLANNED = 96, MOST_DOUBLINGS = 6, MOST_RANKS = 1 << 20 };

typedef struct {
    const tess__plan *plan;
    const tess__selection *selection;
    tess__replan_fn fn;
    void *user;
    uint64_t need[TESS__DOMAINS], budget[TESS__DOMAINS];
    tess__option_set choices[MOST_CHOICES]; /* that help, each by itself */
    tess__remedy found[MOST_FOUND];         /* what fits; none is part of another */
    int32_t n_choices, n_found;
    tess__advice *out;
} advice_search;

static int fits(const advice_search *x, const uint64_t bytes[TESS__DOMAINS]) {
    for (int d = 1; d < TESS__DOMAINS; d++)
        if (x->budget[d] && bytes[d] > x->budget[d])
            return 0;
    return 1;
}

/* Counts the bytes that a plan is over, in the domains that have a budget. */
static uint64_t excess_bytes(const advice_search *x, const uint64_t bytes[TESS__DOMAINS]) {
    uint64_t over = 0;
    for (int d = 1; d < TESS__DOMAINS; d++)
        if (x->budget[d] && bytes[d] > x->budget[d])
            over += bytes[d] - x->budget[d];
    return over;
}

/* Tells whether a plan takes less of a domain that is short. */
static int helps(const advice_search *x, const uint64_t bytes[TESS__DOMAINS]) {
    for (int d = 1; d < TESS__DOMAINS; d++)
        if (x->budget[d] && x->need[d] > x->budget[d] && bytes[d] < x->need[d])
            return 1;
    return 0;
}

static int is_known(const advice_search *x, const tess__option_set *c) {
    for (int32_t i = 0; i < x->n_found; i++)
        if (contains(c, &x->found[i].change))
            return 1;
    return 0;
}

/* Plans with `c` and keeps it when it fits. 0: the change cannot be had. */
static int try_set(advice_search *x, const tess__option_set *c, tess__remedy *r) {
    *r = (tess__remedy){ .change = *c, .seconds = -1 };
    if (x->out->n_planned == MOST_PLANNED)
        return 0;
    x->out->n_planned++;
    if (x->fn(x->user, c, r->bytes, &r->seconds))
        return 0;
    if (fits(x, r->bytes)) {
        if (x->n_found < MOST_FOUND)
            x->found[x->n_found++] = *r;
    } else if (helps(x, r->bytes) &&
               (!x->out->least.change.n || excess_bytes(x, r->bytes) < excess_bytes(x, x->out->least.bytes))) {
        x->out->least = *r;
    }
    return 1;
}

static void add_choice(advice_search *x, const tess__option_set *c) {
    if (x->n_choices < MOST_CHOICES)
        x->choices[x->n_choices++] = *c;
}

/* Tries a change. One that helps becomes a choice for changes of several parts. */
static void consider(advice_search *x, const tess__option_set *c) {
    tess__remedy r;
    if (!is_known(x, c) && try_set(x, c, &r) && helps(x, r.bytes))
        add_choice(x, c);
}

static void consider_change(advice_search *x, const char *key, const char *value, int32_t cost) {
    tess__option_set c = { .n = 0 };
    add_setting(&c, key, value, cost);
    consider(x, &c);
}

/* Where states rest in a store that the user chose, the rest can go to host memory. */
static void consider_both(advice_search *x) {
    const char *now = x->selection->text[TESS_KIND_OFFLOAD];
    char value[sizeof x->choices->set->value];
    if (x->need[TESS_DOMAIN_DISK] && !strchr(now, '+') && strlen(now) + sizeof "+cpu" <= sizeof value) {
        snprintf(value, sizeof value, "%.*s+cpu", (int)(sizeof value - sizeof "+cpu"), now);
        consider_change(x, "offload", value, COST_OFFLOAD);
    }
}

/* Tries another precision together with the bf16 copies that were asked for. Without them it may need less, while
 * ending the copies alone changes nothing yet. */
static void consider_precision(advice_search *x, const char *name) {
    tess__option_set c = { .n = 0 };
    add_setting(&c, "precision", name, COST_PRECISION);
    consider(x, &c);
    if (!x->plan->setup.low_copy)
        return;
    add_setting(&c, "low-copy", "0", COST_LOW_COPY);
    consider(x, &c);
}

/* Tells whether the precision changes how a run goes, not only what it takes. */
static int scales_losses(const advice_search *x, const char *name) {
    tess__plugin *p = NULL;
    tess_loss_scaling how = { .struct_size = sizeof how };
    tess_error error = { .struct_size = sizeof error };
    if (tess__plugin_open(TESS_KIND_PRECISION, name, &x->selection->host, &p))
        return 0; /* nor can it be tried */
    const tess_precision_ops *ops = p->ops;
    int scales =
        TESS_CAN(tess_precision_ops, ops, loss_scaling) && !ops->loss_scaling(p->ctx, &how, &error) && how.init != 0;
    tess__plugin_close(p);
    return scales;
}

static tess_status consider_plugin(void *user, const tess__plugin_row *row, tess__plugin **opened) {
    advice_search *x = user;
    (void)opened; /* each attempt opens its own */
    const char *now = x->selection->text[row->kind];
    if (!row->usable || strcmp(row->name, "none") == 0 || strcmp(row->name, now) == 0)
        return TESS_OK;
    /* Never replaces a plugin that the user chose, and offers one only where there was none. */
    if (row->kind == TESS_KIND_OFFLOAD && strcmp(now, "none") == 0)
        consider_change(x, "offload", row->name, COST_OFFLOAD);
    if (row->kind == TESS_KIND_PRECISION && strcmp(now, "fp32") == 0 && !scales_losses(x, row->name))
        consider_precision(x, row->name);
    return TESS_OK;
}

static uint64_t largest_unit(const tess__plan *p) {
    uint64_t most = 0;
    for (int32_t u = 0; u < p->layout.n_units; u++) {
        uint64_t elems = 0;
        for (int32_t g = 0; g < p->layout.units[u].n_groups; g++)
            elems += p->layout.groups[p->layout.units[u].first_group + g].used_elems;
        most = elems > most ? elems : most;
    }
    return most;
}

static uint64_t sum_bytes(const uint64_t bytes[TESS__DOMAINS]) {
    return bytes[TESS_DOMAIN_DEVICE] + bytes[TESS_DOMAIN_HOST];
}

/* Rounds to two digits, which say enough: 2517 → 2500. */
static uint64_t round_bytes(uint64_t n) {
    uint64_t unit = 1;
    while (n / unit > 99)
        unit *= 10;
    return n / unit * unit;
}

/* Tries smaller units: the program's scopes, or modules of a half, a quarter, an eighth of what the largest holds.
 * It ends with the first that fits. Else the largest units within a hundredth of the best stay a choice. */
static void consider_wraps(advice_search *x) {
    static const uint64_t parts[] = { 1, 2, 4, 8 };
    tess__remedy tried[4];
    int32_t n = 0, found = x->n_found, choice = -1;
    uint64_t best = UINT64_MAX, largest = largest_unit(x->plan);
    for (int i = 0; i < 4 && x->n_found == found && largest >= 16; i++) {
        tess__option_set c = { .n = 0 };
        char value[40] = "scopes";
        if (i)
            snprintf(value, sizeof value, "size:%llu", (unsigned long long)round_bytes(largest / parts[i]));
        if (strcmp(x->selection->text[TESS_KIND_WRAP], value) == 0)
            continue;
        add_setting(&c, "wrap", value, COST_WRAP);
        if (!try_set(x, &c, &tried[n]) || !helps(x, tried[n].bytes))
            continue;
        best = sum_bytes(tried[n].bytes) < best ? sum_bytes(tried[n].bytes) : best;
        n++;
    }
    while (n > 0 && ++choice < n)
        if (sum_bytes(tried[choice].bytes) <= best + best / 100)
            break;
    if (n > 0)
        add_choice(x, &tried[choice].change);
}

/* Tries more ranks, together with the changes in `with`. */
static void consider_ranks(advice_search *x, const tess__option_set *with) {
    int64_t ranks = x->plan->setup.nranks;
    int32_t before = x->n_found;
    for (int i = 0; i < MOST_DOUBLINGS && x->n_found == before && 2 * ranks <= MOST_RANKS; i++) {
        tess__option_set c = *with;
        tess__remedy r;
        char value[40];
        ranks *= 2;
        snprintf(value, sizeof value, "%lld", (long long)ranks);
        add_setting(&c, "ranks", value, COST_RANKS);
        if (!try_set(x, &c, &r) || !helps(x, r.bytes))
            return;
    }
}

/* Tries what auto chooses for the budget, which recomputes some blocks only where that is enough. */
static void consider_selective(advice_search *x) {
    char value[40];
    int any = 0;
    for (int32_t i = 0; i < x->plan->model.n_blocks; i++)
        any |= x->plan->model.blocks[i].options.selective_saved_bytes != 0;
    if (any)
        consider_change(x, "activations", "selective", COST_SELECTIVE);
    if (!x->budget[TESS_DOMAIN_DEVICE])
        return;
    snprintf(value, sizeof value, "auto:%llu", (unsigned long long)x->budget[TESS_DOMAIN_DEVICE]);
    tess__option_set c = { .n = 0 };
    tess__remedy r;
    add_setting(&c, "activations", value, COST_CHOSEN_ACTIVATIONS);
    try_set(x, &c, &r);
}

static int by_cost(const void *a, const void *b) {
    const tess__option_set *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost < y->cost ? -1 : 1;
    return x->n - y->n;
}

/* Adds the changes of `one`. 0: a part of it is set already. */
static int join(tess__option_set *c, const tess__option_set *one) {
    for (int32_t i = 0; i < one->n; i++)
        if (tess__change_value(c, one->set[i].key))
            return 0;
    if (c->n + one->n > TESS__MOST_SETTINGS)
        return 0;
    for (int32_t i = 0; i < one->n; i++)
        add_setting(c, one->set[i].key, one->set[i].value, 0);
    c->cost += one->cost;
    return 1;
}

/* Tries all sets of two and more choices that give each option one value, the cheapest first. */
static void consider_sets(advice_search *x) {
    enum { MOST_SETS = 512 };
    tess__option_set *sets = malloc(MOST_SETS * sizeof *sets);
    tess__remedy r;
    int32_t n = 0;
    for (uint32_t mask = 1; sets && n < MOST_SETS && mask < 1u << x->n_choices; mask++) {
        tess__option_set c = { .n = 0 };
        int ok = (mask & (mask - 1)) != 0;
        for (int32_t i = 0; i < x->n_choices && ok; i++)
            ok = !(mask >> i & 1) || join(&c, &x->choices[i]);
        if (ok)
            sets[n++] = c;
    }
    if (sets)
        qsort(sets, (size_t)n, sizeof *sets, by_cost);
    for (int32_t i = 0; i < n && x->n_found < TESS__MOST_REMEDIES; i++)
        if (!is_known(x, &sets[i]))
            try_set(x, &sets[i], &r);
    free(sets);
}

static int by_time(const void *a, const void *b) {
    const tess__remedy *x = a, *y = b;
    if ((x->seconds < 0) != (y->seconds < 0))
        return x->seconds < 0 ? 1 : -1;
    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? -1 : 1;
    return by_cost(&x->change, &y->change);
}

static void run_search(advice_search *x) {
    const tess__setup *s = &x->plan->setup;
    tess__plugin_list(TESS_KIND_OFFLOAD, NULL, consider_plugin, x);
    consider_both(x);
    tess__plugin_list(TESS_KIND_PRECISION, NULL, consider_plugin, x);
    consider_wraps(x);
    if (s->low_copy)
        consider_change(x, "low-copy", "0", COST_LOW_COPY);
    if (s->accum > 1 && !s->sync_each)
        consider_change(x, "sync", "each", COST_SYNC);
    if (s->keep_forward || s->shard_ranks < s->nranks)
        consider_change(x, "strategy", "full", COST_STRATEGY);
    if (s->prefetch && s->prefetch_fixed) /* else it has been tried */
        consider_change(x, "prefetch", "0", COST_PREFETCH);
    if (x->plan->model.n_blocks && s->activations == TESS__ACTIVATIONS_KEEP && !s->activation_spec) {
        consider_selective(x);
        consider_change(x, "activations", "recompute", COST_RECOMPUTE);
        consider_change(x, "activations", "offload", COST_OFFLOAD_ACTIVATIONS);
    }
    consider_sets(x);
    tess__option_set most = x->out->least.change;
    /* Memory that the program took may depend on the number of ranks: only the program itself can say. */
    if (x->fn == plan_again && x->plan->n_user)
        most.n = 0;
    else
        consider_ranks(x, &(tess__option_set){ .n = 0 });
    if (!x->n_found && most.n && most.n < TESS__MOST_SETTINGS)
        consider_ranks(x, &most);
    qsort(x->found, (size_t)x->n_found, sizeof *x->found, by_time);
    x->out->n = x->n_found < TESS__MOST_REMEDIES ? x->n_found : TESS__MOST_REMEDIES;
    memcpy(x->out->list, x->found, (size_t)x->out->n * sizeof *x->found);
}

/* Set while advice is made, because an alternative that does not fit either gets no advice of its own. */
static _Thread_local int busy;

void tess__advise(const tess__plan *p, const tess__selection *selection, tess__replan_fn fn, void *user,
                  tess__advice *out) {
    origin from = { p, selection };
    *out = (tess__advice){ .n = 0 };
    if (busy)
        return;
    advice_search x = { .plan = p,
                        .selection = selection,
                        .fn = fn ? fn : plan_again,
                        .user = fn ? user : &from,
                        .budget = { 0, p->setup.env.device_budget_bytes, p->setup.env.host_budget_bytes,
                                    p->setup.disk_budget_bytes },
                        .out = out };
    for (uint32_t d = 1; d < TESS__DOMAINS; d++)
        x.need[d] = tess__planned_bytes(p, d);
    int32_t least = tess__log_set_least(TESS_LOG_ERROR);
    busy = 1;
    run_search(&x);
    busy = 0;
    tess__log_set_least(least);
}

/* ---- the message ------------------------------------------------------------------------------- */

static int print_amount(uint64_t bytes, char *out, size_t n) {
    double kib = (double)bytes / 1024;
    if (kib < 1024)
        return snprintf(out, n, "%.1f KiB", kib);
    return kib < 10240 * 1024 ? snprintf(out, n, "%.1f MiB", kib / 1024) : snprintf(out, n, "%.1f GiB", kib / 1048576);
}

static void bytes_text(const uint64_t bytes[TESS__DOMAINS], char *out, size_t n) {
    static const char *const name[TESS__DOMAINS] = { "", "", " of host memory", " of disk" };
    int at = print_amount(bytes[TESS_DOMAIN_DEVICE], out, n);
    for (int d = TESS_DOMAIN_HOST; d < TESS__DOMAINS; d++) {
        if (!bytes[d])
            continue;
        at += snprintf(out + at, n - (size_t)at, " and ");
        at += print_amount(bytes[d], out + at, n - (size_t)at);
        at += snprintf(out + at, n - (size_t)at, "%s", name[d]);
    }
}

void tess__advice_text(const tess__advice *a, const char *failure, char *out, size_t n) {
    char change[400], bytes[96], one[520];
    size_t at = (size_t)snprintf(out, n, "%s", failure);
    for (int32_t i = 0; i < a->n && at < n; i++) {
        tess__change_text(&a->list[i].change, change, sizeof change);
        bytes_text(a->list[i].bytes, bytes, sizeof bytes);
        size_t length = (size_t)snprintf(one, sizeof one, "%s With %s: %s.", i ? "" : ".", change, bytes);
        if (at + length >= n)
            return; /* whole sentences only */
        memcpy(out + at, one, length + 1);
        at += length;
    }
    if (a->n || !a->n_planned || at >= n)
        return;
    tess__change_text(&a->least.change, change, sizeof change);
    bytes_text(a->least.bytes, bytes, sizeof bytes);
    if (a->least.change.n)
        snprintf(out + at, n - at, ". Nothing fits of %d alternatives; with %s: %s.", (int)a->n_planned, change, bytes);
    else
        snprintf(out + at, n - at, ". None of %d alternatives needs less.", (int)a->n_planned);
}

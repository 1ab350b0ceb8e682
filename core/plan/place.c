/* SPDX-License-Identifier: BSD-3-Clause */
#include "place.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* Placement is two-dimensional packing in which time is given and the offset is sought. The largest buffer comes
 * first, each at the lowest offset that is free throughout its life. This is within 1 % of the lower bound on most
 * programs we make. On the others more orders are tried, the same on every rank. */

static int larger_first(const void *a, const void *b) {
    const tess__buffer *x = *(tess__buffer *const *)a, *y = *(tess__buffer *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->first < y->first ? -1 : x->first > y->first; /* an instruction books one buffer */
}

static uint64_t bytes_times_life(const tess__buffer *b) {
    return b->bytes * (uint64_t)(b->last - b->first + 1);
}

static int larger_longer_first(const void *a, const void *b) {
    uint64_t x = bytes_times_life(*(tess__buffer *const *)a), y = bytes_times_life(*(tess__buffer *const *)b);
    return x != y ? (x < y ? 1 : -1) : larger_first(a, b);
}

/* The next three order buffers that are alive when the arena is fullest. Placed first and by their lives, they leave
 * no gap there, and the others fit around them. */
static int earlier_first(const void *a, const void *b) {
    const tess__buffer *x = *(tess__buffer *const *)a, *y = *(tess__buffer *const *)b;
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : larger_first(a, b);
}

static int later_gone_first(const void *a, const void *b) {
    const tess__buffer *x = *(tess__buffer *const *)a, *y = *(tess__buffer *const *)b;
    return x->last != y->last ? (x->last > y->last ? -1 : 1) : larger_first(a, b);
}

static int longer_first(const void *a, const void *b) {
    const tess__buffer *x = *(tess__buffer *const *)a, *y = *(tess__buffer *const *)b;
    int32_t one = x->last - x->first, two = y->last - y->first;
    return one != two ? (one > two ? -1 : 1) : larger_first(a, b);
}

typedef struct {
    int (*at_peak)(const void *, const void *); /* these come first; null: no buffer does */
    int (*others)(const void *, const void *);
} placing_order;
static const placing_order orders[] = {
    { NULL, larger_first },         { NULL, larger_longer_first },      { earlier_first, larger_first },
    { longer_first, larger_first }, { later_gone_first, larger_first },
};

static int by_offset(const void *a, const void *b) {
    const tess__buffer *x = *(tess__buffer *const *)a, *y = *(tess__buffer *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Buffers that have been placed. Short lives, which most are, are also listed by the stretches of the program that they
 * touch, so that few need to be looked at for another short one. */
enum { STRETCH = 64 /* instructions */, SHORT = 8 /* stretches at most */ };
typedef struct {
    tess__buffer *buffer;
    int32_t next;
} entry;
typedef struct {
    entry *entries;
    int32_t *heads; /* by stretch: the first entry, or -1 */
    tess__buffer **all, **lasting, **live;
    int32_t n_entries, n_all, n_lasting, n_heads; /* live is scratch of lowest_free */
    uint64_t *best_offsets;                       /* of the orders tried so far, by buffer */
} placed_list;

static int is_short(const tess__buffer *b) {
    return b->last / STRETCH - b->first / STRETCH < SHORT;
}

static void remember_buffer(placed_list *list, tess__buffer *b) {
    list->all[list->n_all++] = b;
    if (!is_short(b)) {
        list->lasting[list->n_lasting++] = b;
        return;
    }
    for (int32_t i = b->first / STRETCH; i <= b->last / STRETCH; i++) {
        list->entries[list->n_entries] = (entry){ b, list->heads[i] };
        list->heads[i] = list->n_entries++;
    }
}

static int live_at_once(const tess__buffer *a, const tess__buffer *b) {
    return a->domain == b->domain && a->first <= b->last && b->first <= a->last;
}

/* Finds the placed buffers that live beside `b`. A short one is met in each stretch it touches and counted in the
 * first. */
static int32_t find_live(const placed_list *list, const tess__buffer *b) {
    tess__buffer **plain = is_short(b) ? list->lasting : list->all;
    int32_t n_plain = is_short(b) ? list->n_lasting : list->n_all, n = 0;
    for (int32_t i = 0; i < n_plain; i++)
        if (live_at_once(plain[i], b))
            list->live[n++] = plain[i];
    for (int32_t i = b->first / STRETCH; is_short(b) && i <= b->last / STRETCH; i++)
        for (int32_t k = list->heads[i]; k >= 0; k = list->entries[k].next) {
            tess__buffer *other = list->entries[k].buffer;
            int32_t begin = other->first > b->first ? other->first : b->first;
            if (begin / STRETCH == i && live_at_once(other, b))
                list->live[n++] = other;
        }
    return n;
}

/* Finds the lowest offset for `b` beside what has been placed. */
static uint64_t lowest_free(const placed_list *list, const tess__buffer *b, uint64_t align) {
    int32_t n_live = find_live(list, b);
    qsort(list->live, (size_t)n_live, sizeof(tess__buffer *), by_offset);
    uint64_t at = 0;
    for (int32_t i = 0; i < n_live; i++) {
        if (list->live[i]->offset >= at + b->bytes)
            break;
        uint64_t end = tess__round_up(list->live[i]->offset + list->live[i]->bytes, align);
        if (end > at)
            at = end;
    }
    return at;
}

/* Walks the program once, adding and taking away; notes where each domain is fullest. */
static void find_peaks(tess__program *p, const tess__buffer *resident, int32_t n_resident) {
    uint64_t now[TESS__DOMAINS][16] = { { 0 } }, total[TESS__DOMAINS] = { 0 };
    for (int32_t i = 0; i < n_resident; i++) {
        now[resident[i].domain][resident[i].category] += resident[i].bytes;
        total[resident[i].domain] += resident[i].bytes;
    }
    memset(p->live_peak_bytes, 0, sizeof p->live_peak_bytes);
    for (int32_t i = -1; i < p->n_instrs; i++) {
        if (i >= 0 && (p->instrs[i].op == TESS__ALLOC || p->instrs[i].op == TESS__FREE)) {
            const tess__buffer *b = &p->buffers[p->instrs[i].buffer];
            uint64_t change = p->instrs[i].op == TESS__ALLOC ? b->bytes : 0 - b->bytes;
            now[b->domain][b->category] += change;
            total[b->domain] += change;
        }
        for (int32_t d = 1; d < TESS__DOMAINS; d++)
            if (i < 0 || total[d] > p->live_peak_bytes[d]) {
                p->live_peak_bytes[d] = total[d];
                p->peak_instr[d] = i < 0 ? 0 : i;
                memcpy(p->category_bytes[d], now[d], sizeof now[d]);
            }
    }
}

/* Lists gradients that lie in the step arena throughout the program. */
static void set_lent(const tess__program *p, tess__program *lent, placed_list *list) {
    for (int32_t i = 0; i < lent->n_buffers; i++)
        if (lent->buffers[i].arena == TESS__STEP) {
            lent->buffers[i].first = 0;
            lent->buffers[i].last = p->n_instrs;
            remember_buffer(list, &lent->buffers[i]);
        }
}

static void forget_all(placed_list *list) {
    list->n_entries = list->n_all = list->n_lasting = 0;
    for (int32_t i = 0; i < list->n_heads; i++)
        list->heads[i] = -1;
}

typedef struct {
    tess__program *p, *lent;
    tess__buffer **order; /* the STEP buffers */
    int32_t n;
    uint64_t align[TESS__DOMAINS]; /* by domain, as the next ones: step arenas are of device and host */
    uint64_t most[TESS__DOMAINS], best[TESS__DOMAINS];
    int32_t fullest[TESS__DOMAINS]; /* the instruction at which `most` is alive */
    placed_list list;
} placing;

/* Finds the most of the step arenas that is alive at once, and where. No placement takes less. */
static void find_most_alive(placing *x) {
    uint64_t now[TESS__DOMAINS] = { 0 };
    for (int32_t i = 0; i < x->lent->n_buffers; i++)
        now[x->lent->buffers[i].domain] += x->lent->buffers[i].arena == TESS__STEP ? x->lent->buffers[i].bytes : 0;
    memcpy(x->most, now, sizeof now);
    for (int32_t i = 0; i < x->p->n_instrs; i++) {
        const tess__instr *in = &x->p->instrs[i];
        const tess__buffer *b = in->op == TESS__ALLOC || in->op == TESS__FREE ? &x->p->buffers[in->buffer] : NULL;
        if (!b || b->arena != TESS__STEP)
            continue;
        now[b->domain] += in->op == TESS__ALLOC ? b->bytes : 0 - b->bytes;
        if (now[b->domain] > x->most[b->domain]) {
            x->most[b->domain] = now[b->domain];
            x->fullest[b->domain] = i;
        }
    }
}

static void sort_all(placing *x, const placing_order *o) {
    int32_t n = 0;
    for (int32_t i = 0; o->at_peak && i < x->n; i++) {
        tess__buffer *b = x->order[i];
        if (b->first > x->fullest[b->domain] || b->last < x->fullest[b->domain])
            continue;
        x->order[i] = x->order[n];
        x->order[n++] = b;
    }
    if (n)
        qsort(x->order, (size_t)n, sizeof *x->order, o->at_peak);
    qsort(x->order + n, (size_t)(x->n - n), sizeof *x->order, o->others);
}

static void place_in_order(placing *x, const placing_order *o) {
    tess__program *p = x->p;
    sort_all(x, o);
    forget_all(&x->list);
    set_lent(p, x->lent, &x->list);
    p->step_bytes[1] = p->step_bytes[2] = 0;
    for (int32_t i = 0; i < x->n; i++) {
        tess__buffer *b = x->order[i];
        b->offset = lowest_free(&x->list, b, x->align[b->domain]);
        if (b->offset + b->bytes > p->step_bytes[b->domain])
            p->step_bytes[b->domain] = b->offset + b->bytes;
        remember_buffer(&x->list, b);
    }
}

/* Each domain keeps the order that takes least of it: no buffer depends on another domain's. */
static void keep_best(placing *x) {
    const tess__program *p = x->p;
    for (int32_t i = 0; i < p->n_buffers; i++)
        if (p->step_bytes[p->buffers[i].domain] < x->best[p->buffers[i].domain])
            x->list.best_offsets[i] = p->buffers[i].offset;
    for (int d = 1; d < 3; d++)
        x->best[d] = p->step_bytes[d] < x->best[d] ? p->step_bytes[d] : x->best[d];
}

static int is_close(const placing *x) {
    return x->best[1] <= x->most[1] + x->most[1] / 100 && x->best[2] <= x->most[2] + x->most[2] / 100;
}

static void place_all(placing *x) {
    tess__program *p = x->p;
    find_most_alive(x);
    for (size_t i = 0; i < sizeof orders / sizeof *orders && !is_close(x); i++) {
        place_in_order(x, &orders[i]);
        keep_best(x);
    }
    for (int32_t i = 0; i < x->n; i++)
        x->order[i]->offset = x->list.best_offsets[x->order[i] - p->buffers];
    for (int d = 1; d < 3; d++)
        p->step_bytes[d] = x->best[d];
}

static tess_status make_list(placing *x) {
    placed_list *list = &x->list;
    size_t n = (size_t)(x->p->n_buffers + x->lent->n_buffers) + 1;
    list->n_heads = x->p->n_instrs / STRETCH + 1;
    x->order = calloc(n, sizeof *x->order);
    list->entries = calloc(n * SHORT, sizeof *list->entries);
    list->heads = malloc((size_t)list->n_heads * sizeof *list->heads);
    list->all = calloc(3 * n, sizeof(tess__buffer *));
    list->best_offsets = calloc(n, sizeof *list->best_offsets);
    if (!x->order || !list->entries || !list->heads || !list->all || !list->best_offsets)
        return tess__fail(TESS_E_NOMEM, "no memory to place %d buffers", x->p->n_buffers);
    list->lasting = list->all + n;
    list->live = list->lasting + n;
    return TESS_OK;
}

static void free_list(placing *x) {
    free(x->order);
    free(x->list.entries);
    free(x->list.heads);
    free(x->list.all);
    free(x->list.best_offsets);
}

tess_status tess__assign_offsets(tess__program *p, const tess__program *resident, tess__program *lent, uint64_t align,
                                 uint64_t host_align) {
    placing x = { .p = p, .lent = lent, .align = { 0, align, host_align }, .best = { 0, UINT64_MAX, UINT64_MAX } };
    tess_status s = make_list(&x);
    p->step_bytes[1] = p->step_bytes[2] = 0;
    for (int32_t i = 0; !s && i < p->n_buffers; i++)
        if (p->buffers[i].arena == TESS__STEP)
            x.order[x.n++] = &p->buffers[i];
    if (!s) {
        place_all(&x);
        find_peaks(p, resident->buffers, resident->n_buffers);
    }
    free_list(&x);
    return s;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "place.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* Two-dimensional packing: time is given, the offset is sought. Largest first, each at the lowest offset that is free
 * throughout its life: within a few percent of the lower bound on the programs we make, and the same on every rank. */

static int larger_first(const void *a, const void *b) {
    const tess__buffer *x = *(tess__buffer *const *)a, *y = *(tess__buffer *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x < y ? -1 : x > y;
}

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
    int32_t n_entries, n_all, n_lasting; /* live is scratch of lowest_free */
} placed_list;

static int is_short(const tess__buffer *b) {
    return b->last / STRETCH - b->first / STRETCH < SHORT;
}

static void remember(placed_list *list, tess__buffer *b) {
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

/* The placed ones that live beside `b`. A short one is met in each stretch it touches and counted in the first. */
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

/* The lowest offset for `b` beside what has been placed. */
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
    uint64_t now[3][16] = { { 0 } }, total[3] = { 0 };
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
        for (int32_t d = 1; d < 3; d++)
            if (i < 0 || total[d] > p->live_peak_bytes[d]) {
                p->live_peak_bytes[d] = total[d];
                p->peak_instr[d] = i < 0 ? 0 : i;
                memcpy(p->category_bytes[d], now[d], sizeof now[d]);
            }
    }
}

/* Gradients that lie in the step arena throughout. */
static void set_lent(const tess__program *p, tess__program *lent, placed_list *list) {
    for (int32_t i = 0; i < lent->n_buffers; i++)
        if (lent->buffers[i].arena == TESS__STEP) {
            lent->buffers[i].first = 0;
            lent->buffers[i].last = p->n_instrs;
            remember(list, &lent->buffers[i]);
        }
}

static void place_all(tess__program *p, tess__buffer **order, int32_t n, placed_list *list, uint64_t align) {
    for (int32_t i = 0; i < n; i++) {
        tess__buffer *b = order[i];
        b->offset = lowest_free(list, b, align);
        if (b->offset + b->bytes > p->step_bytes[b->domain])
            p->step_bytes[b->domain] = b->offset + b->bytes;
        remember(list, b);
    }
}

static tess_status make_list(const tess__program *p, const tess__program *lent, placed_list *list) {
    size_t n = (size_t)(p->n_buffers + lent->n_buffers) + 1, n_heads = (size_t)p->n_instrs / STRETCH + 1;
    list->entries = calloc(n * SHORT, sizeof *list->entries);
    list->heads = malloc(n_heads * sizeof *list->heads);
    list->all = calloc(3 * n, sizeof(tess__buffer *));
    if (!list->entries || !list->heads || !list->all)
        return tess__fail(TESS_E_NOMEM, "no memory to place %d buffers", p->n_buffers);
    list->lasting = list->all + n;
    list->live = list->lasting + n;
    for (size_t i = 0; i < n_heads; i++)
        list->heads[i] = -1;
    return TESS_OK;
}

tess_status tess__assign_offsets(tess__program *p, const tess__program *resident, tess__program *lent, uint64_t align) {
    tess__buffer **order = calloc((size_t)p->n_buffers + 1, sizeof *order);
    placed_list list = { 0 };
    tess_status s = order ? make_list(p, lent, &list) : tess__fail(TESS_E_NOMEM, "no memory to place buffers");
    int32_t n = 0;
    for (int32_t i = 0; !s && i < p->n_buffers; i++)
        if (p->buffers[i].arena == TESS__STEP)
            order[n++] = &p->buffers[i];
    p->step_bytes[1] = p->step_bytes[2] = 0;
    if (!s) {
        qsort(order, (size_t)n, sizeof *order, larger_first);
        set_lent(p, lent, &list);
        place_all(p, order, n, &list, align);
        find_peaks(p, resident->buffers, resident->n_buffers);
    }
    free(order);
    free(list.entries);
    free(list.heads);
    free(list.all);
    return s;
}

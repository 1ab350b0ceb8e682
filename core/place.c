#include "place.h"

#include "status.h"

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

/* The lowest offset for `b` among `placed`, n of them. `live` is scratch. */
static uint64_t lowest_free(const tess__buffer *b, tess__buffer **placed, int32_t n, tess__buffer **live,
                            uint64_t align) {
    int32_t n_live = 0;
    for (int32_t i = 0; i < n; i++)
        if (placed[i]->domain == b->domain && placed[i]->first <= b->last && b->first <= placed[i]->last)
            live[n_live++] = placed[i];
    qsort(live, (size_t)n_live, sizeof *live, by_offset);
    uint64_t at = 0;
    for (int32_t i = 0; i < n_live; i++) {
        if (live[i]->offset >= at + b->bytes)
            break;
        uint64_t end = tess__round_up(live[i]->offset + live[i]->bytes, align);
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
        if (i >= 0 && (p->instrs[i].op == TESS__BOOK || p->instrs[i].op == TESS__FREE)) {
            const tess__buffer *b = &p->buffers[p->instrs[i].buffer];
            uint64_t change = p->instrs[i].op == TESS__BOOK ? b->bytes : 0 - b->bytes;
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

tess_status tess__place(tess__program *p, const tess__buffer *resident, int32_t n_resident, uint64_t align) {
    tess__buffer **order = calloc((size_t)p->n_buffers + 1, sizeof *order);
    tess__buffer **placed = calloc((size_t)p->n_buffers + 1, sizeof *placed);
    tess__buffer **live = calloc((size_t)p->n_buffers + 1, sizeof *live);
    tess_status s =
        order && placed && live ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory to place %d buffers", p->n_buffers);
    int32_t n = 0;
    for (int32_t i = 0; !s && i < p->n_buffers; i++)
        if (p->buffers[i].arena == TESS__STEP)
            order[n++] = &p->buffers[i];
    if (!s)
        qsort(order, (size_t)n, sizeof *order, larger_first);
    p->step_bytes[1] = p->step_bytes[2] = 0;
    for (int32_t i = 0; !s && i < n; i++) {
        tess__buffer *b = order[i];
        b->offset = lowest_free(b, placed, i, live, align);
        placed[i] = b;
        if (b->offset + b->bytes > p->step_bytes[b->domain])
            p->step_bytes[b->domain] = b->offset + b->bytes;
    }
    if (!s)
        find_peaks(p, resident, n_resident);
    free(order);
    free(placed);
    free(live);
    return s;
}

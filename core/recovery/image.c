/* SPDX-License-Identifier: BSD-3-Clause */
/* An image: its parts, where it lies, and what it was when it was taken. */
#include "image.h"

#include "base/log.h"
#include "base/status.h"
#include "kernels/digest.h"

#include <inttypes.h>
#include <stdlib.h>

tess_status tess__image_each(const tess__setup *s, const tess__layout *l, tess__image_part_fn fn, void *user) {
    uint64_t at = 0;
    for (int32_t i = 0; i < l->n_groups; i++) {
        const tess__group *g = &l->groups[i];
        tess__image_part p = { TESS__MASTER, i, at, g->shard_elems * tess_dtype_bytes(g->master) };
        TRY(fn(user, &p));
        at += tess__round_up(p.bytes, s->align);
        for (int32_t k = 0; k < (int32_t)g->step.n_states; k++) {
            tess__image_part state = { TESS__STATE0 + k, i, at, tess__state_bytes(g, k) };
            TRY(fn(user, &state));
            at += tess__round_up(state.bytes, s->align);
        }
    }
    tess__image_part buffers = { TESS__BUFFERS, 0, at, l->buffer_bytes };
    if (buffers.bytes)
        TRY(fn(user, &buffers));
    tess__image_part common = { TESS__COMMON, 0, at + tess__round_up(buffers.bytes, s->align), s->common_bytes };
    return common.bytes ? fn(user, &common) : TESS_OK;
}

uint32_t tess__image_mem(const tess *t) {
    return tess__rest_mem(t, &(tess__rest){ .domain = TESS_DOMAIN_HOST, .pageable = tess__one_memory(&t->plan.setup) });
}

char *tess__image_at(const tess *t, int of_other, int slot) {
    uint64_t bytes = tess__image_bytes(&t->plan.setup, &t->plan.layout);
    return (char *)tess__address_of(t, TESS__MIRROR, 0) + (uint64_t)(2 * of_other + slot) * bytes;
}

/* ---- digests ------------------------------------------------------------------------------------------ */

typedef struct {
    const tess *t;
    const char *image;
    uint64_t *digest; /* by part */
    int32_t n;
    int32_t changed; /* the group of the first part that is another; -1: of none */
    int found;
} parts;

static int32_t most_parts(const tess *t) {
    return t->plan.layout.n_groups * (1 + TESS__MAX_STATES) + 2;
}

static uint64_t digest_part(const parts *p, const tess__image_part *part) {
    uint32_t bytes = part->bytes % 4 ? 1 : 4;
    return tess__digest(p->image + part->at, bytes, 0, part->bytes / bytes, 0);
}

static tess_status take_part(void *user, const tess__image_part *part) {
    parts *p = user;
    p->digest[p->n++] = digest_part(p, part);
    return TESS_OK;
}

static tess_status check_part(void *user, const tess__image_part *part) {
    parts *p = user;
    if (digest_part(p, part) != p->digest[p->n++] && !p->found++)
        p->changed = part->role == TESS__BUFFERS || part->role == TESS__COMMON ? -1 : part->index;
    return TESS_OK;
}

tess_status tess__image_digest(tess *t, int of_other, int slot) {
    uint64_t **digest = &t->mirror.digest[of_other][slot];
    if (!t->settings.digests_rest || (of_other && !tess__copy_groups(&t->plan.setup)))
        return TESS_OK;
    free(*digest); /* a smaller group has other parts */
    *digest = calloc((size_t)most_parts(t), sizeof **digest);
    if (!*digest)
        return tess__fail(TESS_E_NOMEM, "no memory for the digests of an image");
    parts p = { .t = t, .image = tess__image_at(t, of_other, slot), .digest = *digest };
    return tess__image_each(&t->plan.setup, &t->plan.layout, take_part, &p);
}

static int has_changed(const tess *t, int of_other, int slot, int64_t step) {
    parts p = { .t = t, .digest = t->mirror.digest[of_other][slot] };
    if (step < 0 || !p.digest)
        return 0;
    p.image = tess__image_at(t, of_other, slot);
    (void)tess__image_each(&t->plan.setup, &t->plan.layout, check_part, &p);
    if (p.found)
        tess__log(TESS_LOG_WARNING,
                  "rank %d, unit %s: the image of step %" PRId64
                  "%s is not what was taken: memory has changed, and it is not used (TESSERA_AT_REST_DIGESTS)",
                  t->comms.world.rank,
                  p.changed < 0 ? "of no name" : t->plan.layout.units[t->plan.layout.groups[p.changed].unit].name, step,
                  of_other ? " that it keeps for another rank" : "");
    return p.found;
}

void tess__images_check(tess *t) {
    tess__mirror *m = &t->mirror;
    for (int slot = 0; slot < 2; slot++) {
        m->own[slot] = has_changed(t, 0, slot, m->own[slot]) ? -1 : m->own[slot];
        m->copy[slot] = has_changed(t, 1, slot, m->copy[slot]) ? -1 : m->copy[slot];
    }
}

void tess__image_digests_free(tess__mirror *m) {
    for (int i = 0; i < 4; i++) {
        free(m->digest[i / 2][i % 2]);
        m->digest[i / 2][i % 2] = NULL;
    }
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks that post different things. Announcements travel in the request's own group, so those of a collective that ends
 * are all there. One that hangs ends for nobody: then ranks put what they wait for into the key-value store. */
#include "communicator.h"

static kit_joining joining_of(const tess_comm *c, int64_t timeout_ns) {
    return kit_joining_begin(c->settings->host, "nccl", c->prefix, timeout_ns);
}

/* The oldest announcement that has not ended, or the last. */
static kit_announcement oldest_announcement(struct nccl_said *said) {
    kit_announcement at = { .op = 0 };
    pthread_mutex_lock(&said->lock);
    if (said->n > 0)
        at = said->last[(said->ended < said->n ? said->ended : said->n - 1) % NCCL_REMEMBERED];
    pthread_mutex_unlock(&said->lock);
    return at;
}

static void publish_oldest(tess_comm *c) {
    kit_announcement at = oldest_announcement(&c->said);
    tess_error ignored = { .struct_size = sizeof ignored };
    kit_joining w = joining_of(c, -1);
    if (at.op)
        kit_joining_set(&w, "nccl-said", c->rank, &at, sizeof at, &ignored);
}

/* Finds this rank's announcement of that number. 0: there is none yet, or it is too long ago. */
static int find_announcement(struct nccl_said *said, uint64_t seq, kit_announcement *out) {
    pthread_mutex_lock(&said->lock);
    int known = seq < said->n && seq + NCCL_REMEMBERED >= said->n;
    if (known)
        *out = said->last[seq % NCCL_REMEMBERED];
    pthread_mutex_unlock(&said->lock);
    return known;
}

void nccl_said_note(tess_comm *c, const kit_announcement *own) {
    pthread_mutex_lock(&c->said.lock);
    c->said.last[own->seq % NCCL_REMEMBERED] = *own;
    c->said.n = own->seq + 1;
    pthread_mutex_unlock(&c->said.lock);
}

void nccl_said_ended(tess_comm *c, uint64_t seq) {
    pthread_mutex_lock(&c->said.lock);
    c->said.ended = seq + 1;
    pthread_mutex_unlock(&c->said.lock);
}

tess_status nccl_compare(tess_comm *c, const tess_request *r, tess_error *f) {
    for (int i = 0; i < c->size; i++)
        if (kit_compare("nccl", &r->all[c->rank], c->rank, &r->all[i], i, f) != TESS_OK) {
            publish_oldest(c); /* the others' data may not arrive any more, and their announcements with it */
            return f->code;
        }
    return TESS_OK;
}

tess_status nccl_compare_stalled(tess_comm *c, tess_error *f) {
    const int64_t patience_ns = 2000000; /* short, because a rank that has published nothing gives nothing to compare */
    if (!c->settings->compares || c->size == 1)
        return TESS_OK;
    publish_oldest(c);
    for (int i = 0; i < c->size; i++) {
        kit_joining w = joining_of(c, patience_ns);
        kit_announcement mine, theirs;
        tess_error silent = { .struct_size = sizeof silent };
        if (i == c->rank || kit_joining_get(&w, "nccl-said", i, &theirs, sizeof theirs, &silent) != TESS_OK)
            continue;
        if (find_announcement(&c->said, theirs.seq, &mine) &&
            kit_compare("nccl", &mine, c->rank, &theirs, i, f) != TESS_OK)
            return f->code;
    }
    return TESS_OK;
}

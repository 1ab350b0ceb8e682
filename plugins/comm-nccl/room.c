/* SPDX-License-Identifier: BSD-3-Clause */
/* Room on the GPU. A kernel of NCCL's keeps a multiprocessor for each of its channels until its peers come. Several
 * communicators wait for each other for ever unless all find room at once; so all their channels together are at most
 * as many as the GPU has multiprocessors. The number is the same on every rank, since NCCL's channels must be. */
#include "communicator.h"

static int for_own_splits(int channels) {
    return channels / 8;
}

/* A third of what is left stays for later splits, or half where that is little. */
static int leaves_enough(int channels, int left) {
    enum { MANY = 16 };
    return channels >= MANY ? channels + for_own_splits(channels) <= left * 2 / 3 : channels <= left / 2;
}

/* Returns a power of two, because NCCL rounds channels of sends and receives up to one. */
static int channels_within(int left) {
    int channels = 32;
    while (channels > 1 && !leaves_enough(channels, left))
        channels /= 2;
    return channels <= left ? channels : 0;
}

void nccl_room_begin(tess_comm *c, int multiprocessors) {
    c->channels = channels_within(multiprocessors);
    atomic_store(&c->room, multiprocessors - c->channels);
}

tess_status nccl_room_take(tess_comm *parent, tess_comm *child, int *channels, tess_error *f) {
    *channels = channels_within(atomic_load(&parent->room));
    atomic_fetch_sub(&parent->room, *channels + for_own_splits(*channels));
    if (child) {
        child->channels = *channels;
        atomic_store(&child->room, for_own_splits(*channels));
    }
    if (*channels)
        return TESS_OK;
    return tess_plugin_fail(
        f, TESS_E_UNSUPPORTED,
        "nccl: the GPU has no multiprocessor for one more communicator beside that of group '%.100s' "
        "and those split from it",
        parent->prefix);
}

int nccl_room_left(tess_comm *c) {
    int left = atomic_load(&c->room);
    if (!left && c->rank == 0 && !atomic_exchange(&c->told_room, 1))
        kit_log(
            c->settings->host, 1, "nccl",
            "the GPU has no multiprocessor for a second communicator, so a gather waits for the reduction before it");
    return left != 0;
}

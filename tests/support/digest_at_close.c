/* SPDX-License-Identifier: BSD-3-Clause */
/* Linked with --wrap=tess_close into programs that say nothing of their parameters: rank 0 prints a hash of all of them
 * before each engine is closed. */
#include <inttypes.h>
#include <stdio.h>
#include <tessera/tessera.h>

tess_status __real_tess_close(tess *t);
tess_status __wrap_tess_close(tess *t);

static tess_status add(void *user, const tess_range *r, void *data) {
    uint64_t *hash = user;
    for (uint64_t i = 0; i < r->elems * sizeof(float); i++)
        *hash = (*hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3;
    return TESS_OK;
}

tess_status __wrap_tess_close(tess *t) {
    uint64_t hash = 0xcbf29ce484222325;
    tess_status s = tess_each_full(t, TESS_OF_PARAM, add, &hash);
    if (s == TESS_OK && tess_rank(t) == 0) {
        printf("digest %016" PRIx64 "\n", hash);
        fflush(stdout);
    }
    tess_status closed = __real_tess_close(t);
    return s ? s : closed;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* The parts of an image, and their digests (TESSERA_AT_REST_DIGESTS): one that memory has changed is not given back,
 * and another rank's takes its place. */
#ifndef TESS_IMAGE_H
#define TESS_IMAGE_H
#include "engine/state.h"

enum { TESS__COMMON = -1 }; /* the role of the program's own bytes, which lie in no buffer */
typedef struct {            /* of an image, in its order */
    int role;               /* TESS__MASTER, a state, TESS__BUFFERS or TESS__COMMON */
    int32_t index;
    uint64_t at, bytes; /* place in the image */
} tess__image_part;
typedef tess_status (*tess__image_part_fn)(void *user, const tess__image_part *);
tess_status tess__image_each(const tess__setup *, const tess__layout *, tess__image_part_fn, void *user);

/** Where an image lies, of this rank or of the rank that it keeps copies for, and in which kind of memory. */
char *tess__image_at(const tess *, int of_other, int slot);
uint32_t tess__image_mem(const tess *);
/** Digests an image that is whole. Does nothing where no image is kept. */
tess_status tess__image_digest(tess *, int of_other, int slot);
/** Before images are given back: forgets each that has changed, with a warning that names rank and unit. */
void tess__images_check(tess *);
void tess__image_digests_free(tess__mirror *);
#endif

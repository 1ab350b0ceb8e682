/* SPDX-License-Identifier: BSD-3-Clause */
/* Digests of images (TESSERA_AT_REST_DIGESTS): one that memory has changed is not given back, and another rank's takes
 * its place. */
#ifndef TESS_IMAGE_DIGEST_H
#define TESS_IMAGE_DIGEST_H
#include "mirror.h"

/** Digests an image that is whole. Does nothing where no image is kept. */
tess_status tess__image_digest(tess *, int of_other, int slot);
/** Before images are given back: forgets each that has changed, with a warning that names rank and unit. */
void tess__images_check(tess *);
void tess__image_digests_free(tess__mirror *);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* A file of whole tensors with the program's own names, as another program writes it. */
#ifndef TESS_TENSORS_LOAD_H
#define TESS_TENSORS_LOAD_H
#include "elements.h"

/** Whether a path names one: it ends in ".safetensors". */
int tess__is_tensors_file(const char *path);
/** Takes what this rank owns of each parameter and buffer. Nothing is taken when a name, a shape or a dtype does not
 * fit. `others`: names that the file may have besides; null at the end. Of `e` all but `path` and the reader is set. */
tess_status tess__tensors_load(tess__elements *e, const char *path, const char *const *others);
#endif

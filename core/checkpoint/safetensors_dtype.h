/* SPDX-License-Identifier: BSD-3-Clause */
/* The format's words for dtypes. */
#ifndef TESS_SAFETENSORS_DTYPE_H
#define TESS_SAFETENSORS_DTYPE_H
#include <stdint.h>

const char *tess__dtype_word(uint32_t dtype); /* "F32"; null when there is none */
uint32_t tess__dtype_of_word(const char *);   /* 0 when it is unknown */
#endif

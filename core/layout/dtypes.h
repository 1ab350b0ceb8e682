/* SPDX-License-Identifier: BSD-3-Clause */
/* In which dtypes a parameter rests, computes and travels. */
#ifndef TESS_DTYPES_H
#define TESS_DTYPES_H
#include "model.h"
#include "setup.h"

/** The dtypes that the precision plugin gives one parameter. */
tess_status tess__param_dtypes(const tess__setup *, const tess__param *, tess_precision_choice *out);
/** Whether what is sent in blocks is rounded by draws. */
int tess__draws_of(const tess_precision_choice *);
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* TRY stands in status.h; this name goes once nobody includes it. */
#ifndef TESS_TRY_H
#define TESS_TRY_H
#include "status.h"
#endif

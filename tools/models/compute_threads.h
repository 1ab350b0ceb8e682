/* SPDX-License-Identifier: BSD-3-Clause */
/* The threads of tables that compute on the host. */
#ifndef TESS_MODELS_COMPUTE_THREADS_H
#define TESS_MODELS_COMPUTE_THREADS_H
#include "ops.h"

/** ops_table.start: the context's threads are there from now on. TESS_E_SYSTEM: the system gives fewer. */
tess_status ops_threads_start(ops *o, const tess_stream *stream);
#endif

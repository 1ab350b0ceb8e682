/* SPDX-License-Identifier: BSD-3-Clause */
/* Starts the threads of tables that compute on the host. */
#ifndef TESS_MODELS_COMPUTE_THREADS_H
#define TESS_MODELS_COMPUTE_THREADS_H
#include "ops.h"

/** ops_table.start: starts the context's threads. TESS_E_SYSTEM: the system gives fewer. */
tess_status ops_threads_start(ops *o, const tess_stream *stream);
#endif

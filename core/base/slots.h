/* SPDX-License-Identifier: BSD-3-Clause */
/* The functions stand in tessera/plugin_helpers.h; these names go once nobody uses them. */
#ifndef TESS_SLOTS_H
#define TESS_SLOTS_H
#include <tessera/plugin_helpers.h>
#define tess__slot_fail tess_plugin_fail
#define tess__slot_out_sized tess_plugin_give
#define tess__slot_out(out, from, bytes) tess_plugin_give((out), (out)->struct_size, (from), (bytes))
#define tess_dtype_bytes tess_dtype_bytes
#define tess__dtype_name tess_dtype_name
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* The core's safetensors files under the names that the command uses. */
#ifndef TOOL_SAFETENSORS_H
#define TOOL_SAFETENSORS_H
#include "core/checkpoint/safetensors.h"

enum { TOOL_TENSOR_DIMS = TESS__TENSOR_DIMS, TOOL_TENSOR_NAME = TESS__TENSOR_NAME };
typedef tess__tensor tool_tensor;
typedef tess__safetensors tool_safetensors;
typedef tess__safetensors_writer tool_safetensors_writer;
#define tool_dtype_bytes tess__tensor_dtype_bytes
#define tool_safetensors_create tess__safetensors_create
#define tool_safetensors_write tess__safetensors_write
#define tool_safetensors_commit tess__safetensors_commit
#define tool_safetensors_discard tess__safetensors_discard
#define tool_safetensors_open tess__safetensors_open
#define tool_safetensors_open_header tess__safetensors_open_header
#define tool_safetensors_close tess__safetensors_close
#define tool_safetensors_list tess__safetensors_list
#define tool_safetensors_find tess__safetensors_find
#define tool_safetensors_read tess__safetensors_read
#endif

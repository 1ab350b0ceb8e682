/* The format's words for dtypes. */
#ifndef TOOL_SAFETENSORS_DTYPE_H
#define TOOL_SAFETENSORS_DTYPE_H
#include <stdint.h>

const char *tool__dtype_word(uint32_t dtype); /* "F32"; null when there is none */
uint32_t tool__dtype_of_word(const char *);   /* 0 when it is unknown */
#endif

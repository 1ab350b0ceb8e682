/* SPDX-License-Identifier: BSD-3-Clause */
/* libFuzzer: any bytes as a description of a model. The first byte says which: a safetensors header, an index,
 * config.json or MODEL.json. The readers may refuse them in one line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/plan/plan_file_model.h"
#include "core/base/status.h"

static char path[64];
static int file = -1;

/* A file in memory, with a folder of its own for what lies beside: /proc/self/fd. */
static int rewrite(const uint8_t *data, size_t size) {
    if (file < 0 && (file = memfd_create("model", MFD_CLOEXEC)) < 0)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == (ssize_t)size;
}

/* A header's length is made right, so that what is behind it is read too. */
static void fix_length(uint8_t *data, size_t size) {
    for (int i = 0; i < 8; i++)
        data[i] = (uint8_t)((uint64_t)(size - 8) >> 8 * i);
}

static tess_status read_config(plan_model *m) {
    plan_config c;
    tess_status s = plan_names_blocks(m, path);
    if (s == TESS_OK)
        s = plan_config_read(path, m, &c);
    if (s == TESS_OK)
        s = plan_config_tie(m, path, &c);
    return s == TESS_OK && !c.reason[0] ? plan_config_activations(m, path, &c, 2) : s;
}

static tess_status read_any(uint8_t kind, plan_model *m, uint8_t *data, size_t size) {
    int estimate;
    plan_param p = { .name = (char *)"model.layers.0.w", .ndim = 2, .shape = { 4, 4 } };
    if (kind == 'h' && size >= 8)
        fix_length(data, size);
    if (!rewrite(data, size))
        return TESS_OK;
    switch (kind) {
    case 'h':
    case 'H': return plan_tensors_file(m, path) == TESS_OK ? plan_names_blocks(m, path) : TESS_E_DATA;
    case 'i': return plan_tensors_index(m, path);
    case 'c': return plan_model_param(m, path, &p) == TESS_OK ? read_config(m) : TESS_E_DATA;
    default: return plan_json_read(m, path, &estimate);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    plan_model m = { 0 };
    if (size < 1)
        return 0;
    uint8_t *copy = malloc(size);
    memcpy(copy, data + 1, size - 1);
    uint64_t before = tess__fail_count();
    tess_status s = read_any(data[0], &m, copy, size - 1);
    if ((s != TESS_OK && tess__fail_count() == before) || strchr(tess_last_error(), '\n'))
        abort(); /* a refusal without a message, or one of more than a line */
    plan_model_free(&m);
    free(copy);
    return 0;
}

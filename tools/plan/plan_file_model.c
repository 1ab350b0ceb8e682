/* SPDX-License-Identifier: BSD-3-Clause */
#include "plan_file_model.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tessera/tessera.h>

/* Room for one more item of `size` bytes, zeroed. */
static void *next(void **items, int32_t n, int32_t *cap, size_t size) {
    if (n == *cap) {
        int32_t more = *cap ? 2 * *cap : 64;
        void *grown = realloc(*items, (size_t)more * size);
        if (!grown)
            return NULL;
        *items = grown;
        *cap = more;
    }
    return memset((char *)*items + (size_t)n * size, 0, size);
}

static tess_status no_memory(const char *path) {
    return tess_fail(TESS_E_NOMEM, "%s: no memory for the model that it describes", path);
}

tess_status plan_model_param(plan_model *m, const char *path, const plan_param *param) {
    int64_t times = param->stack ? param->stack : 1;
    m->all_params += times < PLAN_MOST_PARAMS ? (int32_t)times : PLAN_MOST_PARAMS + 1;
    if (m->all_params > PLAN_MOST_PARAMS)
        return tess_fail(TESS_E_DATA, "%s: more than %d parameters", path, PLAN_MOST_PARAMS);
    plan_param *p = next((void **)&m->params, m->n_params, &m->cap_params, sizeof *p);
    char *name = strdup(param->name);
    if (!p || !name) {
        free(name);
        return no_memory(path);
    }
    *p = *param;
    p->name = name;
    m->n_params++;
    return TESS_OK;
}

tess_status plan_model_tie(plan_model *m, const char *path, const char *alias, const char *of) {
    if (m->n_ties == PLAN_MOST_PARAMS)
        return tess_fail(TESS_E_DATA, "%s: more than %d ties", path, PLAN_MOST_PARAMS);
    plan_tie *t = next((void **)&m->ties, m->n_ties, &m->cap_ties, sizeof *t);
    if (!t)
        return no_memory(path);
    m->n_ties++;
    t->alias = strdup(alias);
    t->of = strdup(of);
    return t->alias && t->of ? TESS_OK : no_memory(path);
}

tess_status plan_model_block(plan_model *m, const char *path, const plan_block *block) {
    int64_t times = block->stack ? block->stack : 1;
    m->all_blocks += times < PLAN_MOST_BLOCKS ? (int32_t)times : PLAN_MOST_BLOCKS + 1;
    if (m->all_blocks > PLAN_MOST_BLOCKS)
        return tess_fail(TESS_E_DATA, "%s: block \"%s\": with it there are more than %d blocks", path, block->name,
                         PLAN_MOST_BLOCKS);
    plan_block *b = next((void **)&m->blocks, m->n_blocks, &m->cap_blocks, sizeof *b);
    char *name = strdup(block->name);
    if (!b || !name) {
        free(name);
        return no_memory(path);
    }
    *b = *block;
    b->name = name;
    m->n_blocks++;
    return TESS_OK;
}

tess_status plan_model_measure(plan_model *m, const char *path) {
    uint64_t total = m->input_bytes;
    for (int32_t i = 0; i < m->n_blocks; i++) {
        const plan_block *b = &m->blocks[i];
        const uint64_t bytes[] = { b->output_bytes, b->saved_bytes, b->forward_scratch_bytes,
                                   b->backward_scratch_bytes };
        uint64_t times = b->stack ? (uint64_t)b->stack : 1;
        for (int k = 0; k < 4; k++) {
            if (bytes[k] > PLAN_MOST_BYTES / times || total + bytes[k] * times > PLAN_MOST_BYTES)
                return tess_fail(TESS_E_DATA, "%s: block \"%s\": with it the blocks have more than 2^60 bytes", path,
                                 b->name);
            total += bytes[k] * times;
            m->has_activations |= bytes[k] != 0;
        }
    }
    return TESS_OK;
}

void plan_model_free(plan_model *m) {
    for (int32_t i = 0; i < m->n_params; i++)
        free(m->params[i].name);
    for (int32_t i = 0; i < m->n_ties; i++) {
        free(m->ties[i].alias);
        free(m->ties[i].of);
    }
    for (int32_t i = 0; i < m->n_blocks; i++)
        free(m->blocks[i].name);
    free(m->params);
    free(m->ties);
    free(m->blocks);
    *m = (plan_model){ 0 };
}

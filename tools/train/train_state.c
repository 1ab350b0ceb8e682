/* SPDX-License-Identifier: BSD-3-Clause */
/* Loads, exports and digests parameters, with no more than a piece of the model in memory at a time. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#if TESSERA_HAVE_XXHASH
#include <xxhash.h>
#endif

#include "tools/support/hf_export.h"
#include "tools/support/hf_tokenizer.h"
#include "tools/support/safetensors.h"
#include <tessera/tessera.h>
#include "train_lora.h"
#include "tools/support/say.h"

static tess_status file_in(const char *dir, char path[PATH_MAX]) {
    if ((size_t)snprintf(path, PATH_MAX, "%s/model.safetensors", dir) >= PATH_MAX)
        return tess_fail(TESS_E_DATA, "%.60s…: the path is longer than %d bytes", dir, PATH_MAX);
    return TESS_OK;
}

/* ---- loading ----------------------------------------------------------------------------------- */
typedef struct {
    const model *m;
    tool_safetensors *file;
    char path[PATH_MAX];
} resume_state;

static int same_shape(const model_param *p, const tool_tensor *t) {
    if (p->ndim != t->ndim)
        return 0;
    for (int32_t d = 0; d < p->ndim; d++)
        if (p->shape[d] != t->shape[d])
            return 0;
    return 1;
}

static tess_status check_all(const resume_state *s) {
    for (int32_t i = 0; i < s->m->desc.n_params; i++) {
        const model_param *p = &s->m->desc.params[i];
        if (p->alias_of[0])
            continue;
        const tool_tensor *t = tool_safetensors_find(s->file, p->name);
        if (!t)
            return tess_fail(TESS_E_DATA, "%s: no tensor '%s', which %s has", s->path, p->name, s->m->t->name);
        if (!same_shape(p, t))
            return tess_fail(TESS_E_DATA,
                             "%s: tensor '%s' has %" PRIu64 " elements in another shape, expected %" PRId64, s->path,
                             p->name, t->elems, p->elems);
    }
    return TESS_OK;
}

tess_status train_resume_open(train_run *r, const char *dir, void **out) {
    resume_state *s = calloc(1, sizeof *s);
    if (!s)
        return tess_fail(TESS_E_NOMEM, "no memory to resume from %s", dir);
    s->m = r->m;
    tess_status status = file_in(dir, s->path);
    if (status == TESS_OK)
        status = tool_safetensors_open(s->path, &s->file);
    if (status == TESS_OK)
        status = check_all(s);
    if (status != TESS_OK)
        train_resume_close(s);
    else
        *out = s;
    return status;
}

tess_status train_resume_fill(void *state, const tess_range *range, void *data) {
    const resume_state *s = state;
    const tool_tensor *t = tool_safetensors_find(s->file, s->m->desc.params[range->tag].name);
    return tool_safetensors_read(s->file, t, range->first_elem, range->elems, data);
}

void train_resume_close(void *state) {
    resume_state *s = state;
    if (!s)
        return;
    tool_safetensors_close(s->file);
    free(s);
}

/* ---- exporting --------------------------------------------------------------------------------- */
typedef struct {
    hf_export *folder;       /* null on ranks other than 0 */
    train_lora_merge *merge; /* null: there are no adapters */
} save_state;

static tess_status save_piece(void *state, const tess_range *range, void *data) {
    save_state *s = state;
    const float *merged = NULL;
    uint64_t elems = 0;
    if (s->folder && s->merge) {
        TRY(train_lora_merge_range(s->merge, range, data, &merged, &elems));
        return hf_export_write(s->folder, merged, elems * sizeof(float));
    }
    return s->folder ? hf_export_write(s->folder, data, range->elems * sizeof(float)) : TESS_OK;
}

static uint64_t list_tensors(const model *m, tool_tensor *tensors) {
    uint64_t n = 0;
    for (int32_t i = 0; i < m->desc.n_params; i++) {
        const model_param *p = &m->desc.params[i];
        if (p->alias_of[0] || p->is_adapter)
            continue;
        tool_tensor *t = &tensors[n++];
        snprintf(t->name, sizeof t->name, "%s", p->name);
        t->dtype = TESS_F32;
        t->ndim = p->ndim;
        memcpy(t->shape, p->shape, sizeof p->shape);
    }
    return n;
}

static tess_status save_open(const train_run *r, save_state *s) {
    tool_tensor *tensors = calloc((size_t)r->m->desc.n_params, sizeof *tensors);
    if (!tensors)
        return tess_fail(TESS_E_NOMEM, "no memory to export");
    uint64_t n = list_tensors(r->m, tensors);
    tess_status status = hf_export_create(r->s.export_to, r->s.model, r->hf_config, tensors, n, 0, &s->folder);
    free(tensors);
    return status;
}

tess_status train_export(train_run *r) {
    save_state s = { .folder = NULL };
    tess_status status = train_agree(r, r->rank == 0 ? save_open(r, &s) : TESS_OK);
    if (status != TESS_OK)
        return status;
    if (r->s.lora)
        status = train_lora_merge_open(r, &s.merge);
    if (status == TESS_OK)
        status = tess_each_full(r->t, TESS_OF_PARAM, save_piece, &s);
    train_lora_merge_close(s.merge);
    if (status != TESS_OK) {
        hf_export_discard(s.folder);
        return status;
    }
    status = s.folder ? hf_export_commit(s.folder) : TESS_OK;
    if (status == TESS_OK && r->rank == 0 && r->s.folder)
        status = hf_tokenizer_copy(r->s.folder, r->s.export_to);
    return train_agree(r, status);
}

/* ---- digest ------------------------------------------------------------------------------------ */
#if TESSERA_HAVE_XXHASH
typedef struct {
    const model *m;
    XXH3_state_t *hash;
} digest_state;

/* The digest omits running statistics, because each rank has its own. */
static tess_status digest_piece(void *state, const tess_range *range, void *data) {
    const digest_state *s = state;
    if (s->m->desc.params[range->tag].is_buffer)
        return TESS_OK;
    int is_codes = stored_in_blocks(s->m->desc.params[range->tag].stored); /* hashes the stored bytes of these */
    if (XXH3_128bits_update(s->hash, data, range->elems * (is_codes ? 1 : sizeof(float))) != XXH_OK)
        return tess_fail(TESS_E_INTERNAL, "xxHash refuses %s", range->name);
    return TESS_OK;
}

tess_status train_digest(train_run *r) {
    digest_state state = { r->m, XXH3_createState() };
    if (!state.hash)
        return tess_fail(TESS_E_NOMEM, "no memory for the digest");
    XXH3_128bits_reset(state.hash);
    tess_status status = tess_each_full(r->t, TESS_OF_PARAM, digest_piece, &state);
    if (status == TESS_OK) {
        XXH128_hash_t hash = XXH3_128bits_digest(state.hash);
        snprintf(r->digest, sizeof r->digest, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64, (uint64_t)hash.low64);
    }
    XXH3_freeState(state.hash);
    return status;
}
#else
tess_status train_digest(train_run *r) {
    tool_progress_say(&r->progress, "this build has no xxHash: params_digest is null");
    return TESS_OK;
}
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#include "hf_import.h"

#include <stdlib.h>
#include <unistd.h>

#include "say.h"
#include "hf_fields.h"

/* ---- config.json ---------------------------------------------------------------------------------------- */
static tess_status read_source(const hf_file *file, const hf_family *family, hf_source *s) {
    double settings[HF_SETTINGS] = { 0 };
    TRY(hf_fields_read_one(file, family, HF_TIED, settings));
    snprintf(s->model, sizeof s->model, "%s", family->model);
    s->is_tied = settings[HF_TIED] != 0;
    return hf_file_word(file, &s->config);
}

tess_status hf_source_read(const char *dir, hf_source *out) {
    char path[PATH_MAX];
    hf_file file;
    *out = (hf_source){ .config = NULL };
    if ((size_t)snprintf(path, sizeof path, "%s/config.json", dir) >= sizeof path || access(path, F_OK) != 0)
        return TESS_OK;
    TRY(hf_file_open(path, &file));
    const hf_family *family = hf_family_of_type(file.type);
    tess_status status = family ? read_source(&file, family, out) : TESS_OK;
    hf_file_close(&file);
    return status;
}

void hf_source_free(hf_source *s) {
    free(s->config);
    s->config = NULL;
}

/* ---- matrices ------------------------------------------------------------------------------------------- */
tess_status hf_read_turned(const tool_safetensors *file, const tool_tensor *t, const char *name, uint64_t begin,
                           uint64_t elems, float *out) {
    uint64_t inputs = (uint64_t)t->shape[0], outputs = (uint64_t)t->shape[1];
    uint64_t end = begin + elems, first = begin / inputs, last = (end - 1) / inputs;
    float *line = malloc((last - first + 1) * sizeof *line);
    if (!line)
        return tess_fail(TESS_E_NOMEM, "no memory to turn %s", name);
    tess_status status = TESS_OK;
    for (uint64_t i = 0; status == TESS_OK && i < inputs; i++) {
        status = tool_safetensors_read(file, t, i * outputs + first, last - first + 1, line);
        for (uint64_t o = first; o <= last; o++) {
            uint64_t ours = o * inputs + i;
            if (ours >= begin && ours < end)
                out[ours - begin] = line[o - first];
        }
    }
    free(line);
    return status;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "hf_names.h"

#include <stdio.h>
#include <string.h>

#include "hf_family.h"

int hf_knows(const char *model) {
    return hf_family_find(model) != NULL;
}

static int begins(const char *name, const char *with) {
    return strncmp(name, with, strlen(with)) == 0;
}

static int is_turned(const hf_tensor *t, int32_t ndim) {
    return t->flags & HF_TURNED && ndim == 2;
}

int hf_name(const char *model, const char *name, int32_t ndim, char out[HF_NAME]) {
    const hf_family *f = hf_family_find(model);
    snprintf(out, HF_NAME, "%s", name);
    for (const hf_tensor *t = f ? f->tensors : NULL; t && t->ours; t++)
        if (begins(name, t->ours)) {
            snprintf(out, HF_NAME, "%s%s", t->theirs, name + strlen(t->ours));
            return is_turned(t, ndim);
        }
    return 0;
}

int hf_is_table(const char *name, int32_t ndim) {
    static const char *const ends[] = { "inv_freq", "position_ids", "masked_bias", ".attn.bias" };
    size_t n = strlen(name), last = sizeof ends / sizeof ends[0] - 1;
    for (size_t i = 0; i <= last; i++) {
        size_t of = strlen(ends[i]);
        if (n >= of && strcmp(name + n - of, ends[i]) == 0)
            return i < last || ndim == 4; /* a mask has four dimensions, a bias fewer */
    }
    return 0;
}

/* Finds the row with the longest matching prefix. */
static const hf_tensor *find_tensor(const hf_family *f, const char *name, size_t *most) {
    const hf_tensor *found = NULL;
    for (const hf_tensor *t = f->tensors; t->ours; t++) {
        const char *theirs = begins(name, f->prefix) ? t->theirs : hf_short_name(f->model, t->theirs);
        if (!begins(name, theirs) || (found && strlen(theirs) <= *most))
            continue;
        found = t;
        *most = strlen(theirs);
    }
    return found;
}

int hf_own_name(const char *model, const char *name, int32_t ndim, int is_tied, char out[HF_NAME]) {
    const hf_family *f = hf_family_find(model);
    size_t n = 0;
    const hf_tensor *t = f ? find_tensor(f, name, &n) : NULL;
    snprintf(out, HF_NAME, "%s", name);
    if (t)
        snprintf(out, HF_NAME, "%s%s", t->ours, name + n);
    if (hf_is_table(name, ndim) || (t && is_tied && t->flags & HF_HEAD))
        out[0] = 0;
    return t && is_turned(t, ndim);
}

const char *hf_short_name(const char *model, const char *name) {
    const hf_family *f = hf_family_find(model);
    return f && begins(name, f->prefix) ? name + strlen(f->prefix) : name;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "hf_names.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *model, *ours, *theirs; /* the beginning of a name */
} prefixes[] = {
    { "gpt2", "embed.", "transformer." },
    { "gpt2", "h.", "transformer.h." },
    { "gpt2", "head.ln_f.", "transformer.ln_f." },
    { "gpt2", "head.weight", "lm_head.weight" },
    { "llama", "embed.weight", "model.embed_tokens.weight" },
    { "llama", "layers.", "model.layers." },
    { "llama", "head.norm.", "model.norm." },
    { "llama", "head.weight", "lm_head.weight" },
};

int hf_knows(const char *model) {
    return strcmp(model, "gpt2") == 0 || strcmp(model, "llama") == 0;
}

int hf_name(const char *model, const char *name, int32_t ndim, char out[HF_NAME]) {
    snprintf(out, HF_NAME, "%s", name);
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        size_t n = strlen(prefixes[i].ours);
        if (strcmp(prefixes[i].model, model) == 0 && strncmp(name, prefixes[i].ours, n) == 0) {
            snprintf(out, HF_NAME, "%s%s", prefixes[i].theirs, name + n);
            break;
        }
    }
    return strcmp(model, "gpt2") == 0 && ndim == 2 && strncmp(name, "h.", 2) == 0;
}

const char *hf_short_name(const char *name) {
    static const char *const optional[] = { "transformer.", "model." };
    for (int i = 0; i < 2; i++)
        if (strncmp(name, optional[i], strlen(optional[i])) == 0)
            return name + strlen(optional[i]);
    return name;
}

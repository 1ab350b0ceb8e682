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

static int is_table(const char *name) {
    static const char *const ends[] = { ".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq" };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (strlen(name) > strlen(ends[i]) && strcmp(name + strlen(name) - strlen(ends[i]), ends[i]) == 0)
            return 1;
    return 0;
}

int hf_own_name(const char *model, const char *name, int32_t ndim, char out[HF_NAME]) {
    size_t most = 0;
    snprintf(out, HF_NAME, "%s", is_table(name) ? "" : name);
    for (size_t i = 0; *out && i < sizeof prefixes / sizeof prefixes[0]; i++) {
        const char *theirs = strncmp(name, "transformer.", 12) == 0 || strncmp(name, "model.", 6) == 0
                                 ? prefixes[i].theirs
                                 : hf_short_name(prefixes[i].theirs);
        size_t n = strlen(theirs);
        if (strcmp(prefixes[i].model, model) != 0 || strncmp(name, theirs, n) != 0 || n + 1 <= most)
            continue;
        snprintf(out, HF_NAME, "%s%s", prefixes[i].ours, name + n);
        most = n + 1;
    }
    return strcmp(model, "gpt2") == 0 && ndim == 2 && strncmp(out, "h.", 2) == 0;
}

const char *hf_short_name(const char *name) {
    static const char *const optional[] = { "transformer.", "model." };
    for (int i = 0; i < 2; i++)
        if (strncmp(name, optional[i], strlen(optional[i])) == 0)
            return name + strlen(optional[i]);
    return name;
}

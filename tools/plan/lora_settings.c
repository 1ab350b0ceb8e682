/* SPDX-License-Identifier: BSD-3-Clause */
#include "lora_settings.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>
#include "tools/support/hf_fields.h"
#include "tools/support/safetensors.h"
#include "tools/support/say.h"

enum { MOST_RANK = 65536 };

/* ---- in which dtype the base's files are ------------------------------------------------------------- */
static uint32_t stored_of(uint32_t dtype) {
    return dtype == TESS_BF16 ? STORED_BF16 : dtype == TESS_F16 ? STORED_F16 : STORED_F32;
}

/* One in which every matrix of the file is exact; `so_far` STORED_KINDS: nothing yet. */
static tess_status widest_of_file(const char *dir, const char *name, uint32_t *so_far) {
    char path[PATH_MAX];
    uint64_t n = 0;
    tool_safetensors *file = NULL;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path)
        return tess_fail(TESS_E_DATA, "%.60s…: the path is longer than %d bytes", dir, PATH_MAX);
    TRY(tool_safetensors_open_header(path, &file));
    const tool_tensor *list = tool_safetensors_list(file, &n);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t stored = stored_of(list[i].dtype);
        if (list[i].ndim == 2)
            *so_far = *so_far == STORED_KINDS || *so_far == stored ? stored : STORED_F32;
    }
    tool_safetensors_close(file);
    return TESS_OK;
}

static int is_weights(const struct dirent *entry) {
    size_t n = strlen(entry->d_name), end = strlen(".safetensors");
    return strncmp(entry->d_name, "model", 5) == 0 && n > end && strcmp(entry->d_name + n - end, ".safetensors") == 0;
}

static tess_status widest_of_folder(const char *dir, uint32_t *out) {
    struct dirent **entries = NULL;
    uint32_t stored = STORED_KINDS;
    tess_status status = TESS_OK;
    int n = scandir(dir, &entries, is_weights, NULL);
    for (int i = 0; i < n; i++) {
        if (status == TESS_OK)
            status = widest_of_file(dir, entries[i]->d_name, &stored);
        free(entries[i]);
    }
    free(entries);
    *out = stored == STORED_KINDS ? STORED_F32 : stored;
    return status;
}

/* A config without weights: the dtype that it names. */
static tess_status named_by_config(const char *path, uint32_t *out) {
    char word[32] = "";
    hf_file file;
    TRY(hf_file_open(path, &file));
    if (!json_fields_text(&file.fields, "dtype", word, sizeof word))
        json_fields_text(&file.fields, "torch_dtype", word, sizeof word);
    hf_file_close(&file);
    *out = strcmp(word, "bfloat16") == 0 ? STORED_BF16 : strcmp(word, "float16") == 0 ? STORED_F16 : STORED_F32;
    return TESS_OK;
}

static tess_status stored_in_files(const train_settings *s, uint32_t *out) {
    *out = STORED_F32;
    return s->folder ? widest_of_folder(s->folder, out) : s->config ? named_by_config(s->config, out) : TESS_OK;
}

/* ---- the text ---------------------------------------------------------------------------------------- */
static tess_status refuse(const char *text, const char *what) {
    return tess_fail(
        TESS_E_INVALID,
        "lora '%s': %s; expected rank=R,alpha=A,targets=MODULE,…[,base=nf4|int8|bf16|f16|f32][,rslora] or a "
        "folder of adapters",
        text, what);
}

static int starts(const char *item, const char *key) {
    return strncmp(item, key, strlen(key)) == 0;
}

static int read_number(const char *text, double most, double *out) {
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == 0 && *out > 0 && *out <= most;
}

/* Words without '=' go on with the list of targets. */
static tess_status read_item(const char *text, const char *item, model_lora *o, uint32_t *base) {
    double value = 0;
    size_t at = strlen(o->targets);
    const char *target = starts(item, "targets=") ? item + 8 : item;
    if (starts(item, "rank=")) {
        if (!read_number(item + 5, MOST_RANK, &value) || value != floor(value))
            return refuse(text, "rank is no whole number of 1 to 65536");
        o->rank = (int32_t)value;
    } else if (starts(item, "alpha=")) {
        if (!read_number(item + 6, 1e6, &value))
            return refuse(text, "alpha is no number above 0");
        o->alpha = (float)value;
    } else if (starts(item, "base=")) {
        if (!stored_find(item + 5, base))
            return refuse(text, "base is unknown");
    } else if (strcmp(item, "rslora") == 0) {
        o->rooted = 1;
    } else if (strchr(target, '=') || (target == item && !at)) {
        return refuse(text, "it has a word that is unknown");
    } else if ((size_t)snprintf(o->targets + at, sizeof o->targets - at, "%s%s", at ? "," : "", target) >=
               sizeof o->targets - at) {
        return refuse(text, "targets are too long");
    }
    return TESS_OK;
}

int lora_settings_folder(const train_settings *s, char out[PATH_MAX]) {
    size_t n = s->lora ? strcspn(s->lora, ",") : 0;
    if (!s->lora || memchr(s->lora, '=', n))
        return 0;
    snprintf(out, PATH_MAX, "%.*s", (int)n, s->lora);
    return 1;
}

static tess_status read_folder(const char *dir, model_lora *o) {
    peft_config c;
    TRY(peft_config_read(dir, &c));
    o->rank = c.rank;
    o->rooted = c.rooted;
    o->alpha = (float)c.alpha;
    snprintf(o->targets, sizeof o->targets, "%s", c.targets);
    return TESS_OK;
}

static tess_status read_items(const char *text, const char *items, model_lora *o, uint32_t *base) {
    char item[256];
    for (const char *p = items; *p;) {
        size_t n = strcspn(p, ",");
        if (n >= sizeof item)
            return refuse(text, "a word is too long");
        snprintf(item, sizeof item, "%.*s", (int)n, p);
        TRY(read_item(text, item, o, base));
        p += n + (p[n] == ',');
    }
    return TESS_OK;
}

tess_status lora_settings_read(const train_settings *s, model_lora *out) {
    model_lora o = { .rank = 0 };
    uint32_t base = STORED_KINDS, files;
    char folder[PATH_MAX];
    *out = o;
    if (!s->lora)
        return TESS_OK;
    int is_folder = lora_settings_folder(s, folder);
    if (is_folder)
        TRY(read_folder(folder, &o));
    TRY(read_items(s->lora, is_folder ? s->lora + strlen(folder) : s->lora, &o, &base));
    if (!o.rank || !o.targets[0])
        return refuse(s->lora, o.rank ? "targets are missing" : "rank is missing");
    if (!(o.alpha > 0))
        return refuse(s->lora, "alpha is missing");
    tess_status status = stored_in_files(s, &files);
    o.tables = base == STORED_KINDS || stored_in_blocks(base) ? files : base;
    o.matrices = base == STORED_KINDS ? files : base;
    *out = o;
    return status;
}

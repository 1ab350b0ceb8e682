/* SPDX-License-Identifier: BSD-3-Clause */
/* A program of three blocks whose declarations are its arguments: "options.accum=2", "block.saved_bytes=512",
 * "param.flags=1" (of the second block), "settings.low-copy=1", "engines=2". It runs one step and prints the peak of
 * all its engines, by domain, which must be the planned one. "list" prints the fields that are part of a plan; "stop=1"
 * ends at the first TESS_E_PLANNED. "load=DIR" and "save=DIR": of a checkpoint, before and after the step. "leave=1"
 * returns from main without tess_close. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/gpu.h>
#include <tessera/inspect.h>

#include "core/base/option_fields.h"

enum { BLOCKS = 3, ROWS = 70, COLUMNS = 30, MOST = 2, MOST_SETTINGS = 8, SAVED = 1 << 16 };
static const char *const blocks[BLOCKS] = { "a", "b", "c" }, *const params[BLOCKS] = { "a.w", "b.w", "c.w" };
static tess_options options = { .struct_size = sizeof options, .input_bytes = 64 };
static tess_block_options block = { .struct_size = sizeof block, .output_bytes = 256, .saved_bytes = SAVED };
static const int64_t shape[2] = { ROWS, COLUMNS };
static tess_param_options param = { .struct_size = sizeof param, .dtype = TESS_F32, .shape = shape, .ndim = 2 };
static tess_setting settings[MOST_SETTINGS];
static int engines = 1, stop, leave;
static const char *save, *load;

static tess_status ok(tess_status status) {
    if (status < 0 && (stop || status != TESS_E_PLANNED)) {
        fprintf(stderr, "%s\n", tess_last_error());
        exit(tess_exit_code(status));
    }
    return status;
}

static tess_status computes(void *user, const tess_block_call *call) {
    (void)user, (void)call;
    return TESS_OK;
}

/* ---- arguments ---- */

static void set(const tess__field *table, void *of, const char *name, char *value) {
    while (table->name && strcmp(table->name, name) != 0)
        table++;
    char *at = (char *)of + table->offset;
    if (!table->name)
        exit(2);
    if (table->type == TESS__FIELD_TEXT)
        memcpy(at, &value, sizeof value);
    else if (strstr(name, "_work"))
        memcpy(at, &(double){ atof(value) }, sizeof(double));
    else if (strcmp(name, "momentum") == 0)
        memcpy(at, &(float){ (float)atof(value) }, sizeof(float));
    else if (table->bytes == 8)
        memcpy(at, &(uint64_t){ strtoull(value, NULL, 0) }, 8);
    else
        memcpy(at, &(uint32_t){ (uint32_t)strtol(value, NULL, 0) }, 4);
}

static void take(char *word) {
    char *value = strchr(word, '='), *name = strchr(word, '.');
    *value++ = 0;
    if (name)
        name++;
    if (strncmp(word, "options.", 8) == 0)
        set(tess__fields_of_options, &options, name, value);
    else if (strncmp(word, "block.", 6) == 0)
        set(tess__fields_of_block, &block, name, value);
    else if (strncmp(word, "param.", 6) == 0)
        set(tess__fields_of_param, &param, name, value);
    else if (strncmp(word, "settings.", 9) == 0)
        settings[options.n_settings++] = (tess_setting){ name, value };
    else if (strcmp(word, "save") == 0 || strcmp(word, "load") == 0)
        *(word[0] == 's' ? &save : &load) = value;
    else
        *(strcmp(word, "stop") == 0 ? &stop : strcmp(word, "leave") == 0 ? &leave : &engines) = atoi(value);
    options.settings = settings;
}

static void list(const char *of, const tess__field *f) {
    for (; f->name; f++)
        if (f->type != TESS__FIELD_NONE)
            printf("%s.%s\n", of, f->name);
}

/* ---- the program ---- */

static tess *open_one(int number) {
    static char common[TESS_CHECKPOINT_BYTES];
    tess *t;
    options.common = options.common_bytes ? common : NULL;
    if (number)
        options.wrap = "none";
    ok(tess_open(&options, &t));
    for (int i = 0; i < BLOCKS; i++) {
        tess_block_options b = { .struct_size = sizeof b, .output_bytes = 256, .saved_bytes = SAVED };
        tess_param_options p = { .struct_size = sizeof p, .dtype = TESS_F32, .shape = shape, .ndim = 2 };
        b = i == 1 ? block : b;
        p = i == 1 ? param : p;
        p.compute_dtypes = param.compute_dtypes;
        b.name = blocks[i];
        b.forward = b.backward = computes;
        p.name = params[i];
        ok(tess_block_add(t, &b, NULL));
        ok(tess_param_add(t, &p, NULL));
    }
    if (block.also) {
        char name[64];
        param.name = name;
        snprintf(name, sizeof name, "%s.w", block.also);
        ok(tess_param_add(t, &param, NULL));
    }
    return t;
}

static tess_status no_update(void *user, const tess_range *r, void *p, const float *grad, float *const *state) {
    (void)user, (void)r, (void)p, (void)grad, (void)state;
    return TESS_OK;
}

static void train(tess *t) {
    static char batch[1 << 16], result[1 << 16];
    const tess_optimizer_group groups[2] = { { 0, 1 }, { 0, 1 } };
    const tess_optimizer_options step = { .struct_size = sizeof step, .lr = 1, .groups = groups, .n_groups = 2 };
    int own = options.optimizer && strcmp(options.optimizer, "own") == 0;
    int32_t k = tess_accum(t);
    for (int32_t i = 0; i < k; i++) {
        tess_run_options run = { .struct_size = sizeof run,
                                 .kind = TESS_PASS_TRAIN,
                                 .batch = batch,
                                 .result = result,
                                 .step = i == k - 1 && !own ? &step : NULL };
        ok(tess_run(t, &run));
    }
    ok(tess_run_wait(t));
    if (own)
        ok(tess_update(t, no_update, NULL));
}

static void add_peaks(const tess *t, uint64_t sum[3]) {
    tess_stats s = { .struct_size = sizeof s };
    ok(tess_stats_get(t, &s));
    for (int d = 1; d < 3; d++) {
        sum[d] += s.planned_peak_bytes[d];
        if (s.peak_bytes[d] != s.planned_peak_bytes[d])
            exit(1);
    }
}

static void keep(tess *t, const char *dir, int saves) {
    const tess_checkpoint_options to = { .struct_size = sizeof to, .dir = dir };
    const tess_checkpoint_load_options from = { .struct_size = sizeof from, .path = dir };
    if (dir)
        ok(saves ? tess_checkpoint_save(t, &to) : tess_checkpoint_load(t, &from, NULL));
}

int main(int argc, char **argv) {
    tess *t[MOST];
    uint64_t sum[3] = { 0 };
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        list("options", tess__fields_of_options);
        list("block", tess__fields_of_block);
        list("param", tess__fields_of_param);
        return 0;
    }
    for (int i = 1; i < argc; i++)
        take(argv[i]);
    int planned = 0;
    for (int i = 0; i < engines; i++)
        t[i] = open_one(i);
    for (int i = 0; i < engines; i++)
        planned |= ok(tess_shard(t[i], NULL, NULL)) == TESS_E_PLANNED;
    int first = tess_rank(t[0]) == 0;
    for (int i = 0; i < engines; i++) {
        if (!planned) {
            keep(t[i], load, 0);
            train(t[i]);
            keep(t[i], save, 1);
            add_peaks(t[i], sum);
        }
        if (!leave)
            tess_close(t[i]);
    }
    if (!planned && first)
        printf("%llu %llu\n", (unsigned long long)sum[1], (unsigned long long)sum[2]);
    return 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera bench blocks, in each rank: how long every block of a reference model takes, outside the engine. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_batch.h"
#include "tools/commands.h"
#include "tools/support/command_line.h"
#include "tools/support/world.h"
#include "tools/support/json_out.h"
#include "tools/models/direct.h"
#include "tools/support/options.h"
#include "tools/support/progress.h"
#include <tessera/tessera.h>
#include "tools/train/train.h"
#include "tools/support/say.h"

enum { LEAST_ROUNDS = 9, MOST_ROUNDS = 201 };
static const double most_seconds = 1.0; /* blocks of one model in one precision */

typedef struct {
    tool_world world;
    tool_meeting *meeting; /* barrier of all ranks, so that all cores are busy during every measurement */
    FILE *out;
    int json;
} bench;

static tess_status make(const char *name, uint32_t precision, model **out) {
    train_settings s;
    int64_t threads = 1;
    TRY(train_settings_read(name, &s));
    TRY(tool_option_int("threads", &threads));
    model_options o = { .batch = (int32_t)s.batch,
                        .layers = (int32_t)s.layers,
                        .heads = (int32_t)s.heads,
                        .width = (int32_t)s.width,
                        .context = (int32_t)s.context,
                        .image_size = (int32_t)s.image_size,
                        .hidden = (int32_t)s.hidden,
                        .threads = (int32_t)threads,
                        .precision = precision,
                        .seed = s.seed,
                        .isa = s.isa };
    return model_create(name, &o, out);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* times: by block, forward then backward, and by round. */
static tess_status rounds(bench *b, model *m, direct *d, const void *batch, double *row, double *times, int *n) {
    double begin = tool_seconds();
    int32_t columns = 2 * m->desc.n_blocks;
    tess_status status = tool_meeting_wait(b->meeting);
    direct_clock(d, row);
    for (int round = -2; round < MOST_ROUNDS && status == TESS_OK; round++) { /* the first two warm up */
        if (round >= LEAST_ROUNDS && tool_seconds() - begin > most_seconds)
            break;
        direct_zero_grads(d);
        status = direct_run(d, TESS_PASS_TRAIN, batch, 0, 0, NULL);
        for (int32_t i = 0; i < columns && round >= 0; i++)
            times[i * MOST_ROUNDS + round] = row[i];
        *n = round + 1;
    }
    return status;
}

static int print(const bench *b, const model *m, int32_t block, double forward, double backward) {
    char key[96];
    json_out j;
    model_key(m, key, sizeof key);
    if (!b->json) {
        fprintf(b->out, "%-62s %-8s forward %9.1f us, backward %9.1f us\n", key, m->desc.blocks[block].name,
                forward * 1e6, backward * 1e6);
        return ferror(b->out) ? -1 : 0;
    }
    json_init(&j, b->out);
    json_object_begin(&j, NULL);
    json_string(&j, "event", "block");
    json_string(&j, "model", key);
    json_string(&j, "name", m->desc.blocks[block].name);
    json_double(&j, "forward_seconds", forward);
    json_double(&j, "backward_seconds", backward);
    json_object_end(&j);
    return json_line(&j);
}

static tess_status measure(bench *b, model *m, direct *d, void *batch) {
    int32_t columns = 2 * m->desc.n_blocks;
    double *row = calloc((size_t)columns, sizeof *row), *times = calloc((size_t)columns * MOST_ROUNDS, sizeof *times);
    int n = 0;
    tess_status status = row && times ? TESS_OK : tess_fail(TESS_E_NOMEM, "no memory for the times of blocks");
    bench_batch_fill(m, batch);
    if (status == TESS_OK)
        status = rounds(b, m, d, batch, row, times, &n);
    for (int32_t i = 0; i < columns && status == TESS_OK; i++) {
        qsort(times + i * MOST_ROUNDS, (size_t)n, sizeof *times, by_value);
        row[i] = times[i * MOST_ROUNDS + n / 5]; /* a busy machine makes some rounds longer, none shorter */
    }
    for (int32_t i = 0; i < m->desc.n_blocks && status == TESS_OK && b->world.rank == 0; i++)
        if (print(b, m, i, row[i], row[m->desc.n_blocks + i]) != 0)
            status = tess_fail(TESS_E_SYSTEM, "--json: not everything could be written");
    free(row);
    free(times);
    return status;
}

static tess_status bench_model(bench *b, const char *name, uint32_t precision) {
    model *m = NULL;
    direct *d = NULL;
    tess_status status = make(name, precision, &m);
    if (status != TESS_OK)
        return status;
    void *batch = aligned_alloc(64, ops_align(m->desc.input_bytes));
    status = batch ? direct_create(m, 0, &d) : tess_fail(TESS_E_NOMEM, "no memory for a batch of %s", name);
    if (status == TESS_OK)
        status = measure(b, m, d, batch);
    direct_destroy(d);
    free(batch);
    model_destroy(m);
    return status;
}

int tool_bench_blocks(FILE *out, int json, const char *model) {
    static const char *const usual[] = { "mnist", "gpt" };
    bench b = { .out = out ? out : stdout, .json = json };
    const char *precision = tool_option_text("precision");
    tess_status status = tool_world_read(&b.world);
    if (status == TESS_OK)
        status = tool_meeting_open(&b.meeting);
    for (int i = 0; i < (model ? 1 : 2) && status == TESS_OK; i++) {
        const char *name = model ? model : usual[i];
        if (!precision || strncmp(precision, "bf16", 4) != 0)
            status = bench_model(&b, name, TESS_F32);
        if (status == TESS_OK && (!precision || strncmp(precision, "bf16", 4) == 0))
            status = bench_model(&b, name, TESS_BF16);
    }
    if (status == TESS_OK)
        status = tool_meeting_wait(b.meeting);
    int code = status == TESS_OK ? TOOL_OK : tool_report(status);
    tool_meeting_close(b.meeting, status == TESS_OK);
    return code;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Measures the duration of steps, and writes each step's numbers for spreadsheets and TensorBoard. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/support/say.h"
#include <tessera/inspect.h>
#include "train.h"

/* Rank 0 keeps the times of the last steps only, so that a run of any length takes the same memory. */
enum { MOST_STEPS = 1 << 14 };

double train_watch_units(const train_run *r) {
    return (double)(r->task.units_per_batch * (uint64_t)r->ranks * (uint64_t)r->s.accum);
}

static tess_status open_csv(train_run *r) {
    r->watch.csv = fopen(r->s.csv, r->joins ? "ae" : "we");
    if (!r->watch.csv)
        return tess_fail(TESS_E_DATA, "--csv=%s: %s", r->s.csv, strerror(errno));
    setvbuf(r->watch.csv, NULL, _IOLBF, 0); /* line buffered, for programs that follow the file */
    if (!r->joins)
        fprintf(r->watch.csv,
                "step,loss,lr,seconds,%s_per_second,validation_loss,grad_norm,flop_utilisation,loss_scale,overflows\n",
                r->task.unit);
    return TESS_OK;
}

tess_status train_watch_open(train_run *r) {
    if (r->rank != 0)
        return TESS_OK;
    r->watch.seconds = calloc(MOST_STEPS, sizeof *r->watch.seconds);
    if (!r->watch.seconds)
        return tess_fail(TESS_E_NOMEM, "no memory for the times of %d steps", MOST_STEPS);
    r->watch.step_flops = model_step_flops(r->m) * (double)r->s.accum;
    r->watch.peak_flops = r->s.peak_flops > 0 ? r->s.peak_flops : r->watch.step_flops > 0 ? model_peak_flops(r->m) : 0;
    if (r->s.tensorboard)
        TRY(tensorboard_open(&r->watch.board, r->s.tensorboard));
    return r->s.csv ? open_csv(r) : TESS_OK;
}

/* Writes the run's words as a Markdown table, one row each. */
static void put_settings(train_run *r) {
    char text[1024] = "| option | value |\n| --- | --- |\n";
    size_t n = strlen(text);
    for (const char *at = r->identity; *at && n < sizeof text; at += strcspn(at, " "), at += *at == ' ') {
        int key = (int)strcspn(at, "="), all = (int)strcspn(at, " ");
        n += (size_t)snprintf(text + n, sizeof text - n, "| %.*s | %.*s |\n", key, at, all - key - 1, at + key + 1);
    }
    tensorboard_text(&r->watch.board, "run", text);
}

void train_watch_begin(train_run *r) {
    if (r->rank != 0 || !r->s.tensorboard)
        return;
    put_settings(r);
    tensorboard_begin(&r->watch.board, r->steps_done + 1);
}

double train_watch_utilisation(const train_run *r, double seconds) {
    int known = r->watch.peak_flops > 0 && r->watch.step_flops > 0 && seconds > 0;
    return known ? r->watch.step_flops / seconds / r->watch.peak_flops : NAN;
}

/* Writes ",VALUE", or "," if there is none. */
static void put_cell(FILE *csv, double value) {
    fputc(',', csv);
    if (!isnan(value))
        fprintf(csv, value == rint(value) ? "%.0f" : "%.6g", value);
}

double train_watch_norm(const train_run *r, int shown) {
    tess_stats stats = { .struct_size = sizeof stats };
    int known = shown && tess_stats_get(r->t, &stats) == TESS_OK && stats.grad_norm >= 0;
    return known ? stats.grad_norm : NAN;
}

static void put_scalars(train_run *r, const train_step_record *of) {
    tess_stats stats = { .struct_size = sizeof stats };
    char speed[32];
    snprintf(speed, sizeof speed, "train/%s_per_second", r->task.unit);
    if (tess_stats_get(r->t, &stats) != TESS_OK)
        stats.peak_bytes[TESS_DOMAIN_DEVICE] = 0;
    const tensorboard_scalar all[] = {
        { "train/loss", r->loss },
        { "train/lr", of->rate },
        { "train/grad_norm", of->grad_norm },
        { speed, of->seconds > 0 ? train_watch_units(r) / of->seconds : NAN },
        { "train/flop_utilisation", r->watch.utilisation },
        { "train/loss_scale", r->watch.loss_scale },
        { "train/overflows", isnan(r->watch.loss_scale) ? NAN : (double)r->watch.skipped },
        { "memory/device_peak_bytes", (double)stats.peak_bytes[TESS_DOMAIN_DEVICE] },
        { "memory/host_peak_bytes", (double)stats.peak_bytes[TESS_DOMAIN_HOST] },
    };
    tensorboard_scalars(&r->watch.board, of->step, all, sizeof all / sizeof all[0]);
}

static void note_scale(train_run *r) {
    tess_stats stats = { .struct_size = sizeof stats };
    int known = tess_stats_get(r->t, &stats) == TESS_OK && stats.loss_scale > 0;
    r->watch.loss_scale = known ? stats.loss_scale : NAN;
    r->watch.skipped = known ? stats.n_overflows : 0;
}

void train_watch_step(train_run *r, const train_step_record *of) {
    if (r->rank != 0)
        return;
    note_scale(r);
    r->watch.grad_norm = of->grad_norm;
    r->watch.utilisation = train_watch_utilisation(r, of->seconds);
    r->watch.seconds[r->watch.n++ % MOST_STEPS] = of->seconds;
    if (r->s.tensorboard)
        put_scalars(r, of);
    if (!r->watch.csv)
        return;
    fprintf(r->watch.csv, "%" PRIu64 ",%.9g,%.9g,%.6f,%.1f,", of->step, r->loss, of->rate, of->seconds,
            of->seconds > 0 ? train_watch_units(r) / of->seconds : 0.0);
    put_cell(r->watch.csv, r->watch.grad_norm);
    put_cell(r->watch.csv, r->watch.utilisation);
    put_cell(r->watch.csv, r->watch.loss_scale);
    put_cell(r->watch.csv, isnan(r->watch.loss_scale) ? NAN : (double)r->watch.skipped);
    fputc('\n', r->watch.csv);
}

void train_watch_eval(train_run *r, double loss, double accuracy) {
    const tensorboard_scalar all[] = { { "validation/loss", loss }, { "validation/accuracy", accuracy } };
    if (r->rank == 0 && r->s.tensorboard)
        tensorboard_scalars(&r->watch.board, r->steps_done, all, 2);
    if (r->watch.csv)
        fprintf(r->watch.csv, "%" PRIu64 ",,,,,%.9g,,,,\n", r->steps_done, loss);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double train_watch_median(const train_run *r) {
    const uint64_t n = r->watch.n < MOST_STEPS ? r->watch.n : MOST_STEPS;
    qsort(r->watch.seconds, n, sizeof *r->watch.seconds, ascending);
    return n ? r->watch.seconds[n / 2] : 0;
}

tess_status train_watch_finish(train_run *r) {
    FILE *csv = r->watch.csv;
    int failed = csv && ferror(csv);
    r->watch.csv = NULL;
    if ((csv && fclose(csv) != 0) || failed)
        return tess_fail(TESS_E_SYSTEM, "--csv=%s: not everything could be written", r->s.csv);
    return r->s.tensorboard && r->rank == 0 ? tensorboard_close(&r->watch.board) : TESS_OK;
}

void train_watch_close(train_run *r) {
    if (r->watch.csv)
        fclose(r->watch.csv);
    if (r->watch.board.file >= 0)
        close(r->watch.board.file);
    free(r->watch.seconds);
    r->watch.csv = NULL;
    r->watch.seconds = NULL;
}

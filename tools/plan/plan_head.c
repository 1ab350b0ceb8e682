/* SPDX-License-Identifier: BSD-3-Clause */
#include "plan_head.h"

#include <inttypes.h>

#include "core/readers/planned.h"
#include "model_run.h"
#include "plan_time.h"
#include "tools/support/progress.h"

static uint64_t device_peak(const tess *t) {
    tess_stats stats = { .struct_size = sizeof stats };
    return tess_stats_get(t, &stats) == TESS_OK ? stats.planned_peak_bytes[TESS_DOMAIN_DEVICE] : 0;
}

/* A time that cannot be told is none, not a failure. */
static double seconds_of(const plan_source *like, tess *t, model *m) {
    const machine_desc *machine = plan_time_in_use();
    plan_source source = { .t = t, .of = like->of, .is_model = 1, .state = m };
    simulated_step line;
    double seconds;
    if (!machine || plan_time(&source, machine, &line) != TESS_OK)
        return NAN;
    seconds = line.seconds;
    simulated_free(&line);
    return seconds;
}

static void plan_whole(const plan_source *s, plan_head *h) {
    train_settings settings;
    model *m = NULL;
    tess *t = NULL;
    if (train_settings_read(s->name, &settings) != TESS_OK)
        return;
    settings.head_rows = h->all_rows;
    tess_status status = model_run_plan(&settings, tess__plan_of(s->t)->setup.nranks, &t, &m);
    if (status != TESS_OK && status != TESS_E_BUDGET)
        return;
    h->whole_peak_bytes = device_peak(t);
    h->seconds = seconds_of(s, t, m);
    tess_close(t);
    model_destroy(m);
}

plan_head plan_head_of(const plan_source *s, int over) {
    const model *m = s->is_model ? s->state : NULL;
    plan_head h = { .seconds = NAN };
    if (!m || over || m->o->t->mem == TESS_MEM_HOST) /* caches of a CPU hold a chunk's logits */
        return h;
    h.chunks = model_head_chunks(m, &h.rows);
    if (h.chunks < 2)
        return (plan_head){ .seconds = NAN };
    h.all_rows = (int64_t)m->options.batch * m->options.context;
    h.peak_bytes = device_peak(s->t);
    plan_whole(s, &h);
    return h;
}

/* The first chunk writes the gradient, each other reads and writes it. */
static int64_t passes_of(const plan_head *h) {
    return 2 * h->chunks - 1;
}

void plan_head_print(FILE *out, const plan_head *h) {
    char size[32];
    if (!h->chunks)
        return;
    fprintf(out, "head: %" PRId64 " chunks of %" PRId64 " rows, %" PRId64 " passes over its matrix's gradient",
            h->chunks, h->rows, passes_of(h));
    if (h->whole_peak_bytes > h->peak_bytes)
        fprintf(out, "; with --head-rows %" PRId64 " one, and %s more at the peak", h->all_rows,
                tool_bytes_text(h->whole_peak_bytes - h->peak_bytes, size));
    else if (h->whole_peak_bytes)
        fprintf(out, "; with --head-rows %" PRId64 " one, and the same peak", h->all_rows);
    if (!isnan(h->seconds))
        fprintf(out, ", %.4g s per step", h->seconds);
    fprintf(out, "\n");
}

void plan_head_json(json_out *j, const plan_head *h) {
    if (!h->chunks)
        return;
    json_object_begin(j, "head");
    json_int(j, "chunks", h->chunks);
    json_int(j, "rows", h->rows);
    json_int(j, "gradient_passes", passes_of(h));
    if (h->whole_peak_bytes) {
        json_int(j, "whole_rows", h->all_rows);
        json_uint(j, "whole_planned_peak_device_bytes", h->whole_peak_bytes);
    }
    if (!isnan(h->seconds))
        json_double(j, "whole_seconds", h->seconds);
    json_object_end(j);
}

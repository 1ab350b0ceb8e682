/* SPDX-License-Identifier: BSD-3-Clause */
/* Output of rank 0: progress, a closing table and JSON. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tools/support/alloc_count.h"
#include "tools/support/say.h"
#include <tessera/inspect.h>
#include "tools/support/options.h"
#include "train.h"

static tess_stats stats_of(const train_run *r) {
    tess_stats stats = { .struct_size = sizeof stats };
    if (!r->t || tess_stats_get(r->t, &stats) != TESS_OK)
        memset(&stats, 0, sizeof stats);
    return stats;
}

/* A run that continues after a loss does not end if its page cannot open. */
static tess_status open_live(train_run *r) {
    int goes_on = r->joins || train_restarts();
    setvbuf(r->page.kept, NULL, _IONBF, 0);
    tess_status status = live_page_open(fileno(r->page.kept), r->s.model, r->s.watch, &r->live);
    if (status == TESS_OK)
        tool_progress_say(&r->progress, "watch this run: %s", live_page_url(r->live));
    else if (goes_on)
        tool_say(SAY_WARNING, "%s", tess_last_error());
    return goes_on ? TESS_OK : status;
}

tess_status train_output_open(train_run *r) {
    int to_stdout = r->s.json && strcmp(r->s.json, "1") == 0;
    r->text = to_stdout ? stderr : stdout;
    tool_progress_start(&r->progress, r->text, r->s.quiet || r->rank != 0, 1, "");
    if (r->rank != 0)
        return TESS_OK;
    if (r->s.json)
        r->json_file = to_stdout ? stdout : fopen(r->s.json, r->joins || train_restarts() ? "ae" : "we");
    if (r->s.json && !r->json_file)
        return tess_fail(TESS_E_DATA, "--json=%s: %s", r->s.json, strerror(errno));
    if (r->s.report || r->s.watch)
        TRY(report_tee_open(&r->page, r->json_file, r->s.report));
    json_init(&r->json, r->page.stream ? r->page.stream : r->json_file);
    return r->s.watch ? open_live(r) : TESS_OK;
}

int train_output_json(const train_run *r) {
    return r->json_file || r->page.stream;
}

int train_output_shows(const train_run *r) {
    return r->rank == 0 && (!r->s.quiet || r->watch.csv || r->s.tensorboard || train_output_json(r));
}

void train_output_close(train_run *r) {
    tool_progress_finish(&r->progress);
    live_page_close(r->live);
    r->live = NULL;
    report_tee_close(&r->page);
    if (r->json_file && r->json_file != stdout)
        fclose(r->json_file);
    r->json_file = NULL;
}

json_out *train_output_begin(train_run *r, const char *event) {
    if (!train_output_json(r))
        return NULL;
    json_object_begin(&r->json, NULL);
    json_string(&r->json, "event", event);
    return &r->json;
}

void train_output_end(train_run *r) {
    json_object_end(&r->json);
    if (json_line(&r->json) != 0)
        r->json_failed = 1;
}

/* Returns the engine's choices with "auto" resolved. */
static tess_info info_of(const train_run *r) {
    tess_info info = { .struct_size = sizeof info };
    tess_info_get(r->t, &info);
    return info;
}

/* Writes what was lost since the last complete step, even if another rank was rank 0 then. */
static void put_lost(const train_run *r, json_out *j) {
    json_uint(j, "steps_repeated", r->lost.steps);
    json_double(j, "seconds_lost", r->lost.seconds);
}

static void put_restart(train_run *r) {
    json_out *j = train_restarts() && !r->joins ? train_output_begin(r, "restart") : NULL;
    if (!j)
        return;
    json_uint(j, "step", r->steps_done);
    json_uint(j, "restarts", (uint64_t)train_restarts());
    json_int(j, "ranks", r->ranks);
    put_lost(r, j);
    train_output_end(r);
}

static void put_groups(const train_run *r, json_out *j) {
    char names[256];
    json_array_begin(j, "groups");
    for (int32_t i = 0; i < r->s.n_groups; i++) {
        const train_group *g = &r->s.groups[i];
        const tess_schedule *s = &r->schedules[1 + i];
        snprintf(names, sizeof names, "%.*s", (int)g->names_bytes, g->names);
        json_object_begin(j, NULL);
        json_string(j, "names", names);
        json_string(j, "schedule", g->schedule);
        json_double(j, "lr", s->rate);
        json_uint(j, "warmup", s->warmup);
        json_double(j, "min_lr", s->rate * s->least);
        json_double(j, "weight_decay", (double)r->groups[2 + 2 * i].weight_decay);
        json_object_end(j);
    }
    json_array_end(j);
}

static void put_group_rates(const train_run *r, json_out *j, uint64_t step) {
    if (!r->s.n_groups)
        return;
    json_array_begin(j, "group_lr");
    for (int32_t i = 0; i < r->s.n_groups; i++)
        json_double(j, NULL, train_rate(r, 1 + i, step));
    json_array_end(j);
}

void train_output_start(train_run *r) {
    tess_stats stats = stats_of(r);
    if (r->task.source)
        tool_progress_say(&r->progress, "%s", r->task.source);
    if (r->model_options.attention_dropout > 0 && r->rank == 0)
        tool_say(SAY_WARNING, "config.json: attention's dropout of %g is left out: no model here has one",
                 (double)r->model_options.attention_dropout);
    if (r->s.resume && !train_resumes_checkpoint(&r->s))
        tool_progress_say(&r->progress, "parameters from %s; optimizer state and schedule begin anew", r->s.resume);
    tool_progress_say(&r->progress, "%s: %" PRIu64 " parameters in %" PRIu64 " unit%s, %d rank%s, %s", r->s.model,
                      stats.param_elems, stats.n_units, stats.n_units == 1 ? "" : "s", r->ranks,
                      r->ranks == 1 ? "" : "s", r->m->operators);
    json_out *j = train_output_begin(r, "start");
    if (j) {
        json_string(j, "model", r->s.model);
        json_int(j, "ranks", r->ranks);
        json_uint(j, "parameters", stats.param_elems);
        json_uint(j, "units", stats.n_units);
        json_uint(j, "steps", r->task.steps);
        json_uint(j, "seed", r->s.seed);
        json_string(j, "schedule", r->s.schedule);
        json_uint(j, "warmup", r->schedules[0].warmup);
        put_groups(r, j);
        json_string(j, "operators", r->m->operators);
        json_string(j, "data", r->s.data);
        json_string(j, "watch", r->live ? live_page_url(r->live) : NULL);
        train_output_end(r);
    }
    put_restart(r);
    tool_progress_start(&r->progress, r->text, r->s.quiet || r->rank != 0, r->task.steps, r->task.unit);
    r->progress.first = r->first_step;
}

static void put_number(json_out *j, const char *key, double value) {
    if (isnan(value))
        json_null(j, key);
    else
        json_double(j, key, value);
}

void train_output_step(train_run *r, const train_step_record *of) {
    if (!train_output_shows(r))
        return;
    tess_stats stats = stats_of(r);
    uint64_t units = of->step * r->task.units_per_batch * (uint64_t)r->ranks * (uint64_t)r->s.accum;
    tool_progress_show(&r->progress,
                       &(tool_progress_point){ of->step, units, r->loss, stats.live_bytes[TESS_DOMAIN_DEVICE],
                                               stats.peak_bytes[TESS_DOMAIN_DEVICE], r->watch.grad_norm,
                                               r->watch.utilisation, r->watch.loss_scale, r->watch.skipped });
    json_out *j = train_output_begin(r, "step");
    if (!j)
        return;
    json_uint(j, "step", of->step);
    json_double(j, "loss", r->loss);
    json_double(j, "lr", of->rate);
    put_group_rates(r, j, of->step - 1);
    json_double(j, "seconds", of->seconds);
    put_number(j, "grad_norm", r->watch.grad_norm);
    put_number(j, "flop_utilisation", r->watch.utilisation);
    if (!isnan(r->watch.loss_scale)) {
        json_double(j, "loss_scale", r->watch.loss_scale);
        json_uint(j, "overflows", r->watch.skipped);
    }
    train_output_end(r);
}

void train_output_eval(train_run *r, double loss, double accuracy) {
    if (r->rank != 0)
        return;
    uint64_t per_epoch = r->task.steps_per_epoch;
    if (per_epoch)
        tool_progress_say(&r->progress, "epoch %.4g: test loss %.4f, accuracy %.2f %%",
                          (double)r->steps_done / (double)per_epoch, loss, 100 * accuracy);
    else
        tool_progress_say(&r->progress, "step %" PRIu64 ": validation loss %.4f, perplexity %.4g, accuracy %.2f %%",
                          r->steps_done, loss, exp(loss), 100 * accuracy);
    json_out *j = train_output_begin(r, per_epoch ? "epoch" : "validation");
    if (!j)
        return;
    if (per_epoch)
        json_double(j, "epoch", (double)r->steps_done / (double)per_epoch);
    json_uint(j, "step", r->steps_done);
    json_double(j, "loss", loss);
    json_double(j, "accuracy", accuracy);
    json_double(j, "seconds", r->seconds);
    train_output_end(r);
}

void train_output_patience(train_run *r) {
    if (r->rank == 0)
        tool_progress_say(&r->progress,
                          "step %" PRIu64 ": the end, since %" PRIu64
                          " evaluations have brought nothing below %.6g, the "
                          "loss of step %" PRIu64 " (--patience)",
                          r->steps_done, r->best.without, r->best.loss, r->best.step);
}

void train_output_checkpoint(train_run *r, const tess_checkpoint_info *info) {
    json_out *j = &r->json;
    if (!train_output_json(r))
        return;
    json_object_begin(j, NULL);
    json_string(j, "event", "checkpoint");
    json_uint(j, "step", info->step);
    json_uint(j, "bytes", info->bytes);
    json_double(j, "stall_seconds", info->stall_seconds);
    json_double(j, "write_seconds", info->write_seconds);
    json_object_end(j);
    if (json_line(j) != 0)
        r->json_failed = 1;
}

void train_output_recovery(train_run *r, const tess_recovery *got) {
    if (r->rank != 0)
        return;
    tool_progress_say(&r->progress, "a rank was lost: %d rank%s on after step %" PRIu64 " (%.2f s)", r->ranks,
                      r->ranks == 1 ? " goes" : "s go", got->step, got->seconds);
    json_out *j = train_output_begin(r, "recovery");
    if (!j)
        return;
    json_uint(j, "step", got->step);
    json_uint(j, "steps_lost", got->steps_lost);
    json_int(j, "ranks", r->ranks);
    json_uint(j, "recoveries", got->recoveries);
    json_double(j, "seconds", got->seconds);
    put_lost(r, j);
    train_output_end(r);
}

/* A terminal gets printable ASCII, newlines and tabs. Other bytes become dots. */
static int is_shown(int32_t c) {
    return (c >= 0x20 && c < 0x7f) || c == '\n' || c == '\t';
}

/* Returns a token's text, or its number if there is no tokenizer. */
static const char *token_text(const train_run *r, const train_sample *s, uint64_t i, char number[16], size_t *bytes) {
    if (r->task.tokenizer && !s->is_bytes)
        return tokenizer_text(r->task.tokenizer, s->tokens[i], bytes);
    *bytes = s->is_bytes ? 1 : (size_t)snprintf(number, 16, "%s%d", i ? " " : "", s->tokens[i]);
    if (s->is_bytes)
        number[0] = (char)s->tokens[i];
    return number;
}

/* Returns the sample as text. With `printable`, byte-level models give printable characters only. The caller frees
 * it. */
static char *sample_text(const train_run *r, const train_sample *s, int printable) {
    char *text = NULL, number[16];
    size_t size, n;
    FILE *to = open_memstream(&text, &size);
    for (uint64_t i = 0; to && i < s->n; i++) {
        const char *piece = token_text(r, s, i, number, &n);
        for (size_t k = 0; k < n; k++)
            fputc(piece[k] && (!s->is_bytes || !printable || is_shown(piece[k])) ? piece[k] : '.', to);
    }
    if (to)
        fclose(to);
    return text;
}

static void put_sample(json_out *j, const train_sample *s, const char *text) {
    if (text)
        json_string(j, "text", text);
    json_array_begin(j, "tokens");
    for (uint64_t i = 0; i < s->n; i++)
        json_int(j, NULL, s->tokens[i]);
    json_array_end(j);
    json_uint(j, "passes", s->passes);
    json_uint(j, "cache_bytes", s->bytes);
    json_double(j, "seconds", s->seconds);
}

void train_output_sample(train_run *r, const train_sample *s) {
    int is_text = s->is_bytes || r->task.tokenizer;
    char *shown = sample_text(r, s, 1), *whole = is_text ? sample_text(r, s, 0) : NULL;
    tool_progress_say(&r->progress, "a sample of what it writes:\n%s", shown ? shown : "");
    json_out *j = train_output_begin(r, "sample");
    if (j) {
        put_sample(j, s, whole);
        train_output_end(r);
    }
    free(shown);
    free(whole);
}

/* ---- the end ----------------------------------------------------------------------------------- */
static void put_allocations(json_out *j) {
    tool_alloc_library l;
    if (!tool_alloc_available()) {
        json_null(j, "step_allocations");
        json_null(j, "library_allocations");
        return;
    }
    json_uint(j, "step_allocations", tool_alloc_own());
    json_object_begin(j, "library_allocations");
    for (size_t i = 0; tool_alloc_library_at(i, &l); i++) {
        if (l.own)
            continue;
        json_object_begin(j, l.name);
        json_uint(j, "count", l.count);
        json_uint(j, "bytes", l.bytes);
        json_object_end(j);
    }
    json_object_end(j);
}

/* Returns the most memory that this process has had resident. */
static uint64_t resident_bytes(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}

static void put_speed(const train_run *r, json_out *j) {
    double median = train_watch_median(r);
    json_double(j, "step_seconds", median);
    json_double(j, "tokens_per_second", median > 0 ? train_watch_units(r) / median : 0);
    put_number(j, "flop_utilisation", train_watch_utilisation(r, median));
    put_number(j, "peak_flops_per_second", r->watch.peak_flops > 0 ? r->watch.peak_flops : NAN);
    json_string(j, "peak_flops_source", r->s.peak_flops > 0 ? "given" : r->watch.peak_flops > 0 ? "measured" : NULL);
}

static void table_row(train_run *r, const char *name, const char *value) {
    tool_progress_say(&r->progress, "  %-22s %s", name, value);
}

static void print_utilisation(train_run *r) {
    char text[128];
    double share = train_watch_utilisation(r, train_watch_median(r));
    if (isnan(share))
        return;
    snprintf(text, sizeof text, "%.1f %% of %.4g operations per second, %s", 100 * share, r->watch.peak_flops,
             r->s.peak_flops > 0 ? "as given" : "measured on a product");
    table_row(r, "utilisation", text);
}

static void put_summary(train_run *r, const tess_stats *stats) {
    json_out *j = train_output_begin(r, "summary");
    tess_info info = info_of(r);
    if (!j)
        return;
    json_string(j, "model", r->s.model);
    json_int(j, "ranks", r->ranks);
    json_string(j, "comm", info.comm);
    json_string(j, "offload", info.offload);
    json_string(j, "precision", info.precision);
    json_string(j, "wrap", info.wrap);
    json_string(j, "strategy", info.strategy);
    json_string(j, "device", info.device);
    json_string(j, "optimizer", info.optimizer);
    json_string(j, "activations", info.activations);
    json_int(j, "accum", r->s.accum);
    json_int(j, "threads", r->m->options.threads);
    json_uint(j, "steps", r->steps_done);
    train_lives_summary(r);
    json_uint(j, "steps_skipped", stats->n_skipped);
    if (stats->n_audits) {
        json_uint(j, "audits", stats->n_audits);
        json_uint(j, "audit_failures", stats->n_audit_failures);
    }
    if (stats->loss_scale > 0) {
        json_double(j, "loss_scale", stats->loss_scale);
        json_uint(j, "overflows", stats->n_overflows);
    }
    put_number(j, "loss", r->loss);
    put_number(j, "accuracy", r->accuracy);
    json_double(j, "seconds", r->seconds);
    put_speed(r, j);
    json_uint(j, "peak_device_bytes", stats->peak_bytes[TESS_DOMAIN_DEVICE]);
    json_uint(j, "planned_peak_device_bytes", stats->planned_peak_bytes[TESS_DOMAIN_DEVICE]);
    json_uint(j, "peak_host_bytes", stats->peak_bytes[TESS_DOMAIN_HOST]);
    json_uint(j, "planned_peak_host_bytes", stats->planned_peak_bytes[TESS_DOMAIN_HOST]);
    json_uint(j, "peak_disk_bytes", stats->disk_peak_bytes);
    json_uint(j, "planned_peak_disk_bytes", stats->planned_disk_peak_bytes);
    put_allocations(j);
    json_uint(j, "peak_resident_bytes", resident_bytes());
    json_string(j, "params_digest", r->digest[0] ? r->digest : NULL);
    if (r->ops->has_validation_loss)
        put_number(j, "validation_loss", r->eval_loss);
    if (r->best.n) {
        put_number(j, "best_loss", isfinite(r->best.loss) ? r->best.loss : NAN);
        json_uint(j, "best_step", r->best.step);
        json_bool(j, "ended_by_patience", train_best_stops(r));
    }
    train_output_end(r);
}

static void print_memory(train_run *r, const char *name, uint64_t peak, uint64_t planned) {
    char a[32], text[128];
    snprintf(text, sizeof text, "%s (%" PRIu64 " bytes, planned %" PRIu64 ")", tool_bytes_text(peak, a), peak, planned);
    table_row(r, name, text);
}

/* Prints memory that backends allocate themselves. The figures above exclude it. */
static void print_libraries(train_run *r) {
    tool_alloc_library l;
    char size[32], text[160];
    for (size_t i = 0; tool_alloc_library_at(i, &l); i++) {
        if (l.own)
            continue;
        snprintf(text, sizeof text, "%" PRIu64 ", %s in all, by %s", l.count, tool_bytes_text(l.bytes, size), l.name);
        table_row(r, "and by a library", text);
    }
    snprintf(text, sizeof text, "%s", tool_bytes_text(resident_bytes(), size));
    table_row(r, "resident set, peak", text);
}

/* The speed follows from the median step, as in the summary and the report. */
static void print_speed(train_run *r) {
    double median = train_watch_median(r);
    char text[128];
    int n = snprintf(text, sizeof text, "%" PRIu64 " in %.2f s", r->steps_done, r->seconds);
    if (median > 0)
        snprintf(text + n, sizeof text - (size_t)n, ", median %.4g s, by it %.0f %s/s", median,
                 train_watch_units(r) / median, r->task.unit);
    table_row(r, "steps", text);
}

static void print_table(train_run *r, const tess_stats *stats) {
    tess_info info = info_of(r);
    char text[128];
    tool_progress_say(&r->progress, "%s, %d rank%s, %s, strategy %s, wrap %s:", r->s.model, r->ranks,
                      r->ranks == 1 ? "" : "s", info.comm, info.strategy, info.wrap);
    print_speed(r);
    print_utilisation(r);
    snprintf(text, sizeof text, "%.6f", r->loss);
    if (!isnan(r->loss) || r->steps_done > r->first_step) /* a run without steps has no loss */
        table_row(r, "loss of the last step", text);
    if (!isnan(r->eval_loss)) {
        snprintf(text, sizeof text, "%.4f, accuracy %.2f %%", r->eval_loss, 100 * r->accuracy);
        table_row(r, r->task.steps_per_epoch ? "test loss" : "validation loss", text);
    }
    if (stats->loss_scale > 0) {
        snprintf(text, sizeof text, "%.9g, and %" PRIu64 " steps left out that overflowed", stats->loss_scale,
                 stats->n_overflows);
        table_row(r, "loss scale", text);
    }
    print_memory(r, "device memory, peak", stats->peak_bytes[TESS_DOMAIN_DEVICE],
                 stats->planned_peak_bytes[TESS_DOMAIN_DEVICE]);
    if (stats->peak_bytes[TESS_DOMAIN_HOST])
        print_memory(r, "host memory, peak", stats->peak_bytes[TESS_DOMAIN_HOST],
                     stats->planned_peak_bytes[TESS_DOMAIN_HOST]);
    if (stats->disk_peak_bytes)
        print_memory(r, "disk, peak", stats->disk_peak_bytes, stats->planned_disk_peak_bytes);
    if (tool_alloc_available()) {
        snprintf(text, sizeof text, "%" PRIu64, tool_alloc_own());
        table_row(r, "allocations in steps", text);
        print_libraries(r);
    }
    if (r->digest[0])
        table_row(r, "params_digest", r->digest);
}

tess_status train_output_finish(train_run *r) {
    tess_stats stats = stats_of(r);
    print_table(r, &stats);
    put_summary(r, &stats);
    if (r->json_failed)
        return tess_fail(TESS_E_SYSTEM, "--%s=%s: not everything could be written", r->s.json ? "json" : "report",
                         r->s.json ? r->s.json : r->s.report);
    return r->s.report ? report_tee_write(&r->page, r->s.model) : TESS_OK;
}

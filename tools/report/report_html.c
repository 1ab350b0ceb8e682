/* SPDX-License-Identifier: BSD-3-Clause */
/* One page: no script, nothing loaded from anywhere, every picture also as a table. */
#include "report.h"

static const char page_style[] =
    ":root{color-scheme:light dark;--page:#fff;--ink:#1b1f24;--muted:#57606a;--rule:#d8dee4;--wash:#f6f8fa;"
    "--link:#0b5cad;--good:#116329;--bad:#b3131f}\n"
    "@media screen and (prefers-color-scheme:dark){:root{--page:#14171c;--ink:#e6edf3;--muted:#9aa4af;--rule:#2b323b;"
    "--wash:#1b2027;--link:#79b8ff;--good:#6fdd8b;--bad:#ff9a92}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;padding:2rem 1.25rem 4rem;max-width:64rem;background:var(--page);color:var(--ink);"
    "font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','DejaVu Sans',sans-serif}\n"
    "h1{font-size:1.6rem;line-height:1.25;margin:0 0 .25rem}h2{font-size:1.25rem;margin:3rem 0 .5rem;padding-top:1rem;"
    "border-top:1px solid var(--rule);overflow-wrap:anywhere}h3{font-size:1rem;margin:2rem 0 .5rem}\n"
    "p{margin:.5rem 0;max-width:46rem}.muted{color:var(--muted)}a{color:var(--link)}\n"
    ".good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}\n"
    "dl.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(9rem,1fr));gap:.75rem 1.5rem;margin:1rem 0}"
    "dl.facts div{border-top:2px solid "
    "var(--rule);padding-top:.35rem;display:flex;flex-direction:column;justify-content:space-between}dt{color:var(--"
    "muted);font-size:.8125rem}"
    "dd{margin:0;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}dl.key "
    "dd{font-size:1.25rem;font-weight:600}\n"
    ".scroll{overflow-x:auto;margin:.75rem 0 1.5rem}"
    ".scroll:focus-visible,summary:focus-visible,a:focus-visible{outline:3px solid var(--link);outline-offset:2px}\n"
    "figure{margin:0}.scroll>svg{display:block;max-width:100%;min-width:44rem;height:auto}\n"
    "table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums;min-width:24rem}\n"
    "caption{text-align:left;font-weight:600;padding:.25rem 0 .5rem}\n"
    "th,td{padding:.3rem .6rem .3rem 0;text-align:left;vertical-align:baseline;border-bottom:1px solid var(--rule);"
    "white-space:nowrap}"
    "th{font-weight:400}thead th{color:var(--muted);font-size:.8125rem;vertical-align:bottom;white-space:normal}"
    ".n{text-align:right}tr.sum>*,tr.peak>*{font-weight:600}tr.peak>*{background:var(--wash)}\n"
    "svg.swatch{width:.75rem;height:.75rem;vertical-align:baseline}"
    "svg.defs{position:absolute;width:0;height:0}\n"
    ".legend{display:flex;flex-wrap:wrap;gap:.25rem 1rem;font-size:.8125rem;margin:0 0 1rem}\n"
    "summary{cursor:pointer;padding:.25rem 0;color:var(--link)}\n"
    "@media print{body{max-width:none;padding:0;font-size:10pt}.scroll{overflow:visible}.scroll>svg{min-width:0}"
    "h2{break-before:page}#run0>h2{break-before:auto}figure,tr{break-inside:avoid}"
    "*{-webkit-print-color-adjust:exact;print-color-adjust:exact}a{color:inherit;text-decoration:none}"
    "table{font-size:8pt}}\n";

static void put_head(FILE *out) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
          "<meta name=\"color-scheme\" content=\"light dark\"/>\n"
          "<title>Memory and time of a training step</title>\n<style>\n",
          out);
    fputs(page_style, out);
    report_svg_style(out);
    fputs("</style>\n</head>\n<body>\n<svg class=\"defs\" aria-hidden=\"true\">", out);
    report_svg_defs(out);
    fputs("</svg>\n<main>\n", out);
}

/* ---- what was run ------------------------------------------------------------------------------ */
static void fact(FILE *out, const char *name, const char *value, const char *class) {
    fprintf(out, "<div><dt>%s</dt><dd%s%s%s>", name, class ? " class=\"" : "", class ? class : "", class ? "\"" : "");
    report_escape_cut(out, value, 80);
    fputs("</dd></div>\n", out);
}

static void bytes_fact(FILE *out, const char *name, uint64_t bytes) {
    char text[32];
    if (bytes)
        fact(out, name, report_bytes(bytes, text), NULL);
}

static void seconds_fact(FILE *out, const char *name, double seconds) {
    char text[32];
    if (seconds > 0)
        fact(out, name, report_seconds(seconds, text), NULL);
}

static void put_key_facts(FILE *out, const report_run *run) {
    int source = report_has_spans(run, REPORT_MEASURED) ? REPORT_MEASURED : REPORT_PLANNED;
    fputs("<dl class=\"facts key\">\n", out);
    bytes_fact(out, "device memory obtained, planned", run->planned_peak[REPORT_DEVICE]);
    bytes_fact(out, "device memory obtained, measured", run->measured_peak[REPORT_DEVICE]);
    bytes_fact(out, "host memory obtained, planned", run->planned_peak[REPORT_HOST]);
    bytes_fact(out, "host memory obtained, measured", run->measured_peak[REPORT_HOST]);
    bytes_fact(out, "device memory allowed", run->budget[REPORT_DEVICE]);
    bytes_fact(out, "host memory allowed", run->budget[REPORT_HOST]);
    if (run->has_fits)
        fact(out, "within the budget", run->fits ? "it fits" : "it does not fit", run->fits ? "good" : "bad");
    seconds_fact(out, "a step, predicted", run->predicted_seconds);
    seconds_fact(out, "a step, median of the run", run->step_seconds);
    if (run->tokens_per_second > 0) {
        char text[32];
        fact(out, "tokens or samples per second, by that median",
             report_grouped((uint64_t)run->tokens_per_second, text), NULL);
    }
    if (report_has_spans(run, source)) {
        seconds_fact(out, "the step drawn here", report_span_end(run, source));
        seconds_fact(out, "communication", report_lane_busy(run, source, 1));
        seconds_fact(out, "communication that compute waits for", report_exposed(run, source, 1));
    }
    fputs("</dl>\n", out);
}

static void put_settings(FILE *out, const report_run *run) {
    char text[64];
    fputs("<dl class=\"facts\">\n", out);
    for (int i = 0; i < REPORT_SETTINGS; i++)
        if (run->settings[i][0])
            fact(out, report_setting_keys[i], run->settings[i], NULL);
    if (run->steps)
        fact(out, "steps", report_grouped(run->steps, text), NULL);
    if (run->has_loss) {
        snprintf(text, sizeof text, "%.6g", run->loss);
        fact(out, "loss of the last step", text, NULL);
    }
    if (run->utilisation > 0) {
        snprintf(text, sizeof text, "%.1f %%, %.4g operations/s %s", 100 * run->utilisation, run->peak_flops,
                 run->peak_given ? "given" : "measured");
        fact(out, "share of the peak rate", text, NULL);
    }
    fputs("</dl>\n", out);
}

static void put_verdict(FILE *out, const report_run *run, const report_order *o) {
    if (run->estimate)
        fputs("<p>The activations of this plan are an estimate by formula; all else is exact.</p>\n", out);
    if (o->both && !o->different) {
        fprintf(out,
                "<p><span class=\"good\">Planned equals measured</span>, in every category, at all %zu instants of the "
                "step that have both",
                o->both);
        if (o->n > o->both)
            fprintf(out, "; %zu of the %zu in the picture have one of them only", o->n - o->both, o->n);
        fputs(".</p>\n", out);
    } else if (o->both) {
        fprintf(out, "<p><span class=\"bad\">Planned differs from measured</span> at %zu of %zu instants, first ",
                o->different, o->both);
        report_point_text(out, run, o->first_different);
        fputs(".</p>\n", out);
    }
}

/* ---- a run ------------------------------------------------------------------------------------- */
static void put_memory(FILE *out, const report_picture *p, size_t r) {
    fprintf(out,
            "<h3>%s memory</h3>\n<figure>\n<div class=\"scroll\" tabindex=\"0\" role=\"group\" "
            "aria-label=\"Picture of %s memory\">\n",
            p->domain == REPORT_DEVICE ? "Device" : "Host", report_domain_names[p->domain]);
    report_svg_memory(out, p, 0);
    fputs("</div>\n</figure>\n", out);
    report_table_peak(out, p->run, p->order, p->domain, r);
}

static void put_timelines(FILE *out, const report_run *run, size_t r) {
    static const char *const names[] = { "Timeline, simulated", "Timeline, measured" };
    for (int s = REPORT_SOURCES - 1; s >= 0; s--) {
        if (!report_has_spans(run, s))
            continue;
        fprintf(out, "<h3>%s</h3>\n<figure>\n<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"%s\">\n",
                names[s], names[s]);
        report_timeline_svg(out, run, s, (int)(r * 16 + 4) + s);
        fputs("</div>\n<figcaption class=\"legend\">", out);
        report_timeline_legend(out, run, s);
        fputs("</figcaption>\n</figure>\n", out);
    }
    if (run->n_spans)
        report_table_lanes(out, run, r);
}

static void put_curve(FILE *out, const report_run *run, int curve, int number) {
    static const char *const titles[REPORT_CURVES] = { "Loss", "Validation loss", "Gradient norm", "Learning rate",
                                                       "Loss scale" };
    if (!report_curve_svg(NULL, run, curve, number))
        return;
    fprintf(
        out,
        "<h3>%s</h3>\n<figure>\n<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"%s over the run\">\n",
        titles[curve], report_curve_names[curve]);
    report_curve_svg(out, run, curve, number);
    fputs("</div>\n</figure>\n", out);
}

static void put_run(FILE *out, const report_run *runs, const report_order *orders, size_t n, size_t r) {
    const report_run *run = &runs[r];
    const report_order *o = &orders[r];
    fprintf(out, "<section id=\"run%zu\" aria-labelledby=\"h%zu\">\n<h2 id=\"h%zu\">", r, r, r);
    report_escape_cut(out, run->label, 120);
    fputs("</h2>\n", out);
    put_settings(out, run);
    put_key_facts(out, run);
    put_verdict(out, run, o);
    for (int curve = 0; curve < REPORT_CURVES; curve++)
        put_curve(out, run, curve, (int)(r * 16 + 8) + curve);
    if (run->n_ranks > 1)
        report_table_ranks(out, run, r);
    for (int d = 0; d < REPORT_DOMAINS; d++)
        if (report_svg_wanted(run, o, d))
            put_memory(
                out, &(report_picture){ run, o, d, 1, report_shared_top(runs, orders, n, r, d), (int)(r * 16) + d }, r);
    put_timelines(out, run, r);
    if (run->n_units) {
        fputs("<h3>Units</h3>\n", out);
        report_table_units(out, run, r);
    }
    if (o->n) {
        fprintf(out, "<details>\n<summary>All %zu instants of the step, as a table</summary>\n", o->n);
        report_table_points(out, run, o, r);
        fputs("</details>\n", out);
    }
    fputs("</section>\n", out);
}

static void put_comparison(FILE *out, const report_run *runs, const report_order *orders, size_t n) {
    fputs("<section aria-labelledby=\"hc\">\n<h2 id=\"hc\">Comparison</h2>\n<figure>\n<div class=\"scroll\" "
          "tabindex=\"0\" "
          "role=\"group\" aria-label=\"Picture of peaks and step times\">\n",
          out);
    report_compare_svg(out, runs, orders, n);
    fputs("</div>\n</figure>\n", out);
    report_table_compare(out, runs, n);
    fputs("</section>\n", out);
}

void report_html(FILE *out, const report_run *runs, const report_order *orders, size_t n) {
    put_head(out);
    fputs("<h1>Memory and time of a training step</h1>\n"
          "<p class=\"muted\">Pictures show rank 0. <b>Obtained</b> is the memory that Tessera takes from the system, "
          "for the "
          "whole run. <b>Alive</b> is the part of it that holds something at an instant; the rest is fragmentation. 1 "
          "MiB is "
          "1,048,576 bytes; tables give bytes.</p>\n",
          out);
    if (n > 1)
        put_comparison(out, runs, orders, n);
    for (size_t r = 0; r < n; r++)
        put_run(out, runs, orders, n, r);
    fputs("</main>\n</body>\n</html>\n", out);
}

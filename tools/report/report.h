/* SPDX-License-Identifier: BSD-3-Clause */
/* `tessera report`: what its files share. report.c parses and chooses; report_read.c reads the lines that `--json`
 * writes; report_order.c puts planned and measured side by side; report_text.c escapes and labels; report_svg.c draws
 * memory, report_compare.c bars, report_timeline.c lanes, report_style.c has their colours, report_curve.c the loss and
 * the ranks, report_html.c and report_tables.c the page, report_trace.c the trace; report_file.c puts a whole file in
 * place or none; report_tee.c is for commands that write a page of their own. */
#ifndef TOOL_REPORT_H
#define TOOL_REPORT_H
#include <stdint.h>
#include <stdio.h>
#include <tessera/tessera.h>

/* ---- what a file says ---------------------------------------------------------------------------- */
enum { REPORT_CATEGORIES = 12 }; /* in stacking order: resting categories first, all others last */
extern const char *const report_category_keys[REPORT_CATEGORIES]; /* names in JSON */
/** "unsharded parameter". */
const char *report_category_name(int category);

enum { REPORT_DEVICE, REPORT_HOST, REPORT_DOMAINS };
enum { REPORT_PLANNED, REPORT_MEASURED, REPORT_SOURCES };
extern const char *const report_domain_names[REPORT_DOMAINS];
extern const char *const report_source_names[REPORT_SOURCES];

enum { /* points: before and after each; then the peak, then any other */
       REPORT_PRE_FORWARD,
       REPORT_POST_FORWARD = 2,
       REPORT_PRE_BACKWARD = 4,
       REPORT_POST_BACKWARD = 6,
       REPORT_OPTIMIZER = 8,
       REPORT_PEAK = 10,
       REPORT_OTHER_POINT
};

enum { REPORT_LANES = 6 }; /* compute, communication, transfers up and down, host, any other */
extern const char *const report_lane_keys[REPORT_LANES];

typedef struct {
    uint64_t bytes[REPORT_CATEGORIES], total;
} report_stack;

typedef struct {
    int32_t pass, unit; /* names; unit -1: none */
    int32_t point;      /* REPORT_PRE_FORWARD and after it … */
    int32_t point_name;
    uint64_t index;
    report_stack domain[REPORT_DOMAINS];
} report_point;

typedef struct {
    uint8_t source, lane;
    int32_t op, unit; /* names; unit -1: none */
    double start, seconds;
} report_span;

typedef struct {
    int32_t name;
    uint64_t parameters, elements, shard_bytes, unsharded_bytes, gradient_bytes, state_bytes;
    char owners[96]; /* ranks that step its whole matrices, as text; "": none */
} report_unit;

typedef struct {
    uint64_t step;
    double loss, grad_norm, rate, scale; /* NAN: none */
} report_loss;

enum { REPORT_RANK_DEVICE, REPORT_RANK_HOST, REPORT_RANK_RESIDENT, REPORT_RANK_ALLOCATIONS, REPORT_RANK_FIGURES };
typedef struct {
    uint64_t rank, figure[REPORT_RANK_FIGURES];
} report_rank;

enum { REPORT_SETTINGS = 11 };
extern const char *const report_setting_keys[REPORT_SETTINGS]; /* model, ranks, … as JSON and people name them */

typedef struct {
    const char *path, *label;            /* label: the path's end that tells the files apart */
    char settings[REPORT_SETTINGS][128]; /* "": not said */
    report_point *points[REPORT_SOURCES];
    size_t n_points[REPORT_SOURCES], cap_points[REPORT_SOURCES];
    report_span *spans;
    size_t n_spans, cap_spans;
    report_unit *units;
    size_t n_units, cap_units;
    report_loss *losses; /* in order of the file */
    size_t n_losses, cap_losses;
    report_loss *validations; /* losses of evaluations, in order of the file */
    size_t n_validations, cap_validations;
    report_rank *ranks;
    size_t n_ranks, cap_ranks;
    char **names;
    int32_t n_names, cap_names;
    void *name_index;
    /* 0: not said, as for the times */
    int32_t peak_pass, peak_unit, peak_point; /* names: the last point before the device's peak, as the plan says */
    uint64_t planned_peak[REPORT_DOMAINS], measured_peak[REPORT_DOMAINS], budget[REPORT_DOMAINS];
    double step_seconds, predicted_seconds, tokens_per_second;
    double loss, utilisation, peak_flops; /* the latter two: 0: not said */
    uint64_t steps;
    int peak_given, has_loss, has_fits, fits, estimate, is_plan, is_run;
} report_run;

/* ---- report_read.c ------------------------------------------------------------------------------- */
/** Reads all lines of `in`; messages call it `path`. `out` holds what was read until report_run_free, also after a
 * failure. TESS_E_DATA with the line where something is not as docs/json.md says. */
tess_status report_read(FILE *in, const char *path, report_run *out);
void report_run_free(report_run *);
const char *report_name(const report_run *, int32_t name); /* -1: "" */

/* ---- report_order.c ------------------------------------------------------------------------------ */
typedef struct { /* one instant: what was planned and what was measured; one of them may be null */
    const report_point *of[REPORT_SOURCES];
    uint8_t domains; /* bits: those that it speaks of; a peak between points of only one */
} report_column;

enum report_phase { REPORT_FORWARD = 1, REPORT_BACKWARD, REPORT_STEP, REPORT_NO_PHASE };

typedef struct {
    report_column *columns;
    uint8_t *phases; /* phase of each column; a backward includes the columns within it */
    size_t n;
    int area;                                        /* the source of the areas: planned, else measured */
    size_t peak[REPORT_DOMAINS];                     /* the column where most of it is alive */
    const report_point *peak_points[REPORT_SOURCES]; /* null: not said */
    size_t both, different;                          /* instants planned and measured; those of them that differ */
    const report_point *first_different;
} report_order;

/** Sorts all instants by time. */
tess_status report_order_make(const report_run *, report_order *out);
void report_order_free(report_order *);
/** The planned point, or else the measured one. */
const report_point *report_column_point(const report_column *);
/** The bytes alive in a domain at column i, or null when that source does not say. */
const report_stack *report_stack_at(const report_order *, int source, size_t i, int domain);
/** One past the last column that belongs to the same time in a scope as column i. */
size_t report_order_segment(const report_order *, size_t i);

/** Seconds of `lane` within the span of the step that no compute covers, and the step's length, of one source. */
double report_exposed(const report_run *, int source, int lane);
double report_span_end(const report_run *, int source);
int report_has_spans(const report_run *, int source);
double report_lane_busy(const report_run *, int source, int lane);

/* ---- report_text.c ------------------------------------------------------------------------------- */
/** Text for XML and HTML, in elements and in quoted attributes: escaped, and without what XML cannot hold. */
void report_escape(FILE *, const char *text);
/** The same, cut to `most` characters with an ellipsis. */
void report_escape_cut(FILE *, const char *text, size_t most);
/** Counts the characters (code points) of a text. */
size_t report_length(const char *text);
/** "12.3 MiB", "512 KiB", "0": three digits that count. */
const char *report_bytes(uint64_t bytes, char out[32]);
/** "1,234,567". */
const char *report_grouped(uint64_t value, char out[32]);
/** "12.3 ms". */
const char *report_seconds(double seconds, char out[32]);
/** The distance of marks on an axis of bytes up to `top`, a power of two times 1, 1024, …; at most 6 marks. */
uint64_t report_tick_bytes(uint64_t top);
/** Returns the step of an axis of seconds: 1, 2 or 5 times a power of ten, for at most 10 marks. */
double report_tick_seconds(double top);
/** "before pre-forward of h.0". Escaped. */
void report_point_text(FILE *, const report_run *, const report_point *);

/* ---- pictures ------------------------------------------------------------------------------------ */
/** The rules for both pictures, light and dark: what stands between <style> and </style>. */
void report_svg_style(FILE *);
/** The patterns that some categories wear besides their colour. */
void report_svg_defs(FILE *);
/** The pattern that category c wears over its colour, which is the class "c0" and so on; or null. */
const char *report_category_pattern(int category);

typedef struct {
    const report_run *run;
    const report_order *order;
    int domain, bare; /* bare: omits title and settings, for use within a page */
    uint64_t top;     /* top of the axis, equal in all pictures that are compared */
    int number;       /* unique among the pictures of a file */
} report_picture;

/** The highest value that a picture of this run shows. */
uint64_t report_svg_top(const report_run *, const report_order *, int domain);
/** True if the domain has something to show. */
int report_svg_wanted(const report_run *, const report_order *, int domain);
/** Memory over the step as one <svg> element, REPORT_SVG_WIDTH wide, with its corner at 0, y. */
int report_svg_height(const report_picture *);
void report_svg_memory(FILE *, const report_picture *, int y);
enum { REPORT_SVG_WIDTH = 960 };
/** A whole file with the memory pictures of all runs. */
void report_svg_file(FILE *, const report_run *, const report_order *, size_t n);

/** The top for run r: that of the highest run which is not over four times as high, so that like runs share a scale. */
uint64_t report_shared_top(const report_run *, const report_order *, size_t n, size_t r, int domain);
/** The peaks and the step times of several runs, as bars. */
void report_compare_svg(FILE *, const report_run *, const report_order *, size_t n);

/** The lanes of one source. */
void report_timeline_svg(FILE *, const report_run *, int source, int number);
/** The operations that a timeline shows, each once, with their colours. */
void report_timeline_legend(FILE *, const report_run *, int source);
/** Returns the category that gives an operation its colour. */
int report_op_colour(const char *op);

/* ---- report_curve.c ------------------------------------------------------------------------------ */
enum {
    REPORT_CURVE_LOSS,
    REPORT_CURVE_VALIDATION,
    REPORT_CURVE_NORM,
    REPORT_CURVE_RATE,
    REPORT_CURVE_SCALE,
    REPORT_CURVES
};
extern const char *const report_curve_names[REPORT_CURVES];
/** Draws one of the curves over the steps; 0 if there are fewer than two values. If `out` is null it only checks. */
int report_curve_svg(FILE *out, const report_run *, int curve, int number);
/** Writes each rank's figures and marks those in which ranks differ. */
void report_table_ranks(FILE *, const report_run *, size_t r);

/* ---- pages and traces ---------------------------------------------------------------------------- */
void report_html(FILE *, const report_run *, const report_order *, size_t n);
void report_trace(FILE *, const report_run *, const report_order *, size_t n);
/* report_tables.c; `r`: the run's number, part of names within the page */
void report_table_compare(FILE *, const report_run *, size_t n);
void report_table_peak(FILE *, const report_run *, const report_order *, int domain, size_t r);
void report_table_units(FILE *, const report_run *, size_t r);
void report_table_lanes(FILE *, const report_run *, size_t r);
void report_table_points(FILE *, const report_run *, const report_order *, size_t r);

/* ---- report_file.c ------------------------------------------------------------------------------- */
typedef struct {
    FILE *out;
    const char *path;
    char target[4096], temporary[4096 + 32]; /* temporary "": written in place, as a pipe or a device is */
} report_file;

/** Opens `path`, "-" for standard output, under a temporary name beside it. */
tess_status report_file_open(report_file *, const char *path);
/** Puts the whole file in place, or takes it away and fails when not everything could be written. */
tess_status report_file_commit(report_file *);
/** Removes the temporary file; a file at the path stays. */
void report_file_discard(report_file *);

enum report_format { REPORT_HTML, REPORT_SVG, REPORT_TRACE };
/** Writes a report of `n` runs to `path`. */
tess_status report_write(const report_run *, size_t n, int format, const char *path);
tess_status report_put(const report_run *, size_t n, int format, FILE *out);

/* ---- report_tee.c -------------------------------------------------------------------------------- */
typedef struct {
    FILE *stream;       /* receives JSON */
    FILE *kept, *shown; /* a temporary file without a name; the caller's, or null */
    const char *page;
} report_tee;

/** Fails now when `page` could not be written later; null: none is. The struct stays where it is. */
tess_status report_tee_open(report_tee *, FILE *shown, const char *page);
/** Writes the page from the JSON received so far, with the heading `name`. */
tess_status report_tee_write(report_tee *, const char *name);
void report_tee_close(report_tee *); /* leaves `shown` open */
#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* `tessera train`: what its files share. train.c parses and starts ranks; train_rank.c is one rank's run,
 * train_step.c a step of it, train_identity.c what makes two runs the same, train_common.c what its parts share;
 * train_state.c loads, saves and digests parameters; train_output.c prints, train_ledger.c the ledger; train_mnist.c,
 * train_gpt.c, train_lm.c, train_convbn.c and train_linear.c are the tasks.
 */
#ifndef TOOL_TRAIN_H
#define TOOL_TRAIN_H
#include <stdio.h>
#include <tessera/inspect.h>

#include "tools/train/data/idx.h"
#include "tools/train/data/sampler.h"
#include "tools/train/data/text.h"
#include "tools/train/data/tokens.h"
#include "tools/support/json_out.h"
#include "tools/models/model.h"
#include "tools/support/progress.h"
#include "tools/report/report.h"
#include "tools/train/live_page.h"
#include "tools/train/tensorboard.h"
#include "tools/plan/model_settings.h"
#include "tools/plan/plan_alternative.h"

typedef struct train_run train_run;
typedef struct train_spans train_spans;
typedef struct train_feed train_feed;
typedef struct train_lives train_lives;

typedef struct { /* a model's data and what is done with it */
    /** Loads the data; sets the fields of `task` below. */
    tess_status (*open)(train_run *);
    void (*close)(train_run *);
    /** The batch of this rank's microbatch k in `step` (from 0). */
    void (*fill)(const train_run *, uint64_t step, int32_t k, void *batch);
    /** Evaluation batch i; past the last: an empty one, for ranks with less to do. */
    void (*fill_eval)(const train_run *, uint64_t i, void *batch);
    /** After training; may be null. */
    tess_status (*finish)(train_run *);
    int32_t has_validation_loss; /* a member of the summary */
} train_task_ops;
extern const train_task_ops train_mnist, train_gpt, train_lm, train_convbn, train_linear;

typedef struct {        /* a step; `started` 0: none */
    uint64_t step;      /* from 1 */
    double shared[2];   /* its loss, and whether the rank is asked to end: first this rank's, then the mean */
    double rate;        /* of learning */
    double started;     /* when */
    double seconds;     /* it took */
    double run_seconds; /* of that, in tess_run */
    double grad_norm;   /* NAN: not known */
    double own_loss;    /* this rank's */
} train_step_record;

typedef struct {
    train_step_record running; /* whose result is still to come */
    train_step_record sharing; /* whose mean is; the engine writes it there */
    train_step_record known;   /* to be shown */
} train_late;

typedef struct {               /* of the evaluations so far */
    double loss;               /* the lowest */
    uint64_t step;             /* after which it was */
    uint64_t without, last, n; /* evaluations since then; the step of the last one; how many */
} train_best;

typedef struct { /* by what the microbatches of a step divide their loss */
    uint64_t seed, step, microbatches;
    double value; /* 0: none has been asked for */
} train_divisor;

struct train_run {
    train_settings s;
    const train_task_ops *ops;
    tess *t;
    model *m;
    model_options model_options; /* that made it */
    int32_t rank, ranks;
    /* the task's */
    struct {
        uint64_t steps;           /* to run */
        uint64_t steps_per_epoch; /* 0: no epochs */
        uint64_t eval_every;      /* steps between evaluations; 0: at the end only */
        uint64_t eval_batches;    /* over all ranks; 0: nothing to evaluate */
        const char *unit;         /* "samples" */
        uint64_t units_per_batch;
        const char *source; /* where the data is from; for people */
        tool_sampler sampler;
        tool_idx train_set, test_set; /* pixels null: drawn digits */
        uint64_t n_train, n_test;
        tool_text text;
        train_divisor *divisor; /* the one asked for last; null: every token is a target */
        tool_tokens *tokens;    /* null: text */
        tokenizer *tokenizer;   /* of the model's folder; null: there is none that is read here */
    } task;
    void *batch;
    model_result *result;
    train_feed *feed;     /* null: `batch` is memory of malloc */
    tool_planner planner; /* with other options, for advice when the run does not fit */
    tess_optimizer_options optimizer;
    tess_optimizer_group groups[2];
    tess_schedule schedule;
    /* what came of it */
    double loss, accuracy, eval_loss; /* NAN: none */
    train_best best;
    double seconds;                  /* in steps */
    uint64_t steps_done, first_step; /* since the run's beginning; those done before this process */
    uint64_t group_step;             /* those done when this group of ranks was formed */
    int joins;                       /* in the place of a lost rank, until train_recover */
    int is_late;                     /* a step's loss is read while later ones are under way */
    train_late late;
    int watched;             /* rank 0 writes spans of the first steps */
    int32_t mirror;          /* steps between images in memory; 0: none */
    double over;             /* when the latest step was over; 0: never */
    int saving;              /* a checkpoint is on its way */
    tess_status save_failed; /* the last one's, when the disk refused it */
    int interrupted;         /* the signal that ended the loop; 0: none */
    char digest[33];         /* "": none */
    int said_not_finite;     /* a loss was NaN or infinite */
    char identity[480];      /* train_identity_make */
    uint64_t held_out;       /* a hash of the first held-out batch, also by it; 0: nothing is held out */
    char *hf_config;         /* of a family: the config.json of an exported folder; else null */
    /* output, rank 0 only */
    struct {
        tess_ledger_point *points;
        size_t n, room;
    } ledger; /* of the step that is written down */
    FILE *text, *json_file;
    report_tee page; /* between JSON and json_file, for --report and --watch */
    live_page *live; /* null: none */
    json_out json;
    int json_failed;
    train_lives *lives; /* rank 0, under --restarts; else null */
    struct {
        uint64_t steps; /* to repeat */
        double seconds; /* from the last step that was done */
    } lost;             /* with the last restart or recovery */
    struct {
        double *seconds; /* of the last steps; sorted by train_watch_median */
        uint64_t n;
        FILE *csv;                     /* null: none */
        tensorboard board;             /* file -1: none */
        double step_flops, peak_flops; /* of this rank; 0: not known */
        double grad_norm, utilisation; /* of the latest step; NAN: not known */
    } watch;
    train_spans *spans; /* null without JSON */
    tool_progress progress;
};

/** Runs as one rank of the world that the environment describes. Returns the exit code. */
int train_rank(const train_settings *);

/** Plans the run for `ranks` ranks and starts nothing: what cannot be is found here once, not on every rank. */
tess_status train_plan(const train_settings *, int32_t ranks);

/** [C] The same status on every rank: that of the lowest rank that failed, if any. Only that rank has a message; on the
 * others it is empty. */
tess_status train_agree(train_run *, tess_status mine);
/** [C] One evaluation over all batches. */
tess_status train_evaluate(train_run *, double *loss, double *accuracy);

/* ---- train_step.c --------------------------------------------------------------------------------- */
tess_status train_step(train_run *);        /* [C] */
tess_status train_step_settle(train_run *); /* [C] shows all that were done: before anything but the next step */
void train_step_forget(train_run *);        /* a rank was lost: what was done is done again */

/* ---- train_schedule.c ----------------------------------------------------------------------------- */
void train_schedule_make(train_run *);               /* once the task has said how many steps there are */
double train_rate(const train_run *, uint64_t step); /* of learning in `step`, from 0 */

/* ---- train_best.c --------------------------------------------------------------------------------- */
enum { TRAIN_BEST_BYTES = 160 };
void train_best_note(train_run *);                                    /* an evaluation is done */
int train_best_is_now(const train_run *);                             /* that of this step is the best so far */
int train_best_stops(const train_run *);                              /* --patience is used up */
const double *train_best_score(const train_run *);                    /* of a checkpoint of this step; null: none */
void train_best_words(const train_run *, char out[TRAIN_BEST_BYTES]); /* for a checkpoint */
void train_best_take(train_run *, const char *saved);                 /* from its words */
tess_status train_best_share(train_run *);                            /* [C] after a recovery */

/* ---- train_feed.c --------------------------------------------------------------------------------- */
tess_status train_feed_open(train_run *); /* after the model's start; its batch takes the place of `batch` */
/** `batch` is then that of microbatch k of `step`, and the next one is being read. */
void train_feed_next(train_run *, uint64_t step, int32_t k);
void train_feed_forget(train_run *); /* what was read ahead is of other ranks' data */
void train_feed_close(train_run *);  /* before the task's data and the model go; may be called without open */

/* ---- train_state.c ------------------------------------------------------------------------------ */
/** A fill for tess_shard from DIR/model.safetensors. */
tess_status train_resume_open(train_run *, const char *dir, void **out);
tess_status train_resume_fill(void *state, const tess_range *, void *data);
void train_resume_close(void *state);  /* null is fine */
tess_status train_export(train_run *); /* [C] to s.export_to */
tess_status train_digest(train_run *); /* [C] */

/* ---- train_identity.c ----------------------------------------------------------------------------- */
void train_identity_make(train_run *);         /* once the data is open */
tess_status train_identity_agree(train_run *); /* [C] the same on all ranks, or a line that names both sides */
/** Says in one line what differs from the run that saved `saved`. */
void train_identity_compare(const train_run *, const char *saved);

/* ---- train_checkpoint.c -------------------------------------------------------------------------- */
int train_resumes_checkpoint(const train_settings *); /* else --resume is a folder of parameters, or nothing */
tess_status train_restart_resume(train_settings *);   /* after a restart a run goes on with what it saved */
/** Before the engine: keeps the microbatches of a step when a checkpoint is gone on with by another number of ranks.
 * TESS_E_INVALID when they cannot be divided so that the bits stay. */
tess_status train_resume_adapt(train_settings *, int32_t ranks);
tess_status train_resume_load(train_run *); /* [C] after tess_shard */
tess_status train_save_open(train_run *);   /* [C] before training: the directory, what is there, signals */
tess_status train_save(train_run *);        /* [C] to s.save; a disk that refuses does not end the run */
tess_status train_save_finish(train_run *); /* [C] waits for the last */
int train_asked_to_end(const train_run *);  /* this rank's signal, 0: none */

/* ---- train_recover.c ----------------------------------------------------------------------------- */
int train_joins(const train_run *);     /* this process takes a lost rank's place */
tess_status train_recover(train_run *); /* [C] goes back to an image when a rank was lost; else nothing */

/* ---- train_restart.c ----------------------------------------------------------------------------- */
int32_t train_first_ranks(int32_t ranks);          /* of its first life; `ranks` when this is it */
int64_t train_restarts(void);                      /* of this run so far */
tess_status train_restart_begun(int *out);         /* this is a restart, of a life that came to train_lives_begin */
void train_lives_begin(void);                      /* the directory is this run's: a restart goes on from it */
void train_lives_open(train_run *);                /* once it is known where the run goes on */
void train_lives_step(train_run *, uint64_t step); /* is done */
void train_lives_recovered(train_run *);           /* after it has gone back */
void train_lives_summary(train_run *);             /* members of the summary */
void train_lives_close(train_run *);

/* ---- train_watch.c: nothing on ranks other than 0 ------------------------------------------------- */
tess_status train_watch_open(train_run *); /* after the task has said how many steps */
/** The gradient's norm in the step that is over; NAN: it is not shown, or there is none. */
double train_watch_norm(const train_run *, int shown);
void train_watch_begin(train_run *); /* it is known after which step the run goes on */
void train_watch_step(train_run *, const train_step_record *);
double train_watch_utilisation(const train_run *, double seconds); /* of a step; NAN: not known */
void train_watch_eval(train_run *, double loss, double accuracy);
double train_watch_median(const train_run *); /* seconds of a step; at the end */
double train_watch_units(const train_run *);  /* samples or tokens of a step, over all ranks */
tess_status train_watch_finish(train_run *);  /* the CSV file is whole */
void train_watch_close(train_run *);

/* ---- train_ledger.c ----------------------------------------------------------------------------- */
/** Around each step; at the one that is written down, they watch it and then write units and ledger points. */
tess_status train_ledger_begin(train_run *);
tess_status train_ledger_end(train_run *);
int train_ledger_comes(const train_run *); /* that step is still to be done, here */
void train_ledger_drop(train_run *);

/* ---- train_spans.c: nothing without --json and on ranks other than 0 ----------------------------- */
tess_status train_spans_start(train_run *); /* [C] unless this process takes a lost rank's place */
/** [C] At the start and after a recovery: whether one of the ranks has steps to watch. */
tess_status train_spans_agree(train_run *);
/** The next step is one that is watched: several ranks then call it, all alike, since a recorded one shows nothing. */
int train_spans_need_calls(const train_run *);
tess_status train_spans_step(train_run *, const train_step_record *);
tess_status train_spans_finish(train_run *);
void train_spans_close(train_run *);

/* ---- train_sample.c ------------------------------------------------------------------------------ */
typedef struct {
    int32_t *tokens;
    uint64_t n, passes, bytes; /* bytes: of keys and values */
    int is_bytes;              /* tokens are a text's */
    double seconds;
} train_sample;
tess_status train_sample_check(const train_run *); /* the prompt; after the task's data is open */
tess_status train_sample_write(train_run *);       /* [C] s.sample tokens */
/** One of n tokens: probability proportional to exp(logit / temperature) among those of at least `least`. `uniform`: in
 * [0, 1). */
int32_t train_sample_draw(const float *logits, int64_t n, double temperature, float least, double uniform);

/* ---- train_ranks.c ------------------------------------------------------------------------------ */
/** [C] Rank 0 writes a line about each rank; fails on rank 0 when another has other parameters. */
tess_status train_ranks(train_run *);

/* ---- train_output.c: nothing on ranks other than 0 ----------------------------------------------- */
tess_status train_output_open(train_run *);
int train_output_json(const train_run *);                     /* events are written */
int train_output_shows(const train_run *);                    /* each step is shown, or written: on rank 0 */
json_out *train_output_begin(train_run *, const char *event); /* null: no JSON */
void train_output_end(train_run *);
void train_output_start(train_run *);
void train_output_step(train_run *, const train_step_record *);
void train_output_eval(train_run *, double loss, double accuracy);
void train_output_patience(train_run *); /* it is used up */
void train_output_checkpoint(train_run *, const tess_checkpoint_info *);
void train_output_sample(train_run *, const train_sample *);
void train_output_recovery(train_run *, const tess_recovery *);
/** The closing table and the summary object. Fails when JSON could not be written. */
tess_status train_output_finish(train_run *);
void train_output_close(train_run *);
#endif

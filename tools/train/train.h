/* SPDX-License-Identifier: BSD-3-Clause */
/* Declarations that the files of `tessera train` share. train.c parses and starts ranks. train_rank.c runs one rank,
 * and train_step.c one step. train_identity.c compares runs, and train_common.c holds parts of all tasks. train_state.c
 * loads, saves and digests parameters. train_output.c prints, and train_ledger.c writes the ledger. The tasks are
 * train_mnist.c, train_gpt.c, train_lm.c, train_convbn.c and train_linear.c. */
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

typedef void (*train_bytes_fn)(void *user, const void *data, uint64_t bytes);
typedef struct { /* a model's data and what is done with it */
    /** Loads the data; sets the fields of `task` below. */
    tess_status (*open)(train_run *);
    void (*close)(train_run *);
    /** Fills the batch of this rank's microbatch k in `step` (from 0). */
    void (*fill)(const train_run *, uint64_t step, int32_t k, void *batch);
    /** Fills evaluation batch i. Past the last it fills an empty one, for ranks with fewer batches. */
    void (*fill_eval)(const train_run *, uint64_t i, void *batch);
    /** Calls `fn` with the bytes that training may read, in their order; null: what is drawn. */
    void (*each_byte)(const train_run *, train_bytes_fn fn, void *user);
    /** Runs after training; may be null. */
    tess_status (*finish)(train_run *);
    int32_t has_validation_loss; /* a member of the summary */
} train_task_ops;
extern const train_task_ops train_mnist, train_gpt, train_lm, train_convbn, train_linear;

typedef struct {        /* one step's figures; `started` is 0 if there is none */
    uint64_t step;      /* from 1 */
    double shared[2];   /* loss and request to end: this rank's, then the mean over ranks */
    double rate;        /* learning rate */
    double started;     /* time at which it began */
    double seconds;     /* duration */
    double run_seconds; /* part of the duration spent in tess_run */
    double grad_norm;   /* NAN: not known */
    double own_loss;    /* this rank's loss */
} train_step_record;

typedef struct {
    train_step_record running; /* its result has not arrived yet */
    train_step_record sharing; /* the engine is still writing its mean over ranks */
    train_step_record known;   /* complete, shown next */
} train_late;

typedef struct {               /* summarises the evaluations so far */
    double loss;               /* the lowest */
    uint64_t step;             /* the step that was evaluated */
    uint64_t without, last, n; /* evaluations since then; the step of the last one; how many */
} train_best;

typedef struct { /* the divisor of the loss in the microbatches of a step */
    uint64_t seed, step, microbatches;
    double value; /* 0: not computed yet */
} train_divisor;

struct train_run {
    train_settings s;
    const train_task_ops *ops;
    tess *t;
    model *m;
    model_options model_options; /* `m` was made with them */
    int32_t rank, ranks;
    /* the task's */
    struct {
        uint64_t steps;           /* steps to run */
        uint64_t steps_per_epoch; /* 0: no epochs */
        uint64_t eval_every;      /* steps between evaluations; 0: at the end only */
        uint64_t eval_batches;    /* batches over all ranks; 0: no evaluation */
        const char *unit;         /* "samples" */
        uint64_t units_per_batch;
        const char *source; /* names the origin of the data for people */
        tool_sampler sampler;
        tool_idx train_set, test_set; /* pixels null: drawn digits */
        uint64_t n_train, n_test;
        tool_text text;
        train_divisor *divisor; /* the one asked for last; null: every token is a target */
        uint64_t sample_bytes;  /* of a batch's samples, which follow its header; 0: they have several arrays */
        uint32_t value_bytes;   /* of a token or byte of them */
        tool_tokens *tokens;    /* null: text */
        tokenizer *tokenizer;   /* from the model's folder; null: none, or one that this command cannot read */
    } task;
    void *batch;
    model_result *result;
    train_feed *feed;     /* null: malloc gave `batch` */
    tool_planner planner; /* plans with other options, to advise when the run does not fit */
    tess_optimizer_options optimizer;
    /* The run's, then those of --groups. For each there are two optimizer groups: matrices, and vectors. */
    tess_schedule schedules[1 + TRAIN_GROUPS];
    tess_optimizer_group groups[2 * (1 + TRAIN_GROUPS)];
    float group_lr[2 * (1 + TRAIN_GROUPS)];
    /* results */
    double loss, accuracy, eval_loss; /* NAN: none */
    train_best best;
    double seconds;                  /* time spent in steps */
    uint64_t steps_done, first_step; /* steps since the run began; steps done before this process */
    uint64_t group_step;             /* steps done when this group of ranks was formed */
    int joins;                       /* 1: this process replaces a lost rank, until train_recover has run */
    int is_late;                     /* 1: reads a step's loss while later steps run */
    train_late late;
    int watched;             /* rank 0 writes spans of the first steps */
    int32_t mirror;          /* steps between images in memory; 0: none */
    double over;             /* time at which the latest step ended; 0: none has ended */
    int saving;              /* 1: a checkpoint is being written */
    tess_status save_failed; /* status of the last checkpoint if the disk refused it */
    int interrupted;         /* the signal that ended the loop; 0: none */
    char digest[33];         /* "": none */
    int said_not_finite;     /* a loss was NaN or infinite */
    char identity[480];      /* train_identity_make */
    uint64_t held_out;       /* a hash of the first held-out batch, also by it; 0: nothing is held out */
    char **base;             /* files of the frozen base, null at the end; null: checkpoints hold it */
    char *hf_config;         /* config.json for an exported folder; null: the model belongs to no family */
    /* output, rank 0 only */
    struct {
        tess_ledger_point *points;
        size_t n, room;
    } ledger; /* events of the step that is recorded */
    FILE *text, *json_file;
    report_tee page; /* between JSON and json_file, for --report and --watch */
    live_page *live; /* null: none */
    json_out json;
    int json_failed;
    train_lives *lives; /* rank 0, under --restarts; else null */
    struct {
        uint64_t steps; /* steps to repeat */
        double seconds; /* time since the last complete step */
    } lost;             /* work lost by the last restart or recovery */
    struct {
        double *seconds; /* durations of recent steps; train_watch_median sorts them */
        uint64_t n;
        FILE *csv;                     /* null: none */
        tensorboard board;             /* file -1: none */
        double step_flops, peak_flops; /* this rank's; 0: unknown */
        double grad_norm, utilisation; /* the latest step's; NAN: unknown */
        double loss_scale;             /* after it; NAN: losses are not scaled */
        uint64_t skipped;              /* steps that it was too large for, since the run began */
    } watch;
    train_spans *spans; /* null without JSON */
    tool_progress progress;
};

/** Runs as one rank of the world that the environment describes. Returns the exit code. */
int train_rank(const train_settings *);

/** Plans the run for `ranks` ranks and starts nothing, so that one process reports an impossible run before any rank
 * starts. */
tess_status train_plan(const train_settings *, int32_t ranks);

/** [C] Returns the same status on every rank: that of the lowest rank that failed, if any. Only that rank has a
 * message. */
tess_status train_agree(train_run *, tess_status mine);
/** [C] What --on-nan says of a loss that is not finite: of this rank, and the mean of all. `what` names it. */
tess_status train_judge_loss(train_run *, const char *what, uint64_t step, double own, double mean);
/** [C] Evaluates all batches once, and judges the loss. */
tess_status train_evaluate(train_run *, double *loss, double *accuracy);

/* ---- train_step.c --------------------------------------------------------------------------------- */
tess_status train_step(train_run *);        /* [C] */
tess_status train_step_settle(train_run *); /* [C] shows finished steps; call it before anything but the next step */
void train_step_forget(train_run *);        /* drops finished steps, because a lost rank makes the run repeat them */

/* ---- train_schedule.c ----------------------------------------------------------------------------- */
void train_schedule_make(train_run *); /* call it when the task has set the number of steps */
/** Learning rate of `step`, which counts from 0: group 0 is the run's, others are those of --groups. */
double train_rate(const train_run *, int32_t group, uint64_t step);
void train_rates_set(train_run *, uint64_t step); /* sets those of `optimizer` */

/* ---- train_best.c --------------------------------------------------------------------------------- */
enum { TRAIN_BEST_BYTES = 160 };
void train_best_note(train_run *);                 /* records the evaluation that has just ended */
int train_best_is_now(const train_run *);          /* true if this step's evaluation is the best so far */
int train_best_stops(const train_run *);           /* true if --patience is used up */
const double *train_best_score(const train_run *); /* score that a checkpoint of this step stores; null: none */
void train_best_words(const train_run *, char out[TRAIN_BEST_BYTES]); /* formats it for a checkpoint */
void train_best_take(train_run *, const char *saved);                 /* restores it from a checkpoint's words */
tess_status train_best_share(train_run *);                            /* [C] spreads it to all ranks after a recovery */

/* ---- train_feed.c --------------------------------------------------------------------------------- */
tess_status train_feed_open(train_run *); /* call it after the model has started; the feed's memory replaces `batch` */
/** Sets `batch` to microbatch k of `step` and starts to read the next one. */
void train_feed_next(train_run *, uint64_t step, int32_t k);
void train_feed_forget(train_run *); /* drops the batch read ahead, because this rank's share changed */
void train_feed_close(train_run *);  /* call it before the task's data and the model are freed; safe without open */

/* ---- train_state.c ------------------------------------------------------------------------------ */
/** Opens DIR/model.safetensors as a fill for tess_shard. */
tess_status train_resume_open(train_run *, const char *dir, void **out);
tess_status train_resume_fill(void *state, const tess_range *, void *data);
void train_resume_close(void *state);  /* null is fine */
tess_status train_export(train_run *); /* [C] exports to s.export_to */
tess_status train_digest(train_run *); /* [C] */

uint64_t train_hash_on(uint64_t hash, const unsigned char *data, size_t bytes); /* train_common.c: FNV-1a */

/* ---- train_optimizer.c ---------------------------------------------------------------------------- */
enum { TRAIN_OPTIMIZER_BYTES = 256 };
/** Writes the words of a run's identity that say which optimizer `selection` is, and what its options are. */
void train_optimizer_words(const char *selection, char out[TRAIN_OPTIMIZER_BYTES]);

/* ---- train_identity.c ----------------------------------------------------------------------------- */
void train_identity_make(train_run *);         /* call it when the data is open */
tess_status train_identity_agree(train_run *); /* [C] fails with a line that names both sides if ranks differ */
enum { TRAIN_IDENTITY_BYTES = 520 };
/** Writes what a checkpoint keeps of the identity, and what is frozen. A ledger tells the latter by its digests. */
void train_identity_saved(const train_run *, char out[TRAIN_IDENTITY_BYTES]);
/** Prints in one line the differences from the run that saved `saved`. */
void train_identity_compare(const train_run *, const char *saved);

/* ---- train_checkpoint.c -------------------------------------------------------------------------- */
int train_resumes_checkpoint(const train_settings *); /* false if --resume is a folder of parameters, or not given */
tess_status train_restart_resume(train_settings *);   /* makes a restarted run resume from its own checkpoints */
/** Keeps the microbatches per step when a checkpoint resumes on another number of ranks. Call it before the engine
 * opens. TESS_E_INVALID: they cannot be divided without changing the bits. */
tess_status train_resume_adapt(train_settings *, int32_t ranks);
tess_status train_resume_load(train_run *); /* [C] after tess_shard */
tess_status train_save_open(train_run *);   /* [C] before training: checks the directory, catches signals */
tess_status train_save(train_run *);        /* [C] saves to s.save; a failure of the disk does not end the run */
tess_status train_save_finish(train_run *); /* [C] waits for the last checkpoint */
int train_asked_to_end(const train_run *);  /* the signal that this rank received; 0: none */

/* ---- train_recover.c ----------------------------------------------------------------------------- */
int train_joins(const train_run *);     /* true if this process replaces a lost rank */
tess_status train_recover(train_run *); /* [C] goes back to an image if a rank was lost */

/* ---- train_restart.c ----------------------------------------------------------------------------- */
int32_t train_first_ranks(int32_t ranks);  /* the ranks of the run's first life; `ranks` if this is the first */
int64_t train_restarts(void);              /* restarts of this run so far */
tess_status train_restart_begun(int *out); /* 1: this is a restart of a life that reached train_lives_begin */
void train_lives_begin(void);              /* marks the directory as this run's, so that a restart resumes from it */
void train_lives_open(train_run *);        /* call it when the first step is known */
void train_lives_step(train_run *, uint64_t step); /* records that `step` is complete */
void train_lives_recovered(train_run *);           /* call it when a recovery has gone back to an image */
void train_lives_summary(train_run *);             /* writes its members of the summary */
void train_lives_close(train_run *);

/* ---- train_watch.c: does nothing on ranks other than 0 -------------------------------------------- */
tess_status train_watch_open(train_run *); /* call it when the task has set the number of steps */
/** Returns the gradient's norm in the last step, or NAN if it is not shown or not known. */
double train_watch_norm(const train_run *, int shown);
void train_watch_begin(train_run *); /* call it when the first step is known */
void train_watch_step(train_run *, const train_step_record *);
double train_watch_utilisation(const train_run *, double seconds); /* for a step of that duration; NAN: unknown */
void train_watch_eval(train_run *, double loss, double accuracy);
double train_watch_median(const train_run *); /* median duration of a step; call it at the end */
double train_watch_units(const train_run *);  /* samples or tokens of a step, over all ranks */
tess_status train_watch_finish(train_run *);  /* completes the CSV file */
void train_watch_close(train_run *);

/* ---- train_ledger.c ----------------------------------------------------------------------------- */
/** Call these around each step. At the recorded step they observe it, then write units and ledger points. */
tess_status train_ledger_begin(train_run *);
tess_status train_ledger_end(train_run *);
int train_ledger_comes(const train_run *); /* true if this rank has still to run the recorded step */
void train_ledger_drop(train_run *);

/* ---- train_spans.c: nothing without --json and on ranks other than 0 ----------------------------- */
tess_status train_spans_start(train_run *); /* [C] unless this process takes a lost rank's place */
/** [C] Call it at the start and after a recovery. It finds out whether a rank has steps to watch. */
tess_status train_spans_agree(train_run *);
/** True if the next step is timed. All ranks then run it call by call, because a recorded step shows no spans. */
int train_spans_need_calls(const train_run *);
tess_status train_spans_step(train_run *, const train_step_record *);
tess_status train_spans_finish(train_run *);
void train_spans_close(train_run *);

/* ---- train_sample.c ------------------------------------------------------------------------------ */
typedef struct {
    int32_t *tokens;
    uint64_t n, passes, bytes; /* bytes: size of keys and values */
    int is_bytes;              /* tokens are bytes */
    double seconds;
} train_sample;
tess_status train_sample_check(const train_run *); /* checks the prompt; call it when the task's data is open */
tess_status train_sample_write(train_run *);       /* [C] writes s.sample tokens */
/** Draws one of n tokens with probability proportional to exp(logit / temperature), among logits of at least `least`.
 * `uniform` is in [0, 1). */
int32_t train_sample_draw(const float *logits, int64_t n, double temperature, float least, double uniform);

/* ---- train_ranks.c ------------------------------------------------------------------------------ */
/** [C] Rank 0 writes a line about each rank, and fails if another has different parameters. */
tess_status train_ranks(train_run *);

/* ---- train_output.c: nothing on ranks other than 0 ----------------------------------------------- */
tess_status train_output_open(train_run *);
int train_output_json(const train_run *);                     /* true if events are written as JSON */
int train_output_shows(const train_run *);                    /* true on rank 0 if each step is shown or written */
json_out *train_output_begin(train_run *, const char *event); /* null: no JSON */
void train_output_end(train_run *);
void train_output_start(train_run *);
void train_output_step(train_run *, const train_step_record *);
void train_output_eval(train_run *, double loss, double accuracy);
void train_output_patience(train_run *); /* reports that --patience has ended the run */
void train_output_checkpoint(train_run *, const tess_checkpoint_info *);
void train_output_sample(train_run *, const train_sample *);
void train_output_recovery(train_run *, const tess_recovery *);
/** Writes the closing table and the summary object. Fails if JSON could not be written. */
tess_status train_output_finish(train_run *);
void train_output_close(train_run *);
#endif

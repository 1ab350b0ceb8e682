/* SPDX-License-Identifier: BSD-3-Clause */
/* tess_schedule gives the learning rate of each step from the options, or from the model's defaults. */
#include <string.h>

#include "train.h"

/* The PyTorch FSDP tutorial uses it for mnist: StepLR, once per epoch. */
static const double gamma_per_epoch = 0.7;

static uint32_t kind_of(const char *name) {
    static const char *const names[] = { "constant", "linear", "cosine", "wsd", "step" };
    uint32_t kind = TESS_SCHEDULE_CONSTANT;
    while (strcmp(names[kind], name) != 0)
        kind++;
    return kind;
}

/* A language model warms up for 100 steps, but at most for a tenth of the run. */
static uint64_t usual_warmup(const train_run *r) {
    uint64_t tenth = r->task.steps / 10;
    return !r->ops->has_validation_loss ? 0 : tenth < 100 ? tenth : 100;
}

void train_schedule_make(train_run *r) {
    const train_settings *s = &r->s;
    r->schedule = (tess_schedule){ .struct_size = sizeof r->schedule,
                                   .kind = kind_of(s->schedule),
                                   .rate = s->lr,
                                   .least = s->min_lr < 0 ? 0.1
                                            : s->lr > 0   ? s->min_lr / s->lr
                                                          : 0,
                                   .steps = r->task.steps,
                                   .warmup = s->warmup < 0 ? usual_warmup(r) : (uint64_t)s->warmup,
                                   .every = r->task.steps_per_epoch,
                                   .gamma = gamma_per_epoch };
}

double train_rate(const train_run *r, uint64_t step) {
    return tess_schedule_rate(&r->schedule, step);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* tess_schedule gives the learning rate of each step from the options, or from the model's defaults. */
#include <math.h>
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

static tess_schedule schedule_of(const train_run *r, const train_group *g) {
    return (tess_schedule){ .struct_size = sizeof(tess_schedule),
                            .kind = kind_of(g->schedule),
                            .rate = g->lr,
                            .least = g->min_lr < 0 ? 0.1
                                     : g->lr > 0   ? g->min_lr / g->lr
                                                   : 0,
                            .steps = r->task.steps,
                            .warmup = g->warmup < 0 ? usual_warmup(r) : (uint64_t)g->warmup,
                            .every = r->task.steps_per_epoch,
                            .gamma = gamma_per_epoch };
}

static void set_decay(train_run *r, int32_t group, double matrices, double vectors) {
    r->groups[2 * group] = (tess_optimizer_group){ (float)matrices, 1 };
    r->groups[2 * group + 1] = (tess_optimizer_group){ (float)vectors, 1 };
}

void train_schedule_make(train_run *r) {
    const train_settings *s = &r->s;
    const train_group run = { .lr = s->lr, .schedule = s->schedule, .warmup = s->warmup, .min_lr = s->min_lr };
    r->schedules[0] = schedule_of(r, &run);
    set_decay(r, 0, s->weight_decay, 0); /* biases and normalisations do not decay */
    for (int32_t i = 0; i < s->n_groups; i++) {
        const train_group *g = &s->groups[i];
        r->schedules[1 + i] = schedule_of(r, g);
        if (g->min_lr < 0)
            r->schedules[1 + i].least = r->schedules[0].least;
        set_decay(r, 1 + i, g->weight_decay < 0 ? s->weight_decay : g->weight_decay, fmax(g->weight_decay, 0));
    }
    r->optimizer.groups = r->groups;
    r->optimizer.n_groups = 2 * (1 + s->n_groups);
    r->optimizer.group_lr = s->n_groups ? r->group_lr : NULL;
}

double train_rate(const train_run *r, int32_t group, uint64_t step) {
    return tess_schedule_rate(&r->schedules[group], step);
}

void train_rates_set(train_run *r, uint64_t step) {
    r->optimizer.lr = (float)train_rate(r, 0, step);
    for (int32_t i = 0; i <= r->s.n_groups; i++)
        r->group_lr[2 * i] = r->group_lr[2 * i + 1] = (float)train_rate(r, i, step);
}

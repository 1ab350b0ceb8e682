/* SPDX-License-Identifier: BSD-3-Clause */
/* Computes the learning rate from the step alone, so a resumed run needs no state for it. */
#include <math.h>
#include <stddef.h>

#include "base/status.h"
#include "base/option_fields.h"

static int is_between(double value, double least, double most) {
    return value >= least && value <= most; /* false for NaN */
}

static tess_status check(const tess_schedule *s) {
    if (s->kind > TESS_SCHEDULE_STEP)
        return tess__fail(TESS_E_INVALID, "tess_schedule_rate: kind is %u, expected one of TESS_SCHEDULE_…", s->kind);
    if (!is_between(s->least, 0, 1))
        return tess__fail(TESS_E_INVALID, "tess_schedule_rate: least is %g, expected a part of the rate, 0 to 1",
                          s->least);
    if (s->kind == TESS_SCHEDULE_STEP && !s->every)
        return tess__fail(TESS_E_INVALID, "tess_schedule_rate: every is 0, expected steps between two falls");
    return TESS_OK;
}

/* Returns the fraction of the run from step `from` to its end that is done at step n. */
static double done_since(const tess_schedule *s, uint64_t from, uint64_t n) {
    return n >= s->steps ? 1 : (double)(n - from) / (double)(s->steps - from);
}

static double line(const tess_schedule *s, double done) {
    return s->least + (1 - s->least) * (1 - done);
}

/* Returns the step at which the rate begins to fall. If there is no room for a stable part, that is the end of the
 * warm-up. */
static uint64_t wsd_begin(const tess_schedule *s) {
    uint64_t tenth = s->steps / 10 ? s->steps / 10 : 1, decay = s->decay ? s->decay : tenth;
    uint64_t begin = decay < s->steps ? s->steps - decay : 0;
    return begin > s->warmup ? begin : s->warmup;
}

static double part_of(const tess_schedule *s, uint64_t n) {
    switch (s->kind) {
    case TESS_SCHEDULE_LINEAR: return line(s, done_since(s, s->warmup, n));
    case TESS_SCHEDULE_COSINE:
        return s->least + (1 - s->least) * 0.5 * (1 + cos(3.14159265358979 * done_since(s, s->warmup, n)));
    case TESS_SCHEDULE_WSD: return n < wsd_begin(s) ? 1 : line(s, done_since(s, wsd_begin(s), n));
    case TESS_SCHEDULE_STEP: return pow(s->gamma, (double)(n / s->every));
    default: return 1;
    }
}

double tess_schedule_rate(const tess_schedule *given, uint64_t n) {
    tess_schedule s;
    if (tess__copy_options("tess_schedule_rate", &s, sizeof s, TESS__UP_TO(tess_schedule, gamma), given) || check(&s))
        return NAN;
    if (n < s.warmup)
        return s.rate * (double)(n + 1) / (double)(s.warmup + 1);
    return s.rate * part_of(&s, n);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* The loss of each row of logits and its gradient, and the cap on logits. */
#include "decoder_rows.h"
#include "tools/models/parallel.h"

#include <math.h>

typedef struct {
    const decoder *d;
    const float *logits;
    float *dlogits;
    const int32_t *labels;
    double *loss;
    uint8_t *correct;
    uint16_t *halves;
    int64_t count;
    float scale;
} loss;

OPS_CLONES static void cap_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const loss *l = arg;
    int64_t n = l->d->vocabulary;
    float cap = l->d->logit_cap;
    (void)thread;
    for (int64_t r = first; r < last; r++)
        for (int64_t c = 0; c < n; c += LANES)
            floats_put(cap * lanes_tanh(floats_at(l->dlogits, r * n + c, n - c) / cap), l->dlogits, r * n + c, n - c);
}

void decoder_cap(const decoder *d, float *logits, int64_t rows) {
    loss l = { .d = d, .dlogits = logits };
    if (d->logit_cap > 0)
        ops_parallel(d->o, rows, 4, cap_rows, &l);
}

/* Returns the log of the sum of exponentials, and writes the maximum and its first index. */
OPS_CLONES static double log_sum(const float *x, int64_t n, float *most_out, int64_t *best_out) {
    int64_t best = 0;
    double sum = 0;
    lanes top = lanes_fill(x[0]), none = lanes_fill(0);
    for (int64_t c = 0; c < n; c += LANES)
        top = lanes_max(lanes_first(floats_at(x, c, n - c), n - c, top), top);
    float most = lanes_most(top);
    while (best < n - 1 && x[best] != most)
        best++;
    /* Each lane sums only 16 elements in fp32, which keeps sums precise. */
    for (int64_t c = 0; c < n; c += LANES * LANES) {
        lanes part = none;
        for (int64_t i = c; i < n && i < c + LANES * LANES; i += LANES)
            part += lanes_first(lanes_exp(floats_at(x, i, n - i) - most), n - i, none);
        sum += lanes_add_up(part);
    }
    *most_out = most;
    *best_out = best;
    return log(sum) + (double)most;
}

static void loss_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const loss *l = arg;
    (void)thread;
    for (int64_t r = first; r < last; r++) {
        const float *x = l->logits + r * l->d->vocabulary;
        float most;
        int64_t best;
        l->loss[r] = l->correct[r] = 0;
        if (l->labels[r] < 0)
            continue;
        l->loss[r] = log_sum(x, l->d->vocabulary, &most, &best) - (double)x[l->labels[r]];
        l->correct[r] = best == l->labels[r];
    }
}

void decoder_loss(const decoder *d, const float *logits, const int32_t *labels, int64_t rows, double *out,
                  uint8_t *correct) {
    loss l = { .d = d, .logits = logits, .labels = labels, .loss = out, .correct = correct };
    ops_parallel(d->o, rows, 4, loss_rows, &l);
}

OPS_CLONES static void loss_backward_rows(void *arg, int32_t thread, int64_t first, int64_t last) {
    const loss *l = arg;
    int64_t n = l->d->vocabulary;
    (void)thread;
    for (int64_t r = first; r < last; r++) {
        float *x = l->dlogits + r * n, most = 0, log_of = 0, over = l->d->logit_cap > 0 ? 1 / l->d->logit_cap : 0;
        float slope = 1; /* the cap's slope */
        int64_t best;
        int counts = r < l->count && l->labels[r] >= 0;
        if (counts) {
            log_of = (float)log_sum(x, n, &most, &best);
            slope -= over > 0 ? x[l->labels[r]] * over * (x[l->labels[r]] * over) : 0;
        }
        for (int64_t c = 0; c < n; c += LANES) {
            lanes score = floats_at(x, c, n - c);
            lanes dx = counts ? l->scale * lanes_exp(score - log_of) : lanes_fill(0);
            if (over > 0)
                dx *= 1.0f - score * over * (score * over);
            floats_put(dx, x, c, n - c);
        }
        if (counts)
            x[l->labels[r]] -= l->scale * slope;
        for (int64_t c = 0; l->halves && c < n; c += LANES)
            rows_put(l->d, floats_at(x, c, n - c), l->halves, r * n + c, n - c);
    }
}

void decoder_loss_backward(const decoder *d, float *logits, const int32_t *labels, int64_t rows, int64_t count,
                           float scale, uint16_t *halves) {
    loss l = { .d = d, .dlogits = logits, .labels = labels, .count = count, .scale = scale, .halves = halves };
    ops_parallel(d->o, rows, 4, loss_backward_rows, &l);
}

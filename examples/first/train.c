/* SPDX-License-Identifier: BSD-3-Clause */
/* The smallest sharded training loop: a network with one hidden layer learns the sine. */
#include <tessera/tessera.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 64, HIDDEN = 32, STEPS = 1000 };
struct weights {
    float *weight, *bias;
};

static void ok(tess_status status) {
    if (status < 0 && fprintf(stderr, "%s\n", tess_last_error()))
        exit(tess_exit_code(status));
}

static void add_param(tess *t, const char *name, int64_t elems) {
    tess_param_options p = { .struct_size = sizeof p, .dtype = TESS_F32, .name = name, .shape = &elems, .ndim = 1 };
    ok(tess_param_add(t, &p, NULL));
}

/* Starting values, asked for in ranges: of each parameter only what this rank owns. */
static tess_status start(void *user, const tess_range *r, void *data) {
    for (uint64_t i = 0; i < r->elems; i++)
        ((float *)data)[i] = sinf(*(float *)user * (float)(r->first_elem + i + 1) * (float)(r->param + 1));
    return TESS_OK;
}

int main(void) {
    tess *t;
    tess_scope hidden, output;
    ok(tess_open(NULL, &t));
    ok(tess_scope_add(t, "hidden", 0, &hidden)); /* what the loop will enter, in forward order */
    ok(tess_scope_add(t, "output", 0, &output));
    add_param(t, "hidden.weight", HIDDEN);
    add_param(t, "hidden.bias", HIDDEN);
    add_param(t, "output.weight", HIDDEN);
    add_param(t, "output.bias", 1);
    ok(tess_shard(t, start, &(float){ 12.9898f }));

    for (int step = 0; step < STEPS; step++) {
        float x[BATCH], a[BATCH][HIDDEN], error[BATCH];
        struct weights p, g; /* pointers, valid from a begin to its end: whole parameters, whole gradients */
        double loss = 0;
        ok(tess_pass(t, TESS_PASS_TRAIN));
        ok(tess_forward_begin(t, hidden, &p, 2));
        for (int n = 0; n < BATCH; n++) {
            x[n] = 3 * sinf((float)((step * tess_ranks(t) + tess_rank(t)) * BATCH + n)); /* each rank its own */
            for (int i = 0; i < HIDDEN; i++)
                a[n][i] = tanhf(p.weight[i] * x[n] + p.bias[i]);
        }
        ok(tess_forward_end(t, hidden));
        ok(tess_forward_begin(t, output, &p, 2));
        for (int n = 0; n < BATCH; n++) {
            error[n] = p.bias[0] - sinf(x[n]);
            for (int i = 0; i < HIDDEN; i++)
                error[n] += p.weight[i] * a[n][i];
            loss += error[n] * error[n] / BATCH;
        }
        ok(tess_forward_end(t, output));
        ok(tess_backward_begin(t, output, &p, &g, 2));
        for (int n = 0; n < BATCH; n++) { /* add to gradients: they start at zero */
            const float d = 2 * error[n] / BATCH;
            g.bias[0] += d;
            for (int i = 0; i < HIDDEN; i++) {
                g.weight[i] += d * a[n][i];
                a[n][i] = d * p.weight[i] * (1 - a[n][i] * a[n][i]);
            }
        }
        ok(tess_backward_end(t, output));
        ok(tess_backward_begin(t, hidden, &p, &g, 2));
        for (int n = 0; n < BATCH; n++)
            for (int i = 0; i < HIDDEN; i++) {
                g.weight[i] += a[n][i] * x[n];
                g.bias[i] += a[n][i];
            }
        ok(tess_backward_end(t, hidden));
        ok(tess_step(t, &(tess_optimizer_options){ .struct_size = sizeof(tess_optimizer_options), .lr = 0.01f }));
        ok(tess_all_reduce(t, &loss, 1, TESS_F64, TESS_AVG));
        if (tess_rank(t) == 0 && (step + 1) % 200 == 0)
            printf("step %d loss %.6f\n", step + 1, loss);
    }
    ok(tess_close(t));
    return 0;
}

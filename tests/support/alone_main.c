/* SPDX-License-Identifier: BSD-3-Clause */
/* One rank of a run in which rank 0 alone makes a call that is every rank's. Usage: alone CALL; CALL names the call, or
 * "shape": rank 1 declares another shape; "everyone": all leave the declared order together. It ends with the exit code
 * and message that the failing call gives. */
#include "toy.h"

#include <stdio.h>
#include <string.h>

static toy model;

static int end(tess *t, tess_status s) {
    fprintf(stderr, "alone: %s\n", tess_last_error());
    tess_close(t);
    return tess_exit_code(s);
}

static tess_status ignore(void *user, const tess_range *r, void *data) {
    (void)user, (void)r, (void)data;
    return TESS_OK;
}

static tess_status train(tess *t, float clip) {
    const tess_optimizer_options o = { .struct_size = sizeof o, .lr = 0.01f, .clip_norm = clip };
    double loss;
    tess_status s = toy_pass(t, &model, TESS_PASS_TRAIN, tess_rank(t), &loss);
    return s ? s : tess_step(t, &o);
}

/* A training pass that leaves out the last scope's forward and backward. */
static tess_status shortened_pass(tess *t) {
    const void *p[8];
    void *g[8];
    tess_status s = tess_pass(t, TESS_PASS_TRAIN);
    for (int k = 0; !s && k < TOY_SCOPES - 1; k++)
        if (!(s = tess_forward_begin(t, model.scope[k], p, model.n_params[k])))
            s = tess_forward_end(t, model.scope[k]);
    for (int k = TOY_SCOPES - 1; !s && k-- > 0;)
        if (!(s = tess_backward_begin(t, model.scope[k], p, g, model.n_params[k])))
            s = tess_backward_end(t, model.scope[k]);
    return s;
}

static tess_status call(tess *t, const char *name) {
    const tess_optimizer_options o = { .struct_size = sizeof o, .lr = 0.01f };
    const void *p[8];
    float norm;
    double x = 0;
    if (strcmp(name, "all_reduce") == 0)
        return tess_all_reduce(t, &x, 1, TESS_F64, TESS_SUM);
    if (strcmp(name, "barrier") == 0)
        return tess_barrier(t);
    if (strcmp(name, "step") == 0)
        return tess_step(t, &o);
    if (strcmp(name, "grad_norm") == 0)
        return tess_grad_norm(t, &norm);
    if (strcmp(name, "summon") == 0)
        return tess_summon_begin(t, model.scope[1], p, model.n_params[1]);
    if (strcmp(name, "each_full") == 0)
        return tess_each_full(t, TESS_OF_PARAM, ignore, NULL);
    fprintf(stderr, "alone: unknown call %s\n", name);
    return TESS_E_INTERNAL;
}

static tess_status declare(tess *t, const char *what) {
    tess_status s = toy_declare(t, &model, 0);
    const int64_t shape[2] = { 3, 5 + (strcmp(what, "shape") == 0 && tess_rank(t) == 1) };
    tess_param_options o = {
        .struct_size = sizeof o, .dtype = TESS_F32, .name = "h.2.extra", .shape = shape, .ndim = 2
    };
    model.n_params[3]++;
    return s ? s : tess_param_add(t, &o, NULL);
}

/* In the middle of a run, or as its last act: "last_" in front. */
static tess_status go_on(tess *t, const char *what) {
    int first = tess_rank(t) == 0, last = strncmp(what, "last_", 5) == 0;
    tess_status s = train(t, 0);
    double loss;
    const void *p[8];
    if (strcmp(what, "shortened") == 0) { /* rank 0's pass deviates from the declared order */
        s = s ? s : first ? shortened_pass(t) : toy_pass(t, &model, TESS_PASS_TRAIN, 1, &loss);
        return s ? s : train(t, 0);
    }
    if (strcmp(what, "everyone") == 0) { /* no rank alone: all depart, twice in the same way, and go on as declared */
        tess_stats stats = { .struct_size = sizeof stats };
        for (int i = 0; !s && i < 2; i++)
            if (!(s = shortened_pass(t)))
                s = tess_grad_drop(t);
        if (!s && !(s = train(t, 0.1f)) && !(s = train(t, 0)) && !(s = tess_stats_get(t, &stats)))
            fprintf(stderr, "alone: %d recompilations\n", (int)stats.n_recompiles);
        return s;
    }
    if (strcmp(what, "forward_begin") == 0) {
        if (!s && !(s = tess_pass(t, TESS_PASS_EVAL)) && first)
            s = tess_forward_begin(t, model.scope[2], p, model.n_params[2]);
        return s ? s : toy_pass(t, &model, TESS_PASS_EVAL, 1, &loss);
    }
    if (strcmp(what, "grad_norm") == 0 && !s)
        s = toy_pass(t, &model, TESS_PASS_TRAIN, 1, &loss);
    if (!s && !last && first && strcmp(what, "shape") != 0)
        s = call(t, what);
    if (!s && strcmp(what, "grad_norm") == 0)
        s = tess_grad_drop(t);
    if (!s && !last)
        s = train(t, 0.1f);
    return !s && last && first ? call(t, what + 5) : s;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    tess *t = NULL;
    tess_status s = tess_open(NULL, &t);
    if (s)
        return end(NULL, s);
    if ((s = declare(t, what)) || (s = tess_shard(t, toy_fill, NULL)) || (s = go_on(t, what)))
        return end(t, s);
    s = tess_close(t);
    if (s)
        fprintf(stderr, "alone: %s\n", tess_last_error());
    return tess_exit_code(s);
}

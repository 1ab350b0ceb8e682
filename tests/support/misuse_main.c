/* SPDX-License-Identifier: BSD-3-Clause */
/* misuse CASE [blocks]: a program that makes one mistake, and prints the message it gets. Three scopes of two
 * parameters, entered by hooks or run as blocks. In the case "audited" blocks b and c promise bits. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <tessera/tessera.h>

#include "toy_device.h"

enum { SCOPES = 3, WEIGHTS = 600, BIASES = 20 };
static const char *mistake;
static tess *t;
static tess_scope scope[SCOPES];
static int blocks;
static float *kept, *late; /* pointers used after their end */

static int is(const char *name) {
    return strcmp(mistake, name) == 0;
}

static int on_rank(const char *name) { /* on rank 1 where there is one */
    return is(name) && tess_rank(t) == tess_ranks(t) - 1;
}

static void ok(tess_status status) {
    if (status == TESS_OK)
        return;
    fprintf(stderr, "misuse: %s\n", tess_last_error());
    tess_close(t);
    toy_device_close();
    exit(tess_exit_code(status));
}

/* ---- the kernels --------------------------------------------------------------------------------- */
static double compute(int k, float *const *p) {
    static const float one = 1;
    double sum = 0;
    float weight[WEIGHTS], first = 0;
    if (k == 1 && on_rank("write_param"))
        toy_write(&p[0][3], &one, sizeof one);
    toy_read(weight, p[0], sizeof weight);
    for (int i = 0; i < WEIGHTS; i++)
        sum += (double)weight[i];
    if (k == 0)
        kept = p[0];
    if (k == 1 && on_rank("use_after_end"))
        toy_read(&first, kept, sizeof first);
    sum += (double)first;
    if (k == SCOPES - 1 && on_rank("use_after_end_last"))
        kept = p[1];
    return sum;
}

static void differentiate(int k, float *const *p, float *const *d) {
    float weight[WEIGHTS], of_weight[WEIGHTS], of_bias[BIASES], first = 0;
    toy_read(weight, p[0], sizeof weight);
    toy_read(of_weight, d[0], sizeof of_weight);
    toy_read(of_bias, d[1], sizeof of_bias);
    for (int i = 0; i < WEIGHTS; i++)
        of_weight[i] += 0.01f * weight[i];
    for (int i = 0; i < BIASES; i++) /* as long as the kernel believes */
        of_bias[i] += 1;
    if (k == 0 && on_rank("use_after_end_last"))
        toy_read(&first, kept, sizeof first);
    of_weight[0] += first;
    toy_write(d[0], of_weight, sizeof of_weight);
    toy_write(d[1], of_bias, sizeof of_bias);
}

/* After the backward of `k`. */
static void write_late(int k, float *gradient) {
    float first;
    if (!(k == SCOPES - 1 && on_rank("grad_after_end")) && !(k == 0 && on_rank("grad_after_end_last")))
        return;
    toy_read(&first, gradient, sizeof first);
    first += 7;
    toy_write(gradient, &first, sizeof first);
}

static tess_status forward_block(void *user, const tess_block_call *c) {
    double sum = 0;
    if (c->input)
        toy_read(&sum, c->input, sizeof sum);
    sum += compute((int)(intptr_t)user, (float *const *)(uintptr_t)c->params);
    toy_write(c->output, &sum, sizeof sum);
    return TESS_OK;
}

static tess_status backward_block(void *user, const tess_block_call *c) {
    int k = (int)(intptr_t)user;
    if (k < SCOPES - 1)
        write_late(k + 1, late);
    differentiate(k, (float *const *)(uintptr_t)c->params, (float *const *)c->grads);
    late = c->grads[0];
    return TESS_OK;
}

static void declare_scope(int k, const char *name) {
    tess_block_options o = { .struct_size = sizeof o,
                             .flags = is("audited") && k ? TESS_BLOCK_AUDIT : 0,
                             .name = name,
                             .output_bytes = sizeof(double),
                             .forward = forward_block,
                             .backward = backward_block,
                             .user = (void *)(intptr_t)k };
    ok(blocks ? tess_block_add(t, &o, &scope[k]) : tess_scope_add(t, name, 0, &scope[k]));
}

static void declare(void) {
    static const char *const names[SCOPES] = { "a", "b", "c" };
    char name[16];
    const int64_t many[] = { WEIGHTS }, few[] = { is("small_bias") ? BIASES / 4 : BIASES };
    for (int k = 0; k < SCOPES; k++) {
        declare_scope(k, names[k]);
        tess_param_options o = { .struct_size = sizeof o, .dtype = TESS_F32, .name = name, .shape = many, .ndim = 1 };
        snprintf(name, sizeof name, "%s.weight", names[k]);
        o.optimizer_group = is("group") ? 1 : 0;
        ok(tess_param_add(t, &o, NULL));
        snprintf(name, sizeof name, "%s.bias", names[k]);
        o.shape = few;
        o.optimizer_group = 0;
        ok(tess_param_add(t, &o, NULL));
    }
}

static tess_status fill(void *user, const tess_range *r, void *data) {
    (void)user;
    for (uint64_t i = 0; i < r->elems; i++)
        ((float *)data)[i] = 0.001f * (float)(r->first_elem + i);
    return TESS_OK;
}

/* ---- a pass -------------------------------------------------------------------------------------- */
static double forward(int k) {
    float *p[2];
    ok(tess_forward_begin(t, scope[k], p, 2));
    double sum = compute(k, p);
    ok(tess_forward_end(t, scope[k]));
    return sum;
}

static void backward(int k) {
    float *p[2], *d[2];
    ok(tess_backward_begin(t, scope[k], p, d, 2));
    differentiate(k, p, d);
    ok(tess_backward_end(t, scope[k]));
    write_late(k, d[0]);
}

/* With the step, or with tess_step after it. */
static void run_blocks(const tess_optimizer_options *step) {
    double sum = 0;
    tess_run_options o = { .struct_size = sizeof o, .kind = TESS_PASS_TRAIN, .result = &sum };
    if (on_rank("eval_and_train"))
        o.kind = TESS_PASS_EVAL;
    if (on_rank("hang"))
        sleep(30);
    o.step = is("grad_after_end_last") || is("small_bias") ? step : NULL;
    ok(tess_run(t, &o));
    write_late(0, late);
    ok(tess_all_reduce(t, &sum, 1, TESS_F64, TESS_AVG));
    if (!o.step)
        ok(tess_step(t, step));
}

static void pass(void) {
    double sum = 0;
    uint32_t kind = on_rank("eval_and_train") || is("summon_eval") ? TESS_PASS_EVAL : TESS_PASS_TRAIN;
    ok(tess_pass(t, kind));
    for (int k = 0; k < SCOPES; k++) {
        if (k == 1 && is("scope_left_out"))
            continue;
        sum += forward(k);
        if (k == 0 && is("summon_open")) {
            float *p[2];
            ok(tess_forward_begin(t, scope[1], p, 2));
            ok(tess_summon_begin(t, scope[0], p, 2));
        }
        if (k == 0 && (is("summon_within") || is("summon_eval"))) {
            float *p[2];
            ok(tess_summon_begin(t, scope[0], p, 2));
            ok(tess_summon_end(t, scope[0]));
        }
    }
    if (on_rank("hang"))
        sleep(30);
    for (int k = SCOPES; k-- > 0 && !is("no_backward") && kind == TESS_PASS_TRAIN;)
        if (k != 1 || (!is("backward_left_out") && !is("scope_left_out")))
            backward(k);
    ok(tess_all_reduce(t, &sum, 1, TESS_F64, TESS_AVG));
}

static void step(void) {
    const tess_optimizer_group groups[] = { { 0, 1 }, { on_rank("decay_per_rank") ? 0.2f : 0.1f, 1 } };
    tess_optimizer_options o = { .struct_size = sizeof o, .lr = 0.1f, .groups = groups, .n_groups = 2 };
    o.groups = is("group") ? NULL : groups;
    o.lr = is("lr_missing") ? 0 : is("lr_nan") ? NAN : on_rank("lr_per_rank") ? 0.2f : 0.1f;
    o.clip_norm = is("clip_negative") ? -1 : 0;
    const float rates[] = { 0.1f, on_rank("group_lr_per_rank") ? 0.2f : 0.1f };
    o.group_lr = is("group_lr_per_rank") ? rates : NULL;
    if (blocks)
        run_blocks(&o);
    else
        ok(tess_step(t, &o));
}

static void start(void) {
    tess_options o = { .struct_size = sizeof o };
    if (toy_device_open(&o))
        exit(tess_exit_code(TESS_E_DEVICE));
    ok(tess_open(&o, &t));
    declare();
    ok(tess_shard(t, fill, NULL));
}

/* Two engines at once, which the last rank uses in the other order. */
static void use_two_engines(void) {
    double value = 1;
    tess *first = t;
    start();
    tess *order[] = { first, t };
    if (on_rank("two_engines")) {
        order[0] = t;
        order[1] = first;
    }
    ok(tess_all_reduce(order[0], &value, 1, TESS_F64, TESS_SUM));
    ok(tess_all_reduce(order[1], &value, 1, TESS_F64, TESS_SUM));
    ok(tess_close(t));
    t = first;
}

int main(int argc, char **argv) {
    mistake = argc > 1 ? argv[1] : "";
    blocks = argc > 2 && strcmp(argv[2], "blocks") == 0;
    start();
    if (is("two_engines"))
        use_two_engines();
    for (int i = 0; i < 3; i++) {
        if (!blocks)
            pass();
        if (is("all_reduce_counts")) {
            float values[8] = { 0 };
            ok(tess_all_reduce(t, values, on_rank("all_reduce_counts") ? 5 : 3, TESS_F32, TESS_SUM));
        }
        step();
    }
    ok(tess_close(t));
    toy_device_close();
    printf("%s: nothing was wrong\n", mistake);
    return 0;
}

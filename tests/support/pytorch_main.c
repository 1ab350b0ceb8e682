/* SPDX-License-Identifier: BSD-3-Clause */
/* One rank of a training run by the engine that must follow PyTorch's stored one: every gradient of the first step, and
 * the loss at step 20. Usage: pytorch_main CASE, a name in models_reference.h; ranks as `tessera run` starts them. */
#include "tests/unit/models/models_reference.h"

#include <tessera/tessera.h>

static const training *wanted;

typedef struct {
    float *grads[64];
    const model *m;
} collected;

static tess_status collect(void *user, const tess_range *r, void *data) {
    collected *c = user;
    memcpy(c->grads[r->tag] + r->first_elem, data, r->elems * sizeof(float));
    return TESS_OK;
}

static const float *collected_gradient(void *user, int32_t p) {
    return ((collected *)user)->grads[p];
}

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if ((call) != TESS_OK)                                                                                         \
            fail_msg("%s", tess_last_error());                                                                         \
    } while (0)

static void compare_gradients(tess *t, const model *m) {
    collected c = { .m = m };
    for (int32_t p = 0; p < m->desc.n_params; p++)
        assert_non_null(c.grads[p] = calloc((size_t)m->desc.params[p].elems, sizeof(float)));
    OK(tess_each_full(t, TESS_OF_GRAD, collect, &c));
    check_gradients(m, wanted, tess_ranks(t), collected_gradient, &c);
    for (int32_t p = 0; p < m->desc.n_params; p++)
        free(c.grads[p]);
}

static double train_step(tess *t, run *r, uint64_t step) {
    gpt_result result; /* the longest */
    uint64_t microbatch = step * (uint64_t)tess_ranks(t) + (uint64_t)tess_rank(t);
    fill(r, microbatch);
    tess_run_options o = {
        .struct_size = sizeof o, .kind = TESS_PASS_TRAIN, .batch = r->batch, .result = &result, .microbatch = microbatch
    };
    OK(tess_run(t, &o));
    double loss = result.sum.loss / (double)result.sum.count;
    OK(tess_all_reduce(t, &loss, 1, TESS_F64, TESS_AVG));
    return loss;
}

static tess *open_engine(model *m) {
    static const char *const names[] = { "", "sgd", "adam", "adamw", "adadelta" };
    tess *t = NULL;
    tess_options o = { .struct_size = sizeof o,
                       .optimizer = names[wanted->optimizer],
                       .momentum = wanted->momentum,
                       .input_bytes = m->desc.input_bytes };
    OK(tess_open(&o, &t));
    OK(model_declare(t, m));
    OK(tess_shard(t, model_fill, m));
    return t;
}

static void engine_follows_pytorch(void **state) {
    (void)state;
    run r = { 0 };
    model_options o = training_options(wanted, NULL, TESS_F32);
    assert_int_equal(model_create(wanted->model, &o, &r.m), TESS_OK);
    assert_non_null(r.batch = aligned_alloc(64, ops_align(r.m->desc.input_bytes)));
    tess *t = open_engine(r.m);
    losses expected = load_losses(wanted->name, tess_ranks(t));
    tess_optimizer_group groups[2] = { { .weight_decay = wanted->decay }, { .weight_decay = 0 } };
    tess_optimizer_options step_options = { .struct_size = sizeof step_options,
                                            .lr = wanted->lr,
                                            .momentum = wanted->momentum,
                                            .groups = groups,
                                            .n_groups = 2 };
    for (uint64_t step = 0; step <= STEPS; step++) {
        double loss = train_step(t, &r, step);
        if (step == 0)
            compare_gradients(t, r.m);
        if (step == STEPS && !(fabs(loss / expected.fp64[step] - 1) <= 1e-3))
            fail_msg("%s on %d: loss %.9g at step 20, PyTorch has %.9g", wanted->name, tess_ranks(t), loss,
                     expected.fp64[step]);
        OK(tess_step(t, &step_options));
    }
    OK(tess_close(t));
    model_destroy(r.m);
    free(r.batch);
}

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < sizeof trainings / sizeof trainings[0]; i++)
        if (!strcmp(trainings[i].name, argv[1]))
            wanted = &trainings[i];
    const struct CMUnitTest tests[] = { cmocka_unit_test(engine_follows_pytorch) };
    return wanted ? cmocka_run_group_tests(tests, NULL, NULL) : 2;
}

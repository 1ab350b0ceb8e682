/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks recorded work. Recorded optimizer steps read their numbers from memory, because the numbers change each
 * step. */
#include "device.h"

#include <string.h>

#include "suites.h"

enum { BYTES = 4096, ELEMS = 1000, SEGMENTS = 2 };

static int records(check *self) {
    device_open(self);
    int n = TESS_CAN(tess_device_ops, dut.ops, record_begin) + TESS_CAN(tess_device_ops, dut.ops, record_end) +
            TESS_CAN(tess_device_ops, dut.ops, graph_run) + TESS_CAN(tess_device_ops, dut.ops, graph_destroy) +
            TESS_CAN(tess_device_ops, dut.ops, optimizer_prepare);
    check_that(self, n == 0 || n == 5, "has %d of the five slots for recording", n);
    if (!n)
        check_skip(self, "records nothing");
    return n;
}

static void all_are(check *self, const tess_buffer *b, int expected, const char *when) {
    uint8_t bytes[BYTES];
    download(b, bytes, BYTES);
    for (int i = 0; i < BYTES; i++)
        check_that(self, bytes[i] == expected, "%s: byte %d is %d, expected %d", when, i, bytes[i], expected);
}

static void fill(tess_buffer *b, uint8_t byte) {
    must(dut.ops->fill(dut.device, b->ptr, byte, BYTES, &dut.stream, &dut.error), "fill");
}

static void copy(tess_buffer *to, const tess_buffer *from) {
    must(dut.ops->copy(dut.device, to->ptr, to->mem, from->ptr, from->mem, BYTES, &dut.stream, &dut.error), "copy");
}

/* Each run of recorded work reads memory as it is at that time. */
static void recorded_work_runs_when_asked(check *self) {
    records(self);
    tess_buffer a = upload(NULL, BYTES), b = upload(NULL, BYTES);
    tess_graph *graph = NULL;
    fill(&a, 1);
    fill(&b, 2);
    must(dut.ops->record_begin(dut.device, &dut.stream, &dut.error), "record_begin");
    copy(&b, &a);
    fill(&a, 3);
    must(dut.ops->record_end(dut.device, &dut.stream, &graph, &dut.error), "record_end");
    check_that(self, graph != NULL, "record_end gave no graph");
    all_are(self, &a, 1, "recorded and not run");
    all_are(self, &b, 2, "recorded and not run");
    must(dut.ops->graph_run(graph, &dut.stream, &dut.error), "graph_run");
    all_are(self, &b, 1, "run once");
    all_are(self, &a, 3, "run once");
    fill(&a, 4);
    must(dut.ops->graph_run(graph, &dut.stream, &dut.error), "graph_run");
    must(dut.ops->graph_run(graph, &dut.stream, &dut.error), "graph_run");
    all_are(self, &b, 3, "run three times");
    dut.ops->graph_destroy(graph);
    dut.ops->graph_destroy(NULL);
    must(dut.ops->record_begin(dut.device, &dut.stream, &dut.error), "record_begin again");
    fill(&a, 9);
    must(dut.ops->record_end(dut.device, &dut.stream, NULL, &dut.error), "record_end without a graph");
    all_are(self, &a, 3, "recorded and dropped");
    fill(&a, 5);
    all_are(self, &a, 5, "behind what was dropped");
    release(&a);
    release(&b);
}

/* ---- the optimizer --------------------------------------------------------------------------------------- */

static struct {
    float grad[ELEMS], param[2][ELEMS], state[2][2][ELEMS]; /* [0]: the host's; [1]: the device's */
    tess_segment segments[SEGMENTS];
    tess_optimizer o;
    tess_kernel k;
    const void *in[1];
} s;

static void settings_of_step(uint64_t step, uint32_t optimizer) {
    for (int i = 0; i < SEGMENTS; i++)
        s.segments[i] = (tess_segment){ .struct_size = sizeof s.segments[i],
                                        .first = (uint64_t)i * 600,
                                        .elems = i ? ELEMS - 600 : 590,
                                        .lr = 0.01f / (float)step,
                                        .weight_decay = 0.1f,
                                        .momentum = 0.9f };
    s.o = (tess_optimizer){ .struct_size = sizeof s.o,
                            .optimizer = optimizer,
                            .n_segments = SEGMENTS,
                            .segments = s.segments,
                            .step = step,
                            .beta1 = 0.9f,
                            .beta2 = 0.99f,
                            .eps = 1e-6f,
                            .rho = 0.95f,
                            .grad_scale = 0.5f * (float)step };
}

static void kernel_of(const void *grad, void *param, void *state0, void *state1) {
    s.in[0] = grad;
    s.k = (tess_kernel){ .struct_size = sizeof s.k,
                         .kernel = TESS_K_OPTIMIZER,
                         .in_dtype = TESS_F32,
                         .out_dtype = TESS_F32,
                         .n_in = 1,
                         .in = s.in,
                         .out = param,
                         .state = { state0, s.o.optimizer == TESS_OPT_SGD ? NULL : state1 },
                         .elems = ELEMS,
                         .optimizer = &s.o };
}

static void on_host(uint64_t step, uint32_t optimizer) {
    settings_of_step(step, optimizer);
    kernel_of(s.grad, s.param[0], s.state[0][0], s.state[0][1]);
    run_reference(&s.k);
}

static void compare(check *self, tess_buffer *param, tess_buffer state[2], uint32_t optimizer) {
    download(param, s.param[1], sizeof s.param[1]);
    for (int i = 0; i < 2; i++)
        download(&state[i], s.state[1][i], sizeof s.state[1][i]);
    check_that(self, memcmp(s.param[0], s.param[1], sizeof s.param[0]) == 0,
               "optimizer %u: parameters after three recorded steps are not the core's", optimizer);
    check_that(self, memcmp(s.state[0], s.state[1], sizeof s.state[0]) == 0,
               "optimizer %u: states after three recorded steps are not the core's", optimizer);
}

/* Records with the numbers of step 1, which later runs must not use. */
static void steps_of(check *self, uint32_t optimizer) {
    unsigned char numbers[SEGMENTS * TESS_PREPARED_BYTES];
    tess_graph *graph = NULL;
    memset(s.state, 0, sizeof s.state);
    for (int i = 0; i < ELEMS; i++) {
        s.grad[i] = (float)(i % 17) - 8.0f;
        s.param[0][i] = s.param[1][i] = (float)(i % 5);
    }
    tess_buffer grad = upload(s.grad, sizeof s.grad), param = upload(s.param[1], sizeof s.param[1]);
    tess_buffer state[2] = { upload(s.state[1][0], sizeof s.state[1][0]), upload(s.state[1][1], sizeof s.state[1][1]) };
    tess_buffer prepared = upload(NULL, sizeof numbers);
    settings_of_step(1, optimizer);
    s.o.prepared = prepared.ptr;
    kernel_of(grad.ptr, param.ptr, state[0].ptr, state[1].ptr);
    must(dut.ops->record_begin(dut.device, &dut.stream, &dut.error), "record_begin");
    must(dut.ops->kernel(dut.device, &s.k, &dut.stream, &dut.error), "kernel");
    must(dut.ops->record_end(dut.device, &dut.stream, &graph, &dut.error), "record_end");
    for (uint64_t step = 1; step <= 3; step++) {
        on_host(step, optimizer);
        must(dut.ops->optimizer_prepare(dut.ctx, &s.o, numbers), "optimizer_prepare");
        must(dut.ops->copy(dut.device, prepared.ptr, prepared.mem, numbers, TESS_MEM_HOST, sizeof numbers, &dut.stream,
                           &dut.error),
             "copy up");
        must(dut.ops->graph_run(graph, &dut.stream, &dut.error), "graph_run");
        drain(&dut.stream);
    }
    compare(self, &param, state, optimizer);
    dut.ops->graph_destroy(graph);
    release(&grad);
    release(&param);
    release(&state[0]);
    release(&state[1]);
    release(&prepared);
}

static void recorded_steps_take_new_numbers(check *self) {
    records(self);
    for (uint32_t optimizer = TESS_OPT_SGD; optimizer <= TESS_OPT_ADADELTA; optimizer++)
        steps_of(self, optimizer);
    settings_of_step(0, TESS_OPT_ADAM);
    unsigned char numbers[SEGMENTS * TESS_PREPARED_BYTES];
    check_that(self, dut.ops->optimizer_prepare(dut.ctx, &s.o, numbers) == TESS_E_INVALID,
               "optimizer_prepare takes step 0");
}

const check_case check_cases_device_graphs[] = {
    { "graphs", 1, recorded_work_runs_when_asked, 0, 0 },
    { "recorded_steps", 1, recorded_steps_take_new_numbers, 0, 0 },
    { 0 },
};

/* SPDX-License-Identifier: BSD-3-Clause */
/* The engine's device over a plugin that writes down its calls: whose stream is taken, where work goes that names no
 * stream, what a slot that is missing stands for, and how a plugin's error is worded. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/base/status.h"
#include "core/runtime/device.h"
#include "tests/unit/said.h"

static struct {
    tess_status answer; /* of every call */
    char ctx, handle, event, graph, own, given, other;
    uint64_t backend;
} world;
static tess_device *const handle = (tess_device *)&world.handle;
static tess_event *const event = (tess_event *)&world.event;
static tess_graph *const graph = (tess_graph *)&world.graph;

static const char *name(const void *stream) {
    return stream == &world.own     ? "own"
           : stream == &world.given ? "given"
           : stream == &world.other ? "other"
           : stream                 ? "?"
                                    : "default";
}

static tess_status answer(tess_error *e) {
    assert_int_equal(e->struct_size, sizeof *e);
    if (world.answer)
        snprintf(e->message, sizeof e->message, "it is broken");
    return world.answer;
}

static tess_status describe(void *ctx, int32_t index, tess_device_info *out, tess_error *e) {
    assert_ptr_equal(ctx, &world.ctx);
    assert_true(out->struct_size == sizeof *out && out->mem == 0 && out->name[0] == 0);
    say("describe %d; ", index);
    out->numa_node = 5;
    return answer(e);
}
static tess_status create(void *ctx, int32_t index, uint64_t capacity, tess_device **out, tess_error *e) {
    assert_ptr_equal(ctx, &world.ctx);
    say("create %d %d; ", index, (int)capacity);
    *out = world.answer ? NULL : handle;
    return answer(e);
}
static void destroy(tess_device *d) {
    assert_ptr_equal(d, handle);
    say("destroy; ");
}
static tess_status mem_alloc(tess_device *d, const tess_alloc_request *r, tess_buffer *out, tess_error *e) {
    assert_ptr_equal(d, handle);
    say("alloc %d; ", (int)r->bytes);
    out->bytes = r->bytes + 1;
    return answer(e);
}
static void mem_free(tess_device *d, tess_buffer *b) {
    assert_ptr_equal(d, handle);
    say("free %d; ", (int)b->bytes);
}
static tess_status mem_usage(tess_device *d, uint64_t *backend, uint64_t *free_bytes) {
    assert_ptr_equal(d, handle);
    *backend = world.backend;
    *free_bytes = 3;
    return TESS_OK;
}
static tess_status stream_create(tess_device *d, uint32_t role, tess_stream *out, tess_error *e) {
    assert_ptr_equal(d, handle);
    say("stream %u; ", role);
    *out = (tess_stream){ .mem = TESS_MEM_CUDA, .handle = &world.own };
    return answer(e);
}
static tess_status stream_import(tess_device *d, void *native, tess_stream *out, tess_error *e) {
    assert_ptr_equal(d, handle);
    say("import %s; ", name(native));
    *out = (tess_stream){ .mem = TESS_MEM_CUDA, .handle = native };
    return answer(e);
}
static void stream_destroy(tess_device *d, tess_stream *s) {
    assert_ptr_equal(d, handle);
    say("end %s; ", name(s->handle));
}
static tess_status event_create(tess_device *d, tess_event **out, tess_error *e) {
    assert_ptr_equal(d, handle);
    *out = event;
    say("event; ");
    return answer(e);
}
static void event_destroy(tess_event *x) {
    assert_ptr_equal(x, event);
    say("event's end; ");
}
static tess_status event_record(tess_event *x, const tess_stream *s, tess_error *e) {
    assert_ptr_equal(x, event);
    say("record in %s; ", name(s->handle));
    return answer(e);
}
static tess_status event_stream_wait(tess_event *x, const tess_stream *s, tess_error *e) {
    assert_ptr_equal(x, event);
    say("%s waits; ", name(s->handle));
    return answer(e);
}
static tess_status event_wait(tess_event *x, int64_t timeout_ns, tess_error *e) {
    assert_ptr_equal(x, event);
    say("wait %d; ", (int)timeout_ns);
    return answer(e);
}
static tess_status event_elapsed(tess_event *from, tess_event *to, int64_t *out) {
    assert_true(from == event && to == (tess_event *)&world.other);
    *out = 12;
    return world.answer;
}
static tess_status copy(tess_device *d, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem, uint64_t bytes,
                        const tess_stream *s, tess_error *e) {
    assert_ptr_equal(d, handle);
    say("copy %s in %u to %s in %u, %d, in %s; ", name(src), src_mem, name(dst), dst_mem, (int)bytes, name(s->handle));
    return answer(e);
}
static tess_status fill(tess_device *d, void *dst, uint8_t byte, uint64_t bytes, const tess_stream *s, tess_error *e) {
    assert_ptr_equal(d, handle);
    say("fill %s, %d times %d, in %s; ", name(dst), (int)bytes, byte, name(s->handle));
    return answer(e);
}
static tess_status kernel_need(void *ctx, const tess_kernel *k, tess_need *out) {
    assert_ptr_equal(ctx, &world.ctx);
    assert_int_equal(k->struct_size, sizeof *k);
    assert_int_equal(out->struct_size, sizeof *out);
    return world.answer;
}
static tess_status kernel(tess_device *d, const tess_kernel *k, const tess_stream *s, tess_error *e) {
    assert_ptr_equal(d, handle);
    assert_int_equal(k->struct_size, sizeof *k);
    say("kernel %u in %s; ", k->kernel, name(s->handle));
    return answer(e);
}
static tess_status record_begin(tess_device *d, const tess_stream *s, tess_error *e) {
    assert_ptr_equal(d, handle);
    say("begin in %s; ", name(s->handle));
    return answer(e);
}
static tess_status record_end(tess_device *d, const tess_stream *s, tess_graph **out, tess_error *e) {
    assert_ptr_equal(d, handle);
    if (out)
        *out = graph;
    say("%s in %s; ", out ? "keep" : "drop", name(s->handle));
    return answer(e);
}
static tess_status graph_run(tess_graph *g, const tess_stream *s, tess_error *e) {
    assert_ptr_equal(g, graph);
    say("run in %s; ", name(s->handle));
    return answer(e);
}
static void graph_destroy(tess_graph *g) {
    assert_ptr_equal(g, graph);
    say("graph's end; ");
}
static tess_status optimizer_prepare(void *ctx, const tess_optimizer *o, void *out) {
    assert_true(ctx == &world.ctx && o->struct_size == sizeof *o && out == &world.other);
    say("prepare; ");
    return world.answer;
}

static tess_device_ops ops;
static tess__device device;

static int begin(void **state) {
    static tess__plugin plugin = { .name = "gpu" };
    (void)state;
    memset(&world, 0, sizeof world);
    ops = (tess_device_ops){ .struct_size = sizeof ops,
                             .describe = describe,
                             .create = create,
                             .destroy = destroy,
                             .mem_alloc = mem_alloc,
                             .mem_free = mem_free,
                             .mem_usage = mem_usage,
                             .stream_create = stream_create,
                             .stream_import = stream_import,
                             .stream_destroy = stream_destroy,
                             .event_create = event_create,
                             .event_destroy = event_destroy,
                             .event_record = event_record,
                             .event_stream_wait = event_stream_wait,
                             .event_wait = event_wait,
                             .event_elapsed_ns = event_elapsed,
                             .copy = copy,
                             .fill = fill,
                             .kernel_need = kernel_need,
                             .kernel = kernel,
                             .record_begin = record_begin,
                             .record_end = record_end,
                             .graph_run = graph_run,
                             .graph_destroy = graph_destroy,
                             .optimizer_prepare = optimizer_prepare };
    plugin.ops = &ops;
    plugin.ctx = &world.ctx;
    device = (tess__device){ .mem = TESS_MEM_CUDA };
    tess__device_use(&device, &plugin);
    assert_true(device.plugin == &plugin && device.ops == &ops);
    said_so_far[0] = 0;
    return 0;
}

static void create_device(void *stream, int own) {
    assert_int_equal(tess__device_create(&device, 2, 99, stream, own), TESS_OK);
    assert_ptr_equal(device.handle, handle);
}

/* ---- whose stream ---- */

static void test_device__the_programs_stream_stays_its_own(void **state) {
    (void)state;
    for (int own = 0; own < 2; own++) {
        create_device(&world.given, own);
        assert_ptr_equal(device.compute.handle, &world.given);
        tess__device_destroy(&device);
        assert_null(device.handle);
        tess__device_destroy(&device); /* once */
        expect_said("create 2 99; import given; destroy; ");
    }
}

static void test_device__without_one_it_has_the_default_or_its_own(void **state) {
    (void)state;
    create_device(NULL, 0);
    assert_true(device.compute.handle == NULL && device.compute.mem == TESS_MEM_CUDA);
    tess__device_destroy(&device);
    expect_said("create 2 99; import default; destroy; ");
    create_device(NULL, 1);
    assert_ptr_equal(device.compute.handle, &world.own);
    tess__device_destroy(&device);
    expect_said("create 2 99; stream 1; end own; destroy; ");
    device.mem = TESS_MEM_HOST; /* which has no default */
    create_device(NULL, 0);
    tess__device_destroy(&device);
    expect_said("create 2 99; stream 1; end own; destroy; ");
}

static void test_device__what_has_no_streams_makes_none(void **state) {
    (void)state;
    ops.stream_create = NULL;
    ops.stream_import = NULL;
    ops.stream_destroy = NULL;
    for (int own = 0; own < 2; own++) {
        create_device(own ? NULL : &world.given, own);
        assert_int_equal(device.compute.mem, TESS_MEM_CUDA);
        assert_ptr_equal(device.compute.handle, own ? NULL : &world.given);
        assert_int_equal(tess__device_has_streams(&device), 0);
        tess__device_destroy(&device);
        expect_said("create 2 99; destroy; ");
    }
    begin(NULL);
    assert_int_equal(tess__device_has_streams(&device), 1);
    device.mem = TESS_MEM_HOST;
    assert_int_equal(tess__device_has_streams(&device), 0);
}

/* ---- work ---- */

static void test_device__work_goes_to_the_compute_stream_or_where_it_is_told(void **state) {
    (void)state;
    const tess_stream other = { .mem = TESS_MEM_CUDA, .handle = &world.other };
    tess_kernel k = { .kernel = TESS_K_CAST };
    create_device(&world.given, 0);
    said_so_far[0] = 0;
    for (int told = 0; told < 2; told++) {
        const tess_stream *s = told ? &other : NULL;
        assert_int_equal(tess__device_copy(&device, &world.own, 7, &world.other, 8, 9, s), TESS_OK);
        k.struct_size = 0;
        assert_int_equal(tess__device_kernel(&device, &k, s), TESS_OK);
    }
    expect_said("copy other in 8 to own in 7, 9, in given; kernel 1 in given; "
                "copy other in 8 to own in 7, 9, in other; kernel 1 in other; ");
    assert_int_equal(tess__device_fill(&device, &world.own, 7, 9), TESS_OK);
    expect_said("fill own, 9 times 7, in given; ");
    k.struct_size = 0;
    assert_int_equal(tess__device_offers(&device, &k), 1);
    world.answer = TESS_E_UNSUPPORTED;
    assert_int_equal(tess__device_offers(&device, &k), 0);
}

static void test_device__memory_is_the_plugins(void **state) {
    (void)state;
    const tess_alloc_request request = { .struct_size = sizeof request, .bytes = 40 };
    tess_buffer b = { .bytes = 0 };
    create_device(NULL, 0);
    said_so_far[0] = 0;
    assert_int_equal(tess__device_alloc(&device, &request, &b), TESS_OK);
    tess__device_free(&device, &b);
    expect_said("alloc 40; free 41; ");
    world.backend = 6;
    assert_int_equal(tess__device_backend_bytes(&device), 6);
    ops.mem_usage = NULL;
    assert_int_equal(tess__device_backend_bytes(&device), 0);
}

static void test_device__streams_and_events_are_the_plugins(void **state) {
    (void)state;
    tess_stream s = { .mem = TESS_MEM_CUDA };
    tess_event *made = NULL;
    int64_t ns = 0;
    create_device(&world.given, 0);
    said_so_far[0] = 0;
    tess__device_stream_end(&device, &s); /* there is none */
    assert_int_equal(tess__device_stream(&device, TESS_STREAM_UP, &s), TESS_OK);
    assert_int_equal(tess__device_event(&device, &made), TESS_OK);
    assert_ptr_equal(made, event);
    assert_int_equal(tess__device_record(&device, made, &s), TESS_OK);
    assert_int_equal(tess__device_stream_wait(&device, made, &device.compute), TESS_OK);
    assert_int_equal(tess__device_event_wait(&device, made, -1), TESS_OK);
    tess__device_event_end(&device, made);
    tess__device_event_end(&device, NULL);
    tess__device_stream_end(&device, &s);
    expect_said("stream 3; event; record in own; given waits; wait -1; event's end; end own; ");
    assert_int_equal(tess__device_times_events(&device), 1);
    assert_int_equal(tess__device_elapsed(&device, event, (tess_event *)&world.other, &ns), TESS_OK);
    assert_int_equal(ns, 12);
    world.answer = TESS_PENDING;
    assert_int_equal(tess__device_elapsed(&device, event, (tess_event *)&world.other, &ns), TESS_PENDING);
    ops.event_elapsed_ns = NULL;
    assert_int_equal(tess__device_times_events(&device), 0);
}

static void test_device__recordings_are_of_the_compute_stream(void **state) {
    (void)state;
    tess_graph *g = NULL;
    create_device(&world.given, 0);
    said_so_far[0] = 0;
    assert_int_equal(tess__device_record_begin(&device), TESS_OK);
    assert_int_equal(tess__device_record_end(&device, &g), TESS_OK);
    assert_ptr_equal(g, graph);
    assert_int_equal(tess__device_record_end(&device, NULL), TESS_OK);
    assert_int_equal(tess__device_graph_run(&device, g), TESS_OK);
    tess__device_graph_end(&device, g);
    tess__device_graph_end(&device, NULL);
    expect_said("begin in given; keep in given; drop in given; run in given; graph's end; ");
}

/* A profiler shows ranges only where they also end. */
static void push(tess_device *d, const char *range) {
    assert_ptr_equal(d, handle);
    say("%s(", range);
}
static void pop(tess_device *d) {
    assert_ptr_equal(d, handle);
    say(")");
}
static void test_device__ranges_begin_and_end(void **state) {
    (void)state;
    create_device(NULL, 0);
    said_so_far[0] = 0;
    for (int has = 0; has < 4; has++) {
        ops.range_push = has & 1 ? push : NULL;
        ops.range_pop = has & 2 ? pop : NULL;
        assert_int_equal(tess__device_is_profiled(&device), has == 3);
    }
    tess__device_range_push(&device, "a");
    tess__device_range_push(&device, "b");
    tess__device_range_pop(&device);
    tess__device_range_pop(&device);
    expect_said("a(b())");
}

/* ---- what goes wrong ---- */

static void expect_broken(tess_status s) {
    assert_int_equal(s, TESS_E_DEVICE);
    assert_string_equal(tess_last_error(), "device gpu: it is broken");
    tess__fail(TESS_E_INVALID, "none");
}

static void test_device__each_error_is_told_in_the_plugins_words(void **state) {
    (void)state;
    const tess_alloc_request request = { .struct_size = sizeof request, .bytes = 40 };
    const tess_optimizer sgd = { .struct_size = sizeof sgd };
    tess_device_info info;
    tess_kernel k = { .kernel = TESS_K_CAST };
    tess_stream s;
    tess_buffer b;
    tess_event *made;
    tess_graph *g;
    assert_int_equal(tess__device_describe(&device, -1, &info), TESS_OK);
    assert_int_equal(info.numa_node, 5);
    world.answer = TESS_E_DEVICE;
    expect_broken(tess__device_describe(&device, 3, &info));
    expect_broken(tess__device_create(&device, 2, 99, NULL, 1));
    tess__device_destroy(&device); /* there is none */
    expect_said("describe -1; describe 3; create 2 99; ");
    world.answer = TESS_OK;
    create_device(NULL, 1);
    world.answer = TESS_E_DEVICE;
    expect_broken(tess__device_alloc(&device, &request, &b));
    expect_broken(tess__device_fill(&device, &world.own, 7, 9));
    expect_broken(tess__device_copy(&device, &world.own, 7, &world.other, 8, 9, NULL));
    expect_broken(tess__device_kernel(&device, &k, NULL));
    expect_broken(tess__device_stream(&device, TESS_STREAM_UP, &s));
    expect_broken(tess__device_event(&device, &made));
    expect_broken(tess__device_record(&device, event, &device.compute));
    expect_broken(tess__device_stream_wait(&device, event, &device.compute));
    expect_broken(tess__device_event_wait(&device, event, 0));
    expect_broken(tess__device_record_begin(&device));
    expect_broken(tess__device_record_end(&device, &g));
    expect_broken(tess__device_graph_run(&device, graph));
    said_so_far[0] = 0;
    assert_int_equal(tess__device_prepare(&device, &sgd, &world.other), TESS_E_DEVICE);
    assert_string_equal(tess_last_error(), "device gpu: the optimizer's numbers of a step are refused");
    world.answer = TESS_OK;
    assert_int_equal(tess__device_prepare(&device, &sgd, &world.other), TESS_OK);
    expect_said("prepare; prepare; ");
}

/* A stream that is not made leaves the device, which is then destroyed. */
static tess_status refuse_stream(tess_device *d, uint32_t role, tess_stream *out, tess_error *e) {
    (void)d, (void)role, (void)out;
    world.answer = TESS_E_DEVICE;
    return answer(e);
}
static tess_status refuse_import(tess_device *d, void *native, tess_stream *out, tess_error *e) {
    (void)d, (void)native, (void)out;
    world.answer = TESS_E_DEVICE;
    return answer(e);
}
static void test_device__a_stream_that_is_not_made_is_told(void **state) {
    (void)state;
    ops.stream_create = refuse_stream;
    ops.stream_import = refuse_import;
    for (int own = 0; own < 2; own++) {
        world.answer = TESS_OK;
        expect_broken(tess__device_create(&device, 2, 99, NULL, own));
        assert_ptr_equal(device.handle, handle);
        tess__device_destroy(&device);
        expect_said("create 2 99; destroy; ");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_device__the_programs_stream_stays_its_own, begin),
        cmocka_unit_test_setup(test_device__without_one_it_has_the_default_or_its_own, begin),
        cmocka_unit_test_setup(test_device__what_has_no_streams_makes_none, begin),
        cmocka_unit_test_setup(test_device__work_goes_to_the_compute_stream_or_where_it_is_told, begin),
        cmocka_unit_test_setup(test_device__memory_is_the_plugins, begin),
        cmocka_unit_test_setup(test_device__streams_and_events_are_the_plugins, begin),
        cmocka_unit_test_setup(test_device__recordings_are_of_the_compute_stream, begin),
        cmocka_unit_test_setup(test_device__ranges_begin_and_end, begin),
        cmocka_unit_test_setup(test_device__each_error_is_told_in_the_plugins_words, begin),
        cmocka_unit_test_setup(test_device__a_stream_that_is_not_made_is_told, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

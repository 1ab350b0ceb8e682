/* SPDX-License-Identifier: BSD-3-Clause */
/* device-cuda without a GPU: what it asks of the driver, in which order, what it makes of each answer, and that after
 * any failure it has given back what it had. */
#include "tests/unit/plugins/device_cuda.h"

/* ---- what lies between the plugin and the system ---- */

static char node_file[128], *node_text; /* the file that was asked for; null: there is none */

FILE *__real_fopen(const char *name, const char *mode);
FILE *__wrap_fopen(const char *name, const char *mode);
FILE *__wrap_fopen(const char *name, const char *mode) {
    if (strncmp(name, "/sys/", 5) != 0)
        return __real_fopen(name, mode);
    snprintf(node_file, sizeof node_file, "%s", name);
    assert_string_equal(mode, "re");
    return node_text ? fmemopen(node_text, strlen(node_text), "r") : NULL;
}

/* ---- the plugin, and what there is ---- */

static void test_device_cuda__opens_as_a_device_without_settings(void **state) {
    (void)state;
    const void *table;
    tess_host with = host;
    EXPECT_FAILS(tess_plugin_open_v1(&host, TESS_KIND_COMM, &table, &plugin, &e), TESS_E_UNSUPPORTED,
                 "device cuda is no plugin of kind 1");
    with.args = "x=1";
    EXPECT_FAILS(tess_plugin_open_v1(&with, TESS_KIND_DEVICE, &table, &plugin, &e), TESS_E_INVALID,
                 "device cuda takes no settings, found \"x=1\"");
    no_memory_in = 1;
    EXPECT_FAILS(tess_plugin_open_v1(&host, TESS_KIND_DEVICE, &table, &plugin, &e), TESS_E_NOMEM,
                 "device cuda: no memory to open");
    open_plugin();
    assert_true(!ops->range_push && !ops->range_pop);
    close_plugin();
#if __has_include(<nvtx3/nvToolsExt.h>)
    host.profiler = "/nowhere/libprofiler.so"; /* NVTX does without it */
    open_plugin();
    assert_true(ops->range_push && ops->range_pop);
    ops->range_push(NULL, "a step");
    ops->range_pop(NULL);
    close_plugin();
    host.profiler = NULL;
#endif
}

static void test_device_cuda__any_device_is_described_without_a_driver(void **state) {
    (void)state;
    tess_device_info any = { .struct_size = sizeof any };
    open_plugin();
    assert_int_equal(ops->describe(plugin, -1, &any, no_error()), TESS_OK);
    assert_true(any.mem == TESS_MEM_CUDA && any.align == 256 && any.granularity_bytes == 2 << 20);
    assert_int_equal(any.mem_mask, 1 << TESS_MEM_CUDA | 1 << TESS_MEM_PINNED | 1 << TESS_MEM_HOST);
    assert_true(any.numa_node == -1 && any.capacity_bytes == 0);
    assert_string_equal(any.name, "cuda");
    assert_string_equal(any.id, "cuda");
    for (uint32_t k = 0; k < 32; k++) { /* what it offers of each kernel is below */
        int offered = k == TESS_K_CAST || k == TESS_K_TREE_SUM || k == TESS_K_SCALE || k == TESS_K_SQUARE_SUM ||
                      k == TESS_K_OPTIMIZER;
        assert_int_equal(any.kernel_mask >> k & 1, offered);
    }
    for (uint32_t t = 0; t < 32; t++)
        assert_int_equal(any.dtype_mask >> t & 1,
                         t >= TESS_U8 && t <= TESS_Q8E4M3 && t != TESS_F8E4M3 && t != TESS_F8E5M2);
    assert_int_equal(written.calls, 0);
    expect_said("");
    close_plugin();
}

static tess_device_info one;
static tess_status describe_one(void) {
    one = (tess_device_info){ .struct_size = sizeof one };
    return ops->describe(plugin, OPENED, &one, &e);
}

static void test_device_cuda__one_device_is_the_drivers_with_the_node_that_sysfs_has(void **state) {
    (void)state;
    static char *const texts[] = { "3\n", "-1\n", "none", NULL };
    static const int nodes[] = { 3, -1, -1, -1 };
    open_plugin();
    for (int i = 0; i < 4; i++) {
        node_text = texts[i];
        assert_int_equal(describe_one(), TESS_OK);
        assert_string_equal(one.name, "GPU 101");
        assert_string_equal(one.id, "0000:AB:01.0");
        assert_int_equal(one.capacity_bytes, 101 << 20);
        assert_string_equal(node_file, "/sys/bus/pci/devices/0000:ab:01.0/numa_node");
        assert_int_equal(one.numa_node, nodes[i]);
    }
    assert_int_equal(fail_each_call(describe_one, CUDA_ERROR_UNKNOWN, NULL), 5);
    written.more_address =
        "-abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"; /* no address is so long: 47 characters are looked up */
    assert_int_equal(describe_one(), TESS_OK);
    assert_string_equal(node_file, "/sys/bus/pci/devices/0000:ab:01.0-abcdefghijklmnopqrstuvwxyzabcdefgh/numa_node");
    close_plugin();
}

static void test_device_cuda__a_device_that_there_is_not_is_refused(void **state) {
    (void)state;
    static const char no_such[] = "device cuda: no GPU 2: this host shows 2, and each rank takes the one of its local "
                                  "rank: start at most 2 ranks here";
    open_plugin();
    EXPECT_FAILS(ops->describe(plugin, 2, &one, &e), TESS_E_INVALID, no_such);
    EXPECT_FAILS(ops->create(plugin, 2, 0, &device, &e), TESS_E_INVALID, no_such);
    EXPECT_FAILS(ops->create(plugin, -2, 0, &device, &e), TESS_E_INVALID,
                 "device cuda: no GPU -2: this host shows 2, and each rank takes the one of its local rank: start at "
                 "most 2 ranks here");
    written.devices = 1; /* a launcher shows each rank its own */
    for (int i = 1; i < 4096; i += 4094) {
        assert_int_equal(ops->describe(plugin, i, &one, no_error()), TESS_OK);
        assert_string_equal(one.name, "GPU 100");
    }
    EXPECT_FAILS(ops->describe(plugin, 4096, &one, &e), TESS_E_INVALID,
                 "device cuda: no GPU 4096: this host shows 1, and each rank takes the one of its local rank: start at "
                 "most 1 ranks here");
    written.devices = 0;
    EXPECT_FAILS(ops->describe(plugin, 0, &one, &e), TESS_E_INVALID,
                 "device cuda: no GPU 0: this host shows 0, and each rank takes the one of its local rank: start at "
                 "most 0 ranks here");
    written.devices = 2;
    written.fails_in = 1, written.fails_with = CUDA_ERROR_INVALID_DEVICE; /* from the count itself */
    EXPECT_FAILS(ops->describe(plugin, 0, &one, &e), TESS_E_INVALID,
                 "device cuda: no GPU 0: this host shows 0, and each rank takes the one of its local rank: start at "
                 "most 0 ranks here");
    close_plugin();
}

/* ---- the driver ---- */

static void test_device_cuda__a_driver_that_does_not_serve_is_refused_with_its_reason(void **state) {
    (void)state;
    char text[240];
    open_plugin();
    written.missing = "all";
    EXPECT_FAILS(ops->create(plugin, 0, 0, &device, &e), TESS_E_DEVICE,
                 "device cuda: no NVIDIA driver here: libcuda.so.1 cannot be loaded");
    EXPECT_FAILS(ops->describe(plugin, 0, &one, &e), TESS_E_DEVICE,
                 "device cuda: no NVIDIA driver here: libcuda.so.1 cannot be loaded"); /* once asked */
    expect_said("open libcuda.so.1, 1002; ");
    for (size_t i = 0; i < sizeof written_functions / sizeof *written_functions; i++) {
        written_forget();
        written.missing = written_functions[i].name;
        snprintf(
            text, sizeof text,
            "device cuda: libcuda.so.1 has no %s: the NVIDIA driver is too old, one for CUDA 13.0 or later is needed",
            written.missing);
        EXPECT_FAILS(ops->create(plugin, 0, 0, &device, &e), TESS_E_VERSION, text);
    }
    written.missing = NULL;
    static const int versions[] = { 12020, 12000, 12999 };
    static const char *const names[] = { "12.2", "12.0", "12.99" };
    for (int i = 0; i < 3; i++) {
        written_forget();
        written.version = versions[i];
        snprintf(text, sizeof text,
                 "device cuda: the NVIDIA driver is for CUDA %s; this build, made with CUDA 13.2, needs 13.0 or later",
                 names[i]);
        EXPECT_FAILS(ops->create(plugin, 0, 0, &device, &e), TESS_E_VERSION, text);
    }
    written_forget();
    written.version = 13000;
    assert_int_equal(ops->create(plugin, 0, 0, &device, no_error()), TESS_OK);
    ops->destroy(device);
    close_plugin();
}

static void test_device_cuda__a_driver_that_does_not_start_is_refused(void **state) {
    (void)state;
    static const struct {
        int call;
        CUresult result;
        const char *text;
    } cases[] = {
        { 1, CUDA_ERROR_NO_DEVICE,
          "device cuda: the NVIDIA driver finds no GPU (is one visible? CUDA_VISIBLE_DEVICES)" },
        { 1, CUDA_ERROR_UNKNOWN, "device cuda: the NVIDIA driver does not start: cuInit gave NAME 999 (why)" },
        { 2, CUDA_ERROR_NOT_SUPPORTED,
          "device cuda: the NVIDIA driver does not answer: cuDriverGetVersion gave CUDA error 801 (unknown)" },
    };
    open_plugin();
    for (int i = 0; i < 3; i++) {
        written_forget();
        written.fails_in = cases[i].call, written.fails_with = cases[i].result;
        EXPECT_FAILS(ops->create(plugin, 0, 0, &device, &e), TESS_E_DEVICE, cases[i].text);
    }
    assert_int_equal(e.native, 0);
    close_plugin();
}

static void test_device_cuda__results_have_the_status_of_their_kind(void **state) {
    (void)state;
    for (int r = 0; r < 1000; r++) {
        tess_status want = r == CUDA_SUCCESS                                                 ? TESS_OK
                           : r == CUDA_ERROR_OUT_OF_MEMORY                                   ? TESS_E_NOMEM
                           : r == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_INVALID_DEVICE ? TESS_E_INVALID
                           : r == CUDA_ERROR_NOT_SUPPORTED                                   ? TESS_E_UNSUPPORTED
                                                                                             : TESS_E_DEVICE;
        assert_int_equal(tess_cuda_status((CUresult)r), want);
    }
    written_begin();
    written_forget();
    assert_string_equal(tess_cuda_text(CUDA_ERROR_UNKNOWN), "CUDA error 999 (unknown)"); /* without a driver */
}

static CUresult no_module(CUmodule *out, const void *image) {
    (void)image;
    *out = (CUmodule)1;
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
}
static CUresult no_attribute(int *out, CUdevice_attribute which, CUdevice d) {
    (void)out, (void)which, (void)d;
    return CUDA_ERROR_UNKNOWN;
}

static void test_device_cuda__kernels_that_do_not_load_say_so_beside_a_gpu_that_says_nothing(void **state) {
    (void)state;
    const tess_cuda mute = { .driver_version = 13050,
                             .cuModuleLoadData = no_module,
                             .cuDeviceGetAttribute = no_attribute };
    char text[240];
    CUmodule module = NULL;
    written_begin();
    written_forget();
    assert_int_equal(tess_cuda_load_module(&mute, 0, &mute, &module, text, sizeof text), CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_null(module);
    assert_string_equal(text,
                        "loading kernels made with CUDA 13.2 on a GPU of compute capability 0.0 with a driver for "
                        "CUDA 13.5 failed: CUDA error 209 (unknown)");
}

/* ---- an instance ---- */

static tess_status create_and_destroy(void) {
    tess_status s = ops->create(plugin, OPENED, 0, &device, &e);
    if (!s)
        WITHOUT_FAILURES(ops->destroy(device));
    return s;
}

static void test_device_cuda__an_instance_is_made_in_order_and_given_back_in_order(void **state) {
    (void)state;
    open_plugin();
    assert_int_equal(ops->create(plugin, OPENED, 0, &device, no_error()), TESS_OK);
    expect_said("open libcuda.so.1, 1002; init 0; retain 101; load; pool of 101; p3.3 = 0; stream of 0; stream of 0; "
                "event, 2; ");
    assert_int_equal(written.contexts, 0);
    ops->destroy(device);
    expect_said("sync all; sync s5; end e6; end s5; end s4; end p3; unload; release 101; ");
    ops->destroy(NULL);
    close_plugin();
    is_clean();
}

static void test_device_cuda__an_instance_that_fails_half_made_leaves_nothing(void **state) {
    (void)state;
    open_plugin();
    assert_int_equal(create_and_destroy(), TESS_OK);
    fail_each_call_thrice(create_and_destroy, is_clean);
    for (int n = 1; n <= 3; n++) {
        no_memory_in = n;
        EXPECT_FAILS(create_and_destroy(), TESS_E_NOMEM, "device cuda: no memory for its own tables");
        is_clean();
    }
    close_plugin();
}

static void test_device_cuda__each_failure_says_what_was_done(void **state) {
    (void)state;
    static const char *const doings[] = { "finding it",
                                          "finding it",
                                          "asking for its properties",
                                          "asking for its properties",
                                          "asking for its properties",
                                          "making a context on it",
                                          "making its context current" };
    char text[160];
    open_plugin();
    assert_int_equal(create_and_destroy(), TESS_OK);
    for (int n = 0; n < 7; n++) {
        written.fails_in = n + 1, written.fails_with = CUDA_ERROR_UNKNOWN;
        snprintf(text, sizeof text, "device cuda: GPU %d: %s failed: NAME 999 (why)", n > 1 ? OPENED : 0, doings[n]);
        EXPECT_FAILS(create_and_destroy(), TESS_E_DEVICE, text);
        assert_int_equal(e.native, 999);
    }
    written.version = 13040, written.minor = 1;
    written_forget();
    written.fails_in = 10; /* two more: the driver starts once more */
    snprintf(text, sizeof text,
             "device cuda: GPU 1: loading kernels made with CUDA 13.2 on a GPU of compute capability 9.1 with a driver "
             "for CUDA 13.4 failed: NAME 999 (why)");
    EXPECT_FAILS(create_and_destroy(), TESS_E_DEVICE, text);
    written.fails_in = 9;
    EXPECT_FAILS(create_and_destroy(), TESS_E_DEVICE, "device cuda: GPU 1: loading its kernels failed: NAME 999 (why)");
    assert_int_equal(ops->create(plugin, OPENED, 0, &device, &e), TESS_OK);
    const int functions = written.n_functions;
    ops->destroy(device);
    for (int n = 0; n < 7; n++) { /* an attribute, the pool, its setting, two streams, an event, what is free */
        written.fails_in = 9 + functions + n;
        EXPECT_FAILS(create_and_destroy(), TESS_E_DEVICE, "device cuda: GPU 1: starting on it failed: NAME 999 (why)");
    }
    close_plugin();
}

static void test_device_cuda__an_older_core_has_no_room_for_the_drivers_number(void **state) {
    (void)state;
    open_plugin();
    for (int fits = 0; fits < 2; fits++) {
        tess_error old = { .struct_size = offsetof(tess_error, native) + (fits ? sizeof old.native : 0), .native = 77 };
        written.fails_in = 3, written.fails_with = CUDA_ERROR_UNKNOWN;
        written_forget();
        assert_int_equal(ops->describe(plugin, 0, &one, &old), TESS_E_DEVICE);
        assert_int_equal(old.native, fits ? 999 : 77);
    }
    close_plugin();
}

static void test_device_cuda__chips_before_ampere_are_refused(void **state) {
    (void)state;
    open_plugin();
    written.major = 7, written.minor = 5;
    EXPECT_FAILS(create_and_destroy(), TESS_E_DEVICE,
                 "device cuda: GPU 1 has compute capability 7.5, 8.0 (Ampere) or later is needed");
    written.major = 8, written.minor = 0;
    assert_int_equal(create_and_destroy(), TESS_OK);
    close_plugin();
}

/* ---- streams ---- */

static tess_stream stream;
static tess_status make_stream(void) {
    stream = (tess_stream){ 0 };
    tess_status s = ops->stream_create(device, TESS_STREAM_UP, &stream, &e);
    if (!s)
        WITHOUT_FAILURES(ops->stream_destroy(device, &stream));
    return s;
}
static tess_status import(void) {
    return ops->stream_import(device, (void *)(uintptr_t)9, &stream, &e);
}
static int streams_before;
static void no_more_streams(void) {
    assert_int_equal(written.live.streams, streams_before);
    assert_null(stream.handle);
}

static void test_device_cuda__computation_goes_behind_transfers(void **state) {
    (void)state;
    static const uint32_t roles[] = { TESS_STREAM_COMPUTE, TESS_STREAM_GATHER, TESS_STREAM_UP, TESS_STREAM_DOWN };
    tess_stream s[4];
    open_device(0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ops->stream_create(device, roles[i], &s[i], no_error()), TESS_OK);
        assert_true(s[i].mem == TESS_MEM_CUDA && s[i].device == OPENED && number_of(s[i].handle) == 7 + i);
    }
    expect_said("stream of 0; stream of -5; stream of -5; stream of -5; ");
    ops->stream_destroy(device, &s[1]);
    expect_said("sync s8; end s8; ");
    assert_null(s[1].handle);
    ops->stream_destroy(device, &s[1]);
    ops->stream_destroy(device, NULL);
    expect_said("");
    tess_stream other = { .handle = (void *)(uintptr_t)99 };
    ops->stream_destroy(device, &other); /* the program's own */
    expect_said("");
    assert_null(other.handle);
    ops->destroy(device);
    expect_said("sync all; sync s5; end e6; end s5; end s4; end p3; end s7; end s10; end s9; unload; release 101; ");
    close_plugin();
}

static void test_device_cuda__streams_fail_with_nothing_left(void **state) {
    (void)state;
    open_device(0);
    streams_before = written.live.streams;
    assert_int_equal(fail_each_call(make_stream, CUDA_ERROR_UNKNOWN, no_more_streams), 3);
    for (int n = 1; n <= 3; n++) {
        written.fails_in = n, written.fails_with = CUDA_ERROR_UNKNOWN;
        EXPECT_FAILS(make_stream(), TESS_E_DEVICE,
                     n == 1 ? "device cuda: GPU 1: making its context current failed: NAME 999 (why)"
                            : "device cuda: GPU 1: making a stream failed: NAME 999 (why)");
        no_more_streams();
    }
    for (int i = 0; i < 16; i++)
        assert_int_equal(ops->stream_create(device, TESS_STREAM_UP, &stream, no_error()), TESS_OK);
    streams_before = written.live.streams;
    EXPECT_FAILS(make_stream(), TESS_E_INVALID, "device cuda: more than 16 streams");
    no_more_streams();
    close_device();
}

static void test_device_cuda__the_programs_stream_is_asked_whether_it_is_one(void **state) {
    (void)state;
    open_device(0);
    written.busy = CUDA_ERROR_NOT_READY, written.busy_for = 1;
    assert_int_equal(import(), TESS_OK); /* it may have work */
    assert_true(stream.mem == TESS_MEM_CUDA && stream.device == OPENED && stream.handle == (void *)(uintptr_t)9);
    expect_said("ask s9; ");
    written.fails_in = 2, written.fails_with = CUDA_ERROR_INVALID_HANDLE;
    EXPECT_FAILS(import(), TESS_E_INVALID, "device cuda: tess_options.stream is no stream of GPU 1: NAME 400 (why)");
    written.fails_in = 1;
    EXPECT_FAILS(import(), TESS_E_DEVICE, "device cuda: GPU 1: making its context current failed: NAME 400 (why)");
    close_device();
}

/* ---- events ---- */

static tess_event *event;
static tess_status make_event(void) {
    tess_status s = ops->event_create(device, &event, &e);
    if (!s)
        WITHOUT_FAILURES(ops->event_destroy(event));
    return s;
}
static tess_status record(void) {
    return ops->event_record(event, &stream, &e);
}
static tess_status follow(void) {
    return ops->event_stream_wait(event, &stream, &e);
}
static tess_status wait_for(void) {
    return ops->event_wait(event, -1, &e);
}

static void test_device_cuda__events_are_recorded_and_waited_for_where_they_should(void **state) {
    (void)state;
    open_device(0);
    stream.handle = (void *)(uintptr_t)70;
    assert_int_equal(ops->event_create(device, &event, no_error()), TESS_OK);
    expect_said("event, 0; ");
    assert_true(record() == TESS_OK && follow() == TESS_OK && wait_for() == TESS_OK);
    assert_int_equal(ops->event_record(event, NULL, &e), TESS_OK);
    expect_said("e7 in s70; s70 waits for e7; wait for e7; e7 in s0; ");
    fail_each_call(record, CUDA_ERROR_UNKNOWN, NULL);
    fail_each_call(follow, CUDA_ERROR_UNKNOWN, NULL);
    fail_each_call(wait_for, CUDA_ERROR_UNKNOWN, NULL);
    static tess_status (*const calls[])(void) = { record, follow, wait_for };
    static const char *const doings[] = { "recording an event", "waiting for an event", "work on it" };
    for (int i = 0; i < 3; i++) {
        char text[100];
        snprintf(text, sizeof text, "device cuda: GPU 1: %s failed: NAME 999 (why)", doings[i]);
        written.fails_in = 2, written.fails_with = CUDA_ERROR_UNKNOWN;
        EXPECT_FAILS(calls[i](), TESS_E_DEVICE, text);
    }
    said_so_far[0] = 0;
    ops->event_destroy(event);
    expect_said("end e7; ");
    ops->event_destroy(NULL);
    assert_int_equal(fail_each_call(make_event, CUDA_ERROR_UNKNOWN, NULL), 2);
    no_memory_in = 1;
    EXPECT_FAILS(make_event(), TESS_E_NOMEM, "device cuda: no memory for an event");
    close_device();
}

static void test_device_cuda__a_wait_with_an_end_looks_until_then(void **state) {
    (void)state;
    open_device(0);
    assert_int_equal(ops->event_create(device, &event, no_error()), TESS_OK);
    written.busy = CUDA_ERROR_NOT_READY, written.busy_for = 1;
    int calls = written.calls;
    assert_int_equal(ops->event_wait(event, 0, no_error()), TESS_PENDING);
    assert_int_equal(written.calls - calls, 3); /* the context's, and a look */
    assert_int_equal(ops->event_wait(event, 0, no_error()), TESS_OK);
    written.busy_for = 50;
    assert_int_equal(ops->event_wait(event, INT64_C(60000000000), no_error()), TESS_OK);
    assert_int_equal(written.busy_for, 0);
    written.busy_for = 1 << 30;
    EXPECT_FAILS(ops->event_wait(event, 5000000, &e), TESS_E_TIMEOUT, "device cuda: GPU 1 did not get there in time");
    assert_true(written.busy_for < 1 << 30 && written.busy_for > (1 << 30) - 20000); /* it naps between its looks */
    written.busy_for = 3;
    written.fails_in = 4, written.fails_with = CUDA_ERROR_UNKNOWN;
    EXPECT_FAILS(ops->event_wait(event, INT64_C(60000000000), &e), TESS_E_DEVICE,
                 "device cuda: GPU 1: work on it failed: NAME 999 (why)");
    written.busy_for = 0;
    assert_int_equal(written.contexts, 0);
    ops->event_destroy(event);
    close_device();
}

static void test_device_cuda__time_between_events_is_in_nanoseconds(void **state) {
    (void)state;
    tess_event *to;
    int64_t ns = 5;
    open_device(0);
    assert_int_equal(ops->event_create(device, &event, no_error()), TESS_OK);
    assert_int_equal(ops->event_create(device, &to, no_error()), TESS_OK);
    said_so_far[0] = 0;
    written.ms = 2.5f;
    for (int i = 0; i < 2; i++) {
        written.busy = i ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_NOT_READY, written.busy_for = 1;
        assert_int_equal(ops->event_elapsed_ns(event, to, &ns), TESS_PENDING);
    }
    for (int n = 1; n <= 2; n++) {
        written.fails_in = n, written.fails_with = CUDA_ERROR_NOT_SUPPORTED;
        assert_int_equal(ops->event_elapsed_ns(event, to, &ns), TESS_E_UNSUPPORTED);
    }
    assert_int_equal(ns, 5);
    said_so_far[0] = 0;
    assert_int_equal(ops->event_elapsed_ns(event, to, &ns), TESS_OK);
    expect_said("from e7 to e8; ");
    assert_int_equal(ns, 2500000);
    assert_int_equal(written.contexts, 0);
    ops->event_destroy(event);
    ops->event_destroy(to);
    close_device();
}

/* ---- copies ---- */

static uint32_t to_mem, from_mem;
static tess_status copy(void) {
    return ops->copy(device, (void *)0x1000, to_mem, (void *)0x2000, from_mem, 12, &stream, &e);
}
static tess_status fill(void) {
    return ops->fill(device, (void *)0x1000, 255, 12, &stream, &e);
}

static void test_device_cuda__copies_go_the_way_of_their_memory(void **state) {
    (void)state;
    open_device(0);
    stream.handle = (void *)(uintptr_t)70;
    for (to_mem = 0; to_mem < 6; to_mem++)
        for (from_mem = 0; from_mem < 6; from_mem++) {
            char want[120];
            if (to_mem < 1 || to_mem > 4 || from_mem < 1 || from_mem > 4) {
                snprintf(want, sizeof want, "device cuda cannot copy from memory kind %u to kind %u", from_mem, to_mem);
                EXPECT_FAILS(copy(), TESS_E_INVALID, want);
                expect_said("");
                continue;
            }
            snprintf(want, sizeof want, "%s 1000 from 2000, 12 on s70; ",
                     to_mem == 3     ? from_mem == 3 ? "within" : "up"
                     : from_mem == 3 ? "down"
                                     : "copy");
            assert_int_equal(copy(), TESS_OK);
            expect_said(want);
        }
    to_mem = from_mem = TESS_MEM_CUDA;
    assert_int_equal(ops->copy(device, &e, 3, &e, 3, 12, &stream, &e), TESS_OK);
    assert_int_equal(ops->copy(device, &e, 3, &stream, 3, 0, &stream, &e), TESS_OK);
    assert_int_equal(ops->fill(device, &e, 1, 0, &stream, &e), TESS_OK);
    expect_said("");
    assert_int_equal(fill(), TESS_OK);
    expect_said("fill 1000 with 255, 12 on s70; ");
    assert_int_equal(fail_each_call(copy, CUDA_ERROR_UNKNOWN, NULL), 2);
    assert_int_equal(fail_each_call(fill, CUDA_ERROR_UNKNOWN, NULL), 2);
    written.fails_in = 2, written.fails_with = CUDA_ERROR_UNKNOWN;
    EXPECT_FAILS(copy(), TESS_E_DEVICE, "device cuda: GPU 1: a copy failed: NAME 999 (why)");
    written.fails_in = 2;
    EXPECT_FAILS(fill(), TESS_E_DEVICE, "device cuda: GPU 1: a fill failed: NAME 999 (why)");
    close_device();
}

/* ---- recordings ---- */

static tess_graph *graph;
static tess_status begin_recording(void) {
    return ops->record_begin(device, &stream, &e);
}
static tess_status end_recording(void) {
    graph = NULL;
    tess_status s = ops->record_end(device, &stream, &graph, &e);
    assert_int_equal(graph == NULL, s != TESS_OK);
    return s;
}
static tess_status run_graph(void) {
    return ops->graph_run(graph, &stream, &e);
}
static void no_more_graphs(void) {
    assert_int_equal(written.live.graphs, 0);
    assert_int_equal(written.live.execs, 0);
}

static void test_device_cuda__a_recording_becomes_a_graph_that_runs(void **state) {
    (void)state;
    open_device(0);
    stream.handle = (void *)(uintptr_t)70;
    assert_int_equal(begin_recording(), TESS_OK);
    expect_said("record s70, 1; ");
    assert_int_equal(end_recording(), TESS_OK);
    expect_said("recorded s70; exec of g7, 8; end g7; ");
    assert_int_equal(run_graph(), TESS_OK);
    expect_said("run x8 on s70; ");
    fail_each_call(begin_recording, CUDA_ERROR_UNKNOWN, NULL);
    fail_each_call(run_graph, CUDA_ERROR_UNKNOWN, NULL);
    ops->graph_destroy(graph);
    expect_said("end x8; ");
    no_more_graphs();
    ops->graph_destroy(NULL);
    static tess_status (*const calls[])(void) = { begin_recording, end_recording };
    for (int i = 0; i < 2; i++) {
        written.fails_in = 2, written.fails_with = CUDA_ERROR_UNKNOWN;
        EXPECT_FAILS(calls[i](), TESS_E_DEVICE,
                     i ? "device cuda: GPU 1: what was recorded failed: NAME 999 (why)"
                       : "device cuda: GPU 1: recording failed: NAME 999 (why)");
    }
    written.fails_in = 0;
    for (int n = 1; n <= 3; n++) {
        written.fails_in = n;
        assert_int_equal(end_recording(), TESS_E_DEVICE);
        no_more_graphs();
    }
    close_device();
}

static void test_device_cuda__a_recording_that_is_dropped_makes_no_graph(void **state) {
    (void)state;
    open_device(0);
    assert_int_equal(ops->record_end(device, &stream, NULL, no_error()), TESS_OK);
    assert_null(strstr(said_so_far, "exec"));
    no_more_graphs();
    written.fails_in = 2, written.fails_with = CUDA_ERROR_UNKNOWN; /* which is what it was dropped for */
    assert_int_equal(ops->record_end(device, &stream, NULL, no_error()), TESS_OK);
    written.fails_in = 1;
    assert_int_equal(ops->record_end(device, &stream, NULL, no_error()), TESS_E_DEVICE);
    close_device();
}

static void test_device_cuda__it_has_room_for_so_many_graphs(void **state) {
    (void)state;
    tess_graph *all[128];
    open_device(0);
    for (int i = 0; i < 128; i++) {
        assert_int_equal(end_recording(), TESS_OK);
        all[i] = graph;
        for (int k = 0; k < i; k++)
            assert_ptr_not_equal(all[k], graph);
    }
    EXPECT_FAILS(end_recording(), TESS_E_NOMEM, "device cuda: more than 128 graphs");
    assert_int_equal(written.live.execs, 128);
    ops->graph_destroy(all[60]);
    assert_int_equal(end_recording(), TESS_OK);
    assert_ptr_equal(graph, all[60]);
    for (int i = 0; i < 128; i++)
        ops->graph_destroy(all[i]);
    no_more_graphs();
    close_device();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_cuda__opens_as_a_device_without_settings),
        cmocka_unit_test(test_device_cuda__any_device_is_described_without_a_driver),
        cmocka_unit_test(test_device_cuda__one_device_is_the_drivers_with_the_node_that_sysfs_has),
        cmocka_unit_test(test_device_cuda__a_device_that_there_is_not_is_refused),
        cmocka_unit_test(test_device_cuda__a_driver_that_does_not_serve_is_refused_with_its_reason),
        cmocka_unit_test(test_device_cuda__a_driver_that_does_not_start_is_refused),
        cmocka_unit_test(test_device_cuda__results_have_the_status_of_their_kind),
        cmocka_unit_test(test_device_cuda__kernels_that_do_not_load_say_so_beside_a_gpu_that_says_nothing),
        cmocka_unit_test(test_device_cuda__an_instance_is_made_in_order_and_given_back_in_order),
        cmocka_unit_test(test_device_cuda__an_instance_that_fails_half_made_leaves_nothing),
        cmocka_unit_test(test_device_cuda__each_failure_says_what_was_done),
        cmocka_unit_test(test_device_cuda__an_older_core_has_no_room_for_the_drivers_number),
        cmocka_unit_test(test_device_cuda__chips_before_ampere_are_refused),
        cmocka_unit_test(test_device_cuda__computation_goes_behind_transfers),
        cmocka_unit_test(test_device_cuda__streams_fail_with_nothing_left),
        cmocka_unit_test(test_device_cuda__the_programs_stream_is_asked_whether_it_is_one),
        cmocka_unit_test(test_device_cuda__events_are_recorded_and_waited_for_where_they_should),
        cmocka_unit_test(test_device_cuda__a_wait_with_an_end_looks_until_then),
        cmocka_unit_test(test_device_cuda__time_between_events_is_in_nanoseconds),
        cmocka_unit_test(test_device_cuda__copies_go_the_way_of_their_memory),
        cmocka_unit_test(test_device_cuda__a_recording_becomes_a_graph_that_runs),
        cmocka_unit_test(test_device_cuda__a_recording_that_is_dropped_makes_no_graph),
        cmocka_unit_test(test_device_cuda__it_has_room_for_so_many_graphs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

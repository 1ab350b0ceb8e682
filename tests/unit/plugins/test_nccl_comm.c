/* SPDX-License-Identifier: BSD-3-Clause */
/* comm-nccl as a whole on one thread: the driver, NCCL, the key-value store, the clock and the threads are this test's.
 * All that is asked of them is written down and fails in turn; whatever fails, all that was taken is given back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/plugins/nccl_world.h"

/* ---- the plugin and its settings ---- */

static void test_nccl_comm__opens_as_comm_with_settings_that_agree(void **state) {
    (void)state;
    const void *table;
    void *other;
    EXPECT_FAILS(tess_plugin_open_v1(&host, TESS_KIND_DEVICE, &table, &other, &e), TESS_E_UNSUPPORTED,
                 "nccl: kind 5, offers comm only");
    static const char *const keys[] = { "nccl-compare", "nccl-apart", "nccl-windows", "nccl-shared-gpu" };
    for (int i = 0; i < 4; i++)
        for (int on = 0; on < 2; on++) {
            ops->close(plugin);
            assert_int_equal(open_with(keys[i], on ? "on" : "off"), TESS_OK);
            const struct nccl_settings *s = plugin;
            const int is[] = { s->compares, s->apart, s->windows, s->shared_gpu };
            for (int k = 0; k < 4; k++)
                assert_int_equal(is[k], k == i ? on : k < 2);
            assert_true(s->sums == NCCL_SUMS_FP32 && !s->engines && s->host == &host);
        }
    static const char *const sums[] = { "fp32", "native", "tree" };
    for (int i = 0; i < 3; i++) {
        ops->close(plugin);
        assert_int_equal(open_with("nccl-sums", sums[i]), TESS_OK);
        assert_int_equal(((struct nccl_settings *)plugin)->sums, i);
    }
    settings[2] = "deterministic", settings[3] = "1";
    ops->close(plugin);
    assert_int_equal(open_with("nccl-sums", "native"), TESS_OK);
    assert_int_equal(((struct nccl_settings *)plugin)->sums, NCCL_SUMS_TREE);
    settings[2] = "nccl-windows", settings[3] = "on";
    ops->close(plugin);
    assert_int_equal(open_with("nccl-engines", "on"), TESS_OK);
    assert_int_equal(((struct nccl_settings *)plugin)->engines, 1);
    settings[2] = NULL;
    ops->close(plugin);
    assert_int_equal(open_with("nccl-engines", "on"), TESS_E_INVALID);
    assert_string_equal(e.message,
                        "nccl: TESSERA_NCCL_ENGINES=on needs TESSERA_NCCL_WINDOWS=on: copy engines work in windows");
    no_memory_in = 1;
    assert_int_equal(open_with(NULL, NULL), TESS_E_NOMEM);
    assert_string_equal(e.message, "nccl: no memory");
    assert_int_equal(open_with(NULL, NULL), TESS_OK);
}

static void test_nccl_comm__says_what_it_can(void **state) {
    (void)state;
    const uint32_t always = TESS_COMM_THREAD_MULTIPLE | TESS_COMM_STREAM_ORDERED | TESS_COMM_ABORT | TESS_COMM_SPLIT |
                            TESS_COMM_BATCH | TESS_COMM_RECORDS;
    tess_comm_caps caps = caps_of(NULL);
    assert_true(caps.caps == (always | TESS_COMM_APART) && caps.align == 16 && caps.mem_mask == 1u << TESS_MEM_CUDA);
    for (uint32_t op = TESS_ALL_GATHER; op <= TESS_ALL_TO_ALL_V; op++)
        assert_true(caps.op_mask >> op & 1);
    assert_string_equal(caps.wire_id, "nccl/1");
    static const struct {
        const char *key, *text;
        uint32_t more;
    } cases[] = { { "nccl-apart", "off", 0 },
                  { "nccl-sums", "tree", TESS_COMM_TREE_ORDER | TESS_COMM_APART },
                  { "nccl-windows", "on", TESS_COMM_SHARES | TESS_COMM_APART } };
    for (int i = 0; i < 3; i++) {
        ops->close(plugin);
        assert_int_equal(open_with(cases[i].key, cases[i].text), TESS_OK);
        assert_int_equal(caps_of(NULL).caps, always | cases[i].more);
    }
}

static tess_plan_env env_of(int n, int per_host) {
    return (tess_plan_env){
        .struct_size = sizeof(tess_plan_env), .mem = TESS_MEM_CUDA, .nranks = n, .ranks_per_host = per_host
    };
}

static void test_nccl_comm__needs_scratch_and_what_nccl_has(void **state) {
    (void)state;
    static const uint64_t announcement = 64, mib = 1 << 20;
    for (int n = 1; n < 4; n++) {
        const tess_plan_env env = env_of(n, n);
        tess_collective c = a_call(TESS_ALL_REDUCE, 100);
        tess_need need = { .struct_size = sizeof need };
        c.flags = KIT_ADD;
        assert_int_equal(ops->need(plugin, &env, &c, &need), TESS_OK);
        assert_true(need.align == 256 && need.device_bytes == (n == 1 ? 0 : 400));
        assert_int_equal(need.backend_bytes,
                         128 * announcement * (1 + (uint64_t)n) + 4 * mib + (n > 1 ? 512 * mib : 0));
    }
    const tess_plan_env none = env_of(0, 0), one = env_of(1, 1);
    tess_collective c = a_call(TESS_ALL_REDUCE, 100);
    tess_need need = { .struct_size = sizeof need };
    assert_int_equal(ops->need(plugin, &none, &c, &need), TESS_E_UNSUPPORTED);
    c.op = 99;
    assert_int_equal(ops->need(plugin, &one, &c, &need), TESS_E_UNSUPPORTED);
}

static int64_t cost(uint32_t op, int n, int per_host, uint32_t dtype) {
    const tess_plan_env env = env_of(n, per_host);
    tess_collective c = a_call(op, 1200000000 / tess_dtype_bytes(dtype)); /* so many bytes */
    int64_t ns = 0;
    c.send_dtype = dtype;
    assert_int_equal(ops->cost(plugin, &env, &c, &ns), TESS_OK);
    return ns;
}

static void test_nccl_comm__costs_by_the_bytes_that_a_rank_sends(void **state) {
    (void)state;
    const int64_t ms = 1000000, start = 30000; /* 1.2 GB at 300 bytes a nanosecond are 4 ms; at 40, 30 ms */
    assert_int_equal(cost(TESS_ALL_GATHER, 4, 4, TESS_F32), start + 3 * 4 * ms);
    assert_int_equal(cost(TESS_ALL_GATHER, 4, 0, TESS_F32), start + 3 * 4 * ms);
    assert_int_equal(cost(TESS_ALL_GATHER, 4, 3, TESS_F32), start + 3 * 30 * ms);
    assert_int_equal(cost(TESS_REDUCE_SCATTER, 3, 8, TESS_F32), start + 2 * 4 * ms);
    assert_int_equal(cost(TESS_REDUCE_SCATTER, 3, 8, TESS_BF16), start + 4 * 4 * ms); /* in fp32 */
    assert_int_equal(cost(TESS_ALL_GATHER, 3, 8, TESS_BF16), start + 2 * 4 * ms);
    assert_int_equal(cost(TESS_ALL_TO_ALL, 2, 2, TESS_F32), start + 4 * ms);
    assert_int_equal(cost(TESS_ALL_TO_ALL_V, 4, 4, TESS_F32), start + 3 * ms);
    assert_int_equal(cost(TESS_ALL_REDUCE, 4, 4, TESS_F32), start + 6 * ms);
    assert_int_equal(cost(TESS_BROADCAST, 4, 4, TESS_F32), start + 4 * ms);
    assert_int_equal(cost(TESS_BARRIER, 4, 4, TESS_F32), start);
    for (uint32_t op = TESS_ALL_GATHER; op <= TESS_ALL_TO_ALL_V; op++)
        assert_int_equal(cost(op, 1, 1, TESS_F32), 5000);
}

/* ---- one rank ---- */

static void test_nccl_comm__one_is_made_in_order_and_given_back(void **state) {
    (void)state;
    assert_int_equal(make_alone(), TESS_OK);
    expect_said("retain 101; stream of -5; stream of -5; load; id; retain 101; "
                "init 0 of 1, 32 channels; release 101; alloc 16K; "
                "e266 in s2; ");
    assert_true(watched == comm);
    destroy();
    expect_said("abort n9; free m10; unload; end s2; end s3; release 101; ");
    ops->destroy(NULL);
    assert_true(fail_each(make_alone, end_what_is_left, 1) > 20); /* a look is repeated, here and wherever one waits */
}

static void test_nccl_comm__announcements_are_freed_once_the_streams_are_idle(void **state) {
    (void)state;
    static const int asks[] = { 5, 50000 }; /* 20,000 a second; a destroy waits for three */
    written.busy = CUDA_ERROR_NOT_READY;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(make_alone(), TESS_OK);
        said_so_far[0] = 0, written.busy_for = asks[i];
        destroy();
        expect_said("abort n9; idle; free m10; unload; end s2; end s3; release 101; ");
    }
    assert_int_equal(make_alone(), TESS_OK);
    tess_comm kept = *comm;
    said_so_far[0] = 0, written.busy_for = 1 << 30;
    destroy();
    expect_said("abort n9; log 1, nccl: the GPU's work did not end after an abort: announcements are not freed; "
                "unload; end s2; end s3; release 101; ");
    written.busy_for = 0;
    nccl_free_chunks(&kept); /* which it left */
}

static void test_nccl_comm__a_place_or_gpu_that_there_is_not_is_refused(void **state) {
    (void)state;
    tess_comm_config config = config_of(1, 1);
    assert_int_equal(ops->init(plugin, &config, &comm, no_error()), TESS_E_INVALID);
    assert_int_equal(written.made, 0);
    config = config_of(0, 1);
    config.device = 7;
    EXPECT_FAILS(ops->init(plugin, &config, &comm, &e), TESS_E_INVALID,
                 "nccl: GPU 7 asked for, this host has 2; a rank takes the one of its LOCAL_RANK");
    config.device = -1, config.local_rank = 5;
    EXPECT_FAILS(ops->init(plugin, &config, &comm, &e), TESS_E_INVALID,
                 "nccl: GPU 5 asked for, this host has 2; a rank takes the one of its LOCAL_RANK");
}

/* ---- ranks that meet ---- */

static void test_nccl_comm__rank_0_tells_the_others_what_it_decided(void **state) {
    (void)state;
    add_rank(1)->multiprocessors = 60;
    assert_int_equal(make_of(2), TESS_OK);
    expect_said_among("init 0 of 2, 32 channels; ", "( gather 64 of n9 on s2; ); down 128 on s2; ");
    destroy();
    assert_int_equal(find_key("g/nccl-id/0"), 1);
    /* The other one finds it there, and puts its own record first. */
    n_keys = 2;
    const tess_comm_config config = config_of(1, 2);
    assert_int_equal(ops->init(plugin, &config, &comm, no_error()), TESS_OK);
    expect_said_among("init 1 of 2, 32 channels; ");
    const struct rank_record *own = record_of(1);
    assert_true(own->version == 22809 && own->apart == 1 && own->windows == 0 && own->engines == 0 && own->sums == 0 &&
                own->multiprocessors == 100);
    assert_true(own->uuid[0] == 101 && own->uuid[15] == 101);
    assert_string_equal(own->bus_id, "0000:AB:01.0");
    char name[64] = "";
    gethostname(name, sizeof name - 1);
    assert_string_equal(own->host, name);
    destroy();
    fail_each(make_two, end_what_is_left, 1);
}

static void refused(int n, tess_status status, int peer, const char *text) {
    no_error();
    assert_int_equal(make_of(n), status);
    assert_string_equal(e.message, text);
    assert_int_equal(e.rank, peer);
    /* The others are told the same, with the rank that is not theirs. */
    const tess_comm_config config = config_of(peer, n);
    tess_comm *none = NULL;
    no_error();
    assert_int_equal(ops->init(plugin, &config, &none, &e), status);
    assert_string_equal(e.message, text);
    assert_int_equal(e.rank, 0);
    n_keys = 0;
    said_so_far[0] = 0;
}

static void test_nccl_comm__ranks_that_cannot_share_a_communicator_are_told_why(void **state) {
    (void)state;
    char text[220], name[64] = "";
    gethostname(name, sizeof name - 1);
    memset(add_rank(1)->uuid, 101, 16);
    snprintf(
        text, sizeof text,
        "nccl: ranks 0 and 1 are both on GPU 0000:AB:01.0 of host %.40s, and each needs one of its own (LOCAL_RANK)",
        name);
    refused(2, TESS_E_INVALID, 1, text);
    add_rank(1)->version = NCCL_VERSION(2, 27, 3);
    refused(2, TESS_E_VERSION, 1, "nccl: rank 0 has NCCL 2.28.9 and rank 1 has 2.27.3, expected the same");
    add_rank(1)->apart = 0;
    refused(2, TESS_E_INVALID, 1, "nccl: rank 0 has TESSERA_NCCL_APART=on and rank 1 has off, expected the same");
    add_rank(1)->windows = 1;
    refused(2, TESS_E_INVALID, 1, "nccl: rank 0 has TESSERA_NCCL_WINDOWS=off and rank 1 has on, expected the same");
    add_rank(1)->engines = 1;
    refused(2, TESS_E_INVALID, 1, "nccl: rank 0 has TESSERA_NCCL_ENGINES=off and rank 1 has on, expected the same");
    add_rank(1)->sums = 2;
    refused(2, TESS_E_INVALID, 1, "nccl: rank 0 has TESSERA_NCCL_SUMS=fp32 and rank 1 has tree, expected the same");
    add_rank(1);
    add_rank(2)->sums = 1;
    add_rank(3);
    no_error();
    assert_int_equal(make_of(4), TESS_E_INVALID); /* neighbours are compared first */
    assert_string_equal(e.message, "nccl: rank 1 has TESSERA_NCCL_SUMS=fp32 and rank 2 has native, expected the same");
    assert_int_equal(e.rank, 1);
}

static void test_nccl_comm__ranks_may_share_a_gpu_where_nccl_can(void **state) {
    (void)state;
    ops->close(plugin);
    assert_int_equal(open_with("nccl-shared-gpu", "on"), TESS_OK);
    char text[220], name[64] = "";
    gethostname(name, sizeof name - 1);
    memset(add_rank(1)->uuid, 101, 16);
    snprintf(text, sizeof text,
             "nccl: ranks 0 and 1 are both on GPU 0000:AB:01.0 of host %.40s, which takes NCCL 2.30.0 or later; here "
             "is 2.28.9",
             name);
    refused(2, TESS_E_INVALID, 1, text);
    nccl.version = NCCL_VERSION(2, 30, 0);
    add_rank(1);
    memset(add_rank(2)->uuid, 101, 16);
    assert_int_equal(make_of(3), TESS_OK); /* 100 of two ranks */
    expect_said_among("init 0 of 3, 16 channels; ");
    destroy();
}

static void test_nccl_comm__a_rank_that_does_not_come_is_named(void **state) {
    (void)state;
    add_rank(2);
    no_error();
    assert_int_equal(make_of(3), TESS_E_TIMEOUT);
    assert_string_equal(e.message, "nccl: rank 1 has not joined group 'g' within 5.0 s");
    assert_int_equal(e.rank, 1);
    for (int n = 0; n < 2; n++) { /* rank 0's word does not come: because of another one's, or of its own */
        const tess_comm_config config = config_of(2, 3);
        n_keys = 0;
        if (n)
            add_rank(1);
        no_error();
        assert_int_equal(ops->init(plugin, &config, &comm, &e), TESS_E_TIMEOUT);
        assert_int_equal(e.rank, n ? 0 : 1);
    }
}

static void test_nccl_comm__channels_leave_room_for_splits(void **state) {
    (void)state;
    static const struct {
        int processors, channels;
    } cases[] = { { 132, 32 }, { 54, 32 }, { 53, 16 }, { 27, 16 }, { 26, 8 }, { 16, 8 },
                  { 15, 4 },   { 8, 4 },   { 7, 2 },   { 4, 2 },   { 3, 1 },  { 1, 1 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[40];
        written.processors = cases[i].processors;
        assert_int_equal(make_alone(), TESS_OK);
        snprintf(text, sizeof text, "init 0 of 1, %d channels", cases[i].channels);
        expect_said_among(text);
        destroy();
    }
}

static void test_nccl_comm__says_where_nccl_is_too_old_for_what_was_chosen(void **state) {
    (void)state;
    static const struct {
        int version, n;
        const char *key, *said; /* null: nothing */
    } cases[] = {
        { NCCL_VERSION(2, 29, 6), 2, "nccl-windows", "NCCL 2.29.6 does not end collectives in windows" },
        { NCCL_VERSION(2, 29, 6), 1, "nccl-windows", NULL },
        { NCCL_VERSION(2, 29, 7), 2, "nccl-windows", NULL },
        { NCCL_VERSION(2, 29, 6), 2, "nccl-compare", NULL },
        { NCCL_VERSION(2, 27, 9), 2, "nccl-engines", "NCCL 2.27.9 has no gathers by copy engines" },
        { NCCL_VERSION(2, 28, 0), 2, "nccl-engines",
          HAS_ENGINES ? NULL : "NCCL 2.28.0 has no gathers by copy engines" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int engines = strcmp(cases[i].key, "nccl-engines") == 0;
        n_keys = 0;
        nccl.version = cases[i].version;
        settings[2] = "nccl-windows", settings[3] = engines ? "on" : NULL;
        ops->close(plugin);
        assert_int_equal(open_with(cases[i].key, "on"), TESS_OK);
        add_rank(1)->windows = engines || cases[i].key[5] == 'w';
        record_of(1)->engines = engines;
        assert_int_equal(make_of(cases[i].n), TESS_OK);
        assert_int_equal(strstr(said_so_far, "channels, engines") != NULL, engines && HAS_ENGINES);
        if (cases[i].said)
            expect_said_among(cases[i].said);
        else
            assert_null(strstr(said_so_far, engines ? "has no gathers" : "log"));
        destroy();
        said_so_far[0] = 0;
    }
}

static void test_nccl_comm__a_thread_that_does_not_start_leaves_nothing(void **state) {
    (void)state;
    no_threads = 1;
    EXPECT_FAILS(make_alone(), TESS_E_SYSTEM, "nccl: no thread");
    nothing_is_left();
    no_threads = 2;
    EXPECT_FAILS(make_alone(), TESS_E_SYSTEM, "nccl: no thread");
    nothing_is_left();
}

/* ---- posts ---- */

static void test_nccl_comm__a_post_comes_behind_its_stream_and_takes_the_words_with_it(void **state) {
    (void)state;
    begin_two();
    assert_int_equal(post(), TESS_OK);
    assert_int_equal(ops->test(request, no_error()), TESS_OK);
    expect_said_among(" in s70; s2 waits for ",
                      "on s2; ( gather 64 of n9 on s2; gather 2 of n9 on s2; ); down 128 on s2; e");
    ops->request_free(request);
    ops->request_free(NULL);
    destroy();
    ops->close(plugin); /* without words: ranks do not compare */
    n_keys = 0;
    assert_int_equal(open_with("nccl-compare", "off"), TESS_OK);
    begin_two();
    tess_collective c = a_gather();
    c.after = (tess_stream){ 0 };
    assert_int_equal(ops->post(comm, &c, 1, &request, no_error()), TESS_OK);
    expect_said_first("( gather 2 of n9 on s2; ); e");
    ops->request_free(request);
    tess_collective meet = a_call(TESS_BARRIER, 0);
    assert_int_equal(ops->post(comm, &meet, 1, &request, no_error()), TESS_OK); /* which is nothing but words */
    expect_said_among("( gather 64 of n9 on s2; ); down 128 on s2; e");
    ops->request_free(request);
    destroy();
}

static void test_nccl_comm__requests_end_in_their_order(void **state) {
    (void)state;
    tess_request *r[3];
    begin_two();
    written.busy = CUDA_ERROR_NOT_READY;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(post(), TESS_OK);
        r[i] = request;
    }
    written.busy_for = 1; /* the first one is not done, so none is */
    assert_int_equal(ops->test(r[2], no_error()), TESS_PENDING);
    assert_int_equal(ops->test(r[2], no_error()), TESS_OK);
    written.busy_for = 1000;
    for (int i = 0; i < 3; i++)
        assert_int_equal(ops->test(r[i], no_error()), TESS_OK);
    assert_int_equal(written.busy_for, 1000); /* nobody asks for them any more */
    for (int i = 0; i < 3; i++)
        ops->request_free(r[i]);
    written.busy_for = 0;
    destroy();
}

static void test_nccl_comm__a_wait_naps_longer_and_longer_until_its_limit(void **state) {
    (void)state;
    begin_two();
    assert_int_equal(post(), TESS_OK);
    written.busy = CUDA_ERROR_NOT_READY, written.busy_for = 1 << 30;
    naps = 0, clock_ns = 0;
    EXPECT_FAILS(ops->wait(request, 1500000000, &e), TESS_E_TIMEOUT, "nccl: not done within 1.500 s");
    assert_true(clock_ns > 1500000000 && clock_ns <= 1500000000 + 2 * 256000 && naps > 5000 && naps < 8000);
    written.busy_for = 5;
    assert_int_equal(ops->wait(request, -1, no_error()), TESS_OK);
    ops->request_free(request);
    destroy();
}

static void test_nccl_comm__streams_wait_for_the_event_and_the_host_for_the_end(void **state) {
    (void)state;
    const tess_stream none = { .mem = TESS_MEM_HOST };
    begin_two();
    assert_int_equal(post(), TESS_OK);
    said_so_far[0] = 0;
    assert_int_equal(ops->wait_stream(request, &stream, no_error()), TESS_OK);
    expect_said_first("s70 waits for e");
    written.fails_in = 2, written.fails_with = CUDA_ERROR_UNKNOWN;
    EXPECT_FAILS(ops->wait_stream(request, &stream, &e), TESS_E_DEVICE, "nccl: cuStreamWaitEvent gave NAME 999 (why)");
    written.fails_in = 1;
    EXPECT_FAILS(ops->wait_stream(request, &stream, &e), TESS_E_DEVICE, "nccl: cuCtxPushCurrent gave NAME 999 (why)");
    assert_int_equal(written.contexts, 0);
    written.busy = CUDA_ERROR_NOT_READY, written.busy_for = 3;
    assert_int_equal(ops->wait_stream(request, &none, no_error()), TESS_OK);
    assert_int_equal(written.busy_for, 0);
    said_so_far[0] = 0;
    assert_int_equal(ops->wait_stream(request, &stream, no_error()), TESS_OK); /* it has ended */
    expect_said("");
    ops->request_free(request);
    destroy();
}

static CUresult is_recording(CUstream s, CUstreamCaptureStatus *out) {
    assert_int_equal(number_of(s), 70);
    *out = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return written_call();
}

static void test_nccl_comm__a_recorded_post_has_ended_and_compares_nothing(void **state) {
    (void)state;
    begin_two();
    cuda.cuStreamIsCapturing = is_recording;
    assert_int_equal(post(), TESS_OK);
    assert_null(strstr(said_so_far, "gather 64"));
    assert_null(strstr(said_so_far, "down"));
    written.busy = CUDA_ERROR_NOT_READY, written.busy_for = 1;
    assert_int_equal(ops->test(request, no_error()), TESS_OK);
    said_so_far[0] = 0;
    assert_int_equal(ops->wait_stream(request, &stream, no_error()), TESS_OK); /* within the recording */
    expect_said_first("s70 waits for e");
    assert_int_equal(atomic_load(&comm->recorded), 1);
    ops->request_free(request);
    written.busy_for = 0;
    written.fails_in = 2, written.fails_with = CUDA_ERROR_UNKNOWN;
    EXPECT_FAILS(post(), TESS_E_DEVICE, "nccl: cuStreamIsCapturing gave NAME 999 (why)");
    assert_int_equal(ops->health(comm, no_error()), TESS_OK); /* nothing was begun */
    destroy();
}

static void test_nccl_comm__posts_that_make_no_sense_are_refused(void **state) {
    (void)state;
    char text[80];
    tess_collective c[65];
    begin_two();
    for (int i = 0; i < 65; i++)
        c[i] = a_gather();
    EXPECT_FAILS(ops->post(comm, c, 0, &request, &e), TESS_E_INVALID,
                 "nccl: 0 collectives of 0 bytes each, takes up to 64");
    snprintf(text, sizeof text, "nccl: 65 collectives of %zu bytes each, takes up to 64", sizeof *c);
    EXPECT_FAILS(ops->post(comm, c, 65, &request, &e), TESS_E_INVALID, text);
    c[0].struct_size = 20;
    EXPECT_FAILS(ops->post(comm, c, 1, &request, &e), TESS_E_INVALID,
                 "nccl: 1 collectives of 20 bytes each, takes up to 64");
    c[0] = a_gather();
    c[1].recv = NULL;
    assert_int_equal(ops->post(comm, c, 2, &request, no_error()), TESS_E_INVALID);
    c[1] = a_gather();
    assert_int_equal(ops->post(comm, c, 64, &request, no_error()), TESS_OK);
    ops->request_free(request);
    destroy();
}

static tess_status make_post_and_wait(void) {
    tess_status s = make_two();
    if (s)
        return s;
    s = post();
    return s ? s : ops->wait(request, -1, &e);
}

static void test_nccl_comm__whatever_fails_in_a_post_ends_the_communicator_and_leaves_nothing(void **state) {
    (void)state;
    assert_true(fail_each(make_post_and_wait, end_what_is_left, 2) > 30);
    begin_two();
    written.fails_in = 6, written.fails_with = CUDA_ERROR_UNKNOWN; /* the group's begin */
    assert_int_equal(post(), TESS_E_SYSTEM);
    assert_string_equal(e.message, "nccl: ncclGroupStart gave 2: why");
    assert_null(atomic_load(&comm->comm));
    EXPECT_FAILS(post(), TESS_E_SYSTEM, "nccl: ncclGroupStart gave 2: why"); /* the first one stays */
    EXPECT_FAILS(ops->health(comm, &e), TESS_E_SYSTEM, "nccl: ncclGroupStart gave 2: why");
    EXPECT_FAILS(ops->finalize(comm, -1, &e), TESS_E_SYSTEM, "nccl: ncclGroupStart gave 2: why");
    destroy();
}

static void test_nccl_comm__ranks_that_post_different_things_are_told(void **state) {
    (void)state;
    begin_two();
    assert_int_equal(post(), TESS_OK);
    tess_request *first = request;
    mismatch = 1;
    assert_int_equal(post(), TESS_OK);
    assert_int_equal(ops->test(first, no_error()), TESS_OK);
    assert_int_equal(ops->test(request, no_error()), TESS_E_MISMATCH);
    assert_int_equal(e.rank, 1);
    assert_ptr_equal(strstr(e.message, "nccl: "), e.message);
    assert_int_equal(ops->wait_stream(request, &stream, no_error()), TESS_E_MISMATCH);
    assert_int_equal(ops->health(comm, no_error()), TESS_E_MISMATCH);
    assert_true(find_key("g/nccl-said/0") < n_keys); /* the others may learn of it there */
    ops->request_free(first);
    ops->request_free(request);
    destroy();
}

static void test_nccl_comm__an_error_of_nccls_own_is_told_with_a_mismatch_if_there_is_one(void **state) {
    (void)state;
    for (int other = 0; other < 2; other++) {
        n_keys = 0;
        begin_two();
        assert_int_equal(post(), TESS_OK);
        if (other) {
            kit_announcement theirs = request->own[0];
            theirs.count++;
            kv_set(NULL, "g/nccl-said/1", &theirs, sizeof theirs);
        }
        written.busy = CUDA_ERROR_NOT_READY, written.busy_for = 3;
        world.async = ncclInProgress;
        assert_int_equal(ops->test(request, no_error()), TESS_PENDING);
        world.async = ncclRemoteError;
        ops->test(request, no_error());
        written.busy_for = 0;
        assert_int_equal(ops->test(request, no_error()), other ? TESS_E_MISMATCH : TESS_E_PEER);
        if (!other)
            assert_string_equal(e.message, "nccl: a collective gave 6: why");
        assert_int_equal(ops->health(comm, no_error()), other ? TESS_E_MISMATCH : TESS_E_PEER);
        ops->request_free(request);
        world.async = ncclSuccess;
        destroy();
    }
}

/* ---- their ends ---- */

static void test_nccl_comm__an_abort_ends_what_is_in_flight_for_its_reason(void **state) {
    (void)state;
    for (int why = 0; why < 2; why++) {
        n_keys = 0;
        begin_two();
        assert_int_equal(post(), TESS_OK);
        tess_request *done = request;
        assert_int_equal(post(), TESS_OK);
        written.busy = CUDA_ERROR_NOT_READY;
        said_so_far[0] = 0;
        no_memory_in = why; /* without a thread of its own */
        for (int twice = 0; twice < 2; twice++)
            assert_int_equal(ops->abort(comm, twice ? TESS_E_SYSTEM : why ? TESS_E_PEER : TESS_OK), TESS_OK);
        expect_said("abort n9; ");
        assert_int_equal(ops->wait(done, -1, no_error()), TESS_OK); /* it had ended before */
        EXPECT_FAILS(post(), why ? TESS_E_PEER : TESS_E_ABORTED, "nccl: the communicator was aborted");
        assert_int_equal(ops->health(comm, no_error()), why ? TESS_E_PEER : TESS_E_ABORTED);
        ops->request_free(done);
        destroy();
    }
}

static tess_status make_and_finalize(void) {
    tess_status s = make_two();
    return s ? s : ops->finalize(comm, 1000000000, &e);
}

static void test_nccl_comm__finalize_meets_the_others_and_comes_once(void **state) {
    (void)state;
    begin_two();
    assert_int_equal(ops->finalize(comm, -1, no_error()), TESS_OK);
    expect_said_among("( gather 64 of n9 on s2; ); down 128 on s2; ", "finalize n9; ");
    assert_int_equal(ops->finalize(comm, -1, no_error()), TESS_OK);
    expect_said("");
    EXPECT_FAILS(post(), TESS_E_INVALID, "nccl: post after finalize");
    ops->destroy(comm);
    comm = NULL;
    assert_null(strstr(said_so_far, "abort"));
    expect_said_among("destroy n9; ");
    nothing_is_left();
    assert_true(fail_each(make_and_finalize, end_what_is_left, 2) > 30);
    begin_two();
    written.busy = CUDA_ERROR_NOT_READY, written.busy_for = 20000; /* the others do not come */
    assert_int_equal(ops->finalize(comm, 1000000000, no_error()), TESS_E_TIMEOUT);
    written.busy_for = 0;
    assert_int_equal(ops->health(comm, no_error()), TESS_E_TIMEOUT);
    destroy();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_ONE_THREAD(test_nccl_comm__opens_as_comm_with_settings_that_agree),
        ON_ONE_THREAD(test_nccl_comm__says_what_it_can),
        ON_ONE_THREAD(test_nccl_comm__needs_scratch_and_what_nccl_has),
        ON_ONE_THREAD(test_nccl_comm__costs_by_the_bytes_that_a_rank_sends),
        ON_ONE_THREAD(test_nccl_comm__one_is_made_in_order_and_given_back),
        ON_ONE_THREAD(test_nccl_comm__announcements_are_freed_once_the_streams_are_idle),
        ON_ONE_THREAD(test_nccl_comm__a_place_or_gpu_that_there_is_not_is_refused),
        ON_ONE_THREAD(test_nccl_comm__rank_0_tells_the_others_what_it_decided),
        ON_ONE_THREAD(test_nccl_comm__ranks_that_cannot_share_a_communicator_are_told_why),
        ON_ONE_THREAD(test_nccl_comm__ranks_may_share_a_gpu_where_nccl_can),
        ON_ONE_THREAD(test_nccl_comm__a_rank_that_does_not_come_is_named),
        ON_ONE_THREAD(test_nccl_comm__channels_leave_room_for_splits),
        ON_ONE_THREAD(test_nccl_comm__says_where_nccl_is_too_old_for_what_was_chosen),
        ON_ONE_THREAD(test_nccl_comm__a_thread_that_does_not_start_leaves_nothing),
        ON_ONE_THREAD(test_nccl_comm__a_post_comes_behind_its_stream_and_takes_the_words_with_it),
        ON_ONE_THREAD(test_nccl_comm__requests_end_in_their_order),
        ON_ONE_THREAD(test_nccl_comm__a_wait_naps_longer_and_longer_until_its_limit),
        ON_ONE_THREAD(test_nccl_comm__streams_wait_for_the_event_and_the_host_for_the_end),
        ON_ONE_THREAD(test_nccl_comm__a_recorded_post_has_ended_and_compares_nothing),
        ON_ONE_THREAD(test_nccl_comm__posts_that_make_no_sense_are_refused),
        ON_ONE_THREAD(test_nccl_comm__whatever_fails_in_a_post_ends_the_communicator_and_leaves_nothing),
        ON_ONE_THREAD(test_nccl_comm__ranks_that_post_different_things_are_told),
        ON_ONE_THREAD(test_nccl_comm__an_error_of_nccls_own_is_told_with_a_mismatch_if_there_is_one),
        ON_ONE_THREAD(test_nccl_comm__an_abort_ends_what_is_in_flight_for_its_reason),
        ON_ONE_THREAD(test_nccl_comm__finalize_meets_the_others_and_comes_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

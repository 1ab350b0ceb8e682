/* SPDX-License-Identifier: BSD-3-Clause */
/* comm-nccl on one thread, as test_nccl_comm: its memory and windows, splits and the room they share, and the watcher.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/plugins/nccl_world.h"

/* ---- memory ---- */

static tess_buffer buffer;
static tess_status alloc(void) {
    const tess_alloc_request r = { .struct_size = sizeof r, .mem = TESS_MEM_CUDA, .bytes = (2 << 20) + 1 };
    buffer = (tess_buffer){ .struct_size = sizeof buffer };
    return ops->mem_alloc(comm, &r, &buffer, &e);
}

static void test_nccl_parts__memory_is_nccls_and_registered_where_it_can(void **state) {
    (void)state;
    assert_int_equal(make_alone(), TESS_OK);
    said_so_far[0] = 0;
    assert_int_equal(alloc(), TESS_OK);
    expect_said("take 4096K; register m267, 4096K with n9; ");
    assert_true(buffer.bytes == 4 << 20 && buffer.mem == TESS_MEM_CUDA && buffer.reg);
    ops->mem_free(comm, &buffer);
    expect_said("deregister r268; give m267; ");
    assert_true(!buffer.ptr && !buffer.reg);
    ops->mem_free(comm, &buffer);
    ops->mem_free(comm, NULL);
    written.fails_in = 5, written.fails_with = CUDA_ERROR_UNKNOWN; /* the registration */
    assert_int_equal(alloc(), TESS_OK);
    expect_said(
        "take 4096K; register m269, 4096K with n9; log 1, nccl: 4194304 bytes could not be registered with NCCL "
        "and are used as they are; ");
    ops->mem_free(comm, &buffer);
    expect_said("give m269; ");
    world.takes = (16 << 20) + 1;
    assert_int_equal(alloc(), TESS_OK);
    expect_said_among("log 1, nccl: ncclMemAlloc took 20971521 bytes of the GPU for 4194304, as this NCCL rounds up");
    ops->mem_free(comm, &buffer);
    world.takes--;
    said_so_far[0] = 0;
    assert_int_equal(alloc(), TESS_OK);
    assert_null(strstr(said_so_far, "log"));
    ops->mem_free(comm, &buffer);
    said_so_far[0] = 0;
    nccl.ncclMemAlloc = NULL, nccl.ncclCommRegister = NULL; /* before 2.19 */
    assert_int_equal(alloc(), TESS_OK);
    expect_said_first("alloc 4096K; ");
    ops->mem_free(comm, &buffer);
    expect_said_first("free m");
    destroy();
}

static tess_status make_and_alloc(void) {
    tess_status s = make_alone();
    return s ? s : alloc();
}
static void free_what_is_left(void) {
    if (comm && buffer.ptr)
        ops->mem_free(comm, &buffer);
    buffer.ptr = NULL;
    end_what_is_left();
}

static void test_nccl_parts__memory_that_there_is_not_is_refused(void **state) {
    (void)state;
    const tess_alloc_request locked = { .struct_size = sizeof locked, .mem = TESS_MEM_PINNED, .bytes = 1 };
    for (int old = 0; old < 2; old++) {
        begin_nccl(NCCL_VERSION(2, 28, 9));
        if (old)
            nccl.ncclMemAlloc = NULL, nccl.ncclCommRegister = NULL;
        fail_each(make_and_alloc, free_what_is_left, old ? 1 : 4); /* what is free, twice; the registration */
    }
    assert_int_equal(make_alone(), TESS_OK);
    EXPECT_FAILS(ops->mem_alloc(comm, &locked, &buffer, &e), TESS_E_UNSUPPORTED,
                 "nccl: memory kind 2 asked for, gives a GPU's memory");
    written.fails_in = 2, written.fails_with = CUDA_ERROR_OUT_OF_MEMORY;
    EXPECT_FAILS(alloc(), TESS_E_NOMEM, "nccl: the GPU has no 4194304 bytes more");
    destroy();
    begin_nccl(NCCL_VERSION(2, 28, 9));
    assert_int_equal(make_alone(), TESS_OK);
    written.fails_in = 3;
    EXPECT_FAILS(alloc(), TESS_E_NOMEM, "nccl: the GPU has no 4194304 bytes more (ncclMemAlloc gave 2: why)");
    no_memory_in = 1;
    EXPECT_FAILS(alloc(), TESS_E_NOMEM, "nccl: no memory");
    assert_int_equal(written.contexts, 0);
    destroy();
}

static void test_nccl_parts__memory_of_others_is_registered_and_let_go(void **state) {
    (void)state;
    assert_int_equal(make_alone(), TESS_OK);
    tess_buffer b = {
        .struct_size = sizeof b, .mem = TESS_MEM_CUDA, .ptr = (void *)((uintptr_t)50 << 32), .bytes = 4096
    };
    said_so_far[0] = 0;
    assert_int_equal(ops->mem_register(comm, &b, no_error()), TESS_OK);
    expect_said("register m50, 4K with n9; ");
    ops->mem_deregister(comm, &b);
    expect_said("deregister r267; ");
    ops->mem_deregister(comm, NULL);
    b.reg = NULL;
    ops->mem_deregister(comm, &b);
    for (int n = 1; n <= 2; n++) {
        written.fails_in = n, written.fails_with = CUDA_ERROR_UNKNOWN;
        EXPECT_FAILS(ops->mem_register(comm, &b, &e), n == 1 ? TESS_E_DEVICE : TESS_E_UNSUPPORTED,
                     n == 1 ? "nccl: cuCtxPushCurrent gave NAME 999 (why)" : "nccl: ncclCommRegister gave 2: why");
        assert_null(b.reg);
    }
    no_memory_in = 1;
    EXPECT_FAILS(ops->mem_register(comm, &b, &e), TESS_E_NOMEM, "nccl: no memory");
    b.mem = TESS_MEM_HOST;
    EXPECT_FAILS(ops->mem_register(comm, &b, &e), TESS_E_UNSUPPORTED, "nccl: registers a GPU's memory only");
    b.mem = TESS_MEM_CUDA;
    assert_int_equal(ops->mem_register(comm, &b, no_error()), TESS_OK);
    ops->abort(comm, TESS_E_PEER); /* which takes registrations with it */
    said_so_far[0] = 0;
    ops->mem_deregister(comm, &b);
    assert_null(strstr(said_so_far, "deregister"));
    b.reg = NULL;
    assert_int_equal(ops->mem_register(comm, &b, no_error()), TESS_E_UNSUPPORTED);
    nccl.ncclCommRegister = NULL;
    EXPECT_FAILS(ops->mem_register(comm, &b, &e), TESS_E_UNSUPPORTED, "nccl: this NCCL registers nothing");
    destroy();
}

static tess_status make_and_share(void) {
    tess_status s = make_and_alloc();
    return s ? s : ops->mem_share(comm, &buffer, &e);
}

static void test_nccl_parts__windows_live_as_long_as_the_registration(void **state) {
    (void)state;
    assert_int_equal(make_and_alloc(), TESS_OK);
    EXPECT_FAILS(ops->mem_share(comm, &buffer, &e), TESS_E_UNSUPPORTED, "nccl: windows are off, or this NCCL has none");
    free_what_is_left();
    ops->close(plugin);
    assert_int_equal(open_with("nccl-windows", "on"), TESS_OK);
    assert_int_equal(make_and_alloc(), TESS_OK);
    assert_true(caps_of(comm).caps & TESS_COMM_SHARES);
    said_so_far[0] = 0;
    for (int twice = 0; twice < 2; twice++)
        assert_int_equal(ops->mem_share(comm, &buffer, no_error()), TESS_OK);
    expect_said("window of m267, 4096K; ");
    ops->mem_free(comm, &buffer);
    expect_said_first("end w", "; deregister r");
    tess_buffer strange = { .struct_size = sizeof strange };
    EXPECT_FAILS(ops->mem_share(comm, &strange, &e), TESS_E_INVALID,
                 "nccl: mem_share of memory that is not registered");
    assert_int_equal(alloc(), TESS_OK);
    world.no_windows = 1;
    said_so_far[0] = 0;
    assert_int_equal(ops->mem_share(comm, &buffer, no_error()), TESS_OK);
    expect_said_among("log 2, nccl: NCCL makes no window of 4194304 bytes in group 'g'");
    written.fails_in = 2, written.fails_with = CUDA_ERROR_UNKNOWN;
    EXPECT_FAILS(ops->mem_share(comm, &buffer, &e), TESS_E_SYSTEM, "nccl: ncclCommWindowRegister gave 2: why");
    assert_int_equal(ops->health(comm, no_error()), TESS_E_SYSTEM); /* the others wait for it */
    free_what_is_left();
    world.no_windows = 0;
    fail_each(make_and_share, free_what_is_left, 4);
    nccl.ncclCommWindowRegister = NULL; /* before 2.27 */
    assert_int_equal(make_and_alloc(), TESS_OK);
    assert_false(caps_of(comm).caps & TESS_COMM_SHARES);
    EXPECT_FAILS(ops->mem_share(comm, &buffer, &e), TESS_E_UNSUPPORTED, "nccl: windows are off, or this NCCL has none");
    free_what_is_left();
}

/* ---- splits ---- */

static tess_comm *child;
static tess_status split(int color) {
    const tess_comm_config config = config_of(0, 1);
    child = NULL;
    return ops->split(comm, color, 3, &config, &child, &e);
}

static void test_nccl_parts__a_split_has_its_own_place_and_part_of_the_room(void **state) {
    (void)state;
    begin_two();
    world.child_size = 2, world.child_rank = 1;
    assert_int_equal(split(5), TESS_OK);
    expect_said_among("split by 5, 3, 32 channels; ");
    assert_true(child->size == 2 && child->rank == 1 && child->index == 1);
    assert_string_equal(child->prefix, "g.1.5");
    ops->destroy(child);
    said_so_far[0] = 0;
    assert_int_equal(split(-1), TESS_OK);
    assert_null(child);
    char text[60];
    snprintf(text, sizeof text, "split by %d, 3, 16 channels; ", NCCL_SPLIT_NOCOLOR);
    expect_said_among(text);
    destroy();
    n_keys = 0;
    begin_two(); /* names count the splits */
    const tess_comm_config no_name = { .struct_size = sizeof no_name, .rank = 0, .nranks = 1, .timeout_ns = -1 };
    world.child_size = 1, world.child_rank = 0;
    for (int i = 1; i <= 2; i++) {
        assert_int_equal(ops->split(comm, 7, 0, &no_name, &child, no_error()), TESS_OK);
        snprintf(text, sizeof text, "g.%d.7", i);
        assert_string_equal(child->prefix, text);
        ops->destroy(child);
    }
    destroy();
}

static void test_nccl_parts__splits_end_where_there_is_no_more_room(void **state) {
    (void)state;
    static const int channels[] = { 16, 4, 4, 2, 2, 1, 1 };
    written.processors = 64; /* 32 of which are the first one's */
    begin_two();
    for (int i = 0; i < 7; i++) {
        char text[60];
        assert_true(caps_of(comm).caps & TESS_COMM_APART);
        said_so_far[0] = 0;
        if (split(0))
            fail_msg("%d: %s", i, e.message);
        snprintf(text, sizeof text, "split by 0, 3, %d channels; ", channels[i]);
        expect_said_among(text);
        ops->destroy(child);
    }
    said_so_far[0] = 0;
    for (int twice = 0; twice < 2; twice++)
        assert_false(caps_of(comm).caps & TESS_COMM_APART);
    expect_said("log 1, nccl: the GPU has no multiprocessor for a second communicator, so a gather waits for the "
                "reduction before it; ");
    EXPECT_FAILS(split(0), TESS_E_UNSUPPORTED,
                 "nccl: the GPU has no multiprocessor for one more communicator beside that of group 'g' and those "
                 "split from it");
    destroy();
}

static tess_status make_and_split(void) {
    tess_status s = make_two();
    if (s)
        return s;
    s = split(0);
    assert_int_equal(child == NULL, s != TESS_OK);
    if (s && !strstr(said_so_far, "split by")) /* it takes no part, so that the others must not wait for it */
        assert_int_equal(ops->health(comm, &(tess_error){ .struct_size = sizeof(tess_error) }), s);
    return s;
}
static void end_both(void) {
    if (comm && child)
        ops->destroy(child);
    child = NULL;
    end_what_is_left();
}

static void test_nccl_parts__a_split_that_fails_leaves_nothing(void **state) {
    (void)state;
    assert_true(fail_each(make_and_split, end_both, 2) > 40);
    begin_two();
    no_memory_in = 1;
    EXPECT_FAILS(split(0), TESS_E_NOMEM, "nccl: no memory");
    EXPECT_FAILS(ops->health(comm, &e), TESS_E_NOMEM, "nccl: no memory");
    destroy();
}

/* ---- the watcher ---- */

static int looks;
static void end_watch(void) {
    if (--looks <= 0)
        comm->quit = 1;
}
static void run_watch(int n) {
    looks = n;
    comm->quit = 0, comm->active = 1;
    at_nap = end_watch;
    watch(watched);
    at_nap = NULL;
}

static void test_nccl_parts__the_watcher_ends_what_has_ended(void **state) {
    (void)state;
    begin_two();
    assert_int_equal(post(), TESS_OK);
    written.busy = CUDA_ERROR_NOT_READY, written.busy_for = 2;
    run_watch(2);
    assert_int_equal(atomic_load(&request->status), TESS_PENDING);
    assert_int_equal(comm->active, 1);
    run_watch(1);
    assert_int_equal(atomic_load(&request->status), TESS_OK);
    assert_int_equal(comm->active, 0);
    ops->request_free(request);
    destroy();
}

static void test_nccl_parts__the_watcher_ends_calls_that_are_late_or_whose_run_ends(void **state) {
    (void)state;
    for (int why = 0; why < 2; why++) {
        n_keys = 0;
        begin_two();
        assert_int_equal(nccl_gate_enter(comm, "a call", clock_ns + 1500000, no_error()), TESS_OK);
        pthread_mutex_lock(&comm->lock); /* as who calls does */
        run_watch(2);
        assert_int_equal(nccl_failure(comm, no_error()), TESS_OK);
        aborting = why;
        run_watch(2);
        pthread_mutex_unlock(&comm->lock);
        tess_status status = why ? TESS_E_ABORTED : TESS_E_TIMEOUT;
        assert_int_equal(nccl_gate_leave(comm, TESS_OK, no_error()), status);
        assert_string_equal(e.message, why ? "nccl: the run was aborted in a call"
                                           : "nccl: a call of group 'g' did not end in time");
        assert_int_equal(nccl_gate_enter(comm, "another", INT64_MAX, no_error()), status);
        assert_null(atomic_load(&comm->comm));
        aborting = 0;
        destroy();
    }
}

static kit_announcement theirs;
static void look_and_answer(void) {
    int said = find_key("g/nccl-said/0") < n_keys;
    assert_int_equal(atomic_load(&request->status), TESS_PENDING);
    looks++;
    assert_int_equal(said, looks > 400); /* a look takes a millisecond */
    if (looks == 410)
        kv_set(NULL, "g/nccl-said/1", &theirs, sizeof theirs); /* the other one had said nothing then */
    if (atomic_load(&comm->stop) || looks > 5000)
        comm->quit = 1;
}

static void test_nccl_parts__the_watcher_compares_when_nothing_moves(void **state) {
    (void)state;
    begin_two();
    assert_int_equal(post(), TESS_OK);
    theirs = request->own[0];
    theirs.op = TESS_BROADCAST;
    written.busy = CUDA_ERROR_NOT_READY, written.busy_for = 1 << 30;
    looks = 0, comm->active = 1, at_nap = look_and_answer;
    watch(watched);
    at_nap = NULL;
    assert_true(looks > 1190 && looks < 1210); /* the second look comes after twice as long */
    written.busy_for = 0;
    assert_int_equal(ops->test(request, no_error()), TESS_E_MISMATCH);
    assert_int_equal(e.rank, 1);
    ops->request_free(request);
    destroy();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_ONE_THREAD(test_nccl_parts__memory_is_nccls_and_registered_where_it_can),
        ON_ONE_THREAD(test_nccl_parts__memory_that_there_is_not_is_refused),
        ON_ONE_THREAD(test_nccl_parts__memory_of_others_is_registered_and_let_go),
        ON_ONE_THREAD(test_nccl_parts__windows_live_as_long_as_the_registration),
        ON_ONE_THREAD(test_nccl_parts__a_split_has_its_own_place_and_part_of_the_room),
        ON_ONE_THREAD(test_nccl_parts__splits_end_where_there_is_no_more_room),
        ON_ONE_THREAD(test_nccl_parts__a_split_that_fails_leaves_nothing),
        ON_ONE_THREAD(test_nccl_parts__the_watcher_ends_what_has_ended),
        ON_ONE_THREAD(test_nccl_parts__the_watcher_ends_calls_that_are_late_or_whose_run_ends),
        ON_ONE_THREAD(test_nccl_parts__the_watcher_compares_when_nothing_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

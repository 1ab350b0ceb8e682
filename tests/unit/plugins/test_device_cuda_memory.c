/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory of device-cuda without a GPU: where it comes from, what is kept of a capacity, and what is given back. */
#include "tests/unit/plugins/device_cuda.h"

#include <sys/mman.h>
#include <sys/syscall.h>

/* ---- the memory policy of the system ---- */

static long policies; /* calls for one that succeed; then none does */
static unsigned long wish[16];

long __wrap_syscall(long number, long a, long b, long c, long d, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long f) {
    if (number == SYS_get_mempolicy) {
        assert_true(c == 1024 && d == 0 && f == 0);
        say("policy; ");
        *(int *)(uintptr_t)a = 3;
        ((unsigned long *)(uintptr_t)b)[2] = 77;
    } else {
        assert_true(number == SYS_set_mempolicy && c == 1024);
        memcpy(wish, (void *)(uintptr_t)b, sizeof wish);
        say("policy %ld,", a);
        for (int i = 0; i < 16; i++)
            if (wish[i])
                say(" %d: %lx", i, wish[i]);
        say("; ");
    }
    return policies-- > 0 ? 0 : -1;
}

/* ---- memory ---- */

static tess_buffer out;
static tess_status alloc(uint32_t mem, uint64_t bytes, uint32_t flags, int32_t node) {
    const tess_alloc_request r = {
        .struct_size = sizeof r, .mem = mem, .flags = flags, .numa_node = node, .bytes = bytes, .align = 256
    };
    out = (tess_buffer){ .struct_size = sizeof out };
    return ops->mem_alloc(device, &r, &out, &e);
}

static void test_device_cuda_memory__requests_that_make_no_sense_are_refused(void **state) {
    (void)state;
    open_device(0);
    EXPECT_FAILS(alloc(TESS_MEM_SHM, 1, 0, -1), TESS_E_UNSUPPORTED,
                 "device cuda has memory of the GPU, page-locked and host memory, not memory kind 4");
    EXPECT_FAILS(alloc(TESS_MEM_CUDA, 0, 0, -1), TESS_E_INVALID, "device cuda: 0 bytes asked for");
    EXPECT_FAILS(alloc(TESS_MEM_CUDA, ((uint64_t)1 << 56) + 1, 0, -1), TESS_E_INVALID,
                 "device cuda: 72057594037927937 bytes asked for");
    assert_int_equal(alloc(TESS_MEM_CUDA, (uint64_t)1 << 56, 0, -1), TESS_OK);
    for (uint64_t align = 0; align < 300; align++) {
        const tess_alloc_request r = { .struct_size = sizeof r, .mem = TESS_MEM_CUDA, .bytes = 1, .align = align };
        tess_status s = ops->mem_alloc(device, &r, &out, no_error());
        assert_int_equal(s, align == 0 || __builtin_popcountll(align) == 1 ? TESS_OK : TESS_E_INVALID);
    }
    const tess_alloc_request wide = { .struct_size = sizeof wide, .mem = TESS_MEM_CUDA, .bytes = 1, .align = 4 << 20 },
                             page = { .struct_size = sizeof page, .mem = TESS_MEM_CUDA, .bytes = 1, .align = 2 << 20 };
    EXPECT_FAILS(ops->mem_alloc(device, &wide, &out, &e), TESS_E_INVALID,
                 "device cuda: alignment 4194304 is not a power of two up to 2 MiB");
    assert_int_equal(ops->mem_alloc(device, &page, &out, no_error()), TESS_OK);
    no_memory_in = 1;
    EXPECT_FAILS(alloc(TESS_MEM_CUDA, 1, 0, -1), TESS_E_NOMEM, "device cuda: no memory for its own tables");
    close_device();
}

static void test_device_cuda_memory__memory_of_the_gpu_is_taken_beside_all_work_and_given_behind_it(void **state) {
    (void)state;
    tess_stream s[2];
    tess_buffer first;
    open_device(0);
    assert_int_equal(alloc(TESS_MEM_CUDA, 1, 0, -1), TESS_OK);
    expect_said("take 2048K of p3 on s4; sync s4; ");
    assert_true(out.mem == TESS_MEM_CUDA && out.bytes == 2 << 20 && out.ptr == (void *)((uintptr_t)7 << 32));
    first = out;
    assert_int_equal(alloc(TESS_MEM_CUDA, (4 << 20) + 1, 0, -1), TESS_OK);
    assert_int_equal(out.bytes, 6 << 20);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ops->stream_create(device, TESS_STREAM_COMPUTE, &s[i], no_error()), TESS_OK);
    said_so_far[0] = 0;
    ops->mem_free(device, &first);
    expect_said("e6 in s9; s5 waits for e6; e6 in s10; s5 waits for e6; give m7 on s5; ");
    assert_true(!first.ptr && first.bytes == 0);
    tess_stream program;
    assert_int_equal(ops->stream_import(device, (void *)(uintptr_t)55, &program, no_error()), TESS_OK);
    said_so_far[0] = 0;
    written.fails_in = 4, written.fails_with = CUDA_ERROR_UNKNOWN; /* an event that is not recorded is not waited for */
    ops->mem_free(device, &out);
    expect_said("e6 in s9; s5 waits for e6; e6 in s10; e6 in s55; s5 waits for e6; give m8 on s5; ");
    close_device();
}

static void test_device_cuda_memory__memory_that_is_not_its_own_is_left_alone(void **state) {
    (void)state;
    open_device(0);
    tess_buffer strange = { .struct_size = sizeof strange, .mem = TESS_MEM_CUDA, .ptr = &strange, .bytes = 1 },
                none = { .struct_size = sizeof none };
    tess_buffer kept;
    assert_int_equal(alloc(TESS_MEM_CUDA, 1, 0, -1), TESS_OK);
    kept = out;
    said_so_far[0] = 0;
    ops->mem_free(device, NULL);
    ops->mem_free(device, &none);
    ops->mem_free(device, &strange);
    expect_said("");
    written.fails_in = 1, written.fails_with = CUDA_ERROR_UNKNOWN;
    ops->mem_free(device, &kept); /* not in the context: nothing can be done */
    expect_said("");
    assert_non_null(kept.ptr);
    ops->mem_free(device, &kept);
    expect_said("give m7 on s5; ");
    close_device();
}

static void test_device_cuda_memory__each_block_is_found_among_others_and_the_last_ones_at_the_end(void **state) {
    (void)state;
    tess_buffer b[4];
    open_device(0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(alloc(i == 2 ? TESS_MEM_PINNED : TESS_MEM_CUDA, 1, 0, -1), TESS_OK);
        b[i] = out;
    }
    said_so_far[0] = 0;
    ops->mem_free(device, &b[1]);
    expect_said("give m8 on s5; ");
    ops->mem_free(device, &b[2]);
    expect_said("unlock m9; ");
    ops->destroy(device);
    expect_said(
        "sync all; give m10 on s5; give m7 on s5; sync s5; end e6; end s5; end s4; end p3; unload; release 101; ");
    is_clean();
    close_plugin();
}

static tess_status alloc_two(void) {
    return alloc(TESS_MEM_CUDA, 1, 0, -1);
}
static int memory_before;
static void no_more_memory(void) {
    assert_int_equal(written.live.memory, memory_before);
}

static void test_device_cuda_memory__no_memory_waits_for_releases_once(void **state) {
    (void)state;
    open_device(0);
    written.fails_in = 2, written.fails_with = CUDA_ERROR_OUT_OF_MEMORY;
    assert_int_equal(alloc(TESS_MEM_CUDA, 1, 0, -1), TESS_OK);
    expect_said("take 2048K of p3 on s4; sync s5; take 2048K of p3 on s4; sync s4; ");
    memory_before = written.live.memory;
    fail_each_call(alloc_two, CUDA_ERROR_UNKNOWN, no_more_memory);
    written.fails_in = 3, written.fails_with = CUDA_ERROR_UNKNOWN; /* the wait behind the allocation */
    memory_before = written.live.memory;
    EXPECT_FAILS(alloc_two(), TESS_E_DEVICE, "device cuda: GPU 1: allocating memory failed: NAME 999 (why)");
    no_more_memory();
    expect_said("take 2048K of p3 on s4; sync s4; give m10 on s4; ");
    close_device();
}

/* The driver has no memory, however often it is asked. */
static CUresult no_memory(CUdeviceptr *at, size_t bytes) {
    (void)at, (void)bytes;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void test_device_cuda_memory__without_pools_memory_is_allocated_at_once(void **state) {
    (void)state;
    open_plugin();
    written.pools = 0;
    assert_int_equal(ops->create(plugin, OPENED, 0, &device, no_error()), TESS_OK);
    expect_said("open libcuda.so.1, 1002; init 0; retain 101; load; stream of 0; stream of 0; event, 2; ");
    assert_int_equal(alloc(TESS_MEM_CUDA, 1, 0, -1), TESS_OK);
    expect_said("alloc 2048K; ");
    ops->mem_free(device, &out);
    expect_said("free m6; ");
    cuda.cuMemAlloc = no_memory;
    EXPECT_FAILS(alloc(TESS_MEM_CUDA, 3 << 20, 0, -1), TESS_E_NOMEM,
                 "device cuda: GPU 1 has no 4194304 bytes: 64424509440 of its 85899345920 are free");
    written.fails_in = 2, written.fails_with = CUDA_ERROR_UNKNOWN; /* how much is free is not known either */
    EXPECT_FAILS(alloc(TESS_MEM_CUDA, 3 << 20, 0, -1), TESS_E_NOMEM,
                 "device cuda: GPU 1: allocating memory failed: NAME 2 (why)");
    written.fails_in = 0;
    ops->destroy(device);
    expect_said("sync all; sync s4; end e5; end s4; end s3; unload; release 101; ");
    is_clean();
    close_plugin();
}

static void test_device_cuda_memory__a_capacity_is_kept(void **state) {
    (void)state;
    uint64_t backend = 0, left = 0;
    tess_buffer first;
    open_device(6 << 20);
    assert_int_equal(alloc(TESS_MEM_CUDA, 4 << 20, 0, -1), TESS_OK);
    first = out;
    EXPECT_FAILS(alloc(TESS_MEM_CUDA, (2 << 20) + 1, 0, -1), TESS_E_NOMEM,
                 "device cuda: 4194304 bytes needed, 2097152 of its 6291456 free");
    assert_int_equal(ops->mem_usage(device, &backend, &left), TESS_OK);
    assert_true(backend == 0 && left == 2 << 20);
    assert_int_equal(alloc(TESS_MEM_CUDA, 2 << 20, 0, -1), TESS_OK);
    assert_int_equal(alloc(TESS_MEM_PINNED, 2 << 20, 0, -1), TESS_OK); /* is not the GPU's */
    EXPECT_FAILS(alloc(TESS_MEM_CUDA, 1, 0, -1), TESS_E_NOMEM,
                 "device cuda: 2097152 bytes needed, 0 of its 6291456 free");
    written.free_bytes -= 7 << 20; /* 6 MiB are ours */
    assert_int_equal(ops->mem_usage(device, &backend, &left), TESS_OK);
    assert_true(backend == 1 << 20 && left == 0);
    ops->mem_free(device, &first);
    assert_int_equal(ops->mem_usage(device, &backend, &left), TESS_OK);
    assert_true(backend == 5 << 20 && left == 4 << 20);
    written.free_bytes = 3 << 20;
    assert_int_equal(ops->mem_usage(device, &backend, &left), TESS_OK);
    assert_int_equal(left, 3 << 20);
    close_device();
}

static void test_device_cuda_memory__a_capacity_is_kept_to_the_byte(void **state) {
    (void)state;
    uint64_t backend = 0, left = 0;
    for (int more = -1; more < 2; more++) {
        open_device((4 << 20) + (uint64_t)more);
        assert_int_equal(alloc(TESS_MEM_CUDA, 1, 0, -1), TESS_OK);
        if (more < 0) {
            EXPECT_FAILS(alloc(TESS_MEM_CUDA, 1, 0, -1), TESS_E_NOMEM,
                         "device cuda: 2097152 bytes needed, 2097151 of its 4194303 free");
        } else {
            char text[100];
            assert_int_equal(alloc(TESS_MEM_CUDA, 1, 0, -1), TESS_OK);
            assert_int_equal(ops->mem_usage(device, &backend, &left), TESS_OK);
            assert_int_equal(left, more);
            snprintf(text, sizeof text, "device cuda: 2097152 bytes needed, %d of its %d free", more, (4 << 20) + more);
            EXPECT_FAILS(alloc(TESS_MEM_CUDA, 1, 0, -1), TESS_E_NOMEM, text);
        }
        written.free_bytes -= 2 << 20; /* of all but the last allocation, and one byte more */
        written.free_bytes--;
        assert_int_equal(ops->mem_usage(device, &backend, &left), TESS_OK);
        assert_int_equal(backend, more < 0 ? 1 : 0);
        close_device();
    }
}

static void test_device_cuda_memory__what_is_free_is_the_less_of_the_gpus_and_the_capacitys(void **state) {
    (void)state;
    uint64_t backend = 0, left = 0;
    open_device(1000);
    for (int more = -1; more < 2; more++) {
        written.free_bytes = (size_t)(1000 + more);
        assert_int_equal(ops->mem_usage(device, &backend, &left), TESS_OK);
        assert_int_equal(left, more < 0 ? 999 : 1000);
    }
    close_device();
}

static uint64_t backend_bytes, free_bytes;
static tess_status usage(void) {
    backend_bytes = free_bytes = 9;
    return ops->mem_usage(device, &backend_bytes, &free_bytes);
}

static void test_device_cuda_memory__usage_is_what_the_gpu_has_lost_beside_our_own(void **state) {
    (void)state;
    open_device(0);
    assert_int_equal(usage(), TESS_OK);
    assert_true(backend_bytes == 0 && free_bytes == (uint64_t)60 << 30);
    written.free_bytes--;
    assert_int_equal(usage(), TESS_OK);
    assert_true(backend_bytes == 1 && free_bytes == ((uint64_t)60 << 30) - 1);
    written.free_bytes += 6; /* another program went */
    assert_int_equal(usage(), TESS_OK);
    assert_true(backend_bytes == 0 && free_bytes == ((uint64_t)60 << 30) + 5);
    for (int n = 1; n <= 2; n++) {
        written.fails_in = n, written.fails_with = CUDA_ERROR_NOT_SUPPORTED;
        assert_int_equal(usage(), TESS_E_UNSUPPORTED);
        assert_true(backend_bytes == 9 && free_bytes == 9 && written.contexts == 0);
    }
    close_device();
}

static void test_device_cuda_memory__locked_memory_comes_from_the_node_that_is_wished_for(void **state) {
    (void)state;
    open_device(0);
    policies = 99;
    no_error();
    assert_int_equal(alloc(TESS_MEM_PINNED, 1, 0, -1), TESS_OK);
    assert_true(e.code == TESS_OK && e.message[0] == 0);
    expect_said("lock 2048K, 1; ");
    assert_true(out.mem == TESS_MEM_PINNED && out.bytes == 2 << 20);
    assert_int_equal(alloc(TESS_MEM_PINNED, 1, 0, 0), TESS_OK);
    expect_said("policy; policy 1, 0: 1; lock 2048K, 1; policy 3, 2: 4d; ");
    assert_int_equal(alloc(TESS_MEM_PINNED, 1, 0, 70), TESS_OK);
    expect_said("policy; policy 1, 1: 40; lock 2048K, 1; policy 3, 2: 4d; ");
    assert_int_equal(alloc(TESS_MEM_PINNED, 1, 0, 1023), TESS_OK);
    expect_said("policy; policy 1, 15: 8000000000000000; lock 2048K, 1; policy 3, 2: 4d; ");
    assert_int_equal(alloc(TESS_MEM_PINNED, 1, 0, 1024), TESS_OK);
    expect_said("lock 2048K, 1; ");
    policies = 0;
    assert_int_equal(alloc(TESS_MEM_PINNED, 1, 0, 0), TESS_OK);
    expect_said("policy; lock 2048K, 1; ");
    policies = 1;
    assert_int_equal(alloc(TESS_MEM_PINNED, 1, 0, 0), TESS_OK);
    expect_said("policy; policy 1, 0: 1; lock 2048K, 1; ");
    close_device();
}

static void test_device_cuda_memory__memory_that_cannot_be_locked_is_plain_where_that_will_do(void **state) {
    (void)state;
    open_device(0);
    for (int twice = 0; twice < 2; twice++) {
        written.fails_in = 2, written.fails_with = CUDA_ERROR_OUT_OF_MEMORY;
        assert_int_equal(alloc(TESS_MEM_PINNED, 3 << 20, TESS_ALLOC_MAY_UNPIN, -1), TESS_OK);
        expect_said(
            twice ? "lock 4096K, 1; "
                  : "lock 4096K, 1; log 1, device cuda: cannot lock 4194304 bytes in memory (NAME 2 (why)): going "
                    "on with pageable memory, slower copies; ");
        assert_true(out.mem == TESS_MEM_HOST && out.bytes == 4 << 20);
        for (int i = 0; i < 4 << 20; i += 4096)
            assert_int_equal(((char *)out.ptr)[i]++, 0);
    }
    unsigned char resident;
    void *was = out.ptr;
    ops->mem_free(device, &out);
    expect_said("");
    assert_true(mincore(was, 4096, &resident) != 0); /* mapped no more */
    written.fails_in = 2;
    EXPECT_FAILS(alloc(TESS_MEM_PINNED, 1, 0, -1), TESS_E_NOMEM,
                 "device cuda: GPU 1: page-locking host memory failed: NAME 2 (why)");
    written.fails_in = 2, written.fails_with = CUDA_ERROR_UNKNOWN;
    EXPECT_FAILS(alloc(TESS_MEM_PINNED, 1, TESS_ALLOC_MAY_UNPIN, -1), TESS_E_DEVICE,
                 "device cuda: GPU 1: page-locking host memory failed: NAME 999 (why)");
    EXPECT_FAILS(alloc(TESS_MEM_HOST, (uint64_t)1 << 55, 0, -1), TESS_E_NOMEM,
                 "device cuda: the system refuses 36028797018963968 bytes: Cannot allocate memory");
    close_device();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_cuda_memory__requests_that_make_no_sense_are_refused),
        cmocka_unit_test(test_device_cuda_memory__memory_of_the_gpu_is_taken_beside_all_work_and_given_behind_it),
        cmocka_unit_test(test_device_cuda_memory__memory_that_is_not_its_own_is_left_alone),
        cmocka_unit_test(test_device_cuda_memory__each_block_is_found_among_others_and_the_last_ones_at_the_end),
        cmocka_unit_test(test_device_cuda_memory__no_memory_waits_for_releases_once),
        cmocka_unit_test(test_device_cuda_memory__without_pools_memory_is_allocated_at_once),
        cmocka_unit_test(test_device_cuda_memory__a_capacity_is_kept),
        cmocka_unit_test(test_device_cuda_memory__a_capacity_is_kept_to_the_byte),
        cmocka_unit_test(test_device_cuda_memory__what_is_free_is_the_less_of_the_gpus_and_the_capacitys),
        cmocka_unit_test(test_device_cuda_memory__usage_is_what_the_gpu_has_lost_beside_our_own),
        cmocka_unit_test(test_device_cuda_memory__locked_memory_comes_from_the_node_that_is_wished_for),
        cmocka_unit_test(test_device_cuda_memory__memory_that_cannot_be_locked_is_plain_where_that_will_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

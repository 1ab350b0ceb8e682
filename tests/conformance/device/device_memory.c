#include "device_suite.h"

void test_device__description_is_complete_and_pure(void **state) {
    (void)state;
    struct {
        tess_device_info info;
        uint64_t later;
    } a, b;
    memset(&a, 0x5a, sizeof a);
    memset(&b, 0xa5, sizeof b);
    a.info.struct_size = b.info.struct_size = sizeof a;
    check(dut.ops->describe(dut.ctx, -1, &a.info, &dut.error), "describe");
    check(dut.ops->describe(dut.ctx, -1, &b.info, &dut.error), "describe");
    assert_true(a.info.struct_size == sizeof a && a.later == 0);
    assert_memory_equal((char *)&a + 4, (char *)&b + 4, sizeof a - 4);
    assert_true(a.info.mem_mask >> a.info.mem & 1);
    assert_true(a.info.align > 0 && (a.info.align & (a.info.align - 1)) == 0);
    assert_true(a.info.mem == dut.info.mem && a.info.kernel_mask == dut.info.kernel_mask);
    assert_true(a.info.granularity_bytes == dut.info.granularity_bytes); /* what plans count with */
    assert_true(strlen(a.info.name) > 0 && memchr(a.info.id, 0, sizeof a.info.id));
    assert_true(dut.ops->describe(dut.ctx, 1 << 20, &b.info, &dut.error) < 0);
}

void test_device__memory_is_aligned_and_rounded_up(void **state) {
    (void)state;
    uint64_t grain = dut.info.granularity_bytes ? dut.info.granularity_bytes : 1;
    for (uint64_t bytes = 1; bytes < 5000000; bytes = bytes * 3 + 1) {
        tess_buffer b = upload(NULL, bytes);
        assert_true((uintptr_t)b.ptr % dut.info.align == 0);
        assert_true(b.bytes == (bytes + grain - 1) / grain * grain);
        assert_int_equal(b.mem, dut.info.mem);
        release(&b);
    }
    tess_buffer none = { .struct_size = sizeof none };
    release(&none);
}

void test_device__beyond_capacity_is_refused_and_harmless(void **state) {
    (void)state;
    tess_device *small = NULL;
    uint64_t capacity = 16 << 20;
    check(dut.ops->create(dut.ctx, 0, capacity, &small, &dut.error), "create");
    tess_alloc_request request = { .struct_size = sizeof request,
                                   .mem = dut.info.mem,
                                   .domain = TESS_DOMAIN_DEVICE,
                                   .category = TESS_CAT_TEMPORARY,
                                   .numa_node = -1,
                                   .bytes = capacity + 1 };
    tess_buffer big = { .struct_size = sizeof big }, fits = { .struct_size = sizeof fits };
    assert_int_equal(dut.ops->mem_alloc(small, &request, &big, &dut.error), TESS_E_NOMEM);
    assert_null(big.ptr);
    assert_true(strlen(dut.error.message) > 0 && !strchr(dut.error.message, '\n'));
    request.bytes = capacity;
    check(dut.ops->mem_alloc(small, &request, &fits, &dut.error), "mem_alloc of the whole capacity");
    request.bytes = 1;
    assert_int_equal(dut.ops->mem_alloc(small, &request, &big, &dut.error), TESS_E_NOMEM);
    dut.ops->mem_free(small, &fits);
    check(dut.ops->mem_alloc(small, &request, &fits, &dut.error), "mem_alloc after mem_free");
    dut.ops->destroy(small); /* takes `fits` with it */
}

static tess_buffer of_kind(uint32_t mem, uint64_t bytes) {
    tess_alloc_request request = { .struct_size = sizeof request,
                                   .mem = mem,
                                   .flags = TESS_ALLOC_MAY_UNPIN,
                                   .domain = mem == dut.info.mem ? TESS_DOMAIN_DEVICE : TESS_DOMAIN_HOST,
                                   .category = TESS_CAT_TEMPORARY,
                                   .numa_node = -1,
                                   .bytes = bytes };
    tess_buffer buffer = { .struct_size = sizeof buffer };
    check(dut.ops->mem_alloc(dut.device, &request, &buffer, &dut.error), "mem_alloc");
    return buffer;
}

void test_device__copies_keep_bytes_between_all_kinds(void **state) {
    (void)state;
    enum { MOST = 300001 };
    static uint8_t in[MOST], out[MOST];
    uint64_t seed = 1;
    for (int i = 0; i < MOST; i++)
        in[i] = (uint8_t)next_random(&seed);
    for (uint32_t from = TESS_MEM_HOST; from <= TESS_MEM_SHM; from++) {
        for (uint32_t to = TESS_MEM_HOST; to <= TESS_MEM_SHM; to++) {
            if (!(dut.info.mem_mask >> from & 1) || !(dut.info.mem_mask >> to & 1))
                continue;
            tess_buffer a = of_kind(from, MOST), b = of_kind(to, MOST);
            for (uint64_t bytes = 0; bytes <= MOST; bytes = bytes * 7 + 1) {
                memset(out, 0, sizeof out);
                check(dut.ops->copy(dut.device, a.ptr, a.mem, in, TESS_MEM_HOST, bytes, &dut.stream, &dut.error),
                      "copy");
                check(dut.ops->copy(dut.device, b.ptr, b.mem, a.ptr, a.mem, bytes, &dut.stream, &dut.error), "copy");
                download(&b, out, bytes);
                assert_memory_equal(out, in, bytes);
                assert_true(bytes == MOST || out[bytes] == 0);
            }
            release(&a);
            release(&b);
        }
    }
    uint32_t foreign = dut.info.mem_mask >> TESS_MEM_CUDA & 1 ? 30 : TESS_MEM_CUDA;
    assert_true(dut.ops->copy(dut.device, out, foreign, in, TESS_MEM_HOST, 1, &dut.stream, &dut.error) < 0);
}

void test_device__fill_sets_only_what_was_asked(void **state) {
    (void)state;
    uint8_t bytes[1000];
    memset(bytes, 1, sizeof bytes);
    tess_buffer b = upload(bytes, sizeof bytes);
    check(dut.ops->fill(dut.device, (char *)b.ptr + 64, 0xff, 501, &dut.stream, &dut.error), "fill");
    check(dut.ops->fill(dut.device, b.ptr, 7, 0, &dut.stream, &dut.error), "fill of nothing");
    download(&b, bytes, sizeof bytes);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(bytes[i], i >= 64 && i < 565 ? 0xff : 1);
    release(&b);
}

/* Fill on one stream, copy on another that waits for the first. */
void test_device__events_order_streams(void **state) {
    (void)state;
    enum { BYTES = 8 << 20 };
    if (!TESS_CAN(tess_device_ops, dut.ops, stream_create)) {
        print_message("the device has no streams\n");
        return;
    }
    tess_stream down;
    tess_event *begin = NULL, *filled = NULL;
    uint8_t *host = malloc(BYTES);
    tess_buffer b = upload(NULL, BYTES);
    check(dut.ops->stream_create(dut.device, TESS_STREAM_DOWN, &down, &dut.error), "stream_create");
    check(dut.ops->event_create(dut.device, &begin, &dut.error), "event_create");
    check(dut.ops->event_create(dut.device, &filled, &dut.error), "event_create");
    for (int round = 1; round <= 3; round++) {
        int64_t ns = -1;
        check(dut.ops->event_record(begin, &dut.stream, &dut.error), "event_record");
        check(dut.ops->fill(dut.device, b.ptr, (uint8_t)round, BYTES, &dut.stream, &dut.error), "fill");
        check(dut.ops->event_record(filled, &dut.stream, &dut.error), "event_record");
        check(dut.ops->event_stream_wait(filled, &down, &dut.error), "event_stream_wait");
        check(dut.ops->copy(dut.device, host, TESS_MEM_HOST, b.ptr, b.mem, BYTES, &down, &dut.error), "copy");
        tess_status looked = dut.ops->event_wait(filled, 0, &dut.error);
        assert_true(looked == TESS_OK || looked == TESS_PENDING);
        drain(&down);
        assert_true(host[0] == round && host[BYTES / 2] == round && host[BYTES - 1] == round);
        assert_int_equal(dut.ops->event_wait(filled, 0, &dut.error), TESS_OK);
        if (TESS_CAN(tess_device_ops, dut.ops, event_elapsed_ns)) {
            check(dut.ops->event_elapsed_ns(begin, filled, &ns), "event_elapsed_ns");
            assert_true(ns >= 0);
        }
    }
    dut.ops->event_destroy(begin);
    dut.ops->event_destroy(filled);
    dut.ops->stream_destroy(dut.device, &down);
    release(&b);
    free(host);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "device.h"

#include <stdlib.h>
#include <string.h>

#include "suites.h"

static void description_is_complete_and_pure(check *self) {
    device_open(self);
    struct {
        tess_device_info info;
        uint64_t later;
    } a, b;
    memset(&a, 0x5a, sizeof a);
    memset(&b, 0xa5, sizeof b);
    a.info.struct_size = b.info.struct_size = sizeof a;
    must(dut.ops->describe(dut.ctx, -1, &a.info, &dut.error), "describe");
    must(dut.ops->describe(dut.ctx, -1, &b.info, &dut.error), "describe");
    check_that(self, a.info.struct_size == sizeof a && a.later == 0,
               "describe leaves what it does not know in a longer struct, instead of zero");
    check_that(self, memcmp((char *)&a + 4, (char *)&b + 4, sizeof a - 4) == 0,
               "describe says something else the second time, or leaves a part unwritten");
    check_that(self, a.info.mem_mask >> a.info.mem & 1, "mem_mask 0x%x lacks the device's own kind %u", a.info.mem_mask,
               a.info.mem);
    check_that(self, a.info.align > 0 && (a.info.align & (a.info.align - 1)) == 0, "an alignment of %u", a.info.align);
    check_that(self,
               a.info.mem == dut.info.mem && a.info.kernel_mask == dut.info.kernel_mask &&
                   a.info.granularity_bytes == dut.info.granularity_bytes, /* plans count with it */
               "index -1 is described otherwise than device 0");
    check_that(self,
               *a.info.name && memchr(a.info.name, 0, sizeof a.info.name) && memchr(a.info.id, 0, sizeof a.info.id),
               "no name, or a text that does not end");
    check_that(self, dut.ops->describe(dut.ctx, 1 << 20, &b.info, &dut.error) < 0, "describes device 1048576");
}

static void memory_is_aligned_and_rounded_up(check *self) {
    device_open(self);
    uint64_t grain = dut.info.granularity_bytes ? dut.info.granularity_bytes : 1;
    for (uint64_t bytes = 1; bytes < 5000000; bytes = bytes * 3 + 1) {
        tess_buffer b = upload(NULL, bytes);
        check_that(self, (uintptr_t)b.ptr % dut.info.align == 0, "mem_alloc gave %p, not aligned to %u", b.ptr,
                   dut.info.align);
        check_that(self, b.bytes == (bytes + grain - 1) / grain * grain,
                   "mem_alloc of %llu bytes says %llu; the granularity is %llu", (unsigned long long)bytes,
                   (unsigned long long)b.bytes, (unsigned long long)grain);
        check_that(self, b.mem == dut.info.mem, "mem_alloc gave kind %u, expected %u", b.mem, dut.info.mem);
        release(&b);
    }
    tess_buffer none = { .struct_size = sizeof none };
    release(&none);
}

static void beyond_capacity_is_refused_and_harmless(check *self) {
    device_open(self);
    tess_device *small = NULL;
    uint64_t capacity = 16 << 20;
    must(dut.ops->create(dut.ctx, 0, capacity, &small, &dut.error), "create");
    tess_alloc_request request = { .struct_size = sizeof request,
                                   .mem = dut.info.mem,
                                   .domain = TESS_DOMAIN_DEVICE,
                                   .category = TESS_CAT_TEMPORARY,
                                   .numa_node = -1,
                                   .bytes = capacity + 1 };
    tess_buffer big = { .struct_size = sizeof big }, fits = { .struct_size = sizeof fits };
    tess_status s = dut.ops->mem_alloc(small, &request, &big, &dut.error);
    check_that(self, s == TESS_E_NOMEM, "one byte beyond the capacity gave %s, expected TESS_E_NOMEM", check_status(s));
    check_that(self, !big.ptr, "mem_alloc failed and wrote its output");
    check_that(self, *dut.error.message && !strchr(dut.error.message, '\n'), "mem_alloc failed without one line");
    request.bytes = capacity;
    must(dut.ops->mem_alloc(small, &request, &fits, &dut.error), "mem_alloc of the whole capacity");
    request.bytes = 1;
    s = dut.ops->mem_alloc(small, &request, &big, &dut.error);
    check_that(self, s == TESS_E_NOMEM, "the second piece gave %s, expected TESS_E_NOMEM", check_status(s));
    dut.ops->mem_free(small, &fits);
    must(dut.ops->mem_alloc(small, &request, &fits, &dut.error), "mem_alloc after mem_free");
    dut.ops->destroy(small); /* also frees `fits` */
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
    must(dut.ops->mem_alloc(dut.device, &request, &buffer, &dut.error), "mem_alloc");
    return buffer;
}

static void copies_keep_bytes_between_all_kinds(check *self) {
    device_open(self);
    enum { MOST = 300001 };
    static uint8_t in[MOST], out[MOST];
    uint64_t seed = 1;
    for (int i = 0; i < MOST; i++)
        in[i] = (uint8_t)check_random(&seed);
    for (uint32_t from = TESS_MEM_HOST; from <= TESS_MEM_SHM; from++) {
        for (uint32_t to = TESS_MEM_HOST; to <= TESS_MEM_SHM; to++) {
            if (!(dut.info.mem_mask >> from & 1) || !(dut.info.mem_mask >> to & 1))
                continue;
            tess_buffer a = of_kind(from, MOST), b = of_kind(to, MOST);
            for (uint64_t bytes = 0; bytes <= MOST; bytes = bytes * 7 + 1) {
                memset(out, 0, sizeof out);
                must(dut.ops->copy(dut.device, a.ptr, a.mem, in, TESS_MEM_HOST, bytes, &dut.stream, &dut.error),
                     "copy");
                must(dut.ops->copy(dut.device, b.ptr, b.mem, a.ptr, a.mem, bytes, &dut.stream, &dut.error), "copy");
                download(&b, out, bytes);
                check_that(self, memcmp(out, in, bytes) == 0,
                           "copy from kind %u to %u changed the bytes (%llu of them)", from, to,
                           (unsigned long long)bytes);
                check_that(self, bytes == MOST || out[bytes] == 0, "copy from kind %u to %u wrote past the end", from,
                           to);
            }
            release(&a);
            release(&b);
        }
    }
    uint32_t foreign = dut.info.mem_mask >> TESS_MEM_CUDA & 1 ? 30 : TESS_MEM_CUDA;
    check_that(self, dut.ops->copy(dut.device, out, foreign, in, TESS_MEM_HOST, 1, &dut.stream, &dut.error) < 0,
               "copies to memory kind %u, which mem_mask lacks", foreign);
}

static void fill_sets_only_what_was_asked(check *self) {
    device_open(self);
    uint8_t bytes[1000];
    memset(bytes, 1, sizeof bytes);
    tess_buffer b = upload(bytes, sizeof bytes);
    must(dut.ops->fill(dut.device, (char *)b.ptr + 64, 0xff, 501, &dut.stream, &dut.error), "fill");
    must(dut.ops->fill(dut.device, b.ptr, 7, 0, &dut.stream, &dut.error), "fill of nothing");
    download(&b, bytes, sizeof bytes);
    for (int i = 0; i < 1000; i++)
        check_that(self, bytes[i] == (i >= 64 && i < 565 ? 0xff : 1), "fill of 501 bytes at 64: byte %d is %d", i,
                   bytes[i]);
    release(&b);
}

/* Fills on one stream and copies on another, which waits for the first. */
static void events_order_streams(check *self) {
    device_open(self);
    enum { BYTES = 8 << 20 };
    if (!TESS_CAN(tess_device_ops, dut.ops, stream_create))
        check_skip(self, "has no streams");
    tess_stream down;
    tess_event *begin = NULL, *filled = NULL;
    uint8_t *host = malloc(BYTES);
    tess_buffer b = upload(NULL, BYTES);
    must(dut.ops->stream_create(dut.device, TESS_STREAM_DOWN, &down, &dut.error), "stream_create");
    must(dut.ops->event_create(dut.device, &begin, &dut.error), "event_create");
    must(dut.ops->event_create(dut.device, &filled, &dut.error), "event_create");
    for (int round = 1; round <= 3; round++) {
        int64_t ns = -1;
        must(dut.ops->event_record(begin, &dut.stream, &dut.error), "event_record");
        must(dut.ops->fill(dut.device, b.ptr, (uint8_t)round, BYTES, &dut.stream, &dut.error), "fill");
        must(dut.ops->event_record(filled, &dut.stream, &dut.error), "event_record");
        must(dut.ops->event_stream_wait(filled, &down, &dut.error), "event_stream_wait");
        must(dut.ops->copy(dut.device, host, TESS_MEM_HOST, b.ptr, b.mem, BYTES, &down, &dut.error), "copy");
        tess_status looked = dut.ops->event_wait(filled, 0, &dut.error);
        check_that(self, looked == TESS_OK || looked == TESS_PENDING, "event_wait of 0 gave %s", check_status(looked));
        drain(&down);
        check_that(self, host[0] == round && host[BYTES / 2] == round && host[BYTES - 1] == round,
                   "round %d: a copy on a stream that waits for an event came before the fill", round);
        check_that(self, dut.ops->event_wait(filled, 0, &dut.error) == TESS_OK, "a passed event is pending");
        if (TESS_CAN(tess_device_ops, dut.ops, event_elapsed_ns)) {
            must(dut.ops->event_elapsed_ns(begin, filled, &ns), "event_elapsed_ns");
            check_that(self, ns >= 0, "event_elapsed_ns gave %lld", (long long)ns);
        }
    }
    dut.ops->event_destroy(begin);
    dut.ops->event_destroy(filled);
    dut.ops->stream_destroy(dut.device, &down);
    release(&b);
    free(host);
}

/* Ranges name work for a profiler. They nest and change nothing else. */
static void ranges_name_work(check *self) {
    enum { BYTES = 4096 };
    uint8_t host[BYTES] = { 0 };
    device_open(self);
    if (!TESS_CAN(tess_device_ops, dut.ops, range_push))
        check_skip(self, "has no slot range_push, or no profiler listens: nothing is named");
    check_that(self, TESS_CAN(tess_device_ops, dut.ops, range_pop), "range_push without range_pop");
    tess_buffer b = upload(NULL, BYTES);
    dut.ops->range_push(dut.device, "outer");
    dut.ops->range_push(dut.device, "");
    must(dut.ops->fill(dut.device, b.ptr, 9, BYTES, &dut.stream, &dut.error), "fill");
    dut.ops->range_pop(dut.device);
    dut.ops->range_pop(dut.device);
    drain(&dut.stream);
    download(&b, host, BYTES);
    check_that(self, host[0] == 9 && host[BYTES - 1] == 9, "a fill within ranges gave %u", host[0]);
    release(&b);
}

/* An event on a stream stands for all work queued before it, so nothing is read too early. */
static void event_waits_for_work(check *self) {
    enum { BYTES = 64 << 20 };
    tess_event *event = NULL;
    device_open(self);
    if (!TESS_CAN(tess_device_ops, dut.ops, event_create))
        check_skip(self, "has no events");
    tess_buffer a = upload(NULL, BYTES), b = upload(NULL, BYTES);
    uint8_t last = 0;
    must(dut.ops->event_create(dut.device, &event, &dut.error), "event_create");
    for (int round = 1; round <= 4; round++) {
        must(dut.ops->fill(dut.device, a.ptr, (uint8_t)round, BYTES, &dut.stream, &dut.error), "fill");
        must(dut.ops->copy(dut.device, b.ptr, b.mem, a.ptr, a.mem, BYTES, &dut.stream, &dut.error), "copy");
        must(dut.ops->event_record(event, &dut.stream, &dut.error), "event_record");
        must(dut.ops->event_wait(event, 20 * CHECK_SECOND_NS, &dut.error), "event_wait");
        must(dut.ops->copy(dut.device, &last, TESS_MEM_HOST, (char *)b.ptr + BYTES - 1, b.mem, 1, &dut.stream,
                           &dut.error),
             "copy");
        drain(&dut.stream);
        check_that(self, last == round, "after event_wait the last byte is %d, expected %d", last, round);
    }
    dut.ops->event_destroy(event);
    release(&a);
    release(&b);
}

/* destroy must free all that belongs to the device, and must accept null. */
static void nothing_left_behind(check *self) {
    device_open(self);
    int threads = 0, files = 0;
    for (int round = 0; round < 6; round++) {
        tess_device *more = NULL;
        must(dut.ops->create(dut.ctx, 0, 0, &more, &dut.error), "create");
        dut.ops->destroy(more);
        for (int tries = 0; tries < 100 && round && check_threads() > threads; tries++)
            check_sleep_ms(10);
        check_that(self, !round || check_threads() <= threads, "destroy leaves a thread running: %d, then %d of them",
                   threads, check_threads());
        check_that(self, !round || check_files() <= files, "destroy leaves a file open");
        threads = check_threads();
        files = check_files();
    }
    dut.ops->destroy(NULL);
    tess_device *none = (tess_device *)1;
    check_that(self, dut.ops->create(dut.ctx, 1 << 20, 0, &none, &dut.error) < 0, "creates device 1048576");
    check_that(self, none == (tess_device *)1, "create failed and wrote its output");
}

const check_case check_cases_device_memory[] = {
    { "description", 1, description_is_complete_and_pure, 0, 0 },
    { "alignment", 1, memory_is_aligned_and_rounded_up, 0, 0 },
    { "capacity", 1, beyond_capacity_is_refused_and_harmless, 0, 0 },
    { "copies", 1, copies_keep_bytes_between_all_kinds, 0, 0 },
    { "fill", 1, fill_sets_only_what_was_asked, 0, 0 },
    { "events_order_streams", 1, events_order_streams, 0, 0 },
    { "event_waits_for_work", 1, event_waits_for_work, 0, 0 },
    { "ranges", 1, ranges_name_work, 0, 0 },
    { "nothing_left_behind", 1, nothing_left_behind, 0, 0 },
    { 0 },
};

/* SPDX-License-Identifier: BSD-3-Clause */
/* The cpu device's memory by what it asks of the system, which is a table of pages here. No page is left behind. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "core/base/numa.h"
#include "core/base/pool.h"
#include "core/builtin/device_cpu.h"
#include "core/kernels/kernels.h"
#include <tessera/plugin_helpers.h>
#include "tests/unit/counted.h"
#include "tests/unit/said.h"

enum { PAGE = 4096, PAGES = 1 << 14, HUGE = 2 << 20, RESERVED = 1, READY = 2 };
#define BASE (UINT64_C(1) << 40)
static struct {
    uint8_t page[PAGES];
    uint64_t next; /* at which page a mapping begins */
    int no_room, no_pages, no_lock, no_threads, pools, threads;
    int warnings;
    char line[256];
    const char *text; /* of threads */
    struct timespec now;
} world;

static void set_pages(const void *at, uint64_t bytes, int was, uint8_t is) {
    const uint64_t first = ((uintptr_t)at - BASE) / PAGE;
    assert_true((uintptr_t)at % PAGE == 0 && bytes % PAGE == 0 && bytes > 0 && first + bytes / PAGE <= PAGES);
    for (uint64_t p = first; p < first + bytes / PAGE; p++) {
        assert_true(was ? world.page[p] == was : 1);
        world.page[p] = is;
    }
}
static void *fake_mmap(void *at, uint64_t bytes, int protection, int flags, int fd, int64_t offset) {
    assert_true(fd == -1 && offset == 0 && (flags & (MAP_PRIVATE | MAP_ANONYMOUS)) == (MAP_PRIVATE | MAP_ANONYMOUS));
    errno = ENOMEM;
    if (at) {
        assert_true(protection == (PROT_READ | PROT_WRITE) && flags & MAP_FIXED && !(flags & MAP_NORESERVE));
        if (world.no_pages)
            return MAP_FAILED;
        set_pages(at, bytes, RESERVED, READY);
        return at;
    }
    assert_true(protection == PROT_NONE && flags & MAP_NORESERVE && !(flags & MAP_FIXED));
    if (world.no_room || bytes > (uint64_t)(PAGES - world.next) * PAGE)
        return MAP_FAILED;
    at = (void *)(uintptr_t)(BASE + world.next * PAGE);
    for (uint64_t p = world.next; p < world.next + bytes / PAGE; p++)
        assert_int_equal(world.page[p], 0);
    set_pages(at, bytes, 0, RESERVED);
    return at;
}
static int fake_munmap(void *at, uint64_t bytes) {
    const uint64_t first = ((uintptr_t)at - BASE) / PAGE;
    assert_true(first < PAGES && world.page[first]);
    set_pages(at, bytes, world.page[first], 0);
    return 0;
}
static int fake_madvise(void *at, uint64_t bytes, int advice) {
    (void)at;
    assert_int_equal(advice, MADV_HUGEPAGE);
    say("huge %d; ", (int)(bytes / PAGE));
    return -1;
}
static int fake_mlock(void *at, uint64_t bytes) {
    assert_int_equal(world.page[((uintptr_t)at - BASE) / PAGE], READY);
    say("lock %d; ", (int)(bytes / PAGE));
    errno = EPERM;
    return world.no_lock ? -1 : 0;
}
static int fake_limit(int what, struct rlimit *r) {
    assert_int_equal(what, RLIMIT_MEMLOCK);
    r->rlim_cur = 65536;
    return 0;
}
static void fake_bind(void *at, uint64_t bytes, int32_t node) {
    assert_int_equal(world.page[((uintptr_t)at - BASE) / PAGE], READY);
    say("bind %d to %d; ", (int)(bytes / PAGE), node);
}
static tess_status fake_pool(int threads, const char *cpus, tess__pool **out, tess_error *error) {
    assert_string_equal(cpus, "");
    world.threads = threads;
    if (world.no_threads)
        return tess_plugin_fail(error, TESS_E_SYSTEM, "no threads");
    world.pools++;
    *out = (tess__pool *)&world;
    return TESS_OK;
}
static void fake_pool_destroy(tess__pool *pool) {
    world.pools -= pool != NULL;
}
static tess_status fake_kernel(const tess_kernel *k, tess__pool *pool, tess_error *error) {
    (void)error;
    assert_ptr_equal(pool, &world);
    say("kernel %u of %d; ", k->kernel, (int)k->elems);
    return TESS_OK;
}
static int64_t fake_sysconf(int name) {
    return name == _SC_PAGESIZE ? PAGE : name == _SC_AVPHYS_PAGES ? 300 : name == _SC_PHYS_PAGES ? 1000 : -1;
}
static int fake_clock(int which, struct timespec *t) {
    assert_int_equal(which, CLOCK_MONOTONIC);
    *t = world.now;
    return 0;
}
#define mmap(at, bytes, protection, flags, fd, offset) fake_mmap(at, bytes, protection, flags, fd, offset)
#define munmap fake_munmap
#define madvise fake_madvise
#define mlock fake_mlock
#define getrlimit fake_limit
#define sysconf fake_sysconf
#define clock_gettime fake_clock
#define tess__numa_bind fake_bind
#define tess__pool_create fake_pool
#define tess__pool_destroy fake_pool_destroy
#define tess__kernel_run fake_kernel
#include "core/builtin/device_cpu.c"

/* ---- the tests --------------------------------------------------------------------------------- */

static void log_line(void *host, int32_t level, const char *plugin, const char *message) {
    assert_true(host == &world && level == 1);
    world.warnings++;
    snprintf(world.line, sizeof world.line, "%s: %s", plugin, message);
}
static const char *option(void *host, const char *key) {
    assert_ptr_equal(host, &world);
    return strcmp(key, "threads") ? NULL : world.text;
}
static tess_host host = { .struct_size = sizeof host, .host = &world, .option = option };
static const tess_device_ops *device_ops;
static void *device_ctx;
static tess_device *device;
static tess_error error;

static int begin(void **state) {
    const void *table;
    (void)state;
    memset(&world, 0, sizeof world);
    memset(&counted, 0, sizeof counted);
    said_so_far[0] = 0;
    host.log = log_line;
    error = (tess_error){ .struct_size = sizeof error };
    assert_int_equal(tess__device_cpu_open(&host, &table, &device_ctx, &error), TESS_OK);
    device_ops = table;
    assert_int_equal(device_ops->create(device_ctx, 0, 0, &device, &error), TESS_OK);
    return 0;
}

static int end(void **state) {
    (void)state;
    device_ops->destroy(device);
    device_ops->destroy(NULL);
    device_ops->close(device_ctx);
    for (int p = 0; p < PAGES; p++)
        assert_int_equal(world.page[p], 0);
    assert_int_equal(world.pools, 0);
    assert_int_equal(counted.live, 0);
    return 0;
}

static tess_alloc_request request(uint64_t bytes, uint64_t align) {
    return (tess_alloc_request){
        .struct_size = sizeof(tess_alloc_request), .mem = TESS_MEM_HOST, .numa_node = -1, .bytes = bytes, .align = align
    };
}

static tess_status take(const tess_alloc_request *r, tess_buffer *out) {
    *out = (tess_buffer){ .struct_size = sizeof *out };
    return device_ops->mem_alloc(device, r, out, &error);
}

static int pages_in_use(void) {
    int n = 0;
    for (int p = 0; p < PAGES; p++)
        n += world.page[p] != 0;
    return n;
}

/* Wherever the system puts it: whole pages at the alignment, and no more than these. */
static void test_device_calls__mappings_are_trimmed_to_what_was_asked_for(void **state) {
    (void)state;
    static const uint64_t sizes[] = { 1, PAGE, 2 * PAGE + 1, HUGE - 1, HUGE - PAGE, HUGE, HUGE + 1 };
    for (uint64_t align = 0; align <= 8 << 20; align = align ? align * 4 : 1)
        for (int s = 0; s < 7; s++)
            for (uint64_t at = 0; at < 2048; at += at < 4 ? 1 : 211) {
                const uint64_t whole = (sizes[s] + PAGE - 1) / PAGE * PAGE;
                const tess_alloc_request r = request(sizes[s], align);
                const uint64_t least = align > PAGE ? align : whole >= HUGE ? HUGE : PAGE;
                tess_buffer b;
                world.next = at;
                said_so_far[0] = 0;
                assert_int_equal(take(&r, &b), TESS_OK);
                assert_true(b.bytes == whole && b.mem == TESS_MEM_HOST && (uintptr_t)b.ptr % least == 0);
                assert_int_equal(pages_in_use(), whole / PAGE);
                for (uint64_t p = ((uintptr_t)b.ptr - BASE) / PAGE, k = 0; k < whole / PAGE; k++)
                    assert_int_equal(world.page[p + k], READY);
                assert_int_equal(said_so_far[0] != 0, whole >= HUGE);
                device_ops->mem_free(device, &b);
                assert_true(!b.ptr && !b.bytes && pages_in_use() == 0);
            }
}

static void refused(const tess_alloc_request *r, tess_status status, const char *message) {
    tess_buffer b;
    const int pages = pages_in_use(), live = counted.live;
    error.message[0] = 0;
    assert_int_equal(take(r, &b), status);
    assert_null(b.ptr);
    assert_string_equal(error.message, message);
    assert_int_equal(pages_in_use(), pages);
    assert_int_equal(counted.live, live);
}

static void test_device_calls__requests_that_are_none_are_refused(void **state) {
    (void)state;
    tess_alloc_request r = request(0, 0);
    refused(&r, TESS_E_INVALID, "device cpu: 0 bytes asked for");
    r = request((UINT64_C(1) << 56) + 1, 0);
    refused(&r, TESS_E_INVALID, "device cpu: 72057594037927937 bytes asked for");
    r = request(UINT64_C(1) << 56, 0);
    refused(&r, TESS_E_NOMEM, "device cpu: the system refuses 72057594037927936 bytes: Cannot allocate memory");
    r = request(1, 3);
    refused(&r, TESS_E_INVALID, "device cpu: alignment 3 is not a power of two up to 1 GiB");
    r = request(1, UINT64_C(1) << 31);
    refused(&r, TESS_E_INVALID, "device cpu: alignment 2147483648 is not a power of two up to 1 GiB");
    r = request(1, UINT64_C(1) << 30);
    refused(&r, TESS_E_NOMEM, "device cpu: the system refuses 4096 bytes: Cannot allocate memory");
    r = request(1, 0), r.domain = 3;
    refused(&r, TESS_E_INVALID, "device cpu: domain 3, category 0 are unknown");
    r = request(1, 0), r.category = 16;
    refused(&r, TESS_E_INVALID, "device cpu: domain 0, category 16 are unknown");
    for (uint32_t mem = 0; mem < 6; mem++) {
        char want[96];
        r = request(1, 0), r.mem = mem;
        snprintf(want, sizeof want, "device cpu has host and pinned memory, not memory kind %u", mem);
        if (mem != TESS_MEM_HOST && mem != TESS_MEM_PINNED)
            refused(&r, TESS_E_UNSUPPORTED, want);
    }
    r = request(1, 0), r.domain = 2, r.category = 15;
    tess_buffer b;
    assert_int_equal(take(&r, &b), TESS_OK); /* which destroy finds */
}

static void test_device_calls__what_fails_leaves_no_page(void **state) {
    (void)state;
    tess_alloc_request r = request(HUGE, 0);
    world.next = 3;
    world.no_pages = 1;
    refused(&r, TESS_E_NOMEM, "device cpu: the system refuses 2097152 bytes: Cannot allocate memory");
    world.no_room = 1;
    refused(&r, TESS_E_NOMEM, "device cpu: the system refuses 2097152 bytes: Cannot allocate memory");
    world.no_room = world.no_pages = 0;
    counted.refuse = 1;
    refused(&r, TESS_E_NOMEM, "device cpu: no memory for its own tables");
    r.mem = TESS_MEM_PINNED;
    world.no_lock = 1;
    refused(&r, TESS_E_NOMEM,
            "device cpu: cannot lock 2097152 bytes in memory: Operation not permitted (raise ulimit -l)");
    uint64_t now, peak;
    tess__device_cpu_obtained(device, TESS_DOMAIN_DEVICE, &now, &peak);
    assert_true(now == 0 && peak == 0);
}

static void test_device_calls__memory_is_bound_then_locked(void **state) {
    (void)state;
    tess_alloc_request r = request(2 * PAGE, 0);
    tess_buffer b[6];
    r.numa_node = 0;
    assert_int_equal(take(&r, &b[0]), TESS_OK);
    expect_said("bind 2 to 0; ");
    world.next = 100;
    r.mem = TESS_MEM_PINNED, r.numa_node = 3;
    assert_int_equal(take(&r, &b[1]), TESS_OK);
    expect_said("bind 2 to 3; lock 2; ");
    assert_int_equal(b[1].mem, TESS_MEM_PINNED);
    world.no_lock = 1;
    r.flags = TESS_ALLOC_MAY_UNPIN, r.numa_node = -1;
    host.log = NULL; /* nobody to say it to */
    world.next = 200;
    assert_int_equal(take(&r, &b[2]), TESS_OK);
    host.log = log_line;
    for (int i = 3; i < 5; i++) {
        world.next = (uint64_t)i * 100;
        assert_int_equal(take(&r, &b[i]), TESS_OK);
        assert_int_equal(b[i].mem, TESS_MEM_HOST);
        assert_int_equal(world.warnings, 1); /* once */
    }
    assert_string_equal(world.line, "device cpu: cannot lock 8192 bytes in memory (Operation not permitted; "
                                    "RLIMIT_MEMLOCK is 65536): going on with pageable memory");
    expect_said("lock 2; lock 2; lock 2; ");
    const cpu_context bare = { NULL, 1 };
    const cpu_context *before = device->ctx;
    device->ctx = &bare;
    device->warned_unpinned = 0;
    world.next = 600;
    assert_int_equal(take(&r, &b[5]), TESS_OK);
    device->ctx = before;
    assert_int_equal(world.warnings, 1);
}

static void test_device_calls__a_capacity_is_of_the_devices_domain(void **state) {
    (void)state;
    tess_buffer a, b, c;
    uint64_t backend = 9, left;
    assert_int_equal(device_ops->mem_usage(device, &backend, &left), TESS_OK);
    assert_true(backend == 0 && left == 300 * PAGE); /* of the machine */
    device->capacity_bytes = 5 * PAGE;
    tess_alloc_request r = request(3 * PAGE, 0);
    assert_int_equal(take(&r, &a), TESS_OK);
    assert_int_equal(device_ops->mem_usage(device, &backend, &left), TESS_OK);
    assert_true(left == 2 * PAGE);
    refused(&r, TESS_E_NOMEM, "device cpu: 12288 bytes needed, 8192 of its 20480 free");
    world.next = 50, r.domain = TESS_DOMAIN_HOST;
    assert_int_equal(take(&r, &b), TESS_OK);
    world.next = 80, r.domain = TESS_DOMAIN_DEVICE, r.bytes = 2 * PAGE;
    assert_int_equal(take(&r, &c), TESS_OK);
    assert_int_equal(device_ops->mem_usage(device, &backend, &left), TESS_OK);
    assert_true(left == 0);
    device->capacity_bytes = PAGE; /* less than is taken */
    assert_int_equal(device_ops->mem_usage(device, &backend, &left), TESS_OK);
    assert_true(left == 0);
    r.bytes = 1;
    refused(&r, TESS_E_NOMEM, "device cpu: 4096 bytes needed, 0 of its 4096 free");
    uint64_t now, peak;
    device_ops->mem_free(device, &a);
    tess__device_cpu_obtained(device, TESS_DOMAIN_DEVICE, &now, &peak);
    assert_true(now == 2 * PAGE && peak == 5 * PAGE);
    tess__device_cpu_obtained(device, TESS_DOMAIN_HOST, &now, &peak);
    assert_true(now == 3 * PAGE && peak == 3 * PAGE);
}

/* In any order; what it does not know it leaves. */
static void test_device_calls__each_is_freed_alone(void **state) {
    (void)state;
    static const int orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
    const tess_alloc_request r = request(PAGE, 0);
    for (int o = 0; o < 6; o++) {
        tess_buffer b[3], other = { .struct_size = sizeof other, .ptr = &world, .bytes = 7 }, none = { .ptr = NULL };
        for (uint64_t i = 0; i < 3; i++) {
            world.next = i;
            assert_int_equal(take(&r, &b[i]), TESS_OK);
        }
        for (int i = 0; i < 3; i++) {
            device_ops->mem_free(device, &b[orders[o][i]]);
            assert_int_equal(world.page[orders[o][i]], 0);
            assert_int_equal(pages_in_use(), 2 - i);
            device_ops->mem_free(device, &other);
            assert_true(!other.ptr && !other.bytes);
            other.ptr = &world;
            device_ops->mem_free(device, &none);
            device_ops->mem_free(device, NULL);
            assert_int_equal(pages_in_use(), 2 - i);
        }
    }
}

static void test_device_calls__without_threads_or_memory_there_is_no_device(void **state) {
    (void)state;
    tess_device *none = (void *)&world;
    const void *table = &world;
    void *ctx = &world;
    const int live = counted.live;
    world.no_threads = 1;
    assert_int_equal(device_ops->create(device_ctx, 0, 0, &none, &error), TESS_E_SYSTEM);
    assert_string_equal(error.message, "no threads");
    counted.refuse = 1;
    assert_int_equal(device_ops->create(device_ctx, 0, 0, &none, &error), TESS_E_NOMEM);
    assert_string_equal(error.message, "device cpu: no memory for its own tables");
    assert_int_equal(device_ops->create(device_ctx, 1, 0, &none, &error), TESS_E_INVALID);
    assert_string_equal(error.message, "device cpu has no index 1, expected 0");
    assert_int_equal(device_ops->create(device_ctx, -1, 0, &none, &error), TESS_E_INVALID);
    counted.refuse = 1;
    assert_int_equal(tess__device_cpu_open(&host, &table, &ctx, &error), TESS_E_NOMEM);
    assert_string_equal(error.message, "device cpu: no memory to open");
    assert_true(none == (void *)&world && table == &world && ctx == &world && counted.live == live);
    tess_event *event = (void *)&world;
    counted.refuse = 1;
    assert_int_equal(device_ops->event_create(device, &event, &error), TESS_E_NOMEM);
    assert_string_equal(error.message, "device cpu: no memory for an event");
    assert_ptr_equal(event, &world);
}

static void test_device_calls__threads_are_those_of_the_option_up_to_256(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int threads;
    } cases[] = { { NULL, 1 },    { "", 1 },      { "1", 1 },     { "7", 7 },
                  { "255", 255 }, { "256", 256 }, { "257", 256 }, { "99999", 256 } };
    world.no_threads = 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const void *table;
        void *ctx;
        tess_device *none;
        world.text = cases[i].text;
        assert_int_equal(tess__device_cpu_open(&host, &table, &ctx, &error), TESS_OK);
        assert_int_equal(device_ops->create(ctx, 0, 0, &none, &error), TESS_E_SYSTEM);
        assert_int_equal(world.threads, cases[i].threads);
        device_ops->close(ctx);
    }
    const tess_host bare = { .struct_size = sizeof bare };
    const void *table;
    void *ctx;
    assert_int_equal(tess__device_cpu_open(&bare, &table, &ctx, &error), TESS_OK);
    device_ops->close(ctx);
    assert_int_equal(tess__device_cpu_open(NULL, &table, &ctx, &error), TESS_OK);
    device_ops->close(ctx);
}

static void test_device_calls__events_lie_apart_as_the_clock_says(void **state) {
    (void)state;
    static const struct timespec from[] = { { 5, 10 }, { 5, 999999999 }, { 7, 3 } };
    static const struct timespec to[] = { { 5, 30 }, { 6, 0 }, { 9, 1 } };
    static const int64_t ns[] = { 20, 1, 1999999998 };
    tess_event *a, *b;
    int64_t got = -7;
    assert_int_equal(device_ops->event_create(device, &a, &error), TESS_OK);
    assert_int_equal(device_ops->event_create(device, &b, &error), TESS_OK);
    assert_int_equal(device_ops->event_record(a, NULL, &error), TESS_OK);
    assert_int_equal(device_ops->event_elapsed_ns(a, b, &got), TESS_PENDING);
    assert_int_equal(device_ops->event_elapsed_ns(b, a, &got), TESS_PENDING);
    assert_int_equal(got, -7);
    for (int i = 0; i < 3; i++) {
        world.now = from[i];
        assert_int_equal(device_ops->event_record(a, NULL, &error), TESS_OK);
        world.now = to[i];
        assert_int_equal(device_ops->event_record(b, NULL, &error), TESS_OK);
        assert_int_equal(device_ops->event_elapsed_ns(a, b, &got), TESS_OK);
        assert_true(got == ns[i]);
    }
    assert_int_equal(device_ops->event_stream_wait(a, NULL, &error), TESS_OK);
    assert_int_equal(device_ops->event_wait(a, 0, &error), TESS_OK);
    device_ops->event_destroy(a);
    device_ops->event_destroy(b);
}

static void test_device_calls__work_is_kernels_on_its_threads(void **state) {
    (void)state;
    char a[8] = "aaaaaaa", b[8] = "bbbbbbb", want[96];
    const tess_kernel scale = { .struct_size = sizeof scale, .kernel = TESS_K_SCALE, .elems = 3 };
    tess_stream s;
    tess_device_info info = { .struct_size = sizeof info };
    for (uint32_t to = 0; to < 6; to++)
        for (uint32_t from = 0; from < 6; from++) {
            const int fine = to && from && to < 5 && from < 5 && to != TESS_MEM_CUDA && from != TESS_MEM_CUDA;
            said_so_far[0] = 0;
            const tess_status status = device_ops->copy(device, a, to, b, from, 5, &s, &error);
            assert_int_equal(status, fine ? TESS_OK : TESS_E_UNSUPPORTED);
            snprintf(want, sizeof want, "device cpu cannot copy from memory kind %u to kind %u", from, to);
            if (!fine)
                assert_string_equal(error.message, want);
            expect_said(fine ? "kernel 1 of 5; " : "");
        }
    assert_int_equal(device_ops->copy(device, a, TESS_MEM_HOST, b, TESS_MEM_HOST, 0, &s, &error), TESS_OK);
    assert_int_equal(device_ops->copy(device, a, TESS_MEM_HOST, a, TESS_MEM_HOST, 5, &s, &error), TESS_OK);
    expect_said("");
    assert_int_equal(device_ops->kernel(device, &scale, &s, &error), TESS_OK);
    expect_said("kernel 3 of 3; ");
    assert_int_equal(device_ops->fill(device, a, 'x', 3, &s, &error), TESS_OK);
    assert_int_equal(device_ops->fill(device, NULL, 'x', 0, &s, &error), TESS_OK);
    assert_string_equal(a, "xxxaaaa");
    s.mem = 99;
    assert_int_equal(device_ops->stream_create(device, TESS_STREAM_UP, &s, &error), TESS_OK);
    assert_int_equal(s.mem, TESS_MEM_HOST);
    s.mem = 99;
    assert_int_equal(device_ops->stream_import(device, a, &s, &error), TESS_E_INVALID);
    assert_int_equal(s.mem, 99);
    assert_int_equal(device_ops->stream_import(device, NULL, &s, &error), TESS_OK);
    assert_int_equal(s.mem, TESS_MEM_HOST);
    assert_int_equal(device_ops->describe(device_ctx, 0, &info, &error), TESS_OK);
    assert_int_equal(info.capacity_bytes, 1000 * PAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_device_calls__mappings_are_trimmed_to_what_was_asked_for, begin, end),
        cmocka_unit_test_setup_teardown(test_device_calls__requests_that_are_none_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_device_calls__what_fails_leaves_no_page, begin, end),
        cmocka_unit_test_setup_teardown(test_device_calls__memory_is_bound_then_locked, begin, end),
        cmocka_unit_test_setup_teardown(test_device_calls__a_capacity_is_of_the_devices_domain, begin, end),
        cmocka_unit_test_setup_teardown(test_device_calls__each_is_freed_alone, begin, end),
        cmocka_unit_test_setup_teardown(test_device_calls__without_threads_or_memory_there_is_no_device, begin, end),
        cmocka_unit_test_setup_teardown(test_device_calls__threads_are_those_of_the_option_up_to_256, begin, end),
        cmocka_unit_test_setup_teardown(test_device_calls__events_lie_apart_as_the_clock_says, begin, end),
        cmocka_unit_test_setup_teardown(test_device_calls__work_is_kernels_on_its_threads, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

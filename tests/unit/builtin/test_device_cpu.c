/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/unit/kernels/kernel_fixture.h"
#include "core/builtin/device_cpu.h"
#include <sys/resource.h>
#include <unistd.h>

typedef struct {
    const tess_device_ops *ops;
    void *ctx;
    tess_device *device;
    int warnings;
    char line[256];
    const char *threads;
} fixture;
static fixture f;

static void log_line(void *host, int32_t level, const char *plugin, const char *message) {
    (void)host;
    f.warnings += level == 1;
    snprintf(f.line, sizeof f.line, "%s: %s", plugin, message);
}
static const char *option(void *host, const char *key) {
    (void)host;
    return strcmp(key, "threads") == 0 ? f.threads : NULL;
}
static const tess_host host = { .struct_size = sizeof host, .log = log_line, .option = option, .args = "" };

static void open_device(uint64_t capacity_bytes) {
    const void *ops;
    memset(&f, 0, sizeof f);
    assert_int_equal(tess__device_cpu_open(&host, &ops, &f.ctx, NULL), TESS_OK);
    f.ops = ops;
    assert_int_equal(f.ops->create(f.ctx, 0, capacity_bytes, &f.device, NULL), TESS_OK);
}
static void close_device(void) {
    f.ops->destroy(f.device);
    f.ops->close(f.ctx);
}

static tess_status allocate(uint32_t mem, uint32_t domain, uint32_t category, uint64_t bytes, uint64_t align,
                            tess_buffer *out, tess_error *error) {
    tess_alloc_request request = { .struct_size = sizeof request,
                                   .mem = mem,
                                   .domain = domain,
                                   .category = category,
                                   .numa_node = -1,
                                   .bytes = bytes,
                                   .align = align };
    *out = (tess_buffer){ .struct_size = sizeof *out };
    *error = (tess_error){ .struct_size = sizeof *error };
    return f.ops->mem_alloc(f.device, &request, out, error);
}

static void test_device_cpu__memory_is_counted_by_domain_and_category(void **state) {
    (void)state;
    tess_buffer a, b, c;
    tess_error error;
    uint64_t now, peak;
    open_device(0);
    assert_int_equal(allocate(TESS_MEM_HOST, TESS_DOMAIN_DEVICE, TESS_CAT_OPTIMIZER, 5000, 0, &a, &error), TESS_OK);
    assert_int_equal(allocate(TESS_MEM_HOST, TESS_DOMAIN_DEVICE, TESS_CAT_COMM, 4096, 64, &b, &error), TESS_OK);
    assert_int_equal(allocate(TESS_MEM_HOST, TESS_DOMAIN_HOST, TESS_CAT_COMM, 1, 0, &c, &error), TESS_OK);
    assert_true(a.bytes == 8192 && a.mem == TESS_MEM_HOST && a.struct_size == sizeof a);
    tess__device_cpu_obtained(f.device, TESS_DOMAIN_DEVICE, &now, &peak);
    assert_true(now == 8192 + 4096 && peak == now);
    f.ops->mem_free(f.device, &a);
    assert_null(a.ptr);
    tess__device_cpu_obtained(f.device, TESS_DOMAIN_DEVICE, &now, &peak);
    assert_true(now == 4096 && peak == 8192 + 4096);

    tess__device_cpu_obtained(f.device, TESS_DOMAIN_HOST, &now, &peak);
    assert_true(now == 4096 && peak == 4096);
    f.ops->mem_free(f.device, &b); /* c is left to destroy */
    close_device();
}

static void test_device_cpu__beyond_capacity_is_refused_with_needed_and_free(void **state) {
    (void)state;
    tess_buffer a, b;
    tess_error error;
    uint64_t now, peak, backend, left;
    open_device(40960);
    assert_int_equal(allocate(TESS_MEM_HOST, TESS_DOMAIN_DEVICE, 1, 20000, 0, &a, &error), TESS_OK);
    assert_int_equal(allocate(TESS_MEM_HOST, TESS_DOMAIN_DEVICE, 1, 20481, 0, &b, &error), TESS_E_NOMEM);
    assert_string_equal(error.message, "device cpu: 24576 bytes needed, 20480 of its 40960 free");
    assert_int_equal(error.code, TESS_E_NOMEM);
    assert_int_equal(error.rank, -1);
    assert_null(b.ptr);
    tess__device_cpu_obtained(f.device, TESS_DOMAIN_DEVICE, &now, &peak);
    assert_true(now == 20480 && peak == 20480);
    assert_int_equal(f.ops->mem_usage(f.device, &backend, &left), TESS_OK);
    assert_true(backend == 0 && left == 20480);
    assert_int_equal(allocate(TESS_MEM_HOST, TESS_DOMAIN_HOST, 1, 1 << 20, 0, &b, &error),
                     TESS_OK); /* another domain */
    assert_int_equal(allocate(TESS_MEM_HOST, TESS_DOMAIN_DEVICE, 1, 20480, 0, &b, &error), TESS_OK);
    close_device();
}

static void test_device_cpu__alignment_is_met_and_costs_nothing(void **state) {
    (void)state;
    tess_buffer b;
    tess_error error;
    uint64_t now, peak;
    for (uint64_t align = 1; align <= 4 << 20; align *= 2) {
        open_device(0);
        assert_int_equal(allocate(TESS_MEM_HOST, TESS_DOMAIN_DEVICE, 1, 3 << 20, align, &b, &error), TESS_OK);
        assert_true((uintptr_t)b.ptr % align == 0);
        memset(b.ptr, 1, 3 << 20);
        tess__device_cpu_obtained(f.device, TESS_DOMAIN_DEVICE, &now, &peak);
        assert_true(now == 3 << 20);
        close_device();
    }
}

static void test_device_cpu__bad_requests_are_refused(void **state) {
    (void)state;
    tess_buffer b;
    tess_error error;
    open_device(0);
    assert_int_equal(allocate(TESS_MEM_CUDA, 1, 1, 64, 0, &b, &error), TESS_E_UNSUPPORTED);
    assert_int_equal(allocate(TESS_MEM_HOST, 1, 1, 0, 0, &b, &error), TESS_E_INVALID);
    assert_int_equal(allocate(TESS_MEM_HOST, 1, 1, UINT64_MAX, 0, &b, &error), TESS_E_INVALID);
    assert_int_equal(allocate(TESS_MEM_HOST, 1, 1, 64, 48, &b, &error), TESS_E_INVALID);
    assert_int_equal(allocate(TESS_MEM_HOST, 3, 1, 64, 0, &b, &error), TESS_E_INVALID);
    assert_int_equal(allocate(TESS_MEM_HOST, 1, 16, 64, 0, &b, &error), TESS_E_INVALID);
    assert_int_equal(allocate(TESS_MEM_HOST, 1, 1, (uint64_t)1 << 55, 0, &b, &error), TESS_E_NOMEM);
    tess_buffer stranger = { .struct_size = sizeof stranger, .ptr = &error };
    f.ops->mem_free(f.device, &stranger); /* not ours: nothing is unmapped */
    close_device();
}

/* The limit on locked memory holds for root only without CAP_IPC_LOCK, so the outcome is asked of mlock itself. */
static void test_device_cpu__pinning_refused_is_an_error_or_said_so(void **state) {
    (void)state;
    struct rlimit old, none = { 0, 0 };
    tess_buffer b;
    tess_error error;
#if defined(TESSERA_SANITIZED)
    print_message("the sanitizer's mlock does nothing: refusal not tested\n");
    skip();
#endif
    open_device(0);
    assert_int_equal(allocate(TESS_MEM_PINNED, TESS_DOMAIN_HOST, 1, 4096, 0, &b, &error), TESS_OK);
    assert_int_equal(b.mem, TESS_MEM_PINNED);
    getrlimit(RLIMIT_MEMLOCK, &old);
    none.rlim_max = old.rlim_max;
    uid_t was = geteuid();
    if (setrlimit(RLIMIT_MEMLOCK, &none) || (was == 0 && seteuid(65534))) {
        print_message("cannot give up the right to lock memory here: refusal not tested\n");
        close_device();
        skip();
    }
    tess_status strict = allocate(TESS_MEM_PINNED, TESS_DOMAIN_HOST, 1, 8192, 0, &b, &error);
    tess_alloc_request request = { .struct_size = sizeof request,
                                   .mem = TESS_MEM_PINNED,
                                   .flags = TESS_ALLOC_MAY_UNPIN,
                                   .domain = TESS_DOMAIN_HOST,
                                   .numa_node = -1,
                                   .bytes = 8192 };
    tess_buffer loose = { .struct_size = sizeof loose }, again = { .struct_size = sizeof again };
    tess_status first = f.ops->mem_alloc(f.device, &request, &loose, &error);
    tess_status second = f.ops->mem_alloc(f.device, &request, &again, &error);
    if (was == 0)
        assert_int_equal(seteuid(0), 0);
    setrlimit(RLIMIT_MEMLOCK, &old);
    assert_int_equal(strict, TESS_E_NOMEM);
    assert_true(first == TESS_OK && second == TESS_OK);
    assert_int_equal(loose.mem, TESS_MEM_HOST);
    assert_int_equal(f.warnings, 1); /* once */
    assert_non_null(strstr(f.line, "cannot lock 8192 bytes in memory"));
    close_device();
}

static uint32_t mask_of(const uint32_t *bits, int n) {
    uint32_t mask = 0;
    for (int i = 0; i < n; i++)
        mask |= (uint32_t)1 << bits[i];
    return mask;
}

static void test_device_cpu__description_for_plans_says_nothing_of_this_machine(void **state) {
    (void)state;
    tess_device_info plan, real;
    tess_error error = { .struct_size = sizeof error };
    memset(&plan, 0xff, sizeof plan);
    plan.struct_size = real.struct_size = sizeof plan;
    open_device(0);
    assert_int_equal(f.ops->describe(f.ctx, -1, &plan, &error), TESS_OK);
    assert_int_equal(f.ops->describe(f.ctx, 0, &real, &error), TESS_OK);
    assert_true(plan.capacity_bytes == 0 && real.capacity_bytes > 0);
    assert_true(plan.granularity_bytes == 4096 && plan.mem == TESS_MEM_HOST && plan.align == 64);
    assert_true(plan.struct_size == sizeof plan && plan.numa_node == -1);
    static const uint32_t dtypes[] = { TESS_U8,   TESS_I8,  TESS_I32, TESS_I64, TESS_F16,
                                       TESS_BF16, TESS_F32, TESS_F64, TESS_Q8,  TESS_Q8E4M3 };
    static const uint32_t kernels[] = { TESS_K_CAST, TESS_K_TREE_SUM, TESS_K_SCALE, TESS_K_SQUARE_SUM,
                                        TESS_K_OPTIMIZER };
    assert_true(plan.dtype_mask == mask_of(dtypes, 10) && plan.kernel_mask == mask_of(kernels, 5));
    assert_true(plan.mem_mask == ((uint32_t)1 << TESS_MEM_HOST | (uint32_t)1 << TESS_MEM_PINNED));
    assert_string_equal(plan.name, "cpu");
    assert_string_equal(plan.id, "cpu");
    assert_int_equal(f.ops->describe(f.ctx, -2, &real, &error), TESS_E_INVALID);
    assert_int_equal(f.ops->describe(f.ctx, 1, &real, &error), TESS_E_INVALID);
    assert_string_equal(error.message, "device cpu has no index 1, expected 0");
    close_device();
}

static void test_device_cpu__threads_come_from_the_option(void **state) {
    (void)state;
    const void *ops;
    void *ctx;
    tess_error error = { .struct_size = sizeof error };
    static const char *const bad[] = { "0", "-1", "two", "3x", "4 4" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        f.threads = bad[i];
        assert_int_equal(tess__device_cpu_open(&host, &ops, &ctx, &error), TESS_E_INVALID);
    }
    assert_string_equal(error.message, "TESSERA_THREADS is \"4 4\", expected a number from 1 up");
    f.threads = "2";
    assert_int_equal(tess__device_cpu_open(&host, &ops, &ctx, &error), TESS_OK);
    ((const tess_device_ops *)ops)->close(ctx);
    f.threads = NULL;
}

static void test_device_cpu__copies_only_plain_memory(void **state) {
    (void)state;
    char a[100], b[100];
    tess_error error = { .struct_size = sizeof error };
    tess_stream stream;
    open_device(0);
    assert_int_equal(f.ops->stream_create(f.device, TESS_STREAM_UP, &stream, NULL), TESS_OK);
    memset(a, 7, sizeof a);
    memset(b, 0, sizeof b);
    assert_int_equal(f.ops->copy(f.device, b, TESS_MEM_HOST, a, TESS_MEM_PINNED, 99, &stream, &error), TESS_OK);
    assert_true(b[98] == 7 && b[99] == 0);
    assert_int_equal(f.ops->copy(f.device, b, TESS_MEM_CUDA, a, TESS_MEM_HOST, 1, &stream, &error), TESS_E_UNSUPPORTED);
    assert_int_equal(f.ops->copy(f.device, b, TESS_MEM_HOST, a, TESS_MEM_CUDA, 1, &stream, &error), TESS_E_UNSUPPORTED);
    assert_int_equal(f.ops->copy(f.device, NULL, TESS_MEM_HOST, NULL, TESS_MEM_SHM, 0, &stream, &error), TESS_OK);
    assert_int_equal(f.ops->copy(f.device, b, TESS_MEM_HOST, b, TESS_MEM_HOST, 99, &stream, &error), TESS_OK);
    assert_int_equal(f.ops->fill(f.device, b, 0xab, 50, &stream, &error), TESS_OK);
    assert_true((uint8_t)b[49] == 0xab && b[50] == 7);
    assert_int_equal(f.ops->stream_import(f.device, a, &stream, &error), TESS_E_INVALID);
    f.ops->stream_destroy(f.device, &stream);
    close_device();
}

static void test_device_cpu__events_measure_time(void **state) {
    (void)state;
    tess_event *a, *b;
    tess_stream stream;
    int64_t ns = -1;
    open_device(0);
    f.ops->stream_create(f.device, TESS_STREAM_COMPUTE, &stream, NULL);
    assert_int_equal(f.ops->event_create(f.device, &a, NULL), TESS_OK);
    assert_int_equal(f.ops->event_create(f.device, &b, NULL), TESS_OK);
    assert_int_equal(f.ops->event_elapsed_ns(a, b, &ns), TESS_PENDING); /* not recorded */
    assert_int_equal(f.ops->event_record(a, &stream, NULL), TESS_OK);
    usleep(2000);
    assert_int_equal(f.ops->event_record(b, &stream, NULL), TESS_OK);
    assert_int_equal(f.ops->event_stream_wait(b, &stream, NULL), TESS_OK);
    assert_int_equal(f.ops->event_wait(b, 0, NULL), TESS_OK);
    assert_int_equal(f.ops->event_elapsed_ns(a, b, &ns), TESS_OK);
    assert_true(ns >= 2000000);
    f.ops->event_destroy(a);
    f.ops->event_destroy(b);
    close_device();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_cpu__memory_is_counted_by_domain_and_category),
        cmocka_unit_test(test_device_cpu__beyond_capacity_is_refused_with_needed_and_free),
        cmocka_unit_test(test_device_cpu__alignment_is_met_and_costs_nothing),
        cmocka_unit_test(test_device_cpu__bad_requests_are_refused),
        cmocka_unit_test(test_device_cpu__pinning_refused_is_an_error_or_said_so),
        cmocka_unit_test(test_device_cpu__description_for_plans_says_nothing_of_this_machine),
        cmocka_unit_test(test_device_cpu__threads_come_from_the_option),
        cmocka_unit_test(test_device_cpu__copies_only_plain_memory),
        cmocka_unit_test(test_device_cpu__events_measure_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

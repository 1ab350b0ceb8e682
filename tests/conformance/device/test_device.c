/* test_device NAME: runs the suite on a device, "cpu" or what the loader finds. A name's part behind '-' only tells
 * CTest's tests apart. Exits with 77 when the device cannot be used on this machine. */
#include "device_suite.h"
#include "loader.h"

device_under_test dut;

void check(tess_status status, const char *what) {
    if (status != TESS_OK)
        fail_msg("%s: status %d: %s", what, status, dut.error.message);
}

uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

float random_float(uint64_t *state) {
    float unit = (float)(int32_t)(next_random(state) >> 32) * 0x1p-31f;
    for (uint64_t halvings = next_random(state) % 24; halvings > 0; halvings--)
        unit *= 0.5f;
    return unit * 64;
}

tess_buffer upload(const void *data, uint64_t bytes) {
    tess_alloc_request request = { .struct_size = sizeof request,
                                   .mem = dut.info.mem,
                                   .domain = TESS_DOMAIN_DEVICE,
                                   .category = TESS_CAT_TEMPORARY,
                                   .numa_node = -1,
                                   .bytes = bytes,
                                   .align = 64 };
    tess_buffer buffer = { .struct_size = sizeof buffer };
    check(dut.ops->mem_alloc(dut.device, &request, &buffer, &dut.error), "mem_alloc");
    if (data) {
        check(dut.ops->copy(dut.device, buffer.ptr, buffer.mem, data, TESS_MEM_HOST, bytes, &dut.stream, &dut.error),
              "copy up");
        drain(&dut.stream);
    }
    return buffer;
}

void download(const tess_buffer *buffer, void *data, uint64_t bytes) {
    check(dut.ops->copy(dut.device, data, TESS_MEM_HOST, buffer->ptr, buffer->mem, bytes, &dut.stream, &dut.error),
          "copy down");
    drain(&dut.stream);
}

void release(tess_buffer *buffer) {
    dut.ops->mem_free(dut.device, buffer);
}

void drain(const tess_stream *stream) {
    tess_event *event = NULL;
    if (!TESS_CAN(tess_device_ops, dut.ops, event_create))
        return;
    check(dut.ops->event_create(dut.device, &event, &dut.error), "event_create");
    check(dut.ops->event_record(event, stream, &dut.error), "event_record");
    check(dut.ops->event_wait(event, 60 * (int64_t)1000000000, &dut.error), "event_wait");
    dut.ops->event_destroy(event);
}

static int open_device(const char *name, tess__plugin **plugin) {
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(name, "-"), name);
    dut.error.struct_size = sizeof dut.error;
    dut.info.struct_size = sizeof dut.info;
    if (tess__plugin_open(TESS_KIND_DEVICE, word, NULL, plugin) != TESS_OK) {
        print_message("skipped: %s\n", tess_last_error());
        return 77;
    }
    dut.ops = (*plugin)->ops;
    dut.ctx = (*plugin)->ctx;
    if (dut.ops->describe(dut.ctx, 0, &dut.info, &dut.error) < 0 ||
        dut.ops->create(dut.ctx, 0, 0, &dut.device, &dut.error) < 0) {
        print_message("skipped: no such device here: %s\n", dut.error.message);
        return 77;
    }
    if (TESS_CAN(tess_device_ops, dut.ops, stream_create))
        check(dut.ops->stream_create(dut.device, TESS_STREAM_COMPUTE, &dut.stream, &dut.error), "stream_create");
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device__description_is_complete_and_pure),
        cmocka_unit_test(test_device__memory_is_aligned_and_rounded_up),
        cmocka_unit_test(test_device__beyond_capacity_is_refused_and_harmless),
        cmocka_unit_test(test_device__copies_keep_bytes_between_all_kinds),
        cmocka_unit_test(test_device__fill_sets_only_what_was_asked),
        cmocka_unit_test(test_device__events_order_streams),
        cmocka_unit_test(test_device__casts_equal_the_core),
        cmocka_unit_test(test_device__tree_sums_equal_the_core),
        cmocka_unit_test(test_device__scale_equals_the_core),
        cmocka_unit_test(test_device__square_sums_equal_the_core),
        cmocka_unit_test(test_device__optimizers_equal_the_core),
        cmocka_unit_test(test_device__bad_kernels_are_refused),
    };
    tess__plugin *plugin = NULL;
    int code = open_device(argc > 1 ? argv[1] : "cpu", &plugin);
    if (code)
        return code;
    code = cmocka_run_group_tests_name(argc > 1 ? argv[1] : "cpu", tests, NULL, NULL);
    if (TESS_CAN(tess_device_ops, dut.ops, stream_destroy))
        dut.ops->stream_destroy(dut.device, &dut.stream);
    dut.ops->destroy(dut.device);
    dut.ops->destroy(NULL);
    tess__plugin_close(plugin);
    return code;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "device.h"

#include "core/kernels/kernels.h"

device_under_test dut;

void must(tess_status status, const char *what) {
    check_that(dut.c, status == TESS_OK, "%s gave %s: %s", what, check_status(status), dut.error.message);
}

static void finish(check *c) {
    (void)c;
    check_doing(dut.c, "stream_destroy");
    if (TESS_CAN(tess_device_ops, dut.ops, stream_destroy))
        dut.ops->stream_destroy(dut.device, &dut.stream);
    check_doing(dut.c, "destroy");
    dut.ops->destroy(dut.device);
}

void device_take(check *c, int32_t index) {
    dut.c = c;
    dut.error.struct_size = sizeof dut.error;
    dut.info.struct_size = sizeof dut.info;
    tess_status s = dut.ops->describe(dut.ctx, index, &dut.info, &dut.error);
    if (s == TESS_OK)
        s = dut.ops->create(dut.ctx, index, 0, &dut.device, &dut.error);
    if (s < 0)
        check_skip(c, "no such device here: %s", dut.error.message);
    if (TESS_CAN(tess_device_ops, dut.ops, stream_create))
        must(dut.ops->stream_create(dut.device, TESS_STREAM_COMPUTE, &dut.stream, &dut.error), "stream_create");
}

void device_open(check *c) {
    dut.ops = check_open(c);
    dut.ctx = c->ctx;
    device_take(c, 0);
    c->finish = finish;
}

void *device_borrow(check *c, int32_t index) {
    const void *device_ops;
    void *plugin = NULL;
    tess_error e = { .struct_size = sizeof e };
    if (c->host.plugin_open(c->host.host, TESS_KIND_DEVICE, "cuda", &device_ops, &dut.ctx, &plugin, &e) != TESS_OK)
        check_skip(c, "needs a GPU's memory, and there is no device plugin for it: %s", e.message);
    dut.ops = device_ops;
    device_take(c, index);
    return plugin;
}

void device_give_back(check *c, void *plugin) {
    finish(c);
    c->host.plugin_close(c->host.host, plugin);
}

void run_reference(const tess_kernel *k) {
    must(tess__kernel_run(k, NULL, &dut.error), "the core's kernel");
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
    must(dut.ops->mem_alloc(dut.device, &request, &buffer, &dut.error), "mem_alloc");
    if (data) {
        must(dut.ops->copy(dut.device, buffer.ptr, buffer.mem, data, TESS_MEM_HOST, bytes, &dut.stream, &dut.error),
             "copy up");
        drain(&dut.stream);
    }
    return buffer;
}

void download(const tess_buffer *buffer, void *data, uint64_t bytes) {
    must(dut.ops->copy(dut.device, data, TESS_MEM_HOST, buffer->ptr, buffer->mem, bytes, &dut.stream, &dut.error),
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
    must(dut.ops->event_create(dut.device, &event, &dut.error), "event_create");
    must(dut.ops->event_record(event, stream, &dut.error), "event_record");
    must(dut.ops->event_wait(event, 60 * CHECK_SECOND_NS, &dut.error), "event_wait");
    dut.ops->event_destroy(event);
}

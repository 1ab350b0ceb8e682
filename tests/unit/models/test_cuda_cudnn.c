/* SPDX-License-Identifier: BSD-3-Clause */
/* The graphs of attention before the real cuDNN, without a GPU. It is given the properties of an H100 and of an A100,
 * takes the graphs for its own attention, compiles the kernels, and says which workspace it wants. Nothing runs. */
#define TESSERA_HAVE_CUDNN 1 /* of the models alone elsewhere */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tools/models/cuda/cudnn_attention.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if CUDNN_VERSION >= 90800
static ops_cudnn cudnn;

/* As cuDNN describes a device; a field that is missing is an error. */
static cudnnBackendDescriptor_t device(int capability, int processors, int shared_bytes) {
    char text[1024];
    cudnnBackendDescriptor_t d;
    int n = snprintf(text, sizeof text,
                     "{\"deviceName\": \"test\", \"cudaDeviceId\": 0, \"deviceVer\": %d, \"driverVer\": 13000, "
                     "\"multiProcessorCount\": %d, \"maxSharedMemoryPerBlockOptin\": %d, "
                     "\"maxSharedMemoryPerBlock\": 49152, \"reservedSharedMemoryPerBlock\": 1024, "
                     "\"totalGlobalMem\": 84899345920, \"regsPerBlock\": 65536, \"maxRegistersPerSM\": 65536, "
                     "\"smClockRateKHz\": 1980000, \"memClockRateKHz\": 2619000, \"l2CacheSize\": 52428800, "
                     "\"warpSize\": 32, \"pciDeviceId\": 0, \"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024, "
                     "\"maxThreadsPerSM\": 2048, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, "
                     "\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64]}",
                     capability, processors, shared_bytes);
    assert_int_equal(cudnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d), 0);
    assert_int_equal(
        cudnn.cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, n + 1, text), 0);
    assert_int_equal(cudnn.cudnnBackendFinalize(d), 0);
    return d;
}

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" /* shapes without a window or a cap */
/* cuDNN names what it took a graph for in a plan's text. */
static void is_taken_for(cudnnBackendDescriptor_t plan, const char *name) {
    int64_t n = 0;
    char *text = calloc(1, 1 << 21);
    assert_non_null(text);
    assert_int_equal(cudnn.cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                                    CUDNN_TYPE_CHAR, 1 << 21, &n, text),
                     0);
    assert_non_null(strstr(text, name));
    free(text);
}

static void plans_on(cudnnBackendDescriptor_t properties, const ops_attention_shape *s, int fp16, int backward) {
    ops_graph g = { .d = &cudnn };
    ops_graph_target target = { .properties = properties };
    ops_scratch need;
    int64_t bytes = -1;
    ops_cudnn_attention_build(&g, s, fp16, backward);
    assert_int_equal(g.status, CUDNN_STATUS_SUCCESS);
    cudnnBackendDescriptor_t plan = ops_graph_plan(&g, &target, &bytes);
    if (!plan)
        fail_msg("heads of %d at length %d, %s: %s", s->size, s->time, backward ? "backward" : "forward",
                 cudnn.cudnnGetErrorString(g.status));
    is_taken_for(plan, backward ? "\"SDPA_BWD\"" : "\"SDPA_FWD\"");
    ops_cudnn_attention_need(s, &need);
    assert_true(bytes >= 0 && (uint64_t)bytes <= (backward ? need.backward_bytes : need.forward_bytes) - 256);
    ops_graph_end(&g);
}

static void test_cuda_cudnn__takes_the_graphs_for_attention(void **state) {
    static const ops_attention_shape shapes[] = { { 16, 1024, 12, 64, 0 }, { 2, 1000, 4, 128, 2 }, { 1, 33, 4, 8, 2 } };
    cudnnBackendDescriptor_t devices[] = { device(900, 132, 232448), device(800, 108, 166912) };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int backward = 0; backward < 2; backward++)
            plans_on(devices[0], &shapes[i], i == 1, backward);
    plans_on(devices[1], &shapes[1], 0, 1);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        cudnn.cudnnBackendDestroyDescriptor(devices[i]);
}

/* Heads of 12 are what attention_check refuses; cuDNN has them neither. */
static void test_cuda_cudnn__has_no_heads_of_odd_sizes(void **state) {
    ops_graph g = { .d = &cudnn };
    ops_graph_target target = { .properties = device(900, 132, 232448) };
    int64_t bytes;
    (void)state;
    ops_cudnn_attention_build(&g, &(ops_attention_shape){ 2, 64, 4, 12, 0 }, 0, 1);
    assert_null(ops_graph_plan(&g, &target, &bytes));
    assert_int_not_equal(g.status, CUDNN_STATUS_SUCCESS);
    ops_graph_end(&g);
    cudnn.cudnnBackendDestroyDescriptor(target.properties);
}

static int makes_a_plan(void) {
    ops_graph g = { .d = &cudnn };
    ops_graph_target target = { .properties = device(900, 132, 232448) };
    int64_t bytes;
    ops_cudnn_attention_build(&g, &(ops_attention_shape){ 2, 64, 4, 16, 0 }, 0, 0);
    int made = ops_graph_plan(&g, &target, &bytes) != NULL;
    ops_graph_end(&g);
    cudnn.cudnnBackendDestroyDescriptor(target.properties);
    return made;
}

/* cuDNN looks for the NVRTC of its CUDA when it first compiles. Without it there are no plans. */
static int lacks_nvrtc(void *lib) {
    __typeof__(&cudnnGetCudartVersion) version;
    char name[32];
    *(void **)(void *)&version = dlsym(lib, "cudnnGetCudartVersion");
    snprintf(name, sizeof name, "libnvrtc.so.%d", version ? (int)(version() / 1000) : 13);
    return !makes_a_plan() && !dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

int main(void) {
    void *lib = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        printf("skipped: %s\n", dlerror());
        return 77;
    }
#define FIND(name)                                                                                                     \
    *(void **)(void *)&cudnn.name = dlsym(lib, #name);                                                                 \
    if (!cudnn.name)                                                                                                   \
        return 1;
    OPS_CUDNN_FUNCTIONS(FIND)
    if (cudnn.cudnnGetVersion() < 91600) {
        printf("skipped: cuDNN %zu is before 9.16\n", cudnn.cudnnGetVersion());
        return 77;
    }
    if (lacks_nvrtc(lib)) {
        printf("skipped: %s\n", dlerror());
        return 77;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_cuda_cudnn__takes_the_graphs_for_attention),
                                        cmocka_unit_test(test_cuda_cudnn__has_no_heads_of_odd_sizes) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    puts("skipped: cudnn.h before 9.8 cannot describe a device");
    return 77;
}
#endif

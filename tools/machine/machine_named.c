/* SPDX-License-Identifier: BSD-3-Clause */
/* Tessera describes these machines itself. Figures come from published data sheets, which `source` names. Shares and
 * latencies are our estimates; docs/machine.md gives the reasons. */
#include <string.h>

#include "machine.h"

/* Dense products without sparsity. fp32 is the plain one, not TF32: Tessera's fp32 is fp32. Links in one direction.
 * Data sheets have 1979 TFLOPS for fp8 with fast accumulation, which Tessera does not use. In its place stands 1.5
 * times bf16, our assumption. */
#define SHARES "\"flops_share\":0.5,\"memory_share\":0.8,\"link_share\":0.8,"
#define GPU                                                                                                            \
    "\"device\":\"gpu\",\"ranks_per_node\":8,\"algorithm\":\"ring\",\"kernel_seconds\":4e-6,"                          \
    "\"collective_seconds\":1.5e-5," SHARES

static const char a100[] =
    "{\"name\":\"a100-8x-node\",\"source\":\"NVIDIA A100 80GB SXM data sheet: 312 TFLOPS bf16, 19.5 fp32, 2039 GB/s, "
    "NVLink 600 GB/s both ways, PCIe 4; DGX A100: 8 x 200 Gb/s, host memory 2 x 8 x DDR4-3200\"," GPU
    "\"device_memory_bytes\":80000000000,"
    "\"flops_per_second\":{\"f32\":19.5e12,\"bf16\":312e12,\"f16\":312e12,\"f64\":9.7e12},"
    "\"memory_bytes_per_second\":2039e9,\"within\":{\"latency_seconds\":3e-6,\"bytes_per_second\":300e9},"
    "\"across\":{\"latency_seconds\":8e-6,\"bytes_per_second\":25e9},"
    "\"up_bytes_per_second\":32e9,\"down_bytes_per_second\":32e9,\"host_bytes_per_second\":51e9}";
static const char h100[] =
    "{\"name\":\"h100-8x-node\",\"source\":\"NVIDIA H100 SXM data sheet: 989 TFLOPS bf16, 67 fp32, 3.35 TB/s, NVLink "
    "900 "
    "GB/s both ways, PCIe 5; DGX H100: 8 x 400 Gb/s, host memory 2 x 8 x DDR5-4800\"," GPU
    "\"device_memory_bytes\":80000000000,"
    "\"flops_per_second\":{\"f32\":67e12,\"bf16\":989e12,\"f16\":989e12,\"f64\":34e12,\"f8e4m3\":1484e12},"
    "\"memory_bytes_per_second\":3350e9,\"within\":{\"latency_seconds\":3e-6,\"bytes_per_second\":450e9},"
    "\"across\":{\"latency_seconds\":8e-6,\"bytes_per_second\":50e9},"
    "\"up_bytes_per_second\":64e9,\"down_bytes_per_second\":64e9,\"host_bytes_per_second\":76e9}";
static const char h200[] =
    "{\"name\":\"h200-8x-node\",\"source\":\"NVIDIA H200 SXM data sheet: 989 TFLOPS bf16, 67 fp32, 4.8 TB/s, 141 GB, "
    "NVLink 900 GB/s both ways, PCIe 5; DGX H200: 8 x 400 Gb/s, host memory 2 x 8 x DDR5-4800\"," GPU
    "\"device_memory_bytes\":141000000000,"
    "\"flops_per_second\":{\"f32\":67e12,\"bf16\":989e12,\"f16\":989e12,\"f64\":34e12,\"f8e4m3\":1484e12},"
    "\"memory_bytes_per_second\":4800e9,\"within\":{\"latency_seconds\":3e-6,\"bytes_per_second\":450e9},"
    "\"across\":{\"latency_seconds\":8e-6,\"bytes_per_second\":50e9},"
    "\"up_bytes_per_second\":64e9,\"down_bytes_per_second\":64e9,\"host_bytes_per_second\":76e9}";
/* Measured by `tessera bench --machine`, without its tables. */
static const char cpu[] =
    "{\"name\":\"cpu-2-cores\",\"source\":\"tessera bench --machine on two cores of an AMD EPYC 9004, gloo over "
    "loopback\",\"device\":\"cpu\",\"algorithm\":\"direct\",\"cores\":2,"
    "\"flops_per_second\":{\"f32\":1.1e11,\"bf16\":2.1e11},\"memory_bytes_per_second\":3e10,"
    "\"copy_bytes_per_second\":3.2e10,\"sum_bytes_per_second\":2.9e10,\"optimizer_bytes_per_second\":4.2e10,"
    "\"norm_bytes_per_second\":1.7e10,"
    "\"kernel_seconds\":1e-6,\"collective_seconds\":0,"
    "\"within\":{\"latency_seconds\":4.5e-5,\"bytes_per_second\":2e9},"
    "\"across\":{\"latency_seconds\":4.5e-5,\"bytes_per_second\":2e9},"
    "\"up_bytes_per_second\":1.6e10,\"down_bytes_per_second\":1.6e10,\"host_bytes_per_second\":4.2e10}";

static const char *const names[] = { "a100-8x-node", "h100-8x-node", "h200-8x-node", "cpu-2-cores", NULL };
static const char *const texts[] = { a100, h100, h200, cpu };

const char *const *machine_names(void) {
    return names;
}

const char *machine_text(const char *name) {
    for (size_t i = 0; names[i]; i++)
        if (strcmp(names[i], name) == 0)
            return texts[i];
    return NULL;
}

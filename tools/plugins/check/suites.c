/* SPDX-License-Identifier: BSD-3-Clause */
/* Lists the suites in the order in which they run. */
#include "suites.h"

const check_suite check_suites[] = {
    { "static", 0, 1, check_cases_static },
    { "abi", 0, 0, check_cases_abi },
    { "comm", TESS_KIND_COMM, 0, check_cases_comm_calls },
    { "comm", TESS_KIND_COMM, 0, check_cases_comm_values },
    { "comm", TESS_KIND_COMM, 0, check_cases_comm_faults },
    { "comm", TESS_KIND_COMM, 0, check_cases_comm_staged },
    { "comm", TESS_KIND_COMM, 0, check_cases_comm_apart },
    { "device", TESS_KIND_DEVICE, 0, check_cases_device_memory },
    { "device", TESS_KIND_DEVICE, 0, check_cases_device_kernels },
    { "device", TESS_KIND_DEVICE, 0, check_cases_device_graphs },
    { "offload", TESS_KIND_OFFLOAD, 0, check_cases_offload },
    { "optimizer", TESS_KIND_OPTIMIZER, 0, check_cases_optimizer },
    { "precision", TESS_KIND_PRECISION, 0, check_cases_precision },
    { "wrap", TESS_KIND_WRAP, 0, check_cases_wrap },
    { 0 },
};

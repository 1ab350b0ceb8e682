/* SPDX-License-Identifier: BSD-3-Clause */
/* The checks of each suite. Each list ends with a null name. */
#ifndef TESSERA_CHECK_SUITES_H
#define TESSERA_CHECK_SUITES_H
#include "check.h"

extern const check_case check_cases_static[], check_cases_abi[], check_cases_comm_values[], check_cases_comm_calls[],
    check_cases_comm_faults[], check_cases_comm_staged[], check_cases_comm_apart[], check_cases_device_memory[],
    check_cases_device_kernels[], check_cases_device_graphs[], check_cases_offload[], check_cases_optimizer[],
    check_cases_precision[], check_cases_wrap[];
#endif

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 7200
# processors: 2
# test_net_faults.sh with ten trials of each fault (docs/benchmarks/network.md).
TRIALS=${TRIALS:-10} exec bash "$SOURCE/tests/e2e/test_net_faults.sh"

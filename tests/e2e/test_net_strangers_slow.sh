#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# processors: 2
# test_net_strangers.sh with 10,000 strangers in all, in turn with undisturbed runs (docs/benchmarks/network.md). On an idle
# machine it takes about five minutes.
PAIRS=${PAIRS:-5} STRANGERS=${STRANGERS:-2000} STEPS=300 LASTING=${LASTING:-25} exec bash "$SOURCE/tests/e2e/test_net_strangers.sh"

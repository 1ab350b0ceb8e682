#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# 200 flips of test_flips_all over everything, and one in each block call of eight passes with 1/8: docs/benchmarks/proof.md.
SEED=${SEED:-19} COUNT=${COUNT:-200} SHARE=1 exec bash "$SOURCE/tests/e2e/test_flips_all.sh"

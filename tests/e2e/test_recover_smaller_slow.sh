#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# test_recover_smaller with every strategy, offload, precision, activations and comm.
ALL=1 exec bash "$SOURCE/tests/e2e/test_recover_smaller.sh"

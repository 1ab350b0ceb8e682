#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 7200
# Every case of test_recover; and fewer ranks with every strategy, offload, precision, activations and comm.
ALL=1 exec bash "$SOURCE/tests/e2e/test_recover.sh"

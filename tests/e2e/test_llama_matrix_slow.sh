#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# processors: 2
# test_llama_matrix.sh over the whole covering set.
LLAMA_CELLS=1 exec bash "$SOURCE/tests/e2e/test_llama_matrix.sh"

#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# processors: 2
# test_model_cells.sh over all cells of the covering set that it can take.
MODEL_CELLS=1 exec bash "$SOURCE/tests/e2e/test_model_cells.sh"

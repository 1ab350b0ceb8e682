#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e slow
# timeout: 1200
# processors: 2
# test_ledger.sh with every combination on every model.
LEDGER_ALL=1 exec bash "$SOURCE/tests/e2e/test_ledger.sh"

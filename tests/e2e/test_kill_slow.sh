#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 1800
# processors: 2
# test_kill.sh with 20 kills in each phase.
KILLS=20 exec bash "$SOURCE/tests/e2e/test_kill.sh"

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# As test_kill.sh, over shared memory: once in each phase.
KILL_COMM=shm KILLS=1 exec bash "$SOURCE/tests/e2e/test_kill.sh"

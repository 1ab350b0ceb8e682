#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 7200
# processors: 2
# test_hosts_mpirun.sh with all twelve shapes, each over IPv6 and by mpirun.
EVERY_WAY=1 exec bash "$SOURCE/tests/e2e/test_hosts_mpirun.sh"

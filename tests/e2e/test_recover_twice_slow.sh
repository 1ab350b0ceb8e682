#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# test_recover_twice in every phase.
ALL=1 exec bash "$SOURCE/tests/e2e/test_recover_twice.sh"

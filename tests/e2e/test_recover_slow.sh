#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# Every case of test_recover.
ALL=1 exec bash "$SOURCE/tests/e2e/test_recover.sh"

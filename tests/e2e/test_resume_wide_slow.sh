#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 14400
# Every combination of test_resume_wide. PART=I/N: the I-th of N equal parts.
COUNT=all exec bash "$SOURCE/tests/e2e/test_resume_wide.sh"

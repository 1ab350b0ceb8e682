#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 7200
# A thousand kills during saves: test_checkpoint_kill.sh has the rest.
KILLS=1000 exec bash "$SOURCE/tests/e2e/test_checkpoint_kill.sh"

#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# Two ranks under valgrind: no leak, no access outside what was allocated. Undefined values are not followed: Gloo sends
# the padding of its socket addresses.
set -u
command -v valgrind > /dev/null || { echo "skip: valgrind is not installed"; exit 77; }
[ -z "$SANITIZE" ] || { echo "skip: valgrind does not run sanitized programs"; exit 77; }
[ -f "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skip: comm-gloo is not built here"; exit 77; }
export TESSERA_LOG=error TESSERA_HEARTBEAT=30
export TESSERA_TEST_CHECKER_MIB=24 # its translations and shadows; 7 MiB were seen
checked() {
  "$TESSERA" run -n 2 -- valgrind -q --undef-value-errors=no --leak-check=full \
    --errors-for-leak-kinds=definite,indirect,possible --error-exitcode=9 "$BUILD/tests/support/toy" clip > log 2>&1
}
checked || { cat log; exit 1; }
grep -q 'digest=' log || { cat log; exit 1; }
# The kernel's figures are a witness here too: a plugin that takes 1 GiB is found.
TESSERA_PLUGIN_PATH=$TESSERA_PLUGIN_PATH:$BUILD/tests/planted TESSERA_COMM=greedy:open:1:1048576 checked && { echo "1 GiB more is not seen"; exit 1; }
grep -q 'memory grew by' log || { cat log; exit 1; }

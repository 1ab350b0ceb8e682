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
export TESSERA_TEST_LAUNCHER=valgrind # its own memory is in the resident set
"$TESSERA" run -n 2 -- valgrind -q --undef-value-errors=no --leak-check=full \
  --errors-for-leak-kinds=definite,indirect,possible --error-exitcode=9 "$BUILD/tests/support/toy" clip > log 2>&1
code=$?
cat log
[ $code = 0 ] && grep -q 'digest=' log

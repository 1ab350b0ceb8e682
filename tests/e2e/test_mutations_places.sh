#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# Each fault of tests/mutations/list stands for lines that are in its file once, so that it can be planted, and names a test
# that there is. A fault without its place is found.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
run=$SOURCE/tests/mutations/run
expect 0 "$run" --places
sed -n 's/^ctest \([^ ]*\).*/\1/p' "$SOURCE/tests/mutations/list" | while read -r test; do
  [ -e "$SOURCE/tests/$test.c" ] || [ -e "$SOURCE/tests/$test.sh" ] ||
    [ -d "$SOURCE/plugins/$(basename "${test#conformance/}" _doubles)" ] || fail "a fault names the test $test, which is not there"
done
mkdir -p tree/tests/mutations tree/core
cp "$run" tree/tests/mutations/run
printf 'a-fault core/x.c: of a test\nctest e2e/none\n-one\n+two\n' >tree/tests/mutations/list
echo one >tree/core/x.c
expect 0 tree/tests/mutations/run --places
printf 'one\none\n' >tree/core/x.c
expect 2 tree/tests/mutations/run --places
grep -q 'a-fault: not exactly one place in core/x.c' err || fail "twice: $(cat err)"
echo other >tree/core/x.c
expect 2 tree/tests/mutations/run --places
grep -q 'a-fault: not exactly one place in core/x.c' err || fail "nowhere: $(cat err)"
